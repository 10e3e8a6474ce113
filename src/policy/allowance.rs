//! What a pod may have, and what its own words take away from it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{labels_match, matches_any, parse};
use crate::inventory::Hca;
use crate::request::{Key, NetnsRequest, NodeKind, Pod, SmcMethod};

/// What a pod may have. A field that a rule leaves out has the value that it has without a file,
/// whatever the file's own `default` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Allowance {
    /// Keys that it may use.
    pub keys: BTreeSet<Key>,
    /// Adapters, by kernel name or PCI address with `*`; empty: none.
    pub adapters: BTreeSet<String>,
    /// Further lists of that kind, of which every one has to match too: what a [`Narrowing`]
    /// left over. Never in a file.
    #[serde(skip)]
    pub adapters_too: Vec<BTreeSet<String>>,
    /// Whether `all` and counts take virtual functions beside physical ones.
    pub virtual_functions: bool,
    /// Kinds of device nodes.
    pub nodes: BTreeSet<NodeKind>,
    /// Ceiling for the locked-memory limit in bytes; `None`: none.
    #[serde(with = "parse::size", skip_serializing_if = "Option::is_none")]
    pub memlock_max: Option<u64>,
    /// Capabilities that may be asked for (upper case, without `CAP_`).
    #[serde(deserialize_with = "parse::capabilities")]
    pub capabilities: BTreeSet<String>,
    /// Ways of the network side into the pod.
    pub netns: BTreeSet<NetnsRequest>,
    /// Methods of SMC-R; `auto` takes the best of these that the kernel has.
    pub smc: BTreeSet<SmcMethod>,
    /// Sysctls of SMC that it may have set in its network namespace, without `net.smc.`.
    pub smc_sysctls: BTreeSet<String>,
    /// What a request that must be refused leads to.
    pub on_refusal: OnRefusal,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            keys: [
                Key::Devices,
                Key::Nodes,
                Key::Memlock,
                Key::Numa,
                Key::Env,
                Key::Netns,
                Key::Smc,
                Key::Require,
            ]
            .into(),
            adapters: BTreeSet::from(["*".to_owned()]),
            adapters_too: Vec::new(),
            virtual_functions: false,
            nodes: [NodeKind::Uverbs, NodeKind::RdmaCm].into(),
            memlock_max: None,
            capabilities: BTreeSet::new(),
            netns: [NetnsRequest::Auto, NetnsRequest::Shared, NetnsRequest::Host].into(),
            smc: [SmcMethod::Bpf, SmcMethod::Preload].into(),
            smc_sysctls: BTreeSet::new(),
            on_refusal: OnRefusal::Refuse,
        }
    }
}

impl Allowance {
    /// Whether that adapter may be had, by kernel name or by PCI address.
    pub fn permits(&self, hca: &Hca) -> bool {
        std::iter::once(&self.adapters).chain(&self.adapters_too).all(|patterns| {
            matches_any(patterns, &hca.name)
                || hca.pci.is_some_and(|address| matches_any(patterns, &address.to_string()))
        })
    }

    /// Whether that method of SMC-R may be used. `auto` may where any method may.
    pub fn permits_smc(&self, method: SmcMethod) -> bool {
        match method {
            SmcMethod::Off => true,
            SmcMethod::Auto => !self.smc.is_empty(),
            method => self.smc.contains(&method),
        }
    }
}

/// What becomes of a container whose request cannot be granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRefusal {
    /// It does not start, and the sentence is its event.
    #[default]
    Refuse,
    /// It starts without, and the sentence is logged, counted and shown by `inspect`.
    Warn,
}

/// What is taken away from pods that carry certain labels or names. A field that is left out takes
/// nothing away, and none can add anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Narrowing {
    /// Labels that a pod has to carry, all of them; `*` in a value for any run of characters.
    pub labels: BTreeMap<String, String>,
    /// Names of pods, with `*`; empty: any name.
    pub pods: BTreeSet<String>,
    /// Only these keys are left.
    pub keys: Option<BTreeSet<Key>>,
    /// Only these adapters are left.
    pub adapters: Option<BTreeSet<String>>,
    /// `false`: no virtual functions by `all` and counts.
    pub virtual_functions: Option<bool>,
    /// Only these kinds of nodes are left.
    pub nodes: Option<BTreeSet<NodeKind>>,
    /// A lower ceiling for the locked-memory limit, in bytes.
    #[serde(with = "parse::size", skip_serializing_if = "Option::is_none")]
    pub memlock_max: Option<u64>,
    /// Only these capabilities are left.
    #[serde(deserialize_with = "parse::some_capabilities")]
    pub capabilities: Option<BTreeSet<String>>,
    /// Only these ways of the network side are left.
    pub netns: Option<BTreeSet<NetnsRequest>>,
    /// Only these methods of SMC-R are left.
    pub smc: Option<BTreeSet<SmcMethod>>,
    /// Only these sysctls of SMC are left.
    pub smc_sysctls: Option<BTreeSet<String>>,
}

impl Narrowing {
    /// What leaves no more than that allowance.
    pub(super) fn to(allowance: &Allowance) -> Self {
        let Allowance {
            keys,
            adapters,
            adapters_too: _,
            virtual_functions,
            nodes,
            memlock_max,
            capabilities,
            netns,
            smc,
            smc_sysctls,
            on_refusal: _,
        } = allowance.clone();
        Self {
            labels: BTreeMap::new(),
            pods: BTreeSet::new(),
            keys: Some(keys),
            adapters: Some(adapters),
            virtual_functions: Some(virtual_functions),
            nodes: Some(nodes),
            memlock_max,
            capabilities: Some(capabilities),
            netns: Some(netns),
            smc: Some(smc),
            smc_sysctls: Some(smc_sysctls),
        }
    }

    /// Whether it speaks of that pod, or might, its labels being unknown.
    pub fn matches(&self, pod: &Pod) -> bool {
        (pod.unknown.labels || labels_match(&self.labels, &pod.labels))
            && (self.pods.is_empty() || matches_any(&self.pods, &pod.name))
    }

    /// Takes away.
    pub fn apply(&self, allowance: &mut Allowance) {
        fn keep<T: Ord>(all: &mut BTreeSet<T>, left: Option<&BTreeSet<T>>) {
            if let Some(left) = left {
                all.retain(|item| left.contains(item));
            }
        }
        keep(&mut allowance.keys, self.keys.as_ref());
        keep(&mut allowance.nodes, self.nodes.as_ref());
        keep(&mut allowance.capabilities, self.capabilities.as_ref());
        keep(&mut allowance.netns, self.netns.as_ref());
        keep(&mut allowance.smc, self.smc.as_ref());
        keep(&mut allowance.smc_sysctls, self.smc_sysctls.as_ref());
        let adapters = self.adapters.iter().filter(|adapters| !adapters.contains("*"));
        allowance.adapters_too.extend(adapters.cloned());
        allowance.virtual_functions &= self.virtual_functions.unwrap_or(true);
        allowance.memlock_max =
            [allowance.memlock_max, self.memlock_max].into_iter().flatten().min();
    }
}
