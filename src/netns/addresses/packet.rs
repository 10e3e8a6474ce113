//! Packet sockets (`packet(7)`), which see and send whole frames of one interface.
#![allow(clippy::cast_possible_truncation)] // Sizes of structures, some bytes each.
#![allow(unsafe_code)] // bind(2), getsockname(2) and setsockopt(2) with structures nix has none of.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

use super::frames::{IPV6, Mac};

/// `ARPHRD_ETHER`
const ETHERNET: u16 = 1;

/// What neighbours tell each other by ICMPv6, of all that arrives: on a busy adapter everything else
/// would be copied for nothing. Classic BPF: next header, then type.
const NEIGHBOURS: [libc::sock_filter; 7] = [
    // The byte of the next header, behind 14 of Ethernet.
    op(0x30, 0, 0, 20),
    // ICMPv6, else ignore.
    op(0x15, 0, 4, 58),
    // The type: 135 or 136.
    op(0x30, 0, 0, 54),
    op(0x15, 1, 0, 135),
    op(0x15, 0, 1, 136),
    op(0x06, 0, 0, 256),
    op(0x06, 0, 0, 0),
];

const fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A packet socket of one interface of the namespace that it was opened in, for one protocol.
#[derive(Debug)]
pub(super) struct Packet {
    file: OwnedFd,
    index: libc::c_int,
    mac: Mac,
}

impl Packet {
    /// Opens one; `protocol` is an Ethernet type. Needs `CAP_NET_RAW`.
    pub fn open(index: u32, protocol: u16) -> nix::Result<Self> {
        let index = libc::c_int::try_from(index).map_err(|_| Errno::EINVAL)?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // No protocol yet: nothing arrives before the filter is in its place.
        // SAFETY: no pointers; the descriptor, where there is one, is ours alone.
        let file = unsafe {
            let number = Errno::result(libc::socket(libc::AF_PACKET, kind, 0))?;
            OwnedFd::from_raw_fd(number)
        };
        let mut packet = Self { file, index, mac: [0; 6] };
        if protocol == IPV6 {
            packet.filter()?;
        }
        packet.bind(protocol)?;
        packet.mac = packet.address()?;
        Ok(packet)
    }

    /// Link-layer address of the interface.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Hears what is sent to that group as well.
    pub fn join(&self, group: Mac) -> nix::Result<()> {
        let mut address = [0; 8];
        address[..6].copy_from_slice(&group);
        let request = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: u16::try_from(libc::PACKET_MR_MULTICAST).unwrap_or_default(),
            mr_alen: 6,
            mr_address: address,
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> nix::Result<()> {
        nix::sys::socket::send(self.file.as_raw_fd(), frame, nix::sys::socket::MsgFlags::empty())
            .map(drop)
    }

    /// A frame that has arrived, at most as long as the buffer; `None`: no more.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> nix::Result<Option<&'a [u8]>> {
        match nix::unistd::read(&self.file, buffer) {
            Ok(length) => Ok(buffer.get(..length)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn bind(&self, protocol: u16) -> nix::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
            sll_protocol: protocol.to_be(),
            sll_ifindex: self.index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the pointer is to a live sockaddr_ll, and the length is that of one; the kernel
        // reads it and keeps no reference. The descriptor is open as long as it is borrowed.
        let result = unsafe {
            libc::bind(
                self.file.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        Errno::result(result).map(drop)
    }

    /// The kernel tells the interface's own address with the socket's (`packet_getname`).
    fn address(&self) -> nix::Result<Mac> {
        let mut address = libc::sockaddr_ll {
            sll_family: 0,
            sll_protocol: 0,
            sll_ifindex: 0,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: both pointers are to live values of the types that the call wants; the kernel
        // writes at most `length` bytes into the first.
        let result = unsafe {
            libc::getsockname(self.file.as_raw_fd(), (&raw mut address).cast(), &raw mut length)
        };
        Errno::result(result)?;
        if address.sll_hatype != ETHERNET || address.sll_halen != 6 {
            return Err(Errno::EAFNOSUPPORT);
        }
        let [a, b, c, d, e, f, ..] = address.sll_addr;
        Ok([a, b, c, d, e, f])
    }

    fn filter(&self) -> nix::Result<()> {
        let mut program = NEIGHBOURS;
        let request = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap_or_default(),
            filter: program.as_mut_ptr(),
        };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &request)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> nix::Result<()> {
        // SAFETY: the pointer is to a live T, and the length is that of a T; the kernel copies it
        // (and, of a filter, the program that it points to, which lives as long) and keeps no
        // reference.
        let result = unsafe {
            libc::setsockopt(
                self.file.as_raw_fd(),
                level,
                option,
                (&raw const *value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        Errno::result(result).map(drop)
    }
}

impl AsFd for Packet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
