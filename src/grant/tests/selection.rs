use super::machines::*;
use crate::grant::Outcome;
use crate::inventory::*;
use crate::policy::{OnRefusal, Policy, Rule};
use crate::request::*;

#[track_caller]
fn chosen(devices: &str, node: &Node) -> Vec<String> {
    let grant = grant(&request(devices), node, &PodView::Host);
    names(&grant).into_iter().map(str::to_owned).collect()
}

#[test]
fn nothing_asked_is_nothing_done() {
    let node = node([infiniband("mlx5_0", 0)]);
    assert_eq!(outcome(&nothing(), &node, &PodView::Host), Outcome::NotAsked);
    assert_eq!(outcome(&request("none"), &node, &PodView::Host), Outcome::NotAsked);
    // Privileged is no claim, nor is a mount of /dev.
    let mut privileged = nothing();
    privileged.container.all_devices = true;
    privileged.container.mounts =
        vec![Mount { destination: "/dev".into(), source: "/dev".into(), kind: "bind".into() }];
    assert_eq!(outcome(&privileged, &node, &PodView::Host), Outcome::NotAsked);
}

#[test]
fn c10_an_unknown_device_is_refused_with_what_there_is() {
    let two = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    assert_eq!(
        refusal(&request("mlx5_9"), &two, &PodView::Host),
        "devices.rdma-ctk.io=mlx5_9: no RDMA device mlx5_9 on this node (have: mlx5_0, mlx5_1)"
    );
    assert_eq!(
        refusal(&request("mlx5_9"), &node([]), &PodView::Host),
        "devices.rdma-ctk.io=mlx5_9: no RDMA device mlx5_9 on this node, which has none at all"
    );
    assert_eq!(
        refusal(&request("all"), &node([]), &PodView::Host),
        "devices.rdma-ctk.io=all: this node has no RDMA device"
    );
    assert_eq!(
        refusal(&request("All"), &two, &PodView::Host),
        "devices.rdma-ctk.io=All: no RDMA device All on this node (have: mlx5_0, mlx5_1); did you \
         mean all?"
    );
    let sentence = refusal(&request("driver:efa"), &two, &PodView::Host);
    assert!(
        sentence.contains("on this node that matches driver:efa (have: mlx5_0 (driver mlx5, "),
        "{sentence}"
    );
}

#[test]
fn selectors_find_what_they_name() {
    let mut far = roce("mlx5_2", 2, "eth1", "");
    far.numa = Some(1);
    let node = node([infiniband("mlx5_1", 1), far, efa("rdmap79s0", 3), infiniband("mlx5_10", 4)]);
    for (devices, expected) in [
        ("all", &["mlx5_1", "mlx5_2", "rdmap79s0", "mlx5_10"][..]),
        ("mlx5_1", &["mlx5_1"]),
        ("mlx5_*", &["mlx5_1", "mlx5_2", "mlx5_10"]),
        ("mlx5_10,mlx5_1", &["mlx5_10", "mlx5_1"]),
        ("mlx5_10,mlx5_*", &["mlx5_10", "mlx5_1", "mlx5_2"]),
        ("pci:0000:12:00.0", &["mlx5_2"]),
        ("netdev:eth1", &["mlx5_2"]),
        ("driver:efa", &["rdmap79s0"]),
        ("link:roce", &["mlx5_2"]),
        ("link:ib", &["mlx5_1", "mlx5_10"]),
        ("numa:1", &["mlx5_2"]),
        ("numa:1,numa:0", &["mlx5_2", "mlx5_1", "rdmap79s0", "mlx5_10"]),
        // The commonest group of link layer and rate: InfiniBand at 400.
        ("rail:1,rail:0", &["mlx5_10", "mlx5_1"]),
    ] {
        assert_eq!(chosen(devices, &node), expected, "{devices}");
    }
    let sentence = refusal(&request("rail:2"), &node, &PodView::Host);
    assert!(sentence.contains("no rail 2 on this node (have: 0 mlx5_1, 1 mlx5_10)"), "{sentence}");
    // Each selector must find at least one.
    let sentence = refusal(&request("mlx5_1,link:iwarp"), &node, &PodView::Host);
    assert!(sentence.contains("matches link:iwarp"), "{sentence}");
}

#[test]
fn policys_rails_are_places_in_its_list() {
    let node = node((0..4).map(|n| infiniband(&format!("mlx5_{n}"), n)));
    let policy = Policy {
        rails: ["mlx5_3", "0000:11:00.0", "mlx5_7"].map(str::to_owned).into(),
        ..Policy::default()
    };
    let grant = grant_under(&request("rail:1,rail:0"), &node, &PodView::Host, &policy);
    assert_eq!(names(&grant), ["mlx5_1", "mlx5_3"]);
    for (rail, said) in [
        (
            "rail:2",
            "rail 2 is mlx5_7 by policy (config.toml, rails), no RDMA device on this node (have: mlx5_0",
        ),
        ("rail:3", "no rail 3 in policy (config.toml, rails: 0 mlx5_3, 1 0000:11:00.0, 2 mlx5_7)"),
    ] {
        let sentence = refusal_under(&request(rail), &node, &PodView::Host, &policy);
        assert!(sentence.contains(said), "{sentence}");
    }
}

#[test]
fn all_takes_what_is_fit_and_a_name_insists() {
    let mut down = infiniband("mlx5_1", 1);
    down.ports[0].state = PortState::Down;
    let mut moved = infiniband("mlx5_2", 2);
    moved.home = Home::Elsewhere;
    let mut taken = roce("mlx5_3", 3, "eth3", "");
    taken.home = Home::NetdevElsewhere;
    let mut handle = roce("mlx5_4", 4, "pf0vf0", "");
    handle.role = Role::Representor;
    let mut member = roce("mlx5_5", 5, "eth5", "");
    member.role = Role::BondMember { bond: "bond0".into() };
    let node = node([infiniband("mlx5_0", 0), down, moved, taken, handle, member]);
    assert_eq!(chosen("all", &node), ["mlx5_0"]);
    assert_eq!(chosen("mlx5_*", &node), ["mlx5_0"]);
    for (name, why) in [
        ("mlx5_1", "it has no ACTIVE port (port 1: DOWN)"),
        ("mlx5_2", "it was moved into another network namespace"),
        ("mlx5_3", "its network interface is in another pod"),
    ] {
        let sentence = refusal(&request(name), &node, &PodView::Host);
        assert!(sentence.contains(&format!("{name} cannot be given: {why}")), "{sentence}");
        assert!(sentence.contains("(can be given: mlx5_0, mlx5_4, mlx5_5)"), "{sentence}");
    }
    assert_eq!(chosen("mlx5_4,mlx5_5", &node), ["mlx5_4", "mlx5_5"]);
    let sentence = refusal(&request("2"), &node, &PodView::Host);
    assert!(sentence.contains("2 RDMA devices were asked for and 1 can be given (mlx5_0)"));
}

#[test]
fn a_subnet_manager_may_have_a_port_that_is_not_up() {
    let mut hca = infiniband("mlx5_0", 0);
    hca.ports[0].state = PortState::Init;
    let node = node([hca]);
    let mut request = request("mlx5_0");
    request.nodes.insert(NodeKind::Issm);
    let mut policy = Policy::default();
    policy.default.nodes.insert(NodeKind::Issm);
    assert_eq!(names(&grant_under(&request, &node, &PodView::Host, &policy)), ["mlx5_0"]);
}

#[test]
fn virtual_functions_wait_for_policy_or_need() {
    let mut vf = roce("mlx5_1", 1, "eth1", "");
    vf.role = Role::Virtual { physical: Some(pci("0000:10:00.0")) };
    let two = node([roce("mlx5_0", 0, "eth0", ""), vf.clone()]);
    assert_eq!(chosen("all", &two), ["mlx5_0"]);
    assert_eq!(chosen("1", &two), ["mlx5_0"]);
    assert_eq!(chosen("mlx5_1", &two), ["mlx5_1"]);
    // Nothing else qualifies: a guest that was handed a function.
    assert_eq!(chosen("all", &node([vf])), ["mlx5_1"]);
    let mut policy = Policy::default();
    policy.default.virtual_functions = true;
    let grant = grant_under(&request("all"), &two, &PodView::Host, &policy);
    assert_eq!(names(&grant), ["mlx5_0", "mlx5_1"]);
}

#[test]
fn an_interface_in_this_very_pod_is_no_obstacle() {
    let mut vf = roce("mlx5_1", 1, "eth1", "2 v1 ::ffff:10.1.0.7 net1\n3 v2 ::ffff:10.1.0.7 net1");
    vf.home = Home::NetdevElsewhere;
    let node = node([vf]);
    let mine = network(
        &node,
        [interface("eth0", "veth", &["10.88.0.9/16"]), interface("net1", "-", &["10.1.0.7/24"])],
    );
    assert_eq!(names(&grant(&request("mlx5_1"), &node, &mine)), ["mlx5_1"]);
    assert_eq!(names(&grant(&request("all"), &node, &mine)), ["mlx5_1"]);
    // The same name in another pod's namespace proves nothing.
    let others = network(&node, [interface("net1", "-", &["10.1.0.8/24"])]);
    assert!(refusal(&request("mlx5_1"), &node, &others).contains("in another pod"));
    let pending = PodView::Pending { reason: "no address on net1 yet".into() };
    let sentence = refusal(&request("mlx5_1"), &node, &pending);
    assert!(sentence.contains("not known: no address on net1 yet"), "{sentence}");
}

#[test]
fn c54_exclusive_mode_gives_what_is_in_the_pods_namespace() {
    let mut node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    node.netns_mode = NetnsMode::Exclusive;
    node.hcas[1].home = Home::Elsewhere;
    let network = |hcas: &[&str]| {
        PodView::Ready(PodNetwork {
            hcas: hcas.iter().map(|name| (*name).to_owned()).collect(),
            ..PodNetwork::default()
        })
    };
    let sentence = refusal(&request("mlx5_0"), &node, &network(&[]));
    assert!(sentence.contains("this node runs RDMA in exclusive mode"), "{sentence}");
    assert_eq!(names(&grant(&request("all"), &node, &network(&["mlx5_1"]))), ["mlx5_1"]);
    let ports = std::mem::take(&mut node.hcas[1].ports);
    let unseen = grant(&request("mlx5_1"), &node, &network(&["mlx5_1"]));
    warned(&unseen, "the ports of mlx5_1 cannot be seen from the host's namespace");
    node.hcas[1].ports = ports;
    assert_eq!(names(&grant(&request("all"), &node, &PodView::Host)), ["mlx5_0"]);
    let sentence = refusal(&request("mlx5_1"), &node, &PodView::Host);
    assert!(sentence.contains("moved into another network namespace"), "{sentence}");
}

/// Two GPUs and four adapters: 0 and 1 beside the first GPU, 2 and 3 beside the second.
fn gpu_node() -> Node {
    let mut node = node((0..4).map(|n| infiniband(&format!("mlx5_{n}"), n)));
    for hca in &mut node.hcas[2..] {
        hca.numa = Some(1);
        hca.local_cpus = cpus("32-63");
    }
    for (minor, place) in [(0, "0000:1b:00.0"), (1, "0000:9d:00.0")] {
        node.gpus.push(Gpu {
            pci: pci(place),
            vendor: 0x10de,
            numa: Some(minor),
            minor: Some(1 - minor),
            uuid: Some(format!("GPU-{minor}")),
        });
        for (number, hca) in (0..).zip(&node.hcas) {
            let near = number / 2 == minor;
            node.relations.push(Relation {
                hca: hca.name.clone(),
                gpu: pci(place),
                nearness: if near { Nearness::Switch } else { Nearness::Other },
            });
        }
    }
    node
}

#[test]
fn gpus_are_told_by_node_cdi_name_or_variable() {
    let node = gpu_node();
    type Edit = fn(&mut Container);
    let env = |container: &mut Container, value: &str| {
        container.env.push(("NVIDIA_VISIBLE_DEVICES".into(), value.into()));
    };
    let cases: [(Edit, &[&str]); 8] = [
        // The minor number counts, and differs from the place in PCI order.
        (
            |c| c.devices.push(Device { path: "/dev/nvidia1".into(), major: 195, minor: 1 }),
            &["mlx5_0", "mlx5_1"],
        ),
        (|c| c.cdi.push("nvidia.com/gpu=1".into()), &["mlx5_2", "mlx5_3"]),
        (|c| c.cdi.push("nvidia.com/gpu=GPU-0".into()), &["mlx5_0", "mlx5_1"]),
        (|c| c.cdi.push("k8s.device-plugin.nvidia.com/gpu=GPU-1".into()), &["mlx5_2", "mlx5_3"]),
        (|c| c.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "1".into())), &["mlx5_2", "mlx5_3"]),
        (|c| c.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "GPU-0".into())), &["mlx5_0", "mlx5_1"]),
        (
            |c| c.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "all".into())),
            &["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"],
        ),
        (
            |c| {
                c.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "all".into()));
                c.devices.push(Device { path: "/dev/nvidia0".into(), major: 195, minor: 0 });
                c.devices.push(Device { path: "/dev/nvidiactl".into(), major: 195, minor: 255 });
            },
            &["mlx5_2", "mlx5_3"],
        ),
    ];
    for (edit, expected) in cases {
        let mut request = request("gpu");
        edit(&mut request.container);
        let grant = grant(&request, &node, &PodView::Host);
        assert_eq!(names(&grant), expected, "{:?}", request.container);
    }
    for value in ["", "none", "void", "7", "MIG-0"] {
        let mut request = request("gpu");
        env(&mut request.container, value);
        let sentence = refusal(&request, &node, &PodView::Host);
        assert!(sentence.contains("it has none that is known"), "{sentence}");
    }
}

#[test]
fn a_count_prefers_the_near_and_spreads_the_rest() {
    let node = gpu_node();
    let mut request = request("2");
    request.container.env.push(("NVIDIA_VISIBLE_DEVICES".into(), "1".into()));
    let near = grant(&request, &node, &PodView::Host);
    assert_eq!(
        names(&near).into_iter().collect::<std::collections::BTreeSet<_>>(),
        ["mlx5_2", "mlx5_3"].into()
    );

    request.container.env.clear();
    request.container.cpus = Some(cpus("0-7"));
    let near = grant(&request, &node, &PodView::Host);
    assert_eq!(
        names(&near).into_iter().collect::<std::collections::BTreeSet<_>>(),
        ["mlx5_0", "mlx5_1"].into()
    );

    request.container.cpus = None;
    request.devices = Some(Devices::Count(1));
    let mut given = [0; 4];
    for pod in 0..400 {
        request.container.pod.uid = format!("pod-{pod}");
        let grant = grant(&request, &node, &PodView::Host);
        let name = names(&grant)[0];
        given[name[5..].parse::<usize>().unwrap()] += 1;
    }
    assert!(given.iter().all(|count| (70..130).contains(count)), "{given:?}");
}

#[test]
fn policy_decides_who_gets_what() {
    let node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let mut policy = Policy::default();
    policy.default.adapters = ["mlx5_1".to_owned()].into();
    let grant = grant_under(&request("all"), &node, &PodView::Host, &policy);
    assert_eq!(names(&grant), ["mlx5_1"]);
    assert_eq!(
        refusal_under(&request("mlx5_0"), &node, &PodView::Host, &policy),
        "devices.rdma-ctk.io=mlx5_0: mlx5_0 cannot be given: policy does not give it to namespace \
         team-a (config.toml, [default] adapters) (can be given: mlx5_1)"
    );
    policy.default.adapters = ["0000:10:*".to_owned()].into();
    let grant = grant_under(&request("all"), &node, &PodView::Host, &policy);
    assert_eq!(names(&grant), ["mlx5_0"]);

    policy.default.keys.remove(&Key::Devices);
    assert_eq!(
        refusal_under(&request("all"), &node, &PodView::Host, &policy),
        "devices.rdma-ctk.io=all: policy does not let namespace team-a use this key \
         (config.toml, [default] keys: nodes, memlock, numa, env, netns, smc, require)"
    );
    policy.rules.push(Rule { namespaces: ["team-*".to_owned()].into(), ..Rule::default() });
    assert_eq!(names(&grant_under(&request("all"), &node, &PodView::Host, &policy)).len(), 2);
}

#[test]
fn a_refusal_may_be_waived_by_policy_and_is_still_said() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut policy = Policy::default();
    policy.default.on_refusal = OnRefusal::Warn;
    let inventory = crate::grant::Inventory::of(&node, &PodView::Host);
    let outcome = crate::grant::decide(&request("mlx5_9"), &inventory, &policy);
    let Outcome::Waived(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(refusal.sentence.contains("mlx5_9"));
}

#[test]
fn one_owner() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut asks = request("all");
    asks.container.pod.runtime_handler = "rdma".into();
    let left = outcome(&asks, &node, &PodView::Host);
    let Outcome::LeftAlone { reason } = left else { panic!("{left:?}") };
    assert!(reason.contains("runtime handler rdma belongs to the runtime wrapper"), "{reason}");
    asks.carrier.path = CarrierPath::Wrapper;
    assert_eq!(names(&grant(&asks, &node, &PodView::Host)), ["mlx5_0"]);

    asks.container.granted_before = true;
    let left = outcome(&asks, &node, &PodView::Host);
    assert!(matches!(left, Outcome::LeftAlone { .. }), "{left:?}");
}

#[test]
fn c106_virtual_machines_are_refused_and_gvisor_is_warned() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut asks = request("all");
    asks.container.pod.runtime_handler = "kata-qemu".into();
    assert_eq!(
        refusal(&asks, &node, &PodView::Host),
        "devices.rdma-ctk.io=all: runtime handler kata-qemu: Kata needs VFIO passthrough; device \
         nodes are not enough"
    );
    asks.container.pod.runtime_handler = "runsc".into();
    warned(&grant(&asks, &node, &PodView::Host), "--rdmaproxy");
}

#[test]
fn what_this_build_does_not_serve_is_refused_in_words() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut policy = Policy::default();
    policy.default.keys = Key::ALL.into();
    policy.default.capabilities = ["IPC_LOCK".to_owned()].into();
    type Edit = fn(&mut Request);
    let cases: [(Edit, &str); 6] = [
        (
            |r| r.smc = SmcMethod::Auto,
            "smc.rdma-ctk.io: what the kernel has of SMC-R was not looked at",
        ),
        (|r| r.netns = NetnsRequest::Exclusive, "netns.rdma-ctk.io: policy does not allow"),
        (|r| r.netns = NetnsRequest::Ipvlan, "netns.rdma-ctk.io: policy does not allow"),
        (|r| r.netns = NetnsRequest::Host, "the pod has a network namespace of its own"),
        (
            |r| r.capabilities = ["IPC_LOCK".to_owned()].into(),
            "NRI on containerd 2.3.0 cannot change capabilities: no NRI version has them; memlock",
        ),
        (
            |r| r.carrier.devices = Can::No("use the CDI names".into()),
            "cannot add device nodes: use the CDI names",
        ),
    ];
    for (edit, said) in cases {
        let mut asks = request("all");
        edit(&mut asks);
        let sentence = refusal_under(&asks, &node, &PodView::Host, &policy);
        assert!(sentence.contains(said), "{sentence}");
    }
    // A request for SMC-R alone is not lost either.
    let mut smc = nothing();
    smc.smc = SmcMethod::Preload;
    assert!(refusal(&smc, &node, &PodView::Host).contains("was not looked at"));
    let mut host = request("all");
    host.netns = NetnsRequest::Host;
    host.container.pod.host_network = true;
    assert_eq!(names(&grant_under(&host, &node, &PodView::Host, &policy)), ["mlx5_0"]);
}

#[test]
fn c09_the_wrapper_carries_capabilities_that_policy_gives() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut policy = Policy::default();
    policy.default.keys = Key::ALL.into();
    let mut asks = request("all");
    asks.carrier.path = CarrierPath::Wrapper;
    asks.carrier.capabilities = Can::Yes;
    asks.capabilities = ["IPC_LOCK".to_owned()].into();
    let sentence = refusal_under(&asks, &node, &PodView::Host, &policy);
    assert!(sentence.contains("policy does not give IPC_LOCK to namespace team-a"), "{sentence}");
    policy.default.capabilities = ["IPC_LOCK".to_owned()].into();
    let grant = grant_under(&asks, &node, &PodView::Host, &policy);
    assert_eq!(grant.capabilities, ["IPC_LOCK"]);
}
