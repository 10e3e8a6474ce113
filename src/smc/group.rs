//! Which control group a container is in, as the switch knows it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

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

/// A process of that group; `None`: there is none.
pub fn first_process(roots: &Roots, called: &str) -> Option<u32> {
    let file = path(roots, called).ok()?.join("cgroup.procs");
    fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
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
        let gone = group(&roots, "/k8s.io/x").unwrap_err().to_string();
        assert!(gone.starts_with("control group ") && gone.contains("k8s.io/x: "), "{gone}");
        let none = group(&roots, "/../x").unwrap_err().to_string();
        assert_eq!(
            none,
            "the runtime says \"/../x\" of the container's control group, which is none"
        );
    }
}
