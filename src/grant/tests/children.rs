//! Which adapters get a sub-interface in a pod, and what is said of those that do not.

use super::machines::*;
use crate::grant::{Inventory, Made, Outcome, Present, Wanted, children, decide, together, word};
use crate::inventory::*;
use crate::policy::Policy;
use crate::request::*;

/// Two RoCE adapters, on eth1 and eth2.
fn rails() -> Node {
    let mut node = node([roce("mlx5_0", 0, "eth1", ""), roce("mlx5_1", 1, "eth2", "")]);
    node.interfaces = vec![
        interface("eth0", "-", &["10.0.0.5/24"]),
        interface("eth1", "-", &["10.1.0.5/24"]),
        interface("eth2", "-", &["10.2.0.5/24"]),
    ];
    for (index, interface) in (2..).zip(&mut node.interfaces) {
        interface.index = index;
    }
    node
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.default.netns.extend([NetnsRequest::Ipvlan, NetnsRequest::Macvlan]);
    policy.default.keys.insert(Key::Address);
    policy
}

fn asks(devices: &str, way: NetnsRequest) -> Request {
    let mut request = request(devices);
    request.netns = way;
    typed(&mut request, Key::Netns, word(way));
    request
}

fn wanted(hca: &str, parent: &str, parent_index: u32) -> Wanted {
    Wanted { hca: hca.into(), parent: parent.into(), parent_index, kind: NetnsRequest::Ipvlan }
}

fn present(hca: &str, parent: &str, kind: NetnsRequest) -> Present {
    Present { hca: hca.into(), parent: parent.into(), kind, pod: "ml/other".into() }
}

fn made(hca: &str, interface: &str) -> Made {
    Made { hca: hca.into(), interface: interface.into(), addressed: true }
}

#[test]
fn each_adapter_that_is_asked_for_gets_one() {
    let node = rails();
    let (zero, one) = (wanted("mlx5_0", "eth1", 3), wanted("mlx5_1", "eth2", 4));
    for (devices, expected) in [
        ("all", vec![zero.clone(), one.clone()]),
        ("mlx5_1", vec![one.clone()]),
        ("netdev:eth1", vec![zero.clone()]),
        ("mlx5_1,mlx5_0", vec![one.clone(), zero.clone()]),
    ] {
        let request = asks(devices, NetnsRequest::Ipvlan);
        assert_eq!(children(&request, &node, &policy(), &[]).unwrap(), expected, "{devices}");
    }
    let mixed = asks("all", NetnsRequest::Ipvlan);
    let mut with_infiniband = rails();
    with_infiniband.hcas.push(infiniband("mlx5_2", 2));
    assert_eq!(children(&mixed, &with_infiniband, &policy(), &[]).unwrap().len(), 2);
}

#[test]
fn what_containers_ask_for_comes_together_in_the_order_of_rails() {
    let node = rails();
    let (zero, one) = (wanted("mlx5_0", "eth1", 3), wanted("mlx5_1", "eth2", 4));
    let all = || [one.clone(), zero.clone(), one.clone()];
    assert_eq!(together(all(), &node, &policy()).unwrap(), [zero.clone(), one.clone()]);
    let mut rails = policy();
    rails.rails = vec!["mlx5_1".into(), "mlx5_0".into()];
    assert_eq!(together(all(), &node, &rails).unwrap(), [one.clone(), zero.clone()]);
    let other = Wanted { kind: NetnsRequest::Macvlan, ..one.clone() };
    let why = together([one, other], &node, &policy()).unwrap_err();
    assert_eq!(
        why,
        "mlx5_1: one container of the pod asks for ipvlan and another for macvlan; the pod has one \
         sub-interface for each adapter"
    );
}

#[test]
fn a_bond_carries_it_for_its_members() {
    let mut node = rails();
    let mut bond = interface("bond0", "bond", &["10.1.0.5/24"]);
    bond.index = 9;
    node.interfaces.push(bond);
    node.interfaces[1].controller = Some(9);
    let request = asks("mlx5_0", NetnsRequest::Ipvlan);
    let wanted = children(&request, &node, &policy(), &[]).unwrap();
    assert_eq!((wanted[0].parent.as_str(), wanted[0].parent_index), ("bond0", 9));
}

#[test]
fn what_can_have_none_is_told_why() {
    type Edit = fn(&mut Node, &mut Policy, &mut Vec<Present>);
    let cases: &[(Edit, &str)] = &[
        (
            |node, _, _| node.hcas[0] = infiniband("mlx5_0", 0),
            "it has no Ethernet port on which a sub-interface could lie",
        ),
        (|node, _, _| node.hcas[0].node_type = NodeType::Rnic, "it is in iWARP mode"),
        (|node, _, _| node.interfaces[1].up = false, "its interface eth1 is down"),
        (
            |node, _, _| node.interfaces[1].kind = Some("macvlan".into()),
            "its interface eth1 is itself virtual (macvlan)",
        ),
        (
            |node, _, _| {
                let mut bridge = interface("br0", "bridge", &[]);
                bridge.index = 9;
                node.interfaces.push(bridge);
                node.interfaces[1].controller = Some(9);
            },
            "its interface eth1 is a member of the bridge br0",
        ),
        (
            |node, _, _| node.interfaces[1].controller = Some(99),
            "its interface eth1 is a member of a bond or bridge",
        ),
        (|node, _, _| node.interfaces.clear(), "its network interface is not known"),
        (
            |node, _, _| {
                let mut mine = interface("mac0", "macvlan", &[]);
                (mine.index, mine.lower) = (9, Some(3));
                node.interfaces.push(mine);
            },
            "its interface eth1 carries the macvlan mac0, and can carry no ipvlan beside it",
        ),
        (
            |_, _, present_| {
                present_.push(present("mlx5_0", "eth1", NetnsRequest::Macvlan));
            },
            "its interface eth1 carries the macvlan of pod ml/other, and can carry no ipvlan",
        ),
        (
            |_, policy, present_| {
                policy.links.children = 1;
                present_.push(present("mlx5_0", "eth1", NetnsRequest::Ipvlan));
            },
            "it has 1 sub-interfaces already, and policy allows 1 (links.children)",
        ),
    ];
    for (edit, said) in cases {
        let (mut node, mut policy, mut present) = (rails(), policy(), Vec::new());
        edit(&mut node, &mut policy, &mut present);
        let named = asks("mlx5_0", NetnsRequest::Ipvlan);
        let sentence = children(&named, &node, &policy, &present).unwrap_err().sentence;
        assert!(
            sentence.contains("mlx5_0 cannot be given: ") && sentence.contains(said),
            "{sentence}"
        );
        // Of a set it is left out.
        let others = children(&asks("all", NetnsRequest::Ipvlan), &node, &policy, &present);
        if !node.interfaces.is_empty() {
            assert_eq!(others.unwrap(), [wanted("mlx5_1", "eth2", 4)], "{said}");
        }
    }
}

#[test]
fn who_may_not_or_cannot_is_told_so() {
    type Edit = fn(&mut Request, &mut Node, &mut Policy);
    let cases: &[(Edit, &str)] = &[
        (
            |_, _, policy| policy.default.netns.clear(),
            "netns.rdma-ctk.io=ipvlan: policy does not allow this way (config.toml, [default] netns: none)",
        ),
        (
            |request, _, _| request.carrier.path = CarrierPath::Wrapper,
            "sub-interfaces are made by the NRI plugin only",
        ),
        (
            |_, node, _| node.netns_mode = NetnsMode::Exclusive,
            "this node runs RDMA in exclusive mode, in which a pod uses no adapter of the host; set \
             `options ib_core netns_mode=1`",
        ),
        (
            |request, _, _| request.devices = Some(Devices::Select(vec![Selector::Gpu])),
            "the GPUs of a container are not known yet",
        ),
    ];
    for (edit, said) in cases {
        let (mut request, mut node, mut policy) =
            (asks("all", NetnsRequest::Ipvlan), rails(), policy());
        edit(&mut request, &mut node, &mut policy);
        let sentence = children(&request, &node, &policy, &[]).unwrap_err().sentence;
        assert!(sentence.contains(said), "{sentence}");
    }
}

fn decided(request: &Request, view: &PodView, made: Option<&[Made]>) -> Outcome {
    let node = rails();
    let inventory = Inventory { children: made, ..Inventory::of(&node, view) };
    decide(request, &inventory, &policy())
}

#[test]
fn a_container_is_given_the_adapters_that_have_one() {
    let node = rails();
    let mut child = interface("rdma0", "ipvlan", &["10.1.0.64/24"]);
    child.lower = Some(3);
    let mut view = network(&node, [interface("eth0", "veth", &["10.9.0.7/24"]), child]);
    if let PodView::Ready(network) = &mut view {
        network.gids = vec![PortGids {
            hca: "mlx5_0".into(),
            port: 1,
            gids: gid_table("3 v2 ::ffff:10.1.0.5 eth1\n5 v2 ::ffff:10.1.0.64 rdma0"),
        }];
    }
    let made = [made("mlx5_0", "rdma0")];
    for devices in ["all", "1", "mlx5_0"] {
        let request = asks(devices, NetnsRequest::Ipvlan);
        let Outcome::Granted(grant) = decided(&request, &view, Some(&made)) else {
            panic!("{devices}")
        };
        assert_eq!(names(&grant), ["mlx5_0"], "{devices}");
        assert_eq!(variable(&grant, "NCCL_IB_GID_INDEX"), Some("5"), "{devices}");
        assert!(grant.reasons.iter().any(|r| r.text == "mlx5_0: rdma0, ipvlan on eth1"));
    }
    let request = asks("mlx5_1", NetnsRequest::Ipvlan);
    let Outcome::Refused(refusal) = decided(&request, &view, Some(&made)) else { panic!() };
    assert!(
        refusal.sentence.contains("mlx5_1 cannot be given: it has no sub-interface in this pod")
    );
    // What the tenant has taken away is not granted.
    let bare = network(&node, [interface("eth0", "veth", &["10.9.0.7/24"])]);
    let request = asks("mlx5_0", NetnsRequest::Ipvlan);
    let Outcome::Refused(refusal) = decided(&request, &bare, Some(&made)) else { panic!() };
    assert!(refusal.sentence.contains("its sub-interface rdma0 is gone from the pod"));
    // Who only wants to know is told what would be made.
    let Outcome::Granted(grant) = decided(&request, &bare, None) else { panic!() };
    assert!(grant.reasons.iter().any(|reason| reason.text == "mlx5_0: ipvlan on eth1"));
}

#[test]
fn without_an_address_it_is_said_where_one_would_come_from() {
    let node = rails();
    let mut child = interface("rdma0", "macvlan", &[]);
    child.lower = Some(3);
    let view = network(&node, [interface("eth0", "veth", &["10.9.0.7/24"]), child]);
    let made = [Made { addressed: false, ..made("mlx5_0", "rdma0") }];
    let mut request = asks("mlx5_0", NetnsRequest::Macvlan);
    let Outcome::Granted(grant) = decided(&request, &view, Some(&made)) else { panic!() };
    warned(&grant, "mlx5_0: rdma0 has no address, since no pool of policy is for it (links.pools)");
    request.address = AddressRequest::None;
    let Outcome::Granted(grant) = decided(&request, &view, Some(&made)) else { panic!() };
    warned(
        &grant,
        "mlx5_0: rdma0 has no address yet, as was asked for (address.rdma-ctk.io: none)",
    );
    let fixed = |hca: &str, address: &str| FixedAddress {
        hca: Some(hca.to_owned()),
        address: address.parse().unwrap(),
    };
    let both = vec![fixed("mlx5_0", "10.1.0.7/24"), fixed("mlx5_1", "10.2.0.7/24")];
    request.address = AddressRequest::Fixed(both);
    let Outcome::Granted(grant) = decided(&request, &view, Some(&made)) else { panic!() };
    warned(&grant, "10.2.0.7/24 is for mlx5_1, which this container is not given");
}

#[test]
fn a_pod_in_the_hosts_namespace_has_none() {
    let mut request = asks("mlx5_0", NetnsRequest::Ipvlan);
    request.container.pod.host_network = true;
    let Outcome::Granted(grant) = decided(&request, &PodView::Host, None) else { panic!() };
    assert_eq!(names(&grant), ["mlx5_0"]);
    assert!(grant.reasons.iter().any(|reason| reason.text.contains("nothing is made")));
}
