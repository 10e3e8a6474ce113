//! The making of a pod's sub-interfaces, beside the book and beside that of other pods.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::book::{Hands, Order};
use super::{Child, Entry, Inside, State, Unmade};
use crate::inventory::Prefix;
use crate::netns::addresses::{self, Lease, Wish};
use crate::policy::Pools;

/// How often a name is looked for that nobody takes meanwhile.
const NAMES: usize = 8;

/// A pod's sub-interfaces, to be made.
pub struct Work {
    entry: Entry,
    orders: Vec<Order>,
    hands: Arc<Hands>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl Work {
    /// For that entry, whose sub-interfaces are ordered so.
    pub(super) const fn new(entry: Entry, orders: Vec<Order>, hands: Arc<Hands>) -> Self {
        Self { entry, orders, hands }
    }

    /// Makes them; how far that came, and why no farther, as a sentence without its end. Blocks while
    /// it is asked whether addresses are in use.
    pub fn run(mut self) -> (Entry, Result<(), String>) {
        let orders = std::mem::take(&mut self.orders);
        // What had been made until then is told all the same, so that it goes.
        let done = catch_unwind(AssertUnwindSafe(|| self.make(orders)));
        let done =
            done.unwrap_or_else(|_| Err("a fault of rdma-ctk while it made them".to_owned()));
        (self.entry, done)
    }

    fn make(&mut self, orders: Vec<Order>) -> Result<(), String> {
        let Self { entry, hands, .. } = self;
        let unwritten = |error| format!("the journal cannot be written: {error}");
        // Before anything is taken or made: whoever comes after a crash has to know whose it is.
        hands.journal.write(entry).map_err(unwritten)?;
        let (children, wishes): (Vec<Child>, Vec<(Wish, Pools)>) =
            orders.into_iter().map(|order| (order.child, (order.wish, order.pools))).unzip();
        let inside = hands.ground.enter(&entry.namespace)?;
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
                hands.journal.write(entry).map_err(unwritten)?;
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
            hands.leases.take(&wishes, &mut *prober).into_iter().collect()
        };
        let leases = leases?;
        for (child, lease) in entry.children.iter_mut().zip(&leases) {
            child.addresses.clone_from(&lease.addresses);
        }
        hands.journal.write(entry).map_err(unwritten)?;
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
        hands.journal.write(entry).map_err(unwritten)
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
