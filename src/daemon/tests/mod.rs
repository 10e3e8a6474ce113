//! The daemon and a scripted runtime.

mod admission;
mod cdi;
mod outage;
mod rig;
