//! All sub-interfaces of a node's pods, and what becomes of them: one hand that makes and ends them,
//! a pod at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{Child, Entry, Ground, Inside, Journal, State, Unmade};
use crate::inventory::Prefix;
use crate::netns::addresses::{self, Lease, Prober, Wish};
use crate::netns::links::Place;
use crate::policy::Pools;

/// How often a name is looked for that nobody takes meanwhile.
const NAMES: usize = 8;

/// Who gives addresses. The node's own is [`super::node::Node`].
pub trait Leasing: Send {
    /// Addresses for these wishes that nobody answers for, an answer for each in their order; the
    /// same again where they were given before. Where one gets none, those of others stand all the
    /// same.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    fn take(
        &mut self,
        wishes: &[(Wish, Pools)],
        prober: &mut dyn Prober,
    ) -> Vec<Result<Lease, String>>;

    /// Takes back what a sandbox was given.
    ///
    /// # Errors
    /// That cannot be written down, likewise.
    fn release(&mut self, sandbox: &str) -> Result<(), String>;

    /// Takes back what was given to other sandboxes than these.
    ///
    /// # Errors
    /// That cannot be written down, likewise.
    fn retain(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<(), String>;
}

/// A sub-interface to make, with the address that it is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What it is to be; its name is chosen.
    pub child: Child,
    /// What it needs an address for.
    pub wish: Wish,
    /// Where that may come from.
    pub pools: Pools,
}

/// The sub-interfaces of all pods.
pub struct Book {
    entries: BTreeMap<String, Entry>,
    ground: Box<dyn Ground>,
    journal: Box<dyn Journal>,
    leases: Box<dyn Leasing>,
}

impl std::fmt::Debug for Book {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Book").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// What has become of a pod's sub-interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// They are gone, and their addresses free.
    Gone {
        /// The pod that had them.
        pod: String,
        /// Their adapters.
        hcas: Vec<String>,
    },
    /// They do not go, for another reason than before.
    Stuck {
        /// The pod that had them.
        pod: String,
        /// Why, as a sentence without its end.
        reason: String,
    },
}

impl Book {
    /// Takes over what the journal holds, and what cannot be: a sentence each. What was made in
    /// another boot is gone, and what was not made to the end goes.
    pub fn new(
        boot: &str,
        found: Vec<Entry>,
        ground: Box<dyn Ground>,
        mut journal: Box<dyn Journal>,
        mut leases: Box<dyn Leasing>,
    ) -> (Self, Vec<String>) {
        let mut entries = BTreeMap::new();
        let mut problems = Vec::new();
        for mut entry in found {
            if entry.boot != boot {
                if let Err(error) = journal.remove(&entry.sandbox) {
                    problems.push(format!("entry of pod {}, of another boot: {error}", entry.pod));
                }
                continue;
            }
            if entry.state != State::Made {
                entry.state = State::Going;
            }
            entries.insert(entry.sandbox.clone(), entry);
        }
        if let Err(why) = leases.retain(&|sandbox| entries.contains_key(sandbox)) {
            problems.push(why);
        }
        (Self { entries, ground, journal, leases }, problems)
    }

    /// The namespace at a path that a runtime gave; `None`: it is the host's own.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    pub fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        self.ground.place(path)
    }

    /// All sub-interfaces, each with its pod.
    pub fn all(&self) -> impl Iterator<Item = (&Child, &str)> {
        self.entries
            .values()
            .flat_map(|entry| entry.children.iter().map(|child| (child, entry.pod.as_str())))
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Those of a sandbox.
    pub fn of(&self, sandbox: &str) -> Option<&Entry> {
        self.entries.get(sandbox)
    }

    /// How many there are, and how many of them do not go.
    pub fn counts(&self) -> (usize, usize) {
        let stuck = self.entries.values().filter(|entry| entry.stuck.is_some());
        (self.all().count(), stuck.map(|entry| entry.children.len()).sum())
    }

    /// Whether nothing is left to do before something happens.
    pub fn is_quiet(&self) -> bool {
        self.entries.values().all(|entry| entry.state == State::Made)
    }

    /// Makes a pod's sub-interfaces, all or none.
    ///
    /// # Errors
    /// Why not, as a sentence without its end; what had been made goes.
    pub fn attach(&mut self, mut entry: Entry, orders: Vec<Order>) -> Result<(), String> {
        if let Some(before) = self.entries.get(&entry.sandbox) {
            let why = before.stuck.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(format!("what was made for the pod before goes first{why}"));
        }
        entry.state = State::Making;
        let sandbox = entry.sandbox.clone();
        let done = self.make(&mut entry, orders);
        self.entries.insert(sandbox.clone(), entry);
        if done.is_err() {
            self.end(&sandbox);
            self.tend();
        }
        done
    }

    fn make(&mut self, entry: &mut Entry, orders: Vec<Order>) -> Result<(), String> {
        let unwritten = |error| format!("the journal cannot be written: {error}");
        // Before anything is taken or made: whoever comes after a crash has to know whose it is.
        self.journal.write(entry).map_err(unwritten)?;
        let (children, wishes): (Vec<Child>, Vec<(Wish, Pools)>) =
            orders.into_iter().map(|order| (order.child, (order.wish, order.pools))).unzip();
        let inside = self.ground.enter(&entry.namespace)?;
        let mut inside = inside.ok_or("the pod's network namespace is gone")?;
        let mut taken = inside.names()?;
        for child in children {
            let place = entry.children.len();
            entry.children.push(child);
            let mut tries = 0..NAMES;
            loop {
                let child = &mut entry.children[place];
                child.interface = free_name(&taken);
                taken.insert(child.interface.clone());
                // Before it is there, likewise.
                self.journal.write(entry).map_err(unwritten)?;
                let child = &mut entry.children[place];
                match inside.create(child) {
                    Ok(()) => break,
                    Err(Unmade::Taken) if tries.next().is_some() => {}
                    Err(Unmade::Taken) => {
                        return Err(format!("{}: its names are taken at once", child.hca));
                    }
                    Err(Unmade::Refused(why)) => return Err(format!("{}: {why}", child.hca)),
                }
            }
        }
        // They are asked for from inside, where those on the same adapter hear it too.
        let leases: Result<Vec<Lease>, String> = {
            let mut prober = inside.prober(&entry.children);
            self.leases.take(&wishes, &mut *prober).into_iter().collect()
        };
        let leases = leases?;
        for (child, lease) in entry.children.iter_mut().zip(&leases) {
            child.addresses.clone_from(&lease.addresses);
        }
        self.journal.write(entry).map_err(unwritten)?;
        for child in &entry.children {
            for address in &child.addresses {
                give(&mut *inside, child, *address)?;
            }
        }
        let children: Vec<addresses::Child> = entry
            .children
            .iter()
            .zip(leases)
            .map(|(child, lease)| addresses::Child {
                interface: child.interface.clone(),
                index: child.index.unwrap_or_default(),
                lease: Lease { interface: Some(child.interface.clone()), ..lease },
                mtu: child.mtu,
            })
            .collect();
        for setting in addresses::plan(&children) {
            inside.set(&setting)?;
        }
        entry.state = State::Made;
        self.journal.write(entry).map_err(unwritten)
    }

    /// The sub-interfaces of a sandbox are to go.
    pub fn end(&mut self, sandbox: &str) {
        if let Some(entry) = self.entries.get_mut(sandbox) {
            entry.state = State::Going;
        }
    }

    /// Those of all sandboxes but these are to go.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        for entry in self.entries.values_mut().filter(|entry| !wanted(&entry.sandbox)) {
            entry.state = State::Going;
        }
    }

    /// Ends what is to go; what does not is tried again the next time.
    pub fn tend(&mut self) -> Vec<Event> {
        let going = self.entries.values().filter(|entry| entry.state == State::Going);
        let going: Vec<String> = going.map(|entry| entry.sandbox.clone()).collect();
        going.into_iter().filter_map(|sandbox| self.unmake(&sandbox)).collect()
    }

    fn unmake(&mut self, sandbox: &str) -> Option<Event> {
        let entry = self.entries.get(sandbox)?;
        let pod = entry.pod.clone();
        let hcas = entry.children.iter().map(|child| child.hca.clone()).collect();
        match self.remove(sandbox) {
            Ok(()) => {
                self.entries.remove(sandbox);
                Some(Event::Gone { pod, hcas })
            }
            Err(reason) => {
                let entry = self.entries.get_mut(sandbox)?;
                let new = entry.stuck.as_ref() != Some(&reason);
                entry.stuck = Some(reason.clone());
                // So that it is told who looks at the journal; what matters is there already.
                if new && self.journal.write(entry).is_err() {
                    return Some(Event::Stuck { pod, reason });
                }
                new.then_some(Event::Stuck { pod, reason })
            }
        }
    }

    /// Ends a sandbox's sub-interfaces, and gives their addresses back after that.
    fn remove(&mut self, sandbox: &str) -> Result<(), String> {
        let Some(entry) = self.entries.get(sandbox) else { return Ok(()) };
        let told = |why| format!("{why}; {}", self.ground.holders(&entry.namespace));
        if let Some(mut inside) = self.ground.enter(&entry.namespace).map_err(told)? {
            let mut first = None;
            for child in &entry.children {
                if let Err(why) = inside.remove(child) {
                    first.get_or_insert(why);
                }
            }
            first.map_or(Ok(()), |why| Err(told(why)))?;
        }
        self.leases.release(sandbox)?;
        self.journal.remove(sandbox).map_err(|error| format!("the journal stays: {error}"))
    }
}

fn give(inside: &mut dyn Inside, child: &Child, address: Prefix) -> Result<(), String> {
    inside.give(child, address).map_err(|why| format!("{}: {why}", child.hca))
}

/// `rdma0`, `rdma1`, …: the first that is not taken.
fn free_name(taken: &BTreeSet<String>) -> String {
    let free = (0..=taken.len()).map(|n| format!("rdma{n}")).find(|name| !taken.contains(name));
    free.unwrap_or_else(|| "rdma0".to_owned())
}
