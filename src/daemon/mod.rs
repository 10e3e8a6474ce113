//! What lives on: the daemon between a container runtime and the engine.

pub mod records;
pub mod snapshot;
