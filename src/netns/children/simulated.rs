//! Namespaces that refuse when they are told to, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::book::Leasing;
use super::{Child, Entry, Ground, Inside, Journal, Kind, State, Unmade};
use crate::inventory::Prefix;
use crate::netns::addresses::{Lease, Prober, Setting, Wanted, Wish};
use crate::netns::links::Place;
use crate::policy::Pools;

/// Everything that a simulated node has.
#[derive(Debug, Default)]
pub struct World {
    /// What is in each namespace, by its inode: names with their parents.
    pub namespaces: BTreeMap<u64, BTreeMap<String, Child>>,
    /// What was set, in order.
    pub set: Vec<String>,
    /// Addresses that are leased, by sandbox.
    pub leased: BTreeMap<String, BTreeSet<String>>,
    /// Addresses that somebody else has.
    pub foreign: BTreeSet<String>,
    /// What is on disk.
    pub journal: BTreeMap<String, Entry>,
    /// How many operations may still be done before one fails; `None`: all.
    pub budget: Option<u32>,
    /// Whether everything after that fails too, as after a crash.
    pub crashed: bool,
    /// Sub-interfaces that do not go.
    pub sticky: bool,
    /// Whether nobody on the wire answers, nor says that there is nobody, for now.
    pub silent: bool,
    /// How many ask on the wire.
    pub asking: usize,
}

impl World {
    fn spend(&mut self) -> Result<(), String> {
        if self.crashed {
            return Err("it has crashed".to_owned());
        }
        match &mut self.budget {
            None => Ok(()),
            Some(0) => {
                self.budget = None;
                Err("the kernel refuses".to_owned())
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

/// A hand on a world; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Hand(Arc<Mutex<World>>);

impl Hand {
    /// The world.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

/// The place with that number.
pub fn place(inode: u64) -> Place {
    Place { path: format!("/run/netns/pod-{inode}").into(), device: 4, inode }
}

/// What is to be made for the adapter of that number.
pub fn child(number: u32) -> Child {
    Child {
        hca: format!("mlx5_{number}"),
        kind: Kind::Ipvlan,
        parent: format!("eth{number}"),
        parent_index: 10 + number,
        interface: String::new(),
        index: None,
        mac: String::new(),
        mtu: 0,
        addresses: Vec::new(),
    }
}

/// An entry with one sub-interface that was made.
pub fn entry(sandbox: &str) -> Entry {
    let made = Child {
        interface: "rdma0".into(),
        index: Some(2),
        mac: "02:00:00:00:00:01".into(),
        mtu: 1500,
        ..child(0)
    };
    Entry {
        boot: "boot-0".into(),
        pod: format!("ml/{sandbox}"),
        sandbox: sandbox.into(),
        namespace: place(1),
        children: vec![made],
        state: State::Made,
        stuck: None,
    }
}

impl Ground for Hand {
    fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        let inode = path.to_str().and_then(|path| path.rsplit('-').next()?.parse().ok());
        let inode = inode.ok_or("no such namespace")?;
        self.world().namespaces.entry(inode).or_default();
        Ok(Some(place(inode)))
    }

    fn enter(&self, place: &Place) -> Result<Option<Box<dyn Inside>>, String> {
        self.world().spend()?;
        let there = self.world().namespaces.contains_key(&place.inode);
        Ok(there.then(|| Box::new(Room(self.clone(), place.inode)) as Box<dyn Inside>))
    }

    fn holders(&self, _: &Place) -> String {
        "nobody seen holds it".to_owned()
    }
}

struct Room(Hand, u64);

impl Inside for Room {
    fn names(&mut self) -> Result<BTreeSet<String>, String> {
        let mut world = self.0.world();
        world.spend()?;
        let room = world.namespaces.get(&self.1).ok_or("gone")?;
        Ok(room.keys().cloned().chain(["lo".to_owned(), "eth0".to_owned()]).collect())
    }

    fn create(&mut self, child: &mut Child) -> Result<(), Unmade> {
        let mut world = self.0.world();
        world.spend().map_err(Unmade::Refused)?;
        let room = world.namespaces.entry(self.1).or_default();
        if room.contains_key(&child.interface) {
            return Err(Unmade::Taken);
        }
        child.index = Some(u32::try_from(room.len()).unwrap() + 3);
        child.mac = "02:00:00:00:00:01".into();
        child.mtu = 1500;
        let bare = Child { addresses: Vec::new(), ..child.clone() };
        room.insert(child.interface.clone(), bare);
        Ok(())
    }

    fn prober<'a>(&'a self, _: &'a [Child]) -> Box<dyn Prober + 'a> {
        self.0.world().asking += 1;
        while self.0.world().silent {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.0.world().asking -= 1;
        Box::new(Foreign(self.0.world().foreign.clone()))
    }

    fn give(&mut self, child: &Child, address: Prefix) -> Result<(), String> {
        let mut world = self.0.world();
        world.spend()?;
        world.set.push(format!("{} {address}", child.interface));
        let room = world.namespaces.get_mut(&self.1).ok_or("gone")?;
        room.get_mut(&child.interface).ok_or("gone")?.addresses.push(address);
        Ok(())
    }

    fn set(&mut self, setting: &Setting) -> Result<(), String> {
        let mut world = self.0.world();
        world.spend()?;
        world.set.push(format!("{setting:?}"));
        Ok(())
    }

    fn remove(&mut self, child: &Child) -> Result<(), String> {
        let mut world = self.0.world();
        world.spend()?;
        if world.sticky {
            return Err(format!("{}: it stays", child.interface));
        }
        if let Some(room) = world.namespaces.get_mut(&self.1) {
            room.remove(&child.interface);
        }
        Ok(())
    }
}

struct Foreign(BTreeSet<String>);

impl Prober for Foreign {
    fn in_use(&mut self, address: std::net::IpAddr) -> Result<bool, String> {
        Ok(self.0.contains(&address.to_string()))
    }
}

impl Journal for Hand {
    fn write(&self, entry: &Entry) -> io::Result<()> {
        let mut world = self.world();
        world.spend().map_err(io::Error::other)?;
        world.journal.insert(entry.sandbox.clone(), entry.clone());
        Ok(())
    }

    fn remove(&self, sandbox: &str) -> io::Result<()> {
        let mut world = self.world();
        world.spend().map_err(io::Error::other)?;
        world.journal.remove(sandbox);
        Ok(())
    }
}

/// Ten addresses, the first free one of which is given.
impl Leasing for Hand {
    fn take(
        &self,
        wishes: &[(Wish, Pools)],
        prober: &mut dyn Prober,
    ) -> Vec<Result<Lease, String>> {
        wishes.iter().map(|(wish, _)| self.world().take(wish, prober)).collect()
    }

    fn release(&self, sandbox: &str) -> Result<(), String> {
        let mut world = self.world();
        world.spend()?;
        world.leased.remove(sandbox);
        Ok(())
    }

    fn retain(&self, wanted: &dyn Fn(&str) -> bool) -> Result<(), String> {
        self.world().leased.retain(|sandbox, _| wanted(sandbox));
        Ok(())
    }
}

impl World {
    fn take(&mut self, wish: &Wish, prober: &mut dyn Prober) -> Result<Lease, String> {
        self.spend()?;
        let taken: BTreeSet<String> = self.leased.values().flatten().cloned().collect();
        let mut addresses = Vec::new();
        for number in (0..10).filter(|_| wish.wanted == Wanted::Pool) {
            let address = format!("10.1.0.{number}");
            if !taken.contains(&address) && !prober.in_use(address.parse().unwrap())? {
                addresses.push(format!("{address}/24").parse().unwrap());
                self.leased.entry(wish.sandbox.clone()).or_default().insert(address);
                break;
            }
        }
        if addresses.is_empty() && wish.wanted == Wanted::Pool {
            return Err("no address is free".to_owned());
        }
        Ok(Lease {
            boot: wish.boot.clone(),
            sandbox: wish.sandbox.clone(),
            pod: wish.pod.clone(),
            hca: wish.hca.clone(),
            interface: None,
            addresses,
            gateways: Vec::new(),
            routes: Vec::new(),
        })
    }
}
