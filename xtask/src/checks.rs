//! `cargo xtask prepush`: every mechanical check, all of them run, the failed ones named at the end.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::process::{cargo, succeed};

/// A check: its name and the arguments of cargo.
struct Check {
    name: &'static str,
    cargo: &'static [&'static str],
}

const CHECKS: &[Check] = &[
    Check { name: "fmt", cargo: &["fmt", "--all", "--check"] },
    Check { name: "no features", cargo: &["check", "--no-default-features", "--lib"] },
    Check { name: "only nri", cargo: &["check", "--no-default-features", "--features", "nri"] },
    Check { name: "only cli", cargo: &["check", "--no-default-features", "--features", "cli"] },
    Check {
        name: "clippy",
        cargo: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
    },
    Check {
        name: "generated code",
        cargo: &["run", "-q", "-p", "xtask", "--features", "proto", "--", "proto", "--check"],
    },
    Check { name: "unit tests", cargo: &["test", "--quiet", "--workspace"] },
    Check {
        name: "unit tests without features",
        cargo: &["test", "--quiet", "--no-default-features", "--lib"],
    },
    Check {
        name: "licences, bans, sources",
        cargo: &["deny", "--offline", "check", "licenses", "bans", "sources"],
    },
];

/// Run all checks, or with names only those.
pub fn run(names: &[String]) -> anyhow::Result<()> {
    for name in names {
        if !CHECKS.iter().any(|check| check.name == name) {
            let known: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
            bail!("no check {name:?}; there are {known:?}");
        }
    }
    let mut failed = Vec::new();
    for check in CHECKS {
        if !names.is_empty() && !names.iter().any(|name| name == check.name) {
            continue;
        }
        println!("== {}", check.name);
        if check.cargo[0] == "deny" {
            install_deny()?;
        }
        if let Err(error) = succeed(&mut cargo(check.cargo)) {
            eprintln!("{error:#}");
            failed.push(check.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("all checks passed");
    Ok(())
}

/// cargo-deny is not part of a toolchain: build it from source where it is missing.
fn install_deny() -> anyhow::Result<()> {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|at| at.join("cargo-deny").exists()))
        || std::env::var_os("CARGO_HOME")
            .is_some_and(|home| Path::new(&home).join("bin/cargo-deny").exists());
    if found {
        return Ok(());
    }
    // Built outside our own target folder and without our configuration.
    succeed(
        Command::new("cargo")
            .args(["install", "--locked", "cargo-deny"])
            .current_dir("/")
            .env_remove("CARGO_TARGET_DIR"),
    )
}
