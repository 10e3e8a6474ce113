//! Which engine made a document, told by what whoever uses an engine does not choose: the folder of
//! the bundle and the end of the cgroup's path. Annotations do not tell: they are the user's own.
//!
//! Only the two that serve Kubernetes are told from the rest, since what a document says of a pod is
//! believed of them alone.

use std::ffi::OsStr;
use std::path::{Component, Path};

use serde_json::Value;

/// The folder of containerd's shims, below its state folder (`core/runtime/v2`).
const SHIMS: &str = "io.containerd.runtime.v2.task";
/// containerd's namespace for Kubernetes (`internal/cri/constants`).
const KUBERNETES: &str = "k8s.io";
/// What containerd's CRI calls a scope of systemd by (`internal/cri/server`).
const CONTAINERD_SCOPE: &str = "cri-containerd";
/// What CRI-O calls a scope or group by (`internal/config/cgmgr`).
const CRIO_GROUP: &str = "crio";

/// Who made a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// containerd, for Kubernetes.
    Containerd,
    /// CRI-O.
    Crio,
    /// Anybody else: docker, podman, nerdctl, ctr, a user.
    #[default]
    Other,
}

impl Engine {
    /// Who made that document, which lies in `bundle`, of the container `id`.
    pub fn of(document: &Value, bundle: &Path, id: &str) -> Self {
        let group = document["linux"]["cgroupsPath"].as_str().unwrap_or_default();
        let bundle = std::path::absolute(bundle).unwrap_or_else(|_| bundle.to_owned());
        Self::at(&bundle, group, id)
    }

    /// The same of a command line's words, where the container may not be named.
    pub fn of_start(document: &Value, bundle: &Path, id: Option<&OsStr>) -> Self {
        Self::of(document, bundle, id.and_then(OsStr::to_str).unwrap_or_default())
    }

    fn at(bundle: &Path, group: &str, id: &str) -> Self {
        if id.is_empty() {
            return Self::Other;
        }
        // `SLICE:PREFIX:NAME` is systemd's way; a parent that has colons in it changes neither end.
        let scope = group.strip_suffix(id).and_then(|rest| rest.strip_suffix(':'));
        let scope = scope.and_then(|rest| rest.rsplit_once(':')).map(|(_, prefix)| prefix);
        let folder = group.rsplit('/').next().and_then(|name| name.strip_suffix(id));
        let folder = folder.and_then(|rest| rest.strip_suffix('-'));
        let mut folders = bundle.components().rev();
        let is_shims = [id, KUBERNETES, SHIMS]
            .iter()
            .all(|name| folders.next() == Some(Component::Normal(name.as_ref())));
        if is_shims || scope == Some(CONTAINERD_SCOPE) {
            Self::Containerd
        } else if [scope, folder].contains(&Some(CRIO_GROUP)) {
            Self::Crio
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engines_are_known_by_what_their_users_do_not_choose() {
        let shims = "/run/containerd/io.containerd.runtime.v2.task";
        let storage = "/run/containers/storage/overlay-containers/c1/userdata";
        let podman = "/var/lib/containers/storage/overlay-containers/c1/userdata";
        for (bundle, group, expected) in [
            (format!("{shims}/k8s.io/c1"), "/kubepods/podx/c1", Engine::Containerd),
            (format!("/run/k3s/containerd{}/k8s.io/c1", &shims[15..]), "", Engine::Containerd),
            ("/elsewhere".into(), "kubepods-podx.slice:cri-containerd:c1", Engine::Containerd),
            (storage.into(), "kubepods-podx.slice:crio:c1", Engine::Crio),
            (storage.into(), "/kubepods/podx/crio-c1", Engine::Crio),
            (format!("{shims}/k8s.io/c2"), "/kubepods/podx/c1", Engine::Other),
            (format!("{shims}/moby/c1"), "system.slice:docker:c1", Engine::Other),
            (format!("{shims}/moby/c1"), "/k8s.io/c1", Engine::Other),
            (format!("{shims}/default/c1"), "/default/c1", Engine::Other),
            (format!("{shims}/default/c1"), "a:crio:b.slice:nerdctl:c1", Engine::Other),
            (podman.into(), "/libpod_parent/libpod-c1", Engine::Other),
            (podman.into(), "/a/crio-c1/libpod-c1", Engine::Other),
            (podman.into(), "machine.slice:libpod:c1", Engine::Other),
            (podman.into(), "", Engine::Other),
            (podman.into(), "crio:c1", Engine::Other),
        ] {
            let document = json!({ "linux": { "cgroupsPath": group } });
            assert_eq!(Engine::of(&document, bundle.as_ref(), "c1"), expected, "{bundle} {group}");
        }
        let nobody = json!({ "linux": { "cgroupsPath": "a:crio:" } });
        assert_eq!(Engine::of(&nobody, "/".as_ref(), ""), Engine::Other);
        let bundle = format!("{shims}/k8s.io/c1");
        let made =
            |id: Option<&str>| Engine::of_start(&Value::Null, bundle.as_ref(), id.map(OsStr::new));
        assert_eq!((made(Some("c1")), made(None)), (Engine::Containerd, Engine::Other));
    }
}
