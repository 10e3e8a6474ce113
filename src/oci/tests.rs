//! The wrapper and the hook on whole bundles: documents that engines have made, on machines of the
//! fixtures.

#![cfg(test)]

mod again;
mod bad_input;
mod bundles;
mod rig;
mod smc;
mod staged;
mod trust;
