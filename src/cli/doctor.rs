//! `rdma-ctk doctor`: the check-up, and what is behind an error text.

use std::fmt::Write as _;
use std::io::Read as _;

use clap::Args;
use serde::Serialize;

use super::output::{Format, print, render, table};
use super::root::{Trees, ViewArgs};
use super::{Error, Exit};
use crate::daemon::records;
use crate::doctor::{
    CHECKS, Cause, Check, Context, Diagnosis, Level, Live, Machine, explain, run as examine,
};

/// Findings of one check and level that are printed; JSON has all.
const SHOWN: usize = 6;

/// What the help says at its end.
const AFTER: &str = "\
Exit status: 0 nothing failed (warnings may be there), 1 could not look, 2 wrong usage, 5 at least
one check failed";

/// Check this node, and say how to mend what is amiss
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub struct DoctorArgs {
    #[command(flatten)]
    view: ViewArgs,
    /// Name the usual cause of an error text, and check for it (- reads the text from standard input)
    #[arg(long, value_name = "ERROR TEXT", allow_hyphen_values = true, conflicts_with_all = ["list", "checks"])]
    explain: Option<String>,
    /// Name the checks, and do nothing
    #[arg(long, conflicts_with = "checks")]
    list: bool,
    /// Only these checks
    #[arg(value_name = "CHECK")]
    checks: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The fixture cannot be used, a check or an error text is unknown, or standard output cannot be
/// written.
pub fn run(args: &DoctorArgs) -> Result<Exit, Error> {
    if args.list {
        let rows = CHECKS.iter().map(|check| vec![check.name.to_owned(), check.what.to_owned()]);
        print(&table(&["CHECK", "LOOKS AT"], rows))?;
        return Ok(Exit::Success);
    }
    let checks = chosen(&args.checks)?;
    let trees = args.view.trees()?;
    if let Some(text) = &args.explain {
        return explain_text(&trees, text, args.view.output);
    }
    let report = look(&trees, &checks);
    let text = match render(args.view.output, &report)? {
        Some(text) => text,
        None => describe(&report) + &summary(&report),
    };
    print(&text)?;
    let failed = report.iter().flat_map(|d| &d.findings).any(|f| f.level == Level::Fail);
    Ok(if failed { Exit::Unhealthy } else { Exit::Success })
}

/// Checks of those names; all if there are none.
fn chosen(names: &[String]) -> Result<Vec<&'static Check>, Error> {
    if names.is_empty() {
        return Ok(CHECKS.iter().collect());
    }
    names.iter().map(|name| by_name(name)).collect()
}

fn by_name(name: &str) -> Result<&'static Check, Error> {
    CHECKS.iter().find(|check| check.name == name).ok_or_else(|| Error::NoCheck {
        name: name.to_owned(),
        known: CHECKS.iter().map(|check| check.name).collect::<Vec<_>>().join(", "),
    })
}

fn look(trees: &Trees, checks: &[&'static Check]) -> Vec<Diagnosis> {
    let node = trees.node();
    let records = records::read_all(&trees.roots);
    let live: Option<&dyn Live> = if trees.roots.is_live() { Some(&Machine) } else { None };
    let context = Context { roots: &trees.roots, node: &node, records: &records, live };
    examine(&context, checks.iter().copied())
}

/// A cause of a text, and how it stands with it on this node.
#[derive(Debug, Serialize)]
struct Explanation {
    #[serde(flatten)]
    cause: &'static Cause,
    now: Vec<Diagnosis>,
}

fn explain_text(trees: &Trees, text: &str, format: Format) -> Result<Exit, Error> {
    let mut text = text.to_owned();
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text)?;
    }
    let causes = explain(&text);
    if causes.is_empty() {
        return Err(Error::NoCause);
    }
    let mut explanations = Vec::new();
    for cause in causes {
        let checks =
            cause.checks.iter().map(|name| by_name(name)).collect::<Result<Vec<_>, _>>()?;
        explanations.push(Explanation { cause, now: look(trees, &checks) });
    }
    let text = match render(format, &explanations)? {
        Some(text) => text,
        None => {
            let mut text = String::new();
            for explanation in &explanations {
                // Writing to a String cannot fail.
                let _ = write!(
                    text,
                    "Usual cause: {}.\nWhat to do: {}.\nOn this node now:\n{}",
                    explanation.cause.cause,
                    explanation.cause.advice,
                    describe(&explanation.now)
                );
            }
            text
        }
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// A line for each finding, its fix below it.
fn describe(report: &[Diagnosis]) -> String {
    let mut text = String::new();
    for diagnosis in report {
        let mut line = |word: &str, sentence: &str| {
            // What belongs to the line above says neither level nor check again.
            let check = if word.is_empty() { "" } else { diagnosis.check };
            let _ = writeln!(text, "{word:<5} {check:<16} {sentence}");
        };
        if let Some(unable) = &diagnosis.unable {
            line("-", unable);
        }
        for level in [Level::Fail, Level::Warn, Level::Ok] {
            let all = diagnosis.findings.iter().filter(|finding| finding.level == level);
            let mut last = None;
            for finding in all.clone().take(SHOWN) {
                line(level.word(), &finding.sentence);
                // One fix for a run of findings that share it.
                if let Some(fix) = finding.fix.as_ref().filter(|fix| last != Some(*fix)) {
                    line("", &format!("fix: {fix}"));
                }
                last = finding.fix.as_ref();
            }
            let count = all.count();
            if count > SHOWN {
                line("", &format!("... and {} more; `-o json` has all", count - SHOWN));
            }
        }
    }
    text
}

fn summary(report: &[Diagnosis]) -> String {
    let count = |level| {
        report.iter().flat_map(|d| &d.findings).filter(|finding| finding.level == level).count()
    };
    let unable = report.iter().filter(|diagnosis| diagnosis.unable.is_some()).count();
    let (fail, warn, fine) = (count(Level::Fail), count(Level::Warn), count(Level::Ok));
    format!("\n{fail} failed, {warn} warned, {fine} fine; {unable} checks could not look\n")
}
