//! `rdma-ctk-probe`: run inside a container, tells on one screen what works and the first thing
//! that does not.
//!
//! It looks from the nearest to the furthest: device nodes, the image's libraries, the device
//! itself, memory, port and GID, a ping-pong of the adapter with itself, rdma_cm. Each step is a
//! module, a pure function of what was seen; [`Machine`] sees.
//!
//! The probe is meant to be copied or mounted into any image, so it links nothing of RDMA and can
//! be a static program. What needs the image's own libibverbs is done by the verbs part, a second
//! small program that it carries and gives to the image's own dynamic loader, be that glibc's or
//! musl's (`program/` and build.rs); a provider that crashes or hangs takes that one along only.

mod abi;
mod cm;
pub mod command;
mod gid;
#[cfg(test)]
mod layout;
mod machine;
mod memory;
mod nodes;
mod pingpong;
mod show;
#[cfg(test)]
mod tests;
mod verbs;

use std::path::Path;

use serde::Serialize;

pub use machine::{Live, Machine};
pub use show::screen;
pub use verbs::{Bandwidth, Ended, Fault, Latency, Missing, PortSaid, Transcript};

use crate::inventory::{Hca, Node};
use crate::roots::Roots;

/// How it ended, for scripts: what the first failure is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Exit {
    /// Everything that this container was given works.
    Works = 0,
    /// The probe itself could not do its work.
    Failure = 1,
    /// The command line is wrong. clap ends the program with this code by itself.
    Usage = 2,
    /// There is no adapter here, or none of them was given to this container.
    NoDevice = 3,
    /// A node is there and cannot be opened: device cgroup, mode, or a stale node.
    Node = 4,
    /// The image has no libibverbs that can be loaded.
    NoLibrary = 5,
    /// libibverbs has no provider for the adapter, or cannot open it.
    Device = 6,
    /// Too little memory can be registered.
    Memory = 7,
    /// No port is up, or it has no GID that reaches anybody.
    Port = 8,
    /// The adapter cannot talk to itself.
    Traffic = 9,
    /// rdma_cm was given and does not work.
    Cm = 10,
}

/// What a finding is about, in the order in which things depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Device nodes.
    Nodes,
    /// libibverbs, its provider for the adapter, and the kernel's ABI.
    Library,
    /// Opening the adapter by the library.
    Device,
    /// Registering memory.
    Memory,
    /// Port and GID.
    Gid,
    /// Traffic of the adapter with itself.
    Pingpong,
    /// The connection manager.
    RdmaCm,
}

impl Stage {
    /// As printed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Library => "library",
            Self::Device => "device",
            Self::Memory => "memory",
            Self::Gid => "gid",
            Self::Pingpong => "pingpong",
            Self::RdmaCm => "rdma_cm",
        }
    }
}

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Works.
    Ok,
    /// Was not tried, or is not there and need not be.
    Note,
    /// Works, and will not do for some programs.
    Warn,
    /// Does not work.
    Fail,
}

/// One line of the screen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub stage: Stage,
    /// Adapter's kernel name; `None` for what concerns all of them.
    pub adapter: Option<String>,
    /// How good.
    pub level: Level,
    /// What is the case, with the device, file or number.
    pub sentence: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// For [`Level::Fail`]: the exit code, if this is the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
}

impl Finding {
    fn new(stage: Stage, level: Level, sentence: impl Into<String>) -> Self {
        Self { stage, adapter: None, level, sentence: sentence.into(), fix: None, exit: None }
    }

    fn ok(stage: Stage, sentence: impl Into<String>) -> Self {
        Self::new(stage, Level::Ok, sentence)
    }

    fn note(stage: Stage, sentence: impl Into<String>) -> Self {
        Self::new(stage, Level::Note, sentence)
    }

    fn warn(stage: Stage, sentence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..Self::new(stage, Level::Warn, sentence) }
    }

    fn fail(stage: Stage, exit: Exit, sentence: impl Into<String>, fix: impl Into<String>) -> Self {
        let finding = Self::new(stage, Level::Fail, sentence);
        Self { fix: Some(fix.into()), exit: Some(exit), ..finding }
    }

    fn of(self, hca: &Hca) -> Self {
        Self { adapter: Some(hca.name.clone()), ..self }
    }
}

/// What was measured of one adapter that could be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Kernel name.
    pub name: String,
    /// Driver.
    pub driver: String,
    /// Port that was used, from 1.
    pub port: Option<u32>,
    /// Slot of its GID table that was used.
    pub gid_index: Option<u32>,
    /// Whether that slot is this container's own: the one to use.
    pub gid_is_own: bool,
    /// Most bytes that were registered at once.
    pub registered: u64,
    /// The step at which registration failed, in bytes.
    pub registration_failed: Option<u64>,
    /// Round trips halved.
    pub latency: Option<Latency>,
    /// Writes.
    pub bandwidth: Option<Bandwidth>,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether everything that this container was given works.
    pub works: bool,
    /// Exit code of the program.
    pub exit: u8,
    /// The same in a word.
    pub result: Exit,
    /// Version of the probe.
    pub version: &'static str,
    /// Release of the kernel; empty where it cannot be told.
    pub kernel: String,
    /// The first thing that does not work.
    pub first_failure: Option<Finding>,
    /// Everything, in the order of [`Stage`].
    pub findings: Vec<Finding>,
    /// Numbers of the adapters that could be opened.
    pub adapters: Vec<Measured>,
}

/// What to look at, and how hard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only these adapters, by kernel name; empty: all.
    pub devices: Vec<String>,
    /// Bytes of memory to register at most.
    pub memory: u64,
    /// Milliseconds for each of the two measurements; 0: no traffic.
    pub traffic: u64,
}

/// Where the probe is: the trees, and the root of the image.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// sys, proc and dev.
    pub roots: &'a Roots,
    /// Root of the image's files.
    pub image: &'a Path,
    /// What the kernel shows in here.
    pub node: &'a Node,
}

/// Looks at everything.
pub fn run(machine: &dyn Machine, place: &Place<'_>, options: &Options) -> Report {
    let mut findings = Vec::new();
    let wanted = nodes::wanted(place, options, &mut findings);
    let given = nodes::check(machine, place, &wanted, &mut findings);
    let listing = machine.verbs(&[]);
    let known = abi::check(place, &given, &listing, &mut findings);
    let plan = memory::Plan::of(machine, place, options.memory);
    let mut adapters = Vec::new();
    for hca in &known {
        let choice = gid::choose(machine, place, hca, &mut findings);
        let traffic = if choice.has_traffic { options.traffic } else { 0 };
        let transcript = machine.verbs(&[
            hca.name.clone(),
            choice.port.unwrap_or(1).to_string(),
            choice.index.unwrap_or(0).to_string(),
            plan.most.to_string(),
            traffic.to_string(),
        ]);
        abi::opened(hca, &transcript, &mut findings);
        memory::check(hca, &plan, &transcript, &mut findings);
        pingpong::check(hca, &choice, traffic, &transcript, &mut findings);
        let failed = transcript.memory.iter().find(|(_, errno)| *errno != 0);
        adapters.push(Measured {
            name: hca.name.clone(),
            driver: hca.driver.0.clone(),
            port: choice.port,
            gid_index: choice.index,
            gid_is_own: choice.is_own,
            registered: memory::registered(&transcript),
            registration_failed: failed.map(|(bytes, _)| *bytes),
            latency: transcript.latency,
            bandwidth: transcript.bandwidth,
        });
    }
    if known.is_empty() {
        memory::limit_only(&plan, &mut findings);
    }
    cm::check(machine, place, &given, &mut findings);
    finish(place, findings, adapters)
}

/// Puts the findings in order.
fn finish(place: &Place<'_>, mut findings: Vec<Finding>, adapters: Vec<Measured>) -> Report {
    // Stable: adapters stay in the node's order.
    findings.sort_by_key(|finding| finding.stage);
    let first_failure = findings.iter().find(|finding| finding.level == Level::Fail).cloned();
    let result =
        first_failure.as_ref().map_or(Exit::Works, |failure| failure.exit.unwrap_or(Exit::Failure));
    let release = place.roots.proc.join("sys/kernel/osrelease");
    Report {
        works: result == Exit::Works,
        exit: result as u8,
        result,
        version: env!("CARGO_PKG_VERSION"),
        kernel: std::fs::read_to_string(release).unwrap_or_default().trim().to_owned(),
        first_failure,
        findings,
        adapters,
    }
}
