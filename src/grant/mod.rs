//! The decision: `decide` takes a request, the inventory and the policy, and answers with a
//! [`Grant`] or a [`Refusal`]. Pure: no I/O, no clock, no async; the same inputs give the same
//! grant on every path.

use serde::{Deserialize, Serialize};

use crate::inventory::{CpuSet, PciAddress};

/// What `decide` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// Nothing was asked: the container stays byte for byte as it was.
    NotAsked,
    /// What the container gets.
    Granted(Box<Grant>),
    /// It gets nothing and does not start.
    Refused(Refusal),
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
    /// Variables to set; what the container has already is never among them.
    pub env: Vec<Variable>,
    /// Files of ours to bind, read-only.
    pub files: Vec<GrantedFile>,
    /// Files of the host to bind, read-only (a topology file that policy names).
    pub mounts: Vec<GrantedMount>,
    /// cgroup v2 files: name and value (`rdma.max`).
    pub unified: Vec<(String, String)>,
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

/// Locked-memory limit to set: soft and hard alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemlockGrant {
    /// Bytes; `u64::MAX` is no limit.
    pub bytes: u64,
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
