//! Which address a sub-interface gets: pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Refused, Route, Wanted, Wish};
use crate::grant::spread;
use crate::inventory::Prefix;
use crate::inventory::prefix::{number, of_number};
use crate::policy::{Pool, Pools, Range};

/// Holders that are named when there is no address left.
const NAMED: usize = 8;

/// What a sub-interface is to be given, before anybody was asked whether it is free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Proposal {
    pub addresses: Vec<Prefix>,
    pub gateways: Vec<IpAddr>,
    pub routes: Vec<Route>,
}

/// Addresses that are not to be given.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Those of this node's sub-interfaces, each with whom it belongs to.
    pub held: BTreeMap<IpAddr, String>,
    /// Those for which somebody answered, with when that was: only when there is no other, and then
    /// the one first that has not been asked for the longest.
    pub answered: BTreeMap<IpAddr, u64>,
}

/// Addresses in a row that an adapter's sub-interfaces may have.
#[derive(Debug, Clone, Copy)]
struct Span<'a> {
    pool: &'a Pool,
    range: Range,
    length: u8,
}

/// What that wish gets.
///
/// # Errors
/// Nothing that it may have is free.
pub(super) fn propose(wish: &Wish, pools: &Pools, taken: &Taken) -> Result<Proposal, Refused> {
    match &wish.wanted {
        Wanted::None => Ok(Proposal::default()),
        Wanted::Pool if pools.0.is_empty() => Ok(Proposal::default()),
        Wanted::Pool => {
            let spans = spans(wish, pools)?;
            let mut proposal = Proposal::default();
            for ipv4 in [true, false] {
                let family: Vec<Span<'_>> =
                    spans.iter().filter(|s| s.range.first().is_ipv4() == ipv4).copied().collect();
                if !family.is_empty() {
                    let (span, address) = free(wish, &family, taken)?;
                    proposal.add(span, Prefix { address, length: span.length });
                }
            }
            Ok(proposal)
        }
        Wanted::Fixed(fixed) => {
            let spans = if pools.0.is_empty() { Vec::new() } else { spans(wish, pools)? };
            let mut proposal = Proposal::default();
            for prefix in fixed {
                let span = spans.iter().find(|span| span.range.holds(prefix.address));
                let span = span.ok_or_else(|| Refused::NotInPool {
                    hca: wish.hca.clone(),
                    address: prefix.address,
                    pools: words(&spans),
                })?;
                // A network wider than the pool's would take what leaves by the pod's own interface.
                if prefix.length < span.length {
                    return Err(Refused::Wide {
                        hca: wish.hca.clone(),
                        address: *prefix,
                        length: span.length,
                    });
                }
                if let Some(pod) = taken.held.get(&prefix.address) {
                    return Err(Refused::Held {
                        hca: wish.hca.clone(),
                        address: prefix.address,
                        pod: pod.clone(),
                    });
                }
                if !may(wish, *span, prefix.address) || prefix.reserves(prefix.address) {
                    return Err(Refused::Reserved {
                        hca: wish.hca.clone(),
                        address: prefix.address,
                    });
                }
                proposal.add(*span, *prefix);
            }
            Ok(proposal)
        }
    }
}

impl Proposal {
    fn add(&mut self, span: Span<'_>, address: Prefix) {
        let ipv4 = address.address.is_ipv4();
        let gateway = span.pool.gateway.filter(|gateway| gateway.is_ipv4() == ipv4);
        self.addresses.push(address);
        self.gateways.extend(gateway);
        let routes = span.pool.routes.iter().filter(|to| to.address.is_ipv4() == ipv4);
        self.routes.extend(routes.map(|to| Route { to: *to, via: gateway }));
    }
}

/// All that the adapter's pools have.
fn spans<'a>(wish: &Wish, pools: &'a Pools) -> Result<Vec<Span<'a>>, Refused> {
    let mut spans = Vec::new();
    for pool in &pools.0 {
        let Some(range) = pool.range else {
            let own = wish.own.iter().filter(|prefix| is_shared(**prefix));
            spans.extend(own.map(|prefix| Span {
                pool,
                range: Range::of(*prefix),
                length: length_of(pool, *prefix),
            }));
            continue;
        };
        let around = |prefix: &&Prefix| prefix.holds(range.first()) && prefix.holds(range.last());
        let own = wish.own.iter().find(around).map(|prefix| prefix.length);
        let length = pool.prefix_length.or(own).or_else(|| range.length());
        let length = length.ok_or_else(|| Refused::NoLength { hca: wish.hca.clone(), range })?;
        spans.push(Span { pool, range, length });
    }
    if spans.is_empty() {
        return Err(Refused::NoPrefix { hca: wish.hca.clone(), parent: wish.parent.clone() });
    }
    Ok(spans)
}

/// Prefix length in a pod of an address out of that prefix of the adapter.
fn length_of(pool: &Pool, own: Prefix) -> u8 {
    let fits = |length: &u8| Prefix::new(own.address, *length).is_some();
    pool.prefix_length.filter(fits).unwrap_or(own.length)
}

/// Whether a prefix of an interface has addresses for others.
fn is_shared(prefix: Prefix) -> bool {
    let link_local = match prefix.address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !link_local && !prefix.address.is_loopback() && prefix.first() != prefix.last()
}

/// Whether a sub-interface may have that address at all.
fn may(wish: &Wish, span: Span<'_>, address: IpAddr) -> bool {
    let network = Prefix { address, length: span.length };
    !network.reserves(address)
        && !wish.own.iter().any(|own| own.address == address || own.reserves_in(address))
        && !wish.others.contains(&address)
        && span.pool.gateway != Some(address)
}

/// The next free address behind one that is another for every pod and adapter.
fn free<'a>(wish: &Wish, spans: &[Span<'a>], taken: &Taken) -> Result<(Span<'a>, IpAddr), Refused> {
    let begin = u128::from(spread([&wish.uid, &wish.hca]));
    let is_free = |span: &Span<'_>, address: &IpAddr| {
        may(wish, *span, *address) && !taken.held.contains_key(address)
    };
    let quiet = spans.iter().find_map(|span| {
        each(span.range, begin)
            .find(|address| is_free(span, address) && !taken.answered.contains_key(address))
            .map(|address| (*span, address))
    });
    let loud = || {
        let answered = taken.answered.iter().filter_map(|(address, when)| {
            let span = spans.iter().find(|span| span.range.holds(*address))?;
            is_free(span, address).then_some((when, *span, *address))
        });
        answered.min_by_key(|(when, ..)| **when).map(|(_, span, address)| (span, address))
    };
    quiet.or_else(loud).ok_or_else(|| exhausted(wish, spans, taken))
}

/// All addresses of a range, each once, from one of them on.
fn each(range: Range, begin: u128) -> impl Iterator<Item = IpAddr> {
    let (first, ipv4) = number(range.first());
    let last = number(range.last()).0;
    let beyond = last - first;
    let begin = beyond.checked_add(1).map_or(begin, |count| begin % count);
    let wrapped = (begin > 0).then(|| 0..=begin - 1).into_iter().flatten();
    (begin..=beyond).chain(wrapped).map(move |at| of_number(first + at, ipv4))
}

fn exhausted(wish: &Wish, spans: &[Span<'_>], taken: &Taken) -> Refused {
    let inside = |address: &IpAddr| spans.iter().any(|span| span.range.holds(*address));
    let held: Vec<(&IpAddr, &String)> =
        taken.held.iter().filter(|(address, _)| inside(address)).collect();
    let mut holders: Vec<String> =
        held.iter().take(NAMED).map(|(address, pod)| format!("{address} by {pod}")).collect();
    if held.len() > NAMED {
        holders.push(format!("{} more", held.len() - NAMED));
    }
    let holders = if holders.is_empty() {
        "none by a pod; the rest is the network's own, the host's or the router's".to_owned()
    } else {
        holders.join(", ")
    };
    Refused::Exhausted { hca: wish.hca.clone(), pools: words(spans), holders }
}

/// The pools in words.
fn words(spans: &[Span<'_>]) -> String {
    if spans.is_empty() {
        return "none".to_owned();
    }
    let words = spans.iter().map(|span| {
        let own = if span.pool.own_prefix { " (its own prefix)" } else { "" };
        format!("{}{own}", span.range)
    });
    words.collect::<Vec<_>>().join(", ")
}
