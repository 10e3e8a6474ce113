//! The units of packaging/systemd as systemd reads them, each drop-in alone and all of them.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exposure in tenths by `systemd-analyze security`, above which a unit gives away too much.
const MOST_EXPOSED: &str = "40";

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd")
}

fn conf_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "conf")).collect();
    found.sort();
    found
}

/// A system with our units, these drop-ins, and nothing else than the units need.
fn system(drop_ins: &[PathBuf]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let units = folder.path().join("usr/lib/systemd/system");
    let more = folder.path().join("etc/systemd/system/rdma-ctk.service.d");
    for path in [&units, &more, &folder.path().join("usr/bin"), &folder.path().join("bin")] {
        fs::create_dir_all(path).unwrap();
    }
    for target in ["sysinit", "basic", "shutdown", "multi-user"] {
        fs::write(units.join(format!("{target}.target")), "[Unit]\nDescription=x\n").unwrap();
    }
    for program in ["usr/bin/rdma-ctk", "bin/kill"] {
        let path = folder.path().join(program);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    for unit in ["rdma-ctk.service", "rdma-ctk-cdi.service"] {
        fs::copy(packaging().join(unit), units.join(unit)).unwrap();
    }
    for file in drop_ins {
        fs::copy(file, more.join(file.file_name().unwrap())).unwrap();
    }
    folder
}

/// `None`: this machine has no systemd to ask.
fn analyze(system: &Path, words: &[&str]) -> Option<Output> {
    let root = format!("--root={}", system.display());
    let (verb, rest) = words.split_first().unwrap();
    match Command::new("systemd-analyze").arg(verb).arg(root).args(rest).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: systemd-analyze: {error}");
            None
        }
    }
}

#[test]
fn units_and_drop_ins_are_what_systemd_takes() {
    let all = conf_files(&packaging().join("rdma-ctk.service.d"));
    assert!(!all.is_empty());
    let mut sets: Vec<Vec<PathBuf>> = all.iter().map(|file| vec![file.clone()]).collect();
    sets.extend([Vec::new(), all]);
    for drop_ins in sets {
        let system = system(&drop_ins);
        let verify = ["verify", "--man=no", "rdma-ctk.service", "rdma-ctk-cdi.service"];
        let Some(output) = analyze(system.path(), &verify) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        // What it does not know it only warns of.
        assert!(output.status.success() && said.is_empty(), "{drop_ins:?}: {said}");
        let threshold = format!("--threshold={MOST_EXPOSED}");
        let exposed = ["security", "--offline=true", "--no-pager", &threshold, "rdma-ctk.service"];
        let Some(output) = analyze(system.path(), &exposed) else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        let level = said.lines().find(|line| line.contains("exposure level")).unwrap_or(&said);
        assert!(output.status.success(), "{drop_ins:?}: {level}");
        println!("{drop_ins:?}: {level}");
    }
}
