//! Which control group a container is in, as the switch knows it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::bpf::Group;
use crate::inventory::cgroup::container_group;
use crate::roots::Roots;

/// A container's control group cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The runtime does not say which one it is.
    #[error("the runtime says {said:?} of the container's control group, which is none")]
    Unnamed {
        /// What it says.
        said: String,
    },
    /// A process cannot be looked at.
    #[error("cannot read {path}: {source}", path = path.display())]
    Process {
        /// The file that tells its group.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A process is in no group that is a container's alone.
    #[error(
        "the container has no control group of its own ({group:?}, where the engine is too): sockets \
         of others would be turned with its own"
    )]
    Shared {
        /// What the kernel says of its group.
        group: String,
    },
    /// There is none by that path.
    #[error("control group {path}: {source}", path = path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The control group that a runtime calls so.
///
/// # Errors
/// It does not exist (yet, or any more).
pub fn group(roots: &Roots, called: &str) -> Result<Group, GroupError> {
    let path = path(roots, called)?;
    let depth = container_group(called).map_or(0, |path| path.components().count());
    match fs::metadata(&path) {
        // Of a folder in cgroup2 the inode's number is the group's, all 64 bits of it.
        Ok(metadata) => {
            Ok(Group { id: metadata.ino(), depth: u32::try_from(depth).unwrap_or(u32::MAX) })
        }
        Err(source) => Err(GroupError::Missing { path, source }),
    }
}

/// The control group of a container's first process, and its folder: for a hook, which the engine or
/// its runtime runs outside of it.
///
/// # Errors
/// It has none that is not the hook's too.
pub fn of_process(roots: &Roots, pid: u32) -> Result<(Group, PathBuf), GroupError> {
    let said = said_of(roots, &pid.to_string())?;
    let own = said_of(roots, "self")?;
    let shared = || GroupError::Shared { group: said.chars().take(100).collect() };
    let below = Path::new(said.trim_start_matches('/'));
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    // What is not below the root of the namespace that the hook is in begins with dots.
    if said.is_empty() || below.as_os_str().is_empty() || !plain {
        return Err(shared());
    }
    if Path::new(own.trim_start_matches('/')).starts_with(below) {
        return Err(shared());
    }
    let path = roots.sys.join("fs/cgroup").join(below);
    let depth = u32::try_from(below.components().count()).unwrap_or(u32::MAX);
    match fs::metadata(&path) {
        Ok(metadata) => Ok((Group { id: metadata.ino(), depth }, path)),
        Err(source) => Err(GroupError::Missing { path, source }),
    }
}

/// The group of a process in the hierarchy of version 2, as the kernel says it.
fn said_of(roots: &Roots, pid: &str) -> Result<String, GroupError> {
    let path = roots.proc.join(pid).join("cgroup");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let said = text.lines().find_map(|line| line.strip_prefix("0::"));
            Ok(said.unwrap_or_default().to_owned())
        }
        Err(source) => Err(GroupError::Process { path, source }),
    }
}

/// A process of that group; `None`: there is none.
pub fn first_process(roots: &Roots, called: &str) -> Option<u32> {
    process_in(&path(roots, called).ok()?)
}

/// A process of the group with that folder; `None`: there is none.
pub fn process_in(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join("cgroup.procs")).ok()?.lines().next()?.trim().parse().ok()
}

fn path(roots: &Roots, called: &str) -> Result<PathBuf, GroupError> {
    let below = container_group(called)
        .ok_or_else(|| GroupError::Unnamed { said: called.chars().take(100).collect() })?;
    Ok(roots.sys.join("fs/cgroup").join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_known_by_its_inode_and_depth() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        let folder = roots.sys.join("fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-c.scope");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), "71\n72\n").unwrap();
        let called = "kubepods-pod1.slice:cri:c";
        let found = group(&roots, called).unwrap();
        assert_eq!(found, Group { id: fs::metadata(&folder).unwrap().ino(), depth: 3 });
        assert_eq!(first_process(&roots, called), Some(71));
        let process = |pid: &str, text: &str| {
            fs::create_dir_all(roots.proc.join(pid)).unwrap();
            fs::write(roots.proc.join(pid).join("cgroup"), text).unwrap();
        };
        process("self", "0::/system.slice/containerd.service\n");
        process("71", "0::/kubepods.slice/kubepods-pod1.slice/cri-c.scope\n");
        assert_eq!(of_process(&roots, 71).unwrap(), (found, folder));
        // One that is the engine's, around it, the machine's, out of sight, or of version 1 only.
        for said in [
            "0::/system.slice/containerd.service",
            "0::/system.slice",
            "0::/",
            "0::/../x",
            "4:memory:/x",
        ] {
            process("72", said);
            let error = of_process(&roots, 72).unwrap_err().to_string();
            assert!(error.starts_with("the container has no control group of its own"), "{error}");
        }
        process("72", "0::/system.slice/containerd.service2");
        assert!(of_process(&roots, 72).unwrap_err().to_string().starts_with("control group "));
        assert!(of_process(&roots, 73).unwrap_err().to_string().starts_with("cannot read "));
        let gone = group(&roots, "/k8s.io/x").unwrap_err().to_string();
        assert!(gone.starts_with("control group ") && gone.contains("k8s.io/x: "), "{gone}");
        let none = group(&roots, "/../x").unwrap_err().to_string();
        assert_eq!(
            none,
            "the runtime says \"/../x\" of the container's control group, which is none"
        );
    }
}
