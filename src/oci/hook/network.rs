//! `createRuntime` and `poststop`: what can only be done once the container's network is there, and
//! what has to go when the container goes.
//!
//! The wrapper adds both to the documents that it edits and names its record. Where an engine sets up
//! the network in a hook of its own, after the document was read (nerdctl, docker), the addresses are
//! not known at the edit: the container is given an nccl.conf then, which is filled in here, in place.
//!
//! From a file of an engine's hooks folder `createRuntime` is called without a record, and is a gate:
//! a container that asks and carries no grant does not start.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::super::container::{self, Beside};
use super::super::document::Document;
use super::super::engine::Engine;
use super::super::gone;
use super::super::ledger::{Entry, Ledger};
use super::super::smc;
use super::super::survey;
use super::super::{OciError, json};
use super::state::{LONGEST, State};
use super::{Call, HookError};
use crate::grant::{Grant, Outcome, SmcGrant};
use crate::policy::{self, OnRefusal};
use crate::records::{Record, Verdict};
use crate::request::{Carrier, Key, MARKER, Request, mentions_us, parse};

/// How long GIDs of new addresses are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The key of SMC-R, as it is typed.
const SMC: &str = "smc.rdma-ctk.io";

/// `createRuntime`
pub(super) fn create_runtime(call: &Call<'_>) -> Result<(), OciError> {
    let state = State::parse(&call.input(LONGEST)?)?;
    let Some(record) = &call.record else { return gate(call, &state) };
    let Some((ledger, key)) = Ledger::around(record) else { return Ok(()) };
    let Some(entry) = ledger.read(&key)? else { return unrecorded(&state) };
    let Verdict::Granted { grant } = &entry.record.verdict else { return Ok(()) };
    if let Some(smc) = &grant.smc {
        turn(call, &ledger, &key, &entry, &state, smc)?;
    }
    let settled = grant.smc.as_ref().is_some_and(|smc| !smc.later);
    if state.pid == 0 || entry.request.is_none() || grant.files.is_empty() || settled {
        return Ok(());
    }
    // The container can do without: it would be as if its network had no addresses yet.
    match fill(call, &ledger, &key, &entry, &state) {
        Ok(true) => call.note(&format!("container {}: its network is in its nccl.conf", state.id)),
        Ok(false) => {}
        Err(why) => {
            call.warn(&format!("container {}: its nccl.conf stays as it was: {why}", state.id))
        }
    }
    Ok(())
}

/// A container whose record has gone. It can do without what is told late, but not without SMC-R.
fn unrecorded(state: &State) -> Result<(), OciError> {
    let annotations = state.annotations.iter().flatten();
    let mut smc = annotations.filter(|(key, _)| key.starts_with(SMC));
    match smc.next() {
        Some((annotation, value)) => Err(OciError::Refused {
            sentence: format!(
                "{annotation}={value}: what was granted is no longer on record: create the \
                 container anew"
            ),
        }),
        None => Ok(()),
    }
}

/// Turns the sockets of a container that was granted SMC-R; if that fails it does not start, unless
/// policy lets it start without.
fn turn(
    call: &Call<'_>,
    ledger: &Ledger,
    key: &str,
    entry: &Entry,
    state: &State,
    grant: &SmcGrant,
) -> Result<(), OciError> {
    let refused = |sentence: String| OciError::Refused { sentence };
    let roots = &call.surroundings.roots;
    let policy = policy::load(roots)
        .map_err(|problem| refused(format!("the policy is broken: {problem}")))?;
    let Err(why) = smc::turn_on(roots, &policy, key, entry, state) else {
        call.note(&format!("container {}: its sockets are turned by {}", state.id, grant.method));
        return Ok(());
    };
    // What was decided again says itself what it is about.
    let about = why.starts_with(SMC);
    let sentence = if about { why } else { format!("{SMC}: {}: {why}", grant.method) };
    let pod = entry.request.as_ref().map(|request| &request.container.pod);
    let lenient = pod.is_some_and(|pod| policy.allowance(pod).on_refusal == OnRefusal::Warn);
    if lenient {
        call.warn(&format!("starts without SMC-R, as policy says: {sentence}"));
        // What else it was given it has.
        let mut entry = entry.clone();
        if let Verdict::Granted { grant } = &mut entry.record.verdict {
            grant.smc = None;
            grant.warnings.push(sentence);
        }
        return Ok(ledger.write(key, &entry)?);
    }
    // Not every engine calls poststop for a container that never was.
    let verdict = Verdict::Refused { sentence: sentence.clone() };
    let record = Record { verdict, ..entry.record.clone() };
    let entry = Entry { record, request: None, ..entry.clone() };
    if let Err(problem) = ledger.write(key, &entry) {
        call.warn(&problem.to_string());
    }
    Err(refused(sentence))
}

/// Decides again with the network that there is now, and writes the files anew; whether there is any.
fn fill(
    call: &Call<'_>,
    ledger: &Ledger,
    key: &str,
    entry: &Entry,
    state: &State,
) -> Result<bool, String> {
    let roots = &call.surroundings.roots;
    let (Some(request), Verdict::Granted { grant: before }) =
        (&entry.request, &entry.record.verdict)
    else {
        return Ok(false);
    };
    let policy = policy::load(roots).map_err(|problem| problem.to_string())?;
    let path = Path::new("/proc").join(state.pid.to_string()).join("ns/net");
    let mut request = Request::clone(request);
    request.env.file = true;
    let adapters = &before.adapters;
    let decided = survey::with_network(roots, &policy, request, adapters, &path, PATIENCE)?;
    let now = match decided {
        Some(Outcome::Granted(now)) => now,
        Some(_) => return Err("the decision is another one now".to_owned()),
        None => return Ok(false),
    };
    if !same_adapters(&now, before) {
        return Err("the decision is about other adapters now".to_owned());
    }
    for file in now.files.iter().filter(|file| before.files.iter().any(|b| b.path == file.path)) {
        ledger.file(key, file).map_err(|problem| problem.to_string())?;
    }
    Ok(true)
}

fn same_adapters(one: &Grant, other: &Grant) -> bool {
    let names = |grant: &Grant| -> Vec<String> {
        grant.adapters.iter().map(|adapter| adapter.name.clone()).collect()
    };
    names(one) == names(other)
}

/// Refuses a container that asks and was made without us. Whether the mark that a container carries
/// is genuine is not known here; a forged one only keeps its pod from being told.
fn gate(call: &Call<'_>, state: &State) -> Result<(), OciError> {
    let Some(annotations) = &state.annotations else { return Ok(()) };
    if !mentions_us(annotations.keys()) {
        return Ok(());
    }
    let document = Document::read(&state.bundle.join("config.json")).ok();
    let document = document.and_then(|document| json::read(&document.text).ok());
    let engine = Engine::of(&document.unwrap_or_default(), &state.bundle, &state.id);
    if container::is_sandbox(engine, |key| annotations.get(key).map(String::as_str)) {
        return Ok(());
    }
    if annotations.contains_key(MARKER) {
        return smc::switch_for_daemon(&call.surroundings.roots, state)
            .map_err(|sentence| OciError::Refused { sentence });
    }
    let refused = |sentence: String| Err(OciError::Refused { sentence });
    let policy = match policy::load(&call.surroundings.roots) {
        Ok(policy) => policy,
        Err(problem) => return refused(format!("the policy is broken: {problem}")),
    };
    let beside = Beside { id: &state.id, engine, ..Beside::default() };
    let read = container::read(&Value::Null, annotations, &beside);
    let container = match read {
        Ok(container) => container,
        Err(problem) => return refused(problem.to_string()),
    };
    let pod = container.pod.clone();
    let sentence = match parse(annotations, container, Carrier::default(), &policy, None) {
        Ok(request) if !request.asks() => return Ok(()),
        Ok(request) => {
            let asked = request.asked_by.get(&Key::Devices);
            let asked = asked.or_else(|| request.asked_by.get(&Key::Smc));
            let asked = asked.map_or_else(String::new, |asked| {
                format!("{}={}: ", asked.annotation, asked.value)
            });
            format!(
                "{asked}the container carries no grant: neither the NRI plugin nor the runtime \
                 wrapper has seen it, and it has no RDMA"
            )
        }
        Err(problem) => problem.to_string(),
    };
    if policy.allowance(&pod).on_refusal == OnRefusal::Warn {
        call.warn(&format!("starts without, as policy says: {sentence}"));
        return Ok(());
    }
    refused(sentence)
}

/// `poststop`: the container's record and files go.
pub(super) fn poststop(call: &Call<'_>) -> Result<(), OciError> {
    // Read to its end, so that the runtime does not write to nobody.
    State::parse(&call.input(LONGEST)?)?;
    let Some(record) = &call.record else { return Ok(()) };
    match Ledger::around(record) {
        Some((ledger, key)) => {
            for problem in gone::remove(&call.surroundings.roots, &ledger, &key)? {
                call.warn(&problem);
            }
            Ok(())
        }
        None => Err(HookError::Usage {
            what: format!("{} is no record", record.display()),
            actions: "createRuntime, poststop".to_owned(),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Surroundings;
    use super::*;
    use crate::roots::Roots;

    /// What comes of a container with those annotations, whose bundle is that.
    fn gated_in(bundle: &Path, annotations: &[(&str, &str)]) -> Option<String> {
        let state = State {
            id: "c1".into(),
            bundle: bundle.to_owned(),
            annotations: Some(
                annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ),
            ..State::default()
        };
        let roots = Roots::below("/nowhere".as_ref());
        let surroundings = Surroundings { roots, variable: &|_| None };
        let call = Call { surroundings: &surroundings, from: None, record: None };
        gate(&call, &state).err().map(|error| error.to_string())
    }

    const ASKS: (&str, &str) = ("devices.rdma-ctk.io", "all");
    const CONTAINER: (&str, &str) = ("io.kubernetes.cri.container-type", "container");
    const SHIMS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1";

    #[test]
    fn a_container_that_asks_and_carries_nothing_does_not_start() {
        let gated = |annotations: &[_]| gated_in(SHIMS.as_ref(), annotations);
        assert!(
            gated(&[ASKS]).unwrap().starts_with("devices.rdma-ctk.io=all: the container carries")
        );
        for annotations in [
            &[][..],
            &[("other.example", "x")],
            &[ASKS, CONTAINER, ("io.kubernetes.cri.container-name", "istio-proxy")],
            &[("devices.rdma-ctk.io", "none")],
            &[ASKS, (MARKER, "0fac37c0a5e33e5b")],
            &[ASKS, ("io.kubernetes.cri.container-type", "sandbox")],
            &[
                ("devices.rdma-ctk.io/container.other", "all"),
                CONTAINER,
                ("io.kubernetes.cri.container-name", "main"),
            ],
        ] {
            assert_eq!(gated(annotations), None, "{annotations:?}");
        }
    }

    #[test]
    fn a_sandbox_is_passed_by_the_word_of_its_engine_only() {
        let folder = tempfile::tempdir().unwrap();
        let crio = ("io.kubernetes.cri-o.ContainerType", "sandbox");
        let containerd = ("io.kubernetes.cri.container-type", "sandbox");
        let name = ("io.kubernetes.cri.container-name", "istio-proxy");
        for (group, annotations, passes) in [
            ("pod.slice:crio:c1", &[ASKS, crio][..], true),
            ("pod.slice:crio:c1", &[ASKS, containerd], false),
            ("machine.slice:libpod:c1", &[ASKS, crio], false),
            ("machine.slice:libpod:c1", &[ASKS, containerd], false),
            ("machine.slice:libpod:c1", &[ASKS, CONTAINER, name], false),
        ] {
            let text = format!("{{\"linux\":{{\"cgroupsPath\":\"{group}\"}}}}");
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            let refused = gated_in(folder.path(), annotations);
            assert_eq!(refused.is_none(), passes, "{group} {annotations:?}: {refused:?}");
        }
    }
}
