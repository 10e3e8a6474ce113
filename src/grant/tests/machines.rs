//! Small nodes and requests to decide about.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::grant::{Grant, Inventory, Outcome, decide};
use crate::inventory::*;
use crate::policy::Policy;
use crate::request::*;

/// An InfiniBand HCA `name` in slot `number`, with an ACTIVE port.
pub fn infiniband(name: &str, number: u32) -> Hca {
    let device = |kind: &str, minor: u32| {
        Some(CharDev { name: format!("{kind}{number}"), major: 231, minor, mode: Some(0o666) })
    };
    Hca {
        name: name.into(),
        index: Some(number),
        driver: Driver("mlx5".into()),
        node_type: NodeType::Ca,
        node_guid: format!("a088:c203:005f:{number:04x}"),
        firmware: Some("28.39.1002".into()),
        pci: Some(pci(&format!("0000:{:02x}:00.0", 0x10 + number))),
        numa: Some(0),
        local_cpus: cpus("0-31"),
        uverbs: device("uverbs", 192 + number),
        ports: vec![Port {
            number: 1,
            link_layer: LinkLayer::InfiniBand,
            state: PortState::Active,
            rate: "400 Gb/sec (4X NDR)".into(),
            lid: 42,
            gid_slots: 8,
            gids: Vec::new(),
            pkeys: vec![0xffff],
            netdev: None,
            umad: device("umad", number),
            issm: device("issm", 64 + number),
        }],
        role: Role::Physical { vfs: 0 },
        home: Home::Host,
    }
}

/// A RoCE HCA on interface `netdev`, with the GIDs of [`gid_table`].
pub fn roce(name: &str, number: u32, netdev: &str, table: &str) -> Hca {
    let mut hca = infiniband(name, number);
    let port = &mut hca.ports[0];
    port.link_layer = LinkLayer::Ethernet;
    port.lid = 0;
    port.gid_slots = 256;
    port.netdev = Some(netdev.into());
    port.issm = None;
    port.gids = gid_table(table);
    hca
}

/// An EFA device.
pub fn efa(name: &str, number: u32) -> Hca {
    let mut hca = infiniband(name, number);
    hca.driver = Driver("efa".into());
    hca.node_type = NodeType::Unspecified;
    let port = &mut hca.ports[0];
    port.link_layer = LinkLayer::Unknown;
    port.umad = None;
    port.issm = None;
    hca
}

/// A GID table, an entry a line: `3 v2 ::ffff:10.0.0.5 net1`.
pub fn gid_table(table: &str) -> Vec<Gid> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [index, kind, value, rest @ ..] = &words[..] else { panic!("{line:?}") };
        Gid {
            index: index.parse().unwrap(),
            value: value.parse().unwrap(),
            kind: match *kind {
                "v1" => Some(GidKind::V1),
                "v2" => Some(GidKind::V2),
                _ => None,
            },
            netdev: rest.first().map(|name| (*name).to_owned()),
        }
    };
    table.lines().filter(|line| !line.trim().is_empty()).map(entry).collect()
}

pub fn node(hcas: impl IntoIterator<Item = Hca>) -> Node {
    Node {
        hcas: hcas.into_iter().collect(),
        rdma_cm: Some(CharDev { name: "rdma_cm".into(), major: 10, minor: 121, mode: Some(0o666) }),
        numa: [(0, cpus("0-31")), (1, cpus("32-63"))].into(),
        online: cpus("0-63"),
        ..Node::default()
    }
}

/// An interface: name, kind (`-` for hardware), addresses with prefix length.
pub fn interface(name: &str, kind: &str, addresses: &[&str]) -> Interface {
    let address = |text: &&str| {
        let (address, prefix) = text.split_once('/').unwrap();
        (address.parse::<IpAddr>().unwrap(), prefix.parse().unwrap())
    };
    Interface {
        name: name.into(),
        index: u32::try_from(name.len()).unwrap(),
        lower: None,
        kind: (kind != "-").then(|| kind.to_owned()),
        controller: None,
        addresses: addresses.iter().map(address).collect(),
        default_route: false,
        up: true,
    }
}

/// A pod's network with those interfaces, the first of which leads out, and the node's GID tables.
pub fn network(node: &Node, interfaces: impl IntoIterator<Item = Interface>) -> PodView {
    let mut interfaces: Vec<Interface> = interfaces.into_iter().collect();
    for (index, interface) in (2..).zip(&mut interfaces) {
        interface.index = index;
        interface.default_route = index == 2;
    }
    interfaces.insert(0, Interface { index: 1, ..interface("lo", "-", &["127.0.0.1/8"]) });
    let tables = node.hcas.iter().flat_map(|hca| {
        hca.ports.iter().filter(|port| port.link_layer == LinkLayer::Ethernet).map(|port| {
            PortGids { hca: hca.name.clone(), port: port.number, gids: port.gids.clone() }
        })
    });
    PodView::Ready(PodNetwork { interfaces, gids: tables.collect(), hcas: Vec::new() })
}

pub fn pci(text: &str) -> PciAddress {
    text.parse().unwrap()
}

pub fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A request by the value of `devices`: `all`, a count, `gpu`, or names.
pub fn request(devices: &str) -> Request {
    let mut request = nothing();
    request.devices = Some(match devices {
        "all" => Devices::All,
        "none" => Devices::None,
        _ => devices.parse().map_or_else(
            |_| Devices::Select(devices.split(',').map(selector).collect()),
            Devices::Count,
        ),
    });
    typed(&mut request, Key::Devices, devices);
    request
}

/// Notes that a key was typed.
pub fn typed(request: &mut Request, key: Key, value: &str) {
    let annotation = format!("{}.{SUFFIX}", key.word());
    request.asked_by.insert(key, Asked { annotation, value: value.into() });
}

fn selector(text: &str) -> Selector {
    match text.split_once(':') {
        Some(("pci", address)) => Selector::Pci(pci(address)),
        Some(("netdev", name)) => Selector::Netdev(name.into()),
        Some(("driver", name)) => Selector::Driver(name.into()),
        Some(("link", "ib")) => Selector::Link(Link::InfiniBand),
        Some(("link", "roce")) => Selector::Link(Link::Roce),
        Some(("link", "iwarp")) => Selector::Link(Link::Iwarp),
        Some(("numa", numa)) => Selector::Numa(numa.parse().unwrap()),
        Some(("rail", rail)) => Selector::Rail(vec![rail.parse().unwrap()]),
        Some(_) => panic!("{text:?}"),
        None if text == "gpu" => Selector::Gpu,
        None => Selector::Name(text.into()),
    }
}

/// A container that asks for nothing.
pub fn nothing() -> Request {
    Request {
        container: Container {
            id: "4f1c".into(),
            name: "trainer".into(),
            pod: Pod {
                uid: "8a0b5a9e".into(),
                name: "train-0".into(),
                namespace: "team-a".into(),
                ..Pod::default()
            },
            ..Container::default()
        },
        carrier: Carrier {
            name: "NRI on containerd 2.3.0".into(),
            capabilities: Can::No("no NRI version has them; memlock is used instead".into()),
            ..Carrier::default()
        },
        devices: None,
        nodes: BTreeSet::from([NodeKind::Uverbs, NodeKind::RdmaCm]),
        memlock: Memlock::Unlimited,
        capabilities: BTreeSet::new(),
        numa: NumaMode::Prefer,
        env: EnvMode::default(),
        netns: NetnsRequest::Auto,
        address: AddressRequest::Auto,
        smc: SmcMethod::Off,
        smc_sysctls: [].into(),
        limits: None,
        require: BTreeSet::new(),
        claim: None,
        asked_by: [].into(),
        remarks: Vec::new(),
    }
}

pub fn outcome(request: &Request, node: &Node, pod: &PodView) -> Outcome {
    decide(request, &Inventory::of(node, pod), &Policy::default())
}

#[track_caller]
pub fn grant_under(request: &Request, node: &Node, pod: &PodView, policy: &Policy) -> Grant {
    match decide(request, &Inventory::of(node, pod), policy) {
        Outcome::Granted(grant) => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
pub fn grant(request: &Request, node: &Node, pod: &PodView) -> Grant {
    grant_under(request, node, pod, &Policy::default())
}

#[track_caller]
pub fn refusal_under(request: &Request, node: &Node, pod: &PodView, policy: &Policy) -> String {
    match decide(request, &Inventory::of(node, pod), policy) {
        Outcome::Refused(refusal) => refusal.sentence,
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
pub fn refusal(request: &Request, node: &Node, pod: &PodView) -> String {
    refusal_under(request, node, pod, &Policy::default())
}

/// Names of the granted adapters.
pub fn names(grant: &Grant) -> Vec<&str> {
    grant.adapters.iter().map(|adapter| adapter.name.as_str()).collect()
}

#[track_caller]
pub fn warned(grant: &Grant, text: &str) {
    assert!(grant.warnings.iter().any(|warning| warning.contains(text)), "{:#?}", grant.warnings);
}
/// Value of a granted variable.
pub fn variable<'a>(grant: &'a Grant, name: &str) -> Option<&'a str> {
    grant.env.iter().find(|variable| variable.name == name).map(|found| found.value.as_str())
}
