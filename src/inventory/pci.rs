//! Places in the device tree: which PCI function a device sits on, and how near two of them are.

use super::attribute::resolve;
use super::node::{Nearness, PciAddress};

/// A device's path below `/sys/devices`, such as `pci0000:15/0000:15:01.0/0000:16:00.0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(String);

impl Place {
    /// The place that the symbolic link `target`, found in the folder `base` below `/sys`, points
    /// to; `None` where that is not below `/sys/devices`.
    pub(super) fn of_link(base: &str, target: &str) -> Option<Self> {
        let path = resolve(base, target)?;
        path.strip_prefix("devices/").map(|place| Self(place.to_owned()))
    }

    /// The device that a class device belongs to: `infiniband/mlx5_0` below it is taken away. For
    /// a virtual device, which belongs to none, `None`.
    pub(super) fn owner(&self) -> Option<Self> {
        let (rest, _name) = self.0.rsplit_once('/')?;
        let (owner, _class) = rest.rsplit_once('/')?;
        Some(Self(owner.to_owned()))
    }

    /// The device above.
    pub(super) fn above(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(above, _)| Self(above.to_owned()))
    }

    /// The path below `/sys/devices`.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The innermost PCI function on the way: the device itself, or what an auxiliary device
    /// (`mlx5_core.sf.4`), a virtio device, or a function behind Hyper-V's VMBus sits on.
    pub(super) fn function(&self) -> Option<(PciAddress, Self)> {
        let mut place = Some(self.clone());
        while let Some(here) = place {
            if let Ok(address) = here.name().parse() {
                return Some((address, here));
            }
            place = here.above();
        }
        None
    }

    /// The PCI tree's part of the path, from the host bridge (`pci0000:15`) down.
    fn pci_tree(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').skip_while(|part| !is_host_bridge(part))
    }

    /// Bridges between the host bridge and the function; 0 on a flat tree.
    pub(super) fn bridges(&self) -> usize {
        let functions = self.pci_tree().skip(1).filter(|part| part.parse::<PciAddress>().is_ok());
        functions.count().saturating_sub(1)
    }
}

/// `pci` and a bus: `pci0000:15`, or `pci10000:e0` behind Intel VMD.
fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci").is_some_and(|rest| {
        let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        rest.split_once(':').is_some_and(|(domain, bus)| hex(domain) && hex(bus))
    })
}

/// A PCI function and the NUMA node that it is known to be on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat<'a> {
    pub(super) place: &'a Place,
    pub(super) numa: Option<u32>,
}

/// How near two PCI functions are, by the deepest part of the tree that is above both: a bridge
/// below the root port belongs to a switch; the root port or the host bridge itself does not.
pub(super) fn nearness(one: Seat<'_>, other: Seat<'_>) -> Nearness {
    let common =
        one.place.pci_tree().zip(other.place.pci_tree()).take_while(|(a, b)| a == b).count();
    match (common, one.numa, other.numa) {
        // Host bridge, root port, upstream port of the switch.
        (3.., _, _) => Nearness::Switch,
        // A host bridge is on one NUMA node: where two are known, the tree is a pretended one.
        (1.., Some(one), Some(other)) if one != other => Nearness::Other,
        (1.., _, _) => Nearness::HostBridge,
        (0, Some(one), Some(other)) if one == other => Nearness::NumaNode,
        (0, Some(_), Some(_)) => Nearness::Other,
        (0, _, _) => Nearness::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Place {
        Place(path.to_owned())
    }

    #[test]
    fn a_class_device_belongs_to_what_it_sits_on() {
        let base = "class/infiniband";
        for (target, owner, function) in [
            (
                "../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/infiniband/mlx5_0",
                Some("pci0000:15/0000:15:01.0/0000:16:00.0"),
                Some("0000:16:00.0"),
            ),
            (
                "../../devices/pci0000:00/0000:00:03.0/0000:08:00.0/mlx5_core.sf.4/infiniband/a",
                Some("pci0000:00/0000:00:03.0/0000:08:00.0/mlx5_core.sf.4"),
                Some("0000:08:00.0"),
            ),
            (
                "../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
                 f8615163-0001-1000-2000-6045bd0c2b1a/pci7870:00/7870:00:00.0/infiniband/mana_0",
                Some(
                    "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
                     f8615163-0001-1000-2000-6045bd0c2b1a/pci7870:00/7870:00:00.0",
                ),
                Some("7870:00:00.0"),
            ),
            ("../../devices/virtual/infiniband/rxe0", Some("virtual"), None),
        ] {
            let owned = Place::of_link(base, target).unwrap().owner();
            assert_eq!(owned.as_ref().map(Place::as_str), owner);
            let found = owned.and_then(|owner| owner.function()).map(|(pci, _)| pci.to_string());
            assert_eq!(found.as_deref(), function, "{target}");
        }
        assert_eq!(Place::of_link(base, "../../../../etc/passwd"), None);
        assert_eq!(Place::of_link(base, "../net/eth0"), None);
    }

    #[test]
    fn nearness_is_the_deepest_part_that_is_above_both() {
        let nic = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
        for (other, numa, expected) in [
            // Same switch, neighbouring ports; and a second switch below the first.
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1b:00.0", 0, Nearness::Switch),
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:04.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0",
                0,
                Nearness::Switch,
            ),
            // The other function of the same card.
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.1", 0, Nearness::Switch),
            // Another root port.
            ("pci0000:15/0000:15:03.0/0000:20:00.0", 0, Nearness::HostBridge),
            ("pci0000:15/0000:15:04.0/0000:21:00.0", 1, Nearness::Other),
            ("pci0000:37/0000:37:01.0/0000:40:00.0", 0, Nearness::NumaNode),
            ("pci0000:97/0000:97:01.0/0000:9a:00.0", 1, Nearness::Other),
        ] {
            let (nic, other) = (place(nic), place(other));
            let one = Seat { place: &nic, numa: Some(0) };
            let two = Seat { place: &other, numa: Some(numa) };
            assert_eq!(nearness(one, two), expected, "{other:?}");
            assert_eq!(nearness(two, one), expected, "{other:?}");
        }
    }

    #[test]
    fn nearness_without_a_common_bridge_or_numa_node_is_unknown() {
        let (one, two) = (place("pci0001:00/0001:00:00.0"), place("pci0101:00/0101:00:00.0"));
        let seat = |place, numa| Seat { place, numa };
        assert_eq!(nearness(seat(&one, None), seat(&two, Some(0))), Nearness::Unknown);
        assert_eq!(nearness(seat(&one, Some(0)), seat(&two, Some(0))), Nearness::NumaNode);
    }

    #[test]
    fn bridges_are_counted_below_the_host_bridge() {
        for (path, bridges) in [
            ("pci0000:00/0000:00:0b.0", 0),
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 3),
            ("LNXSYSTM:00/VMBUS:00/guid/pci7870:00/7870:00:00.0", 0),
            ("pci0000:40/0000:40:00.0/0000:41:00.0/virtio4", 1),
            ("virtual", 0),
        ] {
            assert_eq!(place(path).bridges(), bridges, "{path}");
        }
    }
}
