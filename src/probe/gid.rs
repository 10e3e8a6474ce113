//! The port to use, and the slot of its GID table.
//!
//! On RoCE the table of a port is one for all namespaces in shared mode. What is this container's
//! own is told by value: the GID stands for an address of an interface in here.

use std::net::IpAddr;

use super::{Exit, Finding, Machine, Place, Stage};
use crate::inventory::{Gid, GidKind, Hca, Interface, LinkLayer, NodeType, Port, PortState};

/// What the traffic goes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Port; `None` where none is up.
    pub(super) port: Option<u32>,
    /// Slot of the GID table; `None` where none will do.
    pub(super) index: Option<u32>,
    /// Whether the slot is this container's own.
    pub(super) is_own: bool,
    /// Whether an RC ping-pong can be had with these.
    pub(super) has_traffic: bool,
}

/// The variables that hold the slot for programs.
const VARIABLES: [&str; 3] = ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX"];

/// Chooses, and says so.
pub(super) fn choose(
    machine: &dyn Machine,
    place: &Place<'_>,
    hca: &Hca,
    findings: &mut Vec<Finding>,
) -> Choice {
    let mut push = |finding: Finding| findings.push(finding.of(hca));
    let Some(port) = best_port(place, hca) else {
        push(down(hca));
        return Choice::default();
    };
    let name = format!("{} port {} is {}", hca.name, port.number, port.state);
    let chosen = Choice { port: Some(port.number), ..Choice::default() };
    match (hca.node_type, port.link_layer) {
        (NodeType::Rnic, _) => {
            push(Finding::note(
                Stage::Gid,
                format!("{name}; iWARP connects by rdma_cm only, and has no GID to choose"),
            ));
            chosen
        }
        (_, LinkLayer::Unknown) => {
            push(Finding::note(
                Stage::Gid,
                format!("{name}; it is no InfiniBand and no Ethernet (EFA): no GID to choose"),
            ));
            chosen
        }
        (_, LinkLayer::InfiniBand) => {
            push(Finding::ok(Stage::Gid, format!("{name}, InfiniBand, LID {}", port.lid)));
            let index = port.gids.first().map_or(0, |gid| gid.index);
            Choice { index: Some(index), is_own: true, has_traffic: true, ..chosen }
        }
        (_, LinkLayer::Ethernet) => {
            let Some((gid, holder)) = best_gid(place, port) else {
                push(Finding::fail(
                    Stage::Gid,
                    Exit::Port,
                    format!("{name}, but its GID table has no routable RoCE v2 entry"),
                    match &port.netdev {
                        Some(netdev) => format!("give {netdev} an IPv4 address"),
                        None => "give the adapter's interface an IPv4 address".to_owned(),
                    },
                ));
                return chosen;
            };
            let what = format!("{name}, GID index {} is {} (RoCE v2", gid.index, gid.address());
            push(match holder {
                Some(holder) => own(machine, gid, &format!("{what}, of {})", holder.name)),
                None => Finding::warn(
                    Stage::Gid,
                    format!(
                        "{what}), the host's: no interface in here is on this adapter, so verbs \
                         work with it and rdma_cm does not"
                    ),
                    "attach an interface of the adapter (macvlan, ipvlan, a virtual function), or \
                     use hostNetwork",
                ),
            });
            let is_own = holder.is_some();
            Choice { index: Some(gid.index), is_own, has_traffic: true, ..chosen }
        }
    }
}

/// The container's own slot, compared with what the environment tells programs.
fn own(machine: &dyn Machine, gid: &Gid, what: &str) -> Finding {
    let wrong = VARIABLES.into_iter().find_map(|variable| {
        let value = machine.variable(variable)?;
        let number: i64 = value.trim().parse().ok()?;
        // -1 is NCCL's word for choosing by itself.
        (number >= 0 && number != i64::from(gid.index)).then_some((variable, number))
    });
    match wrong {
        Some((variable, number)) => Finding::warn(
            Stage::Gid,
            format!("{what}, but {variable} is {number}"),
            format!(
                "unset {variable} and let env.rdma-ctk.io: auto set it, or set it to {}",
                gid.index
            ),
        ),
        None => Finding::ok(Stage::Gid, format!("{what}: the one to use")),
    }
}

/// The first port that is up; of several, one with an address of this container.
fn best_port<'a>(place: &Place<'_>, hca: &'a Hca) -> Option<&'a Port> {
    let up = || hca.ports.iter().filter(|port| is_up(port.state));
    let owned = |port: &&Port| best_gid(place, port).is_some_and(|(_, holder)| holder.is_some());
    up().find(owned).or_else(|| up().next())
}

fn is_up(state: PortState) -> bool {
    matches!(state, PortState::Active | PortState::ActiveDefer)
}

fn down(hca: &Hca) -> Finding {
    let states: Vec<String> =
        hca.ports.iter().map(|port| format!("port {} is {}", port.number, port.state)).collect();
    let (sentence, fix) = if states.is_empty() {
        (
            format!("{}: its ports cannot be seen from here", hca.name),
            "the adapter is in another RDMA namespace, or /sys is not this container's",
        )
    } else {
        (
            format!("{} has no port that is up: {}", hca.name, states.join(", ")),
            "on the host: cable and switch, `ip link set UP` of its interface, a subnet manager on \
             InfiniBand",
        )
    };
    Finding::fail(Stage::Gid, Exit::Port, sentence, fix)
}

/// The best slot with the interface in here that has its address: an own one first, IPv4 before
/// IPv6, the lowest.
fn best_gid<'a>(place: &Place<'a>, port: &'a Port) -> Option<(&'a Gid, Option<&'a Interface>)> {
    let routable = port.gids.iter().filter(|gid| gid.kind == Some(GidKind::V2) && routes(gid));
    let held = routable.map(|gid| (gid, holder(place, gid)));
    held.min_by_key(|(gid, holder)| (holder.is_none(), gid.address().is_ipv6(), gid.index))
}

fn routes(gid: &Gid) -> bool {
    match gid.address() {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

/// The interface in here whose address the GID stands for. Interfaces that never carry a GID may
/// have the same address by chance.
fn holder<'a>(place: &Place<'a>, gid: &Gid) -> Option<&'a Interface> {
    place.node.interfaces.iter().find(|interface| {
        let kind = interface.kind.as_deref();
        let carries =
            interface.name != "lo" && !matches!(kind, Some("veth" | "dummy" | "tun" | "bridge"));
        carries && interface.addresses.iter().any(|(address, _)| *address == gid.address())
    })
}

/// Addresses in here, without the loopback's.
pub(super) fn addresses(place: &Place<'_>) -> Vec<IpAddr> {
    let all = place.node.interfaces.iter().flat_map(|interface| &interface.addresses);
    let global = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    all.map(|(address, _)| *address).filter(global).collect()
}
