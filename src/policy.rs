//! What the admin allows: `config.toml` read into a [`Policy`].
//!
//! Rules match what can be trusted (namespace names, runtime handlers); labels narrow only.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::request::{Key, NodeKind, Pod};

/// The whole policy of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Policy {
    /// What a pod may have that no rule matches.
    pub default: Allowance,
    /// The first rule that matches a pod decides for it.
    pub rules: Vec<Rule>,
    /// Containers by these names are kept out of pod-wide keys.
    pub skip_containers: BTreeSet<String>,
    /// Runtime handlers whose containers belong to the runtime wrapper, not to NRI.
    pub wrapper_handlers: BTreeSet<String>,
    /// What happens to an allocation made by another plugin.
    pub claims: Claims,
    /// Adapters of each rail, in order, by kernel name or PCI address; empty: derived.
    pub rails: Vec<String>,
    /// A file for `NCCL_TOPO_FILE`, bound read-only.
    pub topology_file: Option<String>,
}

impl Default for Policy {
    /// Policy of a node without a file.
    fn default() -> Self {
        Self {
            default: Allowance::default(),
            rules: Vec::new(),
            skip_containers: ["istio-proxy", "linkerd-proxy"].map(str::to_owned).into(),
            wrapper_handlers: BTreeSet::from(["rdma".to_owned()]),
            claims: Claims::Limit,
            rails: Vec::new(),
            topology_file: None,
        }
    }
}

impl Policy {
    /// What that pod may have.
    pub fn allowance(&self, pod: &Pod) -> &Allowance {
        self.rules.iter().find(|rule| rule.matches(pod)).map_or(&self.default, |rule| &rule.allow)
    }
}

/// A rule: whom it matches and what they may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Rule {
    /// Namespace names, `*` for any run of characters; empty matches every namespace.
    pub namespaces: BTreeSet<String>,
    /// Runtime handlers, likewise.
    pub runtime_handlers: BTreeSet<String>,
    /// What they may have.
    pub allow: Allowance,
}

impl Rule {
    /// Whether the rule speaks of that pod.
    pub fn matches(&self, pod: &Pod) -> bool {
        let any = |patterns: &BTreeSet<String>, text: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| wildcard(pattern, text))
        };
        any(&self.namespaces, &pod.namespace) && any(&self.runtime_handlers, &pod.runtime_handler)
    }
}

/// What a pod may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Allowance {
    /// Keys that it may use.
    pub keys: BTreeSet<Key>,
    /// Adapters, by kernel name or PCI address with `*`; empty: none.
    pub adapters: BTreeSet<String>,
    /// Whether `all` and counts take virtual functions beside physical ones.
    pub virtual_functions: bool,
    /// Kinds of device nodes.
    pub nodes: BTreeSet<NodeKind>,
    /// Ceiling for the locked-memory limit in bytes; `None`: none.
    pub memlock_max: Option<u64>,
    /// Capabilities that may be asked for.
    pub capabilities: BTreeSet<String>,
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
                Key::Smc,
                Key::Require,
            ]
            .into(),
            adapters: BTreeSet::from(["*".to_owned()]),
            virtual_functions: false,
            nodes: [NodeKind::Uverbs, NodeKind::RdmaCm].into(),
            memlock_max: None,
            capabilities: BTreeSet::new(),
            on_refusal: OnRefusal::Refuse,
        }
    }
}

/// What becomes of a container whose request cannot be granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRefusal {
    /// It does not start, and the sentence is its event.
    #[default]
    Refuse,
    /// It starts without, and the sentence is logged, counted and shown by `inspect`.
    Warn,
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
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_any_run() {
        for (pattern, text, expected) in [
            ("mlx5_0", "mlx5_0", true),
            ("mlx5_1", "mlx5_10", false),
            ("mlx5_*", "mlx5_10", true),
            ("*", "", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*bb", "ab", false),
            ("ab*b", "ab", false),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(wildcard(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }
}
