//! What lives on: the daemon between a container runtime and the engine.

pub mod journal;
pub mod metrics;
pub mod pods;
pub mod records;
pub mod snapshot;
