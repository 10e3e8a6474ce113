//! Running containers, as their runtimes keep them: the `config.json` of each bundle.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use crate::request::SUFFIX;
use crate::roots::Roots;

/// Longest document that is read.
const LONGEST: u64 = 16 << 20;

/// Where containerd keeps bundles, by namespace, below `run`.
const CONTAINERD: [&str; 2] =
    ["containerd/io.containerd.runtime.v2.task", "k3s/containerd/io.containerd.runtime.v2.task"];

/// A container, as far as the checks care.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// Identifier.
    pub id: String,
    /// `NAMESPACE/POD container NAME` for one made through CRI, else the identifier.
    pub title: String,
    /// Whether it was made through CRI.
    pub cri: bool,
    /// When its document was written.
    pub made: Option<SystemTime>,
    /// Its first process; `None` while it is not running.
    pub pid: Option<u32>,
    /// Nodes below `/dev/infiniband` in `linux.devices`, by name.
    pub nodes: Vec<String>,
    /// Its device cgroup allows everything.
    pub all_devices: bool,
    /// A mount at `/dev/infiniband` or above.
    pub mounted: bool,
    /// Soft and hard `RLIMIT_MEMLOCK` of the document, in bytes.
    pub memlock: Option<(u64, u64)>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Annotations of ours in the document.
    pub annotations: Vec<String>,
}

/// Bundles of every container that containerd runs on this node, and CRI's pause containers left
/// out. What cannot be read is left out too: a container may end while we read.
pub fn read_all(roots: &Roots) -> Vec<Bundle> {
    let mut bundles = Vec::new();
    for folder in CONTAINERD.map(|folder| roots.run.join(folder)) {
        for namespace in folders(&folder) {
            for bundle in folders(&namespace) {
                bundles.extend(read(&bundle));
            }
        }
    }
    bundles.sort_by(|a, b| (&a.title, &a.id).cmp(&(&b.title, &b.id)));
    bundles
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn read(folder: &Path) -> Option<Bundle> {
    let path = folder.join("config.json");
    let metadata = fs::metadata(&path).ok()?;
    if metadata.len() > LONGEST {
        return None;
    }
    let id = folder.file_name()?.to_str()?;
    let pid = fs::read_to_string(folder.join("init.pid")).ok();
    let pid = pid.and_then(|text| text.trim().parse().ok());
    let bundle = parse(id, pid, &fs::read_to_string(path).ok()?)?;
    Some(Bundle { made: metadata.modified().ok(), ..bundle })
}

/// The container of a `config.json`; `None` for a pause container, or no JSON.
fn parse(id: &str, pid: Option<u32>, text: &str) -> Option<Bundle> {
    let document: Value = serde_json::from_str(text).ok()?;
    let annotation = |key: &str| document["annotations"][key].as_str();
    if annotation("io.kubernetes.cri.container-type") == Some("sandbox") {
        return None;
    }
    let name = annotation("io.kubernetes.cri.container-name");
    let title = name.map_or_else(
        || format!("container {id}"),
        |name| {
            let part = |key: &str| annotation(key).unwrap_or("?");
            format!(
                "{}/{} container {name}",
                part("io.kubernetes.cri.sandbox-namespace"),
                part("io.kubernetes.cri.sandbox-name")
            )
        },
    );
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let nodes = list(&document["linux"]["devices"])
        .iter()
        .filter_map(|device| device["path"].as_str()?.strip_prefix("/dev/infiniband/"))
        .map(str::to_owned)
        .collect();
    let all_devices = list(&document["linux"]["resources"]["devices"]).iter().any(|rule| {
        let any = |key: &str| rule[key].as_i64().is_none_or(|number| number < 0);
        let kind = rule["type"].as_str().unwrap_or("a");
        rule["allow"] == true && any("major") && any("minor") && matches!(kind, "a" | "")
    });
    let mounted = list(&document["mounts"]).iter().any(|mount| {
        let bind = mount["type"] == "bind"
            || list(&mount["options"]).iter().any(|o| *o == "bind" || *o == "rbind");
        bind && matches!(mount["destination"].as_str(), Some("/dev" | "/dev/infiniband"))
    });
    let memlock = list(&document["process"]["rlimits"])
        .iter()
        .rfind(|limit| limit["type"] == "RLIMIT_MEMLOCK")
        .and_then(|limit| Some((limit["soft"].as_u64()?, limit["hard"].as_u64()?)));
    let env = list(&document["process"]["env"])
        .iter()
        .filter_map(|variable| variable.as_str()?.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let annotations = document["annotations"]
        .as_object()
        .map(|all| all.keys().filter(|key| is_ours(key)).cloned().collect());
    Some(Bundle {
        id: id.to_owned(),
        title,
        cri: name.is_some(),
        pid,
        nodes,
        all_devices,
        mounted,
        memlock,
        env,
        annotations: annotations.unwrap_or_default(),
        made: None,
    })
}

/// Whether a key is `WORD.rdma-ctk.io`, with or without a scope.
fn is_ours(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    domain.strip_suffix(SUFFIX).is_some_and(|word| word.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_as_far_as_needed() {
        let text = r#"{"process": {"env": ["A=b", "C"], "rlimits": [
            {"type": "RLIMIT_MEMLOCK", "soft": 65536, "hard": 65536},
            {"type": "RLIMIT_MEMLOCK", "soft": 18446744073709551615, "hard": 18446744073709551615}]},
            "annotations": {"io.kubernetes.cri.container-name": "app",
              "io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.sandbox-namespace": "ns",
              "devices.rdma-ctk.io/container.app": "all", "x.not-rdma-ctk.io": "1"},
            "linux": {"devices": [{"path": "/dev/infiniband/uverbs0"}, {"path": "/dev/fuse"}],
              "resources": {"devices": [{"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "major": 231, "minor": 192, "access": "rw"}]}},
            "mounts": [{"destination": "/dev", "type": "tmpfs"}]}"#;
        let bundle = parse("abc", Some(7), text).unwrap();
        assert_eq!(bundle.title, "ns/p container app");
        assert_eq!(bundle.nodes, ["uverbs0"]);
        assert_eq!(bundle.memlock, Some((u64::MAX, u64::MAX)));
        assert_eq!(bundle.env, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(bundle.annotations, ["devices.rdma-ctk.io/container.app"]);
        assert!(bundle.cri && !bundle.all_devices && !bundle.mounted);
    }

    #[test]
    fn privileged_and_mounted_are_told() {
        let text = r#"{"linux": {"resources": {"devices": [{"allow": true, "access": "rwm"}]}},
            "mounts": [{"destination": "/dev/infiniband", "type": "bind"}]}"#;
        let bundle = parse("abc", None, text).unwrap();
        assert!(bundle.all_devices && bundle.mounted && !bundle.cri);
        assert_eq!(bundle.title, "container abc");
    }

    #[test]
    fn pause_containers_and_rubbish_are_left_out() {
        let pause = r#"{"annotations": {"io.kubernetes.cri.container-type": "sandbox"}}"#;
        assert_eq!(parse("abc", None, pause), None);
        assert_eq!(parse("abc", None, "{"), None);
        assert!(parse("abc", None, "[]").is_some());
    }
}
