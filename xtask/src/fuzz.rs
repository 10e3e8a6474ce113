//! `cargo xtask fuzz`: each fuzz target for a short while, from the corpus that is kept in
//! `fuzz/corpus`.
//!
//! Needs no cargo-fuzz and no nightly compiler: the targets are programs with libFuzzer in them,
//! and what a stable compiler lacks is only the address sanitizer, which code without `unsafe` does
//! not miss. New inputs go to the build folder; what is worth keeping is copied by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::machine::root;
use crate::process::{cargo, shown, succeed};

/// Seconds for each target, unless the command line says otherwise.
const SECONDS: u32 = 10;

/// What makes the compiler count which branches an input takes, as cargo-fuzz has it.
const COVERAGE: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// Fuzz: `[SECONDS] [TARGET...]`, or only `--build`.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    if arguments == ["--build"] {
        return build(&root().join("fuzz")).map(drop);
    }
    let (seconds, names) = match arguments.split_first() {
        Some((first, rest)) if first.bytes().all(|b| b.is_ascii_digit()) => {
            (first.parse().context("seconds")?, rest)
        }
        _ => (SECONDS, arguments),
    };
    let fuzz = root().join("fuzz");
    let mut targets = targets(&fuzz)?;
    for name in names {
        if !targets.contains(name) {
            bail!("no target {name}; there are: {}", targets.join(" "));
        }
    }
    targets.retain(|target| names.is_empty() || names.contains(target));
    let built = build(&fuzz)?;
    let mut failed = Vec::new();
    for target in &targets {
        if let Err(error) = fuzz_one(&fuzz, &built, target, seconds) {
            eprintln!("{error:#}");
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("{}; the inputs are in fuzz/artifacts", failed.join(" "));
    }
    Ok(())
}

/// Names of the targets, in order.
fn targets(fuzz: &Path) -> anyhow::Result<Vec<String>> {
    let folder = fuzz.join("fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut targets: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    targets.sort();
    Ok(targets)
}

/// Builds every target; the folder with the programs.
fn build(fuzz: &Path) -> anyhow::Result<PathBuf> {
    let folder = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => root().join("target"),
    }
    .join("fuzz");
    // Not --locked: the lock file follows the project's dependencies by itself.
    // With a target named, build scripts and macros are built without the flags.
    let triple = host()?;
    let mut build = cargo(&["build", "--release", "--bins", "--target", &triple]);
    build.arg("--manifest-path").arg(fuzz.join("Cargo.toml"));
    build.arg("--target-dir").arg(&folder);
    build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}")).env_remove("RUSTFLAGS");
    succeed(&mut build)?;
    Ok(folder.join(triple).join("release"))
}

/// The triple of this machine.
fn host() -> anyhow::Result<String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = rustc.arg("-vV").output().with_context(|| shown(&rustc))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV names no host")?.to_owned())
}

fn fuzz_one(fuzz: &Path, built: &Path, target: &str, seconds: u32) -> anyhow::Result<()> {
    // The first folder takes new inputs, the others are only read.
    let found = built.join("corpus").join(target);
    let artifacts = fuzz.join("artifacts").join(target);
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut program = Command::new(built.join(target));
    program
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-max_len=8192", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"])
        .arg(&found)
        .arg(fuzz.join("corpus").join(target));
    let began = Instant::now();
    let output = program.output().with_context(|| shown(&program))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{log}\n{} failed: {}", shown(&program), output.status);
    }
    let runs = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .with_context(|| format!("{} says nothing of its runs", shown(&program)))?;
    println!("{target:<12} {} runs in {} s", runs.trim(), began.elapsed().as_secs());
    Ok(())
}
