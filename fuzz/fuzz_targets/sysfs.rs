//! A machine's `sys`, `proc` and `dev`, a file a line: `PATH = TEXT`, `PATH -> PATH`, `PATH/`.
//!
//! Besides not panicking: reading twice gives the same, and what is found is found by its name.
#![no_main]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

use libfuzzer_sys::{Corpus, fuzz_target};
use rdma_ctk::inventory::{gids, snapshot};
use rdma_ctk::roots::Roots;

/// More would be slow, and show nothing that few do not.
const MOST_LINES: usize = 100;

/// Whether a path stays below the folder in which it is made.
fn inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    let first = parts.next();
    let below = |part: Component<'_>| matches!(part, Component::Normal(_));
    matches!(first, Some(Component::Normal(name)) if name == "sys" || name == "proc" || name == "dev")
        && parts.all(below)
        && path.len() < 200
        && !path.contains('\0')
}

/// Makes one file; what cannot be made is left out.
fn make(root: &Path, line: &str) -> Option<()> {
    if let Some((path, target)) = line.split_once(" -> ") {
        let (path, target) = (path.trim(), target.trim());
        if inside(path) && inside(target) {
            fs::create_dir_all(root.join(path).parent()?).ok()?;
            symlink(root.join(target), root.join(path)).ok()?;
        }
    } else if let Some((path, text)) = line.split_once(" =") {
        let path = path.trim();
        if inside(path) {
            fs::create_dir_all(root.join(path).parent()?).ok()?;
            let text = text.strip_prefix(' ').unwrap_or(text).replace("\\n", "\n");
            fs::write(root.join(path), text + "\n").ok()?;
        }
    } else if inside(line.trim_end_matches('/')) {
        fs::create_dir_all(root.join(line)).ok()?;
    }
    Some(())
}

fuzz_target!(|text: &str| -> Corpus {
    if text.lines().count() > MOST_LINES {
        return Corpus::Reject;
    }
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let Ok(folder) = folder else { return Corpus::Reject };
    for line in text.lines() {
        make(folder.path(), line);
    }
    let roots = Roots::below(folder.path());
    let node = snapshot(&roots, None);
    assert_eq!(snapshot(&roots, None), node);
    for hca in &node.hcas {
        assert!(node.hca(&hca.name).is_some());
        let _ = gids(&roots, &hca.name);
    }
    Corpus::Keep
});
