//! All sub-interfaces of a node's pods, and what becomes of them.
//!
//! They are made beside the book ([`Work`]), for several pods at once: asking for addresses takes
//! longer than all the rest. The book knows from the beginning what is being made, and leaves it alone
//! until whoever makes it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::making::Work;
use super::{Child, Entry, Ground, Journal, State};
use crate::netns::addresses::{Lease, Prober, Wish};
use crate::netns::links::Place;
use crate::policy::Pools;

/// Who gives addresses. The node's own is [`super::node::Node`].
pub trait Leasing: Send + Sync {
    /// Addresses for these wishes that nobody answers for, an answer for each in their order; the
    /// same again where they were given before. Where one gets none, those of others stand all the
    /// same.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    fn take(&self, wishes: &[(Wish, Pools)], prober: &mut dyn Prober)
    -> Vec<Result<Lease, String>>;

    /// Takes back what a sandbox was given.
    ///
    /// # Errors
    /// That cannot be written down, likewise.
    fn release(&self, sandbox: &str) -> Result<(), String>;

    /// Takes back what was given to other sandboxes than these.
    ///
    /// # Errors
    /// That cannot be written down, likewise.
    fn retain(&self, wanted: &dyn Fn(&str) -> bool) -> Result<(), String>;
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

/// What sub-interfaces are made with.
pub struct Hands {
    /// The namespaces.
    pub ground: Box<dyn Ground>,
    /// Where it is written down.
    pub journal: Box<dyn Journal>,
    /// Who gives addresses.
    pub leases: Box<dyn Leasing>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("ground", &self.ground).finish_non_exhaustive()
    }
}

/// The sub-interfaces of all pods.
pub struct Book {
    entries: BTreeMap<String, Entry>,
    /// Sandboxes whose sub-interfaces are being made beside the book.
    making: BTreeSet<String>,
    hands: Arc<Hands>,
}

/// What the journal holds.
#[derive(Debug, Default)]
pub struct Found {
    /// Its entries.
    pub entries: Vec<Entry>,
    /// Whether all of it could be read. Otherwise there are pods that nobody knows of.
    pub whole: bool,
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
    /// Takes over what the journal holds; what cannot be, a sentence each. What was made in another
    /// boot is gone, and what was not made to the end goes.
    pub fn new(boot: &str, found: Found, hands: Hands) -> (Self, Vec<String>) {
        let mut entries = BTreeMap::new();
        let mut problems = Vec::new();
        for mut entry in found.entries {
            // Nobody knows which boot this is: everything stays.
            let known = !boot.is_empty() && !entry.boot.is_empty();
            if known && entry.boot != boot {
                if let Err(error) = hands.journal.remove(&entry.sandbox) {
                    problems.push(format!("entry of pod {}, of another boot: {error}", entry.pod));
                }
                continue;
            }
            if entry.state != State::Made {
                entry.state = State::Going;
            }
            entries.insert(entry.sandbox.clone(), entry);
        }
        // A pod whose entry cannot be read still has its addresses: until the runtime tells that it
        // is gone ([`Book::retain`]).
        if found.whole
            && let Err(why) = hands.leases.retain(&|sandbox| entries.contains_key(sandbox))
        {
            problems.push(why);
        }
        (Self { entries, making: BTreeSet::new(), hands: Arc::new(hands) }, problems)
    }

    /// The namespace at a path that a runtime gave; `None`: it is the host's own.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    pub fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        self.hands.ground.place(path)
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
        let made = |entry: &Entry| entry.state == State::Made;
        self.entries.values().all(|entry| made(entry) || self.making.contains(&entry.sandbox))
    }

    /// Begins to make a pod's sub-interfaces, all or none: what is to be done beside the book, and
    /// then told to [`Book::finish`]. They count from now on.
    ///
    /// # Errors
    /// The pod has some already, as a sentence without its end.
    pub fn begin(&mut self, mut entry: Entry, orders: Vec<Order>) -> Result<Work, String> {
        if let Some(before) = self.entries.get(&entry.sandbox) {
            let why = before.stuck.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(format!("what was made for the pod before goes first{why}"));
        }
        entry.state = State::Making;
        let planned = orders.iter().map(|order| order.child.clone()).collect();
        let sandbox = entry.sandbox.clone();
        self.making.insert(sandbox.clone());
        self.entries.insert(sandbox, Entry { children: planned, ..entry.clone() });
        Ok(Work::new(entry, orders, Arc::clone(&self.hands)))
    }

    /// Takes over what was begun, as far as it came.
    ///
    /// # Errors
    /// Why they were not made, or not for long, as a sentence without its end; what had been made
    /// goes.
    pub fn finish(&mut self, entry: Entry, made: Result<(), String>) -> Result<(), String> {
        let sandbox = entry.sandbox.clone();
        let before = self.entries.insert(sandbox.clone(), entry);
        let ended = before.is_none_or(|before| before.state == State::Going);
        let done =
            if ended { made.and_then(|()| Err("the pod has ended".to_owned())) } else { made };
        self.making.remove(&sandbox);
        if done.is_err() {
            self.end(&sandbox);
            self.tend_one(&sandbox);
        }
        done
    }

    /// The sub-interfaces of a sandbox are to go.
    pub fn end(&mut self, sandbox: &str) {
        if let Some(entry) = self.entries.get_mut(sandbox) {
            entry.state = State::Going;
        }
    }

    /// Those of all sandboxes but these are to go. Returned is what could not be given back, a
    /// sentence.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        for entry in self.entries.values_mut().filter(|entry| !wanted(&entry.sandbox)) {
            entry.state = State::Going;
        }
        let entries = &self.entries;
        self.hands.leases.retain(&|held| entries.contains_key(held) || wanted(held)).err()
    }

    /// Ends what is to go; what does not is tried again the next time.
    pub fn tend(&mut self) -> Vec<Event> {
        let going = self.entries.values().filter(|entry| entry.state == State::Going);
        let going: Vec<String> = going.map(|entry| entry.sandbox.clone()).collect();
        going.into_iter().filter_map(|sandbox| self.tend_one(&sandbox)).collect()
    }

    /// The same for one sandbox.
    pub fn tend_one(&mut self, sandbox: &str) -> Option<Event> {
        let entry = self.entries.get(sandbox).filter(|entry| entry.state == State::Going)?;
        // Whoever makes them now would go on making.
        if self.making.contains(sandbox) {
            return None;
        }
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
                if new && self.hands.journal.write(entry).is_err() {
                    return Some(Event::Stuck { pod, reason });
                }
                new.then_some(Event::Stuck { pod, reason })
            }
        }
    }

    /// Ends a sandbox's sub-interfaces, and gives their addresses back after that.
    fn remove(&self, sandbox: &str) -> Result<(), String> {
        let Some(entry) = self.entries.get(sandbox) else { return Ok(()) };
        let Hands { ground, journal, leases } = &*self.hands;
        let told = |why| format!("{why}; {}", ground.holders(&entry.namespace));
        let inside = if self.is_anothers(entry) {
            None
        } else {
            ground.enter(&entry.namespace).map_err(told)?
        };
        if let Some(mut inside) = inside {
            let mut first = None;
            for child in &entry.children {
                if let Err(why) = inside.remove(child) {
                    first.get_or_insert(why);
                }
            }
            first.map_or(Ok(()), |why| Err(told(why)))?;
        }
        leases.release(sandbox)?;
        journal.remove(sandbox).map_err(|error| format!("the journal stays: {error}"))
    }

    /// Whether the number of that entry's namespace is another pod's by now: the kernel gives the
    /// number of one that has ended to the next. Only who is still found by its path has it.
    fn is_anothers(&self, entry: &Entry) -> bool {
        let same = |other: &Place| {
            (other.device, other.inode) == (entry.namespace.device, entry.namespace.inode)
        };
        let others = self.entries.values().filter(|other| other.sandbox != entry.sandbox);
        let shared = others.map(|other| &other.namespace).any(same);
        let found = || self.hands.ground.place(&entry.namespace.path).ok().flatten();
        shared && !found().as_ref().is_some_and(same)
    }
}
