//! The CDI files of others, as far as we have to know them: which devices they define, and which
//! nodes these have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::roots::Roots;

/// No file of this kind is longer.
const LONGEST: u64 = 4 << 20;

/// A CDI file that is not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The file.
    pub path: PathBuf,
    /// Vendor and class.
    pub kind: String,
    /// Devices, each with its nodes.
    pub devices: Vec<(String, BTreeSet<String>)>,
}

/// What is in the folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// Files that could be read.
    pub files: Vec<Other>,
    /// Files that could not, and why. Engines skip them too.
    pub unread: Vec<(PathBuf, String)>,
}

/// What a file has that we look at. Everything else is for its readers.
#[derive(Deserialize)]
struct File {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

#[derive(Default, Deserialize)]
struct Edits {
    #[serde(default, rename = "deviceNodes")]
    nodes: Option<Vec<Node>>,
}

#[derive(Deserialize)]
struct Node {
    path: String,
    #[serde(default, rename = "hostPath")]
    host: Option<String>,
}

/// The folders that engines read, the later before the earlier.
fn folders(roots: &Roots) -> [PathBuf; 2] {
    [roots.etc.join("cdi"), roots.run.join("cdi")]
}

/// All files of the folders but `ours`.
pub fn others(roots: &Roots, ours: &Path) -> Others {
    let mut found = Others::default();
    for folder in folders(roots) {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let kind = path.extension().and_then(|end| end.to_str());
            let Some(end @ ("json" | "yaml")) = kind.filter(|_| path != ours) else { continue };
            match read(&path, end) {
                Ok(other) => found.files.push(other),
                Err(why) => found.unread.push((path, why)),
            }
        }
    }
    found
}

fn read(path: &Path, end: &str) -> Result<Other, String> {
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > LONGEST {
        return Err("no plain file of a usual size".into());
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: File = match end {
        "json" => serde_json::from_str(&text).map_err(|error| error.to_string())?,
        _ => serde_saphyr::from_str(&text).map_err(|error| one_line(&error.to_string()))?,
    };
    let nodes = |edits: Edits| -> BTreeSet<String> {
        let nodes = edits.nodes.unwrap_or_default().into_iter();
        nodes.map(|node| node.host.filter(|host| !host.is_empty()).unwrap_or(node.path)).collect()
    };
    // What a file does for all its devices belongs to each.
    let shared = nodes(file.edits);
    let devices = file.devices.into_iter().map(|device| {
        let mut own = nodes(device.edits);
        own.extend(shared.iter().cloned());
        (device.name, own)
    });
    Ok(Other { path: path.to_owned(), kind: file.kind, devices: devices.collect() })
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
