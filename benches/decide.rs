//! What a decision costs: `cargo bench --bench decide`.
//!
//! NRI has one lock for a node, so a container's turn is everybody's wait. `answer` is what
//! CreateContainer does once the data is there: decide, translate, encode.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use divan::Bencher;
use prost::Message;
use rdma_ctk::edit::nri::adjustment;
use rdma_ctk::grant::{Inventory, Outcome, decide};
use rdma_ctk::inventory::{
    CharDev, Driver, Gid, GidKind, Hca, Home, Interface, LinkLayer, Node, NodeType, PciAddress,
    PodNetwork, PodView, Port, PortGids, PortState, Role,
};
use rdma_ctk::policy::Policy;
use rdma_ctk::request::{
    AddressRequest, Carrier, Container, Devices, EnvMode, Memlock, NetnsRequest, NodeKind,
    NumaMode, Pod, Request, SmcMethod,
};

fn main() {
    divan::main();
}

/// Slots of a GID table, all of them used: the pod's own is the last.
const SLOTS: u32 = 256;

fn device(name: String, minor: u32) -> CharDev {
    CharDev { name, major: 231, minor, mode: Some(0o666) }
}

/// The pod's address on an adapter.
fn address(hca: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a01_0000 + hca)
}

fn table(hca: u32) -> Vec<Gid> {
    let gid = |index: u32| {
        let own = index + 1 == SLOTS;
        let other = Ipv4Addr::from_bits(0x0b00_0000 + hca * SLOTS + index / 2);
        Gid {
            index,
            value: if own { address(hca) } else { other }.to_ipv6_mapped(),
            kind: Some(if index.is_multiple_of(2) { GidKind::V1 } else { GidKind::V2 }),
            netdev: Some(if own { format!("net{hca}") } else { "eth0".to_owned() }),
        }
    };
    (0..SLOTS).map(gid).collect()
}

fn hca(number: u32, link_layer: LinkLayer) -> Hca {
    let numa = number % 2;
    Hca {
        name: format!("mlx5_{number}"),
        index: Some(number),
        driver: Driver("mlx5".into()),
        node_type: NodeType::Ca,
        node_guid: String::new(),
        firmware: None,
        pci: Some(PciAddress {
            domain: 0,
            bus: u8::try_from(number % 256).unwrap_or_default(),
            device: 0,
            function: 0,
        }),
        numa: Some(numa),
        local_cpus: (numa * 112..(numa + 1) * 112).collect(),
        uverbs: Some(device(format!("uverbs{number}"), 192 + number)),
        ports: vec![Port {
            number: 1,
            link_layer,
            state: PortState::Active,
            rate: "400 Gb/sec (4X NDR)".into(),
            lid: 0,
            gid_slots: SLOTS,
            gids: if link_layer == LinkLayer::Ethernet { table(number) } else { Vec::new() },
            pkeys: vec![0xffff],
            netdev: Some(format!("eth{number}")),
            umad: None,
            issm: None,
        }],
        role: Role::Physical { vfs: 0 },
        home: Home::Host,
    }
}

fn interface(index: u32, name: String, addresses: Vec<(IpAddr, u8)>) -> Interface {
    Interface {
        name,
        index,
        lower: None,
        kind: Some("macvlan".into()),
        controller: None,
        addresses,
        default_route: index == 2,
        up: true,
    }
}

/// A node of `hcas` adapters, and a pod with an interface on each.
fn world(hcas: u32, link_layer: LinkLayer) -> (Node, PodView) {
    let node = Node {
        hcas: (0..hcas).map(|number| hca(number, link_layer)).collect(),
        rdma_cm: Some(device("rdma_cm".into(), 260)),
        numa: [(0, (0..112).collect()), (1, (112..224).collect())].into(),
        online: (0..224).collect(),
        ..Node::default()
    };
    let out = interface(2, "eth0".into(), vec![(Ipv4Addr::new(10, 88, 0, 9).into(), 16)]);
    let own = (0..hcas).map(|number| {
        interface(3 + number, format!("net{number}"), vec![(address(number).into(), 16)])
    });
    let gids = node.hcas.iter().map(|hca| PortGids {
        hca: hca.name.clone(),
        port: 1,
        gids: hca.ports[0].gids.clone(),
    });
    let network = PodNetwork {
        interfaces: [out].into_iter().chain(own).collect(),
        gids: if link_layer == LinkLayer::Ethernet { gids.collect() } else { Vec::new() },
        hcas: Vec::new(),
    };
    (node, PodView::Ready(network))
}

/// A container as the kubelet makes it, with a usual number of variables.
fn request(devices: Option<Devices>) -> Request {
    let container = Container {
        id: "4f1c".into(),
        name: "trainer".into(),
        pod: Pod {
            uid: "8a0b5a9e-2f0b-4a3f-9d6c-1c2d3e4f5a6b".into(),
            name: "train-0".into(),
            namespace: "team-a".into(),
            ..Pod::default()
        },
        env: (0..40).map(|n| (format!("SERVICE_{n}_HOST"), "10.96.0.1".to_owned())).collect(),
        ..Container::default()
    };
    Request {
        container,
        carrier: Carrier::default(),
        devices,
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

/// What is answered, as bytes.
fn answer(request: &Request, node: &Node, pod: &PodView, policy: &Policy) -> Vec<u8> {
    match decide(request, &Inventory::of(node, pod), policy) {
        Outcome::Granted(grant) => {
            let files = vec!["/run/rdma-ctk/4f1c/nccl.conf".to_owned(); grant.files.len()];
            adjustment(&grant, &files).encode_to_vec()
        }
        _ => Vec::new(),
    }
}

#[divan::bench]
fn not_asked(bencher: Bencher) {
    let (node, pod) = world(8, LinkLayer::Ethernet);
    let (request, policy) = (request(None), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}

#[divan::bench]
fn one_infiniband(bencher: Bencher) {
    let (node, pod) = world(1, LinkLayer::InfiniBand);
    let (request, policy) = (request(Some(Devices::All)), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}

#[divan::bench]
fn eight_roce_decided(bencher: Bencher) {
    let (node, pod) = world(8, LinkLayer::Ethernet);
    let (request, policy) = (request(Some(Devices::All)), Policy::default());
    bencher.bench(|| decide(&request, &Inventory::of(&node, &pod), &policy));
}

#[divan::bench]
fn eight_roce_answered(bencher: Bencher) {
    let (node, pod) = world(8, LinkLayer::Ethernet);
    let (request, policy) = (request(Some(Devices::All)), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}

/// The pod's address is in another slot on every adapter: a range for NCCL is looked for.
#[divan::bench]
fn eight_roce_that_differ(bencher: Bencher) {
    let (node, mut pod) = world(8, LinkLayer::Ethernet);
    if let PodView::Ready(network) = &mut pod {
        for (place, table) in network.gids.iter_mut().enumerate() {
            if let Some(own) = table.gids.last_mut() {
                own.index += u32::try_from(place).unwrap_or_default();
            }
        }
    }
    let (request, policy) = (request(Some(Devices::All)), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}

/// Growth with the node's adapters, all of them given.
#[divan::bench(args = [1, 4, 16, 64, 256])]
fn roce(bencher: Bencher, hcas: u32) {
    let (node, pod) = world(hcas, LinkLayer::Ethernet);
    let (request, policy) = (request(Some(Devices::All)), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}

/// Growth with the node's adapters, one of them given.
#[divan::bench(args = [1, 4, 16, 64, 256])]
fn one_of_infiniband(bencher: Bencher, hcas: u32) {
    let (node, pod) = world(hcas, LinkLayer::InfiniBand);
    let (request, policy) = (request(Some(Devices::Count(1))), Policy::default());
    bencher.bench(|| answer(&request, &node, &pod, &policy));
}
