//! A short number for a text that is the same on every build and machine, which the standard
//! library's hasher does not promise.

use std::io;

use super::Grant;

/// FNV-1a, 64 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Of several texts, each told from its neighbour.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a String>) -> Self {
        let mut digest = Self::new();
        for part in parts {
            digest.add(part.as_bytes());
            digest.add(&[0]);
        }
        digest
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Mixed once more, so that texts which differ in the last letter only are far apart and
    /// differently ordered for every beginning.
    pub(super) fn spread(self) -> u64 {
        let mut hash = self.0;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
        }
        hash ^ (hash >> 33)
    }
}

/// A number for some texts: the same on every build and machine, and far from that of any others.
pub fn spread<'a>(parts: impl IntoIterator<Item = &'a String>) -> u64 {
    Digest::of(parts).spread()
}

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Grant {
    /// Sixteen hexadecimal digits that stand for what is granted, without what is said about it:
    /// the value of the annotation that marks a container which carries its grant.
    pub fn digest(&self) -> String {
        let Self { adapters, devices, memlock, capabilities, cpus, mems, .. } = self;
        let Self { env, files, mounts, unified, .. } = self;
        let granted = (adapters, devices, memlock, capabilities, cpus, mems);
        let mut digest = Digest::new();
        // Neither the writer nor values of these types can fail; were they to, the digest would
        // only be of less.
        serde_json::to_writer(&mut digest, &(granted, env, files, mounts, unified)).ok();
        format!("{:016x}", digest.spread())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::{MemlockGrant, Reason};

    #[test]
    fn a_digest_is_of_what_is_granted() {
        let nothing = Grant::default();
        let said = Grant {
            reasons: vec![Reason { about: "memlock".into(), text: "unlimited".into() }],
            ..Grant::default()
        };
        let memlock = MemlockGrant { bytes: 1 << 30, higher_hard: None };
        let limit = Grant { memlock: Some(memlock), ..Grant::default() };
        assert_eq!(nothing.digest(), said.digest());
        assert_ne!(nothing.digest(), limit.digest());
        // The same on every build.
        assert_eq!(nothing.digest(), "0fac37c0a5e33e5b");
    }
}
