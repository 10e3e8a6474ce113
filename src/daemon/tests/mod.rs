//! The daemon and a scripted runtime.

mod admission;
mod outage;
mod rig;
