//! Registration with a container runtime: what has to change in whose files, shown before it is
//! done, and taken back to the byte.
//!
//! A runtime's module makes a [`Plan`] from the files as they are; [`apply`] carries it out and
//! keeps a record of it, from which [`undo_plan`] makes the plan that leads back. Nothing is
//! started or stopped here: what the admin has to do then is in [`Plan::notes`].

mod change;
pub mod containerd;
pub mod crio;
pub mod docker;
mod drop_ins;
mod json;
pub mod podman;
mod record;
mod reversal;
mod tables;

pub use change::{Content, FileChange, Plan};
pub use drop_ins::FileError;
pub use record::{ApplyError, Owner, apply, undo, undo_plan};

/// The runtime wrapper, as packages install it.
pub const WRAPPER: &str = "/usr/bin/rdma-ctk-runtime";
/// Name of its entry among an engine's runtimes, and of the RuntimeClass handler.
pub const NAME: &str = "rdma";

#[cfg(test)]
mod tests;
