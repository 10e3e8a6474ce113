//! `cargo xtask cdi`: the CDI file of every fixture, read by the library that engines use
//! (`integration/cdi`, a Go program), which also says the least version that has what is in it.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail};

use crate::machine::root;
use crate::process::{cargo, succeed};

/// Generate and read them all.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    let work = std::env::temp_dir().join(format!("xtask-cdi-{}", std::process::id()));
    let done = read_all(&work);
    // A folder left in /tmp is no reason to fail.
    let _ = fs::remove_dir_all(&work);
    done
}

fn read_all(work: &std::path::Path) -> anyhow::Result<()> {
    succeed(&mut cargo(&["build", "--quiet", "--bin", "rdma-ctk"]))?;
    let program = crate::machine::target()?.join("debug/rdma-ctk");
    let mut folders = Vec::new();
    for entry in fs::read_dir(root().join("integration/fixtures"))? {
        let fixture = entry?.path();
        if fixture.extension().is_none_or(|end| end != "tree") {
            continue;
        }
        let output = Command::new(&program)
            .args(["cdi", "generate", "--root"])
            .arg(&fixture)
            .output()
            .context("cannot run rdma-ctk")?;
        if !output.status.success() {
            // One of them has no adapter, and one alone may.
            println!("{}: {}", fixture.display(), String::from_utf8_lossy(&output.stderr).trim());
            continue;
        }
        let folder = work.join(fixture.file_stem().unwrap_or_default());
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("rdma-ctk.io-hca.json"), output.stdout)?;
        folders.push(folder);
    }
    if folders.len() < 10 {
        bail!("only {} fixtures have a CDI file", folders.len());
    }
    let mut read = Command::new("go");
    read.args(["run", "."]).args(&folders).current_dir(root().join("integration/cdi"));
    let output = read.env("CGO_ENABLED", "0").output().context("cannot run go")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    println!("{} files, {} devices", folders.len(), said.lines().count());
    Ok(())
}
