//! The real [`Prober`]: asks on the wire, for all addresses at once.
//!
//! A question that leaves by the adapter's interface on the host reaches its neighbours and nobody on
//! the same adapter: the kernel hands what the host sends to none of its sub-interfaces. One that
//! leaves by a sub-interface reaches both. Answers to it come to the host's interface (ipvlan, which
//! tells its children apart by addresses and ours has none yet) or to the sub-interface (macvlan),
//! so that both listen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::frames::{self, ALL_NODES, ARP, IPV6, Mac, claimed, group, probe};
use super::packet::Packet;
use super::{Prober, Question};
use crate::netns::Namespace;

/// When each question is asked. RFC 5227 has seconds for links that have just come up and hosts that
/// sleep; those of an adapter answer within one.
const ASKED: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(60), Duration::from_millis(120)];
/// When it is taken for nobody's.
const PATIENCE: Duration = Duration::from_millis(200);
/// Frames that are looked at before time is looked at again.
const MOST: usize = 256;

/// A sub-interface that is there already, and has no address yet.
#[derive(Debug, Clone, Copy)]
pub struct Inside<'a> {
    /// Its namespace.
    pub namespace: &'a Namespace,
    /// Its `ifindex` there.
    pub index: u32,
}

/// Asks on the wire. Its user is in the host's network namespace.
#[derive(Debug, Default)]
pub struct Wire<'a> {
    inside: BTreeMap<u32, Inside<'a>>,
}

impl<'a> Wire<'a> {
    /// One that asks from the host's interfaces, and so does not see what lies on them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks from a sub-interface for what goes over that interface of the host.
    pub fn by(mut self, parent_index: u32, inside: Inside<'a>) -> Self {
        self.inside.insert(parent_index, inside);
        self
    }

    fn open(&self, parent: u32, protocol: u16) -> Result<Ears, String> {
        let open = |index| Packet::open(index, protocol);
        let host = open(parent).map_err(|error| words(error, protocol))?;
        let mut sockets = vec![host];
        if let Some(inside) = self.inside.get(&parent) {
            let child = inside.namespace.run(|| open(inside.index));
            let child = child.map_err(|error| error.to_string())?;
            sockets.push(child.map_err(|error| words(error, protocol))?);
        }
        if protocol == IPV6 {
            for socket in &sockets {
                socket.join(ALL_NODES).map_err(|error| words(error, protocol))?;
            }
        }
        Ok(Ears { sockets, wanted: BTreeSet::new(), claimed: BTreeSet::new(), deaf: None })
    }
}

/// Sockets of one adapter for one family, of which the last one asks.
#[derive(Debug)]
struct Ears {
    sockets: Vec<Packet>,
    wanted: BTreeSet<IpAddr>,
    claimed: BTreeSet<IpAddr>,
    /// Why nothing can be told.
    deaf: Option<String>,
}

impl Ears {
    fn want(&mut self, address: IpAddr) {
        self.wanted.insert(address);
        let IpAddr::V6(address) = address else { return };
        for socket in &self.sockets {
            if let Err(error) = socket.join(group(address)) {
                self.deaf.get_or_insert_with(|| words(error, IPV6));
            }
        }
    }

    fn macs(&self) -> Vec<Mac> {
        self.sockets.iter().map(Packet::mac).collect()
    }

    fn ask(&mut self) {
        let Some(socket) = self.sockets.last() else { return };
        for address in self.wanted.difference(&self.claimed) {
            if let Err(error) = socket.send(&probe(socket.mac(), *address)) {
                let protocol = if address.is_ipv4() { ARP } else { IPV6 };
                self.deaf.get_or_insert_with(|| words(error, protocol));
            }
        }
    }

    fn hear(&mut self) {
        let own = self.macs();
        let mut buffer = [0; 256];
        for socket in &self.sockets {
            for _ in 0..MOST {
                match socket.receive(&mut buffer) {
                    Ok(Some(frame)) => {
                        let address = claimed(frame, &own).filter(|a| self.wanted.contains(a));
                        self.claimed.extend(address);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.deaf.get_or_insert_with(|| words(error, ARP));
                        break;
                    }
                }
            }
        }
    }
}

impl Prober for Wire<'_> {
    fn in_use(&mut self, address: IpAddr) -> Result<bool, String> {
        // Of no adapter: those that were named are asked.
        let parents: Vec<u32> = self.inside.keys().copied().collect();
        let questions: Vec<Question<'_>> = parents
            .iter()
            .map(|&parent_index| Question { hca: "", parent_index, address })
            .collect();
        let answers = self.all_in_use(&questions);
        if answers.is_empty() {
            return Err("no interface is known to ask from".to_owned());
        }
        answers.into_iter().try_fold(false, |used, answer| Ok(used | answer?))
    }

    fn all_in_use(&mut self, questions: &[Question<'_>]) -> Vec<Result<bool, String>> {
        let key = |question: &Question<'_>| (question.parent_index, question.address.is_ipv4());
        let mut ears: BTreeMap<(u32, bool), Result<Ears, String>> = BTreeMap::new();
        for question in questions {
            let protocol = if question.address.is_ipv4() { ARP } else { frames::IPV6 };
            let found = ears
                .entry(key(question))
                .or_insert_with(|| self.open(question.parent_index, protocol));
            if let Ok(ears) = found {
                ears.want(question.address);
            }
        }
        listen(&mut ears.values_mut().flatten().collect::<Vec<_>>());
        let answer = |question: &Question<'_>| match ears.get(&key(question)) {
            Some(Ok(ears)) if ears.claimed.contains(&question.address) => Ok(true),
            Some(Ok(ears)) => ears.deaf.clone().map_or(Ok(false), Err),
            Some(Err(why)) => Err(why.clone()),
            None => Err("it was not asked".to_owned()),
        };
        questions.iter().map(answer).collect()
    }
}

/// Asks and hears until there is nothing left to hear.
fn listen(ears: &mut [&mut Ears]) {
    let begun = Instant::now();
    let mut asked = ASKED.into_iter().peekable();
    loop {
        let gone = begun.elapsed();
        let open = |ears: &Ears| ears.deaf.is_none() && ears.claimed.len() < ears.wanted.len();
        if gone >= PATIENCE || !ears.iter().any(|ears| open(ears)) {
            return;
        }
        if asked.next_if(|at| *at <= gone).is_some() {
            ears.iter_mut().for_each(|ears| ears.ask());
        }
        let next = asked.peek().copied().unwrap_or(PATIENCE);
        let pause = next.saturating_sub(begun.elapsed()).as_millis() + 1;
        let pause = PollTimeout::from(u16::try_from(pause).unwrap_or(u16::MAX));
        let mut waiting: Vec<PollFd<'_>> = ears
            .iter()
            .flat_map(|ears| &ears.sockets)
            .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(&mut waiting, pause) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                for ears in ears.iter_mut() {
                    ears.deaf.get_or_insert_with(|| words(error, ARP));
                }
                return;
            }
        }
        ears.iter_mut().for_each(|ears| ears.hear());
    }
}

fn words(error: Errno, protocol: u16) -> String {
    let what = if protocol == IPV6 { "neighbour discovery" } else { "ARP" };
    match error {
        Errno::EPERM | Errno::EACCES => {
            format!("{what} needs a packet socket, which wants CAP_NET_RAW")
        }
        Errno::ENETDOWN => format!("{what}: the interface is down"),
        Errno::EAFNOSUPPORT => format!(
            "{what}: it is no Ethernet interface, or RestrictAddressFamilies= lacks AF_PACKET"
        ),
        Errno::ENODEV | Errno::ENXIO => format!("{what}: the interface is gone"),
        error => format!("{what}: {}", error.desc()),
    }
}

#[cfg(test)]
mod tests;
