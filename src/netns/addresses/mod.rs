//! Addresses of sub-interfaces: which are free, who holds which, and what has to be set so that
//! several of them work beside each other.
//!
//! Leases are this node's own: other nodes are not asked, beyond a probe on the wire before an
//! address is used. Ranges of nodes on one network must not overlap.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::inventory::Prefix;

/// What a sub-interface needs an address for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The sandbox.
    pub sandbox: String,
    /// The pod, as `NAMESPACE/NAME`, for messages.
    pub pod: String,
    /// UID of the pod, by which the search for a free address begins somewhere else for each.
    pub uid: String,
    /// Kernel name of the adapter.
    pub hca: String,
    /// Its interface on the host.
    pub parent: String,
    /// `ifindex` of that.
    pub parent_index: u32,
    /// Addresses of that.
    pub own: Vec<Prefix>,
    /// All addresses of the host, and of others that are known to have one: never given.
    pub others: Vec<IpAddr>,
    /// Which address it is to be.
    pub wanted: Wanted,
}

/// Which address a sub-interface is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// One of each family that the adapter's pools have.
    Pool,
    /// None: somebody else gives it one.
    None,
    /// These, which lie in the adapter's pools.
    Fixed(Vec<Prefix>),
}

/// Addresses that a sub-interface has, from before they are used until its pod has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The boot in which this is true.
    pub boot: String,
    /// The sandbox.
    pub sandbox: String,
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Kernel name of the adapter.
    pub hca: String,
    /// Name of the sub-interface in the pod, once there is one.
    #[serde(default)]
    pub interface: Option<String>,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<Prefix>,
    /// Routers on the adapter's network, at most one of each family.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
    /// Networks that are reached over it.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// A network that is reached over a sub-interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The network.
    pub to: Prefix,
    /// Its router; `None`: everybody in it is on the wire.
    #[serde(default)]
    pub via: Option<IpAddr>,
}

/// Asks whether somebody else has an address.
pub trait Prober {
    /// Whether somebody answers for that address.
    ///
    /// # Errors
    /// It could not be asked: a sentence.
    fn in_use(&mut self, address: IpAddr) -> Result<bool, String>;
}

/// A sub-interface in a pod, with what it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Its name in the pod.
    pub interface: String,
    /// Its `ifindex` there.
    pub index: u32,
    /// What it was given.
    pub lease: Lease,
    /// Longest packet, in bytes.
    pub mtu: u32,
}

/// Something that has to be set in a pod's namespace so that its sub-interfaces work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// A sysctl below `/proc/sys`: `net/ipv4/conf/rdma0/arp_ignore`.
    Sysctl {
        /// Path, with the interface's name in it.
        path: String,
        /// Value.
        value: String,
    },
    /// A route.
    Route {
        /// Table; 254 is the main one.
        table: u32,
        /// Where it leads.
        to: Prefix,
        /// Its router; `None`: it is on the wire.
        via: Option<IpAddr>,
        /// `ifindex` of the sub-interface.
        index: u32,
        /// Address to send from.
        from: Option<IpAddr>,
        /// Metric, below which others are preferred; 0 is the kernel's default.
        metric: u32,
    },
    /// A rule: what is sent from that address looks in that table.
    Rule {
        /// Address.
        from: IpAddr,
        /// Table.
        table: u32,
        /// Place among the rules.
        priority: u32,
    },
}
