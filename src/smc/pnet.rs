//! The table that names an adapter for an interface: generic netlink family `SMC_PNETID`
//! (`net/smc/smc_pnet.c`).
//!
//! Interfaces are entered in the network namespace of the calling thread, adapters only in the
//! host's. Entries of ours are known by the beginning of their name, and only those are ever
//! removed: the kernel removes by name.

use nix::errno::Errno;

use crate::grant::PNET_OURS;
use crate::netlink::attribute::{self, Malformed, put, put_text};
use crate::netlink::generic::Message;

use super::conversation::{Conversation, question};
use super::kernel::KernelError;

/// Name of the family.
pub const FAMILY: &str = "SMC_PNETID";

const GET: u8 = 1;
const ADD: u8 = 2;
const DELETE: u8 = 3;

const NAME: u16 = 1;
const INTERFACE: u16 = 2;
const ADAPTER: u16 = 3;
const PORT: u16 = 4;

/// What the kernel tells where an entry is of the other kind.
const NONE: &str = "n/a";

/// An entry of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The PNET id.
    pub name: String,
    /// What it is given to.
    pub to: Member,
}

/// What a PNET id is given to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// An interface of this namespace, by name.
    Interface(String),
    /// A port of an adapter.
    Adapter {
        /// Kernel name.
        name: String,
        /// Port, from 1.
        port: u8,
    },
}

/// A socket to the family, in the calling thread's namespace.
#[derive(Debug)]
pub struct PnetTable(Conversation);

impl PnetTable {
    /// Opens one.
    ///
    /// # Errors
    /// [`KernelError::Absent`] where smc is not loaded.
    pub fn open() -> Result<Self, KernelError> {
        Conversation::open(FAMILY, "find the PNET table").map(Self)
    }

    /// What is in it: interfaces of this namespace and, in the host's, adapters.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn entries(&mut self) -> Result<Vec<Entry>, KernelError> {
        let mut entries = Vec::new();
        self.0.list("list the PNET table", GET, |bytes| {
            entries.push(Entry::parse(bytes)?);
            Ok(())
        })?;
        Ok(entries)
    }

    /// Adds an entry. False: what it is given to has one already, or has one by hardware.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn add(&mut self, entry: &Entry) -> Result<bool, KernelError> {
        self.0.change("add to the PNET table", |family| add(family, entry), Errno::EEXIST)
    }

    /// Removes all entries by one of our names. Another's are never touched: false.
    ///
    /// # Errors
    /// The kernel does not let them go.
    pub fn remove(&mut self, name: &str) -> Result<bool, KernelError> {
        if !name.starts_with(PNET_OURS) {
            return Ok(false);
        }
        self.0.change("remove from the PNET table", |family| delete(family, name), Errno::ENOENT)
    }
}

fn add(family: u16, entry: &Entry) -> Message {
    let mut attributes = Vec::new();
    put_text(&mut attributes, NAME, &entry.name);
    match &entry.to {
        Member::Interface(name) => put_text(&mut attributes, INTERFACE, name),
        Member::Adapter { name, port } => {
            put_text(&mut attributes, ADAPTER, name);
            put(&mut attributes, PORT, &[*port]);
        }
    }
    question(family, ADD, attributes)
}

fn delete(family: u16, name: &str) -> Message {
    let mut attributes = Vec::new();
    put_text(&mut attributes, NAME, name);
    question(family, DELETE, attributes)
}

impl Entry {
    /// Reads one.
    ///
    /// # Errors
    /// It cannot be read, or names nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (mut name, mut interface, mut adapter, mut port) = (None, None, None, 1);
        for attribute in attribute::parse(bytes) {
            let attribute = attribute?;
            match attribute.kind {
                NAME => name = Some(attribute.text()?.to_owned()),
                INTERFACE => interface = Some(attribute.text()?).filter(|text| *text != NONE),
                ADAPTER => adapter = Some(attribute.text()?).filter(|text| *text != NONE),
                PORT => port = attribute.small()?,
                _ => {}
            }
        }
        let name = name.ok_or(Malformed::Missing("SMC_PNETID_NAME"))?;
        let to = match (interface, adapter) {
            (_, Some(adapter)) => Member::Adapter { name: adapter.to_owned(), port },
            (Some(interface), None) => Member::Interface(interface.to_owned()),
            (None, None) => return Err(Malformed::Missing("SMC_PNETID_ETHNAME")),
        };
        Ok(Self { name, to })
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkSerializable;
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::generic::Generic;
    use crate::netlink::replay;
    use crate::smc::recorded::{recorded, sent};

    fn interface(name: &str, to: &str) -> Entry {
        Entry { name: name.into(), to: Member::Interface(to.into()) }
    }

    fn adapter(name: &str, to: &str, port: u8) -> Entry {
        Entry { name: name.into(), to: Member::Adapter { name: to.into(), port } }
    }

    fn written(message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn questions_are_what_the_kernel_was_asked() {
        assert_eq!(sent("pnet.again"), written(&add(36, &interface("RCTKLO", "lo"))));
        assert_eq!(sent("pnet.del"), written(&delete(36, "RCTKETH")));
        assert_eq!(sent("pnet"), written(&question(36, GET, Vec::new())));
        // The recording gave one name to both at once; the parts of one for the adapter are these.
        let both = sent("pnet.add");
        let one = written(&add(36, &adapter("RCTKLO", "rxelo", 1)));
        let attributes: Vec<_> = attribute::parse(&both[4..]).map(Result::unwrap).collect();
        for attribute in attribute::parse(&one[4..]) {
            assert!(attributes.contains(&attribute.unwrap()));
        }
    }

    #[test]
    fn the_table_is_read() {
        let read: Vec<_> = replay::<Generic>(&recorded("pnet"))
            .unwrap()
            .iter()
            .map(|answer| Entry::parse(&answer.attributes).unwrap())
            .collect();
        assert_eq!(
            read,
            [
                interface("RCTKLO", "lo"),
                adapter("RCTKLO", "rxelo", 1),
                interface("RCTKETH", "eth7"),
            ]
        );
        let again = replay::<Generic>(&recorded("pnet.again")).unwrap_err();
        assert_eq!(again.refusal(), Some(Errno::EEXIST));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Entry::parse(&bytes);
        }
    }
}
