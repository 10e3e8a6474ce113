//! `NETLINK_GENERIC`: families that are known by name, and get their number when their module is
//! loaded (`Documentation/userspace-api/netlink/intro.rst`).

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::attribute::{self, put_text};
use super::{Error, Family, Socket};

/// `GENL_ID_CTRL`: the family that knows the others.
pub const GENL_ID_CTRL: u16 = 16;
/// `CTRL_CMD_GETFAMILY`
const CTRL_CMD_GETFAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`: u16
const CTRL_ATTR_FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`: string
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Generic netlink.
#[derive(Debug)]
pub struct Generic;

/// A command of some family, or one message of its answer (`struct genlmsghdr` and attributes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The family's number.
    pub family: u16,
    /// The command.
    pub command: u8,
    /// The family's version.
    pub version: u8,
    /// Attributes as they are on the wire.
    pub attributes: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        4 + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&[self.command, self.version, 0, 0]);
        buffer[4..].copy_from_slice(&self.attributes);
    }
}

/// A message has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are too few for a generic message")]
pub struct Short(usize);

impl NetlinkDeserializable for Message {
    type Error = Short;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Short> {
        let Some(([command, version, _, _], attributes)) = payload.split_first_chunk() else {
            return Err(Short(payload.len()));
        };
        let (command, version) = (*command, *version);
        Ok(Self { family: header.message_type, command, version, attributes: attributes.to_vec() })
    }
}

impl Family for Generic {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkGeneric;
    const NAME: &'static str = "NETLINK_GENERIC";
    type Request = Message;
    type Answer = Message;

    fn name(message_type: u16) -> &'static str {
        if message_type == GENL_ID_CTRL { "CTRL_CMD_GETFAMILY" } else { "a generic command" }
    }
}

/// The question for a family's number.
pub fn get_family(name: &str) -> Message {
    let mut attributes = Vec::new();
    put_text(&mut attributes, CTRL_ATTR_FAMILY_NAME, name);
    Message { family: GENL_ID_CTRL, command: CTRL_CMD_GETFAMILY, version: 1, attributes }
}

/// The number that an answer to [`get_family`] tells.
pub fn family_id(answer: &Message) -> Result<u16, attribute::Malformed> {
    for attribute in attribute::parse(&answer.attributes) {
        let attribute = attribute?;
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            return attribute.small();
        }
    }
    Err(attribute::Malformed::Missing("CTRL_ATTR_FAMILY_ID"))
}

impl Socket<Generic> {
    /// The number of a family; `None` where it is not there, its module not loaded say.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn family(&mut self, name: &str) -> Result<Option<u16>, Error> {
        let answers = match self.ask(get_family(name)) {
            Ok(answers) => answers,
            Err(error) if error.refusal() == Some(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        answers.first().map(family_id).transpose().map_err(|reason| Error::Malformed {
            family: Generic::NAME,
            request: "CTRL_CMD_GETFAMILY",
            reason: reason.to_string(),
        })
    }
}
