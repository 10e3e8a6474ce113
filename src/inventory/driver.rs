//! Which driver serves an HCA. Never told from its name, which udev or an admin may change.

use super::node::{Driver, NodeType};

/// Names by `enum rdma_driver_id` (`include/uapi/rdma/ib_user_ioctl_verbs.h`).
const BY_ID: [(u32, &str); 21] = [
    (1, "mlx5"),
    (2, "mlx4"),
    (3, "cxgb3"),
    (4, "cxgb4"),
    (5, "mthca"),
    (6, "bnxt_re"),
    (7, "ocrdma"),
    (8, "nes"),
    (9, "irdma"),
    (10, "vmw_pvrdma"),
    (11, "qedr"),
    (12, "hns"),
    (13, "usnic"),
    (14, "rxe"),
    (15, "hfi1"),
    (16, "qib"),
    (17, "efa"),
    (18, "siw"),
    (19, "erdma"),
    (20, "mana"),
    (21, "ionic"),
];

/// Drivers that are bound to the PCI function where the RDMA driver sits on top of a network
/// driver, or is called otherwise than its RDMA part.
const BY_BOUND: [(&str, &str); 17] = [
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("iavf", "irdma"),
    ("idpf", "irdma"),
    ("hns3", "hns"),
    ("hns_roce", "hns"),
    ("qede", "qedr"),
    ("be2net", "ocrdma"),
    ("enic", "usnic"),
    ("usnic_verbs", "usnic"),
    ("ib_mthca", "mthca"),
    ("ib_qib", "qib"),
    ("cxgb3", "cxgb3"),
    ("cxgb4", "cxgb4"),
];

/// PCI vendors of whose RDMA functions one driver takes care.
const BY_VENDOR: [(u16, &str); 11] = [
    (0x15b3, "mlx5"),
    (0x1d0f, "efa"),
    (0x1ded, "erdma"),
    (0x1414, "mana"),
    (0x14e4, "bnxt_re"),
    (0x19e5, "hns"),
    (0x1dd8, "ionic"),
    (0x1077, "qedr"),
    (0x1425, "cxgb4"),
    (0x15ad, "vmw_pvrdma"),
    (0x1137, "usnic"),
];

impl Driver {
    /// The driver of that `enum rdma_driver_id`; `None` for 0 and for numbers that are newer than
    /// this list.
    pub fn from_id(id: u32) -> Option<Self> {
        BY_ID.iter().find(|(known, _)| *known == id).map(|(_, name)| Self((*name).to_owned()))
    }

    /// Name of a driver that nothing tells.
    pub(super) fn unknown() -> Self {
        Self("unknown".to_owned())
    }

    /// Whether the interface of a RoCE or iWARP port is known to sit on the same device as the
    /// HCA, so that a device without interface means that it is in another namespace. It is not so
    /// for EFA, which has none, for eRDMA, VMware and usNIC, which have it on a function beside,
    /// and for drivers that came later than this list.
    pub(super) fn has_own_netdev(&self) -> bool {
        const OWN: [&str; 11] = [
            "mlx5", "mlx4", "bnxt_re", "irdma", "hns", "mana", "ionic", "qedr", "cxgb4", "cxgb3",
            "ocrdma",
        ];
        OWN.contains(&self.0.as_str())
    }
}

/// What sysfs knows about who serves an HCA.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signs<'a> {
    /// Name of the driver bound to the PCI function, or to the platform device.
    pub(super) bound: Option<&'a str>,
    /// PCI vendor and device.
    pub(super) id: Option<(u16, u16)>,
    /// Whether the HCA has no hardware below it.
    pub(super) is_virtual: bool,
    /// Whether it has a `parent` attribute, as only rxe does (`rxe_verbs.c`).
    pub(super) has_parent: bool,
    /// Its node type.
    pub(super) node_type: Option<NodeType>,
}

/// The driver, by the best of the signs.
pub(super) fn from_signs(signs: Signs<'_>) -> Driver {
    let named = |name: &str| Driver(name.to_owned());
    if signs.is_virtual {
        return match (signs.has_parent, signs.node_type) {
            (true, _) => named("rxe"),
            (false, Some(NodeType::Rnic)) => named("siw"),
            (false, _) => Driver::unknown(),
        };
    }
    if let Some(bound) = signs.bound {
        let known = BY_BOUND.iter().find(|(driver, _)| *driver == bound);
        return named(known.map_or(bound, |(_, name)| name));
    }
    match signs.id {
        // ConnectX-2 and -3 (`mlx4_pci_table`); the same vendor's later cards are mlx5's.
        Some((0x15b3, 0x1002..=0x1010 | 0x6340..=0x676e)) => named("mlx4"),
        Some((0x8086, 0x24f0 | 0x24f1)) => named("hfi1"),
        Some((0x8086, _)) => named("irdma"),
        Some((vendor, _)) => BY_VENDOR
            .iter()
            .find(|(known, _)| *known == vendor)
            .map_or_else(Driver::unknown, |(_, name)| named(name)),
        None => Driver::unknown(),
    }
}

/// Whether a PCI function is a virtual one by its number, as in a guest that was handed it and
/// does not see the physical one (`MLX5_PCI_DEV_IS_VF`, `MLX4_PCI_DEV_IS_VF`, `mana_id_table`,
/// `iavf_pci_tbl`, `ionic_bus_pci.c`).
pub(super) fn is_virtual_function((vendor, device): (u16, u16)) -> bool {
    match vendor {
        0x15b3 => matches!(
            device,
            0x1002 | 0x1004 | 0x1012 | 0x1014 | 0x1016 | 0x1018 | 0x101a | 0x101c | 0x101e | 0xa2d3
        ),
        0x1414 => device == 0x00ba,
        0x8086 => matches!(device, 0x154c | 0x1571 | 0x1889 | 0x37cd),
        0x1dd8 => device == 0x1003,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_told_by_what_is_bound_then_by_vendor_then_by_its_kind() {
        let bound = |bound| Signs { bound: Some(bound), ..Signs::default() };
        let id = |vendor, device| Signs { id: Some((vendor, device)), ..Signs::default() };
        let software = |has_parent, node_type| Signs {
            is_virtual: true,
            has_parent,
            node_type: Some(node_type),
            ..Signs::default()
        };
        for (signs, name) in [
            (bound("mlx5_core"), "mlx5"),
            (bound("efa"), "efa"),
            (bound("erdma"), "erdma"),
            (bound("ice"), "irdma"),
            (bound("a_driver_of_2030"), "a_driver_of_2030"),
            (Signs { bound: Some("mlx5_core"), ..id(0x1d0f, 0xefa2) }, "mlx5"),
            (id(0x15b3, 0x1021), "mlx5"),
            (id(0x15b3, 0x1003), "mlx4"),
            (id(0x15b3, 0x1013), "mlx5"),
            (id(0x1d0f, 0xefa2), "efa"),
            (id(0x1ded, 0x107f), "erdma"),
            (id(0x8086, 0x24f0), "hfi1"),
            (id(0x8086, 0x1592), "irdma"),
            (id(0x1234, 0x1111), "unknown"),
            (software(true, NodeType::Ca), "rxe"),
            (software(false, NodeType::Rnic), "siw"),
            (software(false, NodeType::Ca), "unknown"),
            (Signs::default(), "unknown"),
        ] {
            assert_eq!(from_signs(signs).0, name, "{signs:?}");
        }
    }

    #[test]
    fn driver_ids_are_the_kernels() {
        for (id, name) in [(1, "mlx5"), (14, "rxe"), (17, "efa"), (19, "erdma"), (21, "ionic")] {
            assert_eq!(Driver::from_id(id), Some(Driver(name.into())));
        }
        assert_eq!(Driver::from_id(0), None);
        assert_eq!(Driver::from_id(4711), None);
    }
}
