//! `create`, `run` and `restore`: the bundle's document is edited before the runtime reads it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::admit::{Admission, Candidate, Station, admit};
use super::cmdline::{CommandLine, Start};
use super::container::{ambiguous, annotations, is_sandbox};
use super::document::{Document, DocumentError};
use super::engine::Engine;
use super::ledger::{Entry, Ledger, key, of_podman};
use super::quick::{self, Look};
use super::report::Reporter;
use super::{HOOK, OciError, Surroundings, json, runtime};
use crate::edit::oci::{Beside, Hook, apply};
use crate::grant::{Grant, Outcome};
use crate::policy;
use crate::records::{PodName, Record, RecordError, Store, Verdict, seconds_since_1970};
use crate::request::{CarrierPath, MARKER, mentions_us};
use crate::roots::Roots;

/// Seconds that a hook of ours may take.
const HOOK_TIMEOUT: u32 = 10;
/// Without a hook a container would be without SMC-R, unnoticed.
pub(super) const NO_HOOK: &str = "smc.rdma-ctk.io: the hook that turns its sockets cannot be named: /proc/self/exe is no program";

/// Edits the document of a container that asks. One that does not keeps its file as it is. The runtime
/// comes back if it was looked for.
pub(super) fn edit(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    start: &Start,
    reporter: &Reporter,
) -> Result<Option<PathBuf>, OciError> {
    let document = match Document::read(&start.document()) {
        Ok(document) => document,
        // What is not there, or cannot be read, the runtime will say better.
        Err(DocumentError::Folder { .. } | DocumentError::Read { .. }) => return Ok(None),
        Err(DocumentError::Long { .. }) if !quick::mentions_us(&start.document()) => {
            return Ok(None);
        }
        Err(problem) => return Err(problem.into()),
    };
    let look = quick::look(&document.text);
    if look == Look::Nothing {
        return Ok(None);
    }
    let value = match parse(&document) {
        Ok(value) => value,
        Err(problem) if look == Look::Mentioned => return Err(problem.into()),
        Err(_) => return Ok(None),
    };
    let annotations = annotations(&value);
    if is_sandbox(&annotations, Engine::of_file(&value, &start.document(), start.id.as_deref())) {
        return Ok(None);
    }
    let asked = mentions_us(annotations.keys());
    let policy = match policy::load(&surroundings.roots) {
        Ok(policy) => policy,
        Err(problem) if asked => {
            return Err(OciError::Refused { sentence: format!("the policy is broken: {problem}") });
        }
        Err(problem) => {
            reporter.warn(&format!("the policy is broken: {problem}"));
            return Ok(None);
        }
    };
    let runtime = runtime::find(surroundings)?;
    let station = Station::here(&surroundings.roots, CarrierPath::Wrapper, Some(&runtime));
    let id = start.id.clone().unwrap_or_default();
    let ledger =
        Ledger::of(surroundings, station.user_namespace || !nix::unistd::geteuid().is_root());
    let key = key(line.root.as_deref(), &id);
    let id = id.to_string_lossy().into_owned();
    let bundle = document.path().parent().unwrap_or_else(|| Path::new(".")).to_owned();
    let mark = annotations.get(MARKER);
    let known = mark.is_some_and(|mark| {
        ledger.confirms(&key, mark)
            || ledger.confirms(&of_podman(start.id.as_deref().unwrap_or_default()), mark)
            || granted_by_daemon(&surroundings.roots, &id, mark)
    });
    let candidate = Candidate { document: &value, bundle: &bundle, id: &id, granted_before: known };
    let admission = admit(&surroundings.roots, &policy, &station, &candidate)
        .map_err(|refusal| OciError::Refused { sentence: refusal.sentence })?;
    let keeper = Keeper { ledger, key, bundle, reporter };
    keeper.settle(surroundings, document, value, id, admission)?;
    Ok(Some(runtime))
}

fn parse(document: &Document) -> Result<Value, DocumentError> {
    let path = || document.path().to_owned();
    document.check()?;
    let value = json::read(&document.text)
        .map_err(|source| DocumentError::Syntax { path: path(), source })?;
    match ambiguous(&value) {
        None => Ok(value),
        Some(member) => {
            Err(DocumentError::Syntax { path: path(), source: json::JsonError::Case(member) })
        }
    }
}

/// Whether the daemon has granted that, by NRI.
pub(super) fn granted_by_daemon(roots: &Roots, id: &str, mark: &str) -> bool {
    matches!(
        Store::new(roots).read(id),
        Ok(Some(Record { verdict: Verdict::Granted { grant }, .. })) if grant.digest() == mark
    )
}

/// Whoever carries a decision out and writes it down.
struct Keeper<'a> {
    ledger: Ledger,
    key: String,
    bundle: PathBuf,
    reporter: &'a Reporter,
}

impl Keeper<'_> {
    fn settle(
        &self,
        surroundings: &Surroundings<'_>,
        document: Document,
        value: Value,
        id: String,
        admission: Admission,
    ) -> Result<(), OciError> {
        let pod = &admission.container.pod;
        let entry = |verdict: Verdict| Entry {
            record: Record {
                id: id.clone(),
                name: admission.container.name.clone(),
                pod: PodName::new(pod, &pod.uid),
                runtime: "the runtime wrapper".to_owned(),
                at: seconds_since_1970(),
                verdict,
            },
            bundle: std::path::absolute(&self.bundle).unwrap_or_else(|_| self.bundle.clone()),
            request: None,
            limits: Vec::new(),
        };
        match admission.outcome {
            Outcome::NotAsked => Ok(()),
            Outcome::LeftAlone { reason } => {
                self.reporter.note(&format!("container {id} is left alone: {reason}"));
                Ok(())
            }
            Outcome::Refused(refusal) => {
                let sentence = refusal.sentence;
                self.put_down(&entry(Verdict::Refused { sentence: sentence.clone() }));
                Err(OciError::Refused { sentence })
            }
            Outcome::Waived(refusal) => {
                let sentence = refusal.sentence;
                self.reporter.warn(&format!("starts without, as policy says: {sentence}"));
                self.put_down(&entry(Verdict::Waived { sentence }));
                Ok(())
            }
            Outcome::Granted(grant) => {
                let entry = Entry {
                    request: admission.request.filter(|_| admission.pending || grant.smc.is_some()),
                    ..entry(Verdict::Granted { grant: grant.clone() })
                };
                self.give(surroundings, &document, value, &grant, entry)
            }
        }
    }

    /// Writes the grant into the document; what it needs beside is there before.
    fn give(
        &self,
        surroundings: &Surroundings<'_>,
        document: &Document,
        mut value: Value,
        grant: &Grant,
        mut entry: Entry,
    ) -> Result<(), OciError> {
        let mut files = Vec::with_capacity(grant.files.len());
        let prepared = self.ledger.prepare();
        // Without a record nobody would turn its sockets later.
        if !grant.files.is_empty() || grant.smc.is_some() {
            prepared?;
            for file in &grant.files {
                let path = self.ledger.file(&self.key, file)?;
                files.push(path.to_string_lossy().into_owned());
            }
        } else if let Err(problem) = prepared {
            self.reporter.warn(&format!("the grant is not on record: {problem}"));
        }
        // A network that no hook makes is made by nobody before the program runs.
        let awaited = entry.request.is_some() && !files.is_empty() && has_early_hooks(&value);
        let late = awaited || grant.smc.is_some();
        let hooks = self.hooks(&surroundings.roots, late);
        if grant.smc.is_some() && hooks.is_empty() {
            return Err(OciError::Refused { sentence: NO_HOOK.to_owned() });
        }
        apply(&mut value, grant, Beside { files: &files, hooks: &hooks })
            .map_err(|source| DocumentError::Shape { path: document.path().to_owned(), source })?;
        entry.limits = value["process"]["rlimits"].as_array().cloned().unwrap_or_default();
        if !late {
            entry.request = None;
        }
        let written = match serde_json::to_vec(&value) {
            Ok(text) => document.replace(&text),
            Err(problem) => Err(DocumentError::Syntax {
                path: document.path().to_owned(),
                source: problem.into(),
            }),
        };
        if let Err(problem) = written {
            // Nothing was granted then.
            let _ = self.ledger.remove(&self.key);
            return Err(problem.into());
        }
        let written = self.write(&entry);
        if let Err(problem) = written {
            if grant.smc.is_some() {
                return Err(problem.into());
            }
            self.reporter.warn(&unrecorded(&problem));
        }
        let mut given: Vec<String> =
            grant.adapters.iter().map(|adapter| adapter.name.clone()).collect();
        given.extend(grant.smc.iter().map(|smc| format!("SMC-R by {}", smc.method)));
        self.reporter.note(&format!("container {} is given {}", entry.record.id, given.join(", ")));
        for warning in &grant.warnings {
            self.reporter.warn(warning);
        }
        Ok(())
    }

    /// The hooks that see to it that nothing stays behind and, if the network comes later, that its
    /// addresses find their way into the container's file.
    fn hooks(&self, roots: &Roots, late: bool) -> Vec<Hook> {
        self.ledger.path(&self.key).map_or_else(|_| Vec::new(), |path| hooks(roots, &path, late))
    }

    fn write(&self, entry: &Entry) -> Result<(), RecordError> {
        self.ledger.prepare().and_then(|()| self.ledger.write(&self.key, entry))
    }

    /// Writes a record. Without one a container runs as well: it is a warning.
    fn put_down(&self, entry: &Entry) {
        if let Err(problem) = self.write(entry) {
            self.reporter.warn(&unrecorded(&problem));
        }
    }
}

pub(super) fn unrecorded(problem: &RecordError) -> String {
    format!("what was decided is not on record, and exec sessions will lack it: {problem}")
}

/// Whether the document has hooks that run once there are namespaces, which is where engines set up
/// networks that they do not hand over by path.
fn has_early_hooks(document: &Value) -> bool {
    ["prestart", "createRuntime"]
        .iter()
        .any(|stage| document["hooks"][stage].as_array().is_some_and(|hooks| !hooks.is_empty()))
}

/// Hooks of ours for the container with that record: `poststop`, and `createRuntime` where something is
/// to be done once there are namespaces. None where this program cannot be named.
pub(super) fn hooks(roots: &Roots, record: &Path, late: bool) -> Vec<Hook> {
    let program = std::fs::read_link(roots.proc.join("self/exe")).ok();
    let program = program.filter(|program| program.is_absolute() && program.is_file());
    let Some(program) = program.as_deref().and_then(Path::to_str) else { return Vec::new() };
    let Some(record) = record.to_str() else { return Vec::new() };
    let hook = |stage: &'static str| Hook {
        stage,
        path: program.to_owned(),
        args: [HOOK, stage, "--record", record].map(str::to_owned).into(),
        timeout: HOOK_TIMEOUT,
    };
    let late = late.then(|| hook("createRuntime"));
    late.into_iter().chain([hook("poststop")]).collect()
}
