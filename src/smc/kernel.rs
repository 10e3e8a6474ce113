//! What the kernel's SMC says of itself and can be told: the generic netlink family
//! `SMC_GEN_NETLINK` (`include/uapi/linux/smc.h`). Everything is of the calling thread's network
//! namespace, except the EIDs and devices, which are of the machine.

use nix::errno::Errno;

use super::answers;
pub use super::answers::{Fallen, GroupLink, LinkGroup, SmcDevice, SmcPort, Stats};
use super::conversation::{Conversation, question};
use super::eid::Eid;
use crate::netlink;
use crate::netlink::attribute::put_text;
use crate::netlink::generic::Message;

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
pub struct Kernel(Conversation);

impl Kernel {
    /// Opens one.
    ///
    /// # Errors
    /// [`KernelError::Absent`] where smc is not loaded.
    pub fn open() -> Result<Self, KernelError> {
        Conversation::open(FAMILY, "find SMC").map(Self)
    }

    /// Link groups with their links.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn groups(&mut self) -> Result<Vec<LinkGroup>, KernelError> {
        let mut groups = Vec::new();
        let take = |bytes: &[u8]| answers::gather(&mut groups, bytes);
        self.0.list("list link groups", command::LINKS, take)?;
        Ok(groups)
    }

    /// Adapters that SMC knows.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn devices(&mut self) -> Result<Vec<SmcDevice>, KernelError> {
        let mut devices = Vec::new();
        self.0.list("list the devices of SMC", command::DEVICES, |bytes| {
            devices.push(answers::device(bytes)?);
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
        self.0.list("read the statistics of SMC", command::STATS, |bytes| {
            stats = answers::stats(bytes)?;
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
        self.0.list("read the fallback statistics of SMC", command::FALLBACKS, |bytes| {
            fallen.extend(answers::fallen(bytes)?);
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
        let take = |bytes: &[u8]| answers::eid(&mut eids, bytes);
        self.0.list("list user EIDs", command::EIDS, take)?;
        Ok(eids)
    }

    /// Adds a user EID. True: it was not there.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn add_eid(&mut self, eid: &Eid) -> Result<bool, KernelError> {
        let message = |family| with_eid(family, command::ADD_EID, eid);
        match self.0.change("add a user EID", message, Errno::EEXIST) {
            Err(KernelError::Netlink { source, .. })
                if source.refusal() == Some(Errno::EOVERFLOW) =>
            {
                Err(KernelError::NoRoom { eid: eid.to_string() })
            }
            done => done,
        }
    }

    /// Removes a user EID. True: it was there.
    ///
    /// # Errors
    /// The kernel does not let it go.
    pub fn remove_eid(&mut self, eid: &Eid) -> Result<bool, KernelError> {
        let message = |family| with_eid(family, command::REMOVE_EID, eid);
        self.0.change("remove a user EID", message, Errno::ENOENT)
    }
}

fn with_eid(family: u16, command: u8, eid: &Eid) -> Message {
    let mut attributes = Vec::new();
    put_text(&mut attributes, answers::EID_ENTRY, eid.padded());
    question(family, command, attributes)
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkSerializable;

    use super::*;
    use crate::netlink::generic::{Generic, family_id, get_family};
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
            ("ueid.add", with_eid(35, command::ADD_EID, &eid)),
            ("ueid.remove", with_eid(35, command::REMOVE_EID, &eid)),
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
            answers::gather(&mut groups, &answer.attributes).unwrap();
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
        let devices: Vec<_> = answers("devices")
            .iter()
            .map(|answer| answers::device(&answer.attributes).unwrap())
            .collect();
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
        let stats = answers::stats(&answers("stats")[0].attributes).unwrap();
        assert_eq!(stats, Stats { received: 100_000, sent: 100_000, connections: 2, failed: 0 });
        let fallen: Vec<_> = answers("fallback")
            .iter()
            .filter_map(|answer| answers::fallen(&answer.attributes).unwrap())
            .collect();
        let once = |server| Fallen { server, code: 0x0301_0000, count: 1 };
        assert_eq!(fallen, [once(true), once(false)]);
        assert_eq!(answers("ueids").len(), 1);
    }
}
