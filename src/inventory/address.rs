//! Addresses of the interfaces from `/proc/net`, for trees whose rtnetlink cannot be asked: a
//! fixture, or a machine where it did not answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::attribute::{Folder, Reader};
use super::node::{Interface, Port};

/// Adds addresses and default routes to `interfaces`.
///
/// IPv4 addresses stand in `fib_trie` without an interface. Each belongs to the one that its subnet
/// is routed to; where a subnet is on several, to the one that the GID tables of `ports` name.
/// What is still ambiguous is left out.
pub(super) fn add<'a>(
    reader: &mut Reader,
    proc: &Path,
    interfaces: &mut [Interface],
    ports: impl Iterator<Item = &'a Port> + Clone,
) {
    let Some(net) = reader.open(&proc.join("net")) else { return };
    let routes: Vec<Route> = table(reader, &net, "route", route);
    for interface in interfaces.iter_mut() {
        interface.default_route =
            routes.iter().any(|route| route.is_default() && route.interface == interface.name);
    }
    for line in table(reader, &net, "if_inet6", |line| Some(line.to_owned())) {
        if let Some((address, length, name)) = inet6(&line) {
            attach(interfaces, name, address.into(), length);
        }
    }
    let locals = reader.text(&net, "fib_trie").map(locals).unwrap_or_default();
    for address in locals {
        if address.is_loopback() {
            attach(interfaces, "lo", address.into(), 8);
        } else if let Some((name, length)) = owner(address, &routes, ports.clone()) {
            attach(interfaces, &name, address.into(), length);
        }
    }
}

fn table<T>(
    reader: &mut Reader,
    net: &Folder,
    name: &str,
    parse: impl FnMut(&str) -> Option<T>,
) -> Vec<T> {
    reader.text(net, name).map(|text| text.lines().filter_map(parse).collect()).unwrap_or_default()
}

fn attach(interfaces: &mut [Interface], name: &str, address: IpAddr, length: u8) {
    if let Some(interface) = interfaces.iter_mut().find(|interface| interface.name == name)
        && !interface.addresses.contains(&(address, length))
    {
        interface.addresses.push((address, length));
    }
}

/// A line of `/proc/net/route`.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    interface: String,
    destination: u32,
    gateway: u32,
    mask: u32,
}

impl Route {
    fn is_default(&self) -> bool {
        (self.destination, self.mask) == (0, 0)
    }

    /// Whether `address` is in a subnet that the interface itself is in.
    fn connects(&self, address: Ipv4Addr) -> bool {
        self.gateway == 0 && self.mask != 0 && address.to_bits() & self.mask == self.destination
    }
}

/// Addresses are printed as numbers in the machine's byte order (`fib_route_seq_show`).
fn route(line: &str) -> Option<Route> {
    let mut fields = line.split_whitespace();
    let number = |at| {
        let number = u32::from_str_radix(line.split_whitespace().nth(at)?, 16).ok()?;
        Some(u32::from_be_bytes(number.to_ne_bytes()))
    };
    Some(Route {
        interface: fields.next()?.to_owned(),
        destination: number(1)?,
        gateway: number(2)?,
        mask: number(7)?,
    })
}

/// A line of `/proc/net/if_inet6`: address, interface number, prefix length, scope, flags, name.
fn inet6(line: &str) -> Option<(Ipv6Addr, u8, &str)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [address, _index, length, _scope, _flags, name] = fields.as_slice() else { return None };
    let address = u128::from_str_radix(address, 16).ok()?;
    Some((Ipv6Addr::from_bits(address), u8::from_str_radix(length, 16).ok()?, name))
}

/// The machine's own addresses in `/proc/net/fib_trie`, each once.
fn locals(text: &str) -> Vec<Ipv4Addr> {
    let mut locals = Vec::new();
    let mut leaf = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = leaf
            && !locals.contains(&address)
        {
            locals.push(address);
        }
    }
    locals
}

fn owner<'a>(
    address: Ipv4Addr,
    routes: &[Route],
    ports: impl Iterator<Item = &'a Port>,
) -> Option<(String, u8)> {
    let mut routes: Vec<&Route> = routes.iter().filter(|route| route.connects(address)).collect();
    let narrowest = routes.iter().map(|route| route.mask).max()?;
    routes.retain(|route| route.mask == narrowest);
    let named = |name: &str| {
        routes.iter().find(|route| route.interface == name).map(|route| route.interface.clone())
    };
    let mapped = address.to_ipv6_mapped();
    let name = match routes.as_slice() {
        [only] => only.interface.clone(),
        _ => ports
            .flat_map(|port| &port.gids)
            .filter(|gid| gid.value == mapped)
            .find_map(|gid| named(gid.netdev.as_deref()?))?,
    };
    Some((name, u8::try_from(narrowest.count_ones()).unwrap_or(32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_in_the_machines_byte_order() {
        let line = "eth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        let read = route(line).unwrap();
        assert!(read.connects(Ipv4Addr::new(10, 77, 0, 1)) || cfg!(target_endian = "big"));
        assert!(!read.connects(Ipv4Addr::new(10, 78, 0, 1)));
        assert!(!read.is_default());
        assert!(route("eth0 00000000 FE004D0A 0003 0 0 100 00000000 0 0 0").unwrap().is_default());
        assert_eq!(route("Iface Destination Gateway"), None);
        assert_eq!(route(""), None);
    }

    #[test]
    fn own_addresses_are_the_tries_local_leaves() {
        let text = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    Local:\n     |-- 10.77.0.1\n        /32 host LOCAL\n     |-- 10.77.0.255\n  \
                          /32 link BROADCAST\n     |-- 10.77.0.1\n        /32 host LOCAL\n";
        assert_eq!(locals(text), [Ipv4Addr::new(10, 77, 0, 1)]);
    }

    #[test]
    fn an_ipv6_address_is_32_digits() {
        let line = "fe80000000000000505400fffe770001 02 40 20 80     eth0";
        assert_eq!(inet6(line), Some(("fe80::5054:ff:fe77:1".parse().unwrap(), 64, "eth0")));
        assert_eq!(inet6("fe80 02 40 20"), None);
        assert_eq!(inet6("zz 02 40 20 80 eth0"), None);
    }
}
