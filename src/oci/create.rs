//! `create`, `run` and `restore`: the bundle's document is edited before the runtime reads it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::admit::{Admission, Candidate, Station, admit};
use super::cmdline::{CommandLine, Start};
use super::container::{ambiguous, annotation, is_sandbox, told};
use super::document::{Document, DocumentError};
use super::engine::Engine;
use super::ledger::{Entry, Ledger, key, of_podman};
use super::quick::{self, Look};
use super::report::Reporter;
use super::{HOOK, OciError, Surroundings, earlier, existing, gone, json, runtime};
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
    let done = decide(surroundings, line, start, reporter)?;
    if let (Recorded::No, Some(id)) = (done.recorded, &start.id) {
        gone::at_start(surroundings, line, id, done.runtime.as_deref(), reporter);
    }
    Ok(done.runtime)
}

/// What came of a start.
struct Done {
    /// The runtime, if it was looked for.
    runtime: Option<PathBuf>,
    recorded: Recorded,
}

/// Whether what is on record by the container's name is this container's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    Yes,
    No,
}

fn decide(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    start: &Start,
    reporter: &Reporter,
) -> Result<Done, OciError> {
    const NOTHING: Result<Done, OciError> = Ok(Done { runtime: None, recorded: Recorded::No });
    let document = match Document::read(&start.document()) {
        Ok(document) => document,
        // What is not there, or cannot be read, the runtime will say better.
        Err(DocumentError::Folder { .. } | DocumentError::Read { .. }) => return NOTHING,
        Err(DocumentError::Long { .. }) if !quick::mentions_us(&start.document()) => {
            return NOTHING;
        }
        Err(problem) => return Err(problem.into()),
    };
    let look = quick::look(&document.text);
    if look == Look::Nothing {
        return NOTHING;
    }
    let mut value = match parse(&document) {
        Ok(value) => value,
        Err(problem) if look == Look::Mentioned => return Err(problem.into()),
        Err(_) => return NOTHING,
    };
    let engine = Engine::of_start(&value, start.folder(), start.id.as_deref());
    if is_sandbox(engine, |key| annotation(&value, key)) {
        return NOTHING;
    }
    let asked = mentions_us(told(&value).map(|(key, _)| key));
    let policy = match policy::load(&surroundings.roots) {
        Ok(policy) => policy,
        Err(problem) if asked => {
            return Err(OciError::Refused { sentence: format!("the policy is broken: {problem}") });
        }
        Err(problem) => {
            reporter.warn(&format!("the policy is broken: {problem}"));
            return NOTHING;
        }
    };
    let runtime = runtime::find(surroundings)?;
    let id = start.id.clone().unwrap_or_default();
    if existing::is_there(surroundings, line, &id, Some(&runtime)) {
        // The runtime will say so; document, record and files are those of the one that is there.
        return Ok(Done { runtime: Some(runtime), recorded: Recorded::Yes });
    }
    let station = Station::here(&surroundings.roots, CarrierPath::Wrapper, Some(&runtime));
    let ledger = Ledger::here(surroundings);
    let key = key(line.root.as_deref(), &id);
    let id = id.to_string_lossy().into_owned();
    let bundle = start.folder().to_owned();
    let podman = of_podman(start.id.as_deref().unwrap_or_default());
    let mark = annotation(&value, MARKER);
    let by_podman = mark.is_some_and(|mark| ledger.confirms(&podman, mark));
    let known =
        by_podman || mark.is_some_and(|mark| granted_by_daemon(&surroundings.roots, &id, mark));
    let mut earlier = None;
    if !known && let Some(found) = earlier::take_out(&document, &value, &ledger)? {
        earlier = Some(found.text);
        value = found.value;
    }
    let candidate = Candidate { document: &value, bundle: &bundle, id: &id, granted_before: known };
    let admission = admit(&surroundings.roots, &policy, &station, &candidate)
        .map_err(|refusal| OciError::Refused { sentence: refusal.sentence })?;
    // Where the runtime is called without a state folder, the hook's record has the same name.
    let by_podman = by_podman && key == podman;
    let keeper = Keeper { ledger, key, bundle, document, earlier, reporter };
    let settled = keeper.settle(surroundings, value, id, admission)?;
    let recorded = if by_podman { Recorded::Yes } else { settled };
    Ok(Done { runtime: Some(runtime), recorded })
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
    document: Document,
    /// What the document was before an earlier start, if that has left something in it.
    earlier: Option<Vec<u8>>,
    reporter: &'a Reporter,
}

impl Keeper<'_> {
    fn settle(
        &self,
        surroundings: &Surroundings<'_>,
        value: Value,
        id: String,
        admission: Admission,
    ) -> Result<Recorded, OciError> {
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
            Outcome::NotAsked => {
                self.put_back()?;
                Ok(Recorded::No)
            }
            Outcome::LeftAlone { reason } => {
                self.put_back()?;
                self.reporter.note(&format!("container {id} is left alone: {reason}"));
                Ok(Recorded::No)
            }
            Outcome::Refused(refusal) => {
                let sentence = refusal.sentence;
                self.put_down(&entry(Verdict::Refused { sentence: sentence.clone() }));
                Err(OciError::Refused { sentence })
            }
            Outcome::Waived(refusal) => {
                self.put_back()?;
                let sentence = refusal.sentence;
                self.reporter.warn(&format!("starts without, as policy says: {sentence}"));
                self.put_down(&entry(Verdict::Waived { sentence }));
                Ok(Recorded::Yes)
            }
            Outcome::Granted(grant) => {
                let entry = Entry {
                    request: admission.request.filter(|_| admission.pending || grant.smc.is_some()),
                    ..entry(Verdict::Granted { grant: grant.clone() })
                };
                let given = self.give(surroundings, value, &grant, entry);
                if given.is_err() {
                    // Nothing was granted then.
                    let _ = self.ledger.remove(&self.key);
                }
                given.map(|()| Recorded::Yes)
            }
        }
    }

    /// Makes the document what it was before an earlier start, for a container that gets nothing now.
    fn put_back(&self) -> Result<(), DocumentError> {
        if let Some(before) = &self.earlier {
            self.document.replace(before)?;
            self.document.forget();
        }
        Ok(())
    }

    /// Writes the grant into the document; what it needs beside is there before.
    fn give(
        &self,
        surroundings: &Surroundings<'_>,
        mut value: Value,
        grant: &Grant,
        mut entry: Entry,
    ) -> Result<(), OciError> {
        let path = || self.document.path().to_owned();
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
            .map_err(|source| DocumentError::Shape { path: path(), source })?;
        entry.limits = value["process"]["rlimits"].as_array().cloned().unwrap_or_default();
        if !late {
            entry.request = None;
        }
        let text = json::write(&value);
        // The program soon becomes another one: what it holds need not be given back piece by piece.
        std::mem::forget(value);
        // At the second attempt of an engine it is there already, and what it was is kept.
        if self.earlier.is_none() || text != self.document.text {
            let before = self.earlier.as_deref().unwrap_or(&self.document.text);
            self.document.keep(before, &text)?;
            self.document.replace(&text)?;
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
