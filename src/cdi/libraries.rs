//! The node's own providers of libibverbs for containers whose image has none for its adapter (a new
//! vendor's, as a rule). Only where policy says so.
//!
//! Nothing of an image is hidden by them: a provider is bound into a folder of ours, and a driver file
//! of ours names it there by its whole path, to which libibverbs appends the suffix of its own
//! private interface. So an image whose libibverbs is of another interface, or whose C library is
//! older or another one (musl), does not load it, says so, and is as it was before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::edit::cdi::{Mount, Spec};
use crate::inventory::Node;
use crate::roots::Roots;

/// Folders of distributions in which providers lie.
const PROVIDERS: [&str; 4] = [
    "usr/lib64/libibverbs",
    "usr/lib/x86_64-linux-gnu/libibverbs",
    "usr/lib/aarch64-linux-gnu/libibverbs",
    "usr/lib/libibverbs",
];
/// Where the node's providers are in a container that was given them. No distribution has such a folder.
pub const INSIDE: &str = "/usr/lib/rdma-ctk";
/// Where libibverbs looks for driver files.
const DRIVERS: &str = "/etc/libibverbs.d";
/// Where ours are on the node, beside the CDI file; engines read other endings only.
const BESIDE: &str = "/run/cdi";
/// How their names begin and end.
const OURS: (&str, &str) = ("rdma-ctk.io-", ".driver");

/// For each driver of the node's adapters what a container is to have of it, and what is missing on
/// the node, a sentence each.
pub(super) fn of(roots: &Roots, node: &Node) -> (BTreeMap<String, Vec<Mount>>, Vec<String>) {
    let drivers: BTreeSet<&str> = node.hcas.iter().map(|hca| hca.driver.0.as_str()).collect();
    let mut found = BTreeMap::new();
    let mut notes = Vec::new();
    for driver in drivers.into_iter().filter(|driver| is_word(driver)) {
        let providers = providers(roots, driver);
        if providers.is_empty() {
            notes.push(format!(
                "the node has no provider for {driver} (lib{driver}-rdmav*.so) to give to \
                 containers: install rdma-core or the vendor's package on it"
            ));
            continue;
        }
        let (front, end) = OURS;
        let mut mounts: Vec<Mount> = providers
            .into_iter()
            .map(|(path, name)| Mount::read_only(path, format!("{INSIDE}/{name}")))
            .collect();
        mounts.push(Mount::read_only(
            format!("{BESIDE}/{front}{driver}{end}"),
            format!("{DRIVERS}/{front}{driver}{end}"),
        ));
        found.insert(driver.to_owned(), mounts);
    }
    (found, notes)
}

/// A driver's name that can be part of a path.
fn is_word(driver: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !driver.is_empty() && driver != "unknown" && driver.chars().all(word)
}

/// Path and name of each provider of that driver, one for each private interface.
fn providers(roots: &Roots, driver: &str) -> Vec<(String, String)> {
    // The trees of a node lie in one folder.
    let root = roots.etc.parent().unwrap_or_else(|| Path::new("/"));
    let prefix = format!("lib{driver}-rdmav");
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for folder in PROVIDERS {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            let number = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".so"));
            let number = number.filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if number.is_some() && root.join(folder).join(&name).is_file() {
                found.entry(name.clone()).or_insert_with(|| format!("/{folder}/{name}"));
            }
        }
    }
    found.into_iter().map(|(name, path)| (path, name)).collect()
}

/// Writes the driver files that a specification names, world-readable.
///
/// # Errors
/// The path of the one that cannot be written, and why.
pub(super) fn write(roots: &Roots, spec: &Spec) -> Result<(), (PathBuf, io::Error)> {
    let (front, end) = OURS;
    let mounts = spec.devices.iter().flat_map(|device| &device.container_edits.mounts);
    let names: BTreeSet<&str> = mounts
        .filter_map(|mount| mount.host_path.strip_prefix(BESIDE)?.strip_prefix('/'))
        .collect();
    for name in names {
        let driver = name.strip_prefix(front).and_then(|rest| rest.strip_suffix(end));
        let Some(driver) = driver.filter(|driver| is_word(driver)) else { continue };
        let path = roots.run.join("cdi").join(name);
        let text = format!("driver {INSIDE}/lib{driver}\n");
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            continue;
        }
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        let new = path.with_extension("driver.new");
        folder
            .and_then(|()| fs::write(&new, &text))
            .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o444)))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| (path.clone(), error))?;
    }
    Ok(())
}
