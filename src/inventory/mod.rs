//! What the node has: HCAs, their device nodes, ports and GIDs, GPUs, CPUs and interfaces.
//!
//! [`snapshot`] makes a [`Node`] of two sources: sysfs, which it reads itself, and RDMA netlink,
//! whose [`NetlinkView`] it is handed where there is one. It is synchronous and keeps nothing.

mod address;
mod attribute;
pub mod cgroup;
mod chardev;
pub mod cpuset;
mod driver;
pub mod events;
#[cfg(any(test, feature = "cli"))]
pub mod fixture;
mod focus;
mod gid;
mod gpu;
mod hca;
mod interface;
mod merge;
pub mod netlink_view;
pub mod node;
mod numa;
mod pci;
pub mod pod;
pub mod prefix;
pub mod rdma_netlink;
mod role;
pub mod rtnetlink;
pub mod runtime_limits;
mod sysfs;
#[cfg(test)]
mod tests;
pub mod topologyd;

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::PathBuf;

pub use cpuset::CpuSet;
pub use focus::Focus;
pub use netlink_view::{NetlinkDevice, NetlinkPort, NetlinkView};
pub use node::*;
pub use pod::*;
pub use prefix::{Prefix, PrefixError};

use crate::roots::Roots;
use attribute::Reader;

/// The node as it is now, from the trees of `roots`, with RDMA netlink's view of the same machine
/// laid over it where there is one.
///
/// What is not there, or goes away while it is read, is absent from the snapshot; what is there
/// and makes no sense is absent too, and named in [`Node::remarks`]. It does not fail.
pub fn snapshot(roots: &Roots, netlink: Option<&NetlinkView>) -> Node {
    part(roots, netlink, &Focus::EVERYTHING)
}

/// The part of the node that somebody wants to know about, as [`snapshot`].
pub fn part(roots: &Roots, netlink: Option<&NetlinkView>, focus: &Focus) -> Node {
    let interfaces = netlink.and_then(|view| view.interfaces.as_deref());
    let mut scan = sysfs::scan(&mut Reader::new(), roots, interfaces, focus);
    if let Some(view) = netlink {
        merge::merge(&mut scan, view);
    }
    role::settle(&mut scan);
    let mut node = scan.into_node();
    chardev::add_modes(&mut node, &roots.dev);
    node
}

/// The GID tables of one HCA, ascending by port, without reading anything else; empty where there
/// is no such HCA.
pub fn gids(roots: &Roots, hca: &str) -> Vec<PortGids> {
    tables(roots, hca, None)
}

/// As [`gids`]; kind and interface are read only of GIDs that are among `values`, which is what most
/// of the time of reading goes to.
pub fn gids_of(roots: &Roots, hca: &str, values: &BTreeSet<Ipv6Addr>) -> Vec<PortGids> {
    tables(roots, hca, Some(values))
}

fn tables(roots: &Roots, hca: &str, values: Option<&BTreeSet<Ipv6Addr>>) -> Vec<PortGids> {
    // A name is one part of a path, whoever it came from.
    if hca.is_empty() || hca.contains('/') || hca.starts_with('.') {
        return Vec::new();
    }
    let mut reader = Reader::new();
    let ports = roots.sys.join(hca::CLASS).join(hca).join("ports");
    let Some(ports) = reader.open(&ports) else { return Vec::new() };
    let mut tables = Vec::new();
    for port in reader.numbers(&ports) {
        if let Some(at) = reader.folder(&ports, &port.to_string()) {
            let gids = gid::table(&mut reader, &at, values).used;
            tables.push(PortGids { hca: hca.to_owned(), port, gids });
        }
    }
    tables
}

/// Every attribute file that [`snapshot`] reads, in its order: what one has to copy of a machine
/// to look at it elsewhere.
pub fn files(roots: &Roots) -> Vec<PathBuf> {
    let mut reader = Reader::recording();
    sysfs::scan(&mut reader, roots, None, &Focus::EVERYTHING);
    reader.into_opened()
}
