//! From the text of a policy file to a [`Policy`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::{fs, io};

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use super::Policy;
use crate::request::{capability, quantity};
use crate::roots::Roots;

/// A text is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct PolicyError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there, in one line.
    pub message: String,
}

/// The policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is no policy.
    #[error("{}: {source}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong where.
        source: PolicyError,
    },
}

/// Where a node's policy is: `rdma-ctk/config.toml` below `etc`.
pub fn path(roots: &Roots) -> PathBuf {
    roots.etc.join("rdma-ctk/config.toml")
}

/// The policy of a node: that of its file, or the default where there is no file.
///
/// # Errors
/// There is a file, and it cannot be read or is broken. At its start the daemon stops with this
/// error; later it keeps the policy that it has.
pub fn load(roots: &Roots) -> Result<Policy, LoadError> {
    let path = path(roots);
    match fs::read_to_string(&path) {
        Ok(text) => from_toml(&text).map_err(|source| LoadError::Policy { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Policy::default()),
        Err(source) => Err(LoadError::Read { path, source }),
    }
}

pub(super) fn from_toml(text: &str) -> Result<Policy, PolicyError> {
    // Editors on other systems put a byte order mark in front, which is no TOML.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        PolicyError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: error.message().split_whitespace().collect::<Vec<_>>().join(" "),
        }
    })
}

/// An amount of memory: a number of bytes, or a text with a unit.
pub(super) mod size {
    use super::{Deserialize, Deserializer, Serializer, de, quantity};

    pub fn serialize<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&quantity::format(*bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected an amount of memory, such as \"64GiB\"")]
        enum Size {
            Bytes(u64),
            Text(String),
        }
        let bytes = match Size::deserialize(deserializer)? {
            Size::Bytes(bytes) => bytes,
            Size::Text(text) if text == "unlimited" => return Ok(None),
            Size::Text(text) => quantity::parse(&text)
                .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))?,
        };
        Ok(Some(bytes))
    }
}

/// An address to listen at; empty text is none.
pub(super) mod listen {
    use super::{Deserialize, Deserializer, Serialize, Serializer, SocketAddr, de};

    pub fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        address.map_or_else(String::new, |address| address.to_string()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| {
            de::Error::custom(format!(
                "{text:?} is no address to listen at: expected ADDRESS:PORT, such as \"127.0.0.1:9471\", or \"\" for none"
            ))
        })
    }
}

pub(super) fn deadline<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let percent = i64::deserialize(deserializer)?;
    u8::try_from(percent).ok().filter(|percent| (30..=95).contains(percent)).ok_or_else(|| {
        de::Error::custom(format!(
            "{percent} is out of range: a part of the runtime's timeout from 30 to 95 percent"
        ))
    })
}

/// A program by its absolute path; empty text is none.
pub(super) mod program {
    use super::{Deserialize, Deserializer, Serialize, Serializer, plain_path};

    pub fn serialize<S: Serializer>(
        path: &Option<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_deref().unwrap_or_default().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(None) } else { plain_path(text).map(Some) }
    }
}

pub(super) fn absolute_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    plain_path(String::deserialize(deserializer)?).map(Some)
}

fn plain_path<E: de::Error>(text: String) -> Result<String, E> {
    let plain = text.starts_with('/') && !text.split('/').any(|part| part == "..");
    if plain {
        return Ok(text);
    }
    Err(E::custom(format!("{text:?} is no absolute path without \"..\"")))
}

pub(super) fn capabilities<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeSet<String>, D::Error> {
    Vec::<String>::deserialize(deserializer)?
        .into_iter()
        .map(|name| {
            capability::canonical(&name)
                .map(str::to_owned)
                .ok_or_else(|| de::Error::custom(format!("there is no capability {name:?}")))
        })
        .collect()
}

pub(super) fn some_capabilities<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<String>>, D::Error> {
    capabilities(deserializer).map(Some)
}
