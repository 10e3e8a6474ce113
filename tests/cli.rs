//! The program as users run it, on fixtures.

#![cfg(test)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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

#[test]
fn doctor_finds_a_soft_roce_node_well() {
    let (code, text) = on_fixture("soft-roce.tree", &["doctor"]);
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(text);
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
    for command in [&[][..], &["list"], &["doctor"]] {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        text += &format!("== {}\n{}", command.join(" "), answer(&rdma_ctk(&arguments)).1);
    }
    insta::assert_snapshot!(text);
}
