//! Adapters that are to move into a pod: which of those that a container asks for may.
//!
//! Decided when the pod's sandbox runs, before any container is created, so without what only a
//! container knows (its GPUs). What moves is then what the pod's containers find in their
//! namespace, and their own decisions are made over that.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::gates::{self, NETNS_MODE, denied_way};
use super::words::list;
use super::{Case, Inventory, Notes, Refusal, Sight, selection};
use crate::inventory::{Hca, LinkLayer, NetnsMode, Node, PodView, Role};
use crate::policy::{Policy, matches_any};
use crate::request::{Devices, NetnsRequest, Request};

/// Drivers of the kernel that can take their contexts away from programs
/// (`disassociate_ucontext`), without which a device cannot move.
const MOVABLE_DRIVERS: [&str; 7] = ["mlx5", "mlx4", "bnxt_re", "hns", "irdma", "mana", "erdma"];

/// Who uses an adapter of the host, and would lose it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Use {
    /// Programs that have it open.
    pub programs: Vec<String>,
    /// Parts of the kernel that have queue pairs on it, beside the RDMA core and its own driver.
    pub kernel: Vec<String>,
    /// Addresses of its interface over which the host has connections.
    pub addresses: Vec<IpAddr>,
    /// Why it is not known who uses it.
    pub unknown: Option<String>,
}

/// What is known about moving beyond the inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moving {
    /// Adapters that are away, or on their way, each with the words for it.
    pub away: BTreeMap<String, String>,
    /// Who uses those of the others that policy lets move.
    pub uses: BTreeMap<String, Use>,
}

/// Whether policy lets that adapter move into pods.
pub fn is_movable(policy: &Policy, hca: &Hca) -> bool {
    let patterns = &policy.links.movable;
    matches_any(patterns, &hca.name)
        || hca.pci.is_some_and(|address| matches_any(patterns, &address.to_string()))
}

/// The adapters that are to move into the pod for that container, by name.
///
/// # Errors
/// There is none that may, or one that was named may not.
pub fn exclusive(
    request: &Request,
    node: &Node,
    policy: &Policy,
    moving: &Moving,
) -> Result<Vec<String>, Refusal> {
    // As from the host: what is not there is elsewhere.
    let host = PodView::Host;
    let inventory = Inventory::of(node, &host);
    let allowance = policy.allowance(&request.container.pod);
    let sight = Sight::of(node, &host);
    let case = Case {
        request,
        node,
        pod: inventory.pod,
        sight: &sight,
        topology: None,
        smc: None,
        moving: Some(moving),
        present: &[],
        children: None,
        policy,
        allowance: &allowance,
    };
    let mut notes = Notes::default();
    gates::check(&case, &mut notes)?;
    let hcas = selection::select(&case, &mut notes)?;
    Ok(hcas.into_iter().map(|hca| hca.name.clone()).collect())
}

impl Moving {
    /// Why an adapter cannot move into a pod, behind its name; `None`: it can.
    pub(super) fn unfit(&self, case: &Case<'_>, hca: &Hca) -> Option<String> {
        if let Some(words) = self.away.get(&hca.name) {
            return Some(words.clone());
        }
        if !is_movable(case.policy, hca) {
            return Some("policy does not list it as movable (links.movable)".to_owned());
        }
        if !MOVABLE_DRIVERS.iter().any(|driver| hca.driver.is(driver)) {
            return Some(format!(
                "its driver {} cannot move devices between network namespaces",
                hca.driver
            ));
        }
        if let Role::BondMember { bond } = &hca.role {
            return Some(format!("it is a member of {bond}"));
        }
        interface_unfit(case, hca).or_else(|| self.in_use(hca))
    }

    fn in_use(&self, hca: &Hca) -> Option<String> {
        let Some(used) = self.uses.get(&hca.name) else {
            return Some("who uses it is not known".to_owned());
        };
        if let Some(why) = &used.unknown {
            return Some(why.clone());
        }
        if !used.programs.is_empty() {
            return Some(format!("programs of the host use it: {}", list(&used.programs)));
        }
        if !used.kernel.is_empty() {
            return Some(format!("the kernel uses it: {}", list(&used.kernel)));
        }
        (!used.addresses.is_empty()).then(|| {
            let addresses = used.addresses.iter().map(IpAddr::to_string);
            format!("the host has TCP connections over its address {}", list(addresses))
        })
    }
}

/// Names of the interfaces that belong to an adapter's ports and move with it. An IPoIB interface is
/// none of them: the kernel makes it anew where the device is.
pub fn interfaces(hca: &Hca) -> Vec<&str> {
    let ethernet = hca.ports.iter().filter(|port| port.link_layer == LinkLayer::Ethernet);
    ethernet.filter_map(|port| port.netdev.as_deref()).collect()
}

/// Why the adapter's interface has to stay.
fn interface_unfit(case: &Case<'_>, hca: &Hca) -> Option<String> {
    let names = interfaces(hca);
    if let [first, second, ..] = names[..] {
        return Some(format!("it has several interfaces ({first}, {second})"));
    }
    let ethernet = hca.ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet);
    let found = |name: &str| case.node.interfaces.iter().find(|i| i.name == name);
    let Some(interface) = names.first().copied().and_then(found) else {
        return ethernet.then(|| "its network interface is not known".to_owned());
    };
    let name = &interface.name;
    if interface.default_route {
        return Some(format!("its interface {name} holds the default route of the node"));
    }
    let of_node = |(address, _): &&(IpAddr, u8)| case.policy.links.node_addresses.contains(address);
    if let Some((address, _)) = interface.addresses.iter().find(of_node) {
        return Some(format!("its interface {name} holds the node's address {address}"));
    }
    let by_index = |index: u32| case.node.interfaces.iter().find(|i| i.index == index);
    if let Some(controller) = interface.controller {
        let what = by_index(controller).map_or_else(
            || "a bond or bridge".to_owned(),
            |above| format!("{} {}", above.kind.as_deref().unwrap_or("interface"), above.name),
        );
        return Some(format!("its interface {name} is a member of the {what}"));
    }
    let above = case.node.interfaces.iter().find(|other| {
        other.lower == Some(interface.index) && other.kind.as_deref() != Some("veth")
    });
    above.map(|above| format!("the host's interface {} lies on its interface {name}", above.name))
}

/// What stands in the way of `netns: exclusive`, whichever adapters are meant; `Ok` for a pod in
/// the host's namespace too, for which nothing moves.
pub(super) fn gate(case: &Case<'_>, notes: &mut Notes) -> Result<(), String> {
    let request = case.request;
    if !case.allowance.netns.contains(&NetnsRequest::Exclusive) {
        return Err(denied_way(case, NetnsRequest::Exclusive));
    }
    if request.devices.as_ref().is_none_or(|devices| *devices == Devices::None) {
        return Err("devices.rdma-ctk.io names no adapter that could move".to_owned());
    }
    if request.container.pod.host_network {
        let text = "the pod shares the host's network namespace: nothing moves";
        notes.reason("netns", text);
        return Ok(());
    }
    if case.node.netns_mode == NetnsMode::Shared {
        return Err(format!(
            "this node shares its RDMA devices between network namespaces, so none can move; \
             {NETNS_MODE}"
        ));
    }
    gates::no_gpus_yet(request, "its adapters move into the pod")
}
