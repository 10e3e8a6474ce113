//! What the tests of all runtimes share.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{ApplyError, Owner, Plan, apply, containerd, crio, docker, podman, undo, undo_plan};
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

/// Once the file was written anew in between by somebody, whether or not we then came again, what is
/// taken back is all of ours and nothing of theirs.
#[test]
fn what_was_written_anew_in_between_is_taken_back_too() {
    type Make = fn(&Roots, bool) -> Plan;
    let makes: [(Owner, Make, &str, &str); 4] = [
        (
            Owner::Docker,
            |roots, default| {
                docker::plan(roots, &docker::Options { default, ..docker::Options::default() })
                    .unwrap()
            },
            "etc/docker/daemon.json",
            "\"debug\":true,",
        ),
        (
            Owner::Podman,
            |roots, default| {
                let share = roots.etc.join("share");
                let options = podman::Options { default, share, ..podman::Options::default() };
                podman::plan(roots, &options).unwrap()
            },
            "etc/containers/containers.conf.d/99-rdma-ctk.conf",
            "[network]\ndefault_subnet = '10.9.0.0/16'\n",
        ),
        (
            Owner::CriO,
            |roots, default| {
                crio::plan(roots, &crio::Options { default, ..crio::Options::default() }).unwrap()
            },
            "etc/crio/crio.conf.d/99-rdma-ctk.conf",
            "[crio.image]\npause_image = 'p'\n",
        ),
        (
            Owner::Containerd,
            |roots, default| {
                let version = "2.1.9".parse().ok();
                let options = containerd::RuntimeOptions {
                    default,
                    version,
                    ..containerd::RuntimeOptions::default()
                };
                containerd::runtime_plan(roots, &options).unwrap()
            },
            "etc/containerd/config.toml",
            "[metrics]\naddress = 'x'\n",
        ),
    ];
    for (owner, make, name, theirs) in makes {
        for (exists, again) in [(false, false), (false, true), (true, false), (true, true)] {
            let before = if owner == Owner::Docker { "{\"a\": 1}" } else { "version = 2\n" };
            let files = [(name, before)];
            let fixture = Fixture::new(&files[..usize::from(exists)]);
            let path = fixture.folder.path().join(name);
            let now = || fs::read_to_string(&path).unwrap();
            apply(&fixture.roots, owner, &make(&fixture.roots, false)).unwrap();
            assert!(now().contains("rdma-ctk-runtime"), "{name}: {}", now());
            // Another order, another form, and something of their own.
            let text = if owner == Owner::Docker {
                let value: serde_json::Value = serde_json::from_str(&now()).unwrap();
                value.to_string().replacen('{', &format!("{{{theirs}"), 1)
            } else {
                format!("{}{theirs}", now())
            };
            fs::write(&path, text).unwrap();
            if again {
                apply(&fixture.roots, owner, &make(&fixture.roots, true)).unwrap();
            }
            let back = undo_plan(&fixture.roots, owner).unwrap();
            undo(&fixture.roots, owner, &back).unwrap();
            let left = fs::read_to_string(&path).unwrap_or_default();
            assert!(!left.contains("rdma"), "{name} {exists} {again}: {left}");
            let kept = theirs.trim().lines().last().unwrap_or_default().trim_end_matches(',');
            assert!(left.contains(kept), "{name} {exists} {again}: {left}");
            assert!(undo_plan(&fixture.roots, owner).is_err(), "{name}");
            let around = path.parent().unwrap();
            let backups = fs::read_dir(around).into_iter().flatten().flatten();
            let backups = backups.filter(|e| e.file_name().to_string_lossy().contains(".bak"));
            assert_eq!(backups.count(), 0, "{name} {exists} {again}");
        }
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

#[test]
fn a_link_out_of_the_root_is_not_followed() {
    use std::os::unix::fs::symlink;

    let node = tempfile::tempdir().unwrap();
    let host = node.path().join("daemon.json");
    let options = docker::Options { version: "29.0.0".parse().ok(), ..docker::Options::default() };
    let refused = |fixture: &Fixture| {
        let plan = docker::plan(&fixture.roots, &options).unwrap();
        let error = apply(&fixture.roots, Owner::Docker, &plan).unwrap_err();
        assert!(matches!(error, ApplyError::Outside { .. }), "{error}");
        assert_eq!(fs::read_to_string(&host).unwrap(), "{}");
        assert_eq!(fs::read_dir(node.path()).unwrap().count(), 1);
    };
    fs::write(&host, "{}").unwrap();
    let by_file = Fixture::new(&[("etc/docker/key", "")]);
    symlink(&host, by_file.roots.etc.join("docker/daemon.json")).unwrap();
    refused(&by_file);
    let by_folder = Fixture::new(&[]);
    symlink(node.path(), by_folder.roots.etc.join("docker")).unwrap();
    refused(&by_folder);
    let by_tree = Fixture::new(&[]);
    fs::remove_dir(&by_tree.roots.etc).unwrap();
    symlink(node.path(), &by_tree.roots.etc).unwrap();
    let plan = docker::plan(&by_tree.roots, &docker::Options { name: "x".into(), ..options });
    let error = apply(&by_tree.roots, Owner::Docker, &plan.unwrap()).unwrap_err();
    assert!(error.to_string().contains("a link leads out of"), "{error}");

    // One that stays inside is.
    let within = Fixture::new(&[("usr/share/daemon.json", "{}")]);
    fs::create_dir(within.roots.etc.join("docker")).unwrap();
    symlink("../../usr/share/daemon.json", within.roots.etc.join("docker/daemon.json")).unwrap();
    within.there_and_back(Owner::Docker, |roots| {
        docker::plan(roots, &docker::Options::default()).unwrap()
    });
}
