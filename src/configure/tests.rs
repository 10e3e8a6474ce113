//! What the tests of all runtimes share.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{ApplyError, Owner, Plan, apply, undo, undo_plan};
use crate::roots::Roots;

/// A node with files, by their paths below its root.
pub struct Fixture {
    folder: tempfile::TempDir,
    pub roots: Roots,
}

impl Fixture {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Self { roots: Roots::below(folder.path()), folder };
        fs::create_dir_all(&fixture.roots.etc).unwrap();
        for (name, text) in files {
            let path = fixture.folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fixture
    }

    pub fn share(&self) -> PathBuf {
        self.folder.path().join("usr/share")
    }

    /// A plan as it is shown, with paths as the node has them.
    pub fn shown(&self, plan: &Plan) -> String {
        let notes: String = plan.notes.iter().map(|note| format!("note: {note}\n")).collect();
        format!("{}{notes}", plan.diff()).replace(self.folder.path().to_str().unwrap(), "")
    }

    /// Everything below the root, with modes.
    fn everything(&self) -> Vec<(String, u32, String)> {
        fn walk(folder: &Path, all: &mut Vec<(String, u32, String)>) {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
                let text = fs::read_to_string(&path).unwrap_or_default();
                all.push((path.display().to_string(), mode, text));
                if path.is_dir() {
                    walk(&path, all);
                }
            }
        }
        let mut all = Vec::new();
        walk(self.folder.path(), &mut all);
        all.sort();
        all
    }

    /// The plan does what it says once, does nothing twice, and is taken back to the byte.
    pub fn there_and_back(&self, owner: Owner, plan: impl Fn(&Roots) -> Plan) {
        let before = self.everything();
        apply(&self.roots, owner, &plan(&self.roots)).unwrap();
        assert_ne!(self.everything(), before);
        assert_eq!(plan(&self.roots).files, [], "twice is once");
        let back = undo_plan(&self.roots, owner).unwrap();
        undo(&self.roots, owner, &back).unwrap();
        assert_eq!(self.everything(), before);
        assert!(matches!(undo_plan(&self.roots, owner), Err(ApplyError::NoRecord { .. })));
    }
}

#[test]
fn what_is_taken_back_is_one_runtimes() {
    let fixture = Fixture::new(&[]);
    let docker = super::docker::Options::default();
    let crio = super::crio::Options::default();
    let plans = [
        (Owner::Docker, super::docker::plan(&fixture.roots, &docker).unwrap()),
        (Owner::CriO, super::crio::plan(&fixture.roots, &crio).unwrap()),
    ];
    for (owner, plan) in &plans {
        apply(&fixture.roots, *owner, plan).unwrap();
    }
    let back = undo_plan(&fixture.roots, Owner::Docker).unwrap();
    assert_eq!(back.files.len(), 1);
    undo(&fixture.roots, Owner::Docker, &back).unwrap();
    assert!(!plans[0].1.files[0].path.exists());
    assert!(plans[1].1.files[0].path.exists());
    assert!(undo_plan(&fixture.roots, Owner::Docker).is_err());
    let back = undo_plan(&fixture.roots, Owner::CriO).unwrap();
    undo(&fixture.roots, Owner::CriO, &back).unwrap();
    assert!(!plans[1].1.files[0].path.exists());
}
