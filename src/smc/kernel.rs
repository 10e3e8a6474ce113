//! What the kernel's SMC says of itself and can be told: the generic netlink family
//! `SMC_GEN_NETLINK` (`include/uapi/linux/smc.h`). Everything is of the calling thread's network
//! namespace, except the EIDs and devices, which are of the machine.

use nix::errno::Errno;

use crate::netlink::attribute::{self, Attribute, Malformed, put_text};
use crate::netlink::generic::{Generic, Message};
use crate::netlink::{self, Socket};

use super::eid::Eid;

/// Name of the family.
pub const FAMILY: &str = "SMC_GEN_NETLINK";

/// Commands; those that read are only ever asked for lists.
mod command {
    pub const LINKS: u8 = 3;
    pub const DEVICES: u8 = 6;
    pub const STATS: u8 = 7;
    pub const FALLBACKS: u8 = 8;
    pub const EIDS: u8 = 9;
    pub const ADD_EID: u8 = 10;
    pub const REMOVE_EID: u8 = 11;
}

/// `SMC_NLA_EID_TABLE_ENTRY`
const EID_ENTRY: u16 = 1;

/// A conversation with the kernel about SMC failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The module is not loaded, or there is none.
    #[error("this kernel speaks no SMC at present: its module smc is not loaded")]
    Absent,
    /// The kernel did not answer, or not as asked.
    #[error("cannot {action}: {source}")]
    Netlink {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: netlink::Error,
    },
    /// There is no room for one more EID.
    #[error(
        "cannot add the user EID {eid}: there are four already, which is all that the kernel keeps"
    )]
    NoRoom {
        /// The EID.
        eid: String,
    },
}

/// A socket to the family, in the calling thread's namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket<Generic>,
    family: u16,
}

impl Kernel {
    /// Opens one.
    ///
    /// # Errors
    /// [`KernelError::Absent`] where smc is not loaded.
    pub fn open() -> Result<Self, KernelError> {
        let failed = |source| KernelError::Netlink { action: "find SMC", source };
        let mut socket = Socket::open().map_err(failed)?;
        let family = socket.family(FAMILY).map_err(failed)?.ok_or(KernelError::Absent)?;
        Ok(Self { socket, family })
    }

    /// Link groups with their links.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn groups(&mut self) -> Result<Vec<LinkGroup>, KernelError> {
        let mut groups = Vec::new();
        self.list("list link groups", command::LINKS, |bytes| gather(&mut groups, bytes))?;
        Ok(groups)
    }

    /// Adapters that SMC knows.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn devices(&mut self) -> Result<Vec<SmcDevice>, KernelError> {
        let mut devices = Vec::new();
        self.list("list the devices of SMC", command::DEVICES, |bytes| {
            devices.push(device(bytes)?);
            Ok(())
        })?;
        Ok(devices)
    }

    /// What was moved in this namespace so far.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn stats(&mut self) -> Result<Stats, KernelError> {
        let mut stats = Stats::default();
        self.list("read the statistics of SMC", command::STATS, |bytes| {
            stats = parse_stats(bytes)?;
            Ok(())
        })?;
        Ok(stats)
    }

    /// How often connections of this namespace fell back, by reason.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn fallbacks(&mut self) -> Result<Vec<Fallen>, KernelError> {
        let mut fallen = Vec::new();
        self.list("read the fallback statistics of SMC", command::FALLBACKS, |bytes| {
            fallen.extend(parse_fallen(bytes)?);
            Ok(())
        })?;
        Ok(fallen)
    }

    /// The machine's user EIDs.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn eids(&mut self) -> Result<Vec<String>, KernelError> {
        let mut eids = Vec::new();
        self.list("list user EIDs", command::EIDS, |bytes| {
            for attribute in attribute::parse(bytes) {
                let attribute = attribute?;
                if attribute.kind == EID_ENTRY {
                    eids.push(attribute.text()?.trim_end().to_owned());
                }
            }
            Ok(())
        })?;
        Ok(eids)
    }

    /// Adds a user EID. True: it was not there.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn add_eid(&mut self, eid: &Eid) -> Result<bool, KernelError> {
        match self.socket.ask(add_eid(self.family, eid)) {
            Ok(_) => Ok(true),
            Err(error) if error.refusal() == Some(Errno::EEXIST) => Ok(false),
            Err(error) if error.refusal() == Some(Errno::EOVERFLOW) => {
                Err(KernelError::NoRoom { eid: eid.to_string() })
            }
            Err(source) => Err(KernelError::Netlink { action: "add a user EID", source }),
        }
    }

    /// Removes a user EID. True: it was there.
    ///
    /// # Errors
    /// The kernel does not let it go.
    pub fn remove_eid(&mut self, eid: &Eid) -> Result<bool, KernelError> {
        match self.socket.ask(remove_eid(self.family, eid)) {
            Ok(_) => Ok(true),
            Err(error) if error.refusal() == Some(Errno::ENOENT) => Ok(false),
            Err(source) => Err(KernelError::Netlink { action: "remove a user EID", source }),
        }
    }

    fn list(
        &mut self,
        action: &'static str,
        command: u8,
        mut take: impl FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        let failed = |source| KernelError::Netlink { action, source };
        let question = question(self.family, command, Vec::new());
        let answers = self.socket.list(question, Some).map_err(failed)?;
        for answer in answers {
            take(&answer.attributes).map_err(|reason| {
                failed(netlink::Error::Malformed {
                    family: FAMILY,
                    request: "a list",
                    reason: reason.to_string(),
                })
            })?;
        }
        Ok(())
    }
}

fn question(family: u16, command: u8, attributes: Vec<u8>) -> Message {
    Message { family, command, version: 1, attributes }
}

fn with_eid(family: u16, command: u8, eid: &Eid) -> Message {
    let mut attributes = Vec::new();
    put_text(&mut attributes, EID_ENTRY, eid.padded());
    question(family, command, attributes)
}

fn add_eid(family: u16, eid: &Eid) -> Message {
    with_eid(family, command::ADD_EID, eid)
}

fn remove_eid(family: u16, eid: &Eid) -> Message {
    with_eid(family, command::REMOVE_EID, eid)
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
fn gather(groups: &mut Vec<LinkGroup>, bytes: &[u8]) -> Result<(), Malformed> {
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

fn device(bytes: &[u8]) -> Result<SmcDevice, Malformed> {
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

fn parse_stats(bytes: &[u8]) -> Result<Stats, Malformed> {
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

fn parse_fallen(bytes: &[u8]) -> Result<Option<Fallen>, Malformed> {
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
    use netlink_packet_core::NetlinkSerializable;
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::generic::{family_id, get_family};
    use crate::netlink::replay;
    use crate::smc::recorded::{recorded, sent};

    fn answers(name: &str) -> Vec<Message> {
        replay::<Generic>(&recorded(name)).unwrap()
    }

    fn written(message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn questions_are_what_the_kernel_was_asked() {
        let eid = "RDMA-CTK".parse().unwrap();
        for (name, message) in [
            ("family.SMC_GEN_NETLINK", get_family(FAMILY)),
            ("ueid.add", add_eid(35, &eid)),
            ("ueid.remove", remove_eid(35, &eid)),
            ("ueids", question(35, command::EIDS, Vec::new())),
            ("link", question(35, command::LINKS, Vec::new())),
            ("devices", question(35, command::DEVICES, Vec::new())),
            ("stats", question(35, command::STATS, Vec::new())),
            ("fallback", question(35, command::FALLBACKS, Vec::new())),
        ] {
            assert_eq!(sent(name), written(&message), "{name}");
        }
    }

    #[test]
    fn a_family_is_found_by_name() {
        assert_eq!(family_id(&answers("family.SMC_GEN_NETLINK")[0]), Ok(35));
        let gone = replay::<Generic>(&recorded("family.NO_SUCH")).unwrap_err();
        assert_eq!(gone.refusal(), Some(Errno::ENOENT));
        for (name, errno) in [
            ("ueid.unpadded", Errno::EINVAL),
            ("ueid.again", Errno::EEXIST),
            ("ueid.remove_none", Errno::ENOENT),
        ] {
            let refused = replay::<Generic>(&recorded(name)).unwrap_err();
            assert_eq!(refused.refusal(), Some(errno), "{name}");
        }
    }

    #[test]
    fn groups_come_with_their_links() {
        let mut groups = Vec::new();
        for answer in answers("link") {
            gather(&mut groups, &answer.attributes).unwrap();
        }
        let gid = "0000:0000:0000:0000:0000:ffff:7f00:0001".to_owned();
        let link = GroupLink {
            adapter: "rxelo".into(),
            port: 1,
            gid: gid.clone(),
            peer_gid: gid,
            connections: 1,
        };
        let group = |id| LinkGroup {
            id,
            pnet: "RCTKLO".into(),
            connections: 1,
            namespace: 1,
            eid: "RDMA-CTK".into(),
            links: vec![link.clone()],
        };
        assert_eq!(groups, [group(0x100), group(0x200)]);
    }

    #[test]
    fn devices_counters_and_eids_are_read() {
        let devices: Vec<_> =
            answers("devices").iter().map(|answer| device(&answer.attributes).unwrap()).collect();
        let port = |pnet: &str, links| SmcPort {
            pnet: pnet.into(),
            by_user: !pnet.is_empty(),
            active: true,
            links,
        };
        assert_eq!(
            devices,
            [
                SmcDevice { name: "rxe0".into(), ports: vec![port("", 0)] },
                SmcDevice { name: "rxelo".into(), ports: vec![port("RCTKLO", 2)] },
            ]
        );
        let stats = parse_stats(&answers("stats")[0].attributes).unwrap();
        assert_eq!(stats, Stats { received: 100_000, sent: 100_000, connections: 2, failed: 0 });
        let fallen: Vec<_> = answers("fallback")
            .iter()
            .filter_map(|answer| parse_fallen(&answer.attributes).unwrap())
            .collect();
        let once = |server| Fallen { server, code: 0x0301_0000, count: 1 };
        assert_eq!(fallen, [once(true), once(false)]);
        assert_eq!(answers("ueids").len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut groups = Vec::new();
            let _ = (gather(&mut groups, &bytes), device(&bytes), parse_stats(&bytes));
            let _ = parse_fallen(&bytes);
        }
    }
}
