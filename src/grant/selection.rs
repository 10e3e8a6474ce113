//! Which adapters: `all`, a count, or selectors, out of those that can be given.
//!
//! An adapter that is meant by its own name, address or interface must be fit, or the container
//! is refused. A set (`all`, a count, `mlx5_*`, `driver:efa`, …) takes those of it that are fit,
//! and virtual functions only where policy says so or nothing else is.

use std::collections::HashSet;
use std::fmt;

use super::digest::Digest;
use super::gates::{place, whose};
use super::gpus;
use super::words::{list, quote, refuse};
use super::{Case, Notes, Refusal, children, claims, gid};
use crate::inventory::{Hca, Home, LinkLayer, Nearness, NetnsMode, Node, NodeType, PodView, Role};
use crate::policy::wildcard;
use crate::request::nearest::nearest;
use crate::request::{Devices, Key, Link, NodeKind, Selector};

/// The adapters that the container gets, in the order in which they were asked for: for a count
/// the nearest first, else by selector and then in the node's order.
pub(super) fn select<'a>(case: &Case<'a>, notes: &mut Notes) -> Result<Vec<&'a Hca>, Refusal> {
    let chosen = match &case.request.devices {
        None | Some(Devices::None) => Vec::new(),
        Some(Devices::All) => set(case, None, |_| true, notes)?,
        Some(Devices::Count(count)) => best(case, *count, notes)?,
        Some(Devices::Select(selectors)) => {
            let mut chosen: Vec<&Hca> = Vec::new();
            let mut seen: HashSet<&str> = HashSet::new();
            for selector in selectors {
                let by_selector = select_by(case, selector, notes)?;
                chosen.extend(by_selector.into_iter().filter(|hca| seen.insert(&hca.name)));
            }
            chosen
        }
    };
    if chosen.is_empty() {
        return Err(refuse(case.request, Key::Devices, "it names no device"));
    }
    notes.reason("devices", format!("given: {}", names(chosen.iter().copied())));
    let Node { hcas, unread, .. } = case.node;
    if case.node.netns_mode == NetnsMode::Shared && chosen.len() < hcas.len() + unread.len() {
        let given: HashSet<&str> = chosen.iter().map(|hca| hca.name.as_str()).collect();
        let others = hcas.iter().map(|hca| &hca.name).filter(|name| !given.contains(name.as_str()));
        let others = list(others.chain(unread));
        notes.reason("devices", format!("visible in sysfs, not accessible: {others}"));
    }
    if let Some(claim) = &case.request.claim {
        let held = names(claims::held(case, claim));
        notes.reason("devices", format!("held by {} already: {held}", quote(&claim.by)));
    }
    Ok(chosen)
}

fn select_by<'a>(
    case: &Case<'a>,
    selector: &Selector,
    notes: &mut Notes,
) -> Result<Vec<&'a Hca>, Refusal> {
    match selector {
        Selector::Name(pattern) if pattern.contains('*') => {
            set(case, Some(pattern), |hca| wildcard(pattern, &hca.name), notes)
        }
        Selector::Name(name) => one(case, name, |hca| hca.name == *name),
        Selector::Pci(address) => {
            one(case, &format!("pci:{address}"), |hca| hca.pci == Some(*address))
        }
        Selector::Netdev(netdev) => one(case, &format!("netdev:{netdev}"), |hca| {
            hca.ports.iter().any(|port| port.netdev.as_deref() == Some(netdev))
        }),
        Selector::Driver(driver) => {
            set(case, Some(&format!("driver:{driver}")), |hca| hca.driver.is(driver), notes)
        }
        Selector::Link(link) => set(
            case,
            Some(&format!("link:{}", link_word(*link))),
            |hca| link_of(hca) == *link,
            notes,
        ),
        Selector::Numa(numa) => {
            set(case, Some(&format!("numa:{numa}")), |hca| hca.numa == Some(*numa), notes)
        }
        Selector::Gpu => by_gpu(case, notes),
        Selector::Rail(places) => {
            let mut chosen = Vec::new();
            for place in places {
                let rail = rail(case, *place)?;
                chosen.extend(one(case, &format!("rail:{place}"), |hca| hca.name == rail.name)?);
            }
            Ok(chosen)
        }
    }
}

/// The adapter that is meant and no other: unfit is refused.
fn one<'a>(
    case: &Case<'a>,
    what: &str,
    meant: impl Fn(&Hca) -> bool,
) -> Result<Vec<&'a Hca>, Refusal> {
    let found: Vec<&Hca> = case.node.hcas.iter().filter(|hca| meant(hca)).collect();
    let Some(&first) = found.first() else {
        return Err(refuse(
            case.request,
            Key::Devices,
            match nearest(what, ["all", "none", "gpu"]) {
                Some(word) => format!("no RDMA device {what} {}; did you mean {word}?", have(case)),
                None => format!("no RDMA device {what} {}", have(case)),
            },
        ));
    };
    let mut fit = found.iter().copied().filter(|hca| unfit(case, hca, Meant::Itself).is_none());
    if let Some(hca) = fit.next() {
        return Ok(vec![hca]);
    }
    let why = unfit(case, first, Meant::Itself).map_or_else(String::new, |why| why.to_string());
    let others = case.node.hcas.iter().filter(|hca| unfit(case, hca, Meant::Itself).is_none());
    Err(refuse(
        case.request,
        Key::Devices,
        format!("{} cannot be given: {why} (can be given: {})", first.name, names(others)),
    ))
}

/// Those of a set that are fit; none is refused. `what` are the words for it, if it is not all.
fn set<'a>(
    case: &Case<'a>,
    what: Option<&str>,
    meant: impl Fn(&Hca) -> bool,
    notes: &mut Notes,
) -> Result<Vec<&'a Hca>, Refusal> {
    let mut fit: Vec<&Hca> = Vec::new();
    let mut left_out: Vec<(&Hca, Unfit<'_>)> = Vec::new();
    for hca in case.node.hcas.iter().filter(|hca| meant(hca)) {
        match unfit(case, hca, Meant::Set) {
            None => fit.push(hca),
            Some(why) => left_out.push((hca, why)),
        }
    }
    let is_virtual = |hca: &Hca| matches!(hca.role, Role::Virtual { .. });
    if !case.allowance.virtual_functions && !fit.iter().all(|hca| is_virtual(hca)) {
        let spared: Vec<&str> =
            fit.iter().filter(|hca| is_virtual(hca)).map(|hca| hca.name.as_str()).collect();
        if !spared.is_empty() {
            notes.reason(
                "devices",
                format!("virtual functions are left to others by policy: {}", list(&spared)),
            );
        }
        fit.retain(|hca| !is_virtual(hca));
    }
    if fit.is_empty() {
        let matching = what.map_or_else(String::new, |what| format!(" that matches {what}"));
        let why = if left_out.is_empty() {
            match details(&case.node.hcas) {
                Some(all) => format!("no RDMA device on this node{matching} (have: {all})"),
                None => "this node has no RDMA device".to_owned(),
            }
        } else {
            format!(
                "no RDMA device{matching} can be given ({})",
                list(left_out.iter().map(|(hca, why)| format!("{}: {why}", hca.name)))
            )
        };
        return Err(refuse(case.request, Key::Devices, why));
    }
    if !left_out.is_empty() {
        let left_out = left_out.iter().map(|(hca, why)| format!("{}: {why}", hca.name));
        notes.reason("devices", format!("left out: {}", list(left_out)));
    }
    Ok(fit)
}

/// The `count` best of all: by nearness to the container's GPUs, then to its CPUs, then by a hash
/// of pod and container, so that load spreads.
fn best<'a>(case: &Case<'a>, count: u32, notes: &mut Notes) -> Result<Vec<&'a Hca>, Refusal> {
    let mut fit = set(case, None, |_| true, notes)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 || fit.len() < count {
        return Err(refuse(
            case.request,
            Key::Devices,
            format!(
                "{count} RDMA devices were asked for and {} can be given ({})",
                fit.len(),
                names(fit.iter().copied())
            ),
        ));
    }
    let container = &case.request.container;
    let gpus = gpus::of_container(case.request, case.node);
    let nearest = gpus::nearest(case.node, &gpus);
    let cpu_distance = |hca: &Hca| match (&container.cpus, hca.numa) {
        (_, None) => 1,
        (Some(cpus), Some(_)) => 2 * u8::from(!cpus.iter().any(|cpu| hca.local_cpus.contains(cpu))),
        (None, Some(numa)) => {
            2 * u8::from(!gpus.is_empty() && !gpus.iter().any(|gpu| gpu.numa == Some(numa)))
        }
    };
    fit.sort_by_cached_key(|hca| {
        (
            nearest.get(hca.name.as_str()).copied().unwrap_or(Nearness::Unknown),
            cpu_distance(hca),
            Digest::of([&container.pod.uid, &container.name, &hca.name]).spread(),
        )
    });
    fit.truncate(count);
    notes.reason(
        "devices",
        if gpus.is_empty() {
            "ranked by NUMA node, then spread over pods by a hash".to_owned()
        } else {
            format!(
                "ranked by nearness to {}, then by NUMA node, then spread over pods by a hash",
                list(gpus.iter().map(|gpu| gpu.pci.to_string()))
            )
        },
    );
    Ok(fit)
}

/// For each GPU of the container, the adapters that are nearest to it.
fn by_gpu<'a>(case: &Case<'a>, notes: &mut Notes) -> Result<Vec<&'a Hca>, Refusal> {
    let gpus = gpus::of_container(case.request, case.node);
    if gpus.is_empty() {
        return Err(refuse(
            case.request,
            Key::Devices,
            format!(
                "gpu asks for the adapters next to this container's GPUs, and it has none that \
                 is known (on this node: {})",
                list(case.node.gpus.iter().map(|gpu| gpu.pci.to_string()))
            ),
        ));
    }
    let fit = set(case, None, |_| true, notes)?;
    let mut chosen: Vec<&Hca> = Vec::new();
    for gpu in &gpus {
        let near = gpus::nearest(case.node, &[gpu]);
        let distance =
            |hca: &Hca| near.get(hca.name.as_str()).copied().unwrap_or(Nearness::Unknown);
        let least = fit.iter().map(|hca| distance(hca)).min().unwrap_or(Nearness::Unknown);
        if least == Nearness::Unknown {
            return Err(refuse(
                case.request,
                Key::Devices,
                format!(
                    "nothing tells which adapter is near GPU {} (have: {})",
                    gpu.pci,
                    names(fit.iter().copied())
                ),
            ));
        }
        for hca in fit.iter().copied().filter(|hca| distance(hca) == least) {
            if !chosen.iter().any(|other| other.name == hca.name) {
                chosen.push(hca);
            }
        }
        if least == Nearness::Other {
            notes.warn(
                "devices",
                format!("no adapter shares a bridge or a NUMA node with GPU {}", gpu.pci),
            );
        }
    }
    Ok(chosen)
}

/// The adapter of a rail: of policy's list, else of the commonest group of link layer and rate.
fn rail<'a>(case: &Case<'a>, place: u32) -> Result<&'a Hca, Refusal> {
    let index = usize::try_from(place).unwrap_or(usize::MAX);
    let refusal = |why: String| refuse(case.request, Key::Devices, why);
    let listed = &case.policy.rails;
    if listed.is_empty() {
        let rails = commonest(&case.node.hcas);
        return rails.get(index).copied().ok_or_else(|| {
            let known = rails.iter().enumerate();
            let known = known.map(|(place, hca)| format!("{place} {}", hca.name));
            if rails.is_empty() {
                return refusal("this node has no RDMA device".to_owned());
            }
            refusal(format!("no rail {place} on this node (have: {})", list(known)))
        });
    }
    let Some(name) = listed.get(index) else {
        let known = listed.iter().enumerate().map(|(place, name)| format!("{place} {name}"));
        let known = list(known);
        return Err(refusal(format!("no rail {place} in policy (config.toml, rails: {known})")));
    };
    let is_it =
        |hca: &&Hca| hca.name == *name || hca.pci.is_some_and(|pci| pci.to_string() == *name);
    case.node.hcas.iter().find(is_it).ok_or_else(|| {
        refusal(format!(
            "rail {place} is {name} by policy (config.toml, rails), no RDMA device {}",
            have(case)
        ))
    })
}

/// The largest group of adapters with one link layer and rate, in the node's order; of two of one
/// size, that which begins first.
fn commonest(hcas: &[Hca]) -> Vec<&Hca> {
    let derived = |hca: &&Hca| {
        matches!(hca.role, Role::Virtual { .. } | Role::Representor | Role::BondMember { .. })
    };
    let mut groups: Vec<((LinkLayer, &str), Vec<&Hca>)> = Vec::new();
    for hca in hcas.iter().filter(|hca| !derived(hca)) {
        let Some(port) = hca.ports.first() else { continue };
        let kind = (port.link_layer, port.rate.as_str());
        match groups.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, members)) => members.push(hca),
            None => groups.push((kind, vec![hca])),
        }
    }
    // The last of equals is the maximum, hence the reversal.
    let groups = groups.into_iter().rev().map(|(_, members)| members);
    groups.max_by_key(Vec::len).unwrap_or_default()
}

/// How an adapter was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meant {
    /// By what names it alone.
    Itself,
    /// As one of a set.
    Set,
}

/// Why an adapter cannot be given.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unfit<'a> {
    Policy(String),
    Elsewhere,
    HostOnly,
    OtherPod,
    NotKnownYet(&'a str),
    Representor,
    BondMember(&'a str),
    NoActivePort(String),
    NoUverbs,
    /// It cannot move into a pod, or has no sub-interface there.
    Stays(String),
}

impl fmt::Display for Unfit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(whose) => write!(f, "policy does not give it to {whose}"),
            Self::Elsewhere => f.write_str("it was moved into another network namespace"),
            Self::HostOnly => f.write_str(
                "this node runs RDMA in exclusive mode, and it is not in the pod's namespace",
            ),
            Self::OtherPod => f.write_str("its network interface is in another pod"),
            Self::NotKnownYet(reason) => write!(
                f,
                "its network interface is in some pod, and whether in this one is not known: \
                 {reason}"
            ),
            Self::Representor => f.write_str("it is a representor of a virtual function"),
            Self::BondMember(bond) => write!(f, "it is a member of {bond}"),
            Self::NoActivePort(ports) => write!(f, "it has no ACTIVE port ({ports})"),
            Self::Stays(why) => f.write_str(why),
            Self::NoUverbs => f.write_str("it has no uverbs node: load ib_uverbs"),
        }
    }
}

/// Why that adapter cannot be given to this container; `None`: it can.
fn unfit<'a>(case: &Case<'a>, hca: &'a Hca, meant: Meant) -> Option<Unfit<'a>> {
    if !case.allowance.permits(hca) {
        let place = place(case, "adapters", |allowance| allowance.permits(hca));
        return Some(Unfit::Policy(format!("{} ({place})", whose(&case.request.container.pod))));
    }
    if let Some(why) = case.moving.and_then(|moving| moving.unfit(case, hca)) {
        return Some(Unfit::Stays(why));
    }
    if let Some(why) = children::unfit(case, hca) {
        return Some(Unfit::Stays(why));
    }
    if let Some(place) = out_of_reach(case, hca) {
        return Some(place);
    }
    if meant == Meant::Set {
        match &hca.role {
            Role::Representor => return Some(Unfit::Representor),
            Role::BondMember { bond } => return Some(Unfit::BondMember(bond)),
            _ => {}
        }
    }
    // Subnet managers and fabric tools work on ports that are not up, or not yet.
    let fabric_tool = meant == Meant::Itself
        && [NodeKind::Umad, NodeKind::Issm].iter().any(|kind| case.request.nodes.contains(kind));
    // The ports of an adapter that sits in the pod's namespace cannot be seen from the host's.
    let unseen = hca.home == Home::Elsewhere && hca.ports.is_empty();
    if !fabric_tool && !unseen && hca.active_ports().next().is_none() {
        let ports = hca.ports.iter().map(|port| format!("port {}: {}", port.number, port.state));
        return Some(Unfit::NoActivePort(list(ports)));
    }
    let wants_uverbs = case.request.nodes.contains(&NodeKind::Uverbs);
    (wants_uverbs && hca.uverbs.is_none()).then_some(Unfit::NoUverbs)
}

/// Why the adapter cannot be used from the container's network namespace.
fn out_of_reach<'a>(case: &Case<'a>, hca: &Hca) -> Option<Unfit<'a>> {
    if case.node.netns_mode == NetnsMode::Exclusive {
        return match case.pod {
            PodView::Host => (hca.home == Home::Elsewhere).then_some(Unfit::Elsewhere),
            PodView::Ready(network) => {
                let inside = network.hcas.contains(&hca.name);
                (!inside).then_some(Unfit::HostOnly)
            }
            PodView::Pending { reason } | PodView::Unknown { reason } => {
                Some(Unfit::NotKnownYet(reason))
            }
        };
    }
    match (&hca.home, case.pod) {
        (Home::Host, _) => None,
        (Home::Elsewhere, _) => Some(Unfit::Elsewhere),
        (Home::NetdevElsewhere, PodView::Host) => Some(Unfit::OtherPod),
        (Home::NetdevElsewhere, PodView::Ready(_)) => {
            (!gid::owned(case, hca)).then_some(Unfit::OtherPod)
        }
        (Home::NetdevElsewhere, PodView::Pending { reason } | PodView::Unknown { reason }) => {
            Some(Unfit::NotKnownYet(reason))
        }
    }
}

/// The word of the `link:` selector that an adapter answers to.
pub(super) fn link_of(hca: &Hca) -> Link {
    match hca.ports.first().map(|port| port.link_layer) {
        Some(LinkLayer::InfiniBand) => Link::InfiniBand,
        Some(LinkLayer::Ethernet) if hca.node_type == NodeType::Rnic => Link::Iwarp,
        Some(LinkLayer::Ethernet) => Link::Roce,
        Some(LinkLayer::Unknown) | None => Link::Other,
    }
}

const fn link_word(link: Link) -> &'static str {
    match link {
        Link::InfiniBand => "ib",
        Link::Roce => "roce",
        Link::Iwarp => "iwarp",
        Link::Other => "other",
    }
}

/// What the node has, by name.
fn names<'a>(hcas: impl IntoIterator<Item = &'a Hca>) -> String {
    list(hcas.into_iter().map(|hca| hca.name.as_str()))
}

/// What there is instead: `on this node (have: mlx5_0, mlx5_1)`.
fn have(case: &Case<'_>) -> String {
    if case.node.hcas.is_empty() {
        "on this node, which has none at all".to_owned()
    } else {
        format!("on this node (have: {})", names(&case.node.hcas))
    }
}

/// What the node has, with what selectors go by: `mlx5_0 (driver mlx5, link roce, numa 0)`; `None`
/// where it has nothing.
fn details(hcas: &[Hca]) -> Option<String> {
    let all = list(hcas.iter().map(|hca| {
        let numa = hca.numa.map_or_else(|| "unknown".to_owned(), |numa| numa.to_string());
        let link = link_word(link_of(hca));
        format!("{} (driver {}, link {link}, numa {numa})", hca.name, hca.driver)
    }));
    (!hcas.is_empty()).then_some(all)
}
