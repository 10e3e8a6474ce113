//! The node, as far as one decision needs it. The wrapper is in the way of every container that is
//! made, and keeps nothing between two of them: so it reads only the adapters that the request
//! names, and a GID table only for the RoCE ports that are granted.
//!
//! The decision is taken twice: once to learn which adapters it is about, then with all that is to be
//! known of those. Where the first one says no, or the second one knows better, everything is read,
//! and what comes of that counts.
//!
//! Addresses of the host are asked of rtnetlink. A tree that no netlink speaks of tells them by its GID
//! tables only, so that there everything has to be read at once.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::container::Network;
use crate::grant::{Inventory, Outcome, SmcFacts, TopologyFile, decide};
use crate::inventory::{
    self, Focus, Hca, Home, LinkLayer, NetnsMode, Node, NodeType, PodView, Role, rdma_netlink,
};
use crate::netns::pod_view;
use crate::policy::Policy;
use crate::request::{
    Carrier, Container, Devices, EnvFamily, Request, RequestError, Requirement, Selector,
    SmcMethod, parse,
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
pub fn survey(case: &Case<'_>) -> Result<Decision, RequestError> {
    survey_by(case, &|focus| read(case.roots, focus))
}

/// Decides about a container, on a node that is read by `read`.
///
/// # Errors
/// As [`survey`].
pub fn survey_by(case: &Case<'_>, read: &dyn Fn(&Focus) -> Node) -> Result<Decision, RequestError> {
    let hint =
        parse(case.annotations, case.container.clone(), case.carrier.clone(), case.policy, None)
            .ok();
    let first = focus(hint.as_ref(), &case.container);
    let first = Focus { gids: Some(BTreeSet::new()), ..first };
    let node = read(&first);
    let request = case.request(&node)?;
    if !request.asks() || request.container.granted_before {
        let outcome = decide(&request, &Inventory::of(&node, &PodView::Host), case.policy);
        return Ok(Decision { request, outcome, node });
    }
    // The kernel may take any adapter for SMC-R.
    let smc = (request.smc != SmcMethod::Off).then(|| super::smc::facts(case.roots, case.policy));
    if smc.is_none()
        && let Some(decision) = case.of_few(&first, &node, &request, read)
    {
        return Ok(decision);
    }
    let node = read(&Focus { pkeys: false, ..Focus::EVERYTHING });
    let request = case.request(&node)?;
    let outcome = case.decide(&request, &node, &case.view(&node), smc.as_ref());
    Ok(Decision { request, outcome, node })
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
        let inventory = Inventory { node, pod: view, topology: topology(self.policy), smc };
        decide(request, &inventory, self.policy)
    }

    /// The decision with what was read of some adapters; `None`: more has to be read.
    fn of_few(
        &self,
        first: &Focus,
        node: &Node,
        request: &Request,
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
        // The network has no part in which adapters are given here, only in how they are used.
        let mut lenient = request.clone();
        lenient
            .require
            .retain(|need| !matches!(need, Requirement::Gid | Requirement::RoceInterface));
        let unknown = PodView::Unknown { reason: String::new() };
        let Outcome::Granted(grant) = self.decide(&lenient, node, &unknown, None) else {
            return None;
        };
        let names = |adapters: &[crate::grant::Adapter]| -> BTreeSet<String> {
            adapters.iter().map(|adapter| adapter.name.clone()).collect()
        };
        let granted = names(&grant.adapters);
        let tables: BTreeSet<String> = node
            .hcas
            .iter()
            .filter(|hca| granted.contains(&hca.name) && has_addresses(hca))
            .map(|hca| hca.name.clone())
            .collect();
        let node = if tables.is_empty() {
            node.clone()
        } else {
            read(&Focus { gids: Some(tables), ..first.clone() })
        };
        let mut near = node.clone();
        near.hcas.retain(|hca| granted.contains(&hca.name));
        let outcome = self.decide(request, &node, &self.view(&near), None);
        let same = match &outcome {
            Outcome::Granted(grant) => names(&grant.adapters).is_subset(&granted),
            _ => false,
        };
        same.then(|| Decision { request: request.clone(), outcome, node })
    }

    /// The container's network, with the GIDs of the adapters of `node`.
    fn view(&self, node: &Node) -> PodView {
        match &self.network {
            Network::Host => PodView::Host,
            Network::Own(path) => pod_view(self.roots, path, node, PATIENCE),
            Network::Later => {
                PodView::Pending { reason: "its network namespace is made after this".to_owned() }
            }
        }
    }
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
    Focus { adapters, gids: None, gpus, pkeys: false }
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

/// What is seen of the topology file that policy names.
fn topology(policy: &Policy) -> Option<TopologyFile> {
    let path = policy.topology_file.as_ref()?;
    Some(match std::fs::metadata(path) {
        Ok(data) if data.is_file() => {
            TopologyFile::Present { mode: data.permissions().mode() & 0o7777 }
        }
        Ok(_) | Err(_) => TopologyFile::Missing,
    })
}
