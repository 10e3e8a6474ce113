//! The codec of `RDMA_NL_NLDEV` (`include/uapi/rdma/rdma_netlink.h`): bytes in, plain values out.
//!
//! Names of constants are those of the header. Attributes that are not known here are passed over.

use super::attribute::{self, Malformed};

/// `RDMA_NL_NLDEV`, the client of `NETLINK_RDMA` that describes devices.
pub const RDMA_NL_NLDEV: u16 = 5;
/// `RDMA_NL_GROUP_NOTIFY`, the multicast group of [`RDMA_NLDEV_CMD_MONITOR`] (6.12).
pub const RDMA_NL_GROUP_NOTIFY: u32 = 4;

/// Devices.
pub const RDMA_NLDEV_CMD_GET: u16 = 1;
/// Changes a device.
pub const RDMA_NLDEV_CMD_SET: u16 = 2;
/// Ports of a device.
pub const RDMA_NLDEV_CMD_PORT_GET: u16 = 5;
/// Settings of the RDMA core.
pub const RDMA_NLDEV_CMD_SYS_GET: u16 = 6;
/// Queue pairs of a device.
pub const RDMA_NLDEV_CMD_RES_QP_GET: u16 = 10;
/// A character device.
pub const RDMA_NLDEV_CMD_GET_CHARDEV: u16 = 15;
/// Contexts of programs on a device.
pub const RDMA_NLDEV_CMD_RES_CTX_GET: u16 = 22;
/// Notification of a change.
pub const RDMA_NLDEV_CMD_MONITOR: u16 = 28;

/// u32
pub const RDMA_NLDEV_ATTR_DEV_INDEX: u16 = 1;
/// string
pub const RDMA_NLDEV_ATTR_DEV_NAME: u16 = 2;
/// u32: a port's number, or in the description of a device the number of its ports
pub const RDMA_NLDEV_ATTR_PORT_INDEX: u16 = 3;
/// string, left out when empty
pub const RDMA_NLDEV_ATTR_FW_VERSION: u16 = 5;
/// u64 in host order
pub const RDMA_NLDEV_ATTR_NODE_GUID: u16 = 6;
/// u32
pub const RDMA_NLDEV_ATTR_LID: u16 = 9;
/// u8
pub const RDMA_NLDEV_ATTR_PORT_STATE: u16 = 12;
/// u8
pub const RDMA_NLDEV_ATTR_DEV_NODE_TYPE: u16 = 14;
/// nest of [`RDMA_NLDEV_ATTR_RES_QP_ENTRY`]
pub const RDMA_NLDEV_ATTR_RES_QP: u16 = 19;
/// nest
pub const RDMA_NLDEV_ATTR_RES_QP_ENTRY: u16 = 20;
/// u32, in the reader's PID namespace; of the thread that made it
pub const RDMA_NLDEV_ATTR_RES_PID: u16 = 28;
/// string: the part of the kernel that made it
pub const RDMA_NLDEV_ATTR_RES_KERN_NAME: u16 = 29;
/// u32
pub const RDMA_NLDEV_ATTR_NDEV_INDEX: u16 = 50;
/// string
pub const RDMA_NLDEV_ATTR_NDEV_NAME: u16 = 51;
/// u8: 1 shared, 0 exclusive
pub const RDMA_NLDEV_SYS_ATTR_NETNS_MODE: u16 = 66;
/// string
pub const RDMA_NLDEV_ATTR_DEV_PROTOCOL: u16 = 67;
/// u32: descriptor of a network namespace
pub const RDMA_NLDEV_NET_NS_FD: u16 = 68;
/// string
pub const RDMA_NLDEV_ATTR_CHARDEV_TYPE: u16 = 69;
/// string
pub const RDMA_NLDEV_ATTR_CHARDEV_NAME: u16 = 70;
/// u64 of `huge_encode_dev`
pub const RDMA_NLDEV_ATTR_CHARDEV: u16 = 72;
/// u64 in the header, u32 on the wire
pub const RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID: u16 = 73;
/// nest of [`RDMA_NLDEV_ATTR_RES_CTX_ENTRY`]
pub const RDMA_NLDEV_ATTR_RES_CTX: u16 = 86;
/// nest
pub const RDMA_NLDEV_ATTR_RES_CTX_ENTRY: u16 = 87;
/// u8
pub const RDMA_NLDEV_ATTR_EVENT_TYPE: u16 = 102;
/// u8
pub const RDMA_NLDEV_SYS_ATTR_MONITOR_MODE: u16 = 103;

/// Message type of a command.
pub const fn message_type(command: u16) -> u16 {
    (RDMA_NL_NLDEV << 10) + command
}

/// Command of a message type; `None` for other clients than nldev.
pub const fn command(message_type: u16) -> Option<u16> {
    if message_type >> 10 == RDMA_NL_NLDEV { Some(message_type & 0x3ff) } else { None }
}

/// A device (answer to [`RDMA_NLDEV_CMD_GET`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Stays while the device lives, through renames and moves.
    pub index: u32,
    /// Present name.
    pub name: String,
    /// `enum rdma_node_type`
    pub node_type: Option<u8>,
    /// GUID, whose most significant byte is printed first.
    pub node_guid: Option<u64>,
    /// `ib`, `roce`, `iw`, `opa`, `usnic`; not said for EFA.
    pub protocol: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
}

impl Device {
    /// Reads the attributes of one answer.
    pub fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let (mut index, mut name) = (None, None);
        let (mut node_type, mut node_guid) = (None, None);
        let (mut protocol, mut firmware) = (None, None);
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NLDEV_ATTR_DEV_INDEX => index = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_DEV_NAME => name = Some(attribute.text()?.to_owned()),
                RDMA_NLDEV_ATTR_DEV_NODE_TYPE => node_type = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_NODE_GUID => node_guid = Some(attribute.number()?),
                RDMA_NLDEV_ATTR_DEV_PROTOCOL => protocol = Some(attribute.text()?.to_owned()),
                RDMA_NLDEV_ATTR_FW_VERSION => firmware = Some(attribute.text()?.to_owned()),
                _ => {}
            }
        }
        Ok(Self {
            index: index.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_DEV_INDEX"))?,
            name: name.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_DEV_NAME"))?,
            node_type,
            node_guid,
            protocol,
            firmware: firmware.filter(|firmware| !firmware.is_empty()),
        })
    }
}

/// A port (answer to [`RDMA_NLDEV_CMD_PORT_GET`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Number, from 1.
    pub number: u32,
    /// `enum ib_port_state`
    pub state: Option<u8>,
    /// Local identifier; InfiniBand only.
    pub lid: Option<u32>,
    /// `ifindex` of its interface, if that is in the namespace of the socket.
    pub netdev_index: Option<u32>,
    /// Name of its interface, likewise.
    pub netdev: Option<String>,
}

impl Port {
    /// Reads the attributes of one answer.
    pub fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let (mut number, mut state, mut lid) = (None, None, None);
        let (mut netdev_index, mut netdev) = (None, None);
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NLDEV_ATTR_PORT_INDEX => number = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_PORT_STATE => state = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_LID => lid = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_NDEV_INDEX => netdev_index = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_NDEV_NAME => netdev = Some(attribute.text()?.to_owned()),
                _ => {}
            }
        }
        Ok(Self {
            number: number.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_PORT_INDEX"))?,
            state,
            lid,
            netdev_index,
            netdev,
        })
    }
}

/// A character device (answer to [`RDMA_NLDEV_CMD_GET_CHARDEV`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CharDevice {
    /// Name below `/dev/infiniband`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// `enum rdma_driver_id`; uverbs only, and not for mthca and hns.
    pub driver_id: Option<u32>,
}

impl CharDevice {
    /// Reads the attributes of one answer.
    pub fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let (mut name, mut number, mut driver_id) = (None, None, None);
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NLDEV_ATTR_CHARDEV_NAME => name = Some(attribute.text()?.to_owned()),
                RDMA_NLDEV_ATTR_CHARDEV => number = Some(attribute.small::<u32>()?),
                RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID => driver_id = Some(attribute.small()?),
                _ => {}
            }
        }
        let (major, minor) =
            huge_decode_dev(number.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_CHARDEV"))?);
        Ok(Self {
            name: name.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_CHARDEV_NAME"))?,
            major,
            minor,
            driver_id,
        })
    }
}

/// Major and minor number as the kernel packs them for user space (`new_decode_dev` in
/// `include/linux/kdev_t.h`), which is not what the C library's `makedev` does.
pub const fn huge_decode_dev(number: u32) -> (u32, u32) {
    ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00))
}

/// Who made an object of a device (answers to [`RDMA_NLDEV_CMD_RES_QP_GET`] and
/// [`RDMA_NLDEV_CMD_RES_CTX_GET`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maker {
    /// Thread; `None` if it has ended, or is in no PID namespace that the reader sees into.
    pub pid: Option<u32>,
    /// Part of the kernel, such as `ib_core` or `smc`; `None` for programs.
    pub kernel: Option<String>,
}

impl Maker {
    /// Reads all entries of one answer.
    pub fn parse(attributes: &[u8]) -> Result<Vec<Self>, Malformed> {
        let mut makers = Vec::new();
        for table in attribute::parse(attributes) {
            let table = table?;
            if !matches!(table.kind, RDMA_NLDEV_ATTR_RES_QP | RDMA_NLDEV_ATTR_RES_CTX) {
                continue;
            }
            for entry in table.nested() {
                let mut maker = Self::default();
                for attribute in entry?.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        RDMA_NLDEV_ATTR_RES_PID => maker.pid = Some(attribute.small()?),
                        RDMA_NLDEV_ATTR_RES_KERN_NAME => {
                            maker.kernel = Some(attribute.text()?.to_owned());
                        }
                        _ => {}
                    }
                }
                makers.push(maker);
            }
        }
        Ok(makers)
    }
}

/// Settings of the RDMA core (answer to [`RDMA_NLDEV_CMD_SYS_GET`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct System {
    /// Whether devices are usable in every network namespace.
    pub shared: Option<bool>,
    /// Whether changes are announced in [`RDMA_NL_GROUP_NOTIFY`].
    pub monitor: bool,
}

impl System {
    /// Reads the attributes of one answer.
    pub fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut system = Self::default();
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NLDEV_SYS_ATTR_NETNS_MODE => system.shared = Some(attribute.number()? != 0),
                RDMA_NLDEV_SYS_ATTR_MONITOR_MODE => system.monitor = attribute.number()? != 0,
                _ => {}
            }
        }
        Ok(system)
    }
}

/// Kind of a change (`enum rdma_nl_notify_event_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// `RDMA_REGISTER_EVENT`: a device came.
    Register,
    /// `RDMA_UNREGISTER_EVENT`: a device went.
    Unregister,
    /// `RDMA_NETDEV_ATTACH_EVENT`: a port got its interface.
    NetdevAttach,
    /// `RDMA_NETDEV_DETACH_EVENT`: a port lost its interface.
    NetdevDetach,
    /// `RDMA_RENAME_EVENT`: a device has a new name.
    Rename,
    /// `RDMA_NETDEV_RENAME_EVENT`: a port's interface has a new name.
    NetdevRename,
    /// One that later kernels have.
    Other(u64),
}

/// A change of a device (notification [`RDMA_NLDEV_CMD_MONITOR`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventType,
    /// Index of the device.
    pub index: Option<u32>,
    /// Name of the device.
    pub name: Option<String>,
    /// Number of the port that it is about.
    pub port: Option<u32>,
}

impl Event {
    /// Reads the attributes of one notification.
    pub fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let (mut kind, mut index, mut name, mut port) = (None, None, None, None);
        for attribute in attribute::parse(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NLDEV_ATTR_EVENT_TYPE => {
                    kind = Some(match attribute.number()? {
                        0 => EventType::Register,
                        1 => EventType::Unregister,
                        2 => EventType::NetdevAttach,
                        3 => EventType::NetdevDetach,
                        4 => EventType::Rename,
                        5 => EventType::NetdevRename,
                        other => EventType::Other(other),
                    });
                }
                RDMA_NLDEV_ATTR_DEV_INDEX => index = Some(attribute.small()?),
                RDMA_NLDEV_ATTR_DEV_NAME => name = Some(attribute.text()?.to_owned()),
                RDMA_NLDEV_ATTR_PORT_INDEX => port = Some(attribute.small()?),
                _ => {}
            }
        }
        let kind = kind.ok_or(Malformed::Missing("RDMA_NLDEV_ATTR_EVENT_TYPE"))?;
        Ok(Self { kind, index, name, port })
    }
}
