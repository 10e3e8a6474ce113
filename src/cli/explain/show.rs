//! An explanation in words.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::Explanation;
use crate::cli::output::FormatError;
use crate::grant::{Grant, Outcome};

/// All of them, one after the other.
pub fn describe(explanations: &[Explanation]) -> Result<String, FormatError> {
    let mut text = String::new();
    for explanation in explanations {
        if !text.is_empty() {
            text.push('\n');
        }
        one(&mut text, explanation)?;
    }
    Ok(text)
}

fn one(text: &mut String, explanation: &Explanation) -> Result<(), FormatError> {
    let word = match &explanation.decision {
        Outcome::NotAsked => "not asked",
        Outcome::LeftAlone { .. } => "left alone",
        Outcome::Granted(_) => "granted",
        Outcome::Refused(_) => "refused",
        Outcome::Waived(_) => "starts without, as policy says",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{} container {}: {word} ({})",
        explanation.pod, explanation.container, explanation.path
    );
    for note in &explanation.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    for remark in &explanation.remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    match &explanation.decision {
        Outcome::NotAsked => {}
        Outcome::LeftAlone { reason } => {
            let _ = writeln!(text, "  {reason}");
        }
        Outcome::Refused(refusal) | Outcome::Waived(refusal) => {
            let _ = writeln!(text, "  {refusal}");
        }
        Outcome::Granted(grant) => reasons(text, grant),
    }
    if let Some(adjustment) = &explanation.adjustment {
        let yaml = serde_saphyr::to_string(adjustment)?;
        let _ = writeln!(text, "  adjustment:");
        for line in yaml.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    Ok(())
}

/// A line for each reason; those that are warnings are marked.
pub fn reasons(text: &mut String, grant: &Grant) {
    let width = grant.reasons.iter().map(|reason| reason.about.len()).max().unwrap_or(0);
    for reason in &grant.reasons {
        let mark = if grant.warnings.contains(&reason.text) { '!' } else { ' ' };
        let _ = writeln!(text, "{mark} {:<width$}  {}", reason.about, reason.text);
    }
}

/// A message of the protocol as a tree without what is empty: unset fields, and the wrappers that
/// tell an unset number from 0. Modes are octal, as everywhere else.
pub fn tidy<T: Serialize>(message: &T) -> Value {
    // A message is made of texts, numbers, lists and maps with texts as keys: always JSON.
    let mut tree = serde_json::to_value(message).unwrap_or_default();
    prune(&mut tree);
    tree
}

fn prune(tree: &mut Value) {
    match tree {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, value| !is_empty(value));
            if let Some(mode) = map.get_mut("file_mode")
                && let Some(bits) = mode.as_u64()
            {
                *mode = format!("{bits:04o}").into();
            }
            if map.len() == 1
                && let Some(value) = map.get("value").filter(|value| !value.is_object())
            {
                *tree = value.clone();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
