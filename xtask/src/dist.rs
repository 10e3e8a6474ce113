//! `cargo xtask dist`: what is handed to users, in `dist/`: the programs, those of the OCI path and the
//! probe static, manual pages, completions, and with `--deb` the Debian package of it all.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::checks::install;
use crate::machine::{root, static_probe, target};
use crate::process::{cargo, succeed};

/// The wrapper, which is the hook under another name.
const WRAPPER: &str = "rdma-ctk-runtime";
const HOOK: &str = "rdma-ctk-hook";
/// The probe, which has to start in images of every kind.
const PROBE: &str = "rdma-ctk-probe";

/// Build it all.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let deb = match arguments {
        [] => false,
        [option] if option == "--deb" => true,
        _ => bail!("usage: cargo xtask dist [--deb]"),
    };
    let dist = root().join("dist");
    match fs::remove_dir_all(&dist) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let programs = dist.join("bin");
    fs::create_dir_all(&programs).context("cannot make dist")?;
    succeed(&mut cargo(&["build", "--release", "--bin", "rdma-ctk"]))?;
    copy(&target()?.join("release/rdma-ctk"), &programs.join("rdma-ctk"))?;
    static_probe()?;
    copy(&target()?.join("release").join(PROBE), &programs.join(PROBE))?;
    copy(&wrapper()?, &programs.join(WRAPPER))?;
    symlink(WRAPPER, programs.join(HOOK)).context("cannot link the hook")?;
    pages(&dist)?;
    if deb {
        install("cargo-deb")?;
        let folder = dist.display().to_string();
        succeed(&mut cargo(&["deb", "--no-build", "--no-strip", "--output", &folder]))?;
    }
    println!("made {}", dist.display());
    Ok(())
}

/// The wrapper, static: it runs on any distribution, and in any mount namespace.
fn wrapper() -> anyhow::Result<PathBuf> {
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let listed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    let installed = |output: std::process::Output| {
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line == musl)
    };
    // Without rustup the toolchain has the target, or the build says that it has not.
    if listed.is_ok_and(|output| !installed(output)) {
        succeed(Command::new("rustup").args(["target", "add", &musl]))?;
    }
    let arguments =
        ["rustc", "--release", "--no-default-features", "--bin", WRAPPER, "--target", &musl];
    // At a fixed address: to relocate itself would be a tenth of what it does for a container that asks
    // for nothing.
    let fixed = ["--", "-Crelocation-model=static"];
    succeed(cargo(&arguments).args(fixed))?;
    let program = target()?.join(&musl).join("release").join(WRAPPER);
    let kind = Command::new("ldd").arg(&program).output().context("cannot run ldd")?;
    let said = [kind.stdout, kind.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !(said.contains("statically linked") || said.contains("not a dynamic executable")) {
        bail!("{} is not static: {}", program.display(), said.trim());
    }
    Ok(program)
}

/// Manual pages and completions, by xtask itself with the feature that knows the command line.
fn pages(dist: &Path) -> anyhow::Result<()> {
    let again = ["run", "--quiet", "--package", "xtask", "--features", "pages", "--", "pages"];
    succeed(cargo(&again).arg(dist))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}
