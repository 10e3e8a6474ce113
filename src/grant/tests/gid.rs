use super::machines::*;
use crate::grant::Grant;
use crate::inventory::*;
use crate::request::*;

/// Table of a port with the host's address and that of one pod at the slots given.
fn table(pod: &str, slot: u32) -> String {
    format!(
        "0 v1 fe80::1 ens3np0\n1 v2 fe80::1 ens3np0\n2 v1 ::ffff:10.0.0.5 ens3np0\n\
         3 v2 ::ffff:10.0.0.5 ens3np0\n{} v1 {pod} net1\n{slot} v2 {pod} net1",
        slot - 1
    )
}

fn host(node: &mut Node, interfaces: impl IntoIterator<Item = Interface>) {
    node.interfaces = interfaces.into_iter().collect();
    node.interfaces.push(interface("lo", "-", &["127.0.0.1/8"]));
}

fn index(grant: &Grant) -> Option<&str> {
    variable(grant, "NCCL_IB_GID_INDEX")
}

#[test]
fn c26_a_pod_without_an_interface_is_told() {
    let mut roce_node = node([roce("mlx5_0", 0, "ens3np0", &table("::ffff:10.9.0.1", 5))]);
    host(&mut roce_node, [interface("ens3np0", "-", &["10.0.0.5/24", "fe80::1/64"])]);
    let pod = network(&roce_node, [interface("eth0", "veth", &["10.88.0.9/16"])]);
    let mut asks = request("mlx5_0");
    let granted = grant(&asks, &roce_node, &pod);
    warned(
        &granted,
        "mlx5_0 is RoCE but this pod has no network interface on it: verbs work with the host's \
         GID, rdma_cm does not. Attach a macvlan/ipvlan/SR-IOV interface on ens3np0, use \
         hostNetwork, or claim the NIC",
    );
    // The host interface's own, never another pod's.
    assert_eq!(index(&granted), Some("3"));
    assert_eq!(granted.adapters[0].gids[0].address.to_string(), "10.0.0.5");
    assert!(granted.adapters[0].usable);

    asks.require.insert(Requirement::RoceInterface);
    let sentence = refusal(&asks, &roce_node, &pod);
    assert!(sentence.contains("this pod has no network interface on it. Attach a"), "{sentence}");

    let infiniband = node([infiniband("mlx5_0", 0)]);
    let pod = network(&infiniband, [interface("eth0", "veth", &["10.88.0.9/16"])]);
    assert_eq!(grant(&asks, &infiniband, &pod).warnings, [""; 0]);
}

#[test]
fn c27_never_a_constant_gid_index() {
    let node = node([roce(
        "mlx5_0",
        0,
        "ens3np0",
        "2 v1 ::ffff:10.0.0.5 ens3np0\n3 v2 ::ffff:10.0.0.5 ens3np0\n\
         6 v1 ::ffff:11.0.4.1 net1\n7 v2 ::ffff:11.0.4.1 net1",
    )]);
    let pod = network(
        &node,
        [
            interface("eth0", "veth", &["10.88.0.9/16"]),
            interface("net1", "macvlan", &["11.0.4.1/24"]),
        ],
    );
    let granted = grant(&request("mlx5_0"), &node, &pod);
    assert_eq!(index(&granted), Some("7"));
    assert_eq!(variable(&granted, "UCX_IB_GID_INDEX"), Some("7"));
    assert_eq!(granted.adapters[0].gids[0].prefix, Some(24));
    // Another pod with an interface of that very name gets its own.
    let other = network(&node, [interface("net1", "macvlan", &["10.0.0.5/24"])]);
    assert_eq!(index(&grant(&request("mlx5_0"), &node, &other)), Some("3"));
}

#[test]
fn c85_an_engines_macvlan_has_its_index_and_one_that_comes_later_has_none() {
    let table = "2 v1 ::ffff:10.0.0.5 ens3np0\n3 v2 ::ffff:10.0.0.5 ens3np0\n\
                 6 v1 ::ffff:10.0.0.9 eth0\n7 v2 ::ffff:10.0.0.9 eth0";
    let node = node([roce("mlx5_0", 0, "ens3np0", table)]);
    let mut asks = request("mlx5_0");
    asks.carrier.path = CarrierPath::Wrapper;
    let there = network(&node, [interface("eth0", "macvlan", &["10.0.0.9/24"])]);
    let granted = grant(&asks, &node, &there);
    assert_eq!(index(&granted), Some("7"));
    assert_eq!(granted.warnings, [""; 0]);
    // Docker makes it after the document was edited: unset, never another's, and said so.
    let reason = "its network namespace is made after this".to_owned();
    let granted = grant(&asks, &node, &PodView::Pending { reason: reason.clone() });
    assert_eq!(index(&granted), None);
    assert!(
        granted.reasons.iter().any(|said| said.text.contains(&reason)),
        "{:?}",
        granted.reasons
    );
}

#[test]
fn c29_different_indexes_are_left_to_nccl() {
    let mut two = node([
        roce("mlx5_1", 1, "eth1", "0 v2 fe80::1 eth1\n3 v2 ::ffff:10.1.0.7 net1"),
        roce("mlx5_2", 2, "eth2", "0 v2 fe80::2 eth2\n6 v2 ::ffff:192.168.0.7 net2"),
    ]);
    let interfaces = || {
        [
            interface("net1", "macvlan", &["10.1.0.7/24"]),
            interface("net2", "macvlan", &["192.168.0.7/24"]),
        ]
    };
    let said = "HCAs need different GID indexes (mlx5_1:3, mlx5_2:6); leaving selection to NCCL \
                (2.21 or newer)";
    let granted = grant(&request("all"), &two, &network(&two, interfaces()));
    assert_eq!(index(&granted), None);
    assert_eq!(variable(&granted, "NCCL_IB_ROCE_VERSION_NUM"), Some("2"));
    assert_eq!(variable(&granted, "NCCL_IB_ADDR_FAMILY"), Some("AF_INET"));
    assert_eq!(granted.warnings, [said]);
    assert_eq!(variable(&granted, "NCCL_IB_ADDR_RANGE"), None);
    assert_eq!(variable(&granted, "UCX_IB_GID_INDEX"), None);
    assert_eq!(variable(&granted, "UCX_IB_ROCE_SUBNETS"), Some("10.1.0.7/32,192.168.0.7/32"));

    // One range that holds nobody else's.
    two.hcas[1].ports[0].gids =
        gid_table("0 v2 fe80::2 eth2\n2 v2 ::ffff:10.0.0.6 eth2\n6 v2 ::ffff:10.1.0.6 net2");
    let near = [
        interface("net1", "macvlan", &["10.1.0.7/24"]),
        interface("net2", "macvlan", &["10.1.0.6/24"]),
    ];
    let granted = grant(&request("all"), &two, &network(&two, near.clone()));
    assert_eq!(variable(&granted, "NCCL_IB_ADDR_RANGE"), Some("10.1.0.6/31"));
    assert_eq!(variable(&granted, "NVSHMEM_IB_ADDR_RANGE"), Some("10.1.0.6/31"));
    assert_eq!(granted.warnings, [format!("{said} within 10.1.0.6/31")]);

    // Another pod's address in between: a range would take the wrong one.
    two.hcas[1].ports[0].gids = gid_table("2 v2 ::ffff:10.1.0.7 net1\n6 v2 ::ffff:10.1.0.6 net2");
    two.hcas[0].ports[0].gids = gid_table("1 v2 ::ffff:10.1.0.6 net1\n3 v2 ::ffff:10.1.0.7 net1");
    let only = [
        interface("net1", "macvlan", &["10.1.0.7/24"]),
        interface("net2", "macvlan", &["10.1.0.4/24"]),
    ];
    two.hcas[1].ports[0].gids = gid_table("2 v2 ::ffff:10.1.0.5 net1\n6 v2 ::ffff:10.1.0.4 net2");
    let granted = grant(&request("all"), &two, &network(&two, only));
    assert_eq!(variable(&granted, "NCCL_IB_ADDR_RANGE"), None);
    assert_eq!(index(&granted), None);
    warned(&granted, "which no variable can tell the right ones");
}

#[test]
fn c31_a_link_local_gid_is_not_chosen() {
    let node = node([roce(
        "mlx5_0",
        0,
        "eth1",
        "0 v1 fe80::9 eth1\n1 v2 fe80::9 eth1\n2 v1 ::ffff:200.0.209.6 eth1\n\
         3 v2 ::ffff:200.0.209.6 eth1",
    )]);
    let pod = network(&node, [interface("net1", "-", &["200.0.209.6/24", "fe80::9/64"])]);
    assert_eq!(index(&grant(&request("all"), &node, &pod)), Some("3"));

    let only = network(&node, [interface("net1", "-", &["fe80::9/64"])]);
    let mut asks = request("all");
    let granted = grant(&asks, &node, &only);
    assert_eq!(index(&granted), None);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_0:1"));
    warned(&granted, "mlx5_0 port 1: no routable RoCE v2 GID for an address of net1");
    asks.require.insert(Requirement::Gid);
    assert!(refusal(&asks, &node, &only).contains("no routable RoCE v2 GID"));
}

#[test]
fn c32_an_ipv6_only_fabric_sets_the_family() {
    let node = node([roce(
        "mlx5_0",
        0,
        "eth1",
        "0 v1 fe80::9 eth1\n1 v2 fe80::9 eth1\n2 v1 fd93::12 eth1\n3 v2 fd93::12 eth1",
    )]);
    let pod = network(&node, [interface("net1", "-", &["fd93::12/64", "fe80::9/64"])]);
    let granted = grant(&request("all"), &node, &pod);
    assert_eq!(index(&granted), Some("3"));
    assert_eq!(variable(&granted, "NCCL_IB_ADDR_FAMILY"), Some("AF_INET6"));
    assert_eq!(variable(&granted, "UCX_IB_GID_INDEX"), Some("3"));
}

#[test]
fn c37_an_adapter_without_an_interface_is_left_out_of_the_lists() {
    let node = node([
        roce("mlx5_0", 0, "eth1", "5 v2 ::ffff:10.1.0.7 net1"),
        roce("mlx5_1", 1, "eth2", "3 v2 ::ffff:10.0.0.6 eth2"),
    ]);
    let pod = network(&node, [interface("net1", "macvlan", &["10.1.0.7/24"])]);
    let granted = grant(&request("all"), &node, &pod);
    assert_eq!(names(&granted), ["mlx5_0", "mlx5_1"]);
    assert_eq!(granted.adapters.iter().map(|a| a.usable).collect::<Vec<_>>(), [true, false]);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_0:1"));
    assert_eq!(variable(&granted, "UCX_NET_DEVICES"), Some("mlx5_0:1"));
    assert_eq!(variable(&granted, "NVSHMEM_ENABLE_NIC_PE_MAPPING"), Some("1"));
    assert_eq!(index(&granted), Some("5"));
    warned(&granted, "mlx5_1 is RoCE but this pod has no network interface on it: left out");
}

#[test]
fn c56_host_network_goes_by_the_hosts_table() {
    let mut node = node([roce("mlx5_0", 0, "ens3np0", &table("::ffff:10.0.0.9", 7))]);
    host(&mut node, [interface("ens3np0", "-", &["10.0.0.5/24"])]);
    let mut asks = request("mlx5_0");
    asks.container.pod.host_network = true;
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(index(&granted), Some("3"));
    assert_eq!(granted.devices.len(), 2);
    assert_eq!(granted.memlock.map(|limit| limit.bytes), Some(u64::MAX));
    assert_eq!(granted.warnings, [""; 0]);

    host(&mut node, [interface("ens3np0", "-", &[])]);
    let granted = grant(&asks, &node, &PodView::Host);
    warned(&granted, "mlx5_0 is RoCE but no address of the host is on it");
    assert_eq!(index(&granted), None);

    node.interfaces.clear();
    let granted = grant(&asks, &node, &PodView::Host);
    warned(&granted, "the host's addresses were not read; the GID index is left unset");
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_0:1"));
}

#[test]
fn the_hosts_own_interface_comes_before_others_above_it() {
    let mut node =
        node([roce("mlx5_0", 0, "eth1", "2 v2 ::ffff:10.7.0.1 eth1.7\n4 v2 ::ffff:10.0.0.5 eth1")]);
    host(
        &mut node,
        [interface("eth1.7", "vlan", &["10.7.0.1/24"]), interface("eth1", "-", &["10.0.0.5/24"])],
    );
    assert_eq!(index(&grant(&request("all"), &node, &PodView::Host)), Some("4"));
}

#[test]
fn pod_data_that_is_not_there_leaves_the_index_unset() {
    let node = node([roce("mlx5_0", 0, "eth1", "3 v2 ::ffff:10.0.0.6 eth1")]);
    let pending = PodView::Pending { reason: "no address on net1 yet".into() };
    let mut asks = request("all");
    let granted = grant(&asks, &node, &pending);
    assert_eq!(index(&granted), None);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_0:1"));
    warned(
        &granted,
        "the pod's addresses are not known: no address on net1 yet; the GID index is left unset",
    );
    for need in [Requirement::Gid, Requirement::RoceInterface] {
        asks.require = [need].into();
        typed(&mut asks, Key::Require, "gid");
        assert_eq!(
            refusal(&asks, &node, &pending),
            "require.rdma-ctk.io=gid: the pod's addresses are not known: no address on net1 yet"
        );
    }
}

#[test]
fn one_address_in_two_namespaces_is_told_apart_by_name_or_not_at_all() {
    let mut node =
        node([roce("mlx5_0", 0, "eth1", "3 v2 ::ffff:10.1.0.7 net2\n5 v2 ::ffff:10.1.0.7 net1")]);
    let pod = |node: &Node| network(node, [interface("net1", "macvlan", &["10.1.0.7/24"])]);
    assert_eq!(index(&grant(&request("all"), &node, &pod(&node))), Some("5"));
    node.hcas[0].ports[0].gids[0].netdev = Some("net1".into());
    let granted = grant(&request("all"), &node, &pod(&node));
    assert_eq!(index(&granted), None);
    warned(&granted, "two RoCE v2 GIDs hold 10.1.0.7, one of them another's");
}
