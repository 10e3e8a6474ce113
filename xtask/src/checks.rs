//! `cargo xtask prepush`: every mechanical check, all of them run, the failed ones named at the end.

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
    Check { name: "fmt-fuzz", cargo: &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"] },
    Check { name: "features-none", cargo: &["check", "--no-default-features", "--lib"] },
    Check { name: "features-nri", cargo: &["check", "--no-default-features", "--features", "nri"] },
    Check { name: "features-cli", cargo: &["check", "--no-default-features", "--features", "cli"] },
    Check {
        name: "features-probe",
        cargo: &["check", "--no-default-features", "--features", "probe"],
    },
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
        name: "generated",
        cargo: &["run", "-q", "-p", "xtask", "--features", "proto", "--", "proto", "--check"],
    },
    Check { name: "unit", cargo: &["test", "--quiet", "--workspace"] },
    Check { name: "unit-none", cargo: &["test", "--quiet", "--no-default-features", "--lib"] },
    Check { name: "deny", cargo: &["deny", "--offline", "check", "licenses", "bans", "sources"] },
];

/// Run all checks: with names only those, with `--without NAME,NAME` all others.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (without, names): (bool, Vec<&str>) = match arguments {
        [option, names] if option == "--without" => (true, names.split(',').collect()),
        names => (false, names.iter().map(String::as_str).collect()),
    };
    for name in &names {
        if !CHECKS.iter().any(|check| check.name == *name) {
            let known: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
            bail!("no check {name}; there are: {}", known.join(" "));
        }
    }
    let mut failed = Vec::new();
    for check in CHECKS {
        if !names.is_empty() && names.contains(&check.name) == without {
            continue;
        }
        println!("== {}", check.name);
        if check.name == "deny" {
            install("cargo-deny")?;
            // It looks at the crates of all platforms, of which builds fetch only their own.
            succeed(&mut cargo(&["fetch", "--locked"]))?;
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

/// `cargo xtask install-tools`: what the checks and packages need and a toolchain lacks.
pub fn install_tools(_: &[String]) -> anyhow::Result<()> {
    ["cargo-deny", "cargo-deb"].into_iter().try_for_each(install)
}

/// A tool of cargo's, built from source where it is missing, which takes minutes.
pub fn install(tool: &str) -> anyhow::Result<()> {
    let found = Command::new(tool).arg("--version").output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    // Not in our target folder, and not with our lock file or configuration.
    let mut install = cargo(&["install", "--locked", tool]);
    succeed(install.current_dir("/").env_remove("CARGO_TARGET_DIR"))
}
