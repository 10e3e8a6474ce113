//! What is wrong with the node's CDI file: by itself, beside the node as it is, and beside the
//! files of others.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::folder::{Others, others};
use super::made;
use crate::edit::cdi::{KIND, Spec, is_device_name};
use crate::inventory::Node;
use crate::policy::Policy;
use crate::roots::Roots;

/// Something that is wrong, or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// There are adapters and no file.
    Missing {
        /// Where it would be.
        path: PathBuf,
        /// How many devices it would have.
        devices: usize,
    },
    /// It cannot be read, or is none that we write.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It breaks a rule of CDI.
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which, as a sentence.
        rule: String,
    },
    /// It is not what would be written now.
    Stale {
        /// The file.
        path: PathBuf,
        /// Devices that are missing from it.
        missing: Vec<String>,
        /// Devices that it has and should not.
        gone: Vec<String>,
    },
    /// Nothing can be written now.
    Hole {
        /// Why.
        why: String,
    },
    /// A node that it names is not there.
    NoNode {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// A hook that it names is not there.
    NoHook {
        /// The program.
        hook: String,
        /// The file.
        path: PathBuf,
    },
    /// Another file defines a device of the same name.
    Duplicate {
        /// The device, by its qualified name.
        device: String,
        /// The other file.
        other: PathBuf,
        /// It is in the same folder, so that engines drop both.
        dropped: bool,
    },
    /// Devices of another kind have the same nodes. That is no mistake.
    Shared {
        /// The other's kind.
        kind: String,
        /// Its file.
        other: PathBuf,
        /// Nodes that both have.
        nodes: Vec<String>,
    },
}

impl Flaw {
    /// Whether containers suffer from it.
    pub fn is_wrong(&self) -> bool {
        !matches!(self, Self::Shared { .. })
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path, devices } => write!(
                f,
                "{}: there is no CDI file, and {devices} devices could be in it",
                path.display()
            ),
            Self::Unreadable { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Invalid { path, rule } => write!(f, "{}: {rule}", path.display()),
            Self::Stale { path, missing, gone } => {
                write!(f, "{}: is out of date", path.display())?;
                if !missing.is_empty() {
                    write!(f, "; it lacks {}", missing.join(", "))?;
                }
                if !gone.is_empty() {
                    write!(f, "; it still has {}", gone.join(", "))?;
                }
                Ok(())
            }
            Self::Hole { why } => f.write_str(why),
            Self::NoNode { node, path } => {
                write!(f, "{}: names {node}, which is not there", path.display())
            }
            Self::NoHook { hook, path } => write!(
                f,
                "{}: names the hook {hook}, which is not there: containers fail at their start",
                path.display()
            ),
            Self::Duplicate { device, other, dropped: true } => write!(
                f,
                "{} defines {device} too, in the same folder: engines drop both",
                other.display()
            ),
            Self::Duplicate { device, other, dropped: false } => {
                write!(f, "{} defines {device} too; the file in /var/run/cdi wins", other.display())
            }
            Self::Shared { kind, other, nodes } => write!(
                f,
                "{} gives {} as {kind}: whoever takes both has the adapter twice, which is no harm",
                other.display(),
                nodes.join(", ")
            ),
        }
    }
}

/// What is wrong with that file on this node, the worst first. Without a file and without an
/// adapter nothing is.
pub fn judge(roots: &Roots, node: &Node, policy: &Policy, path: &Path) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let now = match made(roots, node, policy) {
        Ok(made) => Some(made.spec),
        Err(why) => {
            flaws.push(Flaw::Hole { why: why.to_string() });
            None
        }
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(Some(now)) = now {
                flaws.push(Flaw::Missing { path: path.to_owned(), devices: now.devices.len() });
            }
            return flaws;
        }
        Err(error) => {
            flaws.push(Flaw::Unreadable { path: path.to_owned(), why: error.to_string() });
            return flaws;
        }
    };
    let spec: Spec = match serde_json::from_str(&text) {
        Ok(spec) => spec,
        Err(error) => {
            let why = format!("no CDI file of ours: {error}");
            flaws.push(Flaw::Unreadable { path: path.to_owned(), why });
            return flaws;
        }
    };
    flaws
        .extend(rules(&spec).into_iter().map(|rule| Flaw::Invalid { path: path.to_owned(), rule }));
    if let Some(now) = now
        && now.as_ref() != Some(&spec)
    {
        flaws.push(stale(path, &spec, now.as_ref()));
    }
    for node in spec.nodes() {
        let here = node.strip_prefix("/dev/").map(|rest| roots.dev.join(rest));
        if !here.is_some_and(|here| here.exists()) {
            flaws.push(Flaw::NoNode { node: node.to_owned(), path: path.to_owned() });
        }
    }
    for hook in &spec.container_edits.hooks {
        if roots.is_live() && !Path::new(&hook.path).is_file() {
            flaws.push(Flaw::NoHook { hook: hook.path.clone(), path: path.to_owned() });
        }
    }
    flaws.extend(beside(&spec, path, &others(roots, path)));
    flaws
}

fn stale(path: &Path, spec: &Spec, now: Option<&Spec>) -> Flaw {
    let devices = |spec: &Spec| -> BTreeSet<String> {
        spec.devices.iter().map(|device| device.name.clone()).collect()
    };
    let (old, new) = (devices(spec), now.map(devices).unwrap_or_default());
    Flaw::Stale {
        path: path.to_owned(),
        missing: new.difference(&old).cloned().collect(),
        gone: old.difference(&new).cloned().collect(),
    }
}

/// Rules of CDI that a file breaks.
fn rules(spec: &Spec) -> Vec<String> {
    let mut broken = Vec::new();
    if spec.kind != KIND {
        broken.push(format!("its kind is {:?}, not {KIND}", spec.kind));
    }
    if spec.devices.is_empty() {
        broken.push("it has no device".into());
    }
    let mut names = BTreeSet::new();
    for device in &spec.devices {
        if !is_device_name(&device.name) {
            broken.push(format!("{:?} is no name of a device", device.name));
        }
        if !names.insert(device.name.as_str()) {
            broken.push(format!("it has {} twice", device.name));
        }
        let edits = &device.container_edits;
        if edits.device_nodes.is_empty() {
            broken.push(format!("{} has no node", device.name));
        }
    }
    let nodes = spec.devices.iter().flat_map(|device| &device.container_edits.device_nodes);
    for node in nodes.chain(&spec.container_edits.device_nodes) {
        if node.permissions != "rw" {
            broken
                .push(format!("{} has the permissions {:?}, not rw", node.path, node.permissions));
        }
    }
    if spec.cdi_version != spec.least_version() {
        broken.push(format!(
            "its version is {:?}, and {} has all that is in it: other readers refuse it",
            spec.cdi_version,
            spec.least_version()
        ));
    }
    broken
}

/// What the files of others have in common with ours, those first that make engines drop devices.
pub(super) fn beside(spec: &Spec, path: &Path, others: &Others) -> Vec<Flaw> {
    let nodes = spec.nodes();
    let (mut duplicates, mut shared) = (Vec::new(), Vec::new());
    for other in &others.files {
        let same_kind = other.kind == spec.kind;
        let twice = other
            .devices
            .iter()
            .filter(|(name, _)| same_kind && spec.devices.iter().any(|ours| ours.name == *name));
        duplicates.extend(twice.map(|(name, _)| Flaw::Duplicate {
            device: format!("{}={name}", spec.kind),
            other: other.path.clone(),
            dropped: other.path.parent() == path.parent(),
        }));
        let theirs: BTreeSet<&String> = other.devices.iter().flat_map(|(_, nodes)| nodes).collect();
        let both: Vec<String> =
            theirs.into_iter().filter(|node| nodes.contains(node.as_str())).cloned().collect();
        if !same_kind && !both.is_empty() {
            let (kind, other) = (other.kind.clone(), other.path.clone());
            shared.push(Flaw::Shared { kind, other, nodes: both });
        }
    }
    duplicates.sort_by_key(|flaw| !matches!(flaw, Flaw::Duplicate { dropped: true, .. }));
    duplicates.extend(shared);
    duplicates
}
