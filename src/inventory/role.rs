//! What each HCA is among its kin, whose interface its ports are, and whether they are at home.
//!
//! All of it follows from what belongs to what: names say nothing, since udev or an admin may
//! have changed them.

use std::collections::{HashMap, HashSet};

use super::hca::Found;
use super::interface::{Link, Links};
use super::node::{Hca, Home, LinkLayer, NodeType, Port, Role};
use super::pci::Place;
use super::sysfs::Scan;

/// Fills in the ports' interfaces, and the role and home of every HCA.
pub(super) fn settle(scan: &mut Scan) {
    let Scan { hcas, links, remarks, .. } = scan;
    let owned = Owned::of(links);
    for found in hcas.iter_mut() {
        let netdevs: Vec<Option<String>> = found
            .hca
            .ports
            .iter()
            .map(|port| netdev(found, port, links, &owned, remarks))
            .collect();
        for (port, netdev) in found.hca.ports.iter_mut().zip(netdevs) {
            port.netdev = netdev;
        }
    }
    let crowd = Crowd::of(hcas, links, &owned);
    for found in hcas.iter_mut() {
        found.hca.role = role(found, links, &owned, &crowd);
        found.hca.home = home(found, links, &owned);
        // What the role tells of the interface.
        let Hca { role, ports, .. } = &mut found.hca;
        let representor = |name: &str| links.named(name).is_some_and(Link::is_representor);
        for port in ports {
            match role {
                Role::Representor => drop(port.netdev.take_if(|name| !representor(name))),
                Role::Bond { netdev } => port.netdev = Some(netdev.clone()),
                _ => {}
            }
        }
    }
}

/// Interfaces by the device that they belong to.
struct Owned<'a>(HashMap<&'a Place, Vec<&'a Link>>);

impl<'a> Owned<'a> {
    fn of(links: &'a Links) -> Self {
        let mut owned: HashMap<&Place, Vec<&Link>> = HashMap::new();
        for link in &links.all {
            if let Some(owner) = &link.owner {
                owned.entry(owner).or_default().push(link);
            }
        }
        Self(owned)
    }

    fn by(&self, found: &Found) -> &[&'a Link] {
        found
            .hardware
            .as_ref()
            .and_then(|hardware| self.0.get(&hardware.place))
            .map_or(&[], |all| all)
    }

    /// Those of them that are the HCA's own ports, not the other side of its switch.
    fn ports(&self, found: &Found) -> impl Iterator<Item = &'a Link> {
        self.by(found).iter().copied().filter(|link| !link.is_representor())
    }
}

/// Interfaces that the port's GIDs name, in table order.
fn gid_netdevs(port: &Port) -> impl Iterator<Item = &str> {
    port.gids.iter().filter_map(|gid| gid.netdev.as_deref())
}

/// The interface of a port that is in this namespace.
fn netdev(
    found: &Found,
    port: &Port,
    links: &Links,
    owned: &Owned<'_>,
    remarks: &mut Vec<String>,
) -> Option<String> {
    let told = told(found, port.number).flatten();
    let seen = seen_netdev(found, port, links, owned);
    let controller = |name: Option<&str>| links.named(name?)?.controller.as_deref();
    // The addresses of a bond's member, or of the function behind an Azure interface, are on what
    // it is a member of, and so are its GIDs.
    let above = controller(seen);
    let addressed = gid_netdevs(port).find(|name| Some(*name) == above || links.is_bond(name));
    if let Some(name) = addressed {
        return Some(name.to_owned());
    }
    if let (Some(told), Some(seen)) = (told, seen)
        && told != seen
        && above != Some(told)
        && controller(Some(told)) != Some(seen)
        && !links.named(told).is_some_and(Link::is_representor)
    {
        remarks.push(format!(
            "{} port {}: RDMA netlink says its interface is {told}, sysfs says {seen}",
            found.hca.name, port.number
        ));
    }
    told.or(seen).map(str::to_owned)
}

/// What netlink said about the port's interface: `None` if it was not asked.
fn told(found: &Found, number: u32) -> Option<Option<&str>> {
    let (_, netdev) = found.told.as_ref()?.iter().find(|(port, _)| *port == number)?;
    Some(netdev.as_deref())
}

fn seen_netdev<'a>(
    found: &'a Found,
    port: &'a Port,
    links: &'a Links,
    owned: &Owned<'a>,
) -> Option<&'a str> {
    let here = |name: &&str| links.has(name);
    if found.hardware.is_none() {
        return found.parent.as_deref().filter(here).or_else(|| gid_netdevs(port).find(here));
    }
    // A representor's table, if it has one, names nothing else.
    if let Some(first) = gid_netdevs(port).next()
        && links.named(first).is_some_and(Link::is_representor)
    {
        return Some(first);
    }
    let infiniband = match port.link_layer {
        LinkLayer::InfiniBand => true,
        LinkLayer::Ethernet => false,
        LinkLayer::Unknown => return None,
    };
    let mut own: Vec<&Link> = owned.ports(found).filter(|link| link.ipoib == infiniband).collect();
    // Children of an IPoIB interface, with another partition key, were made after it.
    own.sort_by_key(|link| link.interface.index);
    let numbered = |link: &&&Link| link.device_port == port.number.checked_sub(1);
    let found_own = match (own.as_slice(), found.hca.ports.as_slice()) {
        ([only], [_]) => Some(*only),
        (own, _) => own.iter().find(numbered).copied(),
    };
    if let Some(link) = found_own {
        return Some(&link.interface.name);
    }
    if infiniband || found.hca.driver.has_own_netdev() {
        return None;
    }
    paired(found, links)
        .map(|link| link.interface.name.as_str())
        .or_else(|| gid_netdevs(port).find(here))
}

/// The interface whose hardware address the HCA's GUID is made of.
fn paired<'a>(found: &Found, links: &'a Links) -> Option<&'a Link> {
    links.all.iter().find(|link| link.eui64().as_deref() == Some(found.hca.node_guid.as_str()))
}

/// What can only be told from all HCAs together.
struct Crowd {
    /// Bonds whose addresses are an HCA's.
    bonds: HashSet<String>,
    /// Bonds with several members of which one HCA alone is left: the driver has joined them,
    /// even while no address, and so no GID, says so.
    joined: HashSet<String>,
    /// Devices with several HCAs, of which at most one is the card's own.
    shared: HashSet<Place>,
}

impl Crowd {
    fn of(hcas: &[Found], links: &Links, owned: &Owned<'_>) -> Self {
        let mut bonds = HashSet::new();
        let mut members: HashMap<&str, usize> = HashMap::new();
        let mut owners: HashMap<&Place, usize> = HashMap::new();
        for found in hcas {
            let netdevs = found.hca.ports.iter().filter_map(|port| port.netdev.as_deref());
            bonds.extend(netdevs.filter(|name| links.is_bond(name)).map(str::to_owned));
            if let Some(bond) = member_of(found, links, owned) {
                *members.entry(bond).or_default() += 1;
            }
            if let Some(hardware) = &found.hardware {
                *owners.entry(&hardware.place).or_default() += 1;
            }
        }
        let several = |bond: &str| {
            let hardware = links.all.iter().filter(|link| link.owner.is_some());
            hardware.filter(|link| link.controller.as_deref() == Some(bond)).count() > 1
        };
        let joined = members
            .into_iter()
            .filter(|(bond, hcas)| *hcas == 1 && !bonds.contains(*bond) && several(bond))
            .map(|(bond, _)| bond.to_owned())
            .collect();
        let shared = owners.into_iter().filter(|(_, hcas)| *hcas > 1);
        Self { bonds, joined, shared: shared.map(|(place, _)| place.clone()).collect() }
    }
}

/// The bond that the HCA's own interface is a member of.
fn member_of<'a>(found: &Found, links: &Links, owned: &Owned<'a>) -> Option<&'a str> {
    owned
        .ports(found)
        .filter_map(|link| link.controller.as_deref())
        .find(|name| links.is_bond(name))
}

fn role(found: &Found, links: &Links, owned: &Owned<'_>, crowd: &Crowd) -> Role {
    let hca = &found.hca;
    let Some(hardware) = &found.hardware else {
        // Known from netlink alone, which does not tell what a device sits on.
        if !["rxe", "siw", "unknown"].contains(&hca.driver.0.as_str()) {
            return Role::Physical { vfs: 0 };
        }
        let netdev = || hca.ports.iter().find_map(|port| port.netdev.clone());
        return Role::Software { parent: found.parent.clone().or_else(netdev) };
    };
    if is_representor(found, links, owned, crowd) {
        return Role::Representor;
    }
    let netdevs = || hca.ports.iter().filter_map(|port| port.netdev.as_deref());
    if let Some(bond) = netdevs().find(|name| links.is_bond(name)) {
        return Role::Bond { netdev: bond.to_owned() };
    }
    if let Some(bond) = member_of(found, links, owned) {
        if crowd.joined.contains(bond) {
            return Role::Bond { netdev: bond.to_owned() };
        }
        if crowd.bonds.contains(bond) {
            return Role::BondMember { bond: bond.to_owned() };
        }
    }
    if hardware.scalable {
        return Role::Virtual { physical: hca.pci };
    }
    if hardware.physical.is_some() || hardware.is_virtual_by_id() {
        return Role::Virtual { physical: hardware.physical };
    }
    Role::Physical { vfs: hardware.vfs }
}

fn is_representor(found: &Found, links: &Links, owned: &Owned<'_>, crowd: &Crowd) -> bool {
    let mut netdevs =
        found.hca.ports.iter().filter_map(|port| links.named(port.netdev.as_deref()?)).peekable();
    if netdevs.peek().is_some() && netdevs.all(Link::is_representor) {
        return true;
    }
    // On the card's own function, beside the card's own HCA, without addresses of its own.
    let Some(hardware) = &found.hardware else { return false };
    let has_gids = found.hca.ports.iter().any(|port| !port.gids.is_empty());
    !has_gids
        && crowd.shared.contains(&hardware.place)
        && owned.by(found).iter().any(|link| link.is_representor())
}

fn home(found: &Found, links: &Links, owned: &Owned<'_>) -> Home {
    if found.hidden {
        return Home::Elsewhere;
    }
    let mut ethernet =
        found.hca.ports.iter().filter(|port| port.link_layer == LinkLayer::Ethernet).peekable();
    let has_netdevs = matches!(found.hca.node_type, NodeType::Ca | NodeType::Rnic);
    if has_netdevs
        && ethernet.peek().is_some()
        && ethernet.all(|port| is_away(found, port, links, owned))
    {
        return Home::NetdevElsewhere;
    }
    Home::Host
}

/// Whether a RoCE or iWARP port's interface is in another namespace, for which there must be
/// evidence: without any interface at all, not even `lo`, nothing is known.
fn is_away(found: &Found, port: &Port, links: &Links, owned: &Owned<'_>) -> bool {
    match told(found, port.number) {
        Some(Some(_)) => return false,
        // Netlink names an interface only to its own namespace. Where sysfs sees one that belongs
        // to the very device, it is here, and the kernel just does not join the two.
        Some(None) => {
            return !links.is_empty()
                && owned.ports(found).next().is_none()
                && port_is_unpaired(found, links);
        }
        None => {}
    }
    if links.is_empty() {
        return false;
    }
    let Some(netdev) = port.netdev.as_deref().and_then(|name| links.named(name)) else {
        return true;
    };
    found.hardware.is_none() && is_a_namesake(found, port, netdev)
}

fn port_is_unpaired(found: &Found, links: &Links) -> bool {
    found.hardware.is_none() || found.hca.driver.has_own_netdev() || paired(found, links).is_none()
}

/// A virtual HCA tells its interface only by name, and `eth0` may be a pod's. Its link-local GID
/// and its GUID are made of the hardware address.
fn is_a_namesake(found: &Found, port: &Port, netdev: &Link) -> bool {
    let Some(eui64) = netdev.eui64() else { return false };
    let of_gid = |gid: &super::node::Gid| {
        let [.., e, f, g, h] = gid.value.segments();
        gid.value.is_unicast_link_local().then(|| format!("{e:04x}:{f:04x}:{g:04x}:{h:04x}"))
    };
    let mut local = port.gids.iter().filter_map(of_gid).peekable();
    found.hca.node_guid != eui64 && local.peek().is_some() && local.all(|gid| gid != eui64)
}
