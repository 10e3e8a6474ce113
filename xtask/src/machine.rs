//! The test machine of `integration/`, and the programs that are tested in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::process::{cargo, succeed};

/// The project's folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Install what the machine needs and build its image; instant when that was done before.
pub fn set_up() -> anyhow::Result<()> {
    succeed(&mut Command::new(root().join("integration/setup")))
}

/// Build the programs as users get them; the folder that holds them.
pub fn build() -> anyhow::Result<PathBuf> {
    succeed(&mut cargo(&["build", "--release", "--bins", "--example=conformance"]))?;
    static_probe()?;
    Ok(target()?.join("release"))
}

/// The target folder: xtask itself lies at TARGET/debug/xtask, wherever that is.
pub fn target() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell the path of xtask")?;
    let target = this.ancestors().nth(2).context("xtask is not in a target folder")?;
    Ok(target.to_owned())
}

/// Link the probe statically, as it is shipped: it has to start in images without this C library.
pub fn static_probe() -> anyhow::Result<()> {
    let probe = ["rustc", "--release", "--bin=rdma-ctk-probe", "--"];
    succeed(cargo(&probe).arg("-Ctarget-feature=+crt-static"))
}

/// The program of the unit tests, built as `cargo test` builds it: its folder and its name there.
pub fn unit_tests() -> anyhow::Result<(PathBuf, String)> {
    let arguments = ["test", "--workspace", "--lib", "--no-run", "--message-format=json"];
    let output = cargo(&arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the unit tests cannot be built");
    }
    let messages = String::from_utf8(output.stdout)?;
    let program = messages.lines().find_map(executable).context("cargo names no unit tests")?;
    let name = program.file_name().context("no file name")?.to_string_lossy().into_owned();
    Ok((program.parent().context("no folder")?.to_owned(), name))
}

/// The path in cargo's message about the unit tests of the package itself.
fn executable(message: &str) -> Option<PathBuf> {
    let ours = message.contains(r#""name":"rdma_ctk""#) && message.contains(r#""test":true}"#);
    let (_, rest) = message.split_once(r#""executable":""#).filter(|_| ours)?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}

/// The folder of a program that Debian does not have, built with Go unless that was done before.
pub fn go_tool(tool: &str, version: &str) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(root().join("integration/go-tools"));
    let output = command.args([tool, version]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{tool} {version} cannot be built");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// `integration/vm run` with the test scripts at `/mnt/e2e`, the programs at `/mnt/bin`, and the hook
/// files at `/mnt/hooks`, and the units at `/mnt/systemd`.
pub fn run(programs: &Path, options: &[&str], command: &[&str]) -> Command {
    let mut vm = Command::new(root().join("integration/vm"));
    vm.arg("run")
        .arg(format!("--share=e2e={}", root().join("integration/e2e").display()))
        .arg(format!("--share=bin={}", programs.display()))
        .arg(format!("--share=hooks={}", root().join("hooks.d").display()))
        .arg(format!("--share=systemd={}", root().join("packaging/systemd").display()))
        .args(options)
        .arg("--")
        .args(command);
    vm
}

/// Puts down what systemd's groups of system calls have in them, and the numbers of these, for a machine
/// that has no systemd to ask. Where this one has none either, programs run there without a filter.
pub fn tell_system_calls(programs: &Path) {
    match Command::new("systemd-analyze").args(["--no-pager", "syscall-filter"]).output() {
        Ok(groups) if groups.status.success() => {
            let told = std::fs::write(programs.join("syscall-groups"), groups.stdout);
            let headers = Path::new("/usr/include/x86_64-linux-gnu/asm/unistd_64.h");
            let numbers = std::fs::copy(headers, programs.join("unistd_64.h"));
            for problem in [told.err(), numbers.err()].into_iter().flatten() {
                eprintln!("no filter of system calls: {}: {problem}", programs.display());
            }
        }
        _ => eprintln!("no filter of system calls: there is no systemd-analyze"),
    }
}

/// Build the programs that the batch `smc` runs in containers. Without their compilers it skips what
/// needs them, and says so.
pub fn build_programs_of_smc(programs: &Path) {
    let sources = root().join("integration/e2e/smc_programs");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(programs.join("smc-go")).arg(sources.join("connect.go"));
    go.env("CGO_ENABLED", "0").env("GO111MODULE", "off");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(programs.join("libsmc-preload.so"));
    cc.arg(sources.join("preload.c"));
    for mut compiler in [go, cc] {
        match compiler.status() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("{compiler:?}: {status}"),
            Err(error) => eprintln!("{compiler:?}: {error}"),
        }
    }
}
