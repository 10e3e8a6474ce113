//! Addresses and GID tables, laid out for looking up: a table has hundreds of slots, a node may
//! have hundreds of tables, and the runtime waits.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::inventory::{Gid, Hca, Interface, Node, PodView, Port};

/// Whose address a GID stands for, and which table is a port's.
#[derive(Debug, Default)]
pub(super) struct Sight<'a> {
    /// Interfaces in the container's namespace, the host's where that is its own.
    pub(super) own: Addresses<'a>,
    /// The host's interfaces.
    pub(super) host: Addresses<'a>,
    /// GID tables that were read with the pod's addresses.
    tables: HashMap<(&'a str, u32), &'a [Gid]>,
}

impl<'a> Sight<'a> {
    pub(super) fn of(node: &'a Node, pod: &'a PodView) -> Self {
        // The host's own interfaces may be of any kind where an adapter says that it is on them.
        let ports = node.hcas.iter().flat_map(|hca| &hca.ports);
        let bearers: HashSet<&str> = ports.filter_map(|port| port.netdev.as_deref()).collect();
        let host = Addresses::of(&node.interfaces, &bearers);
        match pod {
            PodView::Host => Self { own: host.clone(), host, ..Self::default() },
            PodView::Ready(network) => {
                let table = |table: &'a crate::inventory::PortGids| {
                    ((table.hca.as_str(), table.port), table.gids.as_slice())
                };
                let read = network.gids.iter().filter(|table| !table.gids.is_empty());
                Self {
                    own: Addresses::of(&network.interfaces, &HashSet::new()),
                    host,
                    // Of two tables for one port the first counts.
                    tables: read.rev().map(table).collect(),
                }
            }
            PodView::Pending { .. } | PodView::Unknown { .. } => Self { host, ..Self::default() },
        }
    }

    /// GID table of a port as it was read with the pod's addresses.
    pub(super) fn read(&self, hca: &str, port: u32) -> Option<&'a [Gid]> {
        self.tables.get(&(hca, port)).copied()
    }

    /// GID table of a port: that read with the pod's addresses, else the node's.
    pub(super) fn table(&self, hca: &Hca, port: &'a Port) -> &'a [Gid] {
        self.read(&hca.name, port.number).unwrap_or(&port.gids)
    }
}

/// Addresses of one namespace, as GIDs are, ascending; without the loopback's.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses<'a>(Vec<Held<'a>>);

/// An address with its interface.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'a> {
    /// As a number: they are compared a few thousand times for one container.
    value: u128,
    pub(super) interface: &'a Interface,
    /// Prefix length.
    pub(super) prefix: u8,
}

impl<'a> Addresses<'a> {
    /// Of interfaces, of which those by the names of `bearers` are known to have an adapter.
    fn of(interfaces: &'a [Interface], bearers: &HashSet<&str>) -> Self {
        let held = |interface: &'a Interface| {
            let addresses = interface.addresses.iter();
            let real = addresses.filter(|(at, _)| !at.is_loopback() && !at.is_unspecified());
            real.map(move |(address, prefix)| {
                let value = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                    IpAddr::V6(address) => address.to_bits(),
                };
                Held { value, interface, prefix: *prefix }
            })
        };
        // No address of these becomes a GID, and anybody may give them any: one that is equal to a
        // GID's stands for somebody else's. Unless soft-RoCE was put on one.
        let carries = |interface: &&Interface| {
            let kind = interface.kind.as_deref();
            interface.name != "lo"
                && (!matches!(kind, Some("veth" | "dummy" | "tun"))
                    || bearers.contains(interface.name.as_str()))
        };
        let mut all: Vec<Held<'a>> = interfaces.iter().filter(carries).flat_map(held).collect();
        // Stable: of several interfaces with one address the first comes first.
        all.sort_by_key(|held| held.value);
        Self(all)
    }

    /// The interface whose address a GID stands for; of several, that of the name which the
    /// kernel prints.
    pub(super) fn holder(&self, gid: &Gid) -> Option<Held<'a>> {
        let value = gid.value.to_bits();
        let from = self.0.partition_point(|held| held.value < value);
        let holders = self.0[from..].iter().take_while(|held| held.value == value);
        let named = |held: &&Held<'_>| Some(&held.interface.name) == gid.netdev.as_ref();
        holders.clone().find(named).or_else(|| holders.clone().next()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::tests::machines::{gid_table, interface};

    #[test]
    fn a_gid_is_held_by_the_interface_that_has_its_address() {
        let interfaces = [
            interface("lo", "-", &["127.0.0.1/8", "::1/128"]),
            interface("net1", "macvlan", &["10.1.0.7/24", "fd93::12/64"]),
            interface("net2", "macvlan", &["10.1.0.7/16", "10.1.0.6/24"]),
            interface("dummy0", "dummy", &["10.1.0.8/24"]),
            interface("dummy1", "dummy", &["10.1.0.9/24"]),
        ];
        let addresses = Addresses::of(&interfaces, &HashSet::from(["dummy1"]));
        for (gid, holder) in [
            ("0 v2 ::ffff:10.1.0.7 net2", Some(("net2", 16))),
            ("0 v2 ::ffff:10.1.0.7 net9", Some(("net1", 24))),
            ("0 v2 ::ffff:10.1.0.6 net1", Some(("net2", 24))),
            ("0 v2 fd93::12 net1", Some(("net1", 64))),
            ("0 v2 fd93::13 net1", None),
            ("0 v2 ::ffff:10.1.0.8 dummy0", None),
            ("0 v2 ::ffff:10.1.0.9 dummy1", Some(("dummy1", 24))),
            ("0 v2 ::ffff:127.0.0.1 lo", None),
            ("0 v2 ::1 lo", None),
            ("0 v2 :: lo", None),
        ] {
            let found = addresses.holder(&gid_table(gid)[0]);
            let found = found.map(|held| (held.interface.name.as_str(), held.prefix));
            assert_eq!(found, holder, "{gid}");
        }
    }
}
