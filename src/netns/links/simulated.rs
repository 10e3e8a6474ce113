//! A simulated kernel, for tests: adapters, namespaces that die and are held, a journal that
//! survives, and faults at every step.
//!
//! It does what Linux does as far as moving goes: an interface that changes its namespace loses its
//! addresses and is switched off; a namespace without path and holder dies, and what is in it comes
//! back by itself a little later.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Entry, Fault, Goal, Journal, Kernel, Place, Saved, Sight, Step, Whereabouts};

/// Where a part of an adapter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Home,
    /// In the namespace of that pod.
    Pod(usize),
    /// The kernel brings it back; after so many ticks it is at home.
    Returning(u8),
}

/// What an interface has and loses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    pub mtu: u32,
    pub up: bool,
    /// Addresses, routes and rules, each once.
    pub parts: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub struct Adapter {
    pub rdma: At,
    /// `None`: it has no interface.
    pub netdev: Option<At>,
    pub settings: Settings,
    pub saved: Option<Saved>,
    /// Times that each part went away and came back.
    pub moves: [(u32, u32); 2],
}

#[derive(Debug, Clone, Default)]
pub struct Namespace {
    pub path: bool,
    pub held: bool,
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Good,
    /// Refused, and nothing done.
    Refused,
    /// Refused, and done (in part, where it has parts).
    RefusedLate,
    /// The daemon dies before it.
    CrashBefore,
    /// The daemon dies after it, or in the middle.
    CrashAfter,
}

#[derive(Debug, Default)]
pub struct World {
    pub boot: u32,
    pub adapters: BTreeMap<String, Adapter>,
    pub pods: BTreeMap<usize, Namespace>,
    pub journal: BTreeMap<String, Entry>,
    /// What is to happen next, the last first.
    pub fates: Vec<Fate>,
    /// The daemon is dead: nothing works until another one starts.
    pub crashed: bool,
    pub wrong: Vec<String>,
}

/// The world, as a kernel and as a journal.
#[derive(Debug, Clone)]
pub struct Handle(pub Arc<Mutex<World>>);

impl Handle {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

impl World {
    /// Adapters as they are after a boot: every third without an interface.
    pub fn new(adapters: usize) -> Self {
        let mut world = Self::default();
        for n in 0..adapters {
            let name = format!("mlx5_{n}");
            let saved = (n % 3 != 2).then(|| Saved {
                name: format!("eth{n}"),
                mtu: 4200,
                up: true,
                address: vec![2, 0, 0, 0, 0, u8::try_from(n).unwrap()],
                addresses: vec![vec![1, 1], vec![1, 2]],
                routes: vec![vec![2, 1]],
                rules: vec![vec![3, 1]],
                ..Saved::default()
            });
            let settings = Self::at_home(saved.as_ref());
            let netdev = saved.as_ref().map(|_| At::Home);
            let adapter = Adapter { rdma: At::Home, netdev, settings, saved, moves: [(0, 0); 2] };
            world.adapters.insert(name, adapter);
        }
        world
    }

    pub fn at_home(saved: Option<&Saved>) -> Settings {
        let saved = saved.cloned().unwrap_or_default();
        let parts = [saved.addresses, saved.routes, saved.rules].concat();
        Settings {
            name: saved.name,
            mtu: saved.mtu,
            up: saved.up,
            parts: parts.into_iter().collect(),
        }
    }

    /// Everything is at home, and the journal is as it was.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.pods.clear();
        for adapter in self.adapters.values_mut() {
            adapter.rdma = At::Home;
            adapter.netdev = adapter.netdev.map(|_| At::Home);
            adapter.settings = Self::at_home(adapter.saved.as_ref());
            for moves in &mut adapter.moves {
                moves.1 = moves.0;
            }
        }
    }

    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    pub fn entry(&self, hca: &str, pod: usize) -> Entry {
        Entry {
            boot: self.boot_id(),
            pod: format!("ml/pod-{pod}"),
            sandbox: format!("box-{pod}"),
            namespace: Place {
                path: format!("/run/netns/{pod}").into(),
                device: 4,
                inode: pod as u64,
            },
            hca: hca.to_owned(),
            index: 1,
            adapter: None,
            netdev: self.adapters[hca].saved.clone(),
            goal: Goal::Inside,
            step: None,
            settled: false,
            stuck: None,
        }
    }

    fn alive(&self, pod: usize) -> bool {
        self.pods.get(&pod).is_some_and(|namespace| namespace.path || namespace.held)
    }

    /// Time goes by: namespaces that nobody holds die, and what was in them comes back.
    pub fn tick(&mut self) {
        let alive: BTreeSet<usize> =
            self.pods.keys().copied().filter(|&pod| self.alive(pod)).collect();
        for adapter in self.adapters.values_mut() {
            let mut parts = [Some(&mut adapter.rdma), adapter.netdev.as_mut()];
            for (place, part) in parts.iter_mut().enumerate() {
                let Some(part) = part else { continue };
                match **part {
                    At::Pod(pod) if !alive.contains(&pod) => {
                        **part = At::Returning(2);
                        if place == 1 {
                            // The kernel calls it so where its name is taken.
                            adapter.settings.name = "dev7".into();
                        }
                    }
                    At::Returning(0) => {
                        **part = At::Home;
                        adapter.moves[place].1 += 1;
                        if place == 1 {
                            adapter.settings.parts.clear();
                            adapter.settings.up = false;
                        }
                    }
                    At::Returning(left) => **part = At::Returning(left - 1),
                    _ => {}
                }
            }
        }
        self.pods.retain(|pod, _| alive.contains(pod));
    }

    fn fate(&mut self) -> Fate {
        if self.crashed { Fate::CrashBefore } else { self.fates.pop().unwrap_or(Fate::Good) }
    }

    /// Does something with a fate; `Err` with what the daemon is told.
    fn with_fate(
        &mut self,
        act: impl FnOnce(&mut Self, bool) -> Result<(), String>,
    ) -> Result<(), String> {
        let fate = self.fate();
        match fate {
            Fate::Good => act(self, true),
            Fate::Refused => Err("refused".into()),
            Fate::CrashBefore => {
                self.crashed = true;
                Err("dead".into())
            }
            Fate::RefusedLate => {
                act(self, false)?;
                Err("refused late".into())
            }
            Fate::CrashAfter => {
                self.crashed = true;
                act(self, false)?;
                Err("dead".into())
            }
        }
    }

    fn change(&mut self, entry: &Entry, step: Step, whole: bool) -> Result<(), String> {
        let pod = usize::try_from(entry.namespace.inode).unwrap();
        let alive = self.alive(pod);
        let Some(adapter) = self.adapters.get_mut(&entry.hca) else {
            return Err("no device".into());
        };
        let (here, there) = (At::Pod(pod), At::Home);
        if matches!(step, Step::NetdevIn | Step::RdmaIn | Step::SettingsIn) && !alive {
            return Err("no namespace".into());
        }
        match step {
            Step::RdmaIn if adapter.rdma == there => {
                adapter.rdma = here;
                adapter.moves[0].0 += 1;
            }
            Step::RdmaOut if adapter.rdma == here => {
                adapter.rdma = there;
                adapter.moves[0].1 += 1;
            }
            Step::NetdevIn | Step::NetdevOut => {
                if step == Step::NetdevOut && adapter.rdma == here {
                    self.wrong.push(format!("{}: the interface came back first", entry.hca));
                }
                let (from, to) = if step == Step::NetdevIn { (there, here) } else { (here, there) };
                if adapter.netdev == Some(from) {
                    adapter.netdev = Some(to);
                    adapter.settings.parts.clear();
                    adapter.settings.up = false;
                    let moves = &mut adapter.moves[1];
                    if to == here { moves.0 += 1 } else { moves.1 += 1 }
                }
            }
            Step::SettingsIn | Step::SettingsOut => {
                let place = if step == Step::SettingsIn { here } else { there };
                if adapter.netdev != Some(place) {
                    return Err("no interface".into());
                }
                let mut wanted = Self::at_home(entry.netdev.as_ref());
                if whole {
                    adapter.settings = wanted;
                } else {
                    // Somewhere in the middle.
                    adapter.settings.mtu = wanted.mtu;
                    adapter.settings.parts.extend(wanted.parts.pop_first());
                }
            }
            // Done already, or undone by somebody.
            Step::RdmaIn | Step::RdmaOut => {}
        }
        Ok(())
    }
}

impl Kernel for Handle {
    fn sight(&mut self, entry: &Entry) -> Result<Sight, Fault> {
        let mut world = self.world();
        let fault = |reason| Fault::Sight { hca: entry.hca.clone(), reason };
        world.with_fate(|_, _| Ok(())).map_err(fault)?;
        let pod = usize::try_from(entry.namespace.inode).unwrap();
        let place = |at: At| match at {
            At::Home => Whereabouts::Home,
            At::Pod(at) if at == pod => Whereabouts::Inside,
            _ => Whereabouts::Unseen,
        };
        let adapter = &world.adapters[&entry.hca];
        Ok(Sight {
            rdma: place(adapter.rdma),
            netdev: adapter.netdev.map_or(Whereabouts::Home, place),
            namespace: world.alive(pod),
        })
    }

    fn act(&mut self, entry: &Entry, step: Step) -> Result<(), Fault> {
        let mut world = self.world();
        if world.journal.get(&entry.hca).is_none_or(|written| written.step != Some(step)) {
            let told = format!("{}: {step:?} was not written down before", entry.hca);
            world.wrong.push(told);
        }
        let done = world.with_fate(|world, whole| world.change(entry, step, whole));
        done.map_err(|reason| Fault::Step { hca: entry.hca.clone(), step, reason })
    }

    fn holders(&mut self, _: &Entry) -> String {
        "somebody holds it".into()
    }
}

impl Journal for Handle {
    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let done = self.world().with_fate(|world, _| {
            world.journal.insert(entry.hca.clone(), entry.clone());
            Ok(())
        });
        done.map_err(io::Error::other)
    }

    fn remove(&mut self, hca: &str) -> io::Result<()> {
        let done = self.world().with_fate(|world, _| {
            world.journal.remove(hca);
            Ok(())
        });
        done.map_err(io::Error::other)
    }
}
