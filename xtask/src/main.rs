//! Tasks of the project that are more than one command: `cargo xtask TASK`.
//!
//! A dispatcher: one module a task, one row each in [`TASKS`]. Tools that are slow to build stay
//! behind a feature that the task switches on by running xtask again (see `proto`).

mod cdi;
mod checks;
mod demo;
mod dist;
mod e2e;
mod fuzz;
mod machine;
#[cfg(feature = "pages")]
mod pages;
mod process;
#[cfg(feature = "proto")]
mod proto;
mod test;

use std::process::ExitCode;

/// A task: its name, what the help says of it, and its function, which gets the arguments that
/// follow the name.
struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> anyhow::Result<()>,
}

const TASKS: &[Task] = &[
    Task {
        name: "demo",
        about: "boot the test machine and show a pod without and with the annotation",
        run: demo::run,
    },
    Task {
        name: "test",
        about: "unit tests, then the end-to-end tests in the test machine (--help)",
        run: test::run,
    },
    Task {
        name: "prepush",
        about: "every mechanical check: fmt, features, clippy, unit tests, licences",
        run: checks::run,
    },
    Task {
        name: "fuzz",
        about: "each fuzz target for a while from its kept corpus: fuzz [SECONDS] [TARGET...]",
        run: fuzz::run,
    },
    Task {
        name: "install-tools",
        about: "build what a toolchain lacks (cargo-deny, cargo-deb), where it is missing",
        run: checks::install_tools,
    },
    Task {
        name: "cdi",
        about: "read the CDI file of every fixture with the library that engines use (needs Go)",
        run: cdi::run,
    },
    Task {
        name: "dist",
        about: "make dist/: programs, manual pages, completions, with --deb the Debian package",
        run: dist::run,
    },
    Task { name: "pages", about: "manual pages and completions: pages FOLDER", run: pages },
    Task {
        name: "proto",
        about: "make src/nri/proto.rs from nri/nri.proto; with --check only compare",
        run: proto,
    },
];

#[cfg(feature = "proto")]
fn proto(arguments: &[String]) -> anyhow::Result<()> {
    proto::run(arguments.iter().any(|argument| argument == "--check")).map_err(anyhow::Error::msg)
}

/// Run xtask again, with the feature.
#[cfg(not(feature = "proto"))]
fn proto(arguments: &[String]) -> anyhow::Result<()> {
    let again = ["run", "--quiet", "--package", "xtask", "--features", "proto", "--", "proto"];
    process::succeed(process::cargo(&again).args(arguments))
}

#[cfg(feature = "pages")]
fn pages(arguments: &[String]) -> anyhow::Result<()> {
    pages::run(arguments)
}

/// Run xtask again, with the feature.
#[cfg(not(feature = "pages"))]
fn pages(arguments: &[String]) -> anyhow::Result<()> {
    let again = ["run", "--quiet", "--package", "xtask", "--features", "pages", "--", "pages"];
    process::succeed(process::cargo(&again).args(arguments))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let Some(task) = TASKS.iter().find(|task| task.name == wanted) else {
        eprintln!("usage: cargo xtask TASK [OPTION...]\n");
        for task in TASKS {
            eprintln!("  {:<13} {}", task.name, task.about);
        }
        eprintln!("\nEach task is a module of xtask/src, with a row in main.rs.");
        return ExitCode::from(2);
    };
    match (task.run)(&rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {wanted}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
