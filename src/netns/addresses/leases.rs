//! Who holds which address: `RUN/rdma-ctk/leases`, a file for each sandbox and adapter, on disk
//! before its addresses are used.
//!
//! The addresses stand in the file's name too: one whose text cannot be read any more keeps them
//! taken all the same.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::choice::{Proposal, Taken, propose};
use super::folder::{Folder, Unread};
use super::{Lease, Prober, Problem, Question, Refused, Wanted, Wish};
use crate::policy::Pools;
use crate::roots::Roots;

/// How often an address that somebody has already is replaced by another before a container waits
/// no longer. What was found stays known.
const ROUNDS: usize = 4;
/// Most addresses that are known to belong to others.
const MOST_ANSWERED: usize = 4096;

/// The leases of this node.
#[derive(Debug)]
pub struct Leases {
    folder: Folder,
    held: BTreeMap<(String, String), Lease>,
    /// Files that keep their addresses, though nobody can read them.
    unread: Vec<Unread>,
    /// What is being asked for on the wire.
    pending: BTreeMap<IpAddr, String>,
    /// Those for which somebody answered, each with when that was.
    answered: BTreeMap<IpAddr, u64>,
    /// How often somebody has answered.
    answers: u64,
    /// Why it is not known what is held.
    blind: Option<String>,
}

impl Leases {
    /// Takes over what the node's folder holds. Leases of another boot are gone with their pods, and
    /// removed; a file that cannot be read is named, and what it holds stays held.
    pub fn open(roots: &Roots) -> (Self, Vec<Problem>) {
        let folder = Folder::new(roots);
        let mut found = folder.read();
        folder.sweep(&mut found);
        let boot = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id"));
        let boot = boot.unwrap_or_default().trim().to_owned();
        let mut held = BTreeMap::new();
        for lease in std::mem::take(&mut found.leases) {
            if lease.boot != boot
                && !boot.is_empty()
                && !lease.boot.is_empty()
                && folder.remove(&lease).map_err(|p| found.problems.push(p)).is_ok()
            {
                continue;
            }
            let key = (lease.sandbox.clone(), lease.hca.clone());
            if held.contains_key(&key) {
                // Not ours: one sandbox has one lease for an adapter.
                found.strange(&folder, &lease);
                continue;
            }
            held.insert(key, lease);
        }
        let leases = Self {
            folder,
            held,
            unread: found.unread,
            pending: BTreeMap::new(),
            answered: BTreeMap::new(),
            answers: 0,
            blind: found.blind,
        };
        (leases, found.problems)
    }

    /// All that can be read, by sandbox and adapter.
    pub fn all(&self) -> impl Iterator<Item = &Lease> {
        self.held.values()
    }

    /// That of a sandbox's adapter.
    pub fn of(&self, sandbox: &str, hca: &str) -> Option<&Lease> {
        self.held.get(&(sandbox.to_owned(), hca.to_owned()))
    }

    /// Gives a sub-interface its addresses: on disk when this returns. The same again for whom it
    /// was given to before.
    ///
    /// # Errors
    /// No address that it may have is free, or it cannot be written down.
    pub fn take(
        &mut self,
        wish: &Wish,
        pools: &Pools,
        prober: &mut dyn Prober,
    ) -> Result<Lease, Refused> {
        for _ in 0..ROUNDS {
            let proposal = match self.propose(wish, pools)? {
                Step::Done(lease) => return Ok(lease),
                Step::Ask(proposal) => proposal,
            };
            let questions = questions(wish, &proposal);
            let answers = prober.all_in_use(&questions);
            if let Some(lease) = self.settle(wish, proposal, &answers)? {
                return Ok(lease);
            }
        }
        Err(Refused::Crowded { hca: wish.hca.clone(), parent: wish.parent.clone() })
    }

    /// Gives back what a sandbox holds, after its sub-interfaces are gone. What cannot be removed
    /// stays taken, and is told.
    pub fn release(&mut self, sandbox: &str) -> Vec<Problem> {
        self.retain(|held| held != sandbox)
    }

    /// Only these sandboxes are there: what others hold is given back, likewise.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        let folder = &self.folder;
        self.held.retain(|(sandbox, _), lease| {
            is_there(sandbox) || folder.remove(lease).map_err(|why| problems.push(why)).is_err()
        });
        self.unread.retain(|unread| {
            unread.sandbox.as_deref().is_none_or(&is_there)
                || folder.remove_unread(unread).map_err(|why| problems.push(why)).is_err()
        });
        problems
    }

    /// Writes down how a sub-interface is called in its pod.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn name(&mut self, sandbox: &str, hca: &str, interface: &str) -> Result<(), Refused> {
        let Some(lease) = self.held.get_mut(&(sandbox.to_owned(), hca.to_owned())) else {
            return Ok(());
        };
        if lease.interface.as_deref() == Some(interface) {
            return Ok(());
        }
        let named = Lease { interface: Some(interface.to_owned()), ..lease.clone() };
        self.folder.write(&named)?;
        *lease = named;
        Ok(())
    }

    /// Whom each address belongs to that is not to be given.
    fn taken(&self) -> Taken {
        let of = |lease: &Lease| {
            let pod = lease.pod.clone();
            lease.addresses.clone().into_iter().map(move |prefix| (prefix.address, pod.clone()))
        };
        let unread = self.unread.iter().flat_map(|unread| {
            let by = format!("the lease {}, which cannot be read", unread.path.display());
            unread.addresses.iter().map(move |address| (*address, by.clone()))
        });
        let pending = self.pending.iter().map(|(address, pod)| (*address, pod.clone()));
        let held = self.held.values().flat_map(of).chain(unread).chain(pending).collect();
        Taken { held, answered: self.answered.clone() }
    }

    fn propose(&mut self, wish: &Wish, pools: &Pools) -> Result<Step, Refused> {
        if let Some(why) = &self.blind {
            return Err(Refused::Blind { reason: why.clone() });
        }
        if let Some(lease) = self.of(&wish.sandbox, &wish.hca) {
            return Ok(Step::Done(lease.clone()));
        }
        self.folder.names(&wish.sandbox, &wish.hca)?;
        let proposal = propose(wish, pools, &self.taken())?;
        for prefix in &proposal.addresses {
            self.pending.insert(prefix.address, wish.pod.clone());
        }
        Ok(Step::Ask(proposal))
    }

    /// What became of a proposal: a lease, or another try is wanted.
    fn settle(
        &mut self,
        wish: &Wish,
        proposal: Proposal,
        answers: &[Result<bool, String>],
    ) -> Result<Option<Lease>, Refused> {
        for prefix in &proposal.addresses {
            self.pending.remove(&prefix.address);
        }
        let mut again = false;
        for (at, prefix) in proposal.addresses.iter().enumerate() {
            match answers.get(at) {
                Some(Ok(false)) => _ = self.answered.remove(&prefix.address),
                Some(Ok(true)) => {
                    if self.answered.len() >= MOST_ANSWERED {
                        self.answered.clear();
                    }
                    // One that answered before was proposed for want of another.
                    self.answers += 1;
                    let before = self.answered.insert(prefix.address, self.answers).is_some();
                    if before || matches!(wish.wanted, Wanted::Fixed(_)) {
                        return Err(Refused::Answered {
                            hca: wish.hca.clone(),
                            address: prefix.address,
                            parent: wish.parent.clone(),
                        });
                    }
                    again = true;
                }
                unknown => {
                    let reason = match unknown {
                        Some(Err(reason)) => reason.clone(),
                        _ => "nobody said".to_owned(),
                    };
                    return Err(Refused::Probe {
                        hca: wish.hca.clone(),
                        address: prefix.address,
                        reason,
                    });
                }
            }
        }
        if again {
            return Ok(None);
        }
        let Proposal { addresses, gateways, routes } = proposal;
        let lease = Lease {
            boot: wish.boot.clone(),
            sandbox: wish.sandbox.clone(),
            pod: wish.pod.clone(),
            hca: wish.hca.clone(),
            interface: None,
            addresses,
            gateways,
            routes,
        };
        self.folder.write(&lease)?;
        self.held.insert((wish.sandbox.clone(), wish.hca.clone()), lease.clone());
        Ok(Some(lease))
    }
}

/// What a proposal asks for.
#[derive(Debug)]
enum Step {
    Done(Lease),
    Ask(Proposal),
}

fn questions<'a>(wish: &'a Wish, proposal: &Proposal) -> Vec<Question<'a>> {
    let address = |prefix: &crate::inventory::Prefix| prefix.address;
    let one = |address| Question { hca: &wish.hca, parent_index: wish.parent_index, address };
    proposal.addresses.iter().map(address).map(one).collect()
}

/// [`Leases::take`] for several adapters at once, whose addresses are asked for on the wire at the
/// same time, while others may take and release. An answer for each, in their order.
pub fn take_all(
    leases: &Mutex<Leases>,
    wishes: &[(Wish, Pools)],
    prober: &mut dyn Prober,
) -> Vec<Result<Lease, Refused>> {
    let lock =
        || -> MutexGuard<'_, Leases> { leases.lock().unwrap_or_else(PoisonError::into_inner) };
    let mut results: Vec<Option<Result<Lease, Refused>>> = wishes.iter().map(|_| None).collect();
    for _ in 0..ROUNDS {
        let mut asked: Vec<(usize, Proposal)> = Vec::new();
        {
            let mut leases = lock();
            for (at, (wish, pools)) in wishes.iter().enumerate() {
                if results[at].is_none() {
                    match leases.propose(wish, pools) {
                        Ok(Step::Done(lease)) => results[at] = Some(Ok(lease)),
                        Ok(Step::Ask(proposal)) => asked.push((at, proposal)),
                        Err(refused) => results[at] = Some(Err(refused)),
                    }
                }
            }
        }
        if asked.is_empty() {
            break;
        }
        let all: Vec<Question<'_>> =
            asked.iter().flat_map(|(at, proposal)| questions(&wishes[*at].0, proposal)).collect();
        let answers = if all.is_empty() { Vec::new() } else { prober.all_in_use(&all) };
        let mut rest = answers.as_slice();
        let mut leases = lock();
        for (at, proposal) in asked {
            let (own, others) = rest.split_at(proposal.addresses.len().min(rest.len()));
            rest = others;
            match leases.settle(&wishes[at].0, proposal, own) {
                Ok(None) => {}
                Ok(Some(lease)) => results[at] = Some(Ok(lease)),
                Err(refused) => results[at] = Some(Err(refused)),
            }
        }
    }
    let crowded = |(wish, _): &(Wish, Pools)| {
        Err(Refused::Crowded { hca: wish.hca.clone(), parent: wish.parent.clone() })
    };
    results.into_iter().zip(wishes).map(|(r, wish)| r.unwrap_or_else(|| crowded(wish))).collect()
}

/// The leases of this node as its folder holds them, and what is wrong with it; for whoever only
/// looks. Those of another boot are left out.
pub fn leases(roots: &Roots) -> (Vec<Lease>, Vec<Problem>) {
    let found = Folder::new(roots).read();
    let boot = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id"));
    let boot = boot.unwrap_or_default().trim().to_owned();
    let now = |lease: &Lease| boot.is_empty() || lease.boot.is_empty() || lease.boot == boot;
    (found.leases.into_iter().filter(now).collect(), found.problems)
}
