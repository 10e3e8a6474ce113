//! What the runtime wrapper or podman's hook would make of a container's document, by the way that they
//! go themselves.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Explanation, show};
use crate::cli::Error;
use crate::daemon::records::{self, Verdict};
use crate::edit::oci::{Beside, apply};
use crate::grant::{Grant, Outcome};
use crate::oci::admit::{Admission, Candidate, Station, admit};
use crate::oci::container::{ambiguous, annotation, annotations, is_sandbox};
use crate::oci::engine::Engine;
use crate::oci::json::{self as document, JsonError};
use crate::oci::{Surroundings, runtime};
use crate::policy::Policy;
use crate::request::{CarrierPath, MARKER};
use crate::roots::Roots;

/// Why a document cannot be explained; the wrapper refuses it for the same reason.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is no document.
    #[error("{path}: {source}", path = path.display())]
    Syntax {
        /// The document.
        path: PathBuf,
        /// What is wrong with it.
        source: JsonError,
    },
    /// Whose it is cannot be told.
    #[error("{path}: {sentence}", path = path.display())]
    Whose {
        /// The document.
        path: PathBuf,
        /// Why not.
        sentence: String,
    },
}

/// Who carries out what a document asks for.
pub(super) fn station(roots: &Roots, path: CarrierPath) -> Station {
    let surroundings =
        Surroundings { roots: roots.clone(), variable: &|name| std::env::var_os(name) };
    // Which one it is matters only to what it can carry.
    let runtime = runtime::find(&surroundings).ok();
    Station::here(roots, path, runtime.as_deref().filter(|_| path == CarrierPath::Wrapper))
}

/// Explains the document of a bundle, or the document itself.
pub(super) fn explain(
    roots: &Roots,
    policy: &Policy,
    path: &Path,
    by: CarrierPath,
) -> Result<Explanation, Error> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = fs::read(&path).map_err(|error| Error::Read { path: path.clone(), error })?;
    let syntax = |source| BundleError::Syntax { path: path.clone(), source };
    let value = document::read(&text).map_err(syntax)?;
    if let Some(member) = ambiguous(&value) {
        return Err(syntax(JsonError::Case(member)).into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    // podman and CRI-O have the document one folder below that of the container.
    let named = match folder.file_name() {
        Some(name) if name == "userdata" => folder.parent().and_then(Path::file_name),
        name => name,
    };
    let id = named.unwrap_or_default().to_string_lossy().into_owned();
    let station = station(roots, by);
    let annotations = annotations(&value);
    let mut notes = Vec::new();
    let mark = annotations.get(MARKER);
    if mark.is_some() {
        notes.push("the document carries a grant already".to_owned());
    }
    let granted_before = mark.is_some_and(|mark| {
        records::read_all(roots).containers.iter().any(|record| {
            let granted = |grant: &Grant| record.id == id && grant.digest() == *mark;
            matches!(&record.verdict, Verdict::Granted { grant } if granted(grant))
        })
    });
    let candidate = Candidate { document: &value, bundle: &folder, id: &id, granted_before };
    let Admission { mut outcome, request, container, pending } =
        admit(roots, policy, &station, &candidate).map_err(|refusal| BundleError::Whose {
            path: path.clone(),
            sentence: refusal.sentence,
        })?;
    if is_sandbox(Engine::of(&value, &folder, &id), |key| annotation(&value, key)) {
        outcome = Outcome::LeftAlone { reason: "it is the sandbox of a pod".to_owned() };
    }
    if pending {
        notes.push(
            "its network namespace is made after the edit: what depends on addresses is filled in \
             by the createRuntime hook"
                .to_owned(),
        );
    }
    let adjustment = match &outcome {
        Outcome::Granted(grant) => Some(show::tidy(&added(grant))),
        _ => None,
    };
    Ok(Explanation {
        pod: format!("{}/{}", container.pod.namespace, container.pod.name),
        container: container.name.clone(),
        path: station.carrier(&container).name,
        notes,
        remarks: request.map(|request| request.remarks).unwrap_or_default(),
        decision: outcome,
        adjustment,
    })
}

/// What is added to a document for that grant, whatever else is in it.
pub(super) fn added(grant: &Grant) -> Value {
    let files: Vec<String> = grant.files.iter().map(|file| format!("FILES{}", file.path)).collect();
    let mut document = json!({});
    // An empty document has room for everything.
    match apply(&mut document, grant, Beside { files: &files, hooks: &[] }) {
        Ok(()) => document,
        Err(_) => Value::Null,
    }
}
