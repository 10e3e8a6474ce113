//! Where a container's cgroup is, and which CPUs are to be had there.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::CpuSet;
use crate::roots::Roots;

/// CPUs of the group around a container that is about to be made: `parent` is that group, as a path
/// or as the last part of a systemd slice; where it is empty, it is told from `own`, the container's
/// group (`SLICE:PREFIX:ID` or a path). `None`: there is no cpuset controller, or neither is said.
///
/// # Errors
/// The group's file is there but cannot be read.
pub fn parent_cpus(roots: &Roots, parent: &str, own: &str) -> io::Result<Option<CpuSet>> {
    let group = match (parent, own) {
        ("", "") => return Ok(None),
        ("", own) => parent_of(own),
        (parent, _) => group_path(parent),
    };
    if !plain(&group) {
        return Ok(None);
    }
    let root = roots.sys.join("fs/cgroup");
    for (hierarchy, file) in
        [(root.clone(), "cpuset.cpus.effective"), (root.join("cpuset"), "cpuset.effective_cpus")]
    {
        // A group without the controller has the CPUs of the nearest ancestor that has it.
        for group in group.ancestors() {
            match fs::read_to_string(hierarchy.join(group).join(file)) {
                Ok(list) => return Ok(list.parse().ok().filter(|set: &CpuSet| !set.is_empty())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// A pod's group below the hierarchy's root: a path, or the last part of a systemd slice's, whose
/// name tells its ancestors.
fn group_path(parent: &str) -> PathBuf {
    let parent = parent.trim_start_matches('/');
    let Some(name) = parent.strip_suffix(".slice").filter(|name| !name.contains('/')) else {
        return parent.into();
    };
    let mut path = PathBuf::new();
    let dashes = name.match_indices('-').map(|(at, _)| at);
    for end in dashes.chain([name.len()]) {
        path.push(format!("{}.slice", &name[..end]));
    }
    path
}

/// The group around a container's: `SLICE:PREFIX:ID` or a path.
fn parent_of(own: &str) -> PathBuf {
    match own.split_once(':') {
        Some((slice, _)) => group_path(slice),
        None => {
            Path::new(own.trim_start_matches('/')).parent().map(PathBuf::from).unwrap_or_default()
        }
    }
}

/// A container's group below the hierarchy's root, of what a runtime calls it: a path, or
/// `SLICE:PREFIX:ID`, whose scope systemd makes (`unitName` in runc's systemd driver). `None` if it
/// leads anywhere but down.
pub fn container_group(own: &str) -> Option<PathBuf> {
    let path = match own.splitn(3, ':').collect::<Vec<_>>()[..] {
        [slice, prefix, id] => {
            let slice = if slice.is_empty() { "system.slice" } else { slice };
            let dash = if prefix.is_empty() { "" } else { "-" };
            let unit = if id.ends_with(".slice") {
                id.to_owned()
            } else {
                format!("{prefix}{dash}{id}.scope")
            };
            group_path(slice).join(unit)
        }
        _ => PathBuf::from(own.trim_start_matches('/')),
    };
    let named = path.components().next().is_some();
    (named && path.is_relative() && plain(&path)).then_some(path)
}

/// Whether a path leads nowhere but down.
fn plain(path: &Path) -> bool {
    path.components().all(|part| !matches!(part, Component::ParentDir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_group_is_found_by_what_its_runtime_calls_it() {
        for (own, path) in [
            ("/k8s.io/4f1c", Some("k8s.io/4f1c")),
            (
                "kubepods-besteffort-pod1_2.slice:cri-containerd:4f1c",
                Some(
                    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice/\
                     cri-containerd-4f1c.scope",
                ),
            ),
            (":crio:4f1c", Some("system.slice/crio-4f1c.scope")),
            ("user.slice::4f1c", Some("user.slice/4f1c.scope")),
            ("a.slice:x:b.slice", Some("a.slice/b.slice")),
            ("/k8s.io/../../etc", None),
            ("a.slice:x:../../y", None),
            ("", None),
            ("/", None),
        ] {
            assert_eq!(container_group(own).as_deref(), path.map(Path::new), "{own}");
        }
    }

    #[test]
    fn a_slices_name_tells_its_path() {
        for (parent, path) in [
            (
                "kubepods-burstable-pod12_34.slice",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice",
            ),
            ("/kubepods.slice/kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
            ("/kubepods/burstable/pod1", "kubepods/burstable/pod1"),
            ("system.slice", "system.slice"),
        ] {
            assert_eq!(group_path(parent), Path::new(path), "{parent}");
        }
        assert_eq!(parent_of("a-b.slice:cri-containerd:id"), Path::new("a.slice/a-b.slice"));
        assert_eq!(parent_of("/k8s.io/id"), Path::new("k8s.io"));
        assert_eq!(parent_of("id"), Path::new(""));
    }
}
