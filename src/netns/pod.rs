//! What a pod has in its network namespace, and which GIDs its addresses became.
//!
//! An address of a pod becomes a GID of an HCA when its interface lies on the HCA's: a macvlan,
//! ipvlan or VLAN on it, or the interface itself moved into the pod (`roce_gid_mgmt.c`). That happens
//! on a work queue a little after the CNI plugin has ended, so the tables are read until they hold
//! what they should. An address on a veth never becomes a GID, and is not waited for.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Error, Namespace};
use crate::inventory::{
    self, Hca, Home, Interface, LinkLayer, NetnsMode, Node, NodeType, PodNetwork, PodView, PortGids,
};
use crate::netlink::Socket;
use crate::netlink::rdma::Rdma;
use crate::netlink::route::{self, Route};
use crate::roots::Roots;

/// Longest time to wait for GIDs; the work queue needs milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Part of the patience that is spent on a hardware interface whose HCA is not known (yet): it may
/// be no RDMA interface at all.
const DOUBT: u32 = 8;
/// First and longest pause between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// A pod's network once it has settled, or when there was no time left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// What was seen last.
    pub network: PodNetwork,
    /// Addresses that should have become GIDs and have not, a phrase each:
    /// `10.0.0.5 of net1 on mlx5_0`.
    pub missing: Vec<String>,
}

/// How the network namespace at `path` is to be seen, waiting at most `patience` for GIDs.
/// Blocks: never to be called on a thread of an async runtime.
pub fn pod_view(roots: &Roots, path: &Path, node: &Node, patience: Duration) -> PodView {
    pod_view_by(roots, path, node, patience, Detail::Everything)
}

/// How much of GID tables is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Kind and interface of every GID.
    Everything,
    /// Kind and interface only of those that are addresses of the pod or of the host: enough to
    /// choose among them, not to tell what others would take.
    Held,
}

/// As [`pod_view`], with so much detail. Blocks.
pub fn pod_view_by(
    roots: &Roots,
    path: &Path,
    node: &Node,
    patience: Duration,
    detail: Detail,
) -> PodView {
    let view = || {
        let namespace = Namespace::open(roots, path)?;
        if namespace.is_current(roots) {
            return Ok(PodView::Host);
        }
        let settled = settle(roots, &namespace, node, patience, detail)?;
        Ok(PodView::Ready(settled.network))
    };
    view().unwrap_or_else(|error: Error| PodView::Unknown { reason: error.to_string() })
}

/// Reads a pod's network, waiting at most `patience` until its addresses are GIDs. Blocks: never to
/// be called on a thread of an async runtime.
///
/// # Errors
/// When the namespace cannot be opened, entered or read. GIDs that do not come are none.
pub fn pod_network(
    roots: &Roots,
    path: &Path,
    node: &Node,
    patience: Duration,
) -> Result<Settled, Error> {
    settle(roots, &Namespace::open(roots, path)?, node, patience, Detail::Everything)
}

/// Whether nothing but the loopback is in the namespace at `path`: no engine has set up a network there.
///
/// # Errors
/// When it cannot be opened, entered or read.
pub fn is_bare(roots: &Roots, path: &Path) -> Result<bool, Error> {
    let namespace = Namespace::open(roots, path)?;
    let told = |source| Error::Netlink { path: path.to_owned(), source };
    let inside = namespace.run(|| Socket::<Route>::open()?.interfaces())?.map_err(told)?;
    Ok(inside.iter().all(|interface| interface.link.name == "lo"))
}

/// An address as a GID holds it.
pub fn gid_value(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn settle(
    roots: &Roots,
    namespace: &Namespace,
    node: &Node,
    patience: Duration,
    detail: Detail,
) -> Result<Settled, Error> {
    let told = |source| Error::Netlink { path: namespace.path().to_owned(), source };
    let interfaces = || Socket::<Route>::open()?.interfaces();
    let read = |inside: &[route::Interface], hca: &str| match detail {
        Detail::Everything => inventory::gids(roots, hca),
        Detail::Held => {
            let inside = inside.iter().flat_map(|interface| &interface.addresses);
            let host = node.interfaces.iter().flat_map(|interface| &interface.addresses);
            let held = inside.chain(host).map(|(address, _)| gid_value(*address)).collect();
            inventory::gids_of(roots, hca, &held)
        }
    };
    let (inside, hcas, (gids, missing)) = match node.netns_mode {
        NetnsMode::Shared => {
            let inside = namespace.run(interfaces)?.map_err(told)?;
            let tables = node.hcas.iter().filter(|hca| feeds_on_addresses(hca));
            let tables = tables.map(|hca| Table::new(&hca.name, node)).collect();
            let waited = wait(&inside, tables, patience, |hca| read(&inside, hca));
            (inside, Vec::new(), waited)
        }
        // A device that is in there cannot be seen from here, neither by netlink nor by sysfs.
        NetnsMode::Exclusive => namespace
            .run_with_sysfs(roots, || {
                let inside = interfaces()?;
                let devices = Socket::<Rdma>::open()?.devices()?;
                let hcas: Vec<String> = devices.into_iter().map(|device| device.name).collect();
                let tables = hcas.iter().map(|hca| Table::new(hca, node)).collect();
                let waited = wait(&inside, tables, patience, |hca| read(&inside, hca));
                Ok((inside, hcas, waited))
            })?
            .map_err(told)?,
    };
    let interfaces = inside.into_iter().map(Interface::from).collect();
    Ok(Settled { network: PodNetwork { interfaces, gids, hcas }, missing })
}

/// The GID tables of an HCA.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    hca: String,
    /// `ifindex`es of the host's interfaces whose uppers feed it.
    bearers: BTreeSet<u32>,
    ports: Vec<PortGids>,
}

impl Table {
    /// Nothing read yet.
    fn new(hca: &str, node: &Node) -> Self {
        let bearers = node.hca(hca).map(|hca| bearers(hca, &node.interfaces)).unwrap_or_default();
        Self { hca: hca.to_owned(), bearers, ports: Vec::new() }
    }

    fn holds(&self, value: Ipv6Addr) -> bool {
        self.ports.iter().flat_map(|port| &port.gids).any(|gid| gid.value == value)
    }
}

/// Fills the tables by `read`, again and again those that lack an address of `inside`.
fn wait(
    inside: &[route::Interface],
    mut tables: Vec<Table>,
    patience: Duration,
    read: impl Fn(&str) -> Vec<PortGids>,
) -> (Vec<PortGids>, Vec<String>) {
    let began = Instant::now();
    for table in &mut tables {
        table.ports = read(&table.hca);
    }
    let mut pause = PAUSE.0;
    loop {
        let lacking = lacking(inside, &tables);
        let patience =
            if lacking.iter().all(|lack| lack.hca.is_none()) { patience / DOUBT } else { patience };
        let left = patience.saturating_sub(began.elapsed());
        if lacking.is_empty() || left.is_zero() {
            let missing = lacking.iter().filter_map(Lack::phrase).collect();
            return (tables.into_iter().flat_map(|table| table.ports).collect(), missing);
        }
        sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE.1);
        for table in &mut tables {
            if lacking.iter().any(|lack| lack.hca.as_ref().is_none_or(|hca| *hca == table.hca)) {
                table.ports = read(&table.hca);
            }
        }
    }
}

/// Whether the HCA's GIDs are made of addresses: RoCE here, not iWARP, InfiniBand or EFA.
fn feeds_on_addresses(hca: &Hca) -> bool {
    hca.home != Home::Elsewhere
        && hca.node_type == NodeType::Ca
        && hca.ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet)
}

/// An address that is not a GID yet.
#[derive(Debug, PartialEq, Eq)]
struct Lack<'a> {
    address: IpAddr,
    interface: &'a str,
    /// HCA that it should be a GID of; `None` if it may well be of none.
    hca: Option<String>,
}

impl Lack<'_> {
    fn phrase(&self) -> Option<String> {
        self.hca.as_ref().map(|hca| format!("{} of {} on {hca}", self.address, self.interface))
    }
}

/// What an interface of the pod lies on in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground<'a> {
    /// On the host's interface of that index.
    Host(u32),
    /// On hardware that is in the pod, with that link-layer address.
    Hardware(&'a [u8]),
    /// On nothing that an HCA could have.
    Nothing,
}

/// Every address that should be a GID by now and is not.
fn lacking<'a>(inside: &'a [route::Interface], tables: &[Table]) -> Vec<Lack<'a>> {
    let mut lacking = Vec::new();
    for interface in inside {
        // An interface that is down has no GIDs.
        if !interface.link.up {
            continue;
        }
        let ground = ground(&interface.link, inside);
        let its: Vec<&Table> = match ground {
            Ground::Nothing => continue,
            Ground::Host(index) => {
                tables.iter().filter(|table| table.bearers.contains(&index)).collect()
            }
            // Its HCA shows itself by the GID that it makes of the link-layer address.
            Ground::Hardware(address) => {
                let Some(own) = default_gid(address) else { continue };
                tables.iter().filter(|table| table.holds(own)).collect()
            }
        };
        // Until it has shown itself this may be any network card.
        let doubt = its.is_empty() && matches!(ground, Ground::Hardware(_)) && !tables.is_empty();
        for (address, _) in &interface.addresses {
            let Some(gid) = routable_gid(*address) else { continue };
            let lack = |hca| Lack { address: *address, interface: &interface.link.name, hca };
            let absent = its.iter().filter(|table| !table.holds(gid));
            lacking.extend(absent.map(|table| lack(Some(table.hca.clone()))));
            lacking.extend(doubt.then(|| lack(None)));
        }
    }
    lacking
}

/// Climbs down from an interface to what it lies on. A chain cannot be longer than there are
/// interfaces, whatever the pod has built in there.
fn ground<'a>(link: &'a route::Link, inside: &'a [route::Interface]) -> Ground<'a> {
    let mut link = link;
    for _ in 0..=inside.len() {
        match (link.kind.as_deref(), link.lower) {
            (None, _) if !link.loopback => return Ground::Hardware(&link.address),
            (Some("macvlan" | "ipvlan" | "vlan"), Some(lower)) if link.lower_elsewhere => {
                return Ground::Host(lower);
            }
            (Some("macvlan" | "ipvlan" | "vlan"), Some(lower)) => {
                let Ok(at) = inside.binary_search_by_key(&lower, |i| i.link.index) else { break };
                link = &inside[at].link;
            }
            _ => break,
        }
    }
    Ground::Nothing
}

/// `ifindex`es of the host's interfaces whose uppers feed the HCA's GID table: those of its ports,
/// and all that lies on them or that they are members of.
fn bearers(hca: &Hca, interfaces: &[Interface]) -> BTreeSet<u32> {
    let own = |interface: &&Interface| {
        hca.ports.iter().any(|port| port.netdev.as_deref() == Some(&*interface.name))
    };
    let mut bearers: BTreeSet<u32> = interfaces.iter().filter(own).map(|i| i.index).collect();
    loop {
        let more: BTreeSet<u32> = interfaces
            .iter()
            .flat_map(|interface| {
                let on_one = interface.lower.is_some_and(|lower| bearers.contains(&lower))
                    && interface.kind.as_deref() != Some("veth");
                let above = interface.controller.filter(|_| bearers.contains(&interface.index));
                above.into_iter().chain(on_one.then_some(interface.index))
            })
            .filter(|index| !bearers.contains(index))
            .collect();
        if more.is_empty() {
            return bearers;
        }
        bearers.extend(more);
    }
}

/// The GID of an address; `None` for link-local ones, which are of no use and come late.
fn routable_gid(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(address) => Some(address.to_ipv6_mapped()).filter(|_| !address.is_link_local()),
        IpAddr::V6(address) => Some(address).filter(|_| !address.is_unicast_link_local()),
    }
}

/// The link-local GID that every RoCE port makes of its interface's link-layer address.
fn default_gid(address: &[u8]) -> Option<Ipv6Addr> {
    let [a, b, c, d, e, f] = *address else { return None };
    Some(Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

#[cfg(test)]
mod tests;
