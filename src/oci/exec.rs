//! `exec --process FILE`: an engine makes that document from the container's as it was before the
//! wrapper, so that variables, capabilities and limits are missing in it.

use std::ffi::OsStr;
use std::path::Path;

use super::cmdline::CommandLine;
use super::document::{Document, DocumentError};
use super::ledger::{Ledger, key, of_podman};
use super::{OciError, Surroundings, existing, json};
use crate::edit::oci::apply_process;
use crate::records::Verdict;

/// Completes the process document by what the container was granted.
pub(super) fn complete(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    process: &Path,
    id: Option<&OsStr>,
) -> Result<(), OciError> {
    let Some(id) = id else { return Ok(()) };
    let ledger = Ledger::here(surroundings);
    let entry = match ledger.read(&key(line.root.as_deref(), id))? {
        Some(entry) => Some(entry),
        // podman's hook was there first, and the wrapper had nothing to add.
        None => ledger.read(&of_podman(id))?,
    };
    let Some(entry) = entry else { return Ok(()) };
    let Verdict::Granted { grant } = &entry.record.verdict else { return Ok(()) };
    // A record that was left over is another container's.
    let folder = existing::folder(surroundings, line, id, None);
    if folder.is_some_and(|folder| existing::is_anothers(&folder, &entry.bundle)) {
        return Ok(());
    }
    let document = Document::read(process)?;
    let at = || document.path().to_owned();
    document.check()?;
    let mut value = json::read(&document.text)
        .map_err(|source| DocumentError::Syntax { path: at(), source })?;
    apply_process(&mut value, grant, &entry.limits)
        .map_err(|source| DocumentError::Shape { path: at(), source })?;
    Ok(document.replace(&json::write(&value))?)
}
