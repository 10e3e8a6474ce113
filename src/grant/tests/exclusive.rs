//! Which adapters may move into a pod, and what those that may not are told.

use super::machines::*;
use crate::grant::{Moving, Use, exclusive};
use crate::inventory::*;
use crate::policy::Policy;
use crate::request::*;

/// Two RoCE adapters, on eth1 and eth2, of a node in the exclusive mode whose default route is
/// elsewhere.
fn rails() -> Node {
    let mut node = node([roce("mlx5_0", 0, "eth1", ""), roce("mlx5_1", 1, "eth2", "")]);
    node.netns_mode = NetnsMode::Exclusive;
    let mut uplink = interface("eth0", "-", &["10.0.0.5/24"]);
    uplink.default_route = true;
    node.interfaces = vec![
        uplink,
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
    policy.default.netns.insert(NetnsRequest::Exclusive);
    policy.links.movable = ["mlx5_*".to_owned()].into();
    policy
}

fn asks(devices: &str) -> Request {
    let mut request = request(devices);
    request.netns = NetnsRequest::Exclusive;
    request
}

fn unused(node: &Node) -> Moving {
    let uses = node.hcas.iter().map(|hca| (hca.name.clone(), Use::default())).collect();
    Moving { uses, ..Moving::default() }
}

#[test]
fn adapters_that_policy_lists_move() {
    let node = rails();
    for (devices, moved) in [
        ("all", vec!["mlx5_0", "mlx5_1"]),
        ("mlx5_1", vec!["mlx5_1"]),
        ("netdev:eth1", vec!["mlx5_0"]),
        ("mlx5_*", vec!["mlx5_0", "mlx5_1"]),
    ] {
        assert_eq!(exclusive(&asks(devices), &node, &policy(), &unused(&node)).unwrap(), moved);
    }
    assert_eq!(exclusive(&asks("1"), &node, &policy(), &unused(&node)).unwrap().len(), 1);
    let mut one = policy();
    one.links.movable = ["0000:11:00.0".to_owned()].into();
    assert_eq!(exclusive(&asks("all"), &node, &one, &unused(&node)).unwrap(), ["mlx5_1"]);
}

#[test]
fn what_may_not_move_is_told_why() {
    type Edit = fn(&mut Node, &mut Policy, &mut Moving);
    let cases: &[(Edit, &str)] = &[
        (
            |_, policy, _| policy.links.movable.clear(),
            "policy does not list it as movable (links.movable)",
        ),
        (
            |node, _, _| node.hcas[0].driver = Driver("efa".into()),
            "its driver efa cannot move devices between network namespaces",
        ),
        (
            |node, _, _| node.hcas[0].driver = Driver("rxe".into()),
            "its driver rxe cannot move devices",
        ),
        (
            |node, _, _| node.interfaces[1].default_route = true,
            "its interface eth1 holds the default route of the node",
        ),
        (
            |_, policy, _| policy.links.node_addresses = ["10.1.0.5".parse().unwrap()].into(),
            "its interface eth1 holds the node's address 10.1.0.5",
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
            |node, _, _| node.hcas[0].role = Role::BondMember { bond: "bond0".into() },
            "it is a member of bond0",
        ),
        (
            |node, _, _| {
                let mut vlan = interface("eth1.7", "vlan", &[]);
                vlan.lower = Some(node.interfaces[1].index);
                vlan.index = 10;
                node.interfaces.push(vlan);
            },
            "the host's interface eth1.7 lies on its interface eth1",
        ),
        (|node, _, _| node.hcas[0].ports[0].netdev = None, "its network interface is not known"),
        (
            |node, _, _| {
                let mut second = node.hcas[0].ports[0].clone();
                second.netdev = Some("eth9".into());
                node.hcas[0].ports.push(second);
            },
            "it has several interfaces (eth1, eth9)",
        ),
        (
            |_, _, moving| {
                moving.uses.get_mut("mlx5_0").unwrap().programs = vec!["perf (pid 8)".into()];
            },
            "programs of the host use it: perf (pid 8)",
        ),
        (
            |_, _, moving| moving.uses.get_mut("mlx5_0").unwrap().kernel = vec!["smc".into()],
            "the kernel uses it: smc",
        ),
        (
            |_, _, moving| {
                moving.uses.get_mut("mlx5_0").unwrap().addresses =
                    vec!["10.1.0.5".parse().unwrap()];
            },
            "the host has TCP connections over its address 10.1.0.5",
        ),
        (|_, _, moving| moving.uses.clear(), "who uses it is not known"),
        (
            |_, _, moving| {
                moving.uses.get_mut("mlx5_0").unwrap().unknown = Some("no netlink".into());
            },
            "cannot be given: no netlink",
        ),
        (
            |node, _, _| node.hcas[0].home = Home::Elsewhere,
            "it was moved into another network namespace",
        ),
    ];
    for (edit, said) in cases {
        let (mut node, mut policy) = (rails(), policy());
        let mut moving = unused(&node);
        edit(&mut node, &mut policy, &mut moving);
        let refusal = exclusive(&asks("mlx5_0"), &node, &policy, &moving).unwrap_err();
        assert!(
            refusal.sentence.starts_with("devices.rdma-ctk.io=mlx5_0: mlx5_0 cannot be given: ")
        );
        assert!(refusal.sentence.contains(said), "{}", refusal.sentence);
    }
}

#[test]
fn c71_the_owner_of_an_adapter_is_named() {
    let node = rails();
    let mut moving = unused(&node);
    moving.away = [("mlx5_0".to_owned(), "it already belongs to pod ml/a".to_owned())].into();
    let refusal = exclusive(&asks("mlx5_0"), &node, &policy(), &moving).unwrap_err();
    assert!(
        refusal.sentence.contains("mlx5_0 cannot be given: it already belongs to pod ml/a"),
        "{refusal}"
    );
    assert_eq!(exclusive(&asks("all"), &node, &policy(), &moving).unwrap(), ["mlx5_1"]);
    moving.away.insert("mlx5_1".into(), "it already belongs to pod ml/b".into());
    let refusal = exclusive(&asks("all"), &node, &policy(), &moving).unwrap_err();
    assert!(refusal.sentence.contains("ml/a") && refusal.sentence.contains("ml/b"), "{refusal}");
}

#[test]
fn what_stands_in_the_way_of_the_whole_is_told_before_anything_else() {
    let (mut node, mut denied) = (rails(), policy());
    denied.default.netns.remove(&NetnsRequest::Exclusive);
    let refused = |node: &Node, policy: &Policy, request: &Request| {
        exclusive(request, node, policy, &unused(node)).unwrap_err().sentence
    };
    assert_eq!(
        refused(&node, &denied, &asks("all")),
        "netns.rdma-ctk.io: policy does not allow this way (config.toml, [default] netns: auto, \
         shared, host)"
    );
    let gpu = refused(&node, &policy(), &asks("gpu"));
    assert!(gpu.contains("the GPUs of a container are not known yet"), "{gpu}");
    let mut wrapper = asks("all");
    wrapper.carrier.path = CarrierPath::Wrapper;
    assert!(refused(&node, &policy(), &wrapper).contains("by the NRI plugin only"));
    node.netns_mode = NetnsMode::Shared;
    let shared = refused(&node, &policy(), &asks("all"));
    assert!(shared.contains("none can move; set `options ib_core netns_mode=0` in"), "{shared}");
}

#[test]
fn c56_for_a_pod_in_the_hosts_namespace_nothing_moves() {
    let node = rails();
    let mut host = asks("mlx5_0");
    host.container.pod.host_network = true;
    let granted = grant_under(&host, &node, &PodView::Host, &policy());
    assert_eq!(granted.adapters.len(), 1);
    let said = |reason: &crate::grant::Reason| reason.text.contains("nothing moves");
    assert!(granted.reasons.iter().any(said), "{:?}", granted.reasons);
}

#[test]
fn an_adapter_without_an_interface_moves_alone() {
    let mut node = node([infiniband("mlx5_0", 0)]);
    node.netns_mode = NetnsMode::Exclusive;
    // IPoIB's interface is the kernel's to make.
    node.hcas[0].ports[0].netdev = Some("ib0".into());
    assert_eq!(exclusive(&asks("all"), &node, &policy(), &unused(&node)).unwrap(), ["mlx5_0"]);
    assert!(crate::grant::interfaces(&node.hcas[0]).is_empty());
}
