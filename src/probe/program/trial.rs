//! One device, from opening it to traffic.

use core::ffi::{CStr, c_int};
use core::fmt;

use super::abi::{Gid, PortAttributes};
use super::library::Library;
use super::system::{errno, say};
use super::{memory, traffic};

/// What is asked for.
#[derive(Debug)]
pub struct Wishes<'a> {
    /// Kernel name.
    pub device: &'a CStr,
    /// Port, from 1.
    pub port: u64,
    /// Slot of its GID table.
    pub gid: u64,
    /// Bytes of memory to register at most.
    pub memory: u64,
    /// Milliseconds for each measurement; 0 for no traffic.
    pub traffic: u64,
}

/// Why it ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A call failed with that error number.
    Errno(c_int),
    /// A request completed with that status (`enum ibv_wc_status`) and the vendor's number.
    Status(u32, u32),
    /// Nothing completed in time.
    TimedOut,
    /// What arrived is not what was sent.
    Corrupt,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "errno {errno}"),
            Self::Status(status, vendor) => write!(f, "status {status} {vendor}"),
            Self::TimedOut => f.write_str("timeout"),
            Self::Corrupt => f.write_str("corrupt"),
        }
    }
}

/// Says what comes next: the last of these tells where a provider crashed.
pub fn step(name: &str) {
    say(format_args!("step {name}"));
}

/// What a call of the library answered: null is a failure.
pub fn made<T>(pointer: *mut T) -> Result<*mut T, Fault> {
    if pointer.is_null() { Err(Fault::Errno(errno())) } else { Ok(pointer) }
}

/// What a call of the library answered: the error number, or -1 with it set.
pub fn done(answer: c_int) -> Result<(), Fault> {
    match answer {
        0 => Ok(()),
        -1 => Err(Fault::Errno(errno())),
        errno => Err(Fault::Errno(errno)),
    }
}

/// Runs it.
pub fn run(library: &Library, wishes: &Wishes<'_>) -> Result<(), Fault> {
    const ENODEV: c_int = 19;
    step("find");
    let devices = library.devices().map_err(Fault::Errno)?;
    let mut named = devices.iter().filter(|device| library.name(**device) == wishes.device);
    let device = named.next().ok_or(Fault::Errno(ENODEV))?;
    step("open");
    // SAFETY: a device of the library's list, which is never freed.
    let context = made(unsafe { (library.open_device)(*device) })?;
    step("port");
    let port = u8::try_from(wishes.port).unwrap_or(1);
    let mut attributes = PortAttributes::default();
    // SAFETY: the context is open; the structure has room for what later versions add to it.
    done(unsafe { (library.query_port)(context, port, &raw mut attributes) })?;
    let PortAttributes { state, active_mtu, lid, link_layer, .. } = attributes;
    say(format_args!("port {state} {active_mtu} {lid} {link_layer}"));
    step("pd");
    // SAFETY: the context is open.
    let pd = made(unsafe { (library.alloc_pd)(context) })?;
    step("memory");
    let registered = memory::steps(library, pd, wishes.memory).map_err(Fault::Errno)?;
    if wishes.traffic == 0 || registered == 0 {
        return Ok(());
    }
    step("gid");
    let index = u8::try_from(wishes.gid).unwrap_or(0);
    let mut gid = Gid::default();
    // SAFETY: the context is open, and a GID is what is written.
    done(unsafe { (library.query_gid)(context, port, c_int::from(index), &raw mut gid) })?;
    let place = traffic::Place { port, index, gid, lid, mtu: active_mtu, link_layer };
    traffic::run(library, context, pd, &place, registered, wishes.traffic)
}
