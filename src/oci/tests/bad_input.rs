//! Documents that nobody should write: a clear refusal or an exact edit, never a part of a file.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::rig::Rig;

fn create(text: &[u8]) -> (Rig, Result<(), String>) {
    let rig = Rig::new("soft-roce");
    fs::write(rig.config(), text).unwrap();
    let done = rig.create("c1");
    (rig, done)
}

#[test]
fn what_two_readers_would_read_in_two_ways_is_refused_if_it_asks() {
    let asks = r#""annotations":{"devices.rdma-ctk.io":"all"}"#;
    for (text, part) in [
        (format!("{{{asks},{asks}}}"), "\"annotations\" stands there twice"),
        (format!("{{{asks},\"process\":{{\"env\":[],\"env\":[]}}}}"), "\"env\" stands there twice"),
        (format!("{{{asks},\"Process\":{{}}}}"), "/Process differs from one of the specification"),
        (format!("{{{asks},\"linux\":{{\"DEVICES\":[]}}}}"), "/linux/DEVICES differs"),
        (format!("{{{asks},\"x\":18446744073709551616}}"), "cannot be kept exactly"),
        (format!("{{{asks}"), "EOF"),
        (format!("{{{asks}}}x"), "trailing"),
        (format!("[{{{asks}}}]"), "no JSON object"),
        (format!("{{{asks},\"process\":{{\"env\":\"A=B\"}}}}"), "/process/env is no list"),
        (format!("{{{asks},\"linux\":7}}"), "/linux is no object"),
        (
            format!(
                "{{{asks},\"mounts\":{{}},\"linux\":{{\"namespaces\":[{{\"type\":\"network\"}}]}}}}"
            ),
            "/mounts is no list",
        ),
        (format!("{{{asks},\"a\":{}{}}}", "[".repeat(200), "]".repeat(200)), "recursion"),
        ("{\"Annotations\":{\"devices.rdma-ctk.io\":\"all\"}}".to_owned(), "/Annotations differs"),
    ] {
        let (rig, done) = create(text.as_bytes());
        let error = done.expect_err(&text);
        assert!(error.contains(part) && error.contains("config.json"), "{text}: {error}");
        assert_eq!(fs::read_to_string(rig.config()).unwrap(), text);
        assert_eq!(fs::read_dir(rig.bundle()).unwrap().count(), 1, "{text}");
    }
}

#[test]
fn what_does_not_ask_is_the_runtimes_to_judge() {
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{\"a\":1,\"a\":2}",
        "{\"Process\":{}}",
        "\u{feff}{}",
        "{} {}",
        "{\"process\":{\"env\":[\"RDMA=rdma\"],\"env\":[]}}",
    ] {
        let (rig, done) = create(text.as_bytes());
        assert_eq!(done, Ok(()), "{text}");
        assert_eq!(fs::read_to_string(rig.config()).unwrap(), text);
    }
    let rig = Rig::new("soft-roce");
    assert_eq!(rig.create("c1"), Ok(()));
}

#[test]
fn a_document_by_a_link_is_refused_if_it_asks() {
    let rig = Rig::new("soft-roce");
    let other = rig.folder.path().join("other.json");
    let asks = r#"{"annotations":{"devices.rdma-ctk.io":"all"}}"#;
    fs::write(&other, asks).unwrap();
    symlink(&other, rig.config()).unwrap();
    let error = rig.create("c1").unwrap_err();
    assert!(error.contains("config.json is a symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(&other).unwrap(), asks);
    fs::write(&other, r#"{"annotations":{}}"#).unwrap();
    assert_eq!(rig.create("c1"), Ok(()));
}

#[test]
fn ten_megabytes_are_edited_exactly_and_too_many_are_refused() {
    let padding: Vec<String> = (0..10_000).map(|n| format!("{n:01000}")).collect();
    let document = json!({
        "annotations": { "devices.rdma-ctk.io": "all" },
        "padding": padding,
        "ociVersion": "77.0.0-unheard-of",
    });
    let rig = Rig::new("soft-roce");
    let (edited, replaced) = rig.edit(&document).unwrap();
    assert!(replaced);
    assert_eq!(edited["padding"], document["padding"]);
    assert_eq!(edited["ociVersion"], document["ociVersion"]);

    for (asks, refused) in [("devices.rdma-ctk.io", true), ("other.example", false)] {
        let text = format!(
            "{{\"annotations\":{{\"{asks}\":\"all\"}},\"x\":\"{}\"}}",
            "x".repeat(17 << 20)
        );
        let (rig, done) = create(text.as_bytes());
        assert_eq!(done.is_err(), refused, "{asks}");
        assert_eq!(fs::metadata(rig.config()).unwrap().len(), text.len() as u64);
    }
}

#[test]
fn a_broken_policy_refuses_who_asks_and_nobody_else() {
    let rig = Rig::new("soft-roce");
    rig.policy("claims = 7\n");
    let asks = json!({ "annotations": { "devices.rdma-ctk.io": "all" } });
    let error = rig.edit(&asks).unwrap_err();
    assert!(error.contains("the policy is broken") && error.contains("line 1"), "{error}");
    let other = json!({ "process": { "env": ["A=rdma"] } });
    assert!(!rig.edit(&other).unwrap().1);
    assert!(!rig.edit(&json!({})).unwrap().1);
}

#[test]
fn a_process_document_that_cannot_be_completed_stays() {
    let rig = Rig::new("soft-roce");
    rig.edit(&json!({ "annotations": { "devices.rdma-ctk.io": "all" } })).unwrap();
    let path = rig.bundle().join("process.json");
    for text in ["", "[]", "{\"env\":7}", "{\"env\":[],\"env\":[]}", "{\"Env\":[]}"] {
        fs::write(&path, text).unwrap();
        let done = rig.call(&["--root", "/run/runc", "exec", "-p", path.to_str().unwrap(), "c1"]);
        assert!(done.is_err(), "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}
