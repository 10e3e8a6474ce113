//! The journal of adapters that are away: `RUN/rdma-ctk/links/HCA.json`, an entry each, on disk
//! before anything is done.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::daemon::folder;
use crate::netns::links::{Entry, Goal, Journal};
use crate::roots::Roots;

/// The journal of this node.
#[derive(Debug, Clone)]
pub struct Folder(folder::Folder);

impl Folder {
    /// That of these trees.
    pub fn new(roots: &Roots) -> Self {
        Self(folder::Folder::new(roots.run.join("rdma-ctk/links")))
    }

    /// All entries, and what is wrong with those that cannot be read, a sentence each.
    pub fn read_all(&self) -> (Vec<Entry>, Vec<String>) {
        self.0.read_all(|entry: &Entry| &entry.hca)
    }
}

/// An adapter that is not with the host, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Away {
    /// Its kernel name.
    pub adapter: String,
    /// Its interface at home.
    pub interface: Option<String>,
    /// Link-layer address of that.
    pub address: Option<String>,
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Whether it is there, or else on its way.
    pub inside: bool,
    /// Where it is to be.
    pub goal: Goal,
    /// Why it does not come back, if it was tried.
    pub stuck: Option<String>,
}

impl From<Entry> for Away {
    fn from(entry: Entry) -> Self {
        let inside = entry.is_inside();
        let Entry { hca, pod, goal, stuck, netdev, .. } = entry;
        let mac = |bytes: &[u8]| {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
        };
        let address = netdev.as_ref().map(|saved| mac(&saved.address));
        let interface = netdev.map(|saved| saved.name);
        Self { adapter: hca, interface, address, pod, inside, goal, stuck }
    }
}

impl fmt::Display for Away {
    /// A line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.adapter)?;
        if let (Some(interface), Some(address)) = (&self.interface, &self.address) {
            write!(f, " with {interface} ({address})")?;
        }
        let pod = &self.pod;
        match (self.goal, self.inside) {
            (Goal::Inside, true) => write!(f, " is in pod {pod}"),
            (Goal::Inside, false) => write!(f, " is on its way into pod {pod}"),
            (Goal::Home, _) => write!(f, " is on its way back from pod {pod}"),
        }?;
        self.stuck.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// Adapters that are not with the host, and what could not be read. What the journal holds of
/// another boot is not true any more.
pub fn away(roots: &Roots) -> (Vec<Away>, Vec<String>) {
    let boot = super::boot(roots);
    let (entries, problems) = Folder::new(roots).read_all();
    let entries = entries.into_iter().filter(|entry| entry.boot == boot);
    (entries.map(Away::from).collect(), problems)
}

impl Journal for Folder {
    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        self.0.write(&entry.hca, entry)
    }

    fn remove(&mut self, hca: &str) -> io::Result<()> {
        self.0.remove(hca)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::netns::links::simulated::World;

    #[test]
    fn what_was_written_is_read_and_what_was_removed_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Folder::new(&Roots::below(folder.path()));
        assert_eq!(journal.read_all(), (Vec::new(), Vec::new()));
        journal.remove("mlx5_0").unwrap();
        let world = World::new(2);
        for hca in ["mlx5_0", "mlx5_1", "mlx5_0"] {
            journal.write(&world.entry(hca, 3)).unwrap();
        }
        let (entries, problems) = journal.read_all();
        assert_eq!(entries, [world.entry("mlx5_0", 3), world.entry("mlx5_1", 3)]);
        assert!(problems.is_empty());
        journal.remove("mlx5_0").unwrap();
        assert_eq!(journal.read_all().0.len(), 1);

        let path = folder.path().join("run/rdma-ctk/links");
        fs::write(path.join("cut.json"), "{").unwrap();
        fs::copy(path.join("mlx5_1.json"), path.join("other.json")).unwrap();
        fs::write(path.join("mlx5_9.new"), "half").unwrap();
        let (entries, problems) = journal.read_all();
        assert_eq!((entries.len(), problems.len()), (1, 2), "{problems:?}");
        let roots = Roots::below(folder.path());
        assert_eq!(away(&roots).0, [], "it is of another boot");
        fs::create_dir_all(roots.proc.join("sys/kernel/random")).unwrap();
        fs::write(roots.proc.join("sys/kernel/random/boot_id"), "boot-0\n").unwrap();
        let mut stuck = world.entry("mlx5_1", 3);
        stuck.call_home();
        stuck.stuck = Some("mlx5_1: it sleeps".into());
        journal.write(&stuck).unwrap();
        assert_eq!(
            away(&roots).0[0].to_string(),
            "mlx5_1 with eth1 (02:00:00:00:00:01) is on its way back from pod ml/pod-3: mlx5_1: it \
             sleeps"
        );
        let mut escape = world.entry("mlx5_0", 3);
        escape.hca = "../mlx5_0".into();
        assert!(journal.write(&escape).is_err());
    }
}
