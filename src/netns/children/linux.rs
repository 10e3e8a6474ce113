//! The kernel itself, by netlink.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;

use super::{Child, Ground, Inside, Kind, Unmade};
use crate::inventory::Prefix;
use crate::netlink::change::Change;
use crate::netlink::child::{self, Conf, Upper, Way};
use crate::netlink::{self, Socket};
use crate::netns::Namespace;
use crate::netns::addresses::{Inside as Asking, Prober, Setting, Wire};
use crate::netns::links::{Place, holders, linux as links};
use crate::roots::Roots;

/// The running kernel. Its user is in the host's network namespace.
#[derive(Debug, Clone)]
pub struct Linux {
    roots: Roots,
    links: links::Linux,
}

/// Why something could not be done, before it is known to whom.
type Why = String;

impl Linux {
    /// The kernel that these trees are of.
    pub fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone(), links: links::Linux::new(roots) }
    }
}

impl Ground for Linux {
    fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        self.links.place(path).map_err(|error| error.to_string())
    }

    fn enter(&self, place: &Place) -> Result<Option<Box<dyn Inside>>, String> {
        let Some(namespace) = self.links.namespace(place) else { return Ok(None) };
        Visit::begin(namespace).map(|visit| Some(Box::new(visit) as Box<dyn Inside>))
    }

    fn holders(&self, place: &Place) -> String {
        holders::words(&holders::of(&self.roots, place.inode))
    }
}

/// A conversation with the kernel about a pod's namespace, and one about the host's: a
/// sub-interface is made by its parent's namespace in the other.
#[derive(Debug)]
pub(super) struct Visit {
    namespace: Namespace,
    inside: Socket<Change>,
    host: Socket<Change>,
    /// The host's interfaces, once they were looked at.
    uppers: Option<Vec<Upper>>,
}

impl Visit {
    pub(super) fn begin(namespace: Namespace) -> Result<Self, Why> {
        let inside = namespace.run(Socket::<Change>::open).map_err(|error| error.to_string())?;
        Ok(Self {
            inside: inside.map_err(words)?,
            host: Socket::<Change>::open().map_err(words)?,
            namespace,
            uppers: None,
        })
    }

    /// All ipvlans of a parent have one mode, that of the one made last: another's L3 is not ours to
    /// change. Those in other pods cannot be seen.
    fn spare_others(&mut self, child: &Child) -> Result<(), Why> {
        if self.uppers.is_none() {
            self.uppers = Some(self.host.uppers().map_err(words)?);
        }
        let other = self.uppers.iter().flatten().find(|upper| {
            let beside = upper.lower == Some(child.parent_index) && !upper.elsewhere;
            beside && upper.mode.is_some_and(|mode| mode != 0)
        });
        other.map_or(Ok(()), |other| {
            Err(format!(
                "{} carries the ipvlan {}, which is not in mode L2, and all on one interface have \
                 one mode",
                child.parent, other.name
            ))
        })
    }
}

impl Inside for Visit {
    fn names(&mut self) -> Result<BTreeSet<String>, String> {
        let uppers = self.inside.uppers().map_err(words)?;
        Ok(uppers.into_iter().map(|upper| upper.name).collect())
    }

    fn create(&mut self, child: &mut Child) -> Result<(), Unmade> {
        if child.kind == Kind::Ipvlan {
            self.spare_others(child).map_err(Unmade::Refused)?;
        }
        let descriptor = self.namespace.file().as_raw_fd();
        let descriptor = u32::try_from(descriptor).unwrap_or(u32::MAX);
        let message = child::create(child.kind, child.parent_index, descriptor, &child.interface);
        self.host.make(message).map_err(|error| match error.refusal() {
            Some(Errno::EEXIST) => Unmade::Taken,
            _ => Unmade::Refused(unmade(&error, child)),
        })?;
        let refused = |why| Unmade::Refused(format!("{}: {why}", child.interface));
        let made = self.inside.upper(&child.interface).map_err(|error| refused(words(error)))?;
        let made = made.ok_or_else(|| refused("it is gone as soon as it was made".to_owned()))?;
        let mac: Vec<String> = made.address.iter().map(|byte| format!("{byte:02x}")).collect();
        child.index = Some(made.index);
        child.mac = mac.join(":");
        child.mtu = made.mtu;
        Ok(())
    }

    fn prober<'a>(&'a self, children: &'a [Child]) -> Box<dyn Prober + 'a> {
        let ask = |wire: Wire<'a>, child: &Child| match child.index {
            Some(index) => {
                wire.by(child.parent_index, Asking { namespace: &self.namespace, index })
            }
            None => wire,
        };
        Box::new(children.iter().fold(Wire::new(), ask))
    }

    fn give(&mut self, child: &Child, address: Prefix) -> Result<(), String> {
        let index = child.index.unwrap_or_default();
        let message = child::address(index, address.address, address.length);
        self.inside
            .add(message)
            .map_err(|error| format!("{}: {address}: {}", child.interface, words(error)))
    }

    fn set(&mut self, setting: &Setting) -> Result<(), String> {
        match setting {
            Setting::Sysctl { path, value } => {
                let (name, conf) = conf(path).ok_or_else(|| format!("no such setting: {path}"))?;
                let value = value.parse().map_err(|_| format!("{path}: {value} is no number"))?;
                let upper = self.inside.upper(name).map_err(words)?;
                let upper = upper.ok_or_else(|| format!("{name} is gone"))?;
                let message = child::configure(upper.index, &[(conf, value)]);
                self.inside.change(message).map_err(|error| format!("{path}: {}", words(error)))
            }
            Setting::Route { table, to, via, index, from, metric } => {
                let way = Way {
                    to: (to.first(), to.length),
                    gateway: *via,
                    source: *from,
                    table: *table,
                    metric: Some(*metric).filter(|metric| *metric > 0),
                };
                self.inside
                    .add(child::route(*index, &way))
                    .map_err(|error| format!("route to {to}: {}", words(error)))
            }
            Setting::Rule { from, table, priority } => self
                .inside
                .add(child::rule(*from, *table, *priority))
                .map_err(|error| format!("rule for {from}: {}", words(error))),
        }
    }

    fn remove(&mut self, child: &Child) -> Result<(), String> {
        let uppers = self.inside.uppers().map_err(words)?;
        let is_it = |upper: &&Upper| {
            let sort = upper.kind == child.kind.word() && upper.lower == Some(child.parent_index);
            let named = match child.index {
                Some(index) => upper.index == index,
                None => upper.name == child.interface,
            };
            sort && upper.elsewhere && named
        };
        let Some(found) = uppers.iter().find(is_it) else { return Ok(()) };
        match self.inside.change(child::delete(found.index)) {
            Err(error) if error.refusal() == Some(Errno::ENODEV) => Ok(()),
            done => done.map_err(|error| format!("{}: {}", child.interface, words(error))),
        }
    }
}

/// The interface and the setting of a path below `/proc/sys`. Set by netlink, since the service may
/// find those files read-only.
fn conf(path: &str) -> Option<(&str, Conf)> {
    let (name, setting) = path.strip_prefix("net/ipv4/conf/")?.split_once('/')?;
    let conf = match setting {
        "arp_ignore" => Conf::ArpIgnore,
        "arp_announce" => Conf::ArpAnnounce,
        "rp_filter" => Conf::RpFilter,
        _ => return None,
    };
    Some((name, conf))
}

/// Why there is no such sub-interface.
fn unmade(error: &netlink::Error, child: &Child) -> Why {
    let (parent, kind) = (&child.parent, child.kind.word());
    match error.refusal() {
        Some(Errno::EBUSY) => format!(
            "{parent} can carry no {kind}: it carries {} of some pod or of another program, or is \
             a member of a bond or bridge",
            match child.kind {
                Kind::Ipvlan => "a macvlan",
                Kind::Macvlan => "an ipvlan",
            }
        ),
        Some(Errno::EOPNOTSUPP) => format!("this kernel makes no {kind}: load the module {kind}"),
        Some(Errno::ENODEV) => format!("{parent} is gone"),
        _ => format!("no {kind} on {parent}: {}", words(error.clone())),
    }
}

/// What netlink says, with what to do where that is known.
fn words(error: netlink::Error) -> Why {
    let advice = match error.refusal() {
        Some(Errno::EPERM) => ": rdma-ctk needs CAP_NET_ADMIN for that (see docs/children.md)",
        _ => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests;
