//! Netlink, as far as RDMA needs it: one blocking [`Socket`], generic over the protocol
//! ([`Family`]), and the families spoken over it.
//!
//! * [`rdma`]: `NETLINK_RDMA`, devices, ports and character devices; [`nldev`] is its codec
//! * [`route`]: `NETLINK_ROUTE`, interfaces, addresses, default routes; [`change`] is what moves and
//!   sets them, [`child`] what makes those that lie on others
//! * [`kobject`]: `NETLINK_KOBJECT_UEVENT`, what was plugged, bound and renamed
//! * [`generic`]: `NETLINK_GENERIC`, families that are known by name
//! * [`sock_diag`]: `NETLINK_SOCK_DIAG`, sockets
//!
//! [`Listener`] is the other kind of socket: it asks nothing and hears notifications.
//!
//! A netlink socket stays in the network namespace in which it was made, whatever its user does
//! later. Nothing here is asynchronous: an answer is a matter of microseconds, and the same code
//! serves programs without an async runtime.

pub mod attribute;
pub mod change;
pub mod child;
pub mod generic;
pub mod kobject;
pub mod listener;
pub mod nldev;
mod option;
pub mod rdma;
mod reply;
pub mod route;
pub mod sock_diag;
pub mod socket;

use netlink_packet_core::{NetlinkDeserializable, NetlinkSerializable};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

pub use listener::Listener;
pub use reply::messages;
pub use socket::Socket;

/// A netlink protocol: what is asked and answered over a [`Socket`].
pub trait Family {
    /// `NETLINK_…`
    const PROTOCOL: SockProtocol;
    /// Name for messages to people, such as `NETLINK_RDMA`.
    const NAME: &'static str;
    /// Whether to ask for `NETLINK_GET_STRICT_CHK`: the kernel then refuses header fields that it
    /// would ignore, and filters dumps by those that it knows.
    const STRICT: bool = false;
    /// A question.
    type Request: NetlinkSerializable;
    /// One message of an answer.
    type Answer: NetlinkDeserializable;

    /// Name of a message type as the uapi headers have it, for messages to people.
    fn name(message_type: u16) -> &'static str;
}

/// A conversation with the kernel failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The protocol is not there: `ib_core` is not loaded, say.
    #[error("this kernel speaks no {family} at present")]
    Absent {
        /// [`Family::NAME`]
        family: &'static str,
    },
    /// No socket could be made or set up.
    #[error("cannot {step} a {family} socket: {source}")]
    Open {
        /// [`Family::NAME`]
        family: &'static str,
        /// What was tried: `open`, `bind`, `set a receive timeout on`.
        step: &'static str,
        /// Why.
        source: Errno,
    },
    /// The question was not accepted.
    #[error("cannot send {request} to {family}: {source}")]
    Send {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Why.
        source: Errno,
    },
    /// The answer could not be read.
    #[error("cannot read the answer of {family} to {request}: {source}")]
    Receive {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Why.
        source: Errno,
    },
    /// No complete answer came in time.
    #[error("{family} did not complete its answer to {request} within {milliseconds} ms")]
    Silent {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// How long it was waited for.
        milliseconds: u128,
    },
    /// The kernel's answer is longer than the buffer, which is as long as the kernel's own.
    #[error("{family} answered {request} with more than {limit} bytes at once")]
    Truncated {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Length of the buffer in bytes.
        limit: usize,
    },
    /// There are more answers than anybody has use for.
    #[error("{family} has more than {limit} answers to {request}")]
    Excess {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Most answers that are taken.
        limit: usize,
    },
    /// The answer is to a question that was never asked.
    #[error("{family} answered question {got} where question {want} ({request}) was asked")]
    Sequence {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Sequence number of the question.
        want: u32,
        /// Sequence number of the answer.
        got: u32,
    },
    /// The answer cannot be understood.
    #[error("cannot understand the answer of {family} to {request}: {reason}")]
    Malformed {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel says no.
    #[error("{family} refuses {request}: {errno}{}", said(.text))]
    Refused {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// Why.
        errno: Errno,
        /// The kernel's own explanation (`NLMSGERR_ATTR_MSG`), if it gave one.
        text: Option<String>,
    },
    /// What was listed changed while it was listed, every time.
    #[error("{family} could not list {request} undisturbed in {tries} tries")]
    Interrupted {
        /// [`Family::NAME`]
        family: &'static str,
        /// [`Family::name`]
        request: &'static str,
        /// How often it was tried.
        tries: u32,
    },
}

impl Error {
    /// The kernel's reason, if it was the kernel who refused.
    pub fn refusal(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

fn said(text: &Option<String>) -> String {
    text.as_ref().map(|text| format!(" ({text})")).unwrap_or_default()
}

/// Takes a recorded answer apart, whose question had sequence number 7.
#[cfg(test)]
pub(crate) fn replay<F: Family>(datagrams: &[Vec<u8>]) -> Result<Vec<F::Answer>, Error> {
    let mut reply = reply::Reply::new("it", 7, 1000);
    for datagram in datagrams {
        reply.take::<F>(datagram, Some)?;
    }
    Ok(reply.kept)
}

#[cfg(test)]
pub(crate) mod tests;
