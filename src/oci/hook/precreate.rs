//! podman's `precreate`: the whole document comes by standard input and goes out by standard output,
//! edited or byte for byte as it was. podman drops what is said on standard error, so the reason of a
//! refusal goes to the journal; nothing else is written to standard output.
//!
//! The working directory is the bundle. It belongs to the container, and lives as long: files of ours
//! that are bound go there, so that nothing has to be tidied up, for users without a `/run` neither. The
//! record of the grant is with the wrapper's, under the identifier alone, since podman has no state
//! folder to tell here; the `poststop` hook that is added takes it away.

use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use super::super::admit::{Candidate, Station, admit};
use super::super::container::{ambiguous, told};
use super::super::create;
use super::super::document::DocumentError;
use super::super::ledger::{Entry, Ledger, of_podman};
use super::super::quick::{self, Look};
use super::super::{OciError, json};
use super::{Call, HookError};
use crate::edit::oci::{Beside, apply};
use crate::grant::{Grant, Outcome};
use crate::policy;
use crate::records::{PodName, Record, Verdict, seconds_since_1970};
use crate::request::{CarrierPath, mentions_us};

/// The bundle, which is where podman starts the hook.
const BUNDLE: &str = ".";

/// Runs the hook.
pub(super) fn run(call: &Call<'_>) -> Result<(), OciError> {
    let text = call.input(json::LONGEST)?;
    let edited = edit(call, &text)?;
    let output = |source| HookError::Stream { stream: "output", source };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(edited.as_deref().unwrap_or(&text))
        .and_then(|()| stdout.flush())
        .map_err(output)?;
    Ok(())
}

/// The new document; `None`: it stays as it is.
fn edit(call: &Call<'_>, text: &[u8]) -> Result<Option<Vec<u8>>, OciError> {
    let look = quick::look(text);
    if look == Look::Nothing {
        return Ok(None);
    }
    let syntax = |source| DocumentError::Syntax { path: "the document".into(), source };
    let read = json::read(text).and_then(|value| match ambiguous(&value) {
        Some(member) => Err(json::JsonError::Case(member)),
        None => Ok(value),
    });
    let value = match read {
        Ok(value) => value,
        Err(problem) if look == Look::Mentioned => return Err(syntax(problem).into()),
        Err(_) => return Ok(None),
    };
    let asked = mentions_us(told(&value).map(|(key, _)| key));
    let roots = &call.surroundings.roots;
    let policy = match policy::load(roots) {
        Ok(policy) => policy,
        Err(problem) if asked => {
            return Err(OciError::Refused { sentence: format!("the policy is broken: {problem}") });
        }
        Err(problem) => {
            call.warn(&format!("the policy is broken: {problem}"));
            return Ok(None);
        }
    };
    let station = Station::here(roots, CarrierPath::Hook, None);
    let folder = std::env::current_dir().unwrap_or_default();
    let id = identifier(&value, &folder);
    let candidate = Candidate {
        document: &value,
        bundle: BUNDLE.as_ref(),
        id: &id,
        // The document is made anew at each start.
        granted_before: false,
    };
    let admission = admit(roots, &policy, &station, &candidate)
        .map_err(|refusal| OciError::Refused { sentence: refusal.sentence })?;
    match admission.outcome {
        Outcome::NotAsked => Ok(None),
        Outcome::LeftAlone { reason } => {
            call.note(&format!("container {id} is left alone: {reason}"));
            Ok(None)
        }
        Outcome::Refused(refusal) => Err(OciError::Refused { sentence: refusal.sentence }),
        Outcome::Waived(refusal) => {
            call.warn(&format!("starts without, as policy says: {}", refusal.sentence));
            Ok(None)
        }
        Outcome::Granted(grant) => {
            for warning in &grant.warnings {
                call.warn(&format!("container {id}: {warning}"));
            }
            let record = Record {
                id: id.clone(),
                name: admission.container.name.clone(),
                pod: PodName::new(&admission.container.pod, &admission.container.pod.uid),
                runtime: "podman's hooks".to_owned(),
                at: seconds_since_1970(),
                verdict: Verdict::Granted { grant: grant.clone() },
            };
            let late = grant.smc.is_some();
            let entry = Entry {
                record,
                bundle: folder.clone(),
                request: admission.request.filter(|_| late),
                limits: Vec::new(),
            };
            let user = station.user_namespace || !nix::unistd::geteuid().is_root();
            let ledger = Ledger::of(call.surroundings, user);
            give(call, value, &grant, &folder, (ledger, entry)).map(Some)
        }
    }
}

/// Writes the grant into the document, and puts it down: for `inspect`, for the wrapper where it is the
/// runtime, and for hooks that have something to do once there are namespaces. Only these cannot do
/// without the record.
fn give(
    call: &Call<'_>,
    mut value: Value,
    grant: &Grant,
    folder: &Path,
    (ledger, mut entry): (Ledger, Entry),
) -> Result<Vec<u8>, OciError> {
    let late = grant.smc.is_some();
    let key = of_podman(entry.record.id.as_ref());
    let hooks = match ledger.prepare().and_then(|()| ledger.path(&key)) {
        Ok(path) => create::hooks(&call.surroundings.roots, &path, late),
        Err(problem) if late => return Err(problem.into()),
        Err(problem) => {
            call.warn(&create::unrecorded(&problem));
            Vec::new()
        }
    };
    if late && hooks.is_empty() {
        return Err(OciError::Refused { sentence: create::NO_HOOK.to_owned() });
    }
    let mut files = Vec::with_capacity(grant.files.len());
    if !grant.files.is_empty() {
        let ledger = Ledger::at(folder.join("rdma-ctk"));
        ledger.prepare()?;
        for file in &grant.files {
            files.push(ledger.file("bound", file)?.to_string_lossy().into_owned());
        }
    }
    let path = || "the document".into();
    apply(&mut value, grant, Beside { files: &files, hooks: &hooks })
        .map_err(|source| DocumentError::Shape { path: path(), source })?;
    let text = json::write(&value);
    // Without a hook nobody would take the record away.
    if !hooks.is_empty() {
        entry.limits = value["process"]["rlimits"].as_array().cloned().unwrap_or_default();
        match ledger.write(&key, &entry) {
            Ok(()) => {}
            Err(problem) if late => return Err(problem.into()),
            Err(problem) => call.warn(&create::unrecorded(&problem)),
        }
    }
    Ok(text)
}

/// The container's identifier, which is not in the document: the folder above podman's `userdata`,
/// else the end of the cgroup's path.
fn identifier(document: &Value, folder: &Path) -> String {
    let folder = match folder.file_name() {
        Some(name) if name == "userdata" => folder.parent().and_then(Path::file_name),
        _ => None,
    };
    let by_group = || {
        let path = document["linux"]["cgroupsPath"].as_str()?;
        Some(path.rsplit_once("libpod-")?.1.trim_end_matches(".scope").to_owned())
    };
    let named = folder.map(|name| name.to_string_lossy().into_owned());
    named.or_else(by_group).unwrap_or_else(|| "container".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_known_by_its_folder_or_its_group() {
        let group = json!({ "linux": { "cgroupsPath": "/libpod_parent/libpod-a55a.scope" } });
        for (document, folder, expected) in [
            (&group, "/var/lib/containers/storage/overlay-containers/4f1c/userdata", "4f1c"),
            (&group, "/tmp", "a55a"),
            (&json!({}), "/tmp", "container"),
        ] {
            assert_eq!(identifier(document, folder.as_ref()), expected, "{folder}");
        }
    }
}
