//! Interfaces that pods have on those of the host's adapters, so that their addresses are GIDs of
//! the adapter: from their making to their end.
//!
//! A sub-interface dies with its namespace, so nothing ever has to come back. What has to be kept
//! is who has which address: an [`Entry`] is on disk before anything is made, and is removed, with
//! the addresses given back, only when the sub-interfaces are known to be gone.

pub mod book;
pub mod linux;
pub mod making;
pub mod node;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::addresses::{Prober, Setting};
use super::links::Place;
use crate::inventory::Prefix;
pub use crate::netlink::child::Kind;

/// The sub-interfaces of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The boot (`/proc/sys/kernel/random/boot_id`) in which this is true.
    pub boot: String,
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Its sandbox.
    pub sandbox: String,
    /// Its network namespace.
    pub namespace: Place,
    /// All there is to make, or that is made.
    pub children: Vec<Child>,
    /// What they are on the way to.
    pub state: State,
    /// Why they do not go, if it was tried.
    #[serde(default)]
    pub stuck: Option<String>,
}

/// How far the sub-interfaces of a pod are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// They are being made.
    Making,
    /// They are there with all that belongs to them.
    Made,
    /// They are to go.
    Going,
}

/// One sub-interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// Kernel name of the adapter.
    pub hca: String,
    /// How it shares the adapter's interface.
    #[serde(with = "kind")]
    pub kind: Kind,
    /// That interface, on the host.
    pub parent: String,
    /// `ifindex` of that.
    pub parent_index: u32,
    /// Its name in the pod, as it is made.
    pub interface: String,
    /// Its `ifindex` in the pod; `None`: it is not known to be there.
    #[serde(default)]
    pub index: Option<u32>,
    /// Its link-layer address, with colons.
    #[serde(default)]
    pub mac: String,
    /// Longest packet, in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<Prefix>,
}

/// A sub-interface was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmade {
    /// Its name is taken.
    Taken,
    /// Another reason, as a sentence without its end.
    Refused(String),
}

/// What namespaces are to those who make sub-interfaces. The kernel's own is [`linux::Linux`].
pub trait Ground: std::fmt::Debug + Send + Sync {
    /// The namespace at a path that a runtime gave; `None`: it is the host's own.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    fn place(&self, path: &Path) -> Result<Option<Place>, String>;

    /// Goes into a pod's namespace; `None`: it is gone, with all that was in it.
    ///
    /// # Errors
    /// There is no way in, likewise.
    fn enter(&self, place: &Place) -> Result<Option<Box<dyn Inside>>, String>;

    /// Who holds a namespace, as part of a sentence.
    fn holders(&self, place: &Place) -> String;
}

/// A pod's namespace, from inside.
pub trait Inside {
    /// Names that are taken.
    ///
    /// # Errors
    /// They cannot be read, as a sentence without its end.
    fn names(&mut self) -> Result<BTreeSet<String>, String>;

    /// Makes a sub-interface and switches it on; its `index`, `mac` and `mtu` are set.
    ///
    /// # Errors
    /// It is not made.
    fn create(&mut self, child: &mut Child) -> Result<(), Unmade>;

    /// What asks whether an address is in use where these sub-interfaces are.
    fn prober<'a>(&'a self, children: &'a [Child]) -> Box<dyn Prober + 'a>;

    /// Gives a sub-interface an address.
    ///
    /// # Errors
    /// The kernel refuses, likewise.
    fn give(&mut self, child: &Child, address: Prefix) -> Result<(), String>;

    /// Sets something.
    ///
    /// # Errors
    /// The kernel refuses, likewise.
    fn set(&mut self, setting: &Setting) -> Result<(), String>;

    /// Ends a sub-interface, by whatever name it has now; that it is not there is no error.
    ///
    /// # Errors
    /// It is still there, likewise.
    fn remove(&mut self, child: &Child) -> Result<(), String>;
}

/// Where entries are kept. What was written is there after a crash.
pub trait Journal: Send + Sync {
    /// Writes an entry in the place of the sandbox's last one.
    ///
    /// # Errors
    /// It is not on disk.
    fn write(&self, entry: &Entry) -> io::Result<()>;

    /// Removes the sandbox's entry; that there is none is no error.
    ///
    /// # Errors
    /// It is still on disk.
    fn remove(&self, sandbox: &str) -> io::Result<()>;
}

mod kind {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Kind;

    // Serde hands over a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.word())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Kind, D::Error> {
        let word = String::deserialize(from)?;
        [Kind::Ipvlan, Kind::Macvlan]
            .into_iter()
            .find(|kind| kind.word() == word)
            .ok_or_else(|| D::Error::custom(format!("{word:?} is no kind of sub-interface")))
    }
}

#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
