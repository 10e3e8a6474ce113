//! Device nodes: which ones, and what to do where the container has some already.

use std::collections::BTreeSet;
use std::path::Path;

use super::selection::link_of;
use super::words::{list, refuse};
use super::{Case, DeviceNode, Notes, Refusal};
use crate::inventory::{CharDev, Hca};
use crate::request::{Can, CarrierPath, Key, Link, Mount, NodeKind, Requirement};

/// Folder of the nodes, and those above it that may be mounted from the host.
const FOLDER: &str = "/dev/infiniband";

/// Anybody in the container: the kernel's own mode for uverbs and rdma_cm.
const OPEN: u32 = 0o666;

/// Root only: the kernel's own mode for umad and issm.
const ROOT: u32 = 0o600;

/// Nodes to add for those adapters: each path once, none that is there already.
pub(super) fn add(
    case: &Case<'_>,
    hcas: &[&Hca],
    notes: &mut Notes,
) -> Result<Vec<DeviceNode>, Refusal> {
    let mut wanted: Vec<(&CharDev, u32)> = Vec::new();
    let mad_mode = if case.request.container.uid.is_none_or(|uid| uid == 0) { ROOT } else { OPEN };
    for kind in [NodeKind::Uverbs, NodeKind::Umad, NodeKind::Issm, NodeKind::RdmaCm] {
        if !case.request.nodes.contains(&kind) || !case.allowance.nodes.contains(&kind) {
            continue;
        }
        let ports = hcas.iter().flat_map(|hca| &hca.ports);
        match kind {
            NodeKind::Uverbs => wanted.extend(uverbs(case, hcas)?.map(|node| (node, OPEN))),
            NodeKind::RdmaCm => wanted.extend(rdma_cm(case, hcas, notes)?.map(|node| (node, OPEN))),
            NodeKind::Umad => {
                let found: Vec<_> = ports.filter_map(|port| port.umad.as_ref()).collect();
                wanted.extend(mad(case, "umad", hcas, found)?.map(|node| (node, mad_mode)));
            }
            NodeKind::Issm => {
                let found: Vec<_> = ports.filter_map(|port| port.issm.as_ref()).collect();
                wanted.extend(mad(case, "issm", hcas, found)?.map(|node| (node, mad_mode)));
            }
        }
    }
    let mounted = mounted_folder(&case.request.container.mounts);
    if let Some(mount) = mounted {
        warn_of_mount(case, mount, hcas, notes);
    }
    let mut paths = BTreeSet::new();
    let mut nodes = Vec::with_capacity(wanted.len());
    for (device, mode) in wanted {
        let path = device.path();
        if !paths.insert(path.clone()) {
            continue;
        }
        if let Some(node) = complete(case, device, path, mode, notes)? {
            nodes.push(node);
        }
    }
    warn_of_mode(case, &nodes, notes);
    Ok(nodes)
}

/// What must be added for one node, in view of what the container has.
fn complete(
    case: &Case<'_>,
    device: &CharDev,
    path: String,
    mode: u32,
    notes: &mut Notes,
) -> Result<Option<DeviceNode>, Refusal> {
    let container = &case.request.container;
    let CharDev { major, minor, .. } = *device;
    if let Some(present) = container.devices.iter().find(|present| present.path == path) {
        if (present.major, present.minor) == (major, minor) {
            notes.reason("nodes", format!("{path} is in the container already"));
            return Ok(None);
        }
        return Err(refuse(
            case.request,
            Key::Devices,
            format!(
                "{path} is in the container as {}:{}, and {major}:{minor} on this node: another \
                 plugin's number is out of date",
                present.major, present.minor
            ),
        ));
    }
    let mounted = container.mounts.iter().any(|mount| shows(mount, &path));
    if mounted && container.all_devices {
        notes.reason("nodes", format!("{path} comes by a mount, and every device is allowed"));
        return Ok(None);
    }
    if mounted && let Can::No(lacks) = &case.request.carrier.device_rules {
        return Err(refuse(
            case.request,
            Key::Devices,
            format!(
                "{path} comes by a mount, and a device rule without a node cannot be added: \
                 {lacks}; remove the mount"
            ),
        ));
    }
    // In a user namespace, where nobody can make one, and by a mount the node is the host's own.
    let stranger = if container.user_namespace {
        Some("in a user namespace".to_owned())
    } else {
        let user = container.uid.filter(|uid| mounted && *uid != 0);
        user.map(|uid| format!("that runs as uid {uid}"))
    };
    if let (Some(stranger), Some(mode)) = (stranger, device.mode.filter(|mode| mode & 6 != 6)) {
        let why = format!(
            "{path} has mode {mode:04o} on the node: a container {stranger} cannot open it"
        );
        match case.request.carrier.path {
            CarrierPath::Wrapper | CarrierPath::Hook if container.user_namespace => {
                let remedy = "give it mode 0666 by a udev rule";
                return Err(refuse(case.request, Key::Devices, format!("{why}; {remedy}")));
            }
            _ => notes.warn("nodes", why),
        }
    }
    let what = if mounted { "a rule for" } else { "added" };
    notes.reason("nodes", format!("{what} {path} ({major}:{minor})"));
    Ok(Some(DeviceNode { path, major, minor, mode, rule_only: mounted }))
}

/// Says that only root can open a node, where the container's user is not known to be root.
fn warn_of_mode(case: &Case<'_>, nodes: &[DeviceNode], notes: &mut Notes) {
    let container = &case.request.container;
    let closed: Vec<&str> = nodes
        .iter()
        .filter(|node| !node.rule_only && node.mode == ROOT)
        .map(|node| node.path.as_str())
        .collect();
    if !closed.is_empty() && container.uid.is_none() {
        notes.warn(
            "nodes",
            format!(
                "{} made with mode {ROOT:04o}: which user the container runs as cannot be seen \
                 here, and one that is not root cannot open {}",
                list(&closed),
                if closed.len() == 1 { "it" } else { "them" }
            ),
        );
    }
}

fn uverbs<'a>(
    case: &Case<'_>,
    hcas: &[&'a Hca],
) -> Result<impl Iterator<Item = &'a CharDev> + use<'a>, Refusal> {
    let mut nodes = Vec::with_capacity(hcas.len());
    for hca in hcas {
        let node = hca.uverbs.as_ref().ok_or_else(|| {
            let why = format!("{} has no uverbs node on this node: load ib_uverbs", hca.name);
            refuse(case.request, Key::Devices, why)
        })?;
        nodes.push(node);
    }
    Ok(nodes.into_iter())
}

fn rdma_cm<'a>(
    case: &Case<'a>,
    hcas: &[&Hca],
    notes: &mut Notes,
) -> Result<Option<&'a CharDev>, Refusal> {
    if let Some(node) = &case.node.rdma_cm {
        return Ok(Some(node));
    }
    let missing = "rdma_cm missing: load rdma_ucm; programs using librdmacm (-R, UCX rdmacm, \
                   NFS/iSER tools) will fail";
    if case.request.require.contains(&Requirement::RdmaCm) {
        return Err(refuse(case.request, Key::Require, missing));
    }
    // EFA has no connection manager; nobody misses the node there.
    if hcas.iter().all(|hca| link_of(hca) == Link::Other) {
        notes.reason("nodes", "there is no rdma_cm node, and these adapters have no use for it");
    } else {
        notes.warn("nodes", missing);
    }
    Ok(None)
}

/// umad or issm nodes of the adapters' ports: at least one, since they were asked for by name.
fn mad<'a>(
    case: &Case<'_>,
    kind: &str,
    hcas: &[&Hca],
    found: Vec<&'a CharDev>,
) -> Result<impl Iterator<Item = &'a CharDev> + use<'a>, Refusal> {
    if found.is_empty() {
        let names = list(hcas.iter().map(|hca| &hca.name));
        let why = format!("no port of {names} has a {kind} node (module ib_umad, InfiniBand MADs)");
        return Err(refuse(case.request, Key::Nodes, why));
    }
    Ok(found.into_iter())
}

/// A mount of the host's folder of nodes, or of one above it.
fn mounted_folder(mounts: &[Mount]) -> Option<&Mount> {
    mounts.iter().find(|mount| shows(mount, FOLDER))
}

/// Whether a mount shows the host's devices at `path`: making a node there would write into the
/// host's `/dev`.
fn shows(mount: &Mount, path: &str) -> bool {
    let hosts = match mount.kind.as_str() {
        "devtmpfs" => true,
        "bind" | "rbind" => Path::new(&mount.source).starts_with("/dev"),
        _ => false,
    };
    hosts && covers(&mount.destination, path)
}

/// Whether `path` is the mount's destination or lies below it. The root is no mount.
pub(super) fn covers(destination: &str, path: &str) -> bool {
    let destination = destination.trim_end_matches('/');
    let rest = path.strip_prefix(destination).filter(|_| !destination.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn warn_of_mount(case: &Case<'_>, mount: &Mount, hcas: &[&Hca], notes: &mut Notes) {
    let exposed = case.node.hcas.iter().filter(|hca| hca.uverbs.is_some()).count();
    let usable = if case.request.container.all_devices { exposed } else { hcas.len() };
    notes.warn(
        "nodes",
        format!(
            "hostPath on {} exposes {exposed} nodes, {usable} usable; remove it",
            mount.destination
        ),
    );
}
