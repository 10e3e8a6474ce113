//! One blocking netlink socket that asks and is answered.

use std::io::IoSliceMut;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::reply::Reply;
use super::{Error, Family, option};

/// Longest datagram that the kernel makes for a dump (`netlink_dump` in `af_netlink.c` goes by the
/// longest read that it has seen, up to this).
const BUFFER: usize = 32 * 1024;
/// How long the kernel may be silent. It answers a question while that is sent, so that this is only
/// ever used up when the kernel is in trouble.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a whole answer may take: far beyond the slowest machine, and an end all the same.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a dump is begun again because the list changed meanwhile.
const TRIES: u32 = 10;
/// Most answers that are kept of one dump: beyond the interfaces and addresses of any node, and
/// few enough that a pod which fills its namespace does no harm.
const LIMIT: usize = 65_536;

/// A blocking netlink socket of family `F`, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket<F> {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
    family: PhantomData<fn() -> F>,
}

impl<F: Family> Socket<F> {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let descriptor = open(F::NAME, F::PROTOCOL, 0, SockFlag::empty())?;
        let failed = |step| move |source| Error::Open { family: F::NAME, step, source };
        let timeout = TimeVal::milliseconds(i64::try_from(SILENCE.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&descriptor, sockopt::ReceiveTimeout, &timeout)
            .map_err(failed("set a receive timeout on"))?;
        // Both only make answers better; a kernel too old for them answers all the same.
        let _ = option::set(&descriptor, option::NETLINK_EXT_ACK, 1);
        if F::STRICT {
            let _ = option::set(&descriptor, option::NETLINK_GET_STRICT_CHK, 1);
        }
        Ok(Self {
            descriptor,
            sequence: 0,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            family: PhantomData,
        })
    }

    /// Asks for one thing: the answers up to the kernel's acknowledgement, mostly one or none.
    pub fn ask(&mut self, request: F::Request) -> Result<Vec<F::Answer>, Error> {
        let name = F::name(request.message_type());
        let bytes = self.envelope(request, NLM_F_REQUEST | NLM_F_ACK);
        let reply = self.exchange(name, &bytes, &mut Some)?;
        Ok(reply.kept)
    }

    /// Asks for a change, with these flags (`NLM_F_REQUEST | NLM_F_ACK` and what else is meant).
    pub fn order(&mut self, request: F::Request, flags: u16) -> Result<(), Error> {
        let name = F::name(request.message_type());
        let bytes = self.envelope(request, flags);
        self.exchange(name, &bytes, &mut |_| None::<()>).map(drop)
    }

    /// Asks for a list, of which `keep` picks what is wanted. Begins again when the list changed
    /// while it was made.
    pub fn list<T>(
        &mut self,
        request: F::Request,
        mut keep: impl FnMut(F::Answer) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let name = F::name(request.message_type());
        let mut bytes = self.envelope(request, NLM_F_REQUEST | NLM_F_DUMP);
        for _ in 0..TRIES {
            let reply = self.exchange(name, &bytes, &mut keep)?;
            if !reply.interrupted {
                return Ok(reply.kept);
            }
            let sequence = self.next_sequence();
            bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        }
        Err(Error::Interrupted { family: F::NAME, request: name, tries: TRIES })
    }

    fn next_sequence(&mut self) -> u32 {
        // 0 is the number of notifications.
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        self.sequence
    }

    fn envelope(&mut self, request: F::Request, flags: u16) -> Vec<u8> {
        let mut message = NetlinkMessage::new(
            netlink_packet_core::NetlinkHeader::default(),
            NetlinkPayload::InnerMessage(request),
        );
        message.header.flags = flags;
        message.header.sequence_number = self.next_sequence();
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn exchange<T>(
        &mut self,
        name: &'static str,
        request: &[u8],
        keep: &mut impl FnMut(F::Answer) -> Option<T>,
    ) -> Result<Reply<T>, Error> {
        let sent = send(self.descriptor.as_raw_fd(), request, MsgFlags::empty());
        sent.map_err(|source| Error::Send { family: F::NAME, request: name, source })?;
        let mut reply = Reply::new(name, self.sequence, LIMIT);
        let began = Instant::now();
        let silent = |began: Instant| Error::Silent {
            family: F::NAME,
            request: name,
            milliseconds: began.elapsed().as_millis(),
        };
        loop {
            if began.elapsed() > PATIENCE {
                return Err(silent(began));
            }
            let length = match receive(&self.descriptor, &mut self.buffer, MsgFlags::empty()) {
                Ok(Received::Whole(length)) => length,
                Ok(Received::Foreign) => continue,
                Ok(Received::Cut) => {
                    return Err(Error::Truncated { family: F::NAME, request: name, limit: BUFFER });
                }
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(silent(began)),
                Err(source) => {
                    return Err(Error::Receive { family: F::NAME, request: name, source });
                }
            };
            if reply.take::<F>(&self.buffer[..length], &mut *keep)? {
                return Ok(reply);
            }
        }
    }
}

/// A datagram was read.
pub(super) enum Received {
    /// All of it, this long.
    Whole(usize),
    /// It did not fit, and its rest is lost.
    Cut,
    /// It is not from the kernel.
    Foreign,
}

/// Reads one datagram.
pub(super) fn receive(
    descriptor: &OwnedFd,
    buffer: &mut [u8],
    flags: MsgFlags,
) -> nix::Result<Received> {
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<NetlinkAddr>(descriptor.as_raw_fd(), &mut slices, None, flags)?;
    if message.address.is_none_or(|sender| sender.pid() != 0) {
        return Ok(Received::Foreign);
    }
    if message.flags.contains(MsgFlags::MSG_TRUNC) {
        return Ok(Received::Cut);
    }
    Ok(Received::Whole(message.bytes))
}

/// Opens and binds a netlink socket; `groups` is the bit set of the first 32 multicast groups.
pub(super) fn open(
    family: &'static str,
    protocol: SockProtocol,
    groups: u32,
    flags: SockFlag,
) -> Result<OwnedFd, Error> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    let descriptor =
        socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).map_err(|source| {
            match source {
                Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::Absent { family },
                source => Error::Open { family, step: "open", source },
            }
        })?;
    bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(|source| Error::Open {
        family,
        step: "bind",
        source,
    })?;
    Ok(descriptor)
}
