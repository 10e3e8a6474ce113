//! Versions of containerd, and what they can do for us.

use std::fmt;
use std::str::FromStr;

/// A version: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// A text tells no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} tells no version of containerd: expected something like 2.1.9")]
pub struct VersionError(pub String);

impl Version {
    /// NRI is on where no file says otherwise.
    pub const NRI_ON: Self = Self(2, 0, 0);
    /// Tables of plugins in imported files are merged key by key; before, the last file's table
    /// counts as a whole.
    pub const DEEP_MERGE: Self = Self(2, 0, 0);
    /// NRI 0.10: the default validator, and plugins that are required.
    pub const VALIDATOR: Self = Self(2, 2, 0);
    /// The first version whose NRI carries limits of resources: NRI 0.4.
    pub const LIMITS: Self = Self(1, 7, 7);

    /// The version of configuration files that this containerd takes as they are.
    pub fn config_version(self) -> i64 {
        match self {
            Self(..2, ..) => 2,
            Self(2, ..3, _) => 3,
            _ => 4,
        }
    }

    /// The oldest containerd that reads configuration files of that version.
    pub fn at_least(config_version: i64) -> Option<Self> {
        match config_version {
            3 => Some(Self(2, 0, 0)),
            4.. => Some(Self(2, 3, 0)),
            _ => None,
        }
    }
}

impl FromStr for Version {
    type Err = VersionError;

    /// Takes a bare version, with or without `v` and suffixes of packagers, or the output of
    /// `containerd --version`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let error = || VersionError(text.chars().take(80).collect());
        text.split_whitespace().find_map(number).ok_or_else(error)
    }
}

fn number(word: &str) -> Option<Version> {
    let word = word.strip_prefix('v').unwrap_or(word);
    let mut parts = word.splitn(3, '.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    let (major, minor) = (parts.next()??, parts.next()??);
    Some(Version(major, minor, parts.next().flatten().unwrap_or(0)))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_containerd_prints() {
        for (text, expected) in [
            ("2.1.9", Version(2, 1, 9)),
            ("v2.1", Version(2, 1, 0)),
            ("containerd github.com/containerd/containerd/v2 v2.4.2 1a2b3c", Version(2, 4, 2)),
            (
                "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6",
                Version(1, 7, 24),
            ),
            ("containerd containerd.io 1.7.28 b98a3aa", Version(1, 7, 28)),
            ("containerd github.com/k3s-io/containerd v2.0.5-k3s1.32 \n", Version(2, 0, 5)),
            ("2.2.0-rc.1+unknown", Version(2, 2, 0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text:?}");
        }
        for text in ["", "containerd", "v2", "two.one", "github.com/x", "."] {
            assert!(text.parse::<Version>().is_err(), "{text:?}");
        }
    }
}
