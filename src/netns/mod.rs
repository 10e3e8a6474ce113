//! Other network namespaces: how to get in, what a pod has in there, and what moves in and back.

pub mod addresses;
pub mod children;
pub mod enter;
pub mod links;
pub mod pod;

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

pub use enter::Namespace;
pub use pod::{Detail, Settled, gid_value, is_bare, pod_network, pod_view, pod_view_by};

use crate::netlink;

/// Another network namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not where runtimes keep namespaces.
    #[error("{path}: a network namespace is expected at /proc/PID/ns/net or below /run")]
    Place {
        /// Path as it was given.
        path: PathBuf,
    },
    /// A symbolic link is in the way.
    #[error("{path}: {link} is a symbolic link, which is not followed")]
    Link {
        /// Path as it was given.
        path: PathBuf,
        /// The part of it that is a link.
        link: PathBuf,
    },
    /// The path cannot be opened.
    #[error("{path}: cannot open the network namespace: {source}")]
    Open {
        /// Path as it was given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// Something else is there.
    #[error("{path} is no namespace")]
    Kind {
        /// Path as it was given.
        path: PathBuf,
    },
    /// It cannot be told from others.
    #[error("{path}: cannot look at the network namespace: {source}")]
    Look {
        /// Path as it was given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// No thread could be started.
    #[error("{path}: cannot start a thread for the network namespace: {source}")]
    Thread {
        /// Path as it was given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not let us in.
    #[error("{path}: cannot enter the network namespace: {source}")]
    Enter {
        /// Path as it was given.
        path: PathBuf,
        /// Why; `EINVAL` for a namespace that is none of network.
        source: Errno,
    },
    /// What was to be done inside panicked.
    #[error("{path}: a fault of rdma-ctk while in the network namespace")]
    Panicked {
        /// Path as it was given.
        path: PathBuf,
    },
    /// The namespace was entered, but its interfaces could not be read.
    #[error("{path}: {source}")]
    Netlink {
        /// Path as it was given.
        path: PathBuf,
        /// Why.
        source: netlink::Error,
    },
}
