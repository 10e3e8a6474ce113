//! The decision: `decide` takes a request, the inventory and the policy, and answers with a
//! [`Grant`] or a [`Refusal`]. Pure: no I/O, no clock, no async; the same inputs give the same
//! grant on every path.
//!
//! Gates come first (whose container is it, what may be used, what this path can carry), then the
//! adapters are selected, and everything else follows from them: nodes, memlock, CPUs, GIDs,
//! environment. Each part says what it decided, so that `explain` has nothing to work out.

mod addresses;
mod capabilities;
mod check;
mod children;
mod claims;
mod cpuset;
mod digest;
mod environment;
mod exclusive;
mod files;
mod gates;
mod gid;
mod gpus;
mod limits;
mod memlock;
mod nodes;
mod pairs;
mod selection;
mod sight;
mod smc;
mod words;

pub use children::{Made, Present, Wanted, children, is_child, together, word};
pub use cpuset::{Resent, resend};
pub use digest::spread;
pub use exclusive::{Moving, Use, exclusive, interfaces, is_movable};
pub use smc::{LIBRARY, PNET_OURS, PnetGrant, SmcFacts, SmcGrant};

use serde::{Deserialize, Serialize};

use crate::inventory::{CpuSet, Hca, Node, PciAddress, PodView};
use crate::policy::{Allowance, OnRefusal, Policy};
use crate::request::{Devices, Request, SmcMethod};
use gid::Placed;
use sight::Sight;

/// What is known of the machine when a container is decided about.
#[derive(Debug, Clone, Copy)]
pub struct Inventory<'a> {
    /// The node.
    pub node: &'a Node,
    /// The network namespace that the container runs in.
    pub pod: &'a PodView,
    /// The topology file that policy names, else the vendor's; `None`: there is none, or nobody looked.
    pub topology: Option<TopologyFile>,
    /// What the kernel has of SMC; `None`: nobody looked.
    pub smc: Option<&'a SmcFacts>,
    /// The sub-interfaces that were made for the pod; `None`: nobody looked, or none was asked for.
    pub children: Option<&'a [Made]>,
}

impl<'a> Inventory<'a> {
    /// An inventory without a topology file, SMC and sub-interfaces.
    pub const fn of(node: &'a Node, pod: &'a PodView) -> Self {
        Self { node, pod, topology: None, smc: None, children: None }
    }
}

/// What was seen of the node's topology file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyFile {
    /// There is no regular file by the path that policy names.
    Missing,
    /// It is there.
    Present {
        /// Permission bits.
        mode: u32,
    },
    /// Policy names none, and the vendor's daemon has left one
    /// ([`TOPOLOGYD`](crate::inventory::topologyd::TOPOLOGYD)).
    Vendor {
        /// Permission bits.
        mode: u32,
    },
}

/// What `decide` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// Nothing was asked: the container stays byte for byte as it was.
    NotAsked,
    /// It asked, and is left byte for byte as it was all the same: it is somebody else's, or has
    /// its grant already.
    LeftAlone {
        /// Why, as a sentence.
        reason: String,
    },
    /// What the container gets.
    Granted(Box<Grant>),
    /// It gets nothing and does not start.
    Refused(Refusal),
    /// It gets nothing and starts all the same, since policy says so (`on_refusal = "warn"`): to
    /// be logged, counted and shown.
    Waived(Refusal),
}

/// The decision for one container. Editors translate it and decide nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Adapters, in the order in which they were asked for.
    pub adapters: Vec<Adapter>,
    /// Device nodes to add, `rdma_cm` once.
    pub devices: Vec<DeviceNode>,
    /// Locked-memory limit to set; `None`: the present one suffices or is to stay.
    pub memlock: Option<MemlockGrant>,
    /// Capabilities to add (upper case, without `CAP_`).
    pub capabilities: Vec<String>,
    /// CPUs to run on; `None`: as they are.
    pub cpus: Option<CpuSet>,
    /// Memory nodes to allocate from; `None`: as they are.
    pub mems: Option<CpuSet>,
    /// CPUs next to the adapters, to which a CPU set is narrowed that the kubelet sends later;
    /// `None`: such a set is none of ours.
    #[serde(default)]
    pub near: Option<CpuSet>,
    /// Variables to set; what the container has already is never among them.
    pub env: Vec<Variable>,
    /// Files of ours to bind, read-only.
    pub files: Vec<GrantedFile>,
    /// Files of the host to bind, read-only (a topology file that policy names).
    pub mounts: Vec<GrantedMount>,
    /// cgroup v2 files: name and value (`rdma.max`).
    pub unified: Vec<(String, String)>,
    /// SMC-R for its TCP sockets.
    #[serde(default)]
    pub smc: Option<SmcGrant>,
    /// What the user should know, a sentence each.
    pub warnings: Vec<String>,
    /// Every decision with its reason, in the order made: what `explain` prints.
    pub reasons: Vec<Reason>,
}

/// A granted adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Kernel name.
    pub name: String,
    /// PCI function.
    pub pci: Option<PciAddress>,
    /// ACTIVE ports.
    pub ports: Vec<u32>,
    /// Whether the program can use it as it stands: a RoCE adapter without an interface in the
    /// pod is granted, but left out of the lists for NCCL and UCX under some policies.
    pub usable: bool,
    /// For each RoCE port, the GID table slot to use.
    pub gids: Vec<ChosenGid>,
}

impl Adapter {
    /// The adapter as it stands, without GIDs.
    fn of(hca: &Hca) -> Self {
        let ports = hca.active_ports().map(|port| port.number).collect();
        Self { name: hca.name.clone(), pci: hca.pci, ports, usable: true, gids: Vec::new() }
    }
}

/// The GID that a program should use on a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenGid {
    /// Port.
    pub port: u32,
    /// Slot of the GID table.
    pub index: u32,
    /// The address that it stands for.
    pub address: std::net::IpAddr,
    /// Prefix length of that address, where the interface was seen.
    pub prefix: Option<u8>,
}

/// A device node to add, with a rule for the device cgroup (`rw`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Path in the container, the same as on the node.
    pub path: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Only the cgroup rule is added: a bind mount of the host's folder has the node already
    /// (creating one there would write into the host's `/dev`).
    pub rule_only: bool,
}

/// Locked-memory limit to set: soft and hard alike, unless a higher hard one is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemlockGrant {
    /// Bytes; `u64::MAX` is no limit.
    pub bytes: u64,
    /// The hard limit in bytes, where the container has a higher one than `bytes`: a limit is
    /// never lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub higher_hard: Option<u64>,
}

impl MemlockGrant {
    /// The hard limit to set, in bytes.
    pub fn hard(self) -> u64 {
        self.higher_hard.map_or(self.bytes, |hard| hard.max(self.bytes))
    }
}

/// An environment variable to set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A file that rdma-ctk writes (mode 0444) and binds into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedFile {
    /// Path in the container.
    pub path: String,
    /// Its text.
    pub content: String,
}

/// A file or folder of the host that is bound read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedMount {
    /// Path on the host, from policy, never from a tenant.
    pub source: String,
    /// Path in the container.
    pub destination: String,
    /// It holds code to be run, a library: else the mount forbids that.
    #[serde(default)]
    pub executable: bool,
}

/// One decision, for `explain` and `inspect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What it is about: `devices`, `memlock`, `cpus`, `env`, `gid`, …
    pub about: String,
    /// A sentence.
    pub text: String,
}

/// Why a container gets nothing: one sentence that names the annotation, the device and what the
/// node does have. Without the `rdma-ctk:` prefix, which the outermost edge adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// The sentence.
    pub sentence: String,
}

/// Decides about one container. Total: every input gets an outcome, none panics; the same inputs
/// get the same outcome.
pub fn decide(request: &Request, inventory: &Inventory<'_>, policy: &Policy) -> Outcome {
    let taken_out = request.devices == Some(Devices::None) && request.smc == SmcMethod::Off;
    if !request.asks() || taken_out {
        return Outcome::NotAsked;
    }
    if let Some(reason) = gates::not_ours(request, policy) {
        return Outcome::LeftAlone { reason };
    }
    let allowance = policy.allowance(&request.container.pod);
    let sight = Sight::of(inventory.node, inventory.pod);
    let case = Case {
        request,
        node: inventory.node,
        pod: inventory.pod,
        sight: &sight,
        topology: inventory.topology,
        smc: inventory.smc,
        moving: None,
        present: &[],
        children: inventory.children,
        policy,
        allowance: &allowance,
    };
    let outcome = match (&request.devices, &request.claim) {
        (None, Some(claim)) => claims::decide(&case, claim),
        _ => match granted(&case) {
            Ok(grant) => Outcome::Granted(Box::new(grant)),
            Err(refusal) => Outcome::Refused(refusal),
        },
    };
    match accelerated(&case, outcome) {
        Ok(outcome) => outcome,
        Err(refusal) if allowance.on_refusal == OnRefusal::Warn => Outcome::Waived(refusal),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

/// With SMC-R for who asked for that, whatever else is granted or left.
fn accelerated(case: &Case<'_>, outcome: Outcome) -> Result<Outcome, Refusal> {
    let mut notes = Notes::default();
    let mut grant = match outcome {
        Outcome::Granted(grant) => grant,
        Outcome::LeftAlone { reason } if case.request.smc != SmcMethod::Off => {
            notes.reason("claim", reason);
            Box::default()
        }
        Outcome::Refused(refusal) => return Err(refusal),
        outcome => return Ok(outcome),
    };
    smc::add(case, &mut grant, &mut notes)?;
    grant.warnings.extend(notes.warnings);
    grant.reasons.extend(notes.reasons);
    Ok(Outcome::Granted(grant))
}

/// The grant of a container that named devices, or SMC-R alone.
fn granted(case: &Case<'_>) -> Result<Grant, Refusal> {
    let mut notes = Notes::default();
    if matches!(case.request.devices, None | Some(Devices::None)) {
        gates::check_without_devices(case, &mut notes)?;
        return Ok(Grant { warnings: notes.warnings, reasons: notes.reasons, ..Grant::default() });
    }
    gates::check(case, &mut notes)?;
    let hcas = selection::select(case, &mut notes)?;
    children::remark(case, &hcas, &mut notes);
    let mut grant = Grant {
        devices: nodes::add(case, &hcas, &mut notes)?,
        memlock: memlock::raise(case, &mut notes)?,
        capabilities: case.request.capabilities.iter().cloned().collect(),
        unified: limits::limit(case, &hcas, &mut notes)?,
        ..Grant::default()
    };
    capabilities::remark(case, &hcas, &mut notes);
    cpuset::place(case, &hcas, &mut notes)?.into_grant(&mut grant);
    let placed = gid::choose(case, &hcas, &mut notes)?;
    finish(case, placed, &mut grant, &mut notes);
    grant.warnings = notes.warnings;
    grant.reasons = notes.reasons;
    Ok(grant)
}

/// Adds what programs need to know of adapters that are theirs: variables and files.
fn finish(case: &Case<'_>, placed: Vec<Placed<'_>>, grant: &mut Grant, notes: &mut Notes) {
    let pairs = pairs::pairs(case, &placed);
    let topology = files::topology(case, notes);
    let sources = environment::Sources {
        placed: &placed,
        pairs: &pairs,
        topology: topology.as_ref().map(|(_, path)| *path),
    };
    check::check(case, &placed, notes);
    grant.env = environment::write(case, &sources, notes);
    grant.files = files::files(case, &grant.env, &pairs, notes);
    grant.mounts = topology.into_iter().map(|(mount, _)| mount).collect();
    grant.adapters = placed.into_iter().map(|placed| placed.adapter).collect();
}

/// Everything that one decision looks at.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    request: &'a Request,
    node: &'a Node,
    pod: &'a PodView,
    sight: &'a Sight<'a>,
    topology: Option<TopologyFile>,
    smc: Option<&'a SmcFacts>,
    /// Set where it is decided what moves into the pod.
    moving: Option<&'a Moving>,
    /// Sub-interfaces of all pods, where it is decided which are made.
    present: &'a [Present],
    /// Those of the pod; `None`: which are made is yet to be decided.
    children: Option<&'a [Made]>,
    policy: &'a Policy,
    allowance: &'a Allowance,
}

/// What is said about a decision while it is made.
#[derive(Debug, Default)]
struct Notes {
    warnings: Vec<String>,
    reasons: Vec<Reason>,
}

impl Notes {
    /// Writes down what was decided about something, and why.
    fn reason(&mut self, about: &str, text: impl Into<String>) {
        self.reasons.push(Reason { about: about.to_owned(), text: text.into() });
    }

    /// Tells the user something; a reason too, so that the order of `explain` is the order of
    /// the decisions.
    fn warn(&mut self, about: &str, text: impl Into<String>) {
        let text = text.into();
        self.reasons.push(Reason { about: about.to_owned(), text: text.clone() });
        self.warnings.push(text);
    }
}

#[cfg(test)]
pub(crate) mod proptests;
#[cfg(test)]
pub(crate) mod tests;
