use std::cell::Cell;
use std::process::Command;

use super::*;
use crate::inventory::{CpuSet, Driver, Gid, Port, PortState, Role, rdma_netlink};
use crate::netlink::route::Link;
use crate::netns::enter::tests::fresh;

fn interface(name: &str, index: u32) -> Interface {
    Interface {
        name: name.into(),
        index,
        lower: None,
        kind: None,
        controller: None,
        addresses: Vec::new(),
        default_route: false,
        up: true,
    }
}

/// A RoCE HCA whose port has that interface, in the host's namespace or not.
fn roce(name: &str, netdev: Option<&str>) -> Hca {
    Hca {
        name: name.into(),
        index: None,
        driver: Driver("mlx5".into()),
        node_type: NodeType::Ca,
        node_guid: String::new(),
        firmware: None,
        pci: None,
        numa: None,
        local_cpus: CpuSet::new(),
        uverbs: None,
        ports: vec![Port {
            number: 1,
            link_layer: LinkLayer::Ethernet,
            state: PortState::Active,
            rate: String::new(),
            lid: 0,
            gid_slots: 256,
            gids: Vec::new(),
            pkeys: Vec::new(),
            netdev: netdev.map(str::to_owned),
            umad: None,
            issm: None,
        }],
        role: Role::Physical { vfs: 0 },
        home: if netdev.is_some() { Home::Host } else { Home::NetdevElsewhere },
    }
}

fn node(hcas: Vec<Hca>, interfaces: Vec<Interface>) -> Node {
    Node { hcas, interfaces, ..Node::default() }
}

fn link(name: &str, index: u32, kind: Option<&str>) -> Link {
    Link { name: name.into(), index, kind: kind.map(str::to_owned), up: true, ..Link::default() }
}

fn on_host(link: Link, lower: u32) -> Link {
    Link { lower: Some(lower), lower_elsewhere: true, ..link }
}

fn inside(link: Link, addresses: &[&str]) -> route::Interface {
    let addresses = addresses.iter().map(|address| (address.parse().unwrap(), 24)).collect();
    route::Interface { link, addresses, default_route: false }
}

fn table(hca: &str, gids: &[&str]) -> Vec<PortGids> {
    let gids = gids.iter().zip(0..).map(|(gid, index)| Gid {
        index,
        value: gid.parse().unwrap(),
        kind: None,
        netdev: None,
    });
    vec![PortGids { hca: hca.into(), port: 1, gids: gids.collect() }]
}

fn tables(node: &Node) -> Vec<Table> {
    let hcas = node.hcas.iter().filter(|hca| feeds_on_addresses(hca));
    hcas.map(|hca| Table::new(&hca.name, node)).collect()
}

/// Waits for nothing with these tables and tells what is missing.
fn missing(inside: &[route::Interface], node: &Node, gids: &[(&str, &[&str])]) -> Vec<String> {
    let read = |hca: &str| {
        let found = gids.iter().find(|(name, _)| *name == hca);
        table(hca, found.map_or(&[], |(_, gids)| *gids))
    };
    wait(inside, tables(node), Duration::ZERO, read).1
}

#[test]
fn an_address_on_the_hcas_interface_is_waited_for() {
    let node = node(
        vec![roce("mlx5_0", Some("eth1")), roce("mlx5_1", Some("eth2"))],
        vec![interface("eth1", 3), interface("eth2", 4), interface("eth9", 9)],
    );
    let pod = [
        inside(on_host(link("eth0", 2, Some("veth")), 3), &["10.1.0.5"]),
        inside(on_host(link("net1", 5, Some("macvlan")), 3), &["10.2.0.5", "fe80::5", "fd00::5"]),
        inside(on_host(link("net2", 6, Some("ipvlan")), 4), &["10.3.0.5"]),
        inside(on_host(link("net3", 7, Some("macvlan")), 9), &["10.4.0.5"]),
    ];
    assert_eq!(
        missing(&pod, &node, &[]),
        ["10.2.0.5 of net1 on mlx5_0", "fd00::5 of net1 on mlx5_0", "10.3.0.5 of net2 on mlx5_1"]
    );
    // The same address in the other HCA's table is no help.
    let gids: [(&str, &[&str]); 2] =
        [("mlx5_0", &["::ffff:10.2.0.5", "::ffff:10.3.0.5"]), ("mlx5_1", &["fd00::5"])];
    assert_eq!(
        missing(&pod, &node, &gids),
        ["fd00::5 of net1 on mlx5_0", "10.3.0.5 of net2 on mlx5_1"]
    );
}

#[test]
fn what_lies_on_the_hcas_interface_carries_it() {
    let vlan = |name, index, lower| Interface {
        lower: Some(lower),
        kind: Some("vlan".into()),
        ..interface(name, index)
    };
    let node = node(
        vec![roce("mlx5_0", Some("eth1"))],
        vec![
            Interface { controller: Some(20), ..interface("eth1", 3) },
            Interface { controller: Some(20), ..interface("veth9", 9) },
            Interface { kind: Some("bridge".into()), ..interface("br0", 20) },
            vlan("br0.7", 21, 20),
            vlan("eth5.7", 22, 5),
            Interface { lower: Some(3), kind: Some("veth".into()), ..interface("veth0", 23) },
        ],
    );
    assert_eq!(bearers(&node.hcas[0], &node.interfaces), BTreeSet::from([3, 20, 21]));
    let pod = [inside(on_host(link("net1", 2, Some("macvlan")), 21), &["10.2.0.5"])];
    assert_eq!(missing(&pod, &node, &[]), ["10.2.0.5 of net1 on mlx5_0"]);
}

#[test]
fn chains_inside_the_pod_are_climbed() {
    let node = node(vec![roce("mlx5_0", Some("eth1"))], vec![interface("eth1", 3)]);
    let upper = |name, index, lower| Link { lower: Some(lower), ..link(name, index, Some("vlan")) };
    let pod = [
        inside(on_host(link("net1", 2, Some("macvlan")), 3), &[]),
        inside(upper("net1.7", 4, 2), &["10.2.0.5"]),
        // On each other, on nothing, on themselves: a pod may build what it likes.
        inside(upper("a", 5, 6), &["10.3.0.5"]),
        inside(upper("b", 6, 5), &["10.4.0.5"]),
        inside(upper("c", 7, 77), &["10.5.0.5"]),
        inside(upper("d", 8, 8), &["10.6.0.5"]),
        inside(link("dummy0", 9, Some("dummy")), &["10.7.0.5"]),
        inside(Link { loopback: true, ..link("lo", 10, None) }, &["127.0.0.1"]),
        inside(Link { up: false, ..on_host(link("net2", 11, Some("macvlan")), 3) }, &["10.8.0.5"]),
    ];
    assert_eq!(missing(&pod, &node, &[]), ["10.2.0.5 of net1.7 on mlx5_0"]);
}

#[test]
fn hardware_in_the_pod_is_known_by_its_default_gid() {
    let node = node(vec![roce("mlx5_0", None), roce("mlx5_1", Some("eth1"))], vec![]);
    let hardware = Link { address: vec![2, 0x42, 0xac, 1, 2, 3], ..link("eth0", 2, None) };
    let pod = [inside(hardware, &["10.2.0.5"])];
    // Which HCA's it is, or whether of any, is not known: nothing to complain about.
    assert_eq!(missing(&pod, &node, &[]), [""; 0]);
    let own: &[&str] = &["fe80::42:acff:fe01:203"];
    assert_eq!(missing(&pod, &node, &[("mlx5_0", own)]), ["10.2.0.5 of eth0 on mlx5_0"]);
    let both: &[&str] = &["fe80::42:acff:fe01:203", "::ffff:10.2.0.5"];
    assert_eq!(missing(&pod, &node, &[("mlx5_0", both)]), [""; 0]);
}

#[test]
fn only_roce_tables_are_read() {
    let mut iwarp = roce("erdma_0", Some("eth1"));
    iwarp.node_type = NodeType::Rnic;
    let mut infiniband = roce("mlx5_1", None);
    infiniband.ports[0].link_layer = LinkLayer::InfiniBand;
    let mut moved = roce("mlx5_2", None);
    moved.home = Home::Elsewhere;
    let node = node(vec![iwarp, infiniband, moved, roce("mlx5_3", Some("eth2"))], vec![]);
    let (gids, _) = wait(&[], tables(&node), PATIENCE, |hca| table(hca, &["fe80::1"]));
    assert_eq!(gids, table("mlx5_3", &["fe80::1"]));
}

#[test]
fn waiting_ends_when_the_gids_are_there_or_the_patience_is_over() {
    let node = node(
        vec![roce("mlx5_0", Some("eth1")), roce("mlx5_1", Some("eth2"))],
        vec![interface("eth1", 3), interface("eth2", 4)],
    );
    let pod = [inside(on_host(link("net1", 2, Some("ipvlan")), 3), &["10.2.0.5"])];
    let reads = Cell::new([0, 0]);
    let read = |after: u32| {
        let reads = &reads;
        reads.set([0, 0]);
        move |hca: &str| {
            let mut count = reads.get();
            let at = usize::from(hca == "mlx5_1");
            count[at] += 1;
            reads.set(count);
            table(hca, if count[at] > after { &["::ffff:10.2.0.5"] } else { &[] })
        }
    };
    let (gids, missing) = wait(&pod, tables(&node), PATIENCE, read(3));
    assert_eq!(missing, [""; 0]);
    assert_eq!(gids[0].gids.len(), 1);
    // The other HCA lacks nothing, so its table is not read again.
    assert_eq!(reads.get(), [4, 1]);
    let began = Instant::now();
    let (_, missing) = wait(&pod, tables(&node), Duration::from_millis(60), read(u32::MAX));
    assert_eq!(missing, ["10.2.0.5 of net1 on mlx5_0"]);
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    // Nothing to wait for.
    let veth = [inside(on_host(link("eth0", 2, Some("veth")), 3), &["10.1.0.5"])];
    wait(&veth, tables(&node), PATIENCE, read(u32::MAX));
    assert_eq!(reads.get(), [1, 1]);
}

/// Runs `ip` with these words in the namespace of the calling thread.
fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_interfaces_of_another_namespace_are_read() {
    let Some(namespace) = fresh() else { return };
    if Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: there is no ip(8) here to make interfaces with");
        return;
    }
    namespace
        .run(|| {
            ip("link add eth0 type veth peer name other");
            ip("link add link eth0 name mac0 type macvlan mode bridge");
            for name in ["lo", "eth0", "other", "mac0"] {
                ip(&format!("link set {name} up"));
            }
            ip("address add 10.9.0.5/24 dev eth0");
            ip("address add 10.9.1.5/24 dev mac0");
            ip("route add default via 10.9.0.1");
        })
        .unwrap();
    let roots = Roots::below(Path::new("/"));
    let settled =
        settle(&roots, &namespace, &Node::default(), PATIENCE, Detail::Everything).unwrap();
    assert_eq!((settled.missing, settled.network.gids), (vec![], vec![]));
    let found = |name: &str| {
        settled.network.interfaces.iter().find(|interface| interface.name == name).unwrap()
    };
    let eth0 = found("eth0");
    assert_eq!(eth0.kind.as_deref(), Some("veth"));
    assert!(eth0.up && eth0.default_route);
    assert_eq!(eth0.lower, Some(found("other").index));
    assert!(eth0.addresses.contains(&("10.9.0.5".parse().unwrap(), 24)));
    let mac0 = found("mac0");
    assert_eq!((mac0.kind.as_deref(), mac0.lower), (Some("macvlan"), Some(eth0.index)));
    assert!(!mac0.default_route);
    assert!(mac0.addresses.contains(&("10.9.1.5".parse().unwrap(), 24)));
    assert!(found("lo").addresses.contains(&("127.0.0.1".parse().unwrap(), 8)));
}

#[test]
fn a_namespace_that_cannot_be_read_is_unknown_and_ours_is_the_hosts() {
    let roots = Roots::below(Path::new("/"));
    let view = |path: &str| pod_view(&roots, Path::new(path), &Node::default(), PATIENCE);
    let PodView::Unknown { reason } = view("/run/netns/no-such-pod") else { panic!() };
    assert!(reason.starts_with("/run/netns/no-such-pod: cannot open"), "{reason}");
    assert_eq!(view(&format!("/proc/{}/ns/net", std::process::id())), PodView::Host);
}

/// Addresses of a macvlan and an ipvlan on `eth0` become GIDs of `rxe0`; those of a veth do not.
#[test]
#[ignore = "needs rxe0: run it in the test machine of integration/"]
fn vm_addresses_on_the_hcas_interface_become_gids() {
    let roots = Roots::below(Path::new("/"));
    let view = rdma_netlink::read(&roots).unwrap();
    let node = inventory::snapshot(&roots, view.as_ref());
    assert_eq!(node.hca("rxe0").unwrap().ports[0].netdev.as_deref(), Some("eth0"));
    for (kind, address) in
        [("macvlan mode bridge", "10.77.0.61"), ("ipvlan", "10.77.0.62"), ("veth", "10.55.0.63")]
    {
        let name = format!("ctk-{}", kind.split(' ').next().unwrap());
        ip(&format!("netns add {name}"));
        match kind {
            "veth" => ip(&format!("link add up-veth type veth peer name net1 netns {name}")),
            _ => ip(&format!("link add link eth0 name net1 netns {name} type {kind}")),
        }
        if kind == "veth" {
            ip("link set up-veth up");
        }
        ip(&format!("-n {name} link set net1 up"));
        ip(&format!("-n {name} address add {address}/24 dev net1"));
        let began = Instant::now();
        let path = format!("/var/run/netns/{name}");
        let settled = pod_network(&roots, Path::new(&path), &node, PATIENCE).unwrap();
        let took = began.elapsed();
        println!("{kind}: settled after {took:?}");
        let net1 = settled.network.interfaces.iter().find(|i| i.name == "net1").unwrap();
        assert!(net1.addresses.contains(&(address.parse().unwrap(), 24)), "{net1:?}");
        assert_eq!(settled.missing, [""; 0], "{kind}");
        let gids = settled.network.gids("rxe0", 1);
        let its = gids.iter().any(|gid| gid.address() == address.parse::<IpAddr>().unwrap());
        assert_eq!(its, kind != "veth", "{kind}: {gids:?}");
        // The host's own are there all the same.
        assert!(gids.iter().any(|gid| gid.address().to_string() == "10.77.0.1"));
        ip(&format!("netns del {name}"));
    }
}

/// On a host in exclusive mode a pod has the devices that were moved into it; soft-RoCE cannot be
/// moved, so here it has none, and nothing of the host's either.
#[test]
#[ignore = "needs rxe0: run it in the test machine of integration/"]
fn vm_in_exclusive_mode_a_pod_has_its_own_devices_only() {
    // The mode can be changed only while there is no other namespace, and those of other tests
    // take their time to go.
    let set = |mode| {
        let try_it = || {
            let status = Command::new("rdma").args(["system", "set", "netns", mode]).status();
            sleep(Duration::from_millis(100));
            status.unwrap().success()
        };
        assert!((0..100).any(|_| try_it()), "{mode}");
    };
    let roots = Roots::below(Path::new("/"));
    set("exclusive");
    let view = rdma_netlink::read(&roots).unwrap();
    let node = inventory::snapshot(&roots, view.as_ref());
    ip("netns add ctk-own");
    let path = Path::new("/run/netns/ctk-own");
    let settled = pod_network(&roots, path, &node, PATIENCE).unwrap();
    ip("netns del ctk-own");
    set("shared");
    assert_eq!(node.netns_mode, NetnsMode::Exclusive);
    assert_eq!((settled.network.hcas, settled.network.gids), (vec![], vec![]));
    assert_eq!(settled.network.interfaces.len(), 1);
}

/// The sysfs of a namespace is that of its own devices; in shared mode it has them all.
#[test]
#[ignore = "needs rxe0: run it in the test machine of integration/"]
fn vm_the_sysfs_of_a_namespace_is_its_own() {
    let Some(namespace) = fresh() else { panic!("no namespace in the test machine") };
    let roots = Roots::below(Path::new("/"));
    let names = || {
        let entries = std::fs::read_dir("/sys/class/net").unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let outside = (names(), inventory::gids(&roots, "rxe0"));
    assert!(outside.0.contains(&"eth0".to_owned()));
    let task = || (names(), inventory::gids(&roots, "rxe0"));
    let inside = namespace.run_with_sysfs(&roots, task).unwrap();
    assert_eq!(inside.0, ["lo"]);
    assert_eq!(inside.1, outside.1);
    assert!(!inside.1[0].gids.is_empty());
    // Nobody else saw anything of it.
    assert_eq!((names(), inventory::gids(&roots, "rxe0")), outside);
}
