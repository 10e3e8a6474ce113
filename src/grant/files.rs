//! Files in the container: NCCL's configuration for ranks that never see the environment, the
//! map of GPUs and adapters, the topology of a node that hides its PCI tree.

use super::environment::present;
use super::nodes::covers;
use super::{Case, GrantedFile, GrantedMount, Notes, TopologyFile, Variable};
use crate::inventory::topologyd::{TOPOLOGYD, VIRTUAL_TOPOLOGY};
use crate::inventory::{PciAddress, PodView};
use crate::request::{EnvFamily, is_unprintable};

/// Where NCCL looks for its configuration.
const NCCL_CONF: &str = "/etc/nccl.conf";

/// Our map of GPUs and adapters, a pair a line.
const MAP: &str = "/etc/rdma-ctk/gpu-nic.map";

/// Where the node's topology file is bound.
const TOPOLOGY: &str = "/etc/rdma-ctk/nccl-topology.xml";

/// Files to write and bind for `env: file`.
pub(super) fn files(
    case: &Case<'_>,
    variables: &[Variable],
    pairs: &[(PciAddress, PciAddress)],
    notes: &mut Notes,
) -> Vec<GrantedFile> {
    let mut files = Vec::new();
    if !case.request.env.file && !later(case) {
        return files;
    }
    let content = nccl_conf(case, variables);
    if let Some(mount) = mounted(case, NCCL_CONF) {
        notes.warn(
            "file",
            format!("{NCCL_CONF} is not bound: a mount at {mount} is there, and would be hidden"),
        );
    } else if content.is_empty() {
        notes.reason("file", format!("no variable of NCCL for {NCCL_CONF}"));
    } else {
        notes.reason("file", format!("{NCCL_CONF} is bound; one that the image has is hidden"));
        files.push(GrantedFile { path: NCCL_CONF.to_owned(), content });
    }
    if !pairs.is_empty() && mounted(case, MAP).is_none() {
        let content = pairs.iter().map(|(gpu, nic)| format!("{gpu}={nic}\n")).collect();
        files.push(GrantedFile { path: MAP.to_owned(), content });
    }
    files
}

/// Whether the container is given nccl.conf without having asked for it: its addresses will be known
/// only when its environment cannot be changed any more.
fn later(case: &Case<'_>) -> bool {
    let request = case.request;
    let pending = matches!(case.pod, PodView::Pending { .. });
    pending && request.container.nccl_conf_later && request.env.families.contains(&EnvFamily::Nccl)
}

/// The text of nccl.conf: a variable a line, with the container's own value where it sets one, so
/// that ranks with and without the environment agree.
fn nccl_conf(case: &Case<'_>, variables: &[Variable]) -> String {
    let own = case.request.container.env.iter();
    let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
    let ours = variables.iter().map(|ours| (ours.name.as_str(), ours.value.as_str()));
    let mut lines: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
    for (name, value) in own.chain(ours) {
        let fits = |text: &str| !text.is_empty() && !text.contains(is_unprintable);
        if name.starts_with("NCCL_") && !name.contains('=') && fits(name) && fits(value) {
            lines.insert(name, value);
        }
    }
    lines.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// The mount that would be hidden by a file of ours at `path`, or into whose source it would be
/// written.
fn mounted<'a>(case: &Case<'a>, path: &str) -> Option<&'a str> {
    let mounts = case.request.container.mounts.iter();
    mounts.map(|mount| mount.destination.as_str()).find(|destination| covers(destination, path))
}

/// The node's topology, where NCCL's variables are written and the container has no other: that which
/// policy names, else that of the vendor's daemon. With the path for `NCCL_TOPO_FILE`.
pub(super) fn topology(case: &Case<'_>, notes: &mut Notes) -> Option<(GrantedMount, &'static str)> {
    if !case.request.env.families.contains(&EnvFamily::Nccl) {
        return None;
    }
    let Some(source) = case.policy.topology_file.as_ref() else { return vendors(case, notes) };
    if present(case, "NCCL_TOPO_FILE").is_some() {
        notes.reason("topology", "the container sets NCCL_TOPO_FILE itself");
        return None;
    }
    let Some(TopologyFile::Present { mode }) = case.topology else {
        notes.warn(
            "topology",
            format!("NCCL topology file {source} not found on the node; not set"),
        );
        return None;
    };
    if let Some(mount) = mounted(case, TOPOLOGY) {
        notes.warn(
            "topology",
            format!("NCCL topology file {source} is not bound: a mount at {mount} is there"),
        );
        return None;
    }
    readable(case, source, mode, notes);
    notes.reason("topology", format!("{source} is bound at {TOPOLOGY}"));
    let mount = GrantedMount {
        source: source.clone(),
        destination: TOPOLOGY.to_owned(),
        executable: false,
    };
    Some((mount, TOPOLOGY))
}

/// The folder of the vendor's daemon. Pods that were written for it mount it themselves, at either
/// of its names, and NCCL finds it there.
fn vendors(case: &Case<'_>, notes: &mut Notes) -> Option<(GrantedMount, &'static str)> {
    let Some(TopologyFile::Vendor { mode }) = case.topology else { return None };
    if present(case, "NCCL_TOPO_FILE").is_some() {
        notes.reason("topology", "the container sets NCCL_TOPO_FILE itself");
        return None;
    }
    let at_either = ["/var", ""].map(|front| format!("{front}{VIRTUAL_TOPOLOGY}"));
    let inside = |mount: &&str| {
        ["/var", ""].iter().any(|front| covers(&format!("{front}{TOPOLOGYD}"), mount))
    };
    let mounts = case.request.container.mounts.iter().map(|mount| mount.destination.as_str());
    let theirs = at_either.iter().find_map(|path| mounted(case, path));
    if let Some(mount) = theirs.or_else(|| mounts.clone().find(inside)) {
        notes.reason("topology", format!("{TOPOLOGYD} is not bound: a mount at {mount} is there"));
        return None;
    }
    readable(case, VIRTUAL_TOPOLOGY, mode, notes);
    notes.reason("topology", format!("{TOPOLOGYD} of the node is bound, for {VIRTUAL_TOPOLOGY}"));
    let mount = GrantedMount {
        source: TOPOLOGYD.to_owned(),
        destination: TOPOLOGYD.to_owned(),
        executable: false,
    };
    Some((mount, VIRTUAL_TOPOLOGY))
}

fn readable(case: &Case<'_>, source: &str, mode: u32, notes: &mut Notes) {
    let container = &case.request.container;
    let other_user = container.user_namespace || container.uid.is_some_and(|uid| uid != 0);
    if other_user && mode & 0o004 == 0 {
        notes.warn(
            "topology",
            format!("{source} has mode {mode:04o} on the node: this container cannot read it"),
        );
    }
}
