//! What a container asks for, whichever dialect asked it, and what it already is.
//!
//! Annotations, claims and vendors' keys are tenant input. They are parsed here, once, into a
//! [`Request`]; nothing later sees their text except to quote it.

pub mod annotations;
pub mod capability;
pub mod claim;
pub mod nccl;
pub mod nearest;
pub mod quantity;

mod address;
mod dialect;
mod error;
mod key;
mod printable;
mod value;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::inventory::{CpuSet, Node, PciAddress};
use crate::policy::{Claims, Policy};

pub use address::{AddressRequest, FixedAddress};
pub use annotations::parse;
pub use error::{Problem, RequestError};
pub use key::{
    MARKER, POD_NETWORKS, TOLERATE, carries_grant, mentions_us, slips, unmatched_scopes,
};
pub(crate) use printable::is_unprintable;

/// Suffix of every annotation key of ours.
pub const SUFFIX: &str = "rdma-ctk.io";

/// Everything that is asked for one container. `devices: None` and no claim: nothing is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The container, as its runtime shows it before we touch it.
    pub container: Container,
    /// The path that carries the grant to the runtime, and what it is able to carry.
    pub carrier: Carrier,
    /// Opt-in: which adapters. `None`: no key that names devices reached this container.
    pub devices: Option<Devices>,
    /// Which device nodes of the adapters.
    pub nodes: BTreeSet<NodeKind>,
    /// Locked-memory limit.
    pub memlock: Memlock,
    /// Capabilities (upper case, without `CAP_`).
    pub capabilities: BTreeSet<String>,
    /// CPUs next to the adapters.
    pub numa: NumaMode,
    /// Environment for NCCL, UCX and others.
    pub env: EnvMode,
    /// How the adapter's network side reaches the pod.
    pub netns: NetnsRequest,
    /// Addresses of sub-interfaces.
    #[serde(default)]
    pub address: AddressRequest,
    /// SMC-R for ordinary TCP.
    pub smc: SmcMethod,
    /// Sysctls of SMC to set in the pod, without `net.smc.`.
    #[serde(default)]
    pub smc_sysctls: BTreeMap<String, u32>,
    /// rdma cgroup limits, for each granted adapter.
    pub limits: Option<Limits>,
    /// Refuse instead of warn.
    pub require: BTreeSet<Requirement>,
    /// Adapters that somebody else's plugin has already given.
    pub claim: Option<Claim>,
    /// Which annotation said so, for each key that was found: for messages.
    pub asked_by: BTreeMap<Key, Asked>,
    /// What was noticed while parsing and refuses nothing, a sentence each.
    pub remarks: Vec<String>,
}

impl Request {
    /// Everything that one container asks for, by its pod's annotations and by what another plugin
    /// has put into it.
    ///
    /// # Errors
    /// An annotation that reaches this container cannot be understood.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        container: Container,
        carrier: Carrier,
        policy: &Policy,
        node: &Node,
    ) -> Result<Self, RequestError> {
        let claim = match policy.claims {
            Claims::Off => None,
            Claims::Limit | Claims::Full => claim::recognise(&container, node),
        };
        parse(annotations, container, carrier, policy, claim)
    }

    /// The request of a container that asks for nothing.
    pub fn nothing(container: Container, carrier: Carrier) -> Self {
        Self {
            container,
            carrier,
            devices: None,
            nodes: BTreeSet::from([NodeKind::Uverbs, NodeKind::RdmaCm]),
            memlock: Memlock::default(),
            capabilities: BTreeSet::new(),
            numa: NumaMode::default(),
            env: EnvMode::default(),
            netns: NetnsRequest::default(),
            address: AddressRequest::default(),
            smc: SmcMethod::default(),
            smc_sysctls: BTreeMap::new(),
            limits: None,
            require: BTreeSet::new(),
            claim: None,
            asked_by: BTreeMap::new(),
            remarks: Vec::new(),
        }
    }

    /// Whether the container asked for anything at all, by key or by claim. When false the
    /// container is left byte for byte as it was.
    pub fn asks(&self) -> bool {
        self.devices.as_ref().is_some_and(|devices| *devices != Devices::None)
            || self.claim.is_some()
            || self.smc != SmcMethod::Off
    }
}

/// A key of ours, without suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Key {
    /// `devices.rdma-ctk.io`
    Devices,
    /// `nodes.rdma-ctk.io`
    Nodes,
    /// `memlock.rdma-ctk.io`
    Memlock,
    /// `capabilities.rdma-ctk.io`
    Capabilities,
    /// `numa.rdma-ctk.io`
    Numa,
    /// `env.rdma-ctk.io`
    Env,
    /// `netns.rdma-ctk.io`
    Netns,
    /// `address.rdma-ctk.io`
    Address,
    /// `smc.rdma-ctk.io`
    Smc,
    /// `limits.rdma-ctk.io`
    Limits,
    /// `require.rdma-ctk.io`
    Require,
}

impl Key {
    /// All keys, in the order of the documentation.
    pub const ALL: [Self; 11] = [
        Self::Devices,
        Self::Nodes,
        Self::Memlock,
        Self::Capabilities,
        Self::Numa,
        Self::Env,
        Self::Netns,
        Self::Address,
        Self::Smc,
        Self::Limits,
        Self::Require,
    ];

    /// First part of the annotation key.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Nodes => "nodes",
            Self::Memlock => "memlock",
            Self::Capabilities => "capabilities",
            Self::Numa => "numa",
            Self::Env => "env",
            Self::Netns => "netns",
            Self::Address => "address",
            Self::Smc => "smc",
            Self::Limits => "limits",
            Self::Require => "require",
        }
    }

    /// The annotation key without scope: `devices.rdma-ctk.io`.
    pub fn annotation(self) -> String {
        format!("{}.{SUFFIX}", self.word())
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The whole annotation key, scope included.
    pub annotation: String,
    /// Its value as typed.
    pub value: String,
}

/// Value of `devices`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Devices {
    /// `none`: this container is taken out.
    None,
    /// `all` that policy allows and that qualify (design: section 4).
    All,
    /// The best N.
    Count(u32),
    /// Those that match, each selector at least one.
    Select(Vec<Selector>),
}

/// One selector of `devices`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Selector {
    /// Kernel name; `*` stands for any run of characters.
    Name(String),
    /// `pci:0000:3b:00.0`
    Pci(PciAddress),
    /// `netdev:eth1`
    Netdev(String),
    /// `driver:efa`
    Driver(String),
    /// `link:roce`
    Link(Link),
    /// `numa:1`
    Numa(u32),
    /// `gpu`: nearest to the GPUs of this container.
    Gpu,
    /// `rail:0,2`: places in the node's rail list.
    Rail(Vec<u32>),
}

/// Word of a `link:` selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// InfiniBand link layer (`ib`, `infiniband`).
    InfiniBand,
    /// Ethernet, node type CA (`roce`).
    Roce,
    /// Ethernet, node type RNIC (`iwarp`).
    Iwarp,
    /// Neither (EFA; `other`).
    Other,
}

/// Kind of device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// `uverbsN`
    Uverbs,
    /// `rdma_cm`
    RdmaCm,
    /// `umadN`: needs policy
    Umad,
    /// `issmN`: needs policy
    Issm,
}

/// Value of `memlock`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memlock {
    /// No limit.
    #[default]
    Unlimited,
    /// Bytes.
    Bytes(u64),
}

/// Value of `numa`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaMode {
    /// Narrow the CPUs where that is safe, else warn.
    #[default]
    Prefer,
    /// The same, memory nodes too, and refuse where it cannot be done.
    Strict,
    /// Leave CPUs alone.
    Off,
}

/// Value of `env`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvMode {
    /// For which libraries variables are written; empty is `off`.
    pub families: BTreeSet<EnvFamily>,
    /// `file`: an nccl.conf beside the variables.
    pub file: bool,
}

impl Default for EnvMode {
    /// `auto`: every family, no file.
    fn default() -> Self {
        Self { families: EnvFamily::ALL.into_iter().collect(), file: false }
    }
}

/// A library that reads its configuration from the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvFamily {
    /// NCCL and RCCL
    Nccl,
    /// UCX
    Ucx,
    /// NVSHMEM
    Nvshmem,
    /// Open MPI, MPICH
    Mpi,
}

impl EnvFamily {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Nccl, Self::Ucx, Self::Nvshmem, Self::Mpi];
}

/// Value of `netns`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum NetnsRequest {
    /// Whatever needs no move.
    #[default]
    Auto,
    /// The adapter stays with the host.
    Shared,
    /// The adapter moves into the pod.
    Exclusive,
    /// An ipvlan child of the adapter's interface.
    Ipvlan,
    /// A macvlan child of the adapter's interface.
    Macvlan,
    /// The pod is in the host's namespace and wants to be.
    Host,
}

/// Value of `smc`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum SmcMethod {
    /// Plain TCP stays plain TCP.
    #[default]
    Off,
    /// The best that the kernel has.
    Auto,
    /// Sysctl of Alibaba kernels.
    Tcp2smc,
    /// fmod_ret program.
    Bpf,
    /// LD_PRELOAD.
    Preload,
}

/// Value of `limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open contexts.
    pub hca_handle: Option<u32>,
    /// Verbs objects.
    pub hca_object: Option<u32>,
}

/// One word of `require`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// The rdma_cm node must be there.
    #[serde(rename = "rdma_cm")]
    RdmaCm,
    /// GPUDirect must be possible.
    Gpudirect,
    /// Each RoCE adapter must have an interface in the pod.
    RoceInterface,
    /// The GID to use must be known.
    Gid,
}

/// Adapters that another plugin gave to this container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// How it was recognised, in words: for messages.
    pub by: String,
    /// uverbs nodes that are in the container, by device number; the inventory knows whose.
    pub uverbs: BTreeSet<(u32, u32)>,
    /// Adapters named by kernel name or PCI address in a CDI name or variable.
    pub names: BTreeSet<String>,
}

/// What the runtime shows of a container before we touch it. A field is `None` where the runtime
/// does not show it, which is not the same as the container not having it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Identifier that the runtime gave.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// The pod around it.
    pub pod: Pod,
    /// User of the first process.
    pub uid: Option<u32>,
    /// It has a user namespace of its own.
    pub user_namespace: bool,
    /// `process.args`.
    pub args: Vec<String>,
    /// Environment, in order; a name without `=` has an empty value.
    pub env: Vec<(String, String)>,
    /// Mount destinations with their source and type.
    pub mounts: Vec<Mount>,
    /// Device nodes that are in it already.
    pub devices: Vec<Device>,
    /// Its device cgroup allows everything (privileged).
    pub all_devices: bool,
    /// Capabilities of the bounding set, upper case without `CAP_`.
    pub capabilities: Option<BTreeSet<String>>,
    /// `RLIMIT_MEMLOCK`.
    pub memlock: Limit,
    /// Hard limit of locked memory in bytes, of the same origin; `None`: unknown.
    #[serde(default)]
    pub memlock_hard: Option<u64>,
    /// CPUs that it was given by somebody before us; `None`: nobody said.
    pub cpus: Option<CpuSet>,
    /// The CPUs were set by an earlier plugin of the same runtime, which owns them.
    pub cpus_owned: Option<String>,
    /// Memory nodes that it was given.
    pub mems: Option<CpuSet>,
    /// CPUs of the group that it will run in (`cpuset.cpus.effective` of the parent); `None`:
    /// unknown.
    pub parent_cpus: Option<CpuSet>,
    /// CPU limit in thousandths of a CPU (quota / period); `None`: no limit.
    pub cpu_limit_milli: Option<u64>,
    /// CPU shares (cgroup v1 scale), with which exclusive CPUs are told from a shared pool.
    pub cpu_shares: Option<u64>,
    /// CDI names that were injected.
    pub cdi: Vec<String>,
    /// A file bound at `/etc/nccl.conf` can be filled in once the container's network is there, and
    /// hides none of the image's.
    pub nccl_conf_later: bool,
    /// The container already carries a grant of ours (annotation in its document).
    pub granted_before: bool,
}

/// The pod around a container; for a plain container, itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// UID given by the kubelet, else the sandbox's identifier.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Namespace: what the API server put there, so policy may trust it.
    pub namespace: String,
    /// Runtime handler: the admin's configuration names it, so policy may trust it.
    pub runtime_handler: String,
    /// Labels: the tenant's, so they may only narrow.
    pub labels: BTreeMap<String, String>,
    /// It shares the host's network namespace.
    pub host_network: bool,
    /// What is empty above because nobody tells.
    pub unknown: Unknown,
}

/// What the path does not tell of a pod: no engine writes it into the documents of containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unknown {
    /// Its runtime handler.
    pub runtime_handler: bool,
    /// Its labels.
    pub labels: bool,
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path in the container.
    pub destination: String,
    /// Path on the host, or the type's name.
    pub source: String,
    /// File system type; `bind` for bind mounts.
    pub kind: String,
}

/// A device node in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path in the container.
    pub path: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// A limit as it can be seen from where we stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The runtime does not show limits.
    #[default]
    Invisible,
    /// The container has no entry of its own: it inherits that of the process that starts it,
    /// given here in bytes where it could be read (`u64::MAX` is no limit).
    Inherited(Option<u64>),
    /// The container's own entry, soft limit in bytes (`u64::MAX` is no limit).
    Own(u64),
}

/// The way from a grant to the container, and what it can carry (design: section 5). A request
/// for what it cannot carry is refused with `lacks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carrier {
    /// For messages: `NRI on containerd 2.1.9`.
    pub name: String,
    /// Which of our ways this is.
    pub path: CarrierPath,
    /// Device nodes.
    pub devices: Can,
    /// Rules for the device cgroup without a node.
    pub device_rules: Can,
    /// Rlimits.
    pub rlimits: Can,
    /// Capabilities.
    pub capabilities: Can,
    /// CPU set.
    pub cpuset: Can,
    /// cgroup v2 files such as `rdma.max`.
    pub unified: Can,
    /// Sysctls of the container's network namespace.
    pub sysctl: Can,
    /// Several lines in one of these files, which want a write each (runc 1.2).
    pub unified_lines: Can,
    /// The limit that this path itself may raise to: `None` is any (CAP_SYS_RESOURCE), else the
    /// hard limit in bytes that bounds it.
    pub memlock_ceiling: Option<u64>,
}

/// A way to a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CarrierPath {
    /// The NRI plugin.
    #[default]
    Nri,
    /// The runtime wrapper.
    Wrapper,
    /// The precreate hook.
    Hook,
    /// A CDI file.
    Cdi,
}

/// Whether a path can carry something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Can {
    /// It can.
    #[default]
    Yes,
    /// It cannot, and this sentence says what would.
    No(String),
}
