//! Records of containers that are no more. A container's own goes with its `poststop` hook; here are
//! those that have none, or whose runtime never came so far.

use std::ffi::OsStr;
use std::path::Path;

use super::cmdline::CommandLine;
use super::ledger::{Ledger, key};
use super::report::Reporter;
use super::{Surroundings, existing, smc};
use crate::records::{RecordError, Verdict};
use crate::roots::Roots;

/// Removes a record with all that hangs on it. Returned is what could not be taken back.
///
/// # Errors
/// It cannot be removed.
pub(super) fn remove(
    roots: &Roots,
    ledger: &Ledger,
    key: &str,
) -> Result<Vec<String>, RecordError> {
    let has_smc = ledger.read(key).ok().flatten().is_some_and(
        |entry| matches!(&entry.record.verdict, Verdict::Granted { grant } if grant.smc.is_some()),
    );
    let problems = if has_smc { smc::turn_off(roots, key) } else { Vec::new() };
    ledger.remove(key)?;
    Ok(problems)
}

/// At a start that puts nothing on record: what is there by that name is an earlier container's, and
/// would be given to this one's exec sessions.
pub(super) fn at_start(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    id: &OsStr,
    runtime: Option<&Path>,
    reporter: &Reporter,
) {
    let (ledger, key) = (Ledger::here(surroundings), key(line.root.as_deref(), id));
    // Most often there is none.
    if ledger.has_record(&key) && !existing::is_there(surroundings, line, id, runtime) {
        tell(remove(&surroundings.roots, &ledger, &key), reporter);
    }
}

/// Before `delete`: of a container that starts without there is no hook, and one that the runtime has
/// never made has none that would run. Why one was refused is kept: engines delete that at once.
pub(super) fn at_delete(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    id: &OsStr,
    reporter: &Reporter,
) {
    let (ledger, key) = (Ledger::here(surroundings), key(line.root.as_deref(), id));
    if !ledger.has_record(&key) && !ledger.has_files(&key) {
        return;
    }
    let stays = match ledger.read(&key).ok().flatten().map(|entry| entry.record.verdict) {
        Some(Verdict::Refused { .. }) => true,
        Some(Verdict::Granted { .. }) => existing::is_there(surroundings, line, id, None),
        _ => false,
    };
    if !stays {
        tell(remove(&surroundings.roots, &ledger, &key), reporter);
    }
}

fn tell(removed: Result<Vec<String>, RecordError>, reporter: &Reporter) {
    match removed {
        Ok(problems) => problems.iter().for_each(|problem| reporter.warn(problem)),
        Err(problem) => reporter.warn(&problem.to_string()),
    }
}
