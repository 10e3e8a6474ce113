//! A machine, a bundle, and the wrapper called for it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::inventory::fixture;
use crate::oci::cmdline::{Action, parse};
use crate::oci::report::Reporter;
use crate::oci::{OciError, Surroundings, create, exec, gone};
use crate::records::{Records, read_all};
use crate::roots::Roots;

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures")
}

/// Documents that engines have made, by name.
pub fn documents() -> Vec<(String, Value)> {
    let mut found: Vec<(String, Value)> = fs::read_dir(fixtures().join("bundles"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.ends_with(".config.json") || name.ends_with(".precreate.json")
        })
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 8, "{}", found.len());
    found
}

pub struct Rig {
    pub folder: tempfile::TempDir,
    pub roots: Roots,
    path: String,
    bundle: PathBuf,
}

impl Rig {
    /// That machine, with a `runc` that is never run.
    pub fn new(machine: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fixture::unpack(&fixtures().join(format!("{machine}.tree")), folder.path()).unwrap();
        let roots = Roots::below(folder.path());
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["runc", "rdma-ctk-runtime"] {
            fs::write(bin.join(name), name).unwrap();
            fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        symlink(bin.join("rdma-ctk-runtime"), roots.proc.join("self/exe")).unwrap();
        let bundle = folder.path().join("bundle");
        fs::create_dir_all(&bundle).unwrap();
        let path = bin.display().to_string();
        Self { folder, roots, path, bundle }
    }

    pub fn policy(&self, text: &str) {
        fs::create_dir_all(self.roots.etc.join("rdma-ctk")).unwrap();
        fs::write(self.roots.etc.join("rdma-ctk/config.toml"), text).unwrap();
    }

    /// The same, its bundle where containerd has those of Kubernetes: that of `c1`.
    pub fn in_kubernetes(machine: &str) -> Self {
        let mut rig = Self::new(machine);
        rig.bundle = rig.folder.path().join("io.containerd.runtime.v2.task/k8s.io/c1");
        fs::create_dir_all(&rig.bundle).unwrap();
        rig
    }

    pub fn bundle(&self) -> PathBuf {
        self.bundle.clone()
    }

    pub fn config(&self) -> PathBuf {
        self.bundle().join("config.json")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.bundle().join("log.json")).unwrap_or_default()
    }

    /// Calls the wrapper as far as the moment in which it would become the runtime.
    pub fn call(&self, arguments: &[&str]) -> Result<(), OciError> {
        let variable = |name: &str| (name == "PATH").then(|| OsString::from(&self.path));
        let surroundings = Surroundings { roots: self.roots.clone(), variable: &variable };
        let line = parse(arguments);
        let reporter = Reporter::new(&self.roots, &line);
        match &line.action {
            Action::Start(start) => create::edit(&surroundings, &line, start, &reporter).map(drop),
            Action::Exec { process, id } => {
                exec::complete(&surroundings, &line, process, id.as_deref())
            }
            Action::Delete { id } => {
                let id = id.as_deref().unwrap_or_default();
                gone::at_delete(&surroundings, &line, id, &reporter);
                Ok(())
            }
            Action::Pass => Ok(()),
        }
    }

    /// `create` for the bundle.
    pub fn create(&self, id: &str) -> Result<(), String> {
        let bundle = self.bundle().display().to_string();
        let log = format!("{bundle}/log.json");
        let called = self.call(&[
            "--root",
            "/run/runc",
            "--log",
            &log,
            "--log-format",
            "json",
            "create",
            "--bundle",
            &bundle,
            id,
        ]);
        called.map_err(|error| error.to_string())
    }

    /// `create` for that document; the new one, and whether the file was replaced.
    pub fn edit(&self, document: &Value) -> Result<(Value, bool), String> {
        use std::os::unix::fs::MetadataExt;
        fs::write(self.config(), serde_json::to_vec(document).unwrap()).unwrap();
        let before = fs::metadata(self.config()).unwrap().ino();
        self.create("c1")?;
        let after = fs::metadata(self.config()).unwrap().ino();
        let text = fs::read(self.config()).unwrap();
        Ok((serde_json::from_slice(&text).unwrap(), before != after))
    }

    pub fn records(&self) -> Records {
        read_all(&self.roots)
    }
}

/// A machine for a document by that name.
pub fn rig_for(name: &str) -> Rig {
    if name.starts_with("cri.") { Rig::in_kubernetes("soft-roce") } else { Rig::new("soft-roce") }
}

/// The document with that annotation, and without others of ours.
pub fn asking(document: &Value, key: &str, value: &str) -> Value {
    let mut document = document.clone();
    let annotations = document["annotations"].as_object_mut().unwrap();
    annotations.retain(|key, _| !key.contains("rdma-ctk.io"));
    annotations.insert(key.to_owned(), value.into());
    document
}

/// JSON pointers at which two values differ, those of added members and items among them.
pub fn differences(before: &Value, after: &Value, at: &str, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => {
            for (name, value) in one {
                let at = format!("{at}/{name}");
                match other.get(name) {
                    Some(now) => differences(value, now, &at, found),
                    None => found.push(at),
                }
            }
            found.extend(
                other.keys().filter(|n| !one.contains_key(*n)).map(|n| format!("{at}/{n}")),
            );
            // What was there is in the order in which it was.
            let kept: Vec<&String> = other.keys().filter(|name| one.contains_key(*name)).collect();
            let were: Vec<&String> = one.keys().filter(|name| other.contains_key(*name)).collect();
            if kept != were {
                found.push(format!("{at} (order)"));
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            for (index, value) in one.iter().enumerate() {
                let at = format!("{at}/{index}");
                match other.get(index) {
                    Some(now) => differences(value, now, &at, found),
                    None => found.push(at),
                }
            }
            found.extend((one.len()..other.len()).map(|index| format!("{at}/{index}")));
        }
        (one, other) if one == other => {}
        _ => found.push(at.to_owned()),
    }
}
