//! Sets of identifiers of pods and containers, of which a node may have thousands: remembered by a
//! hash of 64 bits. That two of one node are taken for one is less likely than that the node fails
//! in the same second.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

/// What hashes depend on; sets that are compared have the same.
#[derive(Debug, Clone, Default)]
pub struct Key(RandomState);

/// A set of identifiers.
#[derive(Debug, Clone, Default)]
pub struct Ids {
    key: Key,
    hashes: HashSet<u64, BuildHasherDefault<AsItIs>>,
}

impl Ids {
    /// None yet.
    pub fn new(key: &Key) -> Self {
        Self { key: key.clone(), hashes: HashSet::default() }
    }

    /// Adds one. True: it was not there.
    pub fn insert(&mut self, id: &str) -> bool {
        self.hashes.insert(self.key.0.hash_one(id))
    }

    /// Takes one out.
    pub fn remove(&mut self, id: &str) {
        self.hashes.remove(&self.key.0.hash_one(id));
    }

    /// Whether it is there.
    pub fn contains(&self, id: &str) -> bool {
        self.hashes.contains(&self.key.0.hash_one(id))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// How many of `others`, which have the same key, are not here; they are afterwards.
    pub fn absorb(&mut self, others: &Self) -> usize {
        let before = self.hashes.len();
        self.hashes.extend(&others.hashes);
        self.hashes.len() - before
    }
}

/// Takes a hash for its own.
#[derive(Debug, Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only ever given hashes, by `write_u64`.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_told_apart() {
        let key = Key::default();
        let (mut some, mut others) = (Ids::new(&key), Ids::new(&key));
        assert!(some.is_empty());
        for n in 0..5000 {
            assert!(some.insert(&format!("{n:064x}")));
            others.insert(&format!("{:064x}", n + 10));
        }
        assert!(!some.insert(&format!("{:064x}", 7)));
        assert!(some.contains(&format!("{:064x}", 4999)) && !some.contains("x"));
        some.remove(&format!("{:064x}", 4999));
        assert_eq!(some.len(), 4999);
        assert_eq!(some.absorb(&others), 11);
    }
}
