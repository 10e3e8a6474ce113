//! Adapters that move into a pod, and always come back.
//!
//! An adapter is an RDMA device and its network interface, each with a namespace of its own to be
//! in. What is to become of them is an [`Entry`], which is on disk before anything is done. From
//! there it is never remembered what was done, only looked at where things are ([`Sight`]) and
//! taken one step ([`advance`]) towards the [`Goal`]. So a step that was begun and not finished, by
//! us or by the kernel, needs no case of its own: whoever looks next sees where it has led.
//!
//! On the way in the interface goes first, on the way back the RDMA device: whoever looks for
//! RDMA devices when an interface appears then finds its device there.

pub mod fleet;
pub mod holders;
pub mod linux;
pub mod users;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::inventory::Hca;

/// An adapter that is away, is going or is coming back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The boot (`/proc/sys/kernel/random/boot_id`) in which this is true.
    pub boot: String,
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Its sandbox.
    pub sandbox: String,
    /// Its network namespace.
    pub namespace: Place,
    /// Kernel name of the RDMA device.
    pub hca: String,
    /// `RDMA_NLDEV_ATTR_DEV_INDEX`, which it keeps in every namespace.
    pub index: u32,
    /// The adapter as the host saw it before, which it does not any more.
    #[serde(default)]
    pub adapter: Option<Box<Hca>>,
    /// Its network interface as it was; `None` for an adapter without one.
    pub netdev: Option<Saved>,
    /// Where it is to be.
    pub goal: Goal,
    /// What was begun last; `None`: nothing yet, or it is where it should be.
    pub step: Option<Step>,
    /// Whether the interface has its settings where it is to be.
    pub settled: bool,
    /// Why it does not get there, if it was tried.
    #[serde(default)]
    pub stuck: Option<String>,
}

impl Entry {
    /// From now on it is to come back.
    pub fn call_home(&mut self) {
        if self.goal != Goal::Home {
            self.goal = Goal::Home;
            self.settled = false;
            self.step = None;
        }
    }

    /// Whether it is in the pod with all that belongs to it, as far as was written down.
    pub fn is_inside(&self) -> bool {
        self.goal == Goal::Inside && self.step.is_none() && self.settled
    }
}

/// A network namespace, told from others that have its path later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Path that the runtime gave.
    pub path: PathBuf,
    /// Device of the namespace's inode.
    pub device: u64,
    /// Number of the inode, which `/proc/PID/ns/net` shows as `net:[NUMBER]`.
    pub inode: u64,
}

/// A network interface as it was at home.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Name.
    pub name: String,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Whether it was switched on.
    pub up: bool,
    /// Link-layer address.
    #[serde(with = "hexadecimal")]
    pub address: Vec<u8>,
    /// That which the card was made with; empty where there is none.
    #[serde(with = "hexadecimal")]
    pub permanent: Vec<u8>,
    /// The device that it belongs to.
    pub parent: Option<String>,
    /// Addresses, each as the body of a message that sets it.
    #[serde(with = "hexadecimal::each")]
    pub addresses: Vec<Vec<u8>>,
    /// Routes, likewise.
    #[serde(with = "hexadecimal::each")]
    pub routes: Vec<Vec<u8>>,
    /// Rules that name it or its addresses, likewise.
    #[serde(with = "hexadecimal::each")]
    pub rules: Vec<Vec<u8>>,
}

/// Where an adapter is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// In the pod.
    Inside,
    /// With the host.
    Home,
}

/// One step. Each may be done again after it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The interface moves into the pod.
    NetdevIn,
    /// It gets its settings there.
    SettingsIn,
    /// The RDMA device moves into the pod.
    RdmaIn,
    /// The RDMA device moves back.
    RdmaOut,
    /// The interface moves back.
    NetdevOut,
    /// It gets its name and settings back.
    SettingsOut,
}

impl Step {
    /// The step in words, behind the adapter's name.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NetdevIn => "the interface does not go into the pod",
            Self::SettingsIn => "the interface does not get its settings in the pod",
            Self::RdmaIn => "the RDMA device does not go into the pod",
            Self::RdmaOut => "the RDMA device does not come back",
            Self::NetdevOut => "the interface does not come back",
            Self::SettingsOut => "the interface does not get its settings back",
        }
    }
}

/// Where something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// In the host's namespace.
    Home,
    /// In the pod's.
    Inside,
    /// In neither.
    Unseen,
}

/// Where the parts of an adapter are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// The RDMA device.
    pub rdma: Whereabouts,
    /// The interface; [`Whereabouts::Home`] for an adapter without one.
    pub netdev: Whereabouts,
    /// Whether the pod's namespace is still there.
    pub namespace: bool,
}

/// Something did not work.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be seen where things are.
    #[error("{hca}: {reason}")]
    Sight {
        /// Which adapter.
        hca: String,
        /// Why, as a sentence without its end.
        reason: String,
    },
    /// A step was refused.
    #[error("{hca}: {}: {reason}", step.words())]
    Step {
        /// Which adapter.
        hca: String,
        /// Which step.
        step: Step,
        /// Why, as a sentence without its end.
        reason: String,
    },
    /// The pod's namespace is gone.
    #[error("{hca}: the pod's network namespace is gone")]
    NamespaceGone {
        /// Which adapter.
        hca: String,
    },
    /// A part is in neither namespace.
    #[error("{hca}: its {part} is neither with the host nor in the pod")]
    Unseen {
        /// Which adapter.
        hca: String,
        /// `RDMA device` or `network interface`.
        part: &'static str,
    },
    /// It could not be written down, so it is not done.
    #[error("{hca}: the journal cannot be written: {source}")]
    Journal {
        /// Which adapter.
        hca: String,
        /// Why not.
        source: io::Error,
    },
}

/// What moves things. The kernel's own is [`linux::Linux`].
pub trait Kernel: Send {
    /// Where the parts of an adapter are now.
    ///
    /// # Errors
    /// The host's own namespace cannot be looked at.
    fn sight(&mut self, entry: &Entry) -> Result<Sight, Fault>;

    /// Does a step; that it was done already, in part or in full, is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    fn act(&mut self, entry: &Entry, step: Step) -> Result<(), Fault>;

    /// Who holds the pod's namespace, as part of a sentence.
    fn holders(&mut self, entry: &Entry) -> String;
}

/// Where entries are kept. What was written is there after a crash.
pub trait Journal: Send {
    /// Writes an entry in the place of the adapter's last one.
    ///
    /// # Errors
    /// It is not on disk.
    fn write(&mut self, entry: &Entry) -> io::Result<()>;

    /// Removes the adapter's entry; that there is none is no error.
    ///
    /// # Errors
    /// It is still on disk.
    fn remove(&mut self, hca: &str) -> io::Result<()>;
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A step was made.
    Step,
    /// It is where it should be; if that is at home, the entry is gone from the journal.
    There,
}

/// Takes an adapter one step towards its goal: looks, writes down, acts.
///
/// # Errors
/// Why it gets no further; to be tried again later.
pub fn advance(
    entry: &mut Entry,
    kernel: &mut dyn Kernel,
    journal: &mut dyn Journal,
) -> Result<Progress, Fault> {
    let unwritten = |hca: &str| {
        let hca = hca.to_owned();
        move |source| Fault::Journal { hca, source }
    };
    let sight = kernel.sight(entry)?;
    match next(entry, &sight)? {
        Some(step) => {
            if matches!(step, Step::NetdevIn | Step::NetdevOut) {
                entry.settled = false;
            }
            entry.step = Some(step);
            journal.write(entry).map_err(unwritten(&entry.hca))?;
            kernel.act(entry, step)?;
            entry.settled |= matches!(step, Step::SettingsIn | Step::SettingsOut);
            Ok(Progress::Step)
        }
        None if entry.goal == Goal::Inside => {
            entry.step = None;
            entry.settled = true;
            journal.write(entry).map_err(unwritten(&entry.hca))?;
            Ok(Progress::There)
        }
        None => {
            journal.remove(&entry.hca).map_err(unwritten(&entry.hca))?;
            Ok(Progress::There)
        }
    }
}

/// The next step; `None`: there is nothing left to do.
fn next(entry: &Entry, sight: &Sight) -> Result<Option<Step>, Fault> {
    use Whereabouts::{Home, Inside, Unseen};
    let unseen = |part| Fault::Unseen { hca: entry.hca.clone(), part };
    let has_netdev = entry.netdev.is_some();
    match entry.goal {
        Goal::Inside if !sight.namespace => Err(Fault::NamespaceGone { hca: entry.hca.clone() }),
        Goal::Inside => match (sight.netdev, sight.rdma) {
            (Home, _) if has_netdev => Ok(Some(Step::NetdevIn)),
            (Unseen, _) => Err(unseen("network interface")),
            (Inside, _) if !entry.settled => Ok(Some(Step::SettingsIn)),
            (_, Home) => Ok(Some(Step::RdmaIn)),
            (_, Unseen) => Err(unseen("RDMA device")),
            (_, Inside) => Ok(None),
        },
        Goal::Home => match (sight.rdma, sight.netdev) {
            (Inside, _) => Ok(Some(Step::RdmaOut)),
            // What can come back does, whatever the other part does.
            (_, Inside) => Ok(Some(Step::NetdevOut)),
            (_, Unseen) => Err(unseen("network interface")),
            (_, Home) if has_netdev && !entry.settled => Ok(Some(Step::SettingsOut)),
            (Unseen, _) => Err(unseen("RDMA device")),
            (Home, _) => Ok(None),
        },
    }
}

/// Takes an adapter all the way.
///
/// # Errors
/// Why it gets no further.
pub fn run(
    entry: &mut Entry,
    kernel: &mut dyn Kernel,
    journal: &mut dyn Journal,
) -> Result<(), Fault> {
    // Six steps lead anywhere. More mean that somebody undoes them.
    for _ in 0..STEPS {
        if advance(entry, kernel, journal)? == Progress::There {
            return Ok(());
        }
    }
    Err(Fault::Sight {
        hca: entry.hca.clone(),
        reason: format!("it is not where it should be after {STEPS} steps"),
    })
}

/// Most steps at a time.
const STEPS: usize = 16;

/// Takes an entry over that was written before a restart: one whose way in was not completed is on
/// its way home. `false`: it is of another boot, after which everything is at home, and is to be
/// forgotten.
pub fn resume(entry: &mut Entry, boot: &str) -> bool {
    if entry.boot != boot {
        return false;
    }
    if !entry.is_inside() {
        entry.call_home();
        // Whether the last step of a way home was done, is not known.
        entry.settled = false;
    }
    true
}

/// Bytes as hexadecimal digits.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    fn write(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(text: &str) -> Result<Vec<u8>, String> {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) {
            return Err(format!("{text:?} has an odd number of digits"));
        }
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).map_err(|_| format!("{text:?} is no number"))?;
            u8::from_str_radix(pair, 16).map_err(|_| format!("{text:?} is no number"))
        };
        digits.chunks(2).map(byte).collect()
    }

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&write(bytes))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        read(&String::deserialize(from)?).map_err(D::Error::custom)
    }

    pub mod each {
        use super::{Deserialize, Deserializer, Error, Serializer};

        pub fn serialize<S: Serializer>(all: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq(all.iter().map(|bytes| super::write(bytes)))
        }

        pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
            let all = Vec::<String>::deserialize(from)?;
            all.iter()
                .map(|text| super::read(text))
                .collect::<Result<_, _>>()
                .map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
