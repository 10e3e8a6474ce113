//! What the admin allows: `config.toml` read into a [`Policy`].
//!
//! Only a pod's namespace and its runtime handler can be trusted: the API server and the node's
//! own configuration put them there. They choose the rule. Labels and pod names are the tenant's
//! own words: they may take away from what the rule gives ([`Narrowing`]) and add nothing.
//! Where one of these is not known, whatever goes by it may only take away too.

mod allowance;
mod choice;
mod parse;
mod pools;
mod smc;
mod wrapper;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use allowance::{Allowance, Narrowing, OnRefusal};
pub use parse::{LoadError, PolicyError, load, path};
pub use pools::{Pool, Pools, Range, RangeError};
pub use smc::{Smc, is_eid};
pub use wrapper::{Wrapper, wrapped_runtime};

use crate::request::Pod;

/// The file that `rdma-ctk config default` prints: every key with its default, commented out.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// The closed variant, which `rdma-ctk config default --multi-tenant` prints: nobody gets anything
/// that no rule gives.
pub const MULTI_TENANT_TOML: &str = include_str!("multi-tenant.toml");

/// The whole policy of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Policy {
    /// Containers by these names are kept out of pod-wide keys.
    pub skip_containers: BTreeSet<String>,
    /// Runtime handlers whose containers belong to the runtime wrapper, not to NRI.
    pub wrapper_handlers: BTreeSet<String>,
    /// What happens to an allocation made by another plugin.
    pub claims: Claims,
    /// Adapters of each rail, in order, by kernel name or PCI address; empty: derived.
    pub rails: Vec<String>,
    /// A file of the host for `NCCL_TOPO_FILE`, bound read-only.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "parse::absolute_path")]
    pub topology_file: Option<String>,
    /// What is done for pods that were written for a vendor's own plugin.
    pub dialects: Dialects,
    /// Adapters that move into pods, and sub-interfaces of those that do not.
    pub links: Links,
    /// Runtime handlers whose containers have a kernel of their own.
    pub sandboxes: Sandboxes,
    /// SMC-R.
    pub smc: Smc,
    /// The daemon itself.
    pub daemon: Daemon,
    /// The node's CDI file.
    pub cdi: Cdi,
    /// The runtime wrapper itself.
    pub wrapper: Wrapper,
    /// What a pod may have that no rule matches.
    pub default: Allowance,
    /// The first rule that matches a pod decides for it.
    pub rules: Vec<Rule>,
    /// Every one that matches a pod takes away from what its rule gives.
    pub narrow: Vec<Narrowing>,
}

impl Default for Policy {
    /// Policy of a node without a file.
    fn default() -> Self {
        Self {
            skip_containers: ["istio-proxy", "linkerd-proxy"].map(str::to_owned).into(),
            wrapper_handlers: BTreeSet::from(["rdma".to_owned()]),
            claims: Claims::Limit,
            rails: Vec::new(),
            topology_file: None,
            dialects: Dialects::default(),
            links: Links::default(),
            sandboxes: Sandboxes::default(),
            smc: Smc::default(),
            daemon: Daemon::default(),
            cdi: Cdi::default(),
            wrapper: Wrapper::default(),
            default: Allowance::default(),
            rules: Vec::new(),
            narrow: Vec::new(),
        }
    }
}

impl Policy {
    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// The first thing that is wrong with it, with line and column.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        parse::from_toml(text)
    }
}

/// A rule: whom it matches and what they may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Rule {
    /// Namespace names, `*` for any run of characters; empty matches every namespace.
    pub namespaces: BTreeSet<String>,
    /// Runtime handlers, likewise. On the wrapper's path a pod's handler is not known: a rule that
    /// goes by it gives nothing there.
    pub runtime_handlers: BTreeSet<String>,
    /// What they may have.
    pub allow: Allowance,
}

impl Rule {
    /// Whether the rule speaks of that pod, of which everything is known.
    pub fn matches(&self, pod: &Pod) -> bool {
        let any = |patterns: &BTreeSet<String>, text: &str| {
            patterns.is_empty() || matches_any(patterns, text)
        };
        any(&self.namespaces, &pod.namespace) && any(&self.runtime_handlers, &pod.runtime_handler)
    }
}

/// What a claim (another plugin's allocation) gets beside its device nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Claims {
    /// The locked-memory limit.
    #[default]
    Limit,
    /// The limit, CPUs and environment.
    Full,
    /// Nothing.
    Off,
}

/// What is done for pods that were written for a vendor's own plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Dialects {
    /// `network.alibabacloud.com/erdma-smcr`
    pub alibabacloud: Dialect,
    /// `k8s.volcengine.com/pod-networks`
    pub volcengine: Dialect,
    /// What a block of that annotation stands for, where it is served.
    pub volcengine_mode: VolcengineMode,
}

/// Modes of a node by the names that the container service gives them (label
/// `vke.node.rdma.mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolcengineMode {
    /// A block is an ipvlan sub-interface on one adapter; how many an adapter carries is
    /// [`Links::children`].
    #[default]
    #[serde(alias = "shared-multi")]
    Shared,
    /// The only block is an ipvlan sub-interface on each adapter of the host.
    SharedHost,
    /// A block is an adapter that moves into the pod.
    Exclusive,
}

/// What a vendor's annotation means to us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// The vendor's own plugin makes what the annotation asks for; what it has put into the
    /// container is a claim like any other.
    #[default]
    Complete,
    /// The vendor's plugin is not here: we make what the annotation asks for.
    Serve,
    /// The annotation is not looked at.
    Off,
}

/// How adapters' network side reaches pods: which may move, what their sub-interfaces get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Links {
    /// By kernel name or PCI address, `*` for any run of characters; empty: none.
    pub movable: BTreeSet<String>,
    /// Addresses of the node: an interface that holds one stays. That with the default route does
    /// in any case.
    pub node_addresses: BTreeSet<IpAddr>,
    /// Most sub-interfaces on one adapter at a time.
    #[serde(deserialize_with = "pools::children")]
    pub children: u32,
    /// Where their addresses come from.
    #[serde(deserialize_with = "pools::list")]
    pub pools: Vec<Pool>,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            movable: BTreeSet::new(),
            node_addresses: BTreeSet::new(),
            children: 64,
            pools: Vec::new(),
        }
    }
}

/// Runtime handlers whose containers have a kernel of their own, to which a device node of the
/// host says nothing. Patterns, `*` for any run of characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Sandboxes {
    /// Virtual machines: a request is refused.
    pub refuse: BTreeSet<String>,
    /// User-space kernels that may be set up to pass verbs on: a request is granted with a
    /// warning.
    pub warn: BTreeSet<String>,
    /// Handlers that are known to be set up for it: neither of the above.
    pub allow: BTreeSet<String>,
}

impl Default for Sandboxes {
    fn default() -> Self {
        let patterns = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
        Self {
            refuse: patterns(&["kata*", "firecracker*", "cloud-hypervisor*", "urunc*"]),
            warn: patterns(&["runsc*", "gvisor*"]),
            allow: BTreeSet::new(),
        }
    }
}

impl Sandboxes {
    /// What a runtime handler is.
    pub fn of(&self, handler: &str) -> Sandbox {
        if matches_any(&self.allow, handler) {
            Sandbox::None
        } else if matches_any(&self.refuse, handler) {
            Sandbox::Machine
        } else if matches_any(&self.warn, handler) {
            Sandbox::Kernel
        } else {
            Sandbox::None
        }
    }
}

/// What stands between a container and the host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// Nothing that matters here.
    None,
    /// A virtual machine (Kata Containers): device nodes are not enough.
    Machine,
    /// A kernel in user space (gVisor), which passes verbs on only when told to.
    Kernel,
}

/// How the daemon behaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Daemon {
    /// Where metrics are served over HTTP; empty text in the file: nowhere.
    #[serde(with = "parse::listen")]
    pub metrics: Option<SocketAddr>,
    /// The part of the runtime's request timeout, in percent, after which our own answer is an
    /// error: a late answer would be no answer, and the container would start without.
    #[serde(deserialize_with = "parse::deadline")]
    pub deadline_percent: u8,
}

impl Default for Daemon {
    fn default() -> Self {
        Self { metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9471))), deadline_percent: 75 }
    }
}

/// How the node's CDI file is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Cdi {
    /// The daemon keeps the file up to date.
    pub keep: bool,
    /// The program that a container with one of its devices runs at its start, on the host; empty
    /// text in the file: none.
    #[serde(with = "parse::program")]
    pub hook: Option<String>,
    /// Whether containers get the node's own providers of libibverbs.
    pub libraries: bool,
}

impl Default for Cdi {
    fn default() -> Self {
        let hook = Some("/usr/bin/rdma-ctk-hook".to_owned());
        Self { keep: false, hook, libraries: false }
    }
}

/// Whether one of the patterns is that text.
pub fn matches_any<'a>(patterns: impl IntoIterator<Item = &'a String>, text: &str) -> bool {
    patterns.into_iter().any(|pattern| wildcard(pattern, text))
}

/// Whether every label that is named is there with a value that matches its pattern.
fn labels_match(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(name, pattern)| labels.get(name).is_some_and(|value| wildcard(pattern, value)))
}

/// Whether `text` is `pattern`, in which `*` stands for any run of characters.
pub fn wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|head| text.strip_prefix(head)) else {
        return false;
    };
    let Some(tail) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= tail.len() && rest.ends_with(tail)
}

#[cfg(test)]
mod tests;
