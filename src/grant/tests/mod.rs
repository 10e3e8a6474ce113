//! Tests of whole decisions, by part, on nodes that are made here.

mod children;
mod claims;
mod cpuset;
mod environment;
mod exclusive;
mod gid;
pub mod machines;
mod memlock;
mod nodes;
mod selection;
mod smc;
