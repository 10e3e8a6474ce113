//! `NETLINK_RDMA`: what the RDMA core says of its devices.

use std::os::fd::AsRawFd;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::attribute::{Malformed, put_text, put_u32};
use super::nldev::{self, CharDevice, Device, Maker, Port, System};
use super::{Error, Family, Socket};

/// The family of `RDMA_NL_NLDEV`. Only [`Socket::move_device`] wants a privilege.
#[derive(Debug)]
pub struct Rdma;

/// A command of nldev with its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `RDMA_NLDEV_CMD_…`
    pub command: u16,
    /// Attributes as they are on the wire.
    pub attributes: Vec<u8>,
}

impl Message {
    fn new(command: u16) -> Self {
        Self { command, attributes: Vec::new() }
    }

    fn number(mut self, kind: u16, value: u32) -> Self {
        put_u32(&mut self.attributes, kind, value);
        self
    }

    fn text(mut self, kind: u16, value: &str) -> Self {
        put_text(&mut self.attributes, kind, value);
        self
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        nldev::message_type(self.command)
    }

    fn buffer_len(&self) -> usize {
        self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.attributes);
    }
}

/// A message is none of nldev's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message type {0:#x} is not of RDMA_NL_NLDEV")]
pub struct Foreign(u16);

impl NetlinkDeserializable for Message {
    type Error = Foreign;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Foreign> {
        let command = nldev::command(header.message_type).ok_or(Foreign(header.message_type))?;
        Ok(Self { command, attributes: payload.to_vec() })
    }
}

impl Family for Rdma {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkRDMA;
    const NAME: &'static str = "NETLINK_RDMA";
    type Request = Message;
    type Answer = Message;

    fn name(message_type: u16) -> &'static str {
        match nldev::command(message_type) {
            Some(nldev::RDMA_NLDEV_CMD_GET) => "RDMA_NLDEV_CMD_GET",
            Some(nldev::RDMA_NLDEV_CMD_SET) => "RDMA_NLDEV_CMD_SET",
            Some(nldev::RDMA_NLDEV_CMD_RES_QP_GET) => "RDMA_NLDEV_CMD_RES_QP_GET",
            Some(nldev::RDMA_NLDEV_CMD_RES_CTX_GET) => "RDMA_NLDEV_CMD_RES_CTX_GET",
            Some(nldev::RDMA_NLDEV_CMD_PORT_GET) => "RDMA_NLDEV_CMD_PORT_GET",
            Some(nldev::RDMA_NLDEV_CMD_SYS_GET) => "RDMA_NLDEV_CMD_SYS_GET",
            Some(nldev::RDMA_NLDEV_CMD_GET_CHARDEV) => "RDMA_NLDEV_CMD_GET_CHARDEV",
            _ => "a command of RDMA_NL_NLDEV",
        }
    }
}

/// Which character device is asked for.
///
/// **The kernel loads modules for this question**: where no such device is known it calls
/// `request_module("rdma-client-NAME")` (`ib_get_client_nl_info` in `drivers/infiniband/core`),
/// once for each question. A question about a device that has no MAD node starts `modprobe` in
/// vain every time; one for [`Query::RdmaCm`] makes a node that the admin did not want. Whoever
/// must not change the node asks only about what sysfs shows already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// The verbs device; a port is not part of this question (`EINVAL`).
    Uverbs {
        /// `RDMA_NLDEV_ATTR_DEV_INDEX`
        device: u32,
    },
    /// The MAD device of a port.
    Umad {
        /// `RDMA_NLDEV_ATTR_DEV_INDEX`
        device: u32,
        /// Port number.
        port: u32,
    },
    /// The subnet manager's device of a port.
    Issm {
        /// `RDMA_NLDEV_ATTR_DEV_INDEX`
        device: u32,
        /// Port number.
        port: u32,
    },
    /// The one device of the RDMA connection manager.
    RdmaCm,
}

impl From<Query> for Message {
    fn from(query: Query) -> Self {
        use nldev::{
            RDMA_NLDEV_ATTR_CHARDEV_TYPE as TYPE, RDMA_NLDEV_ATTR_DEV_INDEX as DEVICE,
            RDMA_NLDEV_ATTR_PORT_INDEX as PORT,
        };
        let message = Message::new(nldev::RDMA_NLDEV_CMD_GET_CHARDEV);
        match query {
            Query::Uverbs { device } => message.text(TYPE, "uverbs").number(DEVICE, device),
            Query::Umad { device, port } => {
                message.text(TYPE, "umad").number(DEVICE, device).number(PORT, port)
            }
            Query::Issm { device, port } => {
                message.text(TYPE, "issm").number(DEVICE, device).number(PORT, port)
            }
            Query::RdmaCm => message.text(TYPE, "rdma_cm"),
        }
    }
}

/// The move of a device into the network namespace behind a descriptor.
pub fn move_device(device: u32, namespace: u32) -> Message {
    Message::new(nldev::RDMA_NLDEV_CMD_SET)
        .number(nldev::RDMA_NLDEV_ATTR_DEV_INDEX, device)
        .number(nldev::RDMA_NLDEV_NET_NS_FD, namespace)
}

impl Socket<Rdma> {
    /// Moves a device, which the socket's namespace *and* the calling thread's have to be that of
    /// (`nldev_set_doit`), into another namespace. Ends every open context of it. Needs
    /// `CAP_NET_ADMIN`, and the exclusive mode.
    ///
    /// # Errors
    /// [`Error::Refused`], with `EOPNOTSUPP` where the driver cannot or the mode is not exclusive.
    pub fn move_device(&mut self, device: u32, namespace: &impl AsRawFd) -> Result<(), Error> {
        let descriptor = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
        self.ask(move_device(device, descriptor)).map(drop)
    }

    /// Who has made contexts and queue pairs on a device, the kernel's own parts too.
    ///
    /// # Errors
    /// As with [`Socket::ports`].
    pub fn makers(&mut self, device: u32) -> Result<(Vec<Maker>, Vec<Maker>), Error> {
        let mut ask = |command| {
            let request = Message::new(command).number(nldev::RDMA_NLDEV_ATTR_DEV_INDEX, device);
            self.describe(request, Maker::parse).map(|makers| makers.concat())
        };
        Ok((ask(nldev::RDMA_NLDEV_CMD_RES_CTX_GET)?, ask(nldev::RDMA_NLDEV_CMD_RES_QP_GET)?))
    }

    /// Every device that can be used in the socket's namespace.
    pub fn devices(&mut self) -> Result<Vec<Device>, Error> {
        self.describe(Message::new(nldev::RDMA_NLDEV_CMD_GET), Device::parse)
    }

    /// Ports of a device, in the kernel's order.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` when there is no such device (any more): see [`vanished`].
    pub fn ports(&mut self, device: u32) -> Result<Vec<Port>, Error> {
        let request = Message::new(nldev::RDMA_NLDEV_CMD_PORT_GET)
            .number(nldev::RDMA_NLDEV_ATTR_DEV_INDEX, device);
        self.describe(request, Port::parse)
    }

    /// A character device; `None` where there is none (`EOPNOTSUPP`).
    ///
    /// # Errors
    /// As with [`Socket::ports`] when the device itself is not there.
    pub fn char_device(&mut self, query: Query) -> Result<Option<CharDevice>, Error> {
        // The answer does not say what it is an answer to; the sequence number does.
        match self.ask(query.into()) {
            Ok(answers) => first(&answers, nldev::RDMA_NLDEV_CMD_GET_CHARDEV, CharDevice::parse),
            Err(error) if error.refusal() == Some(Errno::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Settings of the RDMA core; nothing known on kernels that do not tell (before 5.2).
    pub fn system(&mut self) -> Result<System, Error> {
        match self.ask(Message::new(nldev::RDMA_NLDEV_CMD_SYS_GET)) {
            Ok(answers) => first(&answers, nldev::RDMA_NLDEV_CMD_SYS_GET, System::parse)
                .map(Option::unwrap_or_default),
            Err(error) if matches!(error.refusal(), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
                Ok(System::default())
            }
            Err(error) => Err(error),
        }
    }

    fn describe<T>(
        &mut self,
        request: Message,
        parse: fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let command = request.command;
        let answers = self.list(request, |answer| Some(parse(&answer.attributes)))?;
        answers.into_iter().collect::<Result<_, _>>().map_err(|reason| malformed(command, &reason))
    }
}

fn first<T>(
    answers: &[Message],
    command: u16,
    parse: fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>, Error> {
    answers
        .first()
        .map(|answer| parse(&answer.attributes))
        .transpose()
        .map_err(|reason| malformed(command, &reason))
}

fn malformed(command: u16, reason: &Malformed) -> Error {
    Error::Malformed {
        family: Rdma::NAME,
        request: Rdma::name(nldev::message_type(command)),
        reason: reason.to_string(),
    }
}

/// Whether the kernel refused because the device that was asked about does not exist (any more).
pub fn vanished(error: &Error) -> bool {
    matches!(error.refusal(), Some(Errno::EINVAL | Errno::ENODEV))
}
