//! Who may use whom, and how long a file may be: the rules of docs/architecture.md, kept by
//! reading the sources.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules, and the modules that each may name. A module is free to use itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("roots", &[]),
    ("netlink", &[]),
    ("inventory", &["netlink", "roots"]),
    ("request", &["inventory", "policy"]),
    ("policy", &["inventory", "request", "roots"]),
    ("grant", &["inventory", "request", "policy"]),
    // What was decided, on disk; and a look into a container's root.
    ("records", &["grant", "request", "roots"]),
    ("rootfs", &[]),
    // An adjustment is made of the protocol's messages.
    ("edit", &["grant", "request", "inventory", "policy", "nri"]),
    ("nri", &["grant", "request", "inventory", "policy", "netlink", "roots"]),
    ("cdi", &["edit", "inventory", "policy", "roots"]),
    (
        "daemon",
        &[
            "cdi",
            "edit",
            "grant",
            "inventory",
            "netlink",
            "netns",
            "nri",
            "policy",
            "records",
            "request",
            "rootfs",
            "roots",
            "smc",
        ],
    ),
    ("netns", &["inventory", "netlink", "roots", "grant", "policy"]),
    (
        "oci",
        &[
            "edit",
            "grant",
            "inventory",
            "netns",
            "policy",
            "records",
            "request",
            "rootfs",
            "roots",
            "smc",
        ],
    ),
    ("smc", &["grant", "inventory", "netlink", "policy", "request", "rootfs", "roots"]),
    ("configure", &["roots"]),
    // Runs inside a container, and is no part of the node's program.
    ("probe", &["inventory", "roots"]),
    // The check-up asks everybody, and nobody asks it but the command.
    (
        "doctor",
        &[
            "cdi",
            "configure",
            "daemon",
            "grant",
            "inventory",
            "nri",
            "policy",
            "request",
            "rootfs",
            "roots",
            "smc",
        ],
    ),
    (
        "cli",
        &[
            "cdi",
            "configure",
            "daemon",
            "doctor",
            "edit",
            "grant",
            "inventory",
            "netlink",
            "nri",
            "oci",
            "policy",
            "request",
            "roots",
            "smc",
        ],
    ),
];

/// Longest file, and longest file of tests; generated ones are not counted.
const LONGEST: usize = 600;
const LONGEST_TESTS: usize = 800;
const GENERATED: [&str; 1] = ["src/nri/proto.rs"];

/// Words that mean unfinished work.
const UNFINISHED: [&str; 5] = ["todo!", "unimplemented!", "dbg!", "TODO", "FIXME"];

/// Sources below `folder`, with their paths from the package's folder.
fn sources(folder: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&package.join(folder), &mut found);
    found.sort();
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(package).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// The module that a file of `src` belongs to; `None` for the crate's root and its programs.
fn module(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("src/")?;
    let name = rest.split('/').next()?;
    let name = name.strip_suffix(".rs").unwrap_or(name);
    (!matches!(name, "lib" | "main" | "bin")).then_some(name)
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

/// The part of a source that is no test and no comment.
fn code(source: &str) -> String {
    // Tests in the file itself are at its end; `mod tests;` names another file, wherever it stands.
    let end = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let lines = source[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// First names after `crate::`, in groups too.
fn named(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        // `$crate` and `some_crate::` are others.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut start) = (1, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if (c == ',' && depth == 1) || depth == 0 {
                found.insert(word(&group[start..at]));
                start = at + 1;
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.remove("");
    found
}

#[test]
fn names_are_found_in_groups_too() {
    let code = "use crate::{a::{x, y}, b, c::d};\nlet e = crate::f::g(); other_crate::h; $crate::i";
    assert_eq!(named(code), ["a", "b", "c", "f"].map(str::to_owned).into());
}

#[test]
fn a_module_uses_only_those_that_it_may() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, source) in sources("src") {
        let Some(module) = module(&path) else { continue };
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{path}: module {module} is in no row of MAY_USE"));
            continue;
        };
        seen.insert(module.to_owned());
        if is_test(&path) {
            continue;
        }
        let modules: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
        for used in named(&code(&source)) {
            let known = modules.contains(used.as_str());
            if known && used != module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{path}: {module} may not use {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rows: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(seen, rows, "rows of MAY_USE without a module");
}

#[test]
fn files_are_short_and_finished() {
    let mut wrong = Vec::new();
    for folder in ["src", "xtask/src", "tests"] {
        for (path, source) in sources(folder) {
            let lines = source.lines().count();
            let tests = folder == "tests" || is_test(&path);
            let longest = if tests { LONGEST_TESTS } else { LONGEST };
            if lines > longest && !GENERATED.contains(&path.as_str()) {
                wrong.push(format!("{path}: {lines} lines, split it"));
            }
            if path == "tests/architecture.rs" {
                continue;
            }
            for word in UNFINISHED.iter().filter(|word| source.contains(**word)) {
                wrong.push(format!("{path}: contains {word}"));
            }
        }
    }
    let main = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs"));
    assert!(main.unwrap().lines().count() < 60, "src/main.rs is to parse and dispatch only");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
