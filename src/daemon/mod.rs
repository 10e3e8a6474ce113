//! What lives on: the daemon between a container runtime and the engine.
//!
//! [`plugin`] is told by the runtime, [`admission`] asks the engine and answers. What an answer
//! needs is at hand: the inventory ([`snapshot`]), the networks of pods ([`pods`]), the policy
//! ([`policies`]). Adapters that move into pods are looked after by [`links`],
//! sub-interfaces that pods have by [`children`]. What was decided is written down ([`journal`],
//! [`records`]) and counted ([`metrics`]). Who was created without us is found by [`gate`], [`audit`] and [`roll_call`].

mod admission;
pub mod audit;
pub mod cdi;
pub mod children;
pub mod containers;
pub mod cpu_manager;
pub mod events;
pub mod folder;
pub mod gate;
pub mod ids;
pub mod journal;
pub mod links;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod plugin;
pub mod pods;
pub mod policies;
mod resume;
mod roll_call;
pub mod scopes;
pub mod service;
pub mod session;
pub mod smc;
pub mod smc_view;
pub mod snapshot;

pub use crate::inventory::runtime_limits;
pub use crate::records;

#[cfg(test)]
mod tests;
