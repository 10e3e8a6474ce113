//! The journal of sub-interfaces: `RUN/rdma-ctk/children/SANDBOX.json`, an entry each, on disk before
//! anything is made.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::daemon::folder;
use crate::inventory::Prefix;
use crate::netns::children::{Entry, Journal, State};
use crate::roots::Roots;

/// The journal of this node.
#[derive(Debug, Clone)]
pub struct Folder(folder::Folder);

impl Folder {
    /// That of these trees.
    pub fn new(roots: &Roots) -> Self {
        Self(folder::Folder::new(roots.run.join("rdma-ctk/children")))
    }

    /// All entries, and what is wrong with those that cannot be read, a sentence each.
    pub fn read_all(&self) -> (Vec<Entry>, Vec<String>) {
        self.0.read_all(|entry: &Entry| &entry.sandbox)
    }
}

impl Journal for Folder {
    fn write(&self, entry: &Entry) -> io::Result<()> {
        self.0.write(&entry.sandbox, entry)
    }

    fn remove(&self, sandbox: &str) -> io::Result<()> {
        self.0.remove(sandbox)
    }
}

/// A sub-interface, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lying {
    /// The pod that has it, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Kernel name of its adapter.
    pub adapter: String,
    /// Its name in the pod.
    pub interface: String,
    /// `ipvlan` or `macvlan`.
    pub kind: &'static str,
    /// The host's interface on which it lies.
    pub parent: String,
    /// Its link-layer address.
    pub mac: String,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
    /// How far it is.
    pub state: State,
    /// Why it does not go, if it was tried.
    pub stuck: Option<String>,
}

impl fmt::Display for Lying {
    /// A line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, adapter, interface, kind, parent, mac, .. } = self;
        write!(f, "{adapter}: {interface} ({kind} on {parent}")?;
        if !mac.is_empty() {
            write!(f, ", {mac}")?;
        }
        f.write_str(")")?;
        for address in &self.addresses {
            write!(f, " {address}")?;
        }
        match self.state {
            State::Making => write!(f, " is being made in pod {pod}"),
            State::Made => write!(f, " in pod {pod}"),
            State::Going => write!(f, " of pod {pod} goes"),
        }?;
        self.stuck.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// The sub-interfaces of pods, and what could not be read. What the journal holds of another boot is
/// not true any more.
pub fn lying(roots: &Roots) -> (Vec<Lying>, Vec<String>) {
    let boot = crate::daemon::links::boot(roots);
    let (entries, problems) = Folder::new(roots).read_all();
    let mut all = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.boot == boot) {
        all.extend(entry.children.into_iter().map(|child| Lying {
            pod: entry.pod.clone(),
            adapter: child.hca,
            interface: child.interface,
            kind: child.kind.word(),
            parent: child.parent,
            mac: child.mac,
            mtu: child.mtu,
            addresses: child.addresses,
            state: entry.state,
            stuck: entry.stuck.clone(),
        }));
    }
    (all, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::children::simulated::entry;
    use crate::roots::Roots;

    #[test]
    fn what_was_written_is_shown_and_what_is_of_another_boot_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let journal = Folder::new(&roots);
        assert_eq!(lying(&roots), (Vec::new(), Vec::new()));
        let mut entry = entry("one");
        entry.children[0].addresses = vec!["10.1.0.64/24".parse().unwrap()];
        journal.write(&entry).unwrap();
        assert_eq!(lying(&roots).0, [], "it is of another boot");
        std::fs::create_dir_all(roots.proc.join("sys/kernel/random")).unwrap();
        std::fs::write(roots.proc.join("sys/kernel/random/boot_id"), "boot-0\n").unwrap();
        let shown = |roots: &Roots| lying(roots).0[0].to_string();
        assert_eq!(
            shown(&roots),
            "mlx5_0: rdma0 (ipvlan on eth0, 02:00:00:00:00:01) 10.1.0.64/24 in pod ml/one"
        );
        entry.state = State::Going;
        entry.stuck = Some("rdma0: it sleeps".into());
        journal.write(&entry).unwrap();
        assert!(shown(&roots).ends_with("of pod ml/one goes: rdma0: it sleeps"));
        entry.sandbox = "../one".into();
        assert!(journal.write(&entry).is_err());
        journal.remove("one").unwrap();
        assert_eq!(lying(&roots).0, []);
    }
}
