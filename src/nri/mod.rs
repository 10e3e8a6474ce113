//! The NRI side: how the daemon hears of pods and containers, and answers.
//!
//! A runtime (containerd, CRI-O) talks over one Unix socket that carries two connections
//! ([`mux`], [`frame`]), each with ttrpc on it. [`serve`] does one session for a [`Plugin`]:
//! registration, configuration, synchronisation, events. [`run`] keeps sessions up for ever.
//! [`version`] knows what each runtime can do. What to do for a container is not decided here.

mod arrival;
pub mod container;
pub mod frame;
pub mod mux;
mod plugin;
#[rustfmt::skip]
pub mod proto;
mod calls;
mod connect;
mod launch;
mod outline;
#[cfg(any(test, feature = "scripted-runtime"))]
pub mod scripted;
mod session;
mod standby;
#[cfg(test)]
mod tests;
pub mod version;

pub use connect::{Options, RunError, run};
pub use launch::{LaunchError, Launched};
pub use outline::Outline;
pub use plugin::{Configuration, Identity, IdentityError, Mishap, MishapKind, Pieces, Plugin};
pub use session::{Reason, SessionEnd, Stage, serve};
pub use standby::{Lock, LockError};
pub use version::{Can, Events, Feature, Runtime};
