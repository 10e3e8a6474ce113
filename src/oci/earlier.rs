//! An earlier start of the same bundle: what it was given is in the document, and its record and files
//! have gone with its container (`run` twice, a checkpoint that is restored). It is taken out first, so
//! that what counts is what is asked and what policy gives now.

use std::path::Path;

use serde_json::Value;

use super::document::{Document, DocumentError};
use super::ledger::Ledger;
use super::{HOOK, OciError, json};
use crate::edit::revert::revert;
use crate::request::MARKER;

/// The document as it was before an earlier start.
#[derive(Debug)]
pub(super) struct Earlier {
    /// As a value.
    pub(super) value: Value,
    /// As a text.
    pub(super) text: Vec<u8>,
}

/// Takes out of the document what an earlier start has put in; `None`: there is nothing of the kind. A
/// mark alone is the tenant's own word.
pub(super) fn take_out(
    document: &Document,
    value: &Value,
    ledger: &Ledger,
) -> Result<Option<Earlier>, OciError> {
    let traces = has_traces(value, ledger);
    let Some(mark) = value["annotations"].get(MARKER).or(traces.then_some(&Value::Null)) else {
        return Ok(None);
    };
    let path = || document.path().to_owned();
    let read = |text: &[u8]| {
        json::read(text).map_err(|source| DocumentError::Syntax { path: path(), source })
    };
    if let Some(kept) = document.kept() {
        let before = read(&kept.before)?;
        if kept.after == document.text {
            return Ok(Some(Earlier { value: before, text: kept.before }));
        }
        let after = read(&kept.after)?;
        // Somebody has edited it since, or it is another one.
        if traces || after["annotations"][MARKER] == *mark {
            let mut now = value.clone();
            revert(&before, &after, &mut now);
            if !has_traces(&now, ledger) {
                let text = json::write(&now);
                return Ok(Some(Earlier { value: now, text }));
            }
        }
    }
    if traces {
        return Err(OciError::Refused {
            sentence: format!(
                "{}: an earlier start's grant is in it and cannot be taken out, since what it was \
                 before is not kept beside it: write it anew",
                document.path().display()
            ),
        });
    }
    Ok(None)
}

/// Whether a hook with a record of ours is in the document, or a mount of a file of ours. No tenant
/// can put in either.
fn has_traces(document: &Value, ledger: &Ledger) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_ours = |hook: &Value| {
        let args = list(&hook["args"]);
        args.first().is_some_and(|name| name == HOOK) && args.iter().any(|arg| arg == "--record")
    };
    let stages = document["hooks"].as_object();
    let hooked = stages.into_iter().flatten().any(|(_, hooks)| list(hooks).iter().any(is_ours));
    let files = ledger.files();
    let bound = |mount: &Value| {
        mount["source"].as_str().is_some_and(|source| Path::new(source).starts_with(&files))
    };
    hooked || list(&document["mounts"]).iter().any(bound)
}
