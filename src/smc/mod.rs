//! SMC-R: programs of containers speak TCP, and their data goes over RDMA.
//!
//! What a container gets is decided by `grant`; here are the kernel's sides of it. [`probe`] sees by
//! which methods sockets can be turned, [`bpf`] is the one that needs nothing of the container,
//! [`prepare`] does what a container cannot do for itself by [`kernel`] and [`pnet`], and [`diag`]
//! with [`reason`] tells afterwards how connections go, and why not over RDMA.

pub mod answers;
pub mod bpf;
pub mod btf;
pub mod claims;
mod conversation;
pub mod diag;
pub mod eid;
pub mod entry;
pub mod group;
pub mod kernel;
pub mod pnet;
pub mod prepare;
pub mod probe;
pub mod reason;
#[cfg(test)]
mod recorded;
pub mod status;
