//! `cargo xtask demo`: what the project does, shown on a real kernel, runtime and verbs.

use crate::machine;
use crate::process::succeed;

/// Boot the machine, and show two pods without the annotation and with it.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    machine::set_up()?;
    let programs = machine::build()?;
    succeed(&mut machine::run(&programs, &["--timeout=600"], &["python3", "/mnt/e2e/demo.py"]))
}
