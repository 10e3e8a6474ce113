//! RDMA netlink's view laid over sysfs.

use super::*;

/// What netlink would say of a node that is as `node` shows it.
fn view(node: &Node) -> NetlinkView {
    let ids = [("mlx5", 1), ("bnxt_re", 6), ("rxe", 14), ("efa", 17), ("erdma", 19), ("mana", 20)];
    let plain =
        |device: &Option<CharDev>| device.clone().map(|device| CharDev { mode: None, ..device });
    let devices = node.hcas.iter().zip(0..).map(|(hca, index)| NetlinkDevice {
        index,
        name: hca.name.clone(),
        node_type: Some(hca.node_type),
        node_guid: Some(hca.node_guid.clone()),
        protocol: match (hca.node_type, hca.ports[0].link_layer) {
            (NodeType::Unspecified, _) => None,
            (NodeType::Rnic, _) => Some("iw".into()),
            (_, LinkLayer::InfiniBand) => Some("ib".into()),
            _ => Some("roce".into()),
        },
        firmware: hca.firmware.clone(),
        driver_id: ids.iter().find(|(name, _)| hca.driver.is(name)).map(|(_, id)| *id),
        uverbs: plain(&hca.uverbs),
        ports: hca
            .ports
            .iter()
            .map(|port| NetlinkPort {
                number: port.number,
                state: Some(port.state),
                lid: (port.link_layer == LinkLayer::InfiniBand).then_some(port.lid),
                netdev_index: None,
                netdev: port.netdev.clone().filter(|_| port.link_layer == LinkLayer::Ethernet),
                umad: plain(&port.umad),
                issm: plain(&port.issm),
            })
            .collect(),
    });
    NetlinkView {
        devices: devices.collect(),
        rdma_cm: plain(&node.rdma_cm),
        netns_mode: Some(node.netns_mode),
        monitor: true,
        interfaces: Some(node.interfaces.clone()),
        remarks: Vec::new(),
    }
}

/// A machine, what sysfs says of it, and the netlink view that agrees.
fn machine(name: &str) -> (tempfile::TempDir, Roots, Node, NetlinkView) {
    let (dir, roots) = fixture(name);
    let node = snapshot(&roots, None);
    let view = view(&node);
    (dir, roots, node, view)
}

#[test]
fn two_sources_that_agree_say_nothing_more_than_one_but_the_index() {
    for name in ["gpu-infiniband", "gpu-roce", "roce-sriov", "efa-p5", "erdma-iwarp", "mana"] {
        let (_dir, roots, sysfs, view) = machine(name);
        let mut merged = snapshot(&roots, Some(&view));
        for (hca, device) in merged.hcas.iter_mut().zip(&view.devices) {
            assert_eq!(hca.index.take(), Some(device.index), "{name}");
        }
        assert_eq!(merged, sysfs, "{name}");
    }
}

#[test]
fn every_difference_is_named_and_netlink_is_believed() {
    type Change = fn(&mut NetlinkView);
    type Holds = fn(&Hca) -> bool;
    let cases: [(&str, Change, Holds); 9] = [
        (
            "mlx5_0: RDMA netlink says its driver is efa, sysfs says mlx5",
            |view| view.devices[0].driver_id = Some(17),
            |hca| hca.driver.is("efa"),
        ),
        (
            "mlx5_0: RDMA netlink says its node type is RNIC, sysfs says CA",
            |view| view.devices[0].node_type = Some(NodeType::Rnic),
            |hca| hca.node_type == NodeType::Rnic,
        ),
        (
            "mlx5_0: RDMA netlink says its node GUID is 1:2:3:4, sysfs says a088:c203:005f:c296",
            |view| view.devices[0].node_guid = Some("1:2:3:4".into()),
            |hca| hca.node_guid == "1:2:3:4",
        ),
        (
            "mlx5_0: RDMA netlink says a device is uverbs0 511:3, sysfs says uverbs0 231:192",
            |view| {
                let uverbs = view.devices[0].uverbs.as_mut().unwrap();
                (uverbs.major, uverbs.minor) = (511, 3);
            },
            |hca| {
                hca.uverbs
                    .as_ref()
                    .is_some_and(|device| (device.major, device.mode) == (511, Some(0o666)))
            },
        ),
        (
            "mlx5_0: sysfs has uverbs0 231:192, RDMA netlink does not",
            |view| view.devices[0].uverbs = None,
            |hca| hca.uverbs.is_some(),
        ),
        (
            "mlx5_0 port 1: RDMA netlink says its state is DOWN, sysfs says ACTIVE",
            |view| view.devices[0].ports[0].state = Some(PortState::Down),
            |hca| hca.active_ports().count() == 0,
        ),
        (
            "mlx5_0 port 1: RDMA netlink says its LID is 7, sysfs says 42",
            |view| view.devices[0].ports[0].lid = Some(7),
            |hca| hca.ports[0].lid == 7,
        ),
        (
            "RDMA netlink lists mlx5_0 port 2, sysfs does not",
            |view| {
                let port = NetlinkPort {
                    number: 2,
                    state: Some(PortState::Init),
                    lid: None,
                    netdev_index: None,
                    netdev: None,
                    umad: None,
                    issm: None,
                };
                view.devices[0].ports.push(port);
            },
            |hca| hca.ports.len() == 2 && hca.ports[1].state == PortState::Init,
        ),
        (
            "the node: RDMA netlink says its RDMA namespace mode is exclusive, sysfs says shared",
            |view| view.netns_mode = Some(NetnsMode::Exclusive),
            |hca| hca.home == Home::Host,
        ),
    ];
    let (_dir, roots, _, view) = machine("gpu-infiniband");
    for (remark, change, holds) in cases {
        let mut view = view.clone();
        change(&mut view);
        let node = snapshot(&roots, Some(&view));
        assert_eq!(node.remarks, [remark]);
        assert!(holds(node.hca("mlx5_0").unwrap()), "{remark}");
    }
}

#[test]
fn an_interface_that_differs_is_named_but_not_a_bonds_member() {
    let (_dir, roots, _, view) = machine("roce-sriov");
    let told = |hca: &str, netdev: Option<&str>| {
        let mut view = view.clone();
        let device = view.devices.iter_mut().find(|device| device.name == hca).unwrap();
        device.ports[0].netdev = netdev.map(str::to_owned);
        let node = snapshot(&roots, Some(&view));
        let found = node.hca(hca).unwrap();
        (found.ports[0].netdev.clone().unwrap(), found.home.clone(), node.remarks)
    };
    let remark = "mlx5_0 port 1: RDMA netlink says its interface is eth8, sysfs says ens1f0np0";
    assert_eq!(told("mlx5_0", Some("eth8")), ("eth8".into(), Home::Host, vec![remark.to_owned()]));
    // For a joined HCA the kernel names the active member.
    assert_eq!(told("rocep59s0f0", Some("ens2f1np1")), ("bond0".into(), Home::Host, vec![]));
    // An older driver that does not tell its interface to the RDMA core.
    assert_eq!(told("mlx5_0", None), ("ens1f0np0".into(), Home::Host, vec![]));
}

#[test]
fn netlink_tells_a_representor_and_an_interface_that_is_away() {
    let (_dir, roots, _, mut view) = machine("roce-sriov");
    let mut port = |hca: &str, netdev: Option<&str>| {
        let device = view.devices.iter_mut().find(|device| device.name == hca).unwrap();
        device.ports[0].netdev = netdev.map(str::to_owned);
    };
    port("mlx5_6", Some("ens3npf0vf0"));
    port("mlx5_2", None);
    std::fs::remove_file(roots.sys.join("class/net/eth8")).unwrap();
    let node = snapshot(&roots, Some(&view));
    let hca = node.hca("mlx5_6").unwrap();
    assert_eq!(hca.role, Role::Representor);
    assert_eq!(hca.ports[0].netdev.as_deref(), Some("ens3npf0vf0"));
    assert_eq!(node.hca("mlx5_2").unwrap().home, Home::NetdevElsewhere);
    assert_eq!(node.remarks, Vec::<String>::new());
}

#[test]
fn netlink_knows_a_soft_roce_hcas_interface_better_than_its_name() {
    let (_dir, roots, _, mut view) = machine("soft-roce");
    // A pod has an `eth0` too: the kernel tells an interface only to its own namespace.
    view.devices[0].ports[0].netdev = None;
    let node = snapshot(&roots, Some(&view));
    assert_eq!(node.hcas[0].home, Home::NetdevElsewhere);
}

#[test]
fn a_rename_between_the_two_readings_is_one_hca() {
    let (_dir, roots, sysfs, mut view) = machine("gpu-infiniband");
    view.devices[0].name = "ibp24s0".into();
    let node = snapshot(&roots, Some(&view));
    assert_eq!(node.hcas.len(), sysfs.hcas.len());
    assert_eq!(node.hcas[0].name, "ibp24s0");
    assert_eq!(node.hcas[0].pci, sysfs.hcas[0].pci);
    assert_eq!(node.remarks, ["mlx5_0 was renamed to ibp24s0 while it was read"]);
}

#[test]
fn an_hca_that_only_one_source_lists_is_named() {
    let (_dir, roots, sysfs, mut view) = machine("gpu-infiniband");
    let gone = view.devices.remove(3);
    view.devices.push(NetlinkDevice {
        index: 99,
        uverbs: None,
        name: "mlx5_99".into(),
        ..gone.clone()
    });
    let node = snapshot(&roots, Some(&view));
    assert_eq!(
        node.remarks,
        [
            "RDMA netlink lists mlx5_99, sysfs does not".to_owned(),
            format!("sysfs lists {}, RDMA netlink does not", gone.name)
        ]
    );
    assert_eq!(node.hcas.len(), sysfs.hcas.len() + 1);
    let added = node.hca("mlx5_99").unwrap();
    assert_eq!((&added.role, &added.home), (&Role::Physical { vfs: 0 }, &Home::Host));
    assert_eq!(added.index, Some(99));
    assert_eq!(node.hca(&gone.name).unwrap().home, Home::Host);
    // In exclusive mode it was moved away in between.
    view.netns_mode = Some(NetnsMode::Exclusive);
    let node = snapshot(&roots, Some(&view));
    assert_eq!(node.hca(&gone.name).unwrap().home, Home::Elsewhere);
}

#[test]
fn an_hca_that_sysfs_hides_but_netlink_lists_is_here() {
    let (_dir, roots, sysfs, view) = machine("gpu-infiniband");
    std::fs::remove_file(roots.sys.join("class/infiniband/mlx5_0")).unwrap();
    let node = snapshot(&roots, Some(&view));
    let (hca, was) = (node.hca("mlx5_0").unwrap(), sysfs.hca("mlx5_0").unwrap());
    assert_eq!(
        (&hca.home, hca.node_type, &hca.node_guid),
        (&Home::Host, NodeType::Ca, &was.node_guid)
    );
    assert_eq!(hca.active_ports().count(), 1);
    assert_eq!(node.remarks, ["RDMA netlink lists mlx5_0, sysfs shows only its uverbs device"]);
}

#[test]
fn interfaces_are_rtnetlinks_where_it_answered() {
    let (_dir, roots, sysfs, mut view) = machine("roce-sriov");
    let interfaces = view.interfaces.as_mut().unwrap();
    interfaces.retain(|interface| interface.name != "lo");
    interfaces[0].addresses = vec![("10.9.8.7".parse().unwrap(), 24)];
    let expected = interfaces.clone();
    assert_eq!(snapshot(&roots, Some(&view)).interfaces, expected);
    view.interfaces = None;
    assert_eq!(snapshot(&roots, Some(&view)).interfaces, sysfs.interfaces);
}
