//! Values that are one of a few words, and how each value is written.

use std::fmt;

use super::error::Problem;
use super::nearest::nearest;
use super::{
    Devices, EnvFamily, EnvMode, Limits, Link, Memlock, NetnsRequest, NodeKind, NumaMode,
    Requirement, Selector, SmcMethod, quantity,
};

/// A value that is one of a few words.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// Every word with its value, in the order of the documentation. Of several words for one value
    /// the first is the one that is written.
    const WORDS: &'static [(&'static str, Self)];

    /// The value of that word.
    fn from_word(word: &str) -> Result<Self, Problem> {
        Self::WORDS
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, value)| *value)
            .ok_or_else(|| unknown(word, Self::WORDS.iter().map(|(known, _)| *known)))
    }

    /// The word of that value.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// The complaint about a word that is none of those.
pub(super) fn unknown<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Problem {
    Problem::Word {
        word: super::error::shown(word),
        meant: nearest(word, known.clone()).map(str::to_owned),
        known: known.collect::<Vec<_>>().join(", "),
    }
}

impl Words for NodeKind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("uverbs", Self::Uverbs),
        ("rdma_cm", Self::RdmaCm),
        ("umad", Self::Umad),
        ("issm", Self::Issm),
    ];
}

impl Words for NumaMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("prefer", Self::Prefer), ("strict", Self::Strict), ("off", Self::Off)];
}

impl Words for EnvFamily {
    const WORDS: &'static [(&'static str, Self)] =
        &[("nccl", Self::Nccl), ("ucx", Self::Ucx), ("nvshmem", Self::Nvshmem), ("mpi", Self::Mpi)];
}

impl Words for NetnsRequest {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("shared", Self::Shared),
        ("exclusive", Self::Exclusive),
        ("ipvlan", Self::Ipvlan),
        ("macvlan", Self::Macvlan),
        ("host", Self::Host),
    ];
}

impl Words for SmcMethod {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("auto", Self::Auto),
        ("tcp2smc", Self::Tcp2smc),
        ("bpf", Self::Bpf),
        ("preload", Self::Preload),
    ];
}

impl Words for Requirement {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("rdma_cm", Self::RdmaCm),
        ("gpudirect", Self::Gpudirect),
        ("roce-interface", Self::RoceInterface),
        ("gid", Self::Gid),
    ];
}

impl Words for Link {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("infiniband", Self::InfiniBand),
        ("ib", Self::InfiniBand),
        ("roce", Self::Roce),
        ("iwarp", Self::Iwarp),
        ("other", Self::Other),
    ];
}

/// Writes values as an annotation has them.
macro_rules! written {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}
written!(NodeKind, NumaMode, EnvFamily, NetnsRequest, SmcMethod, Requirement, Link);

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => f.write_str(&quantity::format(*bytes)),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Select(selectors) => list(f, selectors),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Pci(address) => write!(f, "pci:{address}"),
            Self::Netdev(name) => write!(f, "netdev:{name}"),
            Self::Driver(name) => write!(f, "driver:{name}"),
            Self::Link(link) => write!(f, "link:{link}"),
            Self::Numa(node) => write!(f, "numa:{node}"),
            Self::Gpu => f.write_str("gpu"),
            Self::Rail(places) => {
                f.write_str("rail:")?;
                list(f, places)
            }
        }
    }
}

impl fmt::Display for EnvMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = self.families.len() == EnvFamily::ALL.len();
        match (every, self.families.is_empty(), self.file) {
            (true, _, true) => f.write_str("file"),
            (true, _, false) => f.write_str("auto"),
            (_, true, _) => f.write_str("off"),
            (_, _, file) => {
                list(f, &self.families)?;
                if file { f.write_str(",file") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("hca_handle", self.hca_handle), ("hca_object", self.hca_object)];
        let parts =
            parts.into_iter().filter_map(|(name, limit)| Some(format!("{name}={}", limit?)));
        list(f, parts)
    }
}

fn list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
) -> fmt::Result {
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
