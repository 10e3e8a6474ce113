//! Who uses an adapter, and would lose it if it moved.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::grant::Use;
use crate::inventory::{Hca, Node};
use crate::netlink::Socket;
use crate::netlink::nldev::Maker;
use crate::netlink::rdma::Rdma;
use crate::roots::Roots;

/// `PROC_PID_INIT_INO` of `linux/proc_ns.h`: the host's PID namespace.
const HOST_PIDS: &str = "pid:[4026531836]";
/// State of a connection that stands, in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// Parts of the kernel whose queue pairs are on every adapter, and are made anew where it goes:
/// those of the RDMA core, and those that drivers need for themselves.
const CORE: [&str; 9] = [
    "ib_core",
    "mlx5_ib",
    "mlx5_core",
    "mlx4_ib",
    "bnxt_re",
    "hns_roce_hw_v2",
    "irdma",
    "mana_ib",
    "erdma",
];

/// Who uses that adapter of the host.
pub fn of(roots: &Roots, hca: &Hca, node: &Node) -> Use {
    let mut found = Use::default();
    let pids = fs::read_link(roots.proc.join("self/ns/pid"));
    if pids.is_ok_and(|pids| pids.as_os_str() != HOST_PIDS) {
        found.unknown =
            Some("rdma-ctk is not in the host's PID namespace, and cannot see who uses it".into());
        return found;
    }
    let makers = Socket::<Rdma>::open().and_then(|mut socket| {
        let devices = socket.devices()?;
        let device = devices.iter().find(|device| device.name == hca.name);
        device.map_or_else(|| Ok((Vec::new(), Vec::new())), |device| socket.makers(device.index))
    });
    match makers {
        Ok((contexts, pairs)) => {
            found.programs = contexts.iter().map(|maker| program(roots, maker)).collect();
            found.kernel = kernel(&pairs);
        }
        Err(error) => found.unknown = Some(format!("who uses it cannot be read: {error}")),
    }
    let own: Vec<IpAddr> = hca
        .ports
        .iter()
        .filter_map(|port| port.netdev.as_ref())
        .filter_map(|name| node.interfaces.iter().find(|interface| interface.name == *name))
        .flat_map(|interface| interface.addresses.iter().map(|(address, _)| *address))
        .collect();
    let mut used: Vec<IpAddr> = ["self/net/tcp", "self/net/tcp6"]
        .into_iter()
        .filter_map(|file| fs::read_to_string(roots.proc.join(file)).ok())
        .flat_map(|table| connected(&table))
        .filter(|address| own.contains(address))
        .collect();
    used.sort();
    used.dedup();
    found.addresses = used;
    found
}

/// A program in words; threads are processes that `/proc` does not list.
fn program(roots: &Roots, maker: &Maker) -> String {
    let Some(pid) = maker.pid else { return "a program".to_owned() };
    let name = fs::read_to_string(roots.proc.join(pid.to_string()).join("comm"));
    let name = name.unwrap_or_default();
    format!("{} (pid {pid})", name.trim_end().escape_debug())
}

/// Parts of the kernel that others make use of.
fn kernel(pairs: &[Maker]) -> Vec<String> {
    let mut parts: Vec<String> = pairs
        .iter()
        .filter_map(|maker| maker.kernel.clone())
        .filter(|part| !CORE.contains(&part.as_str()))
        .collect();
    parts.sort();
    parts.dedup();
    parts
}

/// Own addresses of the connections that stand, of a table like `/proc/net/tcp`.
fn connected(table: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        (words.nth(1)? == ESTABLISHED).then(|| parse(local.split_once(':')?.0)).flatten()
    };
    table.lines().skip(1).filter_map(address).collect()
}

/// An address as the kernel prints it there: words of 32 bits in the machine's order.
fn parse(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at..at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (place, at) in bytes.chunks_mut(4).zip([0, 8, 16, 24]) {
                place.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_stand_tell_their_own_address() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
            0: 00000000:4853 00000000:0000 0A 00000000:00000000\n   \
            1: 0100090A:0016 0900090A:9C40 01 00000000:00000000\n   \
            2: 0200090A:0016 0900090A:9C40 06 00000000:00000000\n   \
            3: cut\n";
        #[cfg(target_endian = "little")]
        assert_eq!(connected(table), ["10.9.0.1".parse::<IpAddr>().unwrap()]);
        let table = "head\n 0: 0000000000000000FFFF00000100090A:1 0:0 01\n \
            1: 000000FD000000000000000005000000:1 0:0 01\n";
        #[cfg(target_endian = "little")]
        assert_eq!(
            connected(table),
            ["10.9.0.1", "fd00::5"].map(|text| text.parse::<IpAddr>().unwrap())
        );
    }

    #[test]
    fn the_core_and_the_drivers_are_no_users() {
        let part = |name: &str| Maker { pid: None, kernel: Some(name.into()) };
        let pairs = [part("ib_core"), part("mlx5_ib"), part("smc"), part("smc"), Maker::default()];
        assert_eq!(kernel(&pairs), ["smc"]);
    }
}
