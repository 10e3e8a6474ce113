//! Identifiers and bundles that are used again: what is left of an earlier container gives nothing to
//! a later one, and what a later one asks takes nothing from one that runs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::rig::{Rig, asking, documents, fixtures};
use crate::oci::gone;
use crate::oci::ledger::{Entry, Ledger, key};
use crate::records::Verdict;

fn document(engine: &str) -> Value {
    let name = format!("{engine}.config.json");
    let (_, document) = documents().into_iter().find(|(found, _)| *found == name).unwrap();
    asking(&document, "devices.rdma-ctk.io", "all")
}

fn config(rig: &Rig) -> Value {
    serde_json::from_slice(&fs::read(rig.config()).unwrap()).unwrap()
}

fn kept(rig: &Rig) -> PathBuf {
    rig.bundle().join(".config.json.rdma-ctk-before")
}

fn ledger(rig: &Rig) -> Ledger {
    Ledger::at(rig.roots.run.join("rdma-ctk/wrapper"))
}

fn record(rig: &Rig, root: &Path) -> Option<Entry> {
    ledger(rig).read(&key(Some(root), "c1".as_ref())).unwrap()
}

/// As the hook of that name does.
fn poststop(rig: &Rig) {
    let key = key(Some("/run/runc".as_ref()), "c1".as_ref());
    assert!(ledger(rig).has_record(&key));
    gone::remove(&rig.roots, &ledger(rig), &key).unwrap();
    assert!(!ledger(rig).has_record(&key) && !ledger(rig).has_files(&key));
}

fn bound(document: &Value) -> Option<String> {
    let mounts = document["mounts"].as_array().unwrap();
    let conf = mounts.iter().find(|mount| mount["destination"] == "/etc/nccl.conf");
    conf.map(|mount| mount["source"].as_str().unwrap().to_owned())
}

/// podman's `precreate` hook comes before the wrapper, and calls runc without a state folder.
#[test]
fn what_podmans_hook_has_on_record_stays() {
    let rig = Rig::new("soft-roce");
    rig.edit(&document("podman-runc")).unwrap();
    let key = |root: Option<&str>| key(root.map(Path::new), "c1".as_ref());
    let theirs = ledger(&rig).read(&key(Some("/run/runc"))).unwrap().unwrap();
    gone::remove(&rig.roots, &ledger(&rig), &key(Some("/run/runc"))).unwrap();
    ledger(&rig).write(&key(None), &theirs).unwrap();
    let given = fs::read(rig.config()).unwrap();
    let bundle = rig.bundle();
    let create = ["create", "--bundle", bundle.to_str().unwrap(), "c1"];
    rig.call(&create).unwrap();
    assert_eq!(ledger(&rig).read(&key(None)).unwrap(), Some(theirs));
    assert_eq!(fs::read(rig.config()).unwrap(), given);
    // Of another container by that name nothing stays.
    fs::write(rig.config(), "{}").unwrap();
    rig.call(&create).unwrap();
    assert!(!ledger(&rig).has_record(&key(None)));
}

#[test]
fn a_second_start_of_a_bundle_is_as_the_first() {
    let rig = Rig::new("soft-roce");
    let (first, _) = rig.edit(&document("nerdctl")).unwrap();
    let source = bound(&first).unwrap();
    for _ in 0..3 {
        poststop(&rig);
        assert!(!Path::new(&source).exists());
        rig.create("c1").unwrap();
        assert_eq!(config(&rig), first);
        assert!(Path::new(&source).exists());
        assert_eq!(rig.records().containers.len(), 1);
    }
    // By another name: the files and hooks are that container's.
    poststop(&rig);
    rig.create("c2").unwrap();
    let other = config(&rig);
    assert_ne!(bound(&other), bound(&first));
    assert!(Path::new(&bound(&other).unwrap()).exists());
    assert_eq!(
        other["mounts"].as_array().unwrap().len(),
        first["mounts"].as_array().unwrap().len()
    );
    assert_eq!(other["hooks"]["poststop"].as_array().unwrap().len(), 2);
}

#[test]
fn policy_binds_at_a_second_start() {
    let original = document("nerdctl");
    let several =
        ["gpu-infiniband", "gpu-roce", "efa-p5"].map(Rig::new).into_iter().find_map(|rig| {
            let (all, _) = rig.edit(&original).unwrap();
            let Verdict::Granted { grant } = &rig.records().containers[0].verdict else {
                return None;
            };
            let [one, _, ..] = &grant.adapters[..] else { return None };
            Some((all, one.name.clone(), rig))
        });
    let (all, only, rig) = several.unwrap();
    poststop(&rig);
    rig.policy(&format!("[default]\nadapters = [{only:?}]\n"));
    rig.create("c1").unwrap();
    let narrowed = config(&rig);
    poststop(&rig);
    let (expected, _) = rig.edit(&original).unwrap();
    assert_eq!(narrowed, expected);
    assert_ne!(narrowed, all);
    // One that was put on record and never started is decided about anew too.
    rig.policy("[default]\nadapters = []\n");
    assert!(rig.create("c1").unwrap_err().contains("devices.rdma-ctk.io=all"));
    rig.policy("[default]\nadapters = []\non_refusal = \"warn\"\n");
    rig.create("c1").unwrap();
    assert_eq!(config(&rig), original);
    assert!(!kept(&rig).exists());
    // And wider again.
    rig.policy("");
    rig.create("c1").unwrap();
    assert_eq!(config(&rig), all);
}

#[test]
fn what_others_have_put_in_since_stays() {
    let rig = Rig::new("soft-roce");
    let (mut edited, _) = rig.edit(&document("nerdctl")).unwrap();
    poststop(&rig);
    let theirs = json!({ "path": "/usr/bin/other", "args": ["other"] });
    edited["hooks"]["poststop"].as_array_mut().unwrap().push(theirs.clone());
    edited["process"]["env"].as_array_mut().unwrap().push(json!("OTHER=1"));
    edited["process"]["terminal"] = json!("changed");
    let (again, _) = rig.edit(&edited).unwrap();
    let count = |list: &Value, item: &Value| {
        list.as_array().unwrap().iter().filter(|found| *found == item).count()
    };
    assert_eq!(count(&again["hooks"]["poststop"], &theirs), 1);
    assert_eq!(count(&again["process"]["env"], &json!("OTHER=1")), 1);
    assert_eq!(count(&again["process"]["env"], &json!("NCCL_IB_HCA==rxe0:1")), 1);
    assert_eq!(again["process"]["terminal"], "changed");
    let lengths = |document: &Value| {
        ["/mounts", "/hooks/poststop", "/hooks/createRuntime", "/linux/resources/devices"]
            .map(|list| document.pointer(list).and_then(Value::as_array).unwrap().len())
    };
    assert_eq!(lengths(&again), lengths(&edited));
    // Where it cannot be taken out it is said.
    poststop(&rig);
    fs::remove_file(kept(&rig)).unwrap();
    let refused = rig.create("c1").unwrap_err();
    assert!(refused.contains("an earlier start's grant is in it"), "{refused}");
    assert_eq!(config(&rig), again);
}

#[test]
fn a_record_that_was_left_over_gives_nothing() {
    let rig = Rig::new("soft-roce");
    rig.edit(&document("docker")).unwrap();
    let path = rig.bundle().join("process.json");
    let process = fs::read(fixtures().join("bundles/docker.process.json")).unwrap();
    let exec = |root: &Path| {
        fs::write(&path, &process).unwrap();
        let root = root.to_str().unwrap();
        rig.call(&["--root", root, "exec", "-p", path.to_str().unwrap(), "c1"]).unwrap();
        fs::read(&path).unwrap() != process
    };
    let root = Path::new("/run/runc");
    assert!(exec(root));
    // Another container by that name, which does not ask.
    let mut plain = document("docker");
    plain["annotations"].as_object_mut().unwrap().clear();
    fs::write(rig.config(), plain.to_string()).unwrap();
    rig.create("c1").unwrap();
    assert_eq!(record(&rig, root), None);
    assert!(!exec(root));
    // One that has not come by here: its runtime knows another bundle.
    let root = rig.folder.path().join("state");
    let start = |root: &Path| {
        fs::write(rig.config(), document("docker").to_string()).unwrap();
        let (root, bundle) = (root.to_str().unwrap(), rig.bundle());
        rig.call(&["--root", root, "create", "--bundle", bundle.to_str().unwrap(), "c1"]).unwrap();
    };
    start(&root);
    fs::create_dir_all(root.join("c1")).unwrap();
    for (bundle, completed) in [(rig.bundle(), true), (rig.roots.run.clone(), false)] {
        let state = json!({ "config": { "labels": [format!("bundle={}", bundle.display())] } });
        fs::write(root.join("c1/state.json"), state.to_string()).unwrap();
        assert_eq!(exec(&root), completed, "{bundle:?}");
    }
}

#[test]
fn a_container_that_runs_keeps_its_record_whoever_takes_its_name() {
    let rig = Rig::new("soft-roce");
    let root = rig.folder.path().join("state");
    let bundle = rig.bundle();
    let create = |bundle: &Path| {
        let (root, bundle) = (root.to_str().unwrap(), bundle.to_str().unwrap());
        rig.call(&["--root", root, "create", "--bundle", bundle, "c1"])
    };
    fs::write(rig.config(), document("nerdctl").to_string()).unwrap();
    create(&bundle).unwrap();
    fs::create_dir_all(root.join("c1")).unwrap();
    let (before, text) = (record(&rig, &root), fs::read(rig.config()).unwrap());
    assert!(before.is_some());
    let source = bound(&config(&rig)).unwrap();
    let file = fs::read(&source).unwrap();
    // What its network has told, as the hook writes it.
    fs::remove_file(&source).unwrap();
    fs::write(&source, "NCCL_IB_GID_INDEX=3\n").unwrap();
    assert_ne!(fs::read(&source).unwrap(), file);
    let other = rig.folder.path().join("other");
    fs::create_dir_all(&other).unwrap();
    let none = asking(&document("nerdctl"), "other.example", "x");
    let wrong = asking(&document("nerdctl"), "devices.rdma-ctk.io", "mlx5_9");
    for asks in [none, wrong, document("docker")] {
        fs::write(other.join("config.json"), asks.to_string()).unwrap();
        create(&other).unwrap();
        assert_eq!(fs::read_to_string(other.join("config.json")).unwrap(), asks.to_string());
        assert_eq!(record(&rig, &root), before);
    }
    create(&bundle).unwrap();
    assert_eq!(fs::read(rig.config()).unwrap(), text);
    assert_eq!(fs::read(&source).unwrap(), b"NCCL_IB_GID_INDEX=3\n");
}

#[test]
fn nothing_is_left_of_a_container_that_was_never_made() {
    let rig = Rig::new("soft-roce");
    let root = rig.folder.path().join("state");
    let call = |action: &str| {
        let (root, bundle) = (root.to_str().unwrap(), rig.bundle());
        let create = ["--root", root, "create", "--bundle", bundle.to_str().unwrap(), "c1"];
        match action {
            "create" => rig.call(&create),
            _ => rig.call(&["--root", root, "delete", "--force", "c1"]),
        }
    };
    let left = || {
        let folder = rig.roots.run.join("rdma-ctk/wrapper");
        ["containers", "files"].map(|name| {
            fs::read_dir(folder.join(name)).map_or(0, |entries| entries.flatten().count())
        })
    };
    // A document of a shape that cannot be edited.
    let mut broken = document("nerdctl");
    broken["hooks"] = json!([]);
    fs::write(rig.config(), broken.to_string()).unwrap();
    assert!(call("create").unwrap_err().to_string().contains("/hooks is no object"));
    assert_eq!(left(), [0, 0]);
    // One that the runtime does not like.
    fs::write(rig.config(), document("nerdctl").to_string()).unwrap();
    call("create").unwrap();
    assert_eq!(left(), [1, 1]);
    call("delete").unwrap();
    assert_eq!(left(), [0, 0]);
    // One that it has made goes with its hook.
    call("create").unwrap();
    fs::create_dir_all(root.join("c1")).unwrap();
    call("delete").unwrap();
    assert_eq!(left(), [1, 1]);
    fs::remove_dir(root.join("c1")).unwrap();
    // One that starts without has no hook.
    rig.policy("[default]\nadapters = []\non_refusal = \"warn\"\n");
    call("create").unwrap();
    assert!(matches!(record(&rig, &root).unwrap().record.verdict, Verdict::Waived { .. }));
    fs::create_dir_all(root.join("c1")).unwrap();
    call("delete").unwrap();
    assert_eq!(left(), [0, 0]);
    fs::remove_dir(root.join("c1")).unwrap();
    // Why one was refused can be asked for afterwards, though its engine deletes it.
    rig.policy("[default]\nadapters = []\n");
    call("create").unwrap_err();
    call("delete").unwrap();
    assert_eq!(left()[0], 1);
}

#[test]
fn the_place_that_an_earlier_start_has_left_is_no_file_of_the_image() {
    for (content, told) in [(None, true), (Some(""), true), (Some("NCCL_DEBUG=INFO\n"), false)] {
        let rig = Rig::new("soft-roce");
        let etc = rig.bundle().join("rootfs/etc");
        fs::create_dir_all(&etc).unwrap();
        if let Some(content) = content {
            fs::write(etc.join("nccl.conf"), content).unwrap();
        }
        let mut document = document("nerdctl");
        document["root"]["path"] = json!("rootfs");
        let (edited, _) = rig.edit(&document).unwrap();
        assert_eq!(bound(&edited).is_some(), told, "{content:?}");
    }
}
