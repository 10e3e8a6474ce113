//! The kernel itself, by netlink.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{Entry, Fault, Goal, Kernel, Place, Saved, Sight, Step, Whereabouts, holders};
use crate::netlink::change::{self, Change, KeptRoute, Netdev};
use crate::netlink::nldev::Device;
use crate::netlink::rdma::Rdma;
use crate::netlink::{self, Socket};
use crate::netns::{self, Namespace};
use crate::roots::Roots;

/// The running kernel. Its user is in the host's network namespace.
#[derive(Debug, Clone)]
pub struct Linux {
    roots: Roots,
}

/// Why something could not be done, before it is known to whom.
type Why = String;

impl Linux {
    /// The kernel that these trees are of.
    pub fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone() }
    }

    /// The namespace at a path that a runtime gave; `None`: it is the host's own.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn place(&self, path: &Path) -> Result<Option<Place>, netns::Error> {
        let namespace = Namespace::open(&self.roots, path)?;
        if namespace.is_current(&self.roots) {
            return Ok(None);
        }
        let (device, inode) = namespace.identity()?;
        Ok(Some(Place { path: path.to_owned(), device, inode }))
    }

    /// What is to be put back of an interface, which is in the namespace of the calling thread.
    ///
    /// # Errors
    /// It is not there, it cannot be read, or it has what cannot be taken away and put back.
    pub fn save(&self, name: &str) -> Result<Saved, Why> {
        let mut socket = Socket::<Change>::open().map_err(words)?;
        let netdevs = socket.netdevs().map_err(words)?;
        let Some(netdev) = netdevs.into_iter().find(|netdev| netdev.name == name) else {
            return Err(format!("there is no interface {name}"));
        };
        let addresses = socket.kept_addresses(netdev.index, name).map_err(words)?;
        let mut routes = Vec::new();
        for route in socket.kept_routes(netdev.index).map_err(words)? {
            match route {
                KeptRoute::Saved(route) => routes.push(route),
                KeptRoute::Shared(why) => return Err(format!("{name}: {why}")),
                KeptRoute::None => {}
            }
        }
        // A gateway is known only once there is a route to it.
        routes.sort_by_key(|route| change::has_gateway(route));
        let ips: Vec<IpAddr> =
            addresses.iter().filter_map(|address| change::address_of(address)).collect();
        let rules = socket.kept_rules(name, &ips).map_err(words)?;
        let Netdev { name, mtu, up, address, permanent, parent, .. } = netdev;
        Ok(Saved { name, mtu, up, address, permanent, parent, addresses, routes, rules })
    }

    /// The index of an RDMA device of the host.
    ///
    /// # Errors
    /// It is not there, or RDMA netlink does not answer.
    pub fn index(&self, hca: &str) -> Result<u32, Why> {
        let devices = Socket::<Rdma>::open().and_then(|mut socket| socket.devices());
        let found = devices.map_err(words)?.into_iter().find(|device| device.name == hca);
        found.map(|device| device.index).ok_or_else(|| format!("there is no RDMA device {hca}"))
    }

    /// The pod's namespace, by its path or by whoever holds it; `None`: nobody seen does.
    pub(in crate::netns) fn namespace(&self, place: &Place) -> Option<Namespace> {
        let is_it = |namespace: &Namespace| {
            namespace.identity().is_ok_and(|id| id == (place.device, place.inode))
        };
        Namespace::open(&self.roots, &place.path).ok().filter(is_it).or_else(|| {
            let holders = holders::of(&self.roots, place.inode);
            holders.iter().find_map(|holder| {
                Namespace::open_handle(&self.roots, &holder.handle(&self.roots)).ok().filter(is_it)
            })
        })
    }

    fn inside<T: Send>(
        &self,
        entry: &Entry,
        task: impl FnOnce() -> Result<T, Why> + Send,
    ) -> Result<T, Why> {
        let namespace = self
            .namespace(&entry.namespace)
            .ok_or_else(|| "the pod's network namespace is gone".to_owned())?;
        namespace.run(task).map_err(|error| error.to_string())?
    }

    /// The host's namespace, to send something into.
    fn host(&self) -> Result<File, Why> {
        let path: PathBuf = self.roots.proc.join("thread-self/ns/net");
        File::open(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn netdev_in(&self, entry: &Entry, saved: &Saved) -> Result<(), Why> {
        let taken = self.inside(entry, names)?;
        let namespace = self
            .namespace(&entry.namespace)
            .ok_or_else(|| "the pod's network namespace is gone".to_owned())?;
        send(saved, &namespace.file().as_raw_fd(), &taken)
    }

    fn netdev_out(&self, entry: &Entry, saved: &Saved) -> Result<(), Why> {
        let taken = names()?;
        let host = self.host()?;
        self.inside(entry, || send(saved, &host.as_raw_fd(), &taken))
    }

    fn rdma_out(&self, entry: &Entry) -> Result<(), Why> {
        let host = self.host()?;
        self.inside(entry, || {
            let mut socket = Socket::<Rdma>::open().map_err(words)?;
            let devices = socket.devices().map_err(words)?;
            let Some(device) = devices.iter().find(|device| is_device(entry, device)) else {
                return Ok(());
            };
            socket.move_device(device.index, &host).map_err(words)
        })
    }

    fn rdma_in(&self, entry: &Entry) -> Result<(), Why> {
        let namespace = self
            .namespace(&entry.namespace)
            .ok_or_else(|| "the pod's network namespace is gone".to_owned())?;
        let mut socket = Socket::<Rdma>::open().map_err(words)?;
        socket.move_device(entry.index, namespace.file()).map_err(words)
    }
}

impl Kernel for Linux {
    fn sight(&mut self, entry: &Entry) -> Result<Sight, Fault> {
        let home =
            parts(entry).map_err(|reason| Fault::Sight { hca: entry.hca.clone(), reason })?;
        // What is at home need not be looked for elsewhere, except to know that there is a pod.
        let inside = match self.namespace(&entry.namespace) {
            None => None,
            Some(_) if home == (true, true) && entry.goal == Goal::Home => Some((false, false)),
            Some(namespace) => {
                let seen = namespace.run(|| parts(entry)).map_err(|error| error.to_string());
                let seen = seen.and_then(|seen| seen);
                Some(seen.map_err(|reason| Fault::Sight { hca: entry.hca.clone(), reason })?)
            }
        };
        let place = |home, inside| match (home, inside) {
            (true, _) => Whereabouts::Home,
            (false, true) => Whereabouts::Inside,
            (false, false) => Whereabouts::Unseen,
        };
        let (rdma, netdev) = inside.unwrap_or((false, false));
        Ok(Sight {
            rdma: place(home.0, rdma),
            netdev: place(home.1, netdev),
            namespace: inside.is_some(),
        })
    }

    fn act(&mut self, entry: &Entry, step: Step) -> Result<(), Fault> {
        let done = match (step, &entry.netdev) {
            (Step::RdmaIn, _) => self.rdma_in(entry),
            (Step::RdmaOut, _) => self.rdma_out(entry),
            (Step::NetdevIn, Some(saved)) => self.netdev_in(entry, saved),
            (Step::NetdevOut, Some(saved)) => self.netdev_out(entry, saved),
            (Step::SettingsIn, Some(saved)) => self.inside(entry, || settle(saved, false)),
            (Step::SettingsOut, Some(saved)) => settle(saved, true),
            (_, None) => Ok(()),
        };
        done.map_err(|reason| Fault::Step { hca: entry.hca.clone(), step, reason })
    }

    fn holders(&mut self, entry: &Entry) -> String {
        holders::words(&holders::of(&self.roots, entry.namespace.inode))
    }
}

/// Whether the RDMA device and the interface are in the calling thread's namespace. An adapter
/// without an interface has it everywhere.
fn parts(entry: &Entry) -> Result<(bool, bool), Why> {
    let devices = Socket::<Rdma>::open().and_then(|mut socket| socket.devices()).map_err(words)?;
    let rdma = devices.iter().any(|device| is_device(entry, device));
    let netdev = match &entry.netdev {
        None => true,
        Some(saved) => {
            let mut socket = Socket::<Change>::open().map_err(words)?;
            find(saved, &socket.netdevs().map_err(words)?).is_some()
        }
    };
    Ok((rdma, netdev))
}

/// Whether it is that RDMA device: by index, or by name where the driver has made it anew. Names
/// are unique beyond namespaces.
fn is_device(entry: &Entry, device: &Device) -> bool {
    device.index == entry.index || device.name == entry.hca
}

/// The interface among others, by what a tenant cannot change: the device that it belongs to and
/// the address that it was made with. Virtual ones have neither, and are told by name and address.
fn find<'a>(saved: &Saved, netdevs: &'a [Netdev]) -> Option<&'a Netdev> {
    let hardware = saved.parent.is_some() || !saved.permanent.is_empty();
    netdevs.iter().find(|netdev| {
        if hardware {
            netdev.parent == saved.parent && netdev.permanent == saved.permanent
        } else {
            let bare = netdev.parent.is_none() && netdev.permanent.is_empty();
            bare && (netdev.address == saved.address || netdev.name == saved.name)
        }
    })
}

fn names() -> Result<BTreeSet<String>, Why> {
    let mut socket = Socket::<Change>::open().map_err(words)?;
    Ok(socket.netdevs().map_err(words)?.into_iter().map(|netdev| netdev.name).collect())
}

/// Sends an interface of the calling thread's namespace into that behind a descriptor, in which
/// these names are taken.
fn send(saved: &Saved, namespace: &i32, taken: &BTreeSet<String>) -> Result<(), Why> {
    let mut socket = Socket::<Change>::open().map_err(words)?;
    let netdevs = socket.netdevs().map_err(words)?;
    let Some(netdev) = find(saved, &netdevs) else { return Ok(()) };
    let name = free_name(&saved.name, taken);
    let descriptor = u32::try_from(*namespace).unwrap_or(u32::MAX);
    let named = (name != netdev.name).then_some(name.as_str());
    socket.change(change::move_link(netdev.index, descriptor, named)).map_err(words)
}

/// The interface's own name, or where that is taken one that is not.
fn free_name(wanted: &str, taken: &BTreeSet<String>) -> String {
    if !taken.contains(wanted) {
        return wanted.to_owned();
    }
    let free = (0..=taken.len()).map(|n| format!("rdma{n}")).find(|name| !taken.contains(name));
    free.unwrap_or_else(|| wanted.to_owned())
}

/// Gives an interface of the calling thread's namespace its settings; at home its name, link-layer
/// address and state too. Goes on over what fails, and names the first of it.
fn settle(saved: &Saved, home: bool) -> Result<(), Why> {
    let mut socket = Socket::<Change>::open().map_err(words)?;
    let netdevs = socket.netdevs().map_err(words)?;
    let netdev = find(saved, &netdevs).ok_or_else(|| format!("{} is not there", saved.name))?;
    let index = netdev.index;
    let mut first = None;
    let mut tell = |what: &str, done: Result<(), netlink::Error>| {
        if let Err(error) = done {
            first.get_or_insert_with(|| format!("{what}: {}", words(error)));
        }
    };
    let mut name = netdev.name.clone();
    let renamed = home && name != saved.name;
    let readdressed = home && netdev.address != saved.address;
    if (renamed || readdressed) && netdev.up {
        tell("down", socket.change(change::set_up(index, false)));
    }
    if renamed {
        let done = socket.change(change::rename(index, &saved.name));
        if done.is_ok() {
            name.clone_from(&saved.name);
        }
        tell(&format!("its name {}", saved.name), done);
    }
    if readdressed {
        tell("its link-layer address", socket.change(change::set_address(index, &saved.address)));
    }
    if netdev.mtu != saved.mtu {
        tell("its MTU", socket.change(change::set_mtu(index, saved.mtu)));
    }
    for address in &saved.addresses {
        let what = change::address_of(address).map(|ip| ip.to_string()).unwrap_or_default();
        tell(&what, socket.add(change::new_address(address, index)));
    }
    // A pod has use for it only when it is on.
    if saved.up || !home {
        tell("up", socket.change(change::set_up(index, true)));
    }
    for rule in &saved.rules {
        tell("a rule", socket.add(change::new_rule(rule, &saved.name, &name)));
    }
    for route in &saved.routes {
        tell("a route", socket.add(change::new_route(route, index)));
    }
    first.map_or(Ok(()), Err)
}

/// What netlink says, with what to do where that is known.
fn words(error: netlink::Error) -> Why {
    let advice = match error.refusal() {
        Some(Errno::EPERM) => ": rdma-ctk needs CAP_NET_ADMIN for that (see docs/links.md)",
        Some(Errno::EOPNOTSUPP) => {
            ": the driver cannot move its devices, or the node is not in the exclusive mode"
        }
        _ => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests;
