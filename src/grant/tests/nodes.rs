use super::machines::*;
use crate::inventory::PodView;
use crate::policy::Policy;
use crate::request::*;

fn paths(grant: &crate::grant::Grant) -> Vec<String> {
    let device = |node: &crate::grant::DeviceNode| {
        let rule = if node.rule_only { " rule" } else { "" };
        format!("{} {}:{}{rule}", node.path, node.major, node.minor)
    };
    grant.devices.iter().map(device).collect()
}

#[test]
fn c10_one_flag_gives_nodes_and_limit() {
    let node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let grant = grant(&request("mlx5_0"), &node, &PodView::Host);
    assert_eq!(
        paths(&grant),
        ["/dev/infiniband/uverbs0 231:192", "/dev/infiniband/rdma_cm 10:121"]
    );
    assert_eq!(grant.memlock.map(|limit| limit.bytes), Some(u64::MAX));
    assert!(grant.devices.iter().all(|node| node.mode == 0o666));
}

#[test]
fn c11_rdma_cm_is_missed_by_few_and_required_by_word() {
    let mut node = node([infiniband("mlx5_0", 0)]);
    node.rdma_cm = None;
    let mut request = request("all");
    let grant = grant(&request, &node, &PodView::Host);
    assert_eq!(paths(&grant), ["/dev/infiniband/uverbs0 231:192"]);
    warned(
        &grant,
        "rdma_cm missing: load rdma_ucm; programs using librdmacm (-R, UCX rdmacm, NFS/iSER \
         tools) will fail",
    );
    node.hcas[0] = efa("rdmap79s0", 0);
    assert_eq!(super::machines::grant(&request, &node, &PodView::Host).warnings, [""; 0]);
    node.hcas[0] = infiniband("mlx5_0", 0);
    request.require.insert(Requirement::RdmaCm);
    typed(&mut request, Key::Require, "rdma_cm");
    let sentence = refusal(&request, &node, &PodView::Host);
    assert!(sentence.starts_with("require.rdma-ctk.io=rdma_cm: rdma_cm missing"), "{sentence}");
}

#[test]
fn c10_who_would_end_without_a_device_is_refused() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    for nodes in [&[NodeKind::RdmaCm][..], &[]] {
        request.nodes = nodes.iter().copied().collect();
        let sentence = refusal(&request, &node, &PodView::Host);
        assert!(sentence.contains("without uverbs (or umad) no adapter can be"), "{sentence}");
    }
}

#[test]
fn c12_issm_is_not_missed() {
    let node = node([roce("mlx5_0", 0, "ens3np0", "")]);
    let grant = grant(&request("mlx5_0"), &node, &PodView::Host);
    assert_eq!(paths(&grant).len(), 2);
}

#[test]
fn c14_a_folder_of_the_host_gets_rules_and_no_nodes() {
    let node = node((0..10).map(|n| infiniband(&format!("mlx5_{n}"), n)));
    let mut request = request("mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7");
    for destination in ["/dev/infiniband", "/dev/infiniband/", "/dev"] {
        request.container.mounts = vec![Mount {
            destination: destination.into(),
            source: "/dev/infiniband".into(),
            kind: "bind".into(),
        }];
        let grant = grant(&request, &node, &PodView::Host);
        assert!(grant.devices.iter().all(|node| node.rule_only), "{:?}", grant.devices);
        assert_eq!(grant.devices.len(), 9);
        warned(&grant, &format!("hostPath on {destination} exposes 10 nodes, 8 usable; remove it"));
    }
    request.carrier.device_rules = Can::No("containerd 2.2 or newer has it".into());
    let sentence = refusal(&request, &node, &PodView::Host);
    assert!(sentence.contains("containerd 2.2 or newer has it; remove the mount"), "{sentence}");

    for (destination, kind) in [("/dev", "tmpfs"), ("/dev/shm", "bind"), ("/", "bind")] {
        request.container.mounts =
            vec![Mount { destination: destination.into(), source: "x".into(), kind: kind.into() }];
        let grant = grant(&request, &node, &PodView::Host);
        assert!(grant.devices.iter().all(|node| !node.rule_only), "{destination}");
    }
}

#[test]
fn c17_mad_nodes_need_policy() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.nodes.extend([NodeKind::Umad, NodeKind::Issm]);
    typed(&mut request, Key::Nodes, "uverbs,umad,issm");
    let sentence = refusal(&request, &node, &PodView::Host);
    assert_eq!(
        sentence,
        "nodes.rdma-ctk.io=uverbs,umad,issm: MAD devices are not allowed by node policy for \
         namespace team-a (config.toml, [default] nodes: uverbs, rdma_cm)"
    );
    let mut policy = Policy::default();
    policy.default.nodes.extend([NodeKind::Umad, NodeKind::Issm]);
    let grant = grant_under(&request, &node, &PodView::Host, &policy);
    assert_eq!(
        paths(&grant),
        [
            "/dev/infiniband/uverbs0 231:192",
            "/dev/infiniband/umad0 231:0",
            "/dev/infiniband/issm0 231:64",
            "/dev/infiniband/rdma_cm 10:121"
        ]
    );
    assert_eq!(grant.devices[1].mode, 0o600);
    warned(
        &grant,
        "/dev/infiniband/umad0, /dev/infiniband/issm0 made with mode 0600: which user the container \
         runs as cannot be seen here, and one that is not root cannot open them",
    );
    // Who runs as somebody else could not open a node of root's.
    request.container.uid = Some(1000);
    let grant = grant_under(&request, &node, &PodView::Host, &policy);
    assert_eq!(grant.devices[1].mode, 0o666);
    assert!(!grant.warnings.iter().any(|warning| warning.contains("0600")));
    // By a mount it is the host's node, whose mode is the host's.
    let mut node = node;
    node.hcas[0].ports[0].umad.as_mut().unwrap().mode = Some(0o600);
    let mount = Mount { destination: "/dev".into(), source: "/dev".into(), kind: "bind".into() };
    request.container.mounts = vec![mount];
    let grant = grant_under(&request, &node, &PodView::Host, &policy);
    warned(
        &grant,
        "/dev/infiniband/umad0 has mode 0600 on the node: a container that runs as uid 1000 cannot \
         open it",
    );
    request.container.mounts.clear();

    let roce = super::machines::node([roce("mlx5_0", 0, "ens3np0", "")]);
    let sentence = refusal_under(&request, &roce, &PodView::Host, &policy);
    assert!(sentence.contains("no port of mlx5_0 has a issm node"), "{sentence}");
}

#[test]
fn c19_numbers_are_read_and_never_computed() {
    let mut hca = infiniband("mlx5_40", 40);
    let uverbs = hca.uverbs.as_mut().unwrap();
    (uverbs.major, uverbs.minor) = (511, 8);
    let mut node = node([hca]);
    node.rdma_cm.as_mut().unwrap().minor = 56;
    let grant = grant(&request("all"), &node, &PodView::Host);
    assert_eq!(paths(&grant), ["/dev/infiniband/uverbs40 511:8", "/dev/infiniband/rdma_cm 10:56"]);
}

#[test]
fn c70_what_is_there_is_never_added_twice() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.container.devices =
        vec![Device { path: "/dev/infiniband/uverbs0".into(), major: 231, minor: 192 }];
    let granted = grant(&request, &node, &PodView::Host);
    assert_eq!(paths(&granted), ["/dev/infiniband/rdma_cm 10:121"]);

    request.container.devices[0].minor = 193;
    let sentence = refusal(&request, &node, &PodView::Host);
    assert!(
        sentence.contains("uverbs0 is in the container as 231:193, and 231:192 on this node"),
        "{sentence}"
    );
}

#[test]
fn c90_a_user_namespace_binds_the_hosts_own_node() {
    let mut node = node([infiniband("mlx5_0", 0)]);
    node.hcas[0].uverbs.as_mut().unwrap().mode = Some(0o660);
    let mut request = request("mlx5_0");
    request.container.user_namespace = true;
    warned(
        &grant(&request, &node, &PodView::Host),
        "/dev/infiniband/uverbs0 has mode 0660 on the node",
    );
}

#[test]
fn c94_privileged_is_not_needed() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.container.all_devices = true;
    request.container.devices = vec![
        Device { path: "/dev/infiniband/uverbs0".into(), major: 231, minor: 192 },
        Device { path: "/dev/infiniband/rdma_cm".into(), major: 10, minor: 121 },
    ];
    let grant = grant(&request, &node, &PodView::Host);
    assert_eq!(grant.devices, []);
    warned(&grant, "privileged is not needed for RDMA and disables device isolation");
}

#[test]
fn c105_without_ib_uverbs_nothing_can_be_given() {
    let mut node = node([infiniband("mlx5_0", 0)]);
    node.hcas[0].uverbs = None;
    for devices in ["all", "mlx5_0", "1"] {
        let sentence = refusal(&request(devices), &node, &PodView::Host);
        assert!(sentence.contains("load ib_uverbs"), "{sentence}");
    }
}
