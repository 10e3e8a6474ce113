//! Sets of CPU or NUMA node numbers in the kernel's list format (`0-3,8,10-11`), as found in
//! `local_cpulist`, `cpuset.cpus` and an OCI document's `linux.resources.cpu.cpus`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Numbers above this are refused: no kernel is built for more CPUs (`NR_CPUS`), and a range typed
/// by a tenant must not become an allocation of any size.
pub const HIGHEST: u32 = 65_535;

/// A set of CPU (or NUMA node) numbers.
///
/// A bit for each number, in words of 64: sets are made and compared while a runtime waits, and
/// every HCA of a node has one. The last word is never zero, so that equal sets are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(Vec<u64>);

/// Word and bit of a number.
const fn place(number: u32) -> (usize, u64) {
    ((number / u64::BITS) as usize, 1 << (number % u64::BITS))
}

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
        Self(Vec::new())
    }

    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// No CPU at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        let (word, bit) = place(cpu);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).step_by(u64::BITS as usize).zip(&self.0).flat_map(|(first, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < u64::BITS).then_some(first + bit)
            })
        })
    }

    /// CPUs in both.
    pub fn intersection(&self, other: &Self) -> Self {
        Self::of(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours & theirs).collect())
    }

    /// CPUs in either.
    pub fn union(&self, other: &Self) -> Self {
        let (mut words, fewer) = if self.0.len() < other.0.len() {
            (other.0.clone(), &self.0)
        } else {
            (self.0.clone(), &other.0)
        };
        words.iter_mut().zip(fewer).for_each(|(word, theirs)| *word |= theirs);
        Self(words)
    }

    /// CPUs of this set that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        let mut words = self.0.clone();
        words.iter_mut().zip(&other.0).for_each(|(word, theirs)| *word &= !theirs);
        Self::of(words)
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.len() <= other.0.len()
            && self.0.iter().zip(&other.0).all(|(ours, theirs)| ours & !theirs == 0)
    }

    /// The set of these words.
    fn of(mut words: Vec<u64>) -> Self {
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        Self(words)
    }

    fn insert(&mut self, number: u32) {
        let (word, bit) = place(number);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }
}

impl FromIterator<u32> for CpuSet {
    /// Numbers above [`HIGHEST`], which no kernel has, are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        let mut set = Self::new();
        iter.into_iter().filter(|number| *number <= HIGHEST).for_each(|number| set.insert(number));
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(list: &str) -> Result<Self, CpuSetError> {
        let bad = |part: &str| CpuSetError::Part { list: list.to_owned(), part: part.to_owned() };
        let mut set = Self::new();
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
            (low..=high).for_each(|number| set.insert(number));
        }
        Ok(set)
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
        let mut numbers = self.iter().peekable();
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

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

    proptest! {
        /// As sets of numbers do.
        #[test]
        fn sets_do_what_sets_do(one in numbers(), other in numbers()) {
            let (a, b): (CpuSet, CpuSet) =
                (one.iter().copied().collect(), other.iter().copied().collect());
            let same = |set: CpuSet, numbers: BTreeSet<u32>| {
                set.iter().eq(numbers.iter().copied())
                    && set.len() == numbers.len()
                    && set.is_empty() == numbers.is_empty()
                    && set == numbers.into_iter().collect()
                    && set.to_string().parse() == Ok(set)
            };
            prop_assert!(same(a.union(&b), &one | &other));
            prop_assert!(same(a.intersection(&b), &one & &other));
            prop_assert!(same(a.difference(&b), &one - &other));
            prop_assert_eq!(a.is_subset(&b), one.is_subset(&other));
            prop_assert!(a.intersection(&b).is_subset(&a));
            prop_assert!((0..300).all(|cpu| a.contains(cpu) == one.contains(&cpu)));
        }
    }

    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0_u32..260, 0..20)
    }

    #[test]
    fn numbers_that_no_kernel_has_are_left_out() {
        let set: CpuSet = [3, HIGHEST, HIGHEST + 1, u32::MAX].into_iter().collect();
        assert_eq!(set.to_string(), format!("3,{HIGHEST}"));
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
