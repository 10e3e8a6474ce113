//! `cargo xtask test`: the unit tests, then the end-to-end batches, then one closing line.

use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::e2e;
use crate::process::cargo;

const HELP: &str = "\
usage: cargo xtask test [--unit | --e2e] [--batch NAME]... [--case PART] [--jobs N] [--long] [--all]

  --unit         only the unit tests
  --e2e          only the end-to-end tests
  --batch NAME   only this batch of them; may be repeated
  --case PART    only the cases with PART in their name
  --jobs N       how many machines at once (default: 1, with 4 CPUs or more 2)
  --long         the long batches too
  --all          fail, rather than skip, where this host lacks what a batch needs (a Go toolchain)";

/// How many tests ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Did what they should.
    pub passed: usize,
    /// Did not, or gave no result.
    pub failed: usize,
    /// Could not be run here.
    pub skipped: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// What the command line asks for.
#[derive(Debug, Default)]
pub struct Options {
    /// Only the unit tests.
    unit_only: bool,
    /// Only the end-to-end tests.
    e2e_only: bool,
    /// Names of batches; empty is all of them.
    pub batches: Vec<String>,
    /// Part of the names of the cases.
    pub case: String,
    /// Machines at once.
    pub jobs: usize,
    /// The long batches too.
    pub long: bool,
    /// A batch that cannot run here is a failure.
    pub all: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut options = Self { jobs: if cpus >= 4 { 2 } else { 1 }, ..Self::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--unit" => options.unit_only = true,
                "--e2e" => options.e2e_only = true,
                "--long" => options.long = true,
                "--all" => options.all = true,
                "--batch" => options.batches.push(value()?.clone()),
                "--case" => value()?.clone_into(&mut options.case),
                "--jobs" => options.jobs = value()?.parse().context("--jobs wants a number")?,
                "--help" => {
                    println!("{HELP}\n\nBatches:");
                    e2e::print_batches();
                    std::process::exit(0);
                }
                other => bail!("unknown option {other}\n{HELP}"),
            }
        }
        options.e2e_only |= !options.batches.is_empty() || !options.case.is_empty();
        Ok(options)
    }
}

/// Run what is asked, print the minutes of each tier, and end with the tally alone on a line.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let options = Options::parse(arguments)?;
    let mut total = Tally::default();
    let mut tiers = Vec::new();
    if !options.e2e_only {
        let started = Instant::now();
        total += unit_tests()?;
        tiers.push(("unit tests".to_owned(), started.elapsed()));
    }
    if !options.unit_only {
        total += e2e::run(&options, &mut tiers)?;
    }
    println!();
    for (tier, time) in &tiers {
        println!("{:6.1} min  {tier}", time.as_secs_f64() / 60.0);
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if total.failed > 0 {
        bail!("{} failed", total.failed);
    }
    Ok(())
}

/// `cargo test` over the whole workspace.
fn unit_tests() -> anyhow::Result<Tally> {
    let mut child = cargo(&["test", "--workspace", "--no-fail-fast"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line.context("cannot read the output of cargo test")?;
        tally += summary(&line).unwrap_or_default();
        println!("{line}");
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    if !status.success() && tally.failed == 0 {
        bail!("cargo test failed before it ran a test: {status}");
    }
    Ok(tally)
}

/// The numbers of a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; ...`.
fn summary(line: &str) -> Option<Tally> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in numbers.split("; ") {
        let Some((count, word)) = part.split_once(' ') else { continue };
        let Ok(count) = count.parse::<usize>() else { continue };
        match word {
            "passed" => tally.passed += count,
            "failed" => tally.failed += count,
            "ignored" => tally.skipped += count,
            _ => (),
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 9 filtered \
                    out; finished in 0.01s";
        assert_eq!(summary(line), Some(Tally { passed: 12, failed: 3, skipped: 1 }));
        assert_eq!(summary("test c19_nodes ... ok"), None);
    }
}
