//! What a node has: plain data, made by the readers of this module and read by everything else.
//!
//! A value here is what the kernel said, or `None`/empty where it said nothing. Nothing is
//! computed that can be read (device numbers), and "unknown" is never turned into a default
//! (a `numa_node` of -1 is `None`, not 0).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;

/// One snapshot of a node, complete in itself: later changes make a new snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Every HCA, in PCI order, those without a PCI parent after them by name.
    pub hcas: Vec<Hca>,
    /// Names of adapters that are there and were not read, since nobody wanted to know
    /// ([`Focus`](super::Focus)).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// `/dev/infiniband/rdma_cm`; `None` where `rdma_ucm` is not loaded.
    pub rdma_cm: Option<CharDev>,
    /// Whether RDMA devices are visible in every network namespace.
    pub netns_mode: NetnsMode,
    /// NUMA nodes and their CPUs; empty where the kernel shows none.
    pub numa: BTreeMap<u32, CpuSet>,
    /// CPUs that are online.
    pub online: CpuSet,
    /// CPUs taken from the scheduler by `isolcpus` (`/sys/devices/system/cpu/isolated`).
    pub isolated: CpuSet,
    /// GPUs of the node, in PCI order.
    pub gpus: Vec<Gpu>,
    /// How near each HCA is to each GPU; only pairs in which both have a PCI address.
    pub relations: Vec<Relation>,
    /// By what the adapters reach the memory of GPUs, such as `nvidia_peermem`; empty: nothing of
    /// the kind was found.
    #[serde(default)]
    pub gpudirect: Vec<String>,
    /// Network interfaces of the host's own namespace.
    pub interfaces: Vec<Interface>,
    /// What the two sources of the inventory disagree about, and what could not be read: a
    /// sentence each. For `doctor` and the log, never for decisions.
    pub remarks: Vec<String>,
}

impl Node {
    /// The HCA of that kernel name.
    pub fn hca(&self, name: &str) -> Option<&Hca> {
        self.hcas.iter().find(|hca| hca.name == name)
    }

    /// How near that HCA is to that GPU; [`Nearness::Unknown`] for a pair without PCI addresses.
    pub fn nearness(&self, hca: &str, gpu: PciAddress) -> Nearness {
        self.relations
            .iter()
            .find(|relation| relation.hca == hca && relation.gpu == gpu)
            .map_or(Nearness::Unknown, |relation| relation.nearness)
    }
}

/// One RDMA device ("ibdev" in the kernel's words).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hca {
    /// Present kernel name; udev may have changed it, and may again.
    pub name: String,
    /// `RDMA_NLDEV_ATTR_DEV_INDEX`: stays while the device lives, through renames and moves.
    /// `None` when only sysfs was read.
    pub index: Option<u32>,
    /// Which driver serves it.
    pub driver: Driver,
    /// `node_type` of the device.
    pub node_type: NodeType,
    /// Node GUID, as printed by sysfs; all zero on a VF that was never configured.
    pub node_guid: String,
    /// Firmware version; `None` where the driver gives none.
    pub firmware: Option<String>,
    /// PCI function that it sits on, found by climbing from its parent; `None` for rxe and siw.
    pub pci: Option<PciAddress>,
    /// NUMA node of the nearest ancestor that knows one; `None` is unknown, never node 0.
    pub numa: Option<u32>,
    /// CPUs next to it; empty when unknown.
    pub local_cpus: CpuSet,
    /// `/dev/infiniband/uverbsN`; `None` where `ib_uverbs` is not loaded.
    pub uverbs: Option<CharDev>,
    /// Ports, ascending by number.
    pub ports: Vec<Port>,
    /// What it is among its kin.
    pub role: Role,
    /// Where it can be used.
    pub home: Home,
}

impl Hca {
    /// Ports in state ACTIVE.
    pub fn active_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.state == PortState::Active)
    }
}

/// A character device of the node, with the numbers that the kernel gave it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CharDev {
    /// Name below `/dev/infiniband`, such as `uverbs3`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits of the node in `/dev`; `None` when there is no node there.
    pub mode: Option<u32>,
}

impl CharDev {
    /// Path of the node on every Linux: `/dev/infiniband/NAME`.
    pub fn path(&self) -> String {
        format!("/dev/infiniband/{}", self.name)
    }
}

/// One port of an HCA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number, from 1.
    pub number: u32,
    /// Which wire.
    pub link_layer: LinkLayer,
    /// Logical state.
    pub state: PortState,
    /// Rate as the kernel words it: `400 Gb/sec (4X NDR)`. Not to be believed on EFA.
    pub rate: String,
    /// Local identifier on an InfiniBand subnet; 0 elsewhere.
    pub lid: u32,
    /// Slots of the GID table, used or not.
    pub gid_slots: u32,
    /// Used slots of the GID table, ascending by index.
    pub gids: Vec<Gid>,
    /// Partition keys that are not 0.
    pub pkeys: Vec<u16>,
    /// Network interface of the port, where one is known and in this namespace.
    pub netdev: Option<String>,
    /// `/dev/infiniband/umadN` of the port.
    pub umad: Option<CharDev>,
    /// `/dev/infiniband/issmN` of the port.
    pub issm: Option<CharDev>,
}

/// A used slot of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Slot.
    pub index: u32,
    /// The 16 bytes, which on RoCE are an IPv6 or an IPv4-mapped address.
    pub value: Ipv6Addr,
    /// Kind of the entry; `None` where the kernel does not say.
    pub kind: Option<GidKind>,
    /// Interface that the entry belongs to, by its name in *its own* namespace: the kernel prints
    /// it without one, so `eth0` may be another pod's.
    pub netdev: Option<String>,
}

impl Gid {
    /// The address that this GID stands for.
    pub fn address(&self) -> IpAddr {
        self.value.to_ipv4_mapped().map_or(IpAddr::V6(self.value), IpAddr::V4)
    }
}

/// Kind of a GID table entry (`gid_attrs/types`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GidKind {
    /// `IB/RoCE v1`.
    #[serde(rename = "v1")]
    V1,
    /// `RoCE v2`.
    #[serde(rename = "v2")]
    V2,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// InfiniBand (Omni-Path too).
    InfiniBand,
    /// Ethernet: RoCE, iWARP.
    Ethernet,
    /// Neither: EFA.
    Unknown,
}

/// Logical state of a port (`ports/N/state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PortState {
    /// 0
    Nop,
    /// 1
    Down,
    /// 2
    Init,
    /// 3
    Armed,
    /// 4: traffic flows.
    Active,
    /// 5
    ActiveDefer,
}

impl PortState {
    /// The state of that `enum ib_port_state`.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => return None,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        })
    }
}

/// `node_type` of a device (`enum rdma_node_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeType {
    /// 1: channel adapter (InfiniBand, RoCE).
    Ca,
    /// 2
    Switch,
    /// 3
    Router,
    /// 4: iWARP.
    Rnic,
    /// 5 and 6
    Usnic,
    /// 7: EFA.
    Unspecified,
}

impl NodeType {
    /// The type of that `enum rdma_node_type`.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Ca,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            5 | 6 => Self::Usnic,
            7 => Self::Unspecified,
            _ => return None,
        })
    }

    /// The kernel's word for it, as sysfs prints it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ca => "CA",
            Self::Switch => "switch",
            Self::Router => "router",
            Self::Rnic => "RNIC",
            Self::Usnic => "usNIC",
            Self::Unspecified => "unspecified",
        }
    }
}

/// Who serves an HCA (`enum rdma_driver_id`; where the kernel tells none, the name of the driver
/// that is bound to the PCI function).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Driver(pub String);

impl Driver {
    /// Whether this is that driver, by the name used in selectors (`mlx5`, `efa`, `erdma`, `rxe`).
    pub fn is(&self, name: &str) -> bool {
        self.0 == name
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an HCA is among its kin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Role {
    /// A physical function, with or without virtual ones.
    Physical {
        /// Virtual functions that are switched on.
        vfs: u32,
    },
    /// A virtual function (SR-IOV) or a scalable function.
    Virtual {
        /// PCI address of the physical function; `None` in a guest that was handed the VF.
        physical: Option<PciAddress>,
    },
    /// The host's handle on a virtual function in switchdev mode.
    Representor,
    /// A bond of several ports seen as one device.
    Bond {
        /// Bond interface.
        netdev: String,
    },
    /// A device whose interface is a member of a bond, and which the bond's own device replaces.
    BondMember {
        /// Bond interface.
        bond: String,
    },
    /// Software: rxe and siw.
    Software {
        /// Interface that it runs on.
        parent: Option<String>,
    },
}

/// Where an HCA can be used from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "home", rename_all = "lowercase")]
pub enum Home {
    /// In the host's RDMA namespace.
    Host,
    /// It exists, but is not visible here: somebody moved it into another namespace.
    Elsewhere,
    /// The device is here, but the interface of its port is in another namespace (a pod's).
    NetdevElsewhere,
}

/// `netns_mode` of `ib_core`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetnsMode {
    /// Devices are visible in every namespace: the kernel's default, and all that kernels before
    /// 5.2 have.
    #[default]
    Shared,
    /// A device belongs to one namespace.
    Exclusive,
}

/// A GPU of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// PCI function.
    pub pci: PciAddress,
    /// PCI vendor, such as 0x10de.
    pub vendor: u16,
    /// NUMA node; `None` is unknown.
    pub numa: Option<u32>,
    /// Minor number of `/dev/nvidiaN` (`/proc/driver/nvidia/gpus/*/information`).
    pub minor: Option<u32>,
    /// `GPU-…` identifier from the same file.
    pub uuid: Option<String>,
}

/// How near an HCA is to a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    /// HCA's name.
    pub hca: String,
    /// GPU's PCI function.
    pub gpu: PciAddress,
    /// How near.
    pub nearness: Nearness,
}

/// Distance between two PCI functions, nearest first (the order is the ranking).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nearness {
    /// A PCIe switch is common to both.
    Switch,
    /// The host bridge is common to both.
    HostBridge,
    /// The NUMA node is common to both.
    NumaNode,
    /// Nothing of these.
    Other,
    /// There is nothing to compare.
    Unknown,
}

/// A network interface, in whatever namespace it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name in its namespace.
    pub name: String,
    /// `ifindex` in its namespace.
    pub index: u32,
    /// `ifindex` of the lower interface (macvlan, ipvlan, vlan, veth), which may be in another
    /// namespace.
    pub lower: Option<u32>,
    /// Kind (`IFLA_INFO_KIND`): `veth`, `macvlan`, `ipvlan`, `bond`; `None` for hardware.
    pub kind: Option<String>,
    /// `ifindex` of the bond or bridge that it is a member of.
    pub controller: Option<u32>,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route leaves here.
    pub default_route: bool,
    /// Whether the link is up.
    pub up: bool,
}

/// A PCI function: `domain:bus:device.function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain; five digits exist (Intel VMD).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

/// A text is no PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PCI address: expected DDDD:BB:DD.F in hexadecimal, such as 0000:3b:00.0")]
pub struct PciAddressError(pub String);

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplit(':');
            let (device, bus) = (parts.next()?, parts.next()?);
            // lspci and nvidia-smi leave the domain out, or write it with eight digits.
            let domain = parts.next().unwrap_or("0");
            let hex = |text: &str, most: usize| {
                let digits = !text.is_empty() && text.len() <= most;
                (digits && text.bytes().all(|b| b.is_ascii_hexdigit()))
                    .then(|| u32::from_str_radix(text, 16).ok())
                    .flatten()
            };
            let address = Self {
                domain: hex(domain, 8)?,
                bus: u8::try_from(hex(bus, 2)?).ok()?,
                device: u8::try_from(hex(device, 2)?).ok()?,
                function: u8::try_from(hex(function, 1)?).ok()?,
            };
            let fits = address.device < 32 && address.function < 8 && parts.next().is_none();
            fits.then_some(address)
        };
        parse().ok_or_else(|| PciAddressError(text.to_owned()))
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciAddressError;

    fn try_from(text: String) -> Result<Self, PciAddressError> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_all_their_spellings() {
        for (text, written) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("3b:00.0", "0000:3b:00.0"),
            ("00000000:3B:00.0", "0000:3b:00.0"),
            ("10000:01:1f.7", "10000:01:1f.7"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), written);
        }
        for text in
            ["", "3b", "3b:00", "0000:3b:20.0", "0000:3b:00.8", "x:3b:00.0", "0:0000:3b:00.0"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_gid_stands_for_an_ipv4_address_only_when_mapped() {
        let gid =
            |value: &str| Gid { index: 0, value: value.parse().unwrap(), kind: None, netdev: None };
        assert_eq!(gid("::ffff:10.0.0.5").address().to_string(), "10.0.0.5");
        assert_eq!(gid("fe80::1").address().to_string(), "fe80::1");
        assert_eq!(gid("::10.0.0.5").address().to_string(), "::a00:5");
    }
}
