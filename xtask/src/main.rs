//! Tasks of the project that are more than one command: `cargo xtask TASK`.
//!
//! A dispatcher: one module a task, one row each in [`TASKS`]. Tools that are slow to build stay
//! behind a feature that the task switches on by running xtask again (see `proto`).

mod checks;
mod demo;
mod e2e;
mod fuzz;
mod machine;
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
        about: "build what prepush needs beyond a toolchain (cargo-deny), where it is missing",
        run: checks::install_tools,
    },
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
