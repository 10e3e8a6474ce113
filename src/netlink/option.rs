//! Socket options of `linux/netlink.h` that nix has no types for.
#![allow(unsafe_code)] // setsockopt(2) with a value behind a pointer; nothing else.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;

/// `NETLINK_ADD_MEMBERSHIP`: hear a multicast group.
pub const NETLINK_ADD_MEMBERSHIP: libc::c_int = 1;
/// `NETLINK_EXT_ACK`: explanations in words with refusals (4.12).
pub const NETLINK_EXT_ACK: libc::c_int = 11;
/// `NETLINK_GET_STRICT_CHK`: requests to dump are checked and honoured in full (4.20).
pub const NETLINK_GET_STRICT_CHK: libc::c_int = 12;

/// Sets an option of level `SOL_NETLINK` whose value is an `int`.
#[allow(clippy::cast_possible_truncation)] // The size of a c_int is 4.
pub fn set(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) -> nix::Result<()> {
    // SAFETY: the pointer is to a live c_int, and the length is that of a c_int; the kernel reads
    // it and keeps no reference. The descriptor is open as long as it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}
