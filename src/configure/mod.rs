//! Registration with a container runtime: what has to change in whose files, shown before it is
//! done, and taken back to the byte.
//!
//! A runtime's module makes a [`Plan`] from the files as they are; [`apply`] carries it out and
//! keeps a record of it, from which [`undo_plan`] makes the plan that leads back. Nothing is
//! started or stopped here: what the admin has to do then is in [`Plan::notes`].

mod change;
pub mod containerd;
mod record;

pub use change::{Content, FileChange, Plan};
pub use record::{ApplyError, apply, undo, undo_plan};
