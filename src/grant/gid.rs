//! Which slot of a RoCE port's GID table is the container's own.

use std::net::IpAddr;

use crate::inventory::{Hca, Interface, PodNetwork};

/// Whether one of the adapter's ports answers to an address of that namespace: then the interface
/// of the adapter, or one above it, is in there.
pub(super) fn owned(network: &PodNetwork, hca: &Hca) -> bool {
    hca.ports.iter().any(|port| {
        network.gids(&hca.name, port.number).iter().any(|gid| {
            let address = gid.address();
            network.interfaces.iter().any(|interface| holds(interface, address))
        })
    })
}

/// Whether an interface carries that address; the loopback's do not count.
fn holds(interface: &Interface, address: IpAddr) -> bool {
    interface.addresses.iter().any(|(own, _)| *own == address && !own.is_loopback())
}
