//! CPUs next to the adapters. Only ever narrowed: whoever gave CPUs to a container for itself
//! alone (the kubelet's static policy, another plugin) is not fought.

use super::gates::carrier;
use super::words::{asked, list, refuse};
use super::{Case, Grant, Notes, Refusal};
use crate::inventory::{CpuSet, Hca, Node};
use crate::request::{Can, Container, Key, NumaMode};

/// cgroup v1 shares of one CPU, by which the kubelet writes requests.
const SHARES_OF_A_CPU: u64 = 1024;

/// What becomes of a container's CPUs.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// CPUs to set.
    pub(super) cpus: Option<CpuSet>,
    /// Memory nodes to set.
    pub(super) mems: Option<CpuSet>,
    /// CPUs to which later sets are narrowed too.
    pub(super) near: Option<CpuSet>,
}

impl Placement {
    /// Puts it into the grant.
    pub(super) fn into_grant(self, grant: &mut Grant) {
        grant.cpus = self.cpus;
        grant.mems = self.mems;
        grant.near = self.near;
    }
}

/// Narrows the container's CPUs to those next to the adapters.
pub(super) fn place(
    case: &Case<'_>,
    hcas: &[&Hca],
    notes: &mut Notes,
) -> Result<Placement, Refusal> {
    let request = case.request;
    let strict = request.numa == NumaMode::Strict;
    if request.numa == NumaMode::Off {
        notes.reason("cpus", "as they are: numa is off");
        return Ok(Placement::default());
    }
    if let Can::No(lacks) = &request.carrier.cpuset {
        let why = format!("{} cannot set CPUs: {lacks}", carrier(request));
        if strict {
            return Err(refuse(request, Key::Numa, why));
        }
        notes.reason("cpus", why);
        return Ok(Placement::default());
    }
    let near = Near::to(case.node, hcas);
    if !near.unknown.is_empty() {
        let report = if near.unknown.len() == 1 { "reports" } else { "report" };
        let why = format!("{} {report} no NUMA node", list(&near.unknown));
        if strict {
            return Err(refuse(request, Key::Numa, why));
        }
        notes.reason("cpus", why);
    }
    if near.cpus.is_empty() {
        notes.reason("cpus", "as they are: nothing tells which CPUs are next to the adapters");
        return Ok(Placement::default());
    }
    if near.nodes.len() > 1 {
        let places =
            list(hcas.iter().filter_map(|hca| Some(format!("{}: {}", hca.name, hca.numa?))));
        notes.warn("cpus", format!("the adapters are on NUMA nodes {} ({places})", near.nodes));
    }
    let mut placement = Placement::default();
    match narrow(&request.container, case.node, &near) {
        Narrowed::To(cpus) => {
            notes.reason("cpus", format!("{cpus}: next to NUMA node {}", near.nodes));
            placement.cpus = Some(cpus);
        }
        Narrowed::Stays(why) => notes.reason("cpus", why),
        Narrowed::Cannot(why) if strict => return Err(refuse(request, Key::Numa, why)),
        Narrowed::Cannot(why) => notes.warn("cpus", why),
    }
    if strict {
        placement.mems = memory(case, &near, notes)?;
    }
    // Whose the CPUs are, that one sends them again too.
    placement.near = request.container.cpus_owned.is_none().then_some(near.cpus);
    Ok(placement)
}

/// What to answer when the kubelet sends a CPU set again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resent {
    /// CPUs to set instead of those given; `None`: those given are right.
    pub cpus: Option<CpuSet>,
    /// What was decided, as a sentence.
    pub said: String,
}

/// Narrows a CPU set that the kubelet sends for a running container (UpdateContainer), by the same
/// rule as at its creation. `container` is the container with the CPU shares and the limit that it
/// is to have from now on. Such a set is never refused: where the rule cannot be kept, it stays.
pub fn resend(given: &CpuSet, grant: &Grant, container: &Container, node: &Node) -> Resent {
    let Some(near) = &grant.near else {
        return Resent { cpus: None, said: "CPUs are none of ours for this container".to_owned() };
    };
    let hcas: Vec<&Hca> =
        grant.adapters.iter().filter_map(|adapter| node.hca(&adapter.name)).collect();
    let near = Near { cpus: near.clone(), ..Near::to(node, &hcas) };
    let container = Container { cpus: Some(given.clone()), ..container.clone() };
    match narrow(&container, node, &near) {
        Narrowed::To(cpus) => Resent { said: format!("{cpus} of {given}"), cpus: Some(cpus) },
        Narrowed::Stays(said) | Narrowed::Cannot(said) => Resent { cpus: None, said },
    }
}

/// What is next to some adapters.
#[derive(Debug, Default)]
struct Near<'a> {
    /// CPUs of all of them together.
    cpus: CpuSet,
    /// Their NUMA nodes.
    nodes: CpuSet,
    /// Adapters whose node is not known.
    unknown: Vec<&'a str>,
    /// Adapters with their node.
    known: Vec<(&'a str, u32)>,
}

impl<'a> Near<'a> {
    fn to(node: &Node, hcas: &[&'a Hca]) -> Self {
        let mut near = Self::default();
        for hca in hcas {
            let Some(numa) = hca.numa else {
                near.unknown.push(&hca.name);
                continue;
            };
            // Adapters of one node have its CPUs in common: once is enough, and sets are not small.
            if !near.nodes.contains(numa) {
                let of_node = node.numa.get(&numa).filter(|_| hca.local_cpus.is_empty());
                near.cpus = near.cpus.union(of_node.unwrap_or(&hca.local_cpus));
                near.nodes = near.nodes.union(&[numa].into_iter().collect());
            }
            near.known.push((&hca.name, numa));
        }
        near
    }
}

/// Outcome of the rule.
enum Narrowed {
    /// To these CPUs.
    To(CpuSet),
    /// They are right as they are.
    Stays(String),
    /// They stay although they are not next to the adapters.
    Cannot(String),
}

fn narrow(container: &Container, node: &Node, near: &Near<'_>) -> Narrowed {
    let owned = container
        .cpus_owned
        .as_ref()
        .map(|owner| format!("CPU set is managed by another plugin ({owner})"));
    let owned = owned.or_else(|| exclusive(container));
    let (given, parent) = (container.cpus.as_ref(), container.parent_cpus.as_ref());
    let present = given.or(parent).unwrap_or(&node.online);
    if let Some(owned) = owned {
        return if present.is_subset(&near.cpus) {
            Narrowed::Stays(format!("{owned} and is next to the adapters: {present}"))
        } else {
            Narrowed::Cannot(format!(
                "{}; {owned} and stays as it is",
                mismatch(node, present, near)
            ))
        };
    }
    if present.is_subset(&near.cpus) {
        return Narrowed::Stays(format!("as they are, next to the adapters: {present}"));
    }
    let narrowed = present.intersection(&near.cpus).difference(&node.isolated);
    if narrowed.is_empty() {
        return Narrowed::Cannot(format!(
            "{}; no CPU of {present} that is not isolated is next to the adapters",
            mismatch(node, present, near)
        ));
    }
    let room = u64::try_from(narrowed.len()).unwrap_or(u64::MAX).saturating_mul(1000);
    if let Some(limit) = container.cpu_limit_milli.filter(|limit| *limit > room) {
        return Narrowed::Cannot(format!(
            "CPUs stay as they are: {narrowed} next to the adapters are fewer than the CPU limit \
             of {}.{:03}",
            limit / 1000,
            limit % 1000
        ));
    }
    Narrowed::To(narrowed)
}

/// Whether the CPUs were given to this container alone. The kubelet's static policy gives as many
/// as are requested, in whole CPUs and with the limit equal to it; a shared pool is larger than
/// any one request that lives in it.
fn exclusive(container: &Container) -> Option<String> {
    let given = u64::try_from(container.cpus.as_ref()?.len()).ok()?;
    let limited = container.cpu_limit_milli.map(|limit| Some(limit) == given.checked_mul(1000));
    let requested =
        container.cpu_shares.map(|shares| Some(shares) == given.checked_mul(SHARES_OF_A_CPU));
    let alone = match (requested, limited) {
        // The kubelet sets no quota for exclusive CPUs where it is told not to.
        (Some(requested), limited) => requested && limited.unwrap_or(true),
        (None, limited) => limited.unwrap_or(false),
    };
    alone.then(|| "CPU set is the container's alone".to_owned())
}

/// `NUMA mismatch: CPUs on node 0, mlx5_4 on node 1`
fn mismatch(node: &Node, cpus: &CpuSet, near: &Near<'_>) -> String {
    let on: CpuSet = node
        .numa
        .iter()
        .filter(|(_, of_node)| cpus.iter().any(|cpu| of_node.contains(cpu)))
        .map(|(number, _)| *number)
        .collect();
    let elsewhere = near.known.iter().map(|(name, numa)| format!("{name} on node {numa}"));
    format!("NUMA mismatch: CPUs on node {on}, {}", list(elsewhere))
}

/// Memory nodes under `strict`.
fn memory(case: &Case<'_>, near: &Near<'_>, notes: &mut Notes) -> Result<Option<CpuSet>, Refusal> {
    let every = || case.node.numa.keys().copied().collect();
    let present = case.request.container.mems.clone().unwrap_or_else(every);
    let mems = present.intersection(&near.nodes);
    if mems.is_empty() {
        let why = format!(
            "memory nodes {present} are not those of the adapters, {} ({})",
            near.nodes,
            asked(case.request, Key::Devices)
        );
        return Err(refuse(case.request, Key::Numa, why));
    }
    notes.reason("cpus", format!("memory from NUMA node {mems}"));
    Ok((mems != present).then_some(mems))
}
