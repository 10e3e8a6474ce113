//! Sets of CPU or NUMA node numbers in the kernel's list format (`0-3,8,10-11`), as found in
//! `local_cpulist`, `cpuset.cpus` and an OCI document's `linux.resources.cpu.cpus`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Numbers above this are refused: no kernel is built for more CPUs (`NR_CPUS`), and a range typed
/// by a tenant must not become an allocation of any size.
pub const HIGHEST: u32 = 65_535;

/// A set of CPU (or NUMA node) numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// Why a text is no CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part is neither `N` nor `N-M` with N not above M.
    #[error("{part:?} in CPU list {list:?} is neither a number nor a range")]
    Part {
        /// The whole text.
        list: String,
        /// The part that does not parse.
        part: String,
    },
    /// A number is above [`HIGHEST`].
    #[error("CPU {number} in CPU list {list:?} is above {HIGHEST}")]
    TooHigh {
        /// The whole text.
        list: String,
        /// The number.
        number: u32,
    },
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No CPU at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// CPUs in both.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// CPUs in either.
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// CPUs of this set that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(list: &str) -> Result<Self, CpuSetError> {
        let bad = |part: &str| CpuSetError::Part { list: list.to_owned(), part: part.to_owned() };
        let mut set = BTreeSet::new();
        for part in list.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad(part));
            let (low, high) = match part.split_once('-') {
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(part)?, number(part)?),
            };
            if low > high {
                return Err(bad(part));
            }
            if high > HIGHEST {
                return Err(CpuSetError::TooHigh { list: list.to_owned(), number: high });
            }
            set.extend(low..=high);
        }
        Ok(Self(set))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;

    fn try_from(list: String) -> Result<Self, CpuSetError> {
        list.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(low) = numbers.next() {
            let mut high = low;
            while let Some(next) = numbers.next_if(|&next| next == high + 1) {
                high = next;
            }
            if low == high {
                write!(f, "{separator}{low}")?;
            } else {
                write!(f, "{separator}{low}-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_in_the_kernels_form() {
        for (text, written, len) in [
            ("", "", 0),
            ("0", "0", 1),
            ("0-3\n", "0-3", 4),
            ("0-55,112-167", "0-55,112-167", 112),
            ("3,1,2", "1-3", 3),
            (" 1 , 3 ", "1,3", 2),
            ("5-5", "5", 1),
        ] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.len()), (written, len), "{text:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for text in ["a", "3-1", "1-", "-1", "1-2-3", "0x3", "4294967296"] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert!(matches!(error, CpuSetError::Part { .. }), "{text:?}: {error}");
        }
        let error = "0-4294967295".parse::<CpuSet>().unwrap_err();
        assert!(matches!(error, CpuSetError::TooHigh { number: u32::MAX, .. }), "{error}");
    }
}
