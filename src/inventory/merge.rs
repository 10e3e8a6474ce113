//! RDMA netlink's view laid over what sysfs shows. Netlink is believed where both know something,
//! and every difference is noted: one of the two was read a moment later, or the two are of
//! different namespaces, or a kernel has a fault.

use std::fmt::Display;

use super::cpuset::CpuSet;
use super::hca::{self, Found};
use super::netlink_view::{NetlinkDevice, NetlinkPort, NetlinkView};
use super::node::{
    CharDev, Driver, Hca, Home, LinkLayer, NetnsMode, NodeType, Port, PortState, Role,
};
use super::sysfs::Scan;

/// Lays `view` over `scan`.
pub(super) fn merge(scan: &mut Scan, view: &NetlinkView) {
    let Scan { hcas, remarks, .. } = scan;
    remarks.extend(view.remarks.iter().cloned());
    let mut met = vec![false; hcas.len()];
    for device in &view.devices {
        match position(hcas, device) {
            Some(at) => {
                met[at] = true;
                lay_over(&mut hcas[at], device, remarks);
            }
            None => {
                remarks.push(format!("RDMA netlink lists {}, sysfs does not", device.name));
                hcas.push(only_in_netlink(device));
                met.push(true);
            }
        }
    }
    let exclusive = view.netns_mode.unwrap_or(scan.netns_mode) == NetnsMode::Exclusive;
    for (found, _) in hcas.iter_mut().zip(met).filter(|(found, met)| !met && !found.hidden) {
        remarks.push(format!("sysfs lists {}, RDMA netlink does not", found.hca.name));
        // Moved to another namespace between the two readings.
        found.hidden = exclusive;
    }
    if let Some(mode) = view.netns_mode {
        if mode != scan.netns_mode {
            let word = |mode| if mode == NetnsMode::Shared { "shared" } else { "exclusive" };
            let (netlink, sysfs) = (word(mode), word(scan.netns_mode));
            differ(remarks, "the node", "its RDMA namespace mode", netlink, sysfs);
        }
        scan.netns_mode = mode;
    }
    device(&mut scan.rdma_cm, view.rdma_cm.as_ref(), "the node", remarks);
}

/// Which HCA netlink's device is: by name, else by its uverbs device, which a rename leaves alone.
fn position(hcas: &[Found], device: &NetlinkDevice) -> Option<usize> {
    let named = |found: &Found| found.hca.name == device.name;
    let same = |found: &Found| {
        let (Some(ours), Some(theirs)) = (&found.hca.uverbs, &device.uverbs) else { return false };
        (ours.major, ours.minor) == (theirs.major, theirs.minor)
    };
    hcas.iter().position(named).or_else(|| hcas.iter().position(same))
}

fn lay_over(found: &mut Found, told: &NetlinkDevice, remarks: &mut Vec<String>) {
    let Found { hca, hidden, .. } = found;
    if hca.name != told.name {
        remarks.push(format!("{} was renamed to {} while it was read", hca.name, told.name));
        hca.name.clone_from(&told.name);
    }
    let subject = told.name.as_str();
    if *hidden {
        remarks.push(format!("RDMA netlink lists {subject}, sysfs shows only its uverbs device"));
        *hidden = false;
        hca.node_type = told.node_type.unwrap_or(hca.node_type);
        hca.node_guid = told.node_guid.clone().unwrap_or_default();
        hca.ports = told.ports.iter().map(|port| told_port(told, port)).collect();
    }
    hca.index = Some(told.index);
    if let Some(driver) = told.driver_id.and_then(Driver::from_id) {
        if driver != hca.driver && hca.driver != Driver::unknown() {
            differ(remarks, subject, "its driver", &driver, &hca.driver);
        }
        hca.driver = driver;
    }
    if let Some(node_type) = told.node_type {
        if node_type != hca.node_type {
            let (netlink, sysfs) = (node_type.word(), hca.node_type.word());
            differ(remarks, subject, "its node type", netlink, sysfs);
        }
        hca.node_type = node_type;
    }
    if let Some(guid) = &told.node_guid {
        if *guid != hca.node_guid && !hca.node_guid.is_empty() {
            differ(remarks, subject, "its node GUID", guid, &hca.node_guid);
        }
        hca.node_guid.clone_from(guid);
    }
    hca.firmware = told.firmware.clone().or_else(|| hca.firmware.take());
    device(&mut hca.uverbs, told.uverbs.as_ref(), subject, remarks);
    for told in &told.ports {
        port(hca, told, remarks);
    }
    found.told = Some(told.ports.iter().map(|port| (port.number, port.netdev.clone())).collect());
}

fn port(hca: &mut Hca, told: &NetlinkPort, remarks: &mut Vec<String>) {
    let subject = format!("{} port {}", hca.name, told.number);
    let at = match hca.ports.binary_search_by_key(&told.number, |port| port.number) {
        Ok(at) => at,
        Err(at) => {
            remarks.push(format!("RDMA netlink lists {subject}, sysfs does not"));
            hca.ports.insert(at, hca::unread(told.number));
            hca.ports[at].state = told.state.unwrap_or(hca.ports[at].state);
            at
        }
    };
    let port = &mut hca.ports[at];
    if let Some(state) = told.state {
        if state != port.state {
            differ(remarks, &subject, "its state", state, port.state);
        }
        port.state = state;
    }
    // A LID that is not told is that of another link layer, or of a port that has none yet.
    if let Some(lid) = told.lid.filter(|_| port.link_layer == LinkLayer::InfiniBand) {
        if lid != port.lid {
            differ(remarks, &subject, "its LID", lid, port.lid);
        }
        port.lid = lid;
    }
    device(&mut port.umad, told.umad.as_ref(), &subject, remarks);
    device(&mut port.issm, told.issm.as_ref(), &subject, remarks);
}

/// A character device that both may know. Netlink does not answer for one whose module is not
/// loaded, and loads `rdma_ucm` when asked for its: that it alone knows one is no difference.
fn device(
    ours: &mut Option<CharDev>,
    told: Option<&CharDev>,
    subject: &str,
    remarks: &mut Vec<String>,
) {
    let shown = |device: &CharDev| format!("{} {}:{}", device.name, device.major, device.minor);
    match (&*ours, told) {
        (Some(seen), Some(told)) if shown(seen) != shown(told) => {
            differ(remarks, subject, "a device", shown(told), shown(seen));
        }
        (Some(seen), None) => {
            remarks.push(format!("{subject}: sysfs has {}, RDMA netlink does not", shown(seen)));
        }
        _ => {}
    }
    if let Some(told) = told {
        *ours = Some(CharDev { mode: None, ..told.clone() });
    }
}

fn differ(
    remarks: &mut Vec<String>,
    subject: &str,
    what: &str,
    netlink: impl Display,
    sysfs: impl Display,
) {
    remarks.push(format!("{subject}: RDMA netlink says {what} is {netlink}, sysfs says {sysfs}"));
}

/// `RDMA_NLDEV_ATTR_DEV_PROTOCOL`, which EFA does not have.
fn link_layer(protocol: Option<&str>) -> LinkLayer {
    match protocol {
        Some("ib" | "opa") => LinkLayer::InfiniBand,
        Some("roce" | "iw" | "usnic") => LinkLayer::Ethernet,
        _ => LinkLayer::Unknown,
    }
}

/// A port of which sysfs shows nothing.
fn told_port(device: &NetlinkDevice, told: &NetlinkPort) -> Port {
    Port {
        link_layer: link_layer(device.protocol.as_deref()),
        state: told.state.unwrap_or(PortState::Nop),
        lid: told.lid.unwrap_or(0),
        umad: told.umad.clone(),
        issm: told.issm.clone(),
        ..hca::unread(told.number)
    }
}

fn only_in_netlink(told: &NetlinkDevice) -> Found {
    Found {
        hca: Hca {
            name: told.name.clone(),
            index: Some(told.index),
            driver: told.driver_id.and_then(Driver::from_id).unwrap_or_else(Driver::unknown),
            node_type: told.node_type.unwrap_or(NodeType::Unspecified),
            node_guid: told.node_guid.clone().unwrap_or_default(),
            firmware: told.firmware.clone(),
            pci: None,
            numa: None,
            local_cpus: CpuSet::new(),
            uverbs: told.uverbs.clone(),
            ports: told.ports.iter().map(|port| told_port(told, port)).collect(),
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        },
        hardware: None,
        parent: None,
        hidden: false,
        told: Some(told.ports.iter().map(|port| (port.number, port.netdev.clone())).collect()),
    }
}
