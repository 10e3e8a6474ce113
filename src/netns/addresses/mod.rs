//! Addresses of sub-interfaces: which are free, who holds which, and what has to be set so that
//! several of them work beside each other.
//!
//! Leases are this node's own: other nodes are not asked, beyond a probe on the wire before an
//! address is used. Ranges of nodes on one network must not overlap.

mod choice;
mod folder;
pub mod frames;
mod leases;
mod packet;
mod plan;
mod wire;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::folder::{Said, decode, encode, file_name};
pub use self::leases::{Leases, leases, take_all};
pub use self::plan::plan;
pub use self::wire::{Inside, Wire};
use crate::inventory::Prefix;
use crate::policy::Range;

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

    /// The same for several at once: an answer for each, in their order.
    fn all_in_use(&mut self, questions: &[Question<'_>]) -> Vec<Result<bool, String>> {
        questions.iter().map(|question| self.in_use(question.address)).collect()
    }
}

/// An address, and where it would be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// Kernel name of the adapter.
    pub hca: &'a str,
    /// `ifindex` of its interface on the host.
    pub parent_index: u32,
    /// The address.
    pub address: IpAddr,
}

/// A sub-interface gets no address.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// All are taken.
    #[error("no address is left for {hca} in {pools}: {holders} (links.pools of the policy)")]
    Exhausted {
        /// The adapter.
        hca: String,
        /// Its pools.
        pools: String,
        /// Who holds what.
        holders: String,
    },
    /// It is not known how long the prefix of a pool's addresses is.
    #[error(
        "the range {range} for {hca} lies in no prefix of its interface: set prefix_length in \
         links.pools of the policy"
    )]
    NoLength {
        /// The adapter.
        hca: String,
        /// The pool's range.
        range: Range,
    },
    /// `own_prefix`, and there is none.
    #[error(
        "{hca} has no addresses to give: its interface {parent} has no prefix of its own beyond \
         link-local ones, and no range is set in links.pools of the policy"
    )]
    NoPrefix {
        /// The adapter.
        hca: String,
        /// Its interface.
        parent: String,
    },
    /// An address was named that no pool of the adapter has.
    #[error("{address} is in no pool of {hca} (there are: {pools})")]
    NotInPool {
        /// The adapter.
        hca: String,
        /// The address.
        address: IpAddr,
        /// Its pools.
        pools: String,
    },
    /// An address was named with more around it than its pool's network.
    #[error(
        "{address} for {hca} reaches beyond the network of its pool: its prefix length is {length} \
         or more"
    )]
    Wide {
        /// The adapter.
        hca: String,
        /// The address.
        address: Prefix,
        /// Length of the pool's prefix.
        length: u8,
    },
    /// An address was named that somebody on this node holds.
    #[error("{address} for {hca} is held by {pod}")]
    Held {
        /// The adapter.
        hca: String,
        /// The address.
        address: IpAddr,
        /// Who holds it.
        pod: String,
    },
    /// An address was named that is the network's own, the host's or the router's.
    #[error("{address} for {hca} is the network's own, the host's or the router's")]
    Reserved {
        /// The adapter.
        hca: String,
        /// The address.
        address: IpAddr,
    },
    /// Somebody on the wire has it.
    #[error("{address} for {hca} is in use: somebody answers for it at {parent}")]
    Answered {
        /// The adapter.
        hca: String,
        /// The address.
        address: IpAddr,
        /// Its interface.
        parent: String,
    },
    /// Several in a row are in use.
    #[error(
        "the addresses that were tried for {hca} are in use by others at {parent}; the search goes \
         on at the next try"
    )]
    Crowded {
        /// The adapter.
        hca: String,
        /// Its interface.
        parent: String,
    },
    /// Nobody can tell whether it is in use.
    #[error("whether {address} for {hca} is in use cannot be found out: {reason}")]
    Probe {
        /// The adapter.
        hca: String,
        /// The address.
        address: IpAddr,
        /// Why.
        reason: String,
    },
    /// A lease cannot be written down, so nothing is given.
    #[error("{}: {source}", path.display())]
    Write {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A name that cannot be part of a file's.
    #[error("\"{text}\" cannot be part of a lease's file name")]
    Name {
        /// The name.
        text: String,
    },
    /// What is held is not known, so nothing is given.
    #[error("which addresses are held cannot be read, so none is given: {reason}")]
    Blind {
        /// Why.
        reason: String,
    },
}

/// Something is wrong with the leases on disk.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The folder cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no lease; the addresses in its name stay taken.
    #[error("{}: {reason}; the addresses in its name stay taken", path.display())]
    Lease {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: String,
    },
    /// A file cannot be removed.
    #[error("{}: cannot be removed, so that its addresses stay taken: {source}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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

#[cfg(test)]
mod tests;
