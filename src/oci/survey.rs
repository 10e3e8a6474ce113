//! The node, as far as one decision needs it. The wrapper is in the way of every container that is
//! made, and keeps nothing between two of them: so it reads only the adapters that the request
//! names, and a GID table only for the RoCE ports that are granted.
//!
//! The decision is taken twice: once to learn which adapters it is about, then with all that is to be
//! known of those: their GID tables, where an address has a part in it. Where the first one says no,
//! or the second one knows better, everything is read, and what comes of that counts.
//!
//! Addresses of the host are asked of rtnetlink. A tree that no netlink speaks of tells them by its GID
//! tables only, so that there everything has to be read at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::container::Network;
use crate::grant::{Adapter, Inventory, Outcome, SmcFacts, TopologyFile, decide};
use crate::inventory::topologyd::topologyd;
use crate::inventory::{
    self, Focus, Hca, Home, LinkLayer, NetnsMode, Node, NodeType, PodView, Role, cgroup,
    rdma_netlink,
};
use crate::netns::{Detail, gid_value, is_bare, pod_view_by};
use crate::policy::Policy;
use crate::request::{
    Carrier, Container, Devices, EnvFamily, NodeKind, NumaMode, Request, RequestError, Requirement,
    Selector, SmcMethod, parse,
};
use crate::roots::Roots;

/// How long GIDs of the container's addresses are waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a decision is made of, beside the node.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// The node's trees.
    pub roots: &'a Roots,
    /// What the admin allows.
    pub policy: &'a Policy,
    /// The container's annotations, those of its pod among them.
    pub annotations: &'a BTreeMap<String, String>,
    /// The container as its document shows it.
    pub container: Container,
    /// The path that carries the grant.
    pub carrier: Carrier,
    /// Where its network is.
    pub network: Network,
    /// Its cgroup, as its document names it; empty: none.
    pub group: &'a str,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What was asked.
    pub request: Request,
    /// What came of it.
    pub outcome: Outcome,
    /// The adapters that were read.
    pub node: Node,
}

/// Decides about a container.
///
/// # Errors
/// An annotation that reaches it cannot be understood.
pub fn survey(case: &mut Case<'_>) -> Result<Decision, RequestError> {
    let roots = case.roots;
    survey_by(case, &|focus| read(roots, focus))
}

/// Decides about a container, on a node that is read by `read`.
///
/// # Errors
/// As [`survey`].
pub fn survey_by(
    case: &mut Case<'_>,
    read: &dyn Fn(&Focus) -> Node,
) -> Result<Decision, RequestError> {
    // What is asked is told by the annotations and whose the container is.
    let named = Container {
        id: case.container.id.clone(),
        name: case.container.name.clone(),
        pod: case.container.pod.clone(),
        ..Container::default()
    };
    let hint = parse(case.annotations, named, case.carrier.clone(), case.policy, None).ok();
    if hint.as_ref().is_none_or(|hint| hint.numa != NumaMode::Off) {
        // Unknown is none.
        case.container.parent_cpus =
            cgroup::parent_cpus(case.roots, "", case.group).unwrap_or_default();
    }
    let first = case.focus(hint.as_ref());
    drop(hint);
    let node = read(&first);
    let request = case.request(&node)?;
    if !request.asks() || request.container.granted_before {
        let outcome = decide(&request, &Inventory::of(&node, &PodView::Host), case.policy);
        return Ok(Decision { request, outcome, node });
    }
    // The kernel may take any adapter for SMC-R.
    let smc = (request.smc != SmcMethod::Off).then(|| super::smc::facts(case.roots, case.policy));
    if smc.is_none()
        && let Some(decision) = case.of_few(&first, node, request, read)
    {
        return Ok(decision);
    }
    let node = read(&Focus { pkeys: false, ..Focus::EVERYTHING });
    let request = case.request(&node)?;
    let view = case.view(&node, Detail::Everything);
    let outcome = case.decide(&request, &node, &view, smc.as_ref());
    Ok(Decision { request, outcome, node })
}

/// Decides again about a container whose network has been made since: the same adapters, with the
/// GIDs that they have by now. `None`: there is nothing in there but the loopback.
pub(super) fn with_network(
    roots: &Roots,
    policy: &Policy,
    mut request: Request,
    adapters: &[Adapter],
    namespace: &Path,
    patience: Duration,
) -> Result<Option<Outcome>, String> {
    if is_bare(roots, namespace).map_err(|error| error.to_string())? {
        return Ok(None);
    }
    // Adapters are settled; a count would spread over those that were read.
    let names = names_of(adapters);
    request.devices = Some(Devices::Select(names.iter().cloned().map(Selector::Name).collect()));
    let focus = Focus {
        adapters: Some(names.clone()),
        gids: Some(BTreeSet::new()),
        interfaces: true,
        ..focus(Some(&request), &request.container)
    };
    let mut node = read(roots, &focus);
    if !node.hcas.iter().all(|hca| is_plain(hca, &node)) {
        node = read(roots, &Focus { gids: Some(names), ..focus });
    }
    let view = pod_view_by(roots, namespace, &node, patience, detail(&request, &node));
    match &view {
        PodView::Unknown { reason } | PodView::Pending { reason } => Err(reason.clone()),
        PodView::Ready(_) | PodView::Host => {
            let inventory =
                Inventory { topology: topology(policy, roots), ..Inventory::of(&node, &view) };
            Ok(Some(decide(&request, &inventory, policy)))
        }
    }
}

impl Case<'_> {
    fn request(&self, node: &Node) -> Result<Request, RequestError> {
        let (container, carrier) = (self.container.clone(), self.carrier.clone());
        Request::read(self.annotations, container, carrier, self.policy, node)
    }

    fn decide(
        &self,
        request: &Request,
        node: &Node,
        view: &PodView,
        smc: Option<&SmcFacts>,
    ) -> Outcome {
        let topology = topology(self.policy, self.roots);
        let inventory = Inventory { node, pod: view, topology, smc, children: None };
        decide(request, &inventory, self.policy)
    }

    /// What is read first.
    fn focus(&self, request: Option<&Request>) -> Focus {
        let mut focus = focus(request, &self.container);
        let smc = request.is_some_and(|request| request.smc != SmcMethod::Off);
        // Without a network there are no addresses to look for.
        focus.interfaces |= smc || self.network != Network::Later;
        focus.gids = Some(BTreeSet::new());
        focus
    }

    /// The decision with what was read of some adapters; `None`: more has to be read.
    fn of_few(
        &self,
        first: &Focus,
        mut node: Node,
        request: Request,
        read: &dyn Fn(&Focus) -> Node,
    ) -> Option<Decision> {
        // What can be given depends on what is in the container's namespace; and whose an interface
        // is among representors and bonds is told by GIDs too.
        let entangled = |hca: &Hca| {
            let role = &hca.role;
            hca.home != Home::Host
                || matches!(role, Role::Representor | Role::Bond { .. } | Role::BondMember { .. })
        };
        if node.netns_mode == NetnsMode::Exclusive || node.hcas.iter().any(entangled) {
            return None;
        }
        if self.network == Network::Later {
            let outcome = self.decide(&request, &node, &self.view(&node, Detail::Held), None);
            let granted = matches!(outcome, Outcome::Granted(_));
            return granted.then_some(Decision { request, outcome, node });
        }
        // The network has no part in which adapters are given here, only in how they are used.
        let mut lenient = request.clone();
        lenient
            .require
            .retain(|need| !matches!(need, Requirement::Gid | Requirement::RoceInterface));
        let unknown = PodView::Unknown { reason: String::new() };
        let Outcome::Granted(grant) = self.decide(&lenient, &node, &unknown, None) else {
            return None;
        };
        drop(lenient);
        let granted = names_of(&grant.adapters);
        let roce = |hca: &Hca| granted.contains(&hca.name) && has_addresses(hca);
        let plain = node.hcas.iter().filter(|hca| roce(hca)).all(|hca| is_plain(hca, &node));
        let tables: BTreeSet<String> =
            node.hcas.iter().filter(|hca| roce(hca)).map(|hca| hca.name.clone()).collect();
        let mut near = node.clone();
        near.hcas.retain(|hca| granted.contains(&hca.name));
        let detail = detail(&request, &near);
        match &self.network {
            // Read once, after the addresses of the container.
            Network::Own(_) if plain => {}
            Network::Host if plain => self.fill(&mut node, &tables, detail),
            _ if tables.is_empty() => {}
            _ => {
                node = read(&Focus { gids: Some(tables), ..first.clone() });
                near = node.clone();
                near.hcas.retain(|hca| granted.contains(&hca.name));
            }
        }
        let outcome = self.decide(&request, &node, &self.view(&near, detail), None);
        let same = match &outcome {
            Outcome::Granted(grant) => names_of(&grant.adapters).is_subset(&granted),
            _ => false,
        };
        same.then_some(Decision { request, outcome, node })
    }

    /// Reads the GID tables of those adapters.
    fn fill(&self, node: &mut Node, adapters: &BTreeSet<String>, detail: Detail) {
        let addresses = node.interfaces.iter().flat_map(|interface| &interface.addresses);
        let held: BTreeSet<Ipv6Addr> = addresses.map(|(address, _)| gid_value(*address)).collect();
        for hca in node.hcas.iter_mut().filter(|hca| adapters.contains(&hca.name)) {
            let tables = match detail {
                Detail::Everything => inventory::gids(self.roots, &hca.name),
                Detail::Held => inventory::gids_of(self.roots, &hca.name, &held),
            };
            for table in tables {
                let port = hca.ports.iter_mut().find(|port| port.number == table.port);
                if let Some(port) = port {
                    port.gids = table.gids;
                }
            }
        }
    }

    /// The container's network, with the GIDs of the adapters of `node`.
    fn view(&self, node: &Node, detail: Detail) -> PodView {
        match &self.network {
            Network::Host => PodView::Host,
            Network::Own(path) => pod_view_by(self.roots, path, node, PATIENCE, detail),
            Network::Later => {
                PodView::Pending { reason: "its network namespace is made after this".to_owned() }
            }
        }
    }
}

fn names_of(adapters: &[Adapter]) -> BTreeSet<String> {
    adapters.iter().map(|adapter| adapter.name.clone()).collect()
}

/// What has to be known of GIDs: where there is one port, the index is said, and which other GIDs its
/// program would take by itself does not matter.
fn detail(request: &Request, node: &Node) -> Detail {
    let ports = node.hcas.iter().filter(|hca| has_addresses(hca)).flat_map(|hca| &hca.ports);
    if ports.count() <= 1 && request.smc == SmcMethod::Off {
        Detail::Held
    } else {
        Detail::Everything
    }
}

/// Whether GIDs tell nothing of what the adapter is and which interface is its own.
fn is_plain(hca: &Hca, node: &Node) -> bool {
    let above = |name: &str| {
        let mut interfaces = node.interfaces.iter();
        let found = interfaces.find(|interface| interface.name == name);
        found.is_some_and(|interface| interface.controller.is_some())
    };
    !has_addresses(hca)
        || matches!(hca.role, Role::Physical { .. } | Role::Virtual { .. })
            && hca.home == Home::Host
            && hca.ports.iter().all(|port| port.netdev.as_ref().is_some_and(|name| !above(name)))
}

/// Whether the GIDs of an adapter are made of addresses.
fn has_addresses(hca: &Hca) -> bool {
    hca.node_type == NodeType::Ca
        && hca.ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet)
}

/// What is to be read for a request, before it is known what it gets.
fn focus(request: Option<&Request>, container: &Container) -> Focus {
    let Some(request) = request else { return Focus { pkeys: false, ..Focus::EVERYTHING } };
    // Another plugin's adapters are told by their nodes, whatever the request names.
    let held = container.devices.iter().any(|device| device.path.starts_with("/dev/infiniband"))
        || !container.cdi.is_empty();
    let adapters = match &request.devices {
        Some(Devices::Select(selectors)) if !held => names(selectors),
        _ => None,
    };
    let selects = |wanted: fn(&Selector) -> bool| match &request.devices {
        Some(Devices::Select(selectors)) => selectors.iter().any(wanted),
        _ => false,
    };
    let has_gpus = container.devices.iter().any(|device| device.path.starts_with("/dev/nvidia"))
        || container.cdi.iter().any(|name| name.contains("nvidia.com/gpu"))
        || container.env.iter().any(|(name, _)| name == "NVIDIA_VISIBLE_DEVICES");
    let gpus = selects(|selector| *selector == Selector::Gpu)
        || request.require.contains(&Requirement::Gpudirect)
        || (has_gpus
            && (matches!(request.devices, Some(Devices::Count(_)))
                || request.env.families.contains(&EnvFamily::Nccl)));
    let mads = [NodeKind::Umad, NodeKind::Issm].iter().any(|kind| request.nodes.contains(kind));
    let some = adapters.is_none();
    Focus {
        adapters,
        gids: None,
        gpus,
        pkeys: false,
        mads: held || mads,
        numa: some || gpus || request.numa != NumaMode::Off,
        interfaces: some,
    }
}

/// The adapters that selectors name; `None` where one of them is a set.
fn names(selectors: &[Selector]) -> Option<BTreeSet<String>> {
    selectors
        .iter()
        .map(|selector| match selector {
            Selector::Name(name) if !name.contains('*') => Some(name.clone()),
            _ => None,
        })
        .collect()
}

/// Reads a part of the node. If RDMA netlink does not answer, sysfs has to do.
fn read(roots: &Roots, focus: &Focus) -> Node {
    let focus = if roots.is_live() { focus } else { &Focus::EVERYTHING };
    match rdma_netlink::read_part(roots, focus) {
        Ok(view) => inventory::part(roots, view.as_ref(), focus),
        Err(error) => {
            let mut node = inventory::part(roots, None, focus);
            node.remarks.push(format!("RDMA netlink did not answer: {error}"));
            node
        }
    }
}

/// What is seen of the topology file that policy names, else of the vendor's.
fn topology(policy: &Policy, roots: &Roots) -> Option<TopologyFile> {
    let Some(path) = policy.topology_file.as_ref() else {
        return topologyd(roots).map(|mode| TopologyFile::Vendor { mode });
    };
    Some(match std::fs::metadata(path) {
        Ok(data) if data.is_file() => {
            TopologyFile::Present { mode: data.permissions().mode() & 0o7777 }
        }
        Ok(_) | Err(_) => TopologyFile::Missing,
    })
}
