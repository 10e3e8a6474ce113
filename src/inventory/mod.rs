//! What the node has: HCAs, their device nodes, ports and GIDs, GPUs, CPUs and interfaces.

pub mod cpuset;
pub mod netlink_view;
pub mod node;
pub mod pod;

pub use cpuset::CpuSet;
pub use netlink_view::{NetlinkDevice, NetlinkPort, NetlinkView};
pub use node::*;
pub use pod::*;
