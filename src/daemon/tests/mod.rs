//! The daemon and a scripted runtime.

mod admission;
mod cdi;
mod children;
mod links;
mod outage;
mod rig;
