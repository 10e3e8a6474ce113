//! What of a node is to be read, for whoever reads it for one container and has no time: the runtime
//! wrapper. What is not read is absent, as it would be on a node that has it not.

use std::collections::BTreeSet;

/// A part of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Focus {
    /// Adapters to read, by kernel name; `None`: all. Of the others only the names are told
    /// ([`Node::unread`](super::Node::unread)).
    pub adapters: Option<BTreeSet<String>>,
    /// Adapters whose GID tables are read; `None`: all.
    pub gids: Option<BTreeSet<String>>,
    /// Whether GPUs are read.
    pub gpus: bool,
    /// Whether partition keys are read.
    pub pkeys: bool,
    /// Whether the nodes of management datagrams (umad, issm) are read.
    pub mads: bool,
    /// Whether CPUs and NUMA nodes are read, and which of them are next to an adapter or a GPU.
    pub numa: bool,
    /// Whether all interfaces of the host are read, with their addresses; if not, and only some
    /// adapters are read, those of these adapters may be all that there is.
    pub interfaces: bool,
}

impl Focus {
    /// Everything that there is.
    pub const EVERYTHING: Self = Self {
        adapters: None,
        gids: None,
        gpus: true,
        pkeys: true,
        mads: true,
        numa: true,
        interfaces: true,
    };

    /// Whether that adapter is read.
    pub fn adapter(&self, name: &str) -> bool {
        self.adapters.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether the GID tables of that adapter are read.
    pub fn gids(&self, name: &str) -> bool {
        self.gids.as_ref().is_none_or(|names| names.contains(name))
    }
}
