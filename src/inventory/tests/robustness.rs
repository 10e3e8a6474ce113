//! Trees that are broken, and trees that change while they are read.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

/// All files, links and folders below `dir`, sorted, folders after what is in them.
fn everything(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().unwrap().is_dir() {
            all.extend(everything(&entry.path()));
        }
        all.push(entry.path());
    }
    all
}

/// What can happen to a file.
#[derive(Debug, Clone)]
enum Harm {
    Remove,
    Write(Vec<u8>),
    /// Another file's text, which is sensible elsewhere.
    Exchange(prop::sample::Index),
    Folder,
    Loop,
    Dangle,
}

fn harm() -> impl Strategy<Value = Harm> {
    let texts = [
        "",
        "\n",
        "-1",
        "0",
        "4294967295",
        "99999999999999999999",
        "0-4294967295",
        "3-1",
        "0x",
        "0xffffffffff",
        ":",
        "231:",
        "231:192:1",
        "4294967296:0",
        ": ACTIVE",
        "9: WHO KNOWS",
        "/",
        "..",
        "../../../../..",
        "a b",
        "é\u{0}",
        "::",
        "fe80::1",
        "0000:0000:0000:0000:0000:0000:0000:0000:0000",
    ];
    prop_oneof![
        Just(Harm::Remove),
        prop::sample::select(texts.to_vec()).prop_map(|text| Harm::Write(text.into())),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Harm::Write),
        any::<prop::sample::Index>().prop_map(Harm::Exchange),
        Just(Harm::Folder),
        Just(Harm::Loop),
        Just(Harm::Dangle),
    ]
}

fn remove(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path).unwrap();
    } else {
        let _ = fs::remove_file(path);
    }
}

fn inflict(harm: &Harm, path: &Path, all: &[PathBuf]) {
    let text = match harm {
        Harm::Exchange(index) => fs::read(index.get(all)).unwrap_or_default(),
        Harm::Write(text) => text.clone(),
        _ => Vec::new(),
    };
    remove(path);
    // The folder may be gone by an earlier harm.
    let _ = match harm {
        Harm::Remove => Ok(()),
        Harm::Write(_) | Harm::Exchange(_) => fs::write(path, text),
        Harm::Folder => fs::create_dir(path),
        Harm::Loop => symlink(path.file_name().unwrap(), path),
        Harm::Dangle => symlink("../nowhere/at/all", path),
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    /// No broken tree makes the reader panic, hang, or talk without end, and what it makes of one
    /// is a snapshot like any other.
    #[test]
    fn no_tree_is_too_broken(
        machine in prop::sample::select(&["roce-sriov", "mana", "erdma-roce", "efa-nvlink"][..]),
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..24),
    ) {
        let (dir, roots) = fixture(machine);
        let all = everything(dir.path());
        for (index, harm) in &harms {
            let path: &PathBuf = index.get(&all);
            inflict(harm, path, &all);
        }
        let node = snapshot(&roots, None);
        let mut names: Vec<&String> = node.hcas.iter().map(|hca| &hca.name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), node.hcas.len(), "an HCA twice");
        prop_assert!(node.remarks.len() < 64);
        let text = serde_json::to_string(&node).unwrap();
        prop_assert_eq!(serde_json::from_str::<Node>(&text).unwrap(), node);
    }

    /// Nor is any fixture text.
    #[test]
    fn no_fixture_text_is_too_broken(text in "([a-z/<>{}$()=:.,@|0-9 \\[\\]-]{0,24}\n){0,6}") {
        let _ = fixture::parse(&text);
    }
}

#[test]
fn devices_that_come_and_go_while_they_are_read_are_right_afterwards() {
    let (_dir, roots) = fixture("roce-sriov");
    let still = snapshot(&roots, None);
    let stop = AtomicBool::new(false);
    let class = roots.sys.join("class");
    let device = fs::canonicalize(class.join("infiniband/mlx5_2")).unwrap();
    let uverbs = fs::canonicalize(class.join("infiniband_verbs/uverbs2")).unwrap();
    let link = fs::read_link(class.join("infiniband/mlx5_2")).unwrap();
    let away = |path: &Path| path.with_file_name("away");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As the kernel does it: clients first, then the device; and back the other way.
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&uverbs, away(&uverbs)).unwrap();
                fs::remove_file(class.join("infiniband/mlx5_2")).unwrap();
                fs::rename(&device, away(&device)).unwrap();
                fs::rename(away(&device), &device).unwrap();
                symlink(&link, class.join("infiniband/mlx5_2")).unwrap();
                fs::rename(away(&uverbs), &uverbs).unwrap();
            }
        });
        for _ in 0..200 {
            let node = snapshot(&roots, None);
            // The others are never touched by it.
            for hca in still.hcas.iter().filter(|hca| hca.name != "mlx5_2") {
                assert_eq!(node.hca(&hca.name), Some(hca));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(snapshot(&roots, None), still);
}

#[test]
fn an_hca_that_is_renamed_while_it_is_read_is_not_taken_for_two() {
    let (_dir, roots) = fixture("soft-roce");
    let link = roots.sys.join("class/infiniband/rxe0");
    let target = fs::read_link(&link).unwrap();
    // The link has its new name, the folder behind it not yet.
    fs::remove_file(&link).unwrap();
    symlink(&target, link.with_file_name("rocep1")).unwrap();
    let node = snapshot(&roots, None);
    let here: Vec<&Hca> = node.hcas.iter().filter(|hca| hca.home == Home::Host).collect();
    assert_eq!(here.len(), 1);
    assert_eq!(here[0].name, "rocep1");
}

#[test]
fn the_machine_that_this_runs_on_is_read() {
    let node = snapshot(&Roots::below(Path::new("/")), None);
    assert!(!node.online.is_empty());
}
