//! The report as a screen.

use std::fmt::Write as _;

use super::{Level, Report};

/// Columns of a line, where it can be broken.
const WIDTH: usize = 110;

/// Columns before a sentence: a stage, a level, and the blanks between.
const INDENT: usize = 16;

/// The report for a person: a line for each finding, then the first failure and what to do.
pub fn screen(report: &Report) -> String {
    let mut text = format!("rdma-ctk-probe {}", report.version);
    if !report.kernel.is_empty() {
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, ", kernel {}", report.kernel);
    }
    text.push_str("\n\n");
    let mut last = None;
    for finding in &report.findings {
        let stage = if last == Some(finding.stage) { "" } else { finding.stage.word() };
        last = Some(finding.stage);
        let _ = write!(text, "{stage:<9} {:<5} ", word(finding.level));
        wrap(&mut text, &finding.sentence, INDENT);
        if let (Level::Warn, Some(fix)) = (finding.level, &finding.fix) {
            let _ = write!(text, "{:INDENT$}", "");
            wrap(&mut text, &format!("-> {fix}"), INDENT + 3);
        }
    }
    text.push('\n');
    match &report.first_failure {
        None => text.push_str("Everything that this container was given works.\n"),
        Some(failure) => {
            text.push_str("The first thing that does not work:\n  ");
            wrap(&mut text, &failure.sentence, 2);
            if let Some(fix) = &failure.fix {
                text.push_str("  -> ");
                wrap(&mut text, fix, 5);
            }
        }
    }
    text
}

const fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "-",
        Level::Warn => "WARN",
        Level::Fail => "FAIL",
    }
}

/// Writes a sentence and a line feed, broken at blanks; further lines begin in that column.
fn wrap(text: &mut String, sentence: &str, indent: usize) {
    let mut column = indent;
    for (place, word) in sentence.split(' ').enumerate() {
        let length = word.chars().count();
        if place > 0 && column + 1 + length > WIDTH {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if place > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}
