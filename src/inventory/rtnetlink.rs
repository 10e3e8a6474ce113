//! Interfaces of a network namespace, as rtnetlink lists them.

use super::node::Interface;
use crate::netlink::route::{self, Route};
use crate::netlink::{Error, Socket};

/// Every interface of the calling thread's network namespace, ascending by `ifindex`.
///
/// # Errors
/// As for any conversation over netlink.
pub fn read() -> Result<Vec<Interface>, Error> {
    let interfaces = Socket::<Route>::open()?.interfaces()?;
    Ok(interfaces.into_iter().map(Interface::from).collect())
}

impl From<route::Interface> for Interface {
    fn from(interface: route::Interface) -> Self {
        let route::Interface { link, addresses, default_route } = interface;
        Self {
            name: link.name,
            index: link.index,
            lower: link.lower,
            kind: link.kind,
            controller: link.controller,
            addresses,
            default_route,
            up: link.up,
        }
    }
}
