//! Editors: what a grant is in the words of what carries it. They translate and decide nothing.

pub mod cdi;
#[cfg(feature = "nri")]
pub mod nri;
pub mod oci;
pub mod revert;
