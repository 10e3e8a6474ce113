//! What the runtime wrapper and the hook are handed, its kind on the first line: `config` (a
//! bundle's document), `process` (an exec session's), `state` (what a hook reads) or `line` (a
//! command line, an argument a line).
//!
//! Besides not panicking: what is read is written again as it was, and an edit keeps every member
//! of the document and leaves one that can be read.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use rdma_ctk::edit::oci::{Beside, apply, apply_process};
use rdma_ctk::grant::{DeviceNode, Grant, MemlockGrant, Variable};
use rdma_ctk::oci::{cmdline, container, hook::state::State, json};
use serde_json::Value;

/// Something of everything that an edit puts into a document.
fn grant() -> Grant {
    Grant {
        devices: vec![DeviceNode {
            path: "/dev/infiniband/uverbs0".into(),
            major: 231,
            minor: 192,
            mode: 0o666,
            rule_only: false,
        }],
        memlock: Some(MemlockGrant { bytes: u64::MAX, ..MemlockGrant::default() }),
        capabilities: vec!["NET_RAW".into()],
        env: vec![Variable { name: "NCCL_IB_HCA".into(), value: "=rxe0:1".into() }],
        unified: vec![("rdma.max".into(), "rxe0 hca_handle=2".into())],
        ..Grant::default()
    }
}

/// Every member that was there is there still, with its kind of value.
fn is_kept(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before
            .iter()
            .all(|(name, value)| after.get(name).is_some_and(|now| is_kept(value, now))),
        // Entries are added and replaced in lists; null is an empty one.
        (Value::Array(before), Value::Array(after)) => before.len() <= after.len(),
        (Value::Null, _) => true,
        (before, after) => before == after || before.is_number() && after.is_number(),
    }
}

fn edited(text: &[u8], edit: impl Fn(&mut Value) -> bool) -> Corpus {
    let Ok(before) = json::read(text) else { return Corpus::Keep };
    let written = serde_json::to_vec(&before).expect("what was read cannot be written");
    assert_eq!(json::read(&written).ok().as_ref(), Some(&before));
    if container::ambiguous(&before).is_some() {
        return Corpus::Keep;
    }
    let mut after = before.clone();
    if edit(&mut after) {
        assert!(is_kept(&before, &after), "{before} became {after}");
        let written = serde_json::to_vec(&after).expect("an edit cannot be written");
        assert_eq!(json::read(&written).ok(), Some(after));
    }
    Corpus::Keep
}

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Corpus::Reject };
    let (kind, rest) = (&input[..end], &input[end + 1..]);
    match kind {
        b"config" => {
            if let Ok(document) = json::read(rest) {
                let annotations = container::annotations(&document);
                let _ = container::network(&document);
                let beside = container::Beside { id: "c1", ..container::Beside::default() };
                let _ = container::read(&document, &annotations, &beside);
            }
            edited(rest, |document| apply(document, &grant(), Beside::default()).is_ok())
        }
        b"process" => edited(rest, |document| apply_process(document, &grant(), &[]).is_ok()),
        b"state" => {
            if let Ok(state) = State::parse(rest) {
                assert!(!state.id.is_empty());
            }
            Corpus::Keep
        }
        b"line" => {
            let Ok(text) = std::str::from_utf8(rest) else { return Corpus::Reject };
            let arguments: Vec<&str> = text.lines().collect();
            let _ = cmdline::parse(&arguments);
            Corpus::Keep
        }
        _ => Corpus::Reject,
    }
});
