//! Sub-interfaces: which adapters get one in a pod, and on which interface of the host it lies.
//!
//! As with adapters that move, this is settled when the pod's sandbox runs, before any container is
//! created. A container is then given those of its adapters that have one.

use std::collections::BTreeMap;

use super::gates::{self, NETNS_MODE, denied_way};
use super::words::refuse;
use super::{Case, Inventory, Notes, Refusal, Sight, exclusive, selection};
use crate::inventory::{Hca, Home, Interface, LinkLayer, NetnsMode, Node, NodeType, PodView, Role};
use crate::policy::Policy;
use crate::request::{AddressRequest, CarrierPath, Devices, Key, NetnsRequest, Request};

/// A sub-interface that some pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Its adapter.
    pub hca: String,
    /// The host's interface on which it lies.
    pub parent: String,
    /// [`NetnsRequest::Ipvlan`] or [`NetnsRequest::Macvlan`].
    pub kind: NetnsRequest,
    /// Its pod, as `NAMESPACE/NAME`.
    pub pod: String,
}

/// A sub-interface of the container's own pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its adapter.
    pub hca: String,
    /// Its name as it was made.
    pub interface: String,
    /// Whether it was given an address.
    pub addressed: bool,
}

/// A sub-interface to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its adapter.
    pub hca: String,
    /// The host's interface on which it is to lie.
    pub parent: String,
    /// `ifindex` of that.
    pub parent_index: u32,
    /// [`NetnsRequest::Ipvlan`] or [`NetnsRequest::Macvlan`].
    pub kind: NetnsRequest,
}

/// Whether that way is one of sub-interfaces.
pub const fn is_child(way: NetnsRequest) -> bool {
    matches!(way, NetnsRequest::Ipvlan | NetnsRequest::Macvlan)
}

/// The word for that way in annotations, which is the kernel's for the kind of interface.
pub const fn word(way: NetnsRequest) -> &'static str {
    match way {
        NetnsRequest::Macvlan => "macvlan",
        _ => "ipvlan",
    }
}

/// The sub-interfaces that a container asks for, in the order of rails.
///
/// # Errors
/// There is no adapter that can have one, or one that was named cannot.
pub fn children(
    request: &Request,
    node: &Node,
    policy: &Policy,
    present: &[Present],
) -> Result<Vec<Wanted>, Refusal> {
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
        moving: None,
        present,
        children: None,
        policy,
        allowance: &allowance,
    };
    let mut notes = Notes::default();
    gates::check(&case, &mut notes)?;
    let hcas = selection::select(&case, &mut notes)?;
    let mut wanted = Vec::new();
    for hca in hcas {
        let parent = parent(node, hca)
            .map_err(|why| refuse(request, Key::Netns, format!("{}: {why}", hca.name)))?;
        wanted.push(Wanted {
            hca: hca.name.clone(),
            parent: parent.name.clone(),
            parent_index: parent.index,
            kind: request.netns,
        });
    }
    Ok(wanted)
}

/// What several containers of a pod ask for, each adapter once, in the order of rails.
///
/// # Errors
/// Two ask for one adapter in different ways: a sentence.
pub fn together(
    all: impl IntoIterator<Item = Wanted>,
    node: &Node,
    policy: &Policy,
) -> Result<Vec<Wanted>, String> {
    let mut together: BTreeMap<(usize, usize), Wanted> = BTreeMap::new();
    for wanted in all {
        let hca = node.hcas.iter().position(|hca| hca.name == wanted.hca);
        let is_it = |rail: &String| {
            let pci = hca.and_then(|place| node.hcas.get(place)?.pci);
            *rail == wanted.hca || pci.is_some_and(|pci| pci.to_string() == *rail)
        };
        let rail = policy.rails.iter().position(is_it).unwrap_or(policy.rails.len());
        let before =
            together.entry((rail, hca.unwrap_or(usize::MAX))).or_insert_with(|| wanted.clone());
        if before.kind != wanted.kind {
            return Err(format!(
                "{}: one container of the pod asks for {} and another for {}; the pod has one \
                 sub-interface for each adapter",
                wanted.hca,
                word(before.kind),
                word(wanted.kind)
            ));
        }
    }
    Ok(together.into_values().collect())
}

/// Why an adapter cannot be given to who asks for sub-interfaces, behind its name; `None`: it can.
pub(super) fn unfit(case: &Case<'_>, hca: &Hca) -> Option<String> {
    let request = case.request;
    if !is_child(request.netns) || request.container.pod.host_network {
        return None;
    }
    let Some(children) = case.children else {
        return parent(case.node, hca).map_or_else(Some, |parent| occupied(case, hca, parent));
    };
    let Some(made) = children.iter().find(|made| made.hca == hca.name) else {
        return Some("it has no sub-interface in this pod".to_owned());
    };
    let gone = match case.pod {
        PodView::Ready(network) => {
            !network.interfaces.iter().any(|interface| interface.name == made.interface)
        }
        _ => false,
    };
    gone.then(|| format!("its sub-interface {} is gone from the pod", made.interface))
}

/// The interface of the host on which a sub-interface of that adapter lies: that of its port, or the
/// bond of which that is a member.
fn parent<'a>(node: &'a Node, hca: &Hca) -> Result<&'a Interface, String> {
    if hca.node_type == NodeType::Rnic {
        return Err("it is in iWARP mode, which knows no addresses of sub-interfaces".to_owned());
    }
    if !hca.ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet) {
        return Err("it has no Ethernet port on which a sub-interface could lie".to_owned());
    }
    let names = exclusive::interfaces(hca);
    if let [first, second, ..] = names[..] {
        return Err(format!("it has several interfaces ({first}, {second})"));
    }
    let named = |name: &str| node.interfaces.iter().find(|i| i.name == name);
    let Some(own) = names.first().copied().and_then(named) else {
        return Err(if hca.home == Home::Host {
            "its network interface is not known".to_owned()
        } else {
            "its network interface is in another network namespace".to_owned()
        });
    };
    let above = |interface: &Interface| {
        let index = interface.controller?;
        Some(node.interfaces.iter().find(|i| i.index == index))
    };
    let parent = match (above(own), &hca.role) {
        (Some(Some(bond)), _) if bond.kind.as_deref() == Some("bond") => bond,
        (None, Role::BondMember { bond }) => {
            named(bond).ok_or_else(|| format!("its bond {bond} is not known"))?
        }
        _ => own,
    };
    let name = &parent.name;
    if let Some(controller) = above(parent) {
        let what = controller.map_or_else(
            || "a bond or bridge".to_owned(),
            |above| format!("the {} {}", above.kind.as_deref().unwrap_or("interface"), above.name),
        );
        return Err(format!("its interface {name} is a member of {what}"));
    }
    // On an ipvlan or macvlan the kernel would put it beside that, not on it.
    if let Some(kind) = parent.kind.as_deref().filter(|kind| !matches!(*kind, "bond" | "vlan")) {
        return Err(format!("its interface {name} is itself virtual ({kind})"));
    }
    if !parent.up {
        return Err(format!("its interface {name} is down"));
    }
    Ok(parent)
}

/// Why there is no room for one more on that interface.
fn occupied(case: &Case<'_>, hca: &Hca, parent: &Interface) -> Option<String> {
    let (kind, name) = (case.request.netns, &parent.name);
    let clash = |whose: String, other: &str| {
        format!(
            "its interface {name} carries the {other} {whose}, and can carry no {} beside it",
            word(kind)
        )
    };
    let own = case.present.iter().find(|other| other.parent == *name && other.kind != kind);
    if let Some(other) = own {
        return Some(clash(format!("of pod {}", other.pod), word(other.kind)));
    }
    let host = case.node.interfaces.iter().find_map(|other| {
        let theirs = match other.kind.as_deref()? {
            "macvlan" | "macvtap" => NetnsRequest::Macvlan,
            "ipvlan" | "ipvtap" => NetnsRequest::Ipvlan,
            _ => return None,
        };
        (other.lower == Some(parent.index) && theirs != kind).then_some(other)
    });
    if let Some(other) = host {
        return Some(clash(other.name.clone(), other.kind.as_deref().unwrap_or_default()));
    }
    let count = case.present.iter().filter(|other| other.hca == hca.name).count();
    let most = case.policy.links.children;
    let full = count >= usize::try_from(most).unwrap_or(usize::MAX);
    full.then(|| {
        format!("it has {count} sub-interfaces already, and policy allows {most} (links.children)")
    })
}

/// What stands in the way of sub-interfaces, whichever adapters are meant; `Ok` for a pod in the
/// host's namespace too, for which none is made.
pub(super) fn gate(case: &Case<'_>, notes: &mut Notes) -> Result<(), String> {
    let request = case.request;
    if request.carrier.path != CarrierPath::Nri {
        return Err("sub-interfaces are made by the NRI plugin only".to_owned());
    }
    if !case.allowance.netns.contains(&request.netns) {
        return Err(denied_way(case, request.netns));
    }
    if request.devices.as_ref().is_none_or(|devices| *devices == Devices::None) {
        return Err("devices.rdma-ctk.io names no adapter to make a sub-interface of".to_owned());
    }
    if request.container.pod.host_network {
        notes.reason("netns", "the pod shares the host's network namespace: nothing is made");
        return Ok(());
    }
    if case.node.netns_mode == NetnsMode::Exclusive {
        return Err(format!(
            "this node runs RDMA in exclusive mode, in which a pod uses no adapter of the host; \
             {}",
            NETNS_MODE.replace("netns_mode=0", "netns_mode=1")
        ));
    }
    gates::no_gpus_yet(request, "its pod gets sub-interfaces")
}

/// Says what the container has of sub-interfaces.
pub(super) fn remark(case: &Case<'_>, hcas: &[&Hca], notes: &mut Notes) {
    let request = case.request;
    if !is_child(request.netns) || request.container.pod.host_network {
        return;
    }
    for one in request.address.fixed() {
        let given = |name: &String| hcas.iter().any(|hca| hca.name == *name);
        let Some(hca) = one.hca.as_ref().filter(|name| !given(name)) else { continue };
        let text = format!("{} is for {hca}, which this container is not given", one.address);
        notes.warn("address", text);
    }
    for hca in hcas {
        let made = case.children.and_then(|all| all.iter().find(|made| made.hca == hca.name));
        let name = made.map(|made| format!("{}, ", made.interface)).unwrap_or_default();
        match parent(case.node, hca) {
            Ok(parent) => notes.reason(
                "netns",
                format!("{}: {name}{} on {}", hca.name, word(request.netns), parent.name),
            ),
            Err(why) => notes.warn("netns", format!("{}: {why}", hca.name)),
        }
        if case.children.is_none()
            && request.address == AddressRequest::Auto
            && case.policy.links.pools_of(hca).0.is_empty()
        {
            let text = format!("{} will have none: no pool of policy is for it", hca.name);
            notes.warn("address", text + " (links.pools)");
        }
        let Some(made) = made.filter(|made| !made.addressed) else { continue };
        let why = if request.address == AddressRequest::None {
            "yet, as was asked for (address.rdma-ctk.io: none)"
        } else {
            "since no pool of policy is for it (links.pools)"
        };
        let comma = if why.starts_with("yet") { "" } else { "," };
        notes
            .warn("netns", format!("{}: {} has no address{comma} {why}", hca.name, made.interface));
    }
}
