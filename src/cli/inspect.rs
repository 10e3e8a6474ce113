//! `rdma-ctk inspect`: what running containers were given, and which one runs without.

use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use super::explain::reasons;
use super::output::{print, render, table};
use super::root::ViewArgs;
use super::smc::connections;
use super::{Error, Exit};
use crate::daemon::children::journal::{Lying, lying};
use crate::daemon::links::journal::{Away, away};
use crate::daemon::records::{self, DaemonState, PodRecord, Record, Records, Verdict};
use crate::daemon::smc_view::{self, ContainerView};
use crate::doctor;
use crate::policy;
use crate::roots::Roots;

/// Tell what running containers were given, and why
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Only this one: container's name or identifier (or its beginning), POD, or NAMESPACE/POD
    #[arg(value_name = "CONTAINER|POD")]
    name: Option<String>,
    #[command(flatten)]
    view: ViewArgs,
}

/// Everything that is known, for programs.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    daemon: &'a Option<DaemonState>,
    containers: &'a [Record],
    pods: &'a [PodRecord],
    unheard: &'a [String],
    away: &'a [Away],
    smc: &'a [ContainerView],
    sub_interfaces: &'a [Lying],
    unreadable: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The fixture cannot be used, there is no such container, or standard output cannot be written.
pub fn run(args: &InspectArgs) -> Result<Exit, Error> {
    let trees = args.view.trees()?;
    let mut records = records::read_all(&trees.roots);
    let mut unheard = doctor::unheard(&trees.roots);
    let (mut away, problems) = away(&trees.roots);
    let (mut lying, more) = lying(&trees.roots);
    unheard.extend(problems.into_iter().chain(more));
    if let Some(name) = &args.name {
        records.containers.retain(|record| is_meant(name, record));
        records.pods.retain(|record| is_pod(name, &record.pod.namespace, &record.pod.name));
        unheard.retain(|sentence| sentence.contains(name.as_str()));
        away.retain(|away| {
            away.adapter == *name || away.pod == *name || away.pod.ends_with(&format!("/{name}"))
        });
        lying.retain(|child| {
            child.adapter == *name || child.pod == *name || child.pod.ends_with(&format!("/{name}"))
        });
        let nothing = records.containers.is_empty() && records.pods.is_empty();
        if nothing && unheard.is_empty() && away.is_empty() && lying.is_empty() {
            return Err(Error::NotOnRecord { name: name.clone() });
        }
    }
    let smc = smc(&trees.roots, &records, &mut unheard);
    let answer = Answer {
        daemon: &records.daemon,
        containers: &records.containers,
        pods: &records.pods,
        unheard: &unheard,
        away: &away,
        smc: &smc,
        sub_interfaces: &lying,
        unreadable: records.unreadable.iter().map(ToString::to_string).collect(),
    };
    let text = match render(args.view.output, &answer)? {
        Some(text) => text,
        None => describe(&records, &smc, &unheard, (&away, &lying), args.name.is_some()),
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// How connections of these containers go, of those that have SMC-R. What could not be looked at goes
/// into `problems`.
fn smc(roots: &Roots, records: &Records, problems: &mut Vec<String>) -> Vec<ContainerView> {
    let has = |record: &Record| matches!(&record.verdict, Verdict::Granted { grant } if grant.smc.is_some());
    if !records.containers.iter().any(has) {
        return Vec::new();
    }
    // A broken policy hides nothing of what runs.
    let seen = smc_view::look(roots, records, &policy::load(roots).unwrap_or_default());
    problems.extend(seen.problems);
    seen.containers
}

fn is_pod(name: &str, namespace: &str, pod: &str) -> bool {
    name == pod || name.split_once('/') == Some((namespace, pod))
}

fn is_meant(name: &str, record: &Record) -> bool {
    // Eight digits tell containers apart, and are no name that people give.
    let identifier = name.len() >= 8 && record.id.starts_with(name);
    identifier
        || record.id == name
        || record.name == name
        || is_pod(name, &record.pod.namespace, &record.pod.name)
}

/// A line for each container; all about each if one was asked for.
fn describe(
    records: &Records,
    smc: &[ContainerView],
    unheard: &[String],
    (away, lying): (&[Away], &[Lying]),
    whole: bool,
) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if !whole {
        let _ = match &records.daemon {
            None => writeln!(text, "no daemon has served since this node booted"),
            Some(DaemonState { pid, version, runtime: Some(runtime), connected, .. }) => writeln!(
                text,
                "rdma-ctk {version} (pid {pid}), {} {} {}",
                if *connected { "connected to" } else { "not connected; last to" },
                runtime.name,
                runtime.version
            ),
            Some(DaemonState { pid, version, .. }) => {
                writeln!(text, "rdma-ctk {version} (pid {pid}), not connected")
            }
        };
        if records.containers.is_empty() {
            let _ = writeln!(text, "no container on record has asked for RDMA");
        } else {
            let header = ["POD", "CONTAINER", "VERDICT", "ADAPTERS", "MEMLOCK", "CPUS", "ID"];
            text.push('\n');
            text.push_str(&table(&header, records.containers.iter().map(row)));
        }
    }
    let mut notes = String::new();
    for record in &records.containers {
        let smc = smc.iter().find(|container| container.id == record.id);
        if whole {
            detail(&mut notes, record);
            if let Some(container) = smc {
                let _ = writeln!(notes, "  SMC-R by {}: {}", container.method, container.summary);
                connections(&mut notes, container);
            }
        } else if let Some(container) = smc {
            let _ = writeln!(
                notes,
                "{} {}: SMC-R by {}: {}",
                record.pod, record.name, container.method, container.summary
            );
        } else if let Some(sentence) = sentence(&record.verdict) {
            let _ = writeln!(notes, "{} {}: {sentence}", record.pod, record.name);
        }
    }
    for record in &records.pods {
        for annotation in &record.unmatched {
            let _ = writeln!(notes, "{}: {annotation} names no container of the pod", record.pod);
        }
        for mishap in &record.mishaps {
            let _ = writeln!(notes, "{}: {mishap}", record.pod);
        }
    }
    for away in away {
        let _ = writeln!(notes, "{away}");
    }
    for child in lying {
        let _ = writeln!(notes, "{child}");
    }
    for sentence in unheard {
        let _ = writeln!(notes, "{sentence}");
    }
    for error in &records.unreadable {
        let _ = writeln!(notes, "{error}");
    }
    if !notes.is_empty() && !text.is_empty() {
        text.push('\n');
    }
    text + &notes
}

fn row(record: &Record) -> Vec<String> {
    let (word, adapters, memlock, cpus) = match &record.verdict {
        Verdict::Granted { grant } => {
            let names: Vec<&str> = grant.adapters.iter().map(|a| a.name.as_str()).collect();
            let as_it_was = || "as it was".to_owned();
            (
                "granted",
                if names.is_empty() { "-".to_owned() } else { names.join(",") },
                grant.memlock.map_or_else(as_it_was, |limit| doctor::size(limit.bytes)),
                grant.cpus.as_ref().map_or_else(as_it_was, ToString::to_string),
            )
        }
        verdict => (word(verdict), "-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let id = record.id.get(..12).unwrap_or(&record.id).to_owned();
    vec![record.pod.to_string(), record.name.clone(), word.to_owned(), adapters, memlock, cpus, id]
}

const fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Granted { .. } => "granted",
        Verdict::Refused { .. } => "refused",
        Verdict::Waived { .. } => "without, by policy",
        Verdict::Slipped { .. } => "SLIPPED THROUGH",
        Verdict::Left { .. } => "left alone",
    }
}

fn sentence(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Granted { .. } => None,
        Verdict::Refused { sentence }
        | Verdict::Waived { sentence }
        | Verdict::Slipped { sentence }
        | Verdict::Left { sentence } => Some(sentence),
    }
}

/// Everything about one container.
fn detail(text: &mut String, record: &Record) {
    let _ = writeln!(
        text,
        "{} container {}: {} {} ago ({})",
        record.pod,
        record.name,
        word(&record.verdict),
        doctor::ago(record.at),
        record.runtime
    );
    match &record.verdict {
        Verdict::Granted { grant } => {
            reasons(text, grant);
            for variable in &grant.env {
                let _ = writeln!(text, "  {}={}", variable.name, variable.value);
            }
        }
        verdict => {
            let _ = writeln!(text, "  {}", sentence(verdict).unwrap_or_default());
        }
    }
}
