//! Whose word counts: what a document says of its pod is believed of the engines of Kubernetes only,
//! and what no document says gives nothing.

use serde_json::{Value, json};

use super::rig::{Rig, asking, documents, rig_for};

const CONTAINERD: &str = "io.kubernetes.cri.sandbox-namespace";

fn document(name: &str) -> Value {
    let (_, found) = documents().into_iter().find(|(found, _)| found == name).unwrap();
    asking(&found, "devices.rdma-ctk.io", "all")
}

/// What comes of that document under that policy: the log of a grant, or the refusal.
fn decided(name: &str, policy: &str, more: &[(&str, &str)]) -> Result<String, String> {
    let rig = rig_for(name);
    rig.policy(policy);
    let mut document = document(name);
    for (key, value) in more {
        document["annotations"][*key] = (*value).into();
    }
    let (edited, replaced) = rig.edit(&document)?;
    let devices = edited["linux"]["devices"].as_array();
    let given = devices.is_some_and(|all| all.iter().any(|one| one["major"] == 231));
    assert_eq!(given, replaced, "{name}");
    if given { Ok(rig.log()) } else { Err("nothing was done".to_owned()) }
}

#[test]
fn a_rule_by_runtime_handler_gives_nothing_to_who_passes_the_wrapper() {
    let rule = |handlers: &str, wrappers: &str| {
        format!(
            "wrapper_handlers = {wrappers}\n[default]\nadapters = []\n[[rules]]\nruntime_handlers = \
             {handlers}\nallow.adapters = ['*']\n"
        )
    };
    let claims = ("io.containerd.cri.runtime-handler", "rdma");
    for name in ["cri.config.json", "docker.config.json", "podman-runc.config.json"] {
        for (handlers, wrappers) in
            [("['rdma']", "['rdma']"), ("['rdma-admin']", "['rdma-admin', 'rdma-tenant']")]
        {
            let refused = decided(name, &rule(handlers, wrappers), &[claims]).unwrap_err();
            assert!(refused.contains("[default] adapters"), "{name} {refused}");
        }
    }
    // The class as it is documented needs no rule.
    decided("cri.config.json", "", &[]).unwrap();
    decided("cri.config.json", "wrapper_handlers = ['rdma']\n", &[]).unwrap();
}

#[test]
fn a_narrowing_by_labels_applies_where_labels_are_not_known() {
    let none = "[[narrow]]\nlabels = { tier = 'guest' }\nadapters = []\n";
    let less = "[[narrow]]\nlabels = { tier = 'guest' }\nmemlock_max = '1GiB'\n";
    for name in ["cri.config.json", "nerdctl.config.json"] {
        let refused = decided(name, none, &[]).unwrap_err();
        assert!(refused.contains("its labels are not known here"), "{name} {refused}");
        let log = decided(name, less, &[]).unwrap();
        assert!(log.contains("goes by labels, which are not known here: it applies"), "{log}");
    }
}

#[test]
fn a_namespace_is_believed_of_the_engines_of_kubernetes_only() {
    let policy = |namespace: &str| {
        format!(
            "[default]\nadapters = []\n[[rules]]\nnamespaces = ['{namespace}']\nallow.adapters = \
             ['*']\n"
        )
    };
    let forged = [
        (CONTAINERD, "admins"),
        ("io.kubernetes.pod.namespace", "admins"),
        ("io.kubernetes.cri-o.Labels", r#"{"io.kubernetes.pod.namespace":"admins"}"#),
        ("io.kubernetes.cri-o.ContainerType", "container"),
    ];
    for name in ["docker.config.json", "nerdctl.config.json", "podman-crun.config.json"] {
        for more in [&forged[..1], &forged[1..2], &forged[2..3], &forged[1..]] {
            let refused = decided(name, &policy("admins"), more).unwrap_err();
            assert!(refused.contains("policy does not give"), "{name} {more:?}: {refused}");
        }
    }
    // The pod of the recorded document is in `default`.
    decided("cri.config.json", &policy("default"), &[]).unwrap();
    decided("cri.config.json", &policy("admins"), &[]).unwrap_err();
    // CRI-O's word lies in the labels that it writes last.
    let rig = Rig::new("soft-roce");
    rig.policy(&policy("ml"));
    let mut crio = document("podman-runc.config.json");
    crio["linux"]["cgroupsPath"] = "kubepods-pod1.slice:crio:c1".into();
    crio["annotations"]["io.kubernetes.pod.namespace"] = "ml".into();
    crio["annotations"]["io.kubernetes.cri-o.ContainerType"] = "container".into();
    let labels = |namespace: &str| json!({ "io.kubernetes.pod.namespace": namespace }).to_string();
    crio["annotations"]["io.kubernetes.cri-o.Labels"] = labels("mine").into();
    rig.edit(&crio).unwrap_err();
    crio["annotations"]["io.kubernetes.cri-o.Labels"] = labels("ml").into();
    assert!(rig.edit(&crio).unwrap().1);
}

#[test]
fn a_container_that_calls_itself_a_sandbox_is_no_sandbox() {
    for name in ["docker.config.json", "podman-crun.config.json", "nerdctl.config.json"] {
        for key in ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"] {
            decided(name, "", &[(key, "sandbox")]).unwrap();
        }
    }
    let crio = [("io.kubernetes.cri-o.ContainerType", "sandbox")];
    let refused = decided("cri.config.json", "", &crio).unwrap_err();
    assert!(refused.contains("two engines"), "{refused}");
}
