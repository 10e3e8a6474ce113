//! Whose a container's CPU set is. A runtime does not say whether the kubelet gave it or an earlier
//! plugin did; but the kubelet's CPU manager keeps its own record, and what is not in there is not
//! the kubelet's. It matters because a set that a plugin owns must not be set again: the runtime
//! would refuse the container.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::inventory::CpuSet;

/// The CPU manager's checkpoint (`cpu_manager_state`, version 2), as far as it matters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    /// By UID of the pod, then by name of the container.
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// Who else than the kubelet has given these CPUs to that container; `None`: the kubelet, or
/// nobody can tell. `folder` is the kubelet's, `/var/lib/kubelet` on most nodes.
pub fn owner(folder: &Path, pod: &str, container: &str, given: &CpuSet) -> Option<String> {
    // Without a kubelet whoever asked the runtime for the container gave them.
    let text = fs::read_to_string(folder.join("cpu_manager_state")).ok()?;
    owner_by(&text, pod, container, given)
}

fn owner_by(text: &str, pod: &str, container: &str, given: &CpuSet) -> Option<String> {
    let checkpoint: Checkpoint = serde_json::from_str(text).ok()?;
    let kubelets = match checkpoint.policy_name.as_str() {
        // This one never gives CPUs.
        "none" => false,
        _ => {
            let own = checkpoint.entries.get(pod).and_then(|pod| pod.get(container));
            let shared = &checkpoint.default_cpu_set;
            own.unwrap_or(shared).parse().is_ok_and(|set: CpuSet| set == *given)
        }
    };
    (!kubelets).then(|| "another plugin of the runtime".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c67_what_the_kubelet_did_not_give_is_a_plugins() {
        let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
        let fixed = r#"{"policyName":"static","defaultCpuSet":"0-1,4-7",
            "entries":{"uid":{"worker":"2-3"}},"checksum":1}"#;
        for (text, container, given, plugins) in [
            (none, "worker", "0-3", true),
            (fixed, "worker", "2-3", false),
            (fixed, "worker", "2", true),
            (fixed, "other", "0-1,4-7", false),
            (fixed, "other", "4-7", true),
            ("", "worker", "0-3", false),
            ("{}", "worker", "0-3", false),
        ] {
            let owner = owner_by(text, "uid", container, &given.parse().unwrap());
            assert_eq!(owner.is_some(), plugins, "{text} {container} {given}");
        }
    }

    #[test]
    fn without_a_kubelet_nobody_can_tell() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(owner(folder.path(), "uid", "worker", &"0-3".parse().unwrap()), None);
    }
}
