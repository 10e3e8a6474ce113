//! Documents that engines have made, and generated ones: exactly what was granted is changed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::rig::{Rig, asking, differences, documents, rig_for};
use crate::records::Verdict;

/// Where a grant may change a document.
const NAMED: [&str; 8] = [
    "/annotations/grant.rdma-ctk.io",
    "/process/env",
    "/process/rlimits",
    "/process/capabilities",
    "/mounts",
    "/hooks",
    "/linux/devices",
    "/linux/resources",
];

fn unexpected(before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    differences(before, after, "", &mut found);
    found.retain(|at| {
        !NAMED.iter().any(|named| at == named || at.starts_with(&format!("{named}/")))
    });
    found
}

fn is_sandbox(document: &Value) -> bool {
    document["annotations"]["io.kubernetes.cri.container-type"] == "sandbox"
}

#[test]
fn documents_of_all_engines_get_what_is_granted_and_nothing_else_changes() {
    for (name, document) in documents() {
        let rig = rig_for(&name);
        let document = asking(&document, "devices.rdma-ctk.io", "all");
        let (edited, replaced) = rig.edit(&document).unwrap();
        if is_sandbox(&document) {
            assert!(!replaced && edited == document, "{name}");
            continue;
        }
        assert!(replaced, "{name}");
        assert_eq!(unexpected(&document, &edited), [""; 0], "{name}");
        let devices = edited["linux"]["devices"].as_array().unwrap();
        let has = |path: &str| devices.iter().any(|device| device["path"] == path);
        assert!(has("/dev/infiniband/uverbs0") && has("/dev/infiniband/rdma_cm"), "{name}");
        let rules = edited["linux"]["resources"]["devices"].as_array().unwrap();
        let rule = json!({"allow": true, "type": "c", "major": 231, "minor": 192, "access": "rw"});
        assert!(rules.contains(&rule), "c22 {name}");
        let limits = edited["process"]["rlimits"].as_array().unwrap();
        let memlock = json!({"type": "RLIMIT_MEMLOCK", "hard": u64::MAX, "soft": u64::MAX});
        assert!(limits.contains(&memlock), "c01 {name}");
        let env = edited["process"]["env"].as_array().unwrap();
        assert!(env.contains(&json!("NCCL_IB_HCA==rxe0:1")), "c36 {name}");
        // What was there stands before what is new.
        for list in ["/process/env", "/mounts", "/linux/resources/devices"] {
            let were =
                document.pointer(list).and_then(Value::as_array).cloned().unwrap_or_default();
            let are = edited.pointer(list).unwrap().as_array().unwrap();
            assert_eq!(are[..were.len()], were[..], "{name} {list}");
        }
        let parsed: oci_spec::runtime::Spec = serde_json::from_value(edited).unwrap();
        assert!(parsed.linux().is_some(), "{name}");
        let records = rig.records();
        assert!(records.unreadable.is_empty(), "{:?}", records.unreadable);
        assert!(matches!(records.containers[0].verdict, Verdict::Granted { .. }), "{name}");
    }
}

#[test]
fn c07_a_container_that_does_not_ask_keeps_its_file() {
    for (name, document) in documents() {
        let rig = rig_for(&name);
        for document in [
            asking(&document, "other.example", "all"),
            asking(&document, "devices.rdma-ctk.io", "none"),
            asking(&document, "devices.rdma-ctk.io/container.nobody", "all"),
        ] {
            let (edited, replaced) = rig.edit(&document).unwrap();
            assert!(!replaced && edited == document, "{name}");
        }
        assert!(rig.records().containers.is_empty());
    }
}

fn plain(name: &str) -> Value {
    documents().into_iter().find(|(found, _)| found == name).unwrap().1
}

#[test]
fn c10_a_refusal_leaves_the_document_and_names_what_there_is() {
    let rig = Rig::new("soft-roce");
    let document = asking(&plain("nerdctl.config.json"), "devices.rdma-ctk.io", "mlx5_9");
    let error = rig.edit(&document).unwrap_err();
    assert_eq!(
        error,
        "devices.rdma-ctk.io=mlx5_9: no RDMA device mlx5_9 on this node (have: rxe0)"
    );
    let text = fs::read(rig.config()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), document);
    assert_eq!(fs::read_dir(rig.bundle()).unwrap().count(), 1);
    let records = rig.records();
    assert!(matches!(&records.containers[0].verdict, Verdict::Refused { .. }));
    // Where policy says so, it starts without, and the log says why.
    rig.policy("[default]\non_refusal = \"warn\"\n");
    let (edited, replaced) = rig.edit(&document).unwrap();
    assert!(!replaced && edited == document);
    assert!(rig.log().contains("starts without, as policy says"), "{}", rig.log());
}

#[test]
fn c09_capabilities_are_in_the_sets_that_last() {
    let rig = Rig::new("soft-roce");
    let ask = |name: &str| {
        let mut document = asking(&plain(name), "devices.rdma-ctk.io", "all");
        document["annotations"]["capabilities.rdma-ctk.io"] = json!("IPC_LOCK,NET_RAW");
        document
    };
    let error = rig.edit(&ask("docker.config.json")).unwrap_err();
    assert!(error.contains("policy does not let this container use this key"), "{error}");
    rig.policy(
        "[default]\nkeys = [\"devices\", \"capabilities\"]\ncapabilities = [\"IPC_LOCK\", \"NET_RAW\"]\n",
    );
    for (name, sets) in [
        ("docker.config.json", &["bounding", "effective", "permitted"][..]),
        ("cri.config.json", &["bounding", "effective", "permitted", "inheritable", "ambient"]),
    ] {
        let document = ask(name);
        let (edited, _) = rig.edit(&document).unwrap();
        for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
            let list =
                edited["process"]["capabilities"][set].as_array().cloned().unwrap_or_default();
            let has = list.contains(&json!("CAP_IPC_LOCK")) && list.contains(&json!("CAP_NET_RAW"));
            let had =
                document["process"]["capabilities"][set].as_array().cloned().unwrap_or_default();
            assert!(has == sets.contains(&set), "{name} {set}: {had:?} {list:?}");
        }
        let Verdict::Granted { grant } = &rig.records().containers[0].verdict else { panic!() };
        let said = grant.reasons.iter().any(|r| r.text.starts_with("IPC_LOCK was not needed"));
        assert!(said, "{:?}", grant.reasons);
    }
}

#[test]
fn the_files_mode_and_owner_are_kept() {
    let rig = Rig::new("soft-roce");
    let document = asking(&plain("ctr.config.json"), "devices.rdma-ctk.io", "all");
    fs::write(rig.config(), serde_json::to_vec(&document).unwrap()).unwrap();
    fs::set_permissions(rig.config(), PermissionsExt::from_mode(0o600)).unwrap();
    rig.create("c1").unwrap();
    let found = fs::metadata(rig.config()).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o600);
}

#[test]
fn a_container_that_carries_its_grant_is_not_edited_again() {
    let rig = Rig::new("soft-roce");
    let document = asking(&plain("ctr.config.json"), "devices.rdma-ctk.io", "all");
    let (edited, _) = rig.edit(&document).unwrap();
    let (again, replaced) = rig.edit(&edited).unwrap();
    assert!(!replaced && again == edited);
    // A mark that is on no record is the tenant's own, and stops nothing.
    let mut forged = document.clone();
    forged["annotations"]["grant.rdma-ctk.io"] = json!("0fac37c0a5e33e5b");
    let (granted, replaced) = rig.edit(&forged).unwrap();
    assert!(
        replaced
            && granted["annotations"]["grant.rdma-ctk.io"]
                == edited["annotations"]["grant.rdma-ctk.io"]
    );
}

#[test]
fn c85_a_network_that_comes_later_is_filled_in_by_a_hook_behind_the_engines() {
    let rig = Rig::new("soft-roce");
    let document = asking(&plain("nerdctl.config.json"), "devices.rdma-ctk.io", "all");
    let (edited, _) = rig.edit(&document).unwrap();
    let hooks = edited["hooks"]["createRuntime"].as_array().unwrap();
    assert_eq!(hooks.len(), 2);
    assert_eq!(hooks[0], document["hooks"]["createRuntime"][0]);
    assert_eq!(hooks[1]["args"][0], "rdma-ctk-hook");
    assert_eq!(hooks[1]["args"][1], "createRuntime");
    let record = hooks[1]["args"][3].as_str().unwrap();
    assert!(fs::metadata(record).is_ok(), "{record}");
    assert_eq!(edited["hooks"]["poststop"].as_array().unwrap().len(), 2);
    let mounts = edited["mounts"].as_array().unwrap();
    let conf = mounts.iter().find(|mount| mount["destination"] == "/etc/nccl.conf").unwrap();
    let text = fs::read_to_string(conf["source"].as_str().unwrap()).unwrap();
    assert!(text.contains("NCCL_IB_HCA==rxe0:1"), "{text}");
    assert!(!text.contains("GID_INDEX"), "{text}");
    // Where no hook of the engine makes a network there is none to be told.
    let bare = {
        let mut document = document.clone();
        document["hooks"] = json!({});
        document
    };
    let (edited, _) = rig.edit(&bare).unwrap();
    assert_eq!(edited["hooks"].as_object().unwrap().keys().collect::<Vec<_>>(), ["poststop"]);
    // One whose network is there needs nothing of the kind.
    let host = {
        let mut document = document.clone();
        let namespaces = document["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        document
    };
    let (edited, _) = rig.edit(&host).unwrap();
    assert_eq!(edited["hooks"]["createRuntime"].as_array().unwrap().len(), 1);
    let mounts = edited["mounts"].as_array().unwrap();
    assert!(!mounts.iter().any(|mount| mount["destination"] == "/etc/nccl.conf"));
}

#[test]
fn exec_sessions_are_completed_by_what_their_container_was_given() {
    let rig = Rig::new("soft-roce");
    let document = asking(&plain("docker.config.json"), "devices.rdma-ctk.io", "all");
    rig.edit(&document).unwrap();
    let path = rig.bundle().join("process.json");
    let process = documents_process("docker");
    let call = |root: &str, id: &str| {
        fs::write(&path, serde_json::to_vec(&process).unwrap()).unwrap();
        rig.call(&["--root", root, "exec", "--process", path.to_str().unwrap(), id]).unwrap();
        serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).unwrap()
    };
    assert_eq!(call("/run/other", "c1"), process);
    assert_eq!(call("/run/runc", "c2"), process);
    let completed = call("/run/runc", "c1");
    let env = completed["env"].as_array().unwrap();
    assert!(env.contains(&json!("NCCL_IB_HCA==rxe0:1")), "{env:?}");
    let memlock = json!({"type": "RLIMIT_MEMLOCK", "hard": u64::MAX, "soft": u64::MAX});
    assert!(completed["rlimits"].as_array().unwrap().contains(&memlock));
    let mut found = Vec::new();
    differences(&process, &completed, "", &mut found);
    found.retain(|at| !at.starts_with("/env/") && !at.starts_with("/rlimits"));
    assert_eq!(found, [""; 0]);
    // Twice is as once.
    fs::write(&path, serde_json::to_vec(&completed).unwrap()).unwrap();
    rig.call(&["--root", "/run/runc", "exec", "-p", path.to_str().unwrap(), "c1"]).unwrap();
    let again: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(again, completed);
}

fn documents_process(engine: &str) -> Value {
    let path = super::rig::fixtures().join(format!("bundles/{engine}.process.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A value of any shape.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[a-zA-Z0-9<&\"\\\\é/ ]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec(("[a-z]{1,6}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A document that asks, with members of its own at every level.
fn any_document() -> impl Strategy<Value = Value> {
    let own = || ("x[a-z]{1,5}", any_value());
    (own(), own(), own(), own(), own(), any::<bool>(), 0..3_usize).prop_map(
        |(root, process, linux, resources, device, first, envs)| {
            let mut document = json!({
                "ociVersion": "9.9.9",
                "process": { "env": (0..envs).map(|n| format!("E{n}=x")).collect::<Vec<_>>() },
                "linux": {
                    "devices": [{ "path": "/dev/x", "type": "c", "major": 1, "minor": 2 }],
                    "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
                },
                "annotations": { "devices.rdma-ctk.io": "all" },
            });
            document["process"][process.0] = process.1;
            document["linux"]["devices"][0][device.0] = device.1;
            document["linux"]["resources"][resources.0] = resources.1;
            document["linux"][linux.0] = linux.1;
            document[root.0] = root.1;
            if first {
                // Another order.
                let members = document.as_object().unwrap().clone();
                document = Value::Object(members.into_iter().rev().collect());
            }
            document
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every path that the grant does not name is equal before and after.
    #[test]
    fn what_is_not_named_is_as_it_was(document in any_document()) {
        static RIG: LazyLock<Rig> = LazyLock::new(|| Rig::new("soft-roce"));
        let (edited, replaced) = RIG.edit(&document).unwrap();
        prop_assert!(replaced);
        prop_assert_eq!(unexpected(&document, &edited), Vec::<String>::new());
        // And of the lists that were added to, every old item is there.
        for list in ["/process/env", "/linux/devices", "/linux/resources/devices"] {
            let were = document.pointer(list).and_then(Value::as_array).unwrap();
            let are = edited.pointer(list).and_then(Value::as_array).unwrap();
            prop_assert_eq!(&are[..were.len()], &were[..]);
        }
    }
}

/// crun's `--config FILE`: paths of the document start from the bundle, and the bundle is what the
/// runtime and its hooks know the container by.
#[test]
fn a_document_outside_of_its_bundle_is_that_bundles() {
    let rig = Rig::new("soft-roce");
    let (_, document) = documents().into_iter().find(|(n, _)| n == "nerdctl.config.json").unwrap();
    let mut document = asking(&document, "devices.rdma-ctk.io", "all");
    document["root"]["path"] = json!("rootfs");
    let etc = rig.bundle().join("rootfs/etc");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("nccl.conf"), "NCCL_DEBUG=INFO\n").unwrap();
    let elsewhere = rig.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let path = elsewhere.join("other.json");
    fs::write(&path, document.to_string()).unwrap();
    let (bundle, config) = (rig.bundle(), path.to_str().unwrap());
    let words = ["create", "--bundle", bundle.to_str().unwrap(), "--config", config, "c1"];
    rig.call(&words).unwrap();
    let edited: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let text = edited.to_string();
    assert!(text.contains("/dev/infiniband/uverbs0"), "{text}");
    // The file of the image, which lies in the bundle, is not hidden.
    assert!(!text.contains("\"/etc/nccl.conf\""), "{text}");
    let record = fs::read_dir(rig.roots.run.join("rdma-ctk/wrapper/containers")).unwrap().next();
    let record = fs::read(record.unwrap().unwrap().path()).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["bundle"].as_str().map(Path::new), Some(bundle.as_path()));
}
