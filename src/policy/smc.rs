//! What an admin says about SMC-R on a node.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::parse;

/// How SMC-R is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Smc {
    /// User EID that the node gets when a container asks for SMC-R; empty: none is set. Two nodes
    /// speak version 2 only if they have one in common.
    #[serde(deserialize_with = "eid")]
    pub eid: String,
    /// Whether sockets of MPTCP are turned too, by the method `bpf`. Go programs make such sockets
    /// to listen.
    pub mptcp: bool,
    /// Whether the daemon loads the module smc when a container asks and it is not there.
    pub load_module: bool,
    /// A library of the host for the method `preload`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "parse::absolute_path")]
    pub preload_library: Option<String>,
}

impl Default for Smc {
    fn default() -> Self {
        Self { eid: "RDMA-CTK".to_owned(), mptcp: false, load_module: false, preload_library: None }
    }
}

/// Whether the kernel takes that as a user EID (`smc_clc_ueid_valid` in `net/smc/smc_clc.c`): up to
/// 32 capital letters, digits, dots and dashes, a letter or digit first.
pub fn is_eid(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    text.len() <= 32
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|byte| plain(byte) || byte == b'.' || byte == b'-')
}

fn eid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() || is_eid(&text) {
        return Ok(text);
    }
    Err(de::Error::custom(format!(
        "{text:?} is no user EID: up to 32 of A-Z, 0-9, \".\" and \"-\", a letter or digit first"
    )))
}
