//! TOML files that engines read one after the other: main ones, then a folder of drop-ins in the
//! order of their names.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml_edit::DocumentMut;

use super::tables::{TomlError, parse};

/// A configuration file cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is no TOML.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TomlError,
    },
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Those of a folder whose name `counts`, in the order in which they are read; none where there is
/// no folder.
pub(super) fn sorted(folder: &Path, counts: impl Fn(&OsStr) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.file_name().is_some_and(&counts));
    paths.sort();
    paths
}

/// Reads them; those that are not there are passed over.
///
/// # Errors
/// One cannot be read or is no TOML.
pub(super) fn load(paths: Vec<PathBuf>) -> Result<Vec<(PathBuf, DocumentMut)>, FileError> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(FileError::Read { path, source }),
        };
        match parse(&text) {
            Ok(document) => files.push((path, document)),
            Err(source) => return Err(FileError::Toml { path, source }),
        }
    }
    Ok(files)
}
