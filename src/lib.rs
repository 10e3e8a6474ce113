//! rdma-ctk: RDMA inside containers by one opt-in.
//!
//! A [`request`] (what a container asks), the [`inventory`] (what the node has) and the [`policy`]
//! (what the admin allows) go into `grant::decide`, which answers with a [`grant::Grant`] or a
//! refusal; `edit` translates a grant into what a runtime understands.

#[cfg(any(feature = "cli", feature = "nri"))]
pub mod cdi;
#[cfg(all(feature = "cli", feature = "nri"))]
pub mod cli;
#[cfg(feature = "cli")]
pub mod configure;
#[cfg(feature = "nri")]
pub mod daemon;
#[cfg(all(feature = "cli", feature = "nri"))]
pub mod doctor;
pub mod edit;
pub mod grant;
pub mod inventory;
pub mod netlink;
pub mod netns;
#[cfg(feature = "nri")]
pub mod nri;
pub mod oci;
pub mod policy;
#[cfg(feature = "probe")]
pub mod probe;
pub mod records;
pub mod request;
pub mod rootfs;
pub mod roots;
pub mod smc;
