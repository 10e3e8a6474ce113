//! `NETLINK_SOCK_DIAG`: the sockets of a network namespace, of one address family at a time.

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use nix::sys::socket::SockProtocol;

use super::Family;

/// `SOCK_DIAG_BY_FAMILY`
pub const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Socket diagnosis.
#[derive(Debug)]
pub struct SockDiag;

/// A question or one socket, laid out as its address family wants: the family is the first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(pub Vec<u8>);

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        SOCK_DIAG_BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        self.0.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.0);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self(payload.to_vec()))
    }
}

impl Family for SockDiag {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkSockDiag;
    const NAME: &'static str = "NETLINK_SOCK_DIAG";
    type Request = Message;
    type Answer = Message;

    fn name(_: u16) -> &'static str {
        "SOCK_DIAG_BY_FAMILY"
    }
}
