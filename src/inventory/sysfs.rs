//! The inventory's sysfs source: one pass over the trees of a [`Roots`].

use super::address;
use super::attribute::{Folder, Reader};
use super::chardev;
use super::focus::Focus;
use super::gpu;
use super::hca::{self, Found};
use super::interface::{self, Links};
use super::node::{CharDev, Interface, LinkLayer, NetnsMode, Node, Port};
use super::numa::{self, Climber, Processors};
use super::pci::Place;
use crate::roots::Roots;

/// What was read, before it is settled what each HCA is among its kin.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) hcas: Vec<Found>,
    pub(super) unread: Vec<String>,
    pub(super) links: Links,
    /// The host's interfaces: those of `links`, or what rtnetlink said.
    pub(super) interfaces: Vec<Interface>,
    pub(super) rdma_cm: Option<CharDev>,
    pub(super) netns_mode: NetnsMode,
    pub(super) gpus: Vec<gpu::Found>,
    pub(super) gpudirect: Vec<String>,
    pub(super) processors: Processors,
    pub(super) remarks: Vec<String>,
}

/// Reads everything; of the interfaces only what `interfaces`, which rtnetlink told, does not
/// have. Nothing there is an empty scan, not an error: a machine without RDMA has no
/// `class/infiniband` at all.
pub(super) fn scan(
    reader: &mut Reader,
    roots: &Roots,
    interfaces: Option<&[Interface]>,
    focus: &Focus,
) -> Scan {
    let Some(sys) = reader.open(&roots.sys) else {
        let remarks = vec![format!("{}: no sysfs there", roots.sys.display())];
        return Scan { remarks, ..Scan::default() };
    };
    // Before the HCAs: one that comes in between is then found by its class, while one that was
    // listed here and is not found there is looked at again.
    let uverbs = chardev::uverbs(reader, &sys, focus);
    let mads = chardev::mads(reader, &sys, focus);
    let hca::Hcas { found: hcas, unread } = hca::hcas(reader, &sys, &uverbs, &mads, focus);
    let few = if focus.adapters.is_some() && (interfaces.is_some() || !focus.interfaces) {
        own_links(reader, &sys, &hcas)
    } else {
        None
    };
    let links = few.unwrap_or_else(|| Links::read(reader, &sys, interfaces.unwrap_or_default()));
    let processors =
        if focus.numa { numa::processors(reader, &sys) } else { Processors::default() };
    let gpus = if focus.gpus { gpu::gpus(reader, &sys, &roots.proc) } else { Vec::new() };
    let gpudirect = gpu::direct(reader, &sys, &roots.proc, &gpus);
    let mut scan = Scan {
        interfaces: Vec::new(),
        hcas,
        unread,
        links,
        rdma_cm: chardev::rdma_cm(reader, &sys),
        netns_mode: netns_mode(reader, &sys),
        gpus,
        gpudirect,
        processors,
        remarks: Vec::new(),
    };
    if focus.numa {
        place(reader, &sys, &mut scan);
    }
    scan.interfaces = match interfaces {
        Some(told) => told.to_vec(),
        None => {
            let mut seen: Vec<Interface> =
                scan.links.all.iter().map(|link| link.interface.clone()).collect();
            if focus.interfaces {
                let ports = scan.hcas.iter().flat_map(|found| &found.hca.ports);
                address::add(reader, &roots.proc, &mut seen, ports);
            }
            seen
        }
    };
    scan.remarks = reader.take_remarks();
    scan
}

/// The interfaces of those HCAs' own devices, where they are all that role and home of these HCAs
/// follow from. `None` where others have a part in that: of a bond around them, of a function
/// beside, or below an HCA without hardware.
fn own_links(reader: &mut Reader, sys: &Folder, hcas: &[Found]) -> Option<Links> {
    let mut links = Vec::new();
    for found in hcas {
        let hardware = found.hardware.as_ref().filter(|_| !found.hidden)?;
        let own = interface::own(reader, sys, &hardware.place)?;
        let ethernet = |port: &Port| port.link_layer == LinkLayer::Ethernet;
        if own.is_empty() && found.hca.ports.iter().any(ethernet) {
            return None;
        }
        links.extend(own);
    }
    Some(Links::of(links))
}

/// Gives HCAs and GPUs their NUMA node and CPUs. A virtual HCA is where the hardware below its
/// interface is.
fn place(reader: &mut Reader, sys: &Folder, scan: &mut Scan) {
    let Some(devices) = reader.folder(sys, "devices") else { return };
    let nodes = &scan.processors.numa;
    let mut climber = Climber::default();
    for found in &mut scan.hcas {
        let place = match &found.hardware {
            Some(hardware) => Some(&hardware.place),
            None => below_interface(found, &scan.links),
        };
        if let Some(place) = place {
            let affinity = climber.affinity(reader, &devices, nodes, place);
            found.hca.numa = affinity.numa;
            found.hca.local_cpus = affinity.cpus;
        }
    }
    for gpu in &mut scan.gpus {
        gpu.gpu.numa = climber.affinity(reader, &devices, nodes, &gpu.place).numa;
    }
}

fn below_interface<'a>(found: &Found, links: &'a Links) -> Option<&'a Place> {
    let gids = found.hca.ports.iter().flat_map(|port| &port.gids);
    let named =
        found.parent.as_deref().or_else(|| gids.flat_map(|gid| gid.netdev.as_deref()).next());
    links.named(named?)?.owner.as_ref()
}

/// `Y` is shared; kernels before 5.2 have no such parameter, and nothing else.
fn netns_mode(reader: &mut Reader, sys: &Folder) -> NetnsMode {
    let parse = |text: &str| match text {
        "Y" | "1" => Some(NetnsMode::Shared),
        "N" | "0" => Some(NetnsMode::Exclusive),
        _ => None,
    };
    reader.parsed(sys, "module/ib_core/parameters/netns_mode", "Y or N", parse).unwrap_or_default()
}

impl Scan {
    /// The finished snapshot.
    pub(super) fn into_node(self) -> Node {
        let mut remarks = self.remarks;
        let mut hcas = self.hcas;
        hcas.sort_by(|one, other| order(one).cmp(&order(other)));
        let placed = || {
            hcas.iter().filter_map(|found| {
                let (_, place) = found.hardware.as_ref()?.function.as_ref()?;
                Some((&found.hca, place))
            })
        };
        let relations = gpu::relations(placed(), &self.gpus);
        let bridges =
            || placed().map(|(_, place)| place).chain(self.gpus.iter().map(|gpu| &gpu.place));
        if !relations.is_empty() && bridges().all(|place| place.bridges() == 0) {
            remarks.push(format!(
                "the PCI tree is flat: {} HCAs and {} GPUs without a bridge above any of them; a \
                 virtual machine that hides the tree looks so, and then it does not tell what is \
                 near what",
                placed().count(),
                self.gpus.len()
            ));
        }
        Node {
            hcas: hcas.into_iter().map(|found| found.hca).collect(),
            unread: self.unread,
            rdma_cm: self.rdma_cm,
            netns_mode: self.netns_mode,
            numa: self.processors.numa,
            online: self.processors.online,
            isolated: self.processors.isolated,
            gpus: self.gpus.into_iter().map(|found| found.gpu).collect(),
            relations,
            gpudirect: self.gpudirect,
            interfaces: self.interfaces,
            remarks,
        }
    }
}

/// By PCI address, those without one last; then by name, in which `mlx5_10` follows `mlx5_9`.
fn order(found: &Found) -> impl Ord {
    let Found { hca, .. } = found;
    let digits = hca.name.len() - hca.name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = hca.name.split_at(hca.name.len() - digits);
    (hca.pci.is_none(), hca.pci, stem.to_owned(), number.parse::<u64>().ok(), hca.name.clone())
}
