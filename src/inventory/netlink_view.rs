//! What RDMA netlink says about the node, before it is merged with what sysfs says.
//!
//! The two sources do not know the same things: only netlink has the driver id, the device index
//! and the port's interface by index; only sysfs has GIDs, link layer, rate, PCI and NUMA.

use serde::{Deserialize, Serialize};

use super::node::{CharDev, Interface, NetnsMode, NodeType, PortState};

/// One complete reading of RDMA netlink (`RDMA_NLDEV_CMD_GET`, `PORT_GET`, `GET_CHARDEV` and
/// `SYS_GET`), as seen from the namespace of the socket that asked.
///
/// The modes in its [`CharDev`]s are `None`: netlink does not know `/dev`, merging adds them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetlinkView {
    /// Every device that the socket's namespace can use, in the kernel's order.
    pub devices: Vec<NetlinkDevice>,
    /// The global `rdma_cm` device; `None` where `rdma_ucm` is not loaded.
    pub rdma_cm: Option<CharDev>,
    /// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`; `None` on kernels that do not have it (before 5.2).
    pub netns_mode: Option<NetnsMode>,
    /// Whether `RDMA_NLDEV_SYS_ATTR_MONITOR_MODE` says that changes are announced.
    pub monitor: bool,
    /// Interfaces of the same namespace by rtnetlink, with their addresses, which sysfs does not
    /// have; `None` where rtnetlink did not answer.
    pub interfaces: Option<Vec<Interface>>,
    /// Questions that the kernel did not answer, a sentence each. A device that vanished between
    /// two questions is not one: it is absent.
    pub remarks: Vec<String>,
}

/// One RDMA device in netlink's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetlinkDevice {
    /// `RDMA_NLDEV_ATTR_DEV_INDEX`.
    pub index: u32,
    /// `RDMA_NLDEV_ATTR_DEV_NAME`.
    pub name: String,
    /// `RDMA_NLDEV_ATTR_DEV_NODE_TYPE`.
    pub node_type: Option<NodeType>,
    /// `RDMA_NLDEV_ATTR_NODE_GUID`, written as sysfs writes it (`a088:c203:005f:c296`).
    pub node_guid: Option<String>,
    /// `RDMA_NLDEV_ATTR_DEV_PROTOCOL`: `ib`, `roce`, `iw`, `opa`, `usnic`; absent for EFA.
    pub protocol: Option<String>,
    /// `RDMA_NLDEV_ATTR_FW_VERSION`; absent when empty.
    pub firmware: Option<String>,
    /// `RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID` (`enum rdma_driver_id`); absent for mthca and hns, and
    /// without `ib_uverbs`.
    pub driver_id: Option<u32>,
    /// The device's `uverbsN`.
    pub uverbs: Option<CharDev>,
    /// Ports, ascending by number.
    pub ports: Vec<NetlinkPort>,
}

/// One port in netlink's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetlinkPort {
    /// Number, from 1.
    pub number: u32,
    /// `RDMA_NLDEV_ATTR_PORT_STATE`.
    pub state: Option<PortState>,
    /// `RDMA_NLDEV_ATTR_LID`; InfiniBand only.
    pub lid: Option<u32>,
    /// `RDMA_NLDEV_ATTR_NDEV_INDEX`, if the interface is in the socket's namespace.
    pub netdev_index: Option<u32>,
    /// `RDMA_NLDEV_ATTR_NDEV_NAME`, likewise.
    pub netdev: Option<String>,
    /// The port's `umadN`.
    pub umad: Option<CharDev>,
    /// The port's `issmN`.
    pub issm: Option<CharDev>,
}
