//! What the kernel answers about SMC, read: bytes of attributes in, values out
//! (`include/uapi/linux/smc.h`).

use crate::netlink::attribute::{self, Attribute, Malformed};

/// `SMC_NLA_EID_TABLE_ENTRY`
pub(super) const EID_ENTRY: u16 = 1;

/// Reads an entry of the table of user EIDs, and adds it.
///
/// # Errors
/// It cannot be read.
pub fn eid(eids: &mut Vec<String>, bytes: &[u8]) -> Result<(), Malformed> {
    for attribute in attribute::parse(bytes) {
        let attribute = attribute?;
        if attribute.kind == EID_ENTRY {
            eids.push(attribute.text()?.trim_end().to_owned());
        }
    }
    Ok(())
}

/// A group of links to one other machine, which connections share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkGroup {
    /// Number.
    pub id: u32,
    /// PNET id, or empty.
    pub pnet: String,
    /// Connections that use it.
    pub connections: u32,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// The user EID that the two sides agreed on; empty with version 1.
    pub eid: String,
    /// The links.
    pub links: Vec<GroupLink>,
}

/// A link of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupLink {
    /// Kernel name of the adapter.
    pub adapter: String,
    /// Port, from 1.
    pub port: u8,
    /// Own GID.
    pub gid: String,
    /// The other side's GID.
    pub peer_gid: String,
    /// Connections on it.
    pub connections: u32,
}

/// Takes in one message of the list: a group, or a link of the group before it.
///
/// # Errors
/// It cannot be read.
pub fn gather(groups: &mut Vec<LinkGroup>, bytes: &[u8]) -> Result<(), Malformed> {
    for top in attribute::parse(bytes) {
        let top = top?;
        match top.kind {
            2 => groups.push(group(&top)?),
            3 => {
                let link = group_link(&top)?;
                if let Some(group) = groups.last_mut() {
                    group.links.push(link);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn group(nest: &Attribute<'_>) -> Result<LinkGroup, Malformed> {
    let mut group = LinkGroup::default();
    for attribute in nest.nested() {
        let attribute = attribute?;
        match attribute.kind {
            1 => group.id = attribute.small()?,
            4 => group.pnet = attribute.text()?.to_owned(),
            6 => group.connections = attribute.small()?,
            7 => {
                for common in attribute.nested() {
                    let common = common?;
                    if common.kind == 3 {
                        group.eid = common.text()?.trim_end().to_owned();
                    }
                }
            }
            9 => group.namespace = attribute.number()?,
            _ => {}
        }
    }
    Ok(group)
}

fn group_link(nest: &Attribute<'_>) -> Result<GroupLink, Malformed> {
    let mut link = GroupLink::default();
    for attribute in nest.nested() {
        let attribute = attribute?;
        match attribute.kind {
            2 => link.adapter = attribute.text()?.to_owned(),
            3 => link.port = attribute.small()?,
            4 => link.gid = attribute.text()?.to_owned(),
            5 => link.peer_gid = attribute.text()?.to_owned(),
            6 => link.connections = attribute.small()?,
            _ => {}
        }
    }
    Ok(link)
}

/// An adapter as SMC sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmcDevice {
    /// Kernel name.
    pub name: String,
    /// Ports, in order.
    pub ports: Vec<SmcPort>,
}

/// A port of an adapter as SMC sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmcPort {
    /// PNET id, or empty.
    pub pnet: String,
    /// Somebody gave it, as against the hardware.
    pub by_user: bool,
    /// It is active.
    pub active: bool,
    /// Links on it.
    pub links: u32,
}

/// Reads an adapter.
///
/// # Errors
/// It cannot be read.
pub fn device(bytes: &[u8]) -> Result<SmcDevice, Malformed> {
    let mut device = SmcDevice::default();
    for top in attribute::parse(bytes) {
        let top = top?;
        for attribute in top.nested() {
            let attribute = attribute?;
            match attribute.kind {
                8 | 9 => device.ports.push(port(&attribute)?),
                10 => device.name = attribute.text()?.to_owned(),
                _ => {}
            }
        }
    }
    Ok(device)
}

fn port(nest: &Attribute<'_>) -> Result<SmcPort, Malformed> {
    let mut port = SmcPort::default();
    for attribute in nest.nested() {
        let attribute = attribute?;
        match attribute.kind {
            1 => port.by_user = attribute.number()? != 0,
            2 => port.pnet = attribute.text()?.to_owned(),
            4 => port.active = attribute.number()? == 1,
            6 => port.links = attribute.small()?,
            _ => {}
        }
    }
    Ok(port)
}

/// Counters of SMC-R in one namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes received over RDMA.
    pub received: u64,
    /// Bytes sent over RDMA.
    pub sent: u64,
    /// Connections made and accepted over RDMA, of both versions.
    pub connections: u64,
    /// Handshakes that failed, of both sides.
    pub failed: u64,
}

/// Reads the counters.
///
/// # Errors
/// They cannot be read.
pub fn stats(bytes: &[u8]) -> Result<Stats, Malformed> {
    let mut stats = Stats::default();
    for top in attribute::parse(bytes) {
        let top = top?;
        for attribute in top.nested() {
            let attribute = attribute?;
            match attribute.kind {
                // What SMC-R did; SMC-D's is 1.
                2 => {
                    for counter in attribute.nested() {
                        let counter = counter?;
                        match counter.kind {
                            7..=10 => {
                                let more = counter.number()?;
                                stats.connections = stats.connections.saturating_add(more);
                            }
                            16 => stats.received = counter.number()?,
                            17 => stats.sent = counter.number()?,
                            _ => {}
                        }
                    }
                }
                3 | 4 => stats.failed = stats.failed.saturating_add(attribute.number()?),
                _ => {}
            }
        }
    }
    Ok(stats)
}

/// How often connections fell back for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fallen {
    /// On the side that accepts.
    pub server: bool,
    /// The code.
    pub code: u32,
    /// How often, up to 65535.
    pub count: u64,
}

/// Reads one reason; `None`: no connection fell back for it.
///
/// # Errors
/// It cannot be read.
pub fn fallen(bytes: &[u8]) -> Result<Option<Fallen>, Malformed> {
    let (mut server, mut code, mut count) = (false, None, 0);
    for top in attribute::parse(bytes) {
        let top = top?;
        for attribute in top.nested() {
            let attribute = attribute?;
            match attribute.kind {
                1 => server = attribute.number()? == 1,
                4 => code = Some(attribute.small::<u32>()?),
                5 => count = attribute.number()?,
                _ => {}
            }
        }
    }
    Ok(code.filter(|_| count > 0).map(|code| Fallen { server, code, count }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (mut groups, mut eids) = (Vec::new(), Vec::new());
            let _ = (gather(&mut groups, &bytes), eid(&mut eids, &bytes));
            let _ = (device(&bytes), stats(&bytes), fallen(&bytes));
        }
    }
}
