//! NUMA nodes of the machine, and which of them a device is next to.

use std::collections::{BTreeMap, HashMap};

use super::attribute::{Folder, Reader};
use super::cpuset::CpuSet;
use super::pci::Place;

/// What the machine says about its CPUs.
#[derive(Debug, Default)]
pub(super) struct Processors {
    pub(super) numa: BTreeMap<u32, CpuSet>,
    pub(super) online: CpuSet,
    pub(super) isolated: CpuSet,
}

/// Reads `devices/system/node` and `devices/system/cpu` of `sys`.
pub(super) fn processors(reader: &mut Reader, sys: &Folder) -> Processors {
    let mut numa = BTreeMap::new();
    if let Some(nodes) = reader.folder(sys, "devices/system/node") {
        // The same format as a CPU list.
        for node in cpus(reader, &nodes, "online").iter() {
            numa.insert(node, cpus(reader, &nodes, &format!("node{node}/cpulist")));
        }
    }
    Processors {
        numa,
        online: cpus(reader, sys, "devices/system/cpu/online"),
        isolated: cpus(reader, sys, "devices/system/cpu/isolated"),
    }
}

fn cpus(reader: &mut Reader, at: &Folder, name: &str) -> CpuSet {
    reader.parsed(at, name, "a CPU list", |text| text.parse().ok()).unwrap_or_default()
}

/// Where a device is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Affinity {
    /// NUMA node; `None` is unknown.
    pub(super) numa: Option<u32>,
    /// CPUs next to it; empty when unknown.
    pub(super) cpus: CpuSet,
}

/// Finds the affinity of devices. Neighbours have the same bridges above them, so answers are
/// kept.
#[derive(Debug, Default)]
pub(super) struct Climber {
    known: HashMap<Place, Affinity>,
}

impl Climber {
    /// Affinity of the device at `place`: of itself, else of the nearest ancestor that has one.
    /// An auxiliary or a virtio device has no `numa_node` at all; -1 is one that does not know.
    /// Its `local_cpulist` is then every CPU of the machine, which says nothing.
    pub(super) fn affinity(
        &mut self,
        reader: &mut Reader,
        devices: &Folder,
        nodes: &BTreeMap<u32, CpuSet>,
        place: &Place,
    ) -> Affinity {
        let mut passed = Vec::new();
        let mut next = Some(place.clone());
        let mut found = Affinity::default();
        while let Some(here) = next {
            if let Some(known) = self.known.get(&here) {
                found = known.clone();
                break;
            }
            let own = own_affinity(reader, devices, nodes, &here);
            next = here.above();
            passed.push(here);
            if let Some(own) = own {
                found = own;
                break;
            }
        }
        for place in passed {
            self.known.insert(place, found.clone());
        }
        found
    }
}

fn own_affinity(
    reader: &mut Reader,
    devices: &Folder,
    nodes: &BTreeMap<u32, CpuSet>,
    place: &Place,
) -> Option<Affinity> {
    let file = format!("{}/numa_node", place.as_str());
    let node = reader.parsed(devices, &file, "a NUMA node", |text| text.parse::<i32>().ok())?;
    let numa = u32::try_from(node).ok()?;
    let list = format!("{}/local_cpulist", place.as_str());
    let mut cpus = cpus(reader, devices, &list);
    if cpus.is_empty() {
        cpus = nodes.get(&numa).cloned().unwrap_or_default();
    }
    Some(Affinity { numa: Some(numa), cpus })
}
