//! Which slot of a RoCE port's GID table is the container's own.
//!
//! The table of a port is one for all network namespaces in shared mode: it holds the addresses
//! of the host's interface and of everything above it, in whatever pod that is. Interface names
//! are printed without their namespace, so what is the container's own is told by value: the GID
//! stands for an address of an interface in its namespace. A wrong slot is worse than none.

use std::net::IpAddr;

use super::sight::{Addresses, Held};
use super::words::{list, refuse};
use super::{Adapter, Case, ChosenGid, Notes, Refusal};
use crate::inventory::{Gid, GidKind, Hca, LinkLayer, NetnsMode, NodeType, PodView, Port};
use crate::request::{Key, Requirement};

/// A granted adapter with what the variables need to know of it.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    pub(super) hca: &'a Hca,
    pub(super) adapter: Adapter,
    /// Ports that NCCL and UCX can use: InfiniBand and RoCE.
    pub(super) listed: Vec<u32>,
}

/// Whether one of the adapter's ports answers to an address of the container's namespace: then the
/// interface of the adapter, or one above it, is in there.
pub(super) fn owned(case: &Case<'_>, hca: &Hca) -> bool {
    hca.ports.iter().any(|port| {
        let table = case.sight.read(&hca.name, port.number).unwrap_or_default();
        // A link-local address says nothing: it is made from a hardware address that anybody may have.
        let mut routed = table.iter().filter(|gid| !gid.value.is_unicast_link_local());
        routed.any(|gid| case.sight.own.holder(gid).is_some())
    })
}

/// Chooses the GIDs of those adapters, and says which adapters are of use as they stand.
pub(super) fn choose<'a>(
    case: &Case<'_>,
    hcas: &[&'a Hca],
    notes: &mut Notes,
) -> Result<Vec<Placed<'a>>, Refusal> {
    let mut placed = Vec::with_capacity(hcas.len());
    let mut absent: Vec<usize> = Vec::new();
    let mut present = false;
    for (place, hca) in hcas.iter().copied().enumerate() {
        let mut gids = Vec::new();
        let mut listed = Vec::new();
        let mut missing = 0;
        for port in hca.active_ports().filter(|_| hca.node_type != NodeType::Rnic) {
            match port.link_layer {
                LinkLayer::InfiniBand => listed.push(port.number),
                LinkLayer::Unknown => {}
                LinkLayer::Ethernet => match at_home(case, hca, port) {
                    Home::Here(found) => {
                        present = true;
                        listed.push(port.number);
                        gids.extend(settle(case, hca, port, found, notes)?);
                    }
                    Home::NotHere => missing += 1,
                    Home::NotKnown => listed.push(port.number),
                },
            }
        }
        if missing > 0 && listed.is_empty() {
            absent.push(place);
        }
        if hca.ports.is_empty() {
            notes.warn(
                "env",
                format!(
                    "the ports of {} cannot be seen from the host's namespace: it is in no list \
                     for NCCL and UCX",
                    hca.name
                ),
            );
        }
        let adapter = Adapter { gids, ..Adapter::of(hca) };
        placed.push(Placed { hca, adapter, listed });
    }
    without_interface(case, &absent, present, &mut placed, notes)?;
    say_unknown(case, &placed, notes)?;
    Ok(placed)
}

/// A GID that stands for an address of a namespace, with the interface there.
type Found<'a> = (&'a Gid, Held<'a>);

/// Whether a RoCE port has an interface in the container's namespace.
enum Home<'a> {
    /// It has, and these GIDs of the port are addresses in there.
    Here(Vec<Found<'a>>),
    NotHere,
    NotKnown,
}

fn at_home<'a>(case: &Case<'a>, hca: &Hca, port: &'a Port) -> Home<'a> {
    let found = match case.pod {
        PodView::Host if unread(case) => return Home::NotKnown,
        PodView::Host => of_host(case, hca, port),
        PodView::Ready(_) => matches(case.sight.table(hca, port), &case.sight.own),
        PodView::Pending { .. } | PodView::Unknown { .. } => return Home::NotKnown,
    };
    if found.is_empty() { Home::NotHere } else { Home::Here(found) }
}

/// Whether the host's addresses were not read: a host has at least its loopback's.
fn unread(case: &Case<'_>) -> bool {
    case.node.interfaces.iter().all(|interface| interface.addresses.is_empty())
}

/// The host's own GIDs on a port: of the port's interface, else of others above it.
fn of_host<'a>(case: &Case<'a>, hca: &Hca, port: &'a Port) -> Vec<Found<'a>> {
    let mut found = matches(case.sight.table(hca, port), &case.sight.host);
    let own = |held: &Held<'_>| Some(&held.interface.name) == port.netdev.as_ref();
    if found.iter().any(|(gid, held)| own(held) && rank(gid).is_some()) {
        found.retain(|(_, held)| own(held));
    }
    found
}

/// GID table of a port by its number; empty when the adapter has no such port.
pub(super) fn table_of<'a>(case: &Case<'a>, hca: &'a Hca, number: u32) -> &'a [Gid] {
    let port = hca.ports.iter().find(|port| port.number == number);
    port.map_or(&[], |port| case.sight.table(hca, port))
}

fn matches<'a>(table: &'a [Gid], addresses: &Addresses<'a>) -> Vec<Found<'a>> {
    table.iter().filter_map(|gid| Some((gid, addresses.holder(gid)?))).collect()
}

/// RoCE v2 over IPv4, then over routable IPv6; nothing else reaches a peer behind a router, and v1
/// does not even leave its VLAN.
fn rank(gid: &Gid) -> Option<u8> {
    match (gid.kind, gid.address()) {
        (Some(GidKind::V2), IpAddr::V4(address)) if !address.is_link_local() => Some(0),
        (Some(GidKind::V2), IpAddr::V6(address)) if !address.is_unicast_link_local() => Some(1),
        _ => None,
    }
}

/// The best of the GIDs found, unless two slots hold it and nothing tells them apart: then its
/// address.
fn best<'a>(found: &[Found<'a>]) -> Result<Option<Found<'a>>, IpAddr> {
    let routable = || found.iter().filter(|(gid, _)| rank(gid).is_some());
    let Some((best, _)) = routable().min_by_key(|(gid, _)| (rank(gid), gid.index)) else {
        return Ok(None);
    };
    let twins = || routable().filter(|(gid, _)| gid.value == best.value);
    // One address twice is an address in two namespaces: the name that the kernel prints decides.
    let named = || twins().filter(|(gid, held)| gid.netdev.as_ref() == Some(&held.interface.name));
    match (twins().count(), named().count()) {
        (1, _) => Ok(twins().next().copied()),
        (_, 1) => Ok(named().next().copied()),
        _ => Err(best.address()),
    }
}

/// Chooses among the GIDs of one port.
fn settle(
    case: &Case<'_>,
    hca: &Hca,
    port: &Port,
    found: Vec<Found<'_>>,
    notes: &mut Notes,
) -> Result<Option<ChosenGid>, Refusal> {
    let place = format!("{} port {}", hca.name, port.number);
    let why = match best(&found) {
        Ok(Some((gid, held))) => {
            let address = gid.address();
            notes.reason("gid", format!("{place}: slot {}, {address}", gid.index));
            let prefix = Some(held.prefix);
            return Ok(Some(ChosenGid { port: port.number, index: gid.index, address, prefix }));
        }
        Ok(None) => {
            let mut interfaces: Vec<&str> =
                found.iter().map(|(_, held)| held.interface.name.as_str()).collect();
            interfaces.dedup();
            format!("{place}: no routable RoCE v2 GID for an address of {}", list(interfaces))
        }
        Err(address) => format!("{place}: two RoCE v2 GIDs hold {address}, one of them another's"),
    };
    if case.request.require.contains(&Requirement::Gid) {
        return Err(refuse(case.request, Key::Require, why));
    }
    notes.warn("gid", format!("{why}; the GID index is left unset"));
    Ok(None)
}

/// RoCE adapters without an interface in the container's namespace: left out where another has
/// one; else, in shared mode, they work with the host's own GID.
fn without_interface(
    case: &Case<'_>,
    absent: &[usize],
    present: bool,
    placed: &mut [Placed<'_>],
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if absent.is_empty() {
        return Ok(());
    }
    let host = matches!(case.pod, PodView::Host);
    let (is, it) = if absent.len() == 1 { ("is", "it") } else { ("are", "them") };
    let names = list(absent.iter().map(|place| &placed[*place].hca.name));
    let netdevs = list(absent.iter().filter_map(|place| {
        placed[*place].hca.active_ports().find_map(|port| port.netdev.as_deref())
    }));
    let lacking = if host {
        format!("{names} {is} RoCE but no address of the host is on {it}")
    } else {
        format!("{names} {is} RoCE but this pod has no network interface on {it}")
    };
    let remedy = if host {
        format!("Give {netdevs} an address")
    } else {
        format!(
            "Attach a macvlan/ipvlan/SR-IOV interface on {netdevs}, use hostNetwork, or claim the \
             NIC"
        )
    };
    if case.request.require.contains(&Requirement::RoceInterface) {
        return Err(refuse(case.request, Key::Require, format!("{lacking}. {remedy}")));
    }
    let shared = case.node.netns_mode == NetnsMode::Shared;
    if present || host || !shared {
        for place in absent {
            placed[*place].adapter.usable = false;
        }
        let list_of = if host { "the host's" } else { "the pod's" };
        notes.warn(
            "gid",
            format!(
                "{lacking}: left out of the lists for NCCL and UCX, since {list_of} RoCE needs \
                 one. {remedy}"
            ),
        );
        return Ok(());
    }
    notes.warn(
        "gid",
        format!("{lacking}: verbs work with the host's GID, rdma_cm does not. {remedy}"),
    );
    for place in absent {
        let Placed { hca, adapter, listed } = &mut placed[*place];
        for port in hca.active_ports().filter(|port| port.link_layer == LinkLayer::Ethernet) {
            listed.push(port.number);
            adapter.gids.extend(settle(case, hca, port, of_host(case, hca, port), notes)?);
        }
    }
    Ok(())
}

/// Says once that the pod's addresses are not known, where that matters.
fn say_unknown(case: &Case<'_>, placed: &[Placed<'_>], notes: &mut Notes) -> Result<(), Refusal> {
    let why = match case.pod {
        PodView::Pending { reason } | PodView::Unknown { reason } => {
            format!("the pod's addresses are not known: {reason}")
        }
        PodView::Host if unread(case) => "the host's addresses were not read".to_owned(),
        PodView::Host | PodView::Ready(_) => return Ok(()),
    };
    let roce = |hca: &Hca| {
        let mut ports = hca.active_ports();
        hca.node_type != NodeType::Rnic && ports.any(|port| port.link_layer == LinkLayer::Ethernet)
    };
    if !placed.iter().any(|placed| roce(placed.hca)) {
        return Ok(());
    }
    let needed = [Requirement::Gid, Requirement::RoceInterface];
    if needed.iter().any(|need| case.request.require.contains(need)) {
        return Err(refuse(case.request, Key::Require, why));
    }
    notes.warn("gid", format!("{why}; the GID index is left unset"));
    Ok(())
}
