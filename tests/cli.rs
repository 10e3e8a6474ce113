//! The program as users run it, on fixtures.

#![cfg(test)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rdma_ctk::daemon::records::{PodName, PodRecord, Record, Store, Verdict};
use rdma_ctk::grant::{Adapter, Grant, MemlockGrant, Reason, Variable};
use rdma_ctk::roots::Roots;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures").join(name)
}

fn rdma_ctk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rdma-ctk")).args(arguments).output().unwrap()
}

/// What the command wrote, and its exit code.
fn on_fixture(name: &str, arguments: &[&str]) -> (i32, String) {
    let root = fixture(name);
    let mut all = arguments.to_vec();
    all.extend(["--root", root.to_str().unwrap()]);
    answer(&rdma_ctk(&all))
}

fn answer(output: &Output) -> (i32, String) {
    let mut text = String::from_utf8(output.stdout.clone()).unwrap();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), text)
}

#[test]
fn list_shows_a_soft_roce_node() {
    insta::assert_snapshot!(on_fixture("soft-roce.tree", &["list"]).1);
}

#[test]
fn list_writes_the_inventory_for_programs() {
    let (code, text) = on_fixture("soft-roce.tree", &["list", "-o", "json"]);
    assert_eq!(code, 0);
    let node: rdma_ctk::inventory::Node = serde_json::from_str(&text).unwrap();
    assert_eq!(node.hcas[0].name, "rxe0");
    let (_, yaml) = on_fixture("soft-roce.tree", &["list", "-o", "yaml"]);
    let again: rdma_ctk::inventory::Node = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(node, again);
}

/// Exit code and text of `explain` for a container with those annotations.
fn explain(fixture: &str, annotations: &[&str], more: &[&str]) -> (i32, String) {
    let mut arguments = vec!["explain", "--runtime", "containerd 2.1.9"];
    for annotation in annotations {
        arguments.extend(["-a", annotation]);
    }
    arguments.extend(more);
    on_fixture(fixture, &arguments)
}

#[test]
fn explain_prints_grant_reasons_and_adjustment() {
    let (code, text) = explain(
        "roce-sriov.tree",
        &["devices.rdma-ctk.io=mlx5_0"],
        &["--host-network", "--user", "1000"],
    );
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn c10_explain_refuses_what_the_node_does_not_have() {
    let (code, text) = explain("soft-roce.tree", &["devices.rdma-ctk.io=mlx5_9"], &[]);
    assert_eq!(code, 4);
    assert!(text.contains("no RDMA device mlx5_9 on this node (have: rxe0)"), "{text}");
}

#[test]
fn explain_tells_by_its_exit_code_what_was_decided() {
    assert_eq!(explain("soft-roce.tree", &["example.org/x=y"], &[]).0, 3);
    assert_eq!(explain("soft-roce.tree", &["devices.rdma-ctk.io=none"], &[]).0, 3);
    assert_eq!(explain("soft-roce.tree", &["devices.rdma-ctk.io=all"], &[]).0, 0);
    assert_eq!(explain("soft-roce.tree", &["device.rdma-ctk.io=all"], &[]).0, 4);
}

#[test]
fn c46_explain_leaves_given_cpus_and_says_where_they_are() {
    let (code, text) = explain(
        "gpu-infiniband.tree",
        &["devices.rdma-ctk.io=mlx5_6"],
        &["--cpus", "0-7", "-o", "json"],
    );
    assert_eq!(code, 0, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer[0]["decision"]["cpus"], serde_json::Value::Null);
    let warnings = answer[0]["decision"]["warnings"].to_string();
    assert!(warnings.contains("mlx5_6"), "{warnings}");
}

#[test]
fn explain_takes_a_manifest_and_a_policy() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pod = write(
        "pod.yaml",
        "kind: Pod\nmetadata:\n  name: p\n  annotations: {devices.rdma-ctk.io/container.a: all}\n\
         spec: {containers: [{name: a}, {name: b}]}\n",
    );
    let (code, text) = on_fixture("soft-roce.tree", &["explain", &pod, "-o", "json"]);
    assert_eq!(code, 0, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer[0]["decision"]["outcome"], "granted");
    assert_eq!(answer[1]["decision"]["outcome"], "not-asked");
    assert_eq!(answer[1]["adjustment"], serde_json::Value::Null);
    let (code, text) = on_fixture("soft-roce.tree", &["explain", &pod, "--container", "c"]);
    assert_eq!(
        (code, text.as_str()),
        (1, "rdma-ctk: no container is called \"c\"; there are: a, b\n")
    );
    let policy = write("policy.toml", "nonsense = 1\n");
    let (code, text) = on_fixture("soft-roce.tree", &["explain", &pod, "--policy", &policy]);
    assert_eq!(code, 1);
    assert!(text.contains("policy.toml: line 1, column 1: "), "{text}");
}

#[test]
fn list_shows_machines_of_every_kind() {
    for name in ["gpu-infiniband", "roce-sriov", "efa-nvlink", "erdma-iwarp", "none"] {
        insta::assert_snapshot!(name, on_fixture(&format!("{name}.tree"), &["list"]).1);
    }
}

#[test]
fn c103_list_tells_adapters_by_their_driver() {
    let count = |filter: &[&str]| {
        let mut arguments = vec!["list", "-o", "json"];
        arguments.extend(filter);
        let (code, text) = on_fixture("efa-nvlink.tree", &arguments);
        assert_eq!(code, 0);
        let node: rdma_ctk::inventory::Node = serde_json::from_str(&text).unwrap();
        node.hcas.len()
    };
    assert_eq!(count(&["--provider", "efa"]), 8);
    assert_eq!(count(&["--driver", "mlx5"]), 2);
    assert_eq!(count(&[]), 10);
    assert_eq!(on_fixture("none.tree", &["list"]).0, 0);
}

#[test]
fn doctor_finds_a_soft_roce_node_well() {
    let (code, text) = on_fixture("soft-roce.tree", &["doctor"]);
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(text);
}

/// Machines that work draw no failure, and only warnings that are so.
#[test]
fn doctor_judges_machines_of_every_kind() {
    let mut report = String::new();
    for name in
        ["efa-nvlink", "erdma-iwarp", "flat-vm", "irdma", "mana", "many-hcas", "none", "roce-sriov"]
    {
        let (code, text) = on_fixture(&format!("{name}.tree"), &["doctor", "-o", "json"]);
        assert_eq!(code, 0, "{name}: {text}");
        let diagnoses: serde_json::Value = serde_json::from_str(&text).unwrap();
        for diagnosis in diagnoses.as_array().unwrap() {
            for finding in diagnosis["findings"].as_array().unwrap() {
                if finding["level"] != "OK" {
                    let sentence = finding["sentence"].as_str().unwrap();
                    report +=
                        &format!("{name}: {}: {sentence}\n", diagnosis["check"].as_str().unwrap());
                }
            }
        }
    }
    insta::assert_snapshot!(report);
}

#[test]
fn doctor_runs_the_checks_that_it_is_told() {
    let (code, text) = on_fixture("soft-roce.tree", &["doctor", "ports", "numa", "-o", "json"]);
    assert_eq!(code, 0);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> = report.as_array().unwrap().iter().map(|d| d["check"].as_str()).collect();
    assert_eq!(names, [Some("ports"), Some("numa")]);
    let (code, text) = on_fixture("soft-roce.tree", &["doctor", "prots"]);
    assert_eq!(code, 1);
    assert!(text.starts_with("rdma-ctk: no check is called \"prots\"; there are: "), "{text}");
}

#[test]
fn c03_c101_doctor_explains_error_texts() {
    for (text, expected) in [
        ("EFA internal error: (4112)", "check memlock first"),
        ("could not insert 'erdma': Exec format error", "compressed modules"),
    ] {
        let (code, answer) = on_fixture("soft-roce.tree", &["doctor", "--explain", text]);
        assert_eq!(code, 0);
        assert!(answer.contains(expected), "{answer}");
        assert!(answer.contains("On this node now:\n"), "{answer}");
    }
    let (code, answer) = on_fixture("soft-roce.tree", &["doctor", "--explain", "all is well"]);
    assert_eq!(code, 1);
    assert!(answer.starts_with("rdma-ctk: no usual cause"), "{answer}");
}

#[test]
fn doctor_explains_what_is_piped_in() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rdma-ctk"))
        .args(["doctor", "--explain", "-", "--root"])
        .arg(fixture("soft-roce.tree"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = child.stdin.take().unwrap();
    log.write_all(b"rank 0: hello\nrank 1: Couldn't register MR\n").unwrap();
    drop(log);
    let (code, text) = answer(&child.wait_with_output().unwrap());
    assert_eq!(code, 0);
    assert!(text.contains("memlock"), "{text}");
}

#[test]
fn config_prints_policies_that_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("a.toml", &["config", "default"][..]),
        ("b.toml", &["config", "default", "--multi-tenant"]),
    ] {
        let (code, text) = answer(&rdma_ctk(arguments));
        assert_eq!(code, 0);
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let (code, text) = answer(&rdma_ctk(&["config", "check", path.to_str().unwrap()]));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(": can be used, "), "{text}");
    }
    let path = folder.path().join("c.toml");
    std::fs::write(&path, "\n[default]\nadapters = 3\n").unwrap();
    let (code, text) = answer(&rdma_ctk(&["config", "check", path.to_str().unwrap()]));
    assert_eq!(code, 1);
    assert!(text.contains("c.toml: line 3, column 12: "), "{text}");
}

#[test]
fn configure_shows_changes_makes_them_once_and_takes_them_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("etc/containerd/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "version = 2\n").unwrap();
    let root = folder.path().to_str().unwrap();
    let configure = |more: &[&str]| {
        let mut arguments =
            vec!["configure", "containerd", "--root", root, "--containerd-version", "1.7.24"];
        arguments.extend(more);
        answer(&rdma_ctk(&arguments))
    };
    let (code, shown) = configure(&["--nri", "--dry-run"]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("\n+disable = false\n"), "{shown}");
    assert!(shown.contains("\n1 file would change; nothing was done\n"), "{shown}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version = 2\n");
    let (_, done) = configure(&["--nri"]);
    assert!(done.contains("\n1 file changed\n"), "{done}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("disable = false"));
    let (code, again) = configure(&["--nri"]);
    assert_eq!(code, 0);
    assert!(!again.contains("changed\n"), "{again}");
    let (code, undone) = configure(&["--undo"]);
    assert_eq!(code, 0, "{undone}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version = 2\n");
    assert_eq!(configure(&["--undo"]).0, 1);
    assert_eq!(configure(&[]).0, 2);
    let (code, text) =
        answer(&rdma_ctk(&["configure", "containerd", "--nri", "--root", "/no/such/node"]));
    assert_eq!((code, text.starts_with("rdma-ctk: /no/such/node: ")), (1, true), "{text}");
}

/// A node on which a daemon has decided about three containers.
fn node_with_records() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(&Roots::below(folder.path()));
    store.prepare().unwrap();
    let pod = |name: &str| PodName {
        namespace: "ml".into(),
        name: name.into(),
        uid: String::new(),
        sandbox: format!("box-{name}"),
    };
    let reason = |about: &str, text: &str| Reason { about: about.into(), text: text.into() };
    let adapter = |name: &str| Adapter {
        name: name.into(),
        pci: None,
        ports: vec![1],
        usable: true,
        gids: Vec::new(),
    };
    let grant = Grant {
        adapters: vec![adapter("erdma_0")],
        memlock: Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }),
        env: vec![Variable { name: "NCCL_IB_HCA".into(), value: "=erdma_0:1".into() }],
        warnings: vec!["NCCL_IB_HCA names none of the given adapters".into()],
        reasons: vec![
            reason("devices", "given: erdma_0"),
            reason("devices", "visible in sysfs, not accessible: erdma_1"),
            reason("env", "NCCL_IB_HCA names none of the given adapters"),
        ],
        ..Grant::default()
    };
    let slipped = "started without RDMA because rdma-ctk was not connected; restart the pod";
    for (id, container, name, verdict) in [
        ("0123456789abcdef", "trainer", "train-0", Verdict::Granted { grant: Box::new(grant) }),
        ("1123456789abcdef", "trainer", "train-1", Verdict::Slipped { sentence: slipped.into() }),
        (
            "2123456789abcdef",
            "app",
            "other",
            Verdict::Refused { sentence: "no RDMA device mlx5_9 on this node".into() },
        ),
    ] {
        store
            .write(&Record {
                id: id.into(),
                name: container.into(),
                pod: pod(name),
                runtime: "containerd 2.1.9 (NRI 0.8.0)".into(),
                at: 0,
                verdict,
            })
            .unwrap();
    }
    let unmatched = vec!["devices.rdma-ctk.io/container.trianer".to_owned()];
    store
        .write_pod(&PodRecord { pod: pod("other"), at: 0, unmatched, mishaps: Vec::new() })
        .unwrap();
    folder
}

#[test]
fn c61_inspect_names_what_slipped_through() {
    let node = node_with_records();
    let (code, text) = answer(&rdma_ctk(&["inspect", "--root", node.path().to_str().unwrap()]));
    assert_eq!(code, 0);
    insta::assert_snapshot!(text);
}

#[test]
fn c16_c39_inspect_tells_all_about_one() {
    let node = node_with_records();
    let inspect = |name: &str, more: &[&str]| {
        let mut arguments = vec!["inspect", name, "--root", node.path().to_str().unwrap()];
        arguments.extend(more);
        answer(&rdma_ctk(&arguments))
    };
    let (_, text) = inspect("ml/train-0", &[]);
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.starts_with("ml/train-0 container trainer: granted "), "{first}");
    insta::assert_snapshot!(rest);
    for (name, containers) in [("trainer", 2), ("train-1", 1), ("01234567", 1), ("ml/other", 1)] {
        let (code, text) = inspect(name, &["-o", "json"]);
        assert_eq!(code, 0, "{text}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["containers"].as_array().unwrap().len(), containers, "{name}");
    }
    let (code, text) = inspect("nobody", &[]);
    assert_eq!(code, 1);
    assert!(text.starts_with("rdma-ctk: \"nobody\" is not on record"), "{text}");
}

#[test]
fn c83_inspect_names_annotations_that_nobody_heard() {
    let node = tempfile::tempdir().unwrap();
    let bundle = node.path().join("run/containerd/io.containerd.runtime.v2.task/default/abc");
    std::fs::create_dir_all(&bundle).unwrap();
    let document = r#"{"annotations": {"devices.rdma-ctk.io": "mlx5_0"}}"#;
    std::fs::write(bundle.join("config.json"), document).unwrap();
    let (code, text) = answer(&rdma_ctk(&["inspect", "--root", node.path().to_str().unwrap()]));
    assert_eq!(code, 0);
    assert!(text.contains("containers of nerdctl and ctr do not pass through NRI"), "{text}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rdma-ctk"))
        .args(["doctor", "--list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn wrong_usage_ends_with_2_and_a_wrong_root_with_1() {
    assert_eq!(rdma_ctk(&["lists"]).status.code(), Some(2));
    assert_eq!(rdma_ctk(&[]).status.code(), Some(2));
    let (code, text) = answer(&rdma_ctk(&["list", "--root", "/no/such/node"]));
    assert_eq!(code, 1);
    assert!(text.starts_with("rdma-ctk: /no/such/node: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn help_is_short_and_exact() {
    let mut text = String::new();
    for command in [
        &[][..],
        &["list"],
        &["explain"],
        &["inspect"],
        &["doctor"],
        &["config"],
        &["config", "default"],
        &["config", "check"],
        &["configure", "containerd"],
        &["nri"],
    ] {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        text += &format!("== {}\n{}", command.join(" "), answer(&rdma_ctk(&arguments)).1);
    }
    insta::assert_snapshot!(text);
}

#[test]
fn cdi_shows_the_file_of_a_node_and_its_limits() {
    let (code, text) = on_fixture("soft-roce.tree", &["cdi", "generate"]);
    assert_eq!(code, 0);
    insta::assert_snapshot!(text);
    let (code, text) = on_fixture("none.tree", &["cdi", "generate"]);
    assert_eq!(code, 1);
    assert!(text.contains("no adapter can be given"), "{text}");
}

#[test]
fn c79_cdi_validate_judges_the_file_beside_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    rdma_ctk::inventory::fixture::unpack(&fixture("soft-roce.tree"), root).unwrap();
    let at = root.to_str().unwrap();
    let validate = || {
        let (code, text) = answer(&rdma_ctk(&["cdi", "validate", "--root", at]));
        (code, text.replace(at, ""))
    };
    let file = root.join("run/cdi/rdma-ctk.io-hca.json");
    let (code, text) = validate();
    assert_eq!(
        (code, text.as_str()),
        (5, "/run/cdi/rdma-ctk.io-hca.json: there is no CDI file, and 2 devices could be in it\n")
    );
    let output = file.to_str().unwrap();
    let written = rdma_ctk(&["cdi", "generate", "--root", at, "--output", output]);
    assert!(written.status.success());
    let (code, text) = validate();
    assert_eq!(
        (code, text.as_str()),
        (0, "/run/cdi/rdma-ctk.io-hca.json: is valid and up to date\n")
    );
    let (_, listed) = answer(&rdma_ctk(&["cdi", "list", "--root", at]));
    insta::assert_snapshot!(listed.replace(at, ""));
    std::fs::remove_file(root.join("dev/infiniband/uverbs0")).unwrap();
    let (code, text) = validate();
    assert_eq!(code, 5);
    assert!(text.contains("/dev/infiniband/uverbs0 is missing"), "{text}");
}

#[test]
fn a_slip_in_a_key_is_told_beside_what_nobody_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let pod = folder.path().join("pod.yaml");
    let text = "kind: Pod\nmetadata: {name: p, annotations: {devices.rdma-ctk.oi: all, \
                devices.rdma-ctk.io/container.mian: all}}\nspec: {containers: [{name: main}]}\n";
    std::fs::write(&pod, text).unwrap();
    let (code, text) = on_fixture("soft-roce.tree", &["explain", pod.to_str().unwrap()]);
    assert_eq!(code, 3);
    for part in [
        "did you mean devices.rdma-ctk.io?",
        "container.mian: the pod has no container mian; it has main",
        "under containerd 2.3.0; for another one name it",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_is_no_root_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let empty = folder.path().join("empty.tree");
    std::fs::write(&empty, "# nothing\n").unwrap();
    let (code, text) = answer(&rdma_ctk(&["list", "--root", empty.to_str().unwrap()]));
    assert_eq!((code, text.contains("empty.tree: no node: expected sys")), (1, true), "{text}");
    let (code, text) = answer(&rdma_ctk(&["list", "--root", at]));
    assert_eq!((code, text.contains(": no node: expected sys")), (1, true), "{text}");
    let (code, text) = on_fixture("none.tree", &["configure", "docker"]);
    assert_eq!((code, text.contains("none.tree: no folder: --root takes")), (1, true), "{text}");
    // The file that was read is named, not the one that the node has.
    let config = folder.path().join("etc/containerd/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, "[x").unwrap();
    for what in ["--nri", "--runtime"] {
        let (code, text) =
            answer(&rdma_ctk(&["configure", "containerd", what, "--root", at, "--dry-run"]));
        let named = format!("rdma-ctk: {}: line 1: ", config.display());
        assert_eq!((code, text.starts_with(&named)), (1, true), "{text}");
    }
}

#[test]
fn cdi_tells_of_a_fixture_what_would_be_there() {
    let (code, text) = on_fixture("soft-roce.tree", &["cdi", "list"]);
    assert_eq!(code, 0);
    assert!(text.contains("rdma-ctk.io/hca=rxe0  uverbs0 rdma_cm  -"), "{text}");
    let note = "note: /run/cdi/rdma-ctk.io-hca.json: not there in this root; shown is what it";
    assert!(text.contains(note), "{text}");
    let (_, text) = on_fixture("soft-roce.tree", &["cdi", "validate"]);
    assert!(text.starts_with("/run/cdi/rdma-ctk.io-hca.json: there is no CDI file"), "{text}");
}
