//! A conversation with one of SMC's families of generic netlink, in the calling thread's network
//! namespace.

use nix::errno::Errno;

use super::kernel::KernelError;
use crate::netlink::attribute::Malformed;
use crate::netlink::generic::{Generic, Message};
use crate::netlink::{self, Socket};

/// A socket to a family.
#[derive(Debug)]
pub(super) struct Conversation {
    socket: Socket<Generic>,
    number: u16,
    family: &'static str,
}

impl Conversation {
    /// Opens one; `action` is what is said of a failure.
    ///
    /// # Errors
    /// [`KernelError::Absent`] where smc is not loaded.
    pub(super) fn open(family: &'static str, action: &'static str) -> Result<Self, KernelError> {
        let failed = |source| KernelError::Netlink { action, source };
        let mut socket = Socket::open().map_err(failed)?;
        let number = socket.family(family).map_err(failed)?.ok_or(KernelError::Absent)?;
        Ok(Self { socket, number, family })
    }

    /// Asks for a list, and hands each message of the answer on.
    ///
    /// # Errors
    /// The kernel does not answer, or not as it should.
    pub(super) fn list(
        &mut self,
        action: &'static str,
        command: u8,
        mut take: impl FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        let failed = |source| KernelError::Netlink { action, source };
        let question = question(self.number, command, Vec::new());
        for answer in self.socket.list(question, Some).map_err(failed)? {
            take(&answer.attributes).map_err(|reason| {
                failed(netlink::Error::Malformed {
                    family: self.family,
                    request: "a list",
                    reason: reason.to_string(),
                })
            })?;
        }
        Ok(())
    }

    /// Has something changed. False: the kernel refused with `nothing`, by which it says that it is so
    /// already.
    ///
    /// # Errors
    /// The kernel does not do it.
    pub(super) fn change(
        &mut self,
        action: &'static str,
        message: impl FnOnce(u16) -> Message,
        nothing: Errno,
    ) -> Result<bool, KernelError> {
        match self.socket.ask(message(self.number)) {
            Ok(_) => Ok(true),
            Err(error) if error.refusal() == Some(nothing) => Ok(false),
            Err(source) => Err(KernelError::Netlink { action, source }),
        }
    }
}

/// A command of a family. Both are of version 1.
pub(super) fn question(family: u16, command: u8, attributes: Vec<u8>) -> Message {
    Message { family, command, version: 1, attributes }
}
