//! What lives on: the daemon between a container runtime and the engine.

pub mod containers;
pub mod cpu_manager;
pub mod journal;
pub mod metrics;
pub mod pods;
pub mod records;
pub mod runtime_limits;
pub mod scopes;
pub mod snapshot;
