//! HCAs as sysfs shows them: class `infiniband`, and the device below each.

use std::collections::HashSet;

use super::attribute::{Folder, Reader};
use super::chardev::{Mads, Uverbs};
use super::cpuset::CpuSet;
use super::driver::{self, Signs};
use super::focus::Focus;
use super::gid;
use super::interface::hexadecimal;
use super::node::{Driver, Hca, Home, LinkLayer, NodeType, PciAddress, Port, PortState, Role};
use super::pci::Place;

/// Folder of the class, below `/sys`.
pub(super) const CLASS: &str = "class/infiniband";

/// An HCA as it was read, with what the later steps need to say what it is among its kin. Role,
/// home, affinity and the ports' interfaces are theirs to fill in.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) hca: Hca,
    /// The hardware below it, if any.
    pub(super) hardware: Option<Hardware>,
    /// rxe's `parent` attribute: the interface that it runs on.
    pub(super) parent: Option<String>,
    /// It is only known from its uverbs device.
    pub(super) hidden: bool,
    /// What RDMA netlink said about the interface of each port; `None` where it was not asked.
    pub(super) told: Option<Vec<(u32, Option<String>)>>,
}

/// The device that an HCA belongs to.
#[derive(Debug, Clone)]
pub(super) struct Hardware {
    /// The device itself: a PCI function, or an auxiliary or platform device.
    pub(super) place: Place,
    /// The PCI function that it is or sits on.
    pub(super) function: Option<(PciAddress, Place)>,
    /// Driver bound to the function, or to the device where there is none.
    bound: Option<String>,
    /// PCI vendor and device.
    id: Option<(u16, u16)>,
    /// Virtual functions that are switched on.
    pub(super) vfs: u32,
    /// The physical function of a virtual one.
    pub(super) physical: Option<PciAddress>,
    /// A scalable function (`sfnum`).
    pub(super) scalable: bool,
}

impl Hardware {
    /// Whether it is a virtual function by its number, whose physical function is not to be seen.
    pub(super) fn is_virtual_by_id(&self) -> bool {
        self.id.is_some_and(driver::is_virtual_function)
    }
}

/// Reads all HCAs: those of the class, and those that only their uverbs device still tells of.
pub(super) fn hcas(
    reader: &mut Reader,
    sys: &Folder,
    uverbs: &[Uverbs],
    mads: &Mads,
    focus: &Focus,
) -> Hcas {
    let mut found: Vec<Found> = Vec::new();
    let mut unread = Vec::new();
    let mut seen = HashSet::new();
    let class = reader.folder(sys, CLASS);
    if let Some(class) = &class {
        for name in reader.names(class) {
            if !focus.adapter(&name) {
                seen.insert(name.clone());
                unread.push(name);
            } else if let Some(hca) =
                present(reader, sys, class, &name, Nodes { uverbs, mads }, focus)
            {
                seen.insert(name);
                found.push(hca);
            }
        }
    }
    for device in uverbs {
        if seen.contains(&device.ibdev) {
            continue;
        }
        // Read again: between the two listings it may have come, gone, or been renamed.
        let file = format!("class/infiniband_verbs/{}/ibdev", device.device.name);
        let Some(name) = reader.text(sys, &file).map(str::to_owned) else { continue };
        if seen.contains(&name) {
            continue;
        }
        if !focus.adapter(&name) {
            seen.insert(name.clone());
            unread.push(name);
            continue;
        }
        let fresh = Uverbs { ibdev: name.clone(), ..device.clone() };
        let here = class.as_ref().and_then(|class| {
            let nodes = Nodes { uverbs: std::slice::from_ref(&fresh), mads };
            present(reader, sys, class, &name, nodes, focus)
        });
        found.push(here.unwrap_or_else(|| hidden(reader, sys, fresh, mads)));
        seen.insert(name);
    }
    Hcas { found, unread }
}

/// What [`hcas`] has read, and whom it has left out.
#[derive(Debug)]
pub(super) struct Hcas {
    pub(super) found: Vec<Found>,
    pub(super) unread: Vec<String>,
}

/// The character devices of the node.
#[derive(Debug, Clone, Copy)]
struct Nodes<'a> {
    uverbs: &'a [Uverbs],
    mads: &'a Mads,
}

/// Reads an HCA of the class; `None` if it is gone.
fn present(
    reader: &mut Reader,
    sys: &Folder,
    class: &Folder,
    name: &str,
    Nodes { uverbs, mads }: Nodes<'_>,
    focus: &Focus,
) -> Option<Found> {
    let at = reader.folder(class, name)?;
    // Every device has a node type: one without is going away, or is no device.
    let node_type = match reader.text(&at, "node_type").map(node_type)? {
        Some(node_type) => Some(node_type),
        None => {
            reader.remark(format!("{name}: its node type is none that is known"));
            None
        }
    };
    let hardware = owner(reader, class, &at, name).map(|place| hardware(reader, sys, place));
    let parent = match hardware {
        None => reader.text(&at, "parent").map(str::to_owned),
        Some(_) => None,
    };
    let ports = ports(reader, &at, name, mads, focus);
    if ports.is_empty() && reader.text(&at, "node_type").is_none() {
        return None;
    }
    let driver = driver(hardware.as_ref(), parent.is_some(), node_type);
    Some(Found {
        hca: Hca {
            name: name.to_owned(),
            index: None,
            driver,
            node_type: node_type.unwrap_or(NodeType::Unspecified),
            node_guid: reader.text(&at, "node_guid").unwrap_or_default().to_owned(),
            firmware: reader.text(&at, "fw_ver").map(str::to_owned),
            pci: hardware.as_ref().and_then(|hardware| Some(hardware.function.as_ref()?.0)),
            numa: None,
            local_cpus: CpuSet::new(),
            uverbs: uverbs
                .iter()
                .find(|device| device.ibdev == name)
                .map(|device| device.device.clone()),
            ports,
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        },
        hardware,
        parent,
        hidden: false,
        told: None,
    })
}

/// What is known of an HCA that is in another namespace.
fn hidden(reader: &mut Reader, sys: &Folder, device: Uverbs, mads: &Mads) -> Found {
    let hardware = device.owner.map(|place| hardware(reader, sys, place));
    let mut ports: Vec<Port> = mads
        .iter()
        .filter(|((ibdev, _), _)| *ibdev == device.ibdev)
        .map(|((_, number), (umad, issm))| Port {
            // Only an InfiniBand port has a subnet manager's device.
            link_layer: if issm.is_some() { LinkLayer::InfiniBand } else { LinkLayer::Unknown },
            umad: umad.clone(),
            issm: issm.clone(),
            ..unread(*number)
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    Found {
        hca: Hca {
            driver: driver(hardware.as_ref(), false, None),
            name: device.ibdev,
            index: None,
            node_type: NodeType::Unspecified,
            node_guid: String::new(),
            firmware: None,
            pci: hardware.as_ref().and_then(|hardware| Some(hardware.function.as_ref()?.0)),
            numa: None,
            local_cpus: CpuSet::new(),
            uverbs: Some(device.device),
            ports,
            role: Role::Physical { vfs: 0 },
            home: Home::Elsewhere,
        },
        hardware,
        parent: None,
        hidden: true,
        told: None,
    }
}

/// The device that the HCA `name` belongs to; `None` for a virtual one.
fn owner(reader: &mut Reader, class: &Folder, at: &Folder, name: &str) -> Option<Place> {
    match reader.link(class, name) {
        Some(target) => Place::of_link(CLASS, &target)?.owner(),
        // A tree in which the class holds folders, not links.
        None => {
            let target = reader.link(at, "device")?;
            Place::of_link(&format!("{CLASS}/{name}"), &target)
        }
    }
    .filter(|owner| owner.as_str() != "virtual")
}

fn hardware(reader: &mut Reader, sys: &Folder, place: Place) -> Hardware {
    let mut hardware = Hardware {
        function: place.function(),
        place,
        bound: None,
        id: None,
        vfs: 0,
        physical: None,
        scalable: false,
    };
    let here = match &hardware.function {
        Some((_, place)) => place,
        None => &hardware.place,
    };
    if let Some(at) = reader.folder(sys, &format!("devices/{}", here.as_str())) {
        hardware.bound = last_part(reader.link(&at, "driver"));
        let mut id = |file| {
            let id = reader.parsed(&at, file, "a hexadecimal number", hexadecimal);
            id.and_then(|id| u16::try_from(id).ok())
        };
        hardware.id = id("vendor").zip(id("device"));
        hardware.vfs = reader.number(&at, "sriov_numvfs").unwrap_or(0);
        hardware.physical =
            last_part(reader.link(&at, "physfn")).and_then(|name| name.parse().ok());
    }
    if *here != hardware.place {
        let file = format!("devices/{}/sfnum", hardware.place.as_str());
        hardware.scalable = reader.text(sys, &file).is_some();
    }
    hardware
}

fn last_part(link: Option<String>) -> Option<String> {
    link.and_then(|link| Some(link.rsplit('/').next()?.to_owned()))
}

fn driver(hardware: Option<&Hardware>, has_parent: bool, node_type: Option<NodeType>) -> Driver {
    driver::from_signs(Signs {
        bound: hardware.and_then(|hardware| hardware.bound.as_deref()),
        id: hardware.and_then(|hardware| hardware.id),
        is_virtual: hardware.is_none(),
        has_parent,
        node_type,
    })
}

/// Reads the ports of the HCA `name` whose folder is `at`.
fn ports(reader: &mut Reader, at: &Folder, name: &str, mads: &Mads, focus: &Focus) -> Vec<Port> {
    let Some(folder) = reader.folder(at, "ports") else { return Vec::new() };
    let mut ports = Vec::new();
    for number in reader.numbers(&folder) {
        if let Some(mut port) = port(reader, &folder, number, focus.gids(name), focus.pkeys) {
            if let Some((umad, issm)) = mads.get(&(name.to_owned(), number)) {
                port.umad.clone_from(umad);
                port.issm.clone_from(issm);
            }
            ports.push(port);
        }
    }
    ports
}

fn port(reader: &mut Reader, ports: &Folder, number: u32, gids: bool, pkeys: bool) -> Option<Port> {
    let at = reader.folder(ports, &number.to_string())?;
    let gid::Table { slots, used } =
        if gids { gid::table(reader, &at, None) } else { gid::Table::default() };
    let folder = if pkeys { reader.folder(&at, "pkeys") } else { None };
    let mut pkeys = Vec::new();
    if let Some(folder) = folder {
        for slot in reader.numbers(&folder) {
            let pkey = reader.parsed(&folder, &slot.to_string(), "a partition key", hexadecimal);
            pkeys.extend(pkey.and_then(|pkey| u16::try_from(pkey).ok()).filter(|&pkey| pkey != 0));
        }
    }
    Some(Port {
        link_layer: reader
            .parsed(&at, "link_layer", "a link layer", link_layer)
            .unwrap_or(LinkLayer::Unknown),
        state: reader.parsed(&at, "state", "a port state", port_state).unwrap_or(PortState::Nop),
        rate: reader.text(&at, "rate").unwrap_or_default().to_owned(),
        lid: reader.parsed(&at, "lid", "a LID", hexadecimal).unwrap_or(0),
        gid_slots: slots,
        gids: used,
        pkeys,
        ..unread(number)
    })
}

/// A port of which nothing but its number is known.
pub(super) fn unread(number: u32) -> Port {
    Port {
        number,
        link_layer: LinkLayer::Unknown,
        state: PortState::Nop,
        rate: String::new(),
        lid: 0,
        gid_slots: 0,
        gids: Vec::new(),
        pkeys: Vec::new(),
        netdev: None,
        umad: None,
        issm: None,
    }
}

/// The number before the colon: `4: ACTIVE`, `1: CA`.
fn leading_number(text: &str) -> Option<u32> {
    text.split(':').next()?.trim().parse().ok()
}

fn node_type(text: &str) -> Option<NodeType> {
    NodeType::from_number(leading_number(text)?)
}

fn port_state(text: &str) -> Option<PortState> {
    PortState::from_number(leading_number(text)?)
}

fn link_layer(text: &str) -> Option<LinkLayer> {
    match text {
        "InfiniBand" => Some(LinkLayer::InfiniBand),
        "Ethernet" => Some(LinkLayer::Ethernet),
        "Unknown" => Some(LinkLayer::Unknown),
        _ => None,
    }
}
