//! `NETLINK_KOBJECT_UEVENT`: the kernel's announcements of devices (`lib/kobject_uevent.c`).
//!
//! A message is no netlink message: `ACTION@DEVPATH`, then `KEY=VALUE` pairs, each ended by a NUL.

/// Multicast group of the kernel's own messages; group 2 is udev's copy.
pub const GROUP_KERNEL: u32 = 1;

/// What happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It came.
    Add,
    /// It went.
    Remove,
    /// It has a new name or place.
    Move,
    /// Something about it is different.
    Change,
    /// A driver took it.
    Bind,
    /// Its driver let it go.
    Unbind,
    /// Anything else, such as `online`.
    Other,
}

/// Which class or bus a device is of, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subsystem {
    /// `infiniband`: RDMA devices.
    Infiniband,
    /// `infiniband_verbs`: `uverbsN`.
    Verbs,
    /// `infiniband_mad`: `umadN` and `issmN`.
    Mad,
    /// `misc`, the device `rdma_cm` only.
    RdmaCm,
    /// `net`: interfaces.
    Net,
    /// `pci`: functions, and the drivers bound to them.
    Pci,
    /// `auxiliary`: scalable functions among others.
    Auxiliary,
}

/// One announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uevent<'a> {
    /// What happened.
    pub action: Action,
    /// To what kind of device.
    pub subsystem: Subsystem,
    /// Path below `/sys`.
    pub path: &'a str,
}

/// Reads an announcement; `None` if it is none, or of no subsystem that matters here.
pub fn parse(message: &[u8]) -> Option<Uevent<'_>> {
    let text = std::str::from_utf8(message).ok()?;
    let mut parts = text.split_terminator('\0');
    let (action, path) = parts.next()?.split_once('@')?;
    let action = match action {
        "add" => Action::Add,
        "remove" => Action::Remove,
        "move" => Action::Move,
        "change" => Action::Change,
        "bind" => Action::Bind,
        "unbind" => Action::Unbind,
        _ => Action::Other,
    };
    let subsystem = match parts.find_map(|part| part.strip_prefix("SUBSYSTEM="))? {
        "infiniband" => Subsystem::Infiniband,
        "infiniband_verbs" => Subsystem::Verbs,
        "infiniband_mad" => Subsystem::Mad,
        "misc" if path.ends_with("/misc/rdma_cm") => Subsystem::RdmaCm,
        "net" => Subsystem::Net,
        "pci" => Subsystem::Pci,
        "auxiliary" => Subsystem::Auxiliary,
        _ => return None,
    };
    Some(Uevent { action, subsystem, path })
}
