//! The node's CDI file: written from what the node has, kept up to date, and judged beside the
//! files of others.
//!
//! Engines read every `*.json` and `*.yaml` of `/etc/cdi` and `/var/run/cdi`, the second before the
//! first. A device that two files of one folder define is dropped from both.

mod folder;
mod judge;
mod libraries;
mod watch;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::edit::cdi::{self, CdiError, FILE, Made, Spec};
use crate::inventory::Node;
use crate::policy::Policy;
use crate::roots::Roots;

pub use folder::{Other, Others, others};
pub use judge::{Flaw, judge};
pub use libraries::INSIDE as PROVIDERS;
pub use watch::watch;

/// Why the file was not written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It would have a hole.
    #[error("{}: not written: {source}", path.display())]
    Hole {
        /// The file.
        path: PathBuf,
        /// What is missing.
        source: CdiError,
    },
    /// The hook that it is to name is not there, and every container would fail at its start.
    #[error(
        "{}: not written: there is no hook {hook}; install it, or set hook = \"\" in [cdi] of the \
         policy, which leaves the locked-memory limit as it is",
        path.display()
    )]
    NoHook {
        /// The file.
        path: PathBuf,
        /// The program.
        hook: String,
    },
    /// Another file of the folder has a device of the same name, and both would be dropped.
    #[error(
        "{}: not written: {} defines {device} too, and engines drop a device that two files of a \
         folder define; remove that file",
        path.display(),
        other.display()
    )]
    Duplicate {
        /// Our file.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
        /// The device, by its qualified name.
        device: String,
    },
    /// It cannot be written as JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The file.
    pub path: PathBuf,
    /// What became of it.
    pub done: Done,
    /// What is not in it, and what others have, a sentence each.
    pub notes: Vec<String>,
}

/// What became of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It was as it should be.
    Same,
    /// Written, with so many devices.
    Written(usize),
    /// Taken away: no adapter can be given.
    Removed,
    /// There was none, and there is no adapter that can be given.
    Nothing,
}

/// Where the file is.
pub fn path(roots: &Roots) -> PathBuf {
    roots.run.join("cdi").join(FILE)
}

/// The specification of the node as policy has it.
///
/// # Errors
/// It would have a hole, or its hook is not there.
pub fn made(roots: &Roots, node: &Node, policy: &Policy) -> Result<Made, KeepError> {
    let path = path(roots);
    let hook = policy.cdi.hook.as_deref();
    let (libraries, missing) =
        if policy.cdi.libraries { libraries::of(roots, node) } else { Default::default() };
    // Elsewhere the program is not where the path says.
    if let Some(hook) = hook.filter(|hook| roots.is_live() && !Path::new(hook).is_file()) {
        return Err(KeepError::NoHook { path, hook: hook.to_owned() });
    }
    let mut made = cdi::spec(node, policy, hook, &libraries)
        .map_err(|source| KeepError::Hole { path, source })?;
    made.notes.extend(missing);
    Ok(made)
}

/// Puts down the files that a specification binds into containers and that are ours.
///
/// # Errors
/// One cannot be written.
pub fn accompany(roots: &Roots, spec: &Spec) -> Result<(), KeepError> {
    libraries::write(roots, spec).map_err(|(path, source)| KeepError::Io { path, source })
}

/// Brings the file up to date: written where it differs, taken away where there is no adapter.
///
/// # Errors
/// The specification would have a hole or be dropped by engines, or a file fails. The old file
/// stays then: its devices name nodes by their paths, so that one that is gone is an error at the
/// container's start.
pub fn keep(roots: &Roots, node: &Node, policy: &Policy) -> Result<Kept, KeepError> {
    let path = path(roots);
    let Made { spec, mut notes } = made(roots, node, policy)?;
    let failed = |source| KeepError::Io { path: path.clone(), source };
    let Some(spec) = spec else {
        let done = match fs::remove_file(&path) {
            Ok(()) => Done::Removed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Done::Nothing,
            Err(source) => return Err(failed(source)),
        };
        return Ok(Kept { path, done, notes });
    };
    for flaw in judge::beside(&spec, &path, &others(roots, &path)) {
        match flaw {
            Flaw::Duplicate { device, other, dropped: true } => {
                return Err(KeepError::Duplicate { path, other, device });
            }
            flaw => notes.push(flaw.to_string()),
        }
    }
    accompany(roots, &spec)?;
    let done = if write(&path, &spec)? { Done::Written(spec.devices.len()) } else { Done::Same };
    Ok(Kept { path, done, notes })
}

/// Writes a specification to a file that appears whole or not at all; false: it was there.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, spec: &Spec) -> Result<bool, KeepError> {
    let json =
        spec.to_json().map_err(|source| KeepError::Json { path: path.to_owned(), source })?;
    let failed = |source| KeepError::Io { path: path.to_owned(), source };
    if fs::read(path).is_ok_and(|old| old == json.as_bytes()) {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // Engines read names that end in .json or .yaml, and no others.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&new)
        .and_then(|mut file| {
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(json.as_bytes())
        })
        .and_then(|()| fs::rename(&new, path));
    written.map(|()| true).map_err(failed)
}

#[cfg(test)]
mod tests;
