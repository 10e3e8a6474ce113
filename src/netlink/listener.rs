//! A netlink socket that asks nothing and hears notifications.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockFlag, SockProtocol};

use super::socket::{Received, open, receive};
use super::{Error, option};

/// A notification, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// A datagram from the kernel. Its end may be missing if it was longer than the buffer.
    Datagram(&'a [u8]),
    /// Notifications were lost (`ENOBUFS`): anything may have happened.
    Lost,
    /// There is nothing more at present.
    Silence,
}

/// A netlink socket that hears multicast groups, never blocks, and can be polled.
#[derive(Debug)]
pub struct Listener {
    family: &'static str,
    descriptor: OwnedFd,
}

impl Listener {
    /// Opens a socket in the calling thread's network namespace and joins `groups` (numbers, not
    /// bits). Joining a group that the kernel does not have is no error: nothing comes from it.
    pub fn open(
        family: &'static str,
        protocol: SockProtocol,
        groups: &[u32],
    ) -> Result<Self, Error> {
        let descriptor = open(family, protocol, 0, SockFlag::SOCK_NONBLOCK)?;
        for group in groups {
            let number = i32::try_from(*group).unwrap_or(i32::MAX);
            option::set(&descriptor, option::NETLINK_ADD_MEMBERSHIP, number).map_err(|source| {
                Error::Open { family, step: "join the notifications of", source }
            })?;
        }
        Ok(Self { family, descriptor })
    }

    /// Next notification.
    pub fn hear<'a>(&self, buffer: &'a mut [u8]) -> Result<Heard<'a>, Error> {
        loop {
            return match receive(&self.descriptor, buffer, MsgFlags::empty()) {
                Ok(Received::Whole(length)) => Ok(Heard::Datagram(&buffer[..length])),
                Ok(Received::Cut) => Ok(Heard::Datagram(buffer)),
                // Anybody may write to a socket of his own user; only the kernel is believed.
                Ok(Received::Foreign) | Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Ok(Heard::Silence),
                Err(Errno::ENOBUFS) => Ok(Heard::Lost),
                Err(source) => Err(Error::Receive {
                    family: self.family,
                    request: "being listened to",
                    source,
                }),
            };
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
