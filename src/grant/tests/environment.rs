use super::machines::*;
use crate::grant::{Grant, Inventory, Outcome, TopologyFile, decide};
use crate::inventory::*;
use crate::policy::Policy;
use crate::request::*;

fn variables(grant: &Grant) -> Vec<String> {
    grant.env.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect()
}

fn env(request: &mut Request, name: &str, value: &str) {
    request.container.env.push((name.into(), value.into()));
}

#[test]
fn c16_only_what_was_given_is_named() {
    let mut node = node([roce("erdma_0", 0, "eth0", ""), roce("erdma_1", 1, "eth1", "")]);
    node.hcas[0].ports[0].gids = gid_table("1 v2 ::ffff:10.0.0.5 eth0");
    let pod = network(&node, [interface("eth0", "-", &["10.0.0.5/24"])]);
    let granted = grant(&request("erdma_0"), &node, &pod);
    assert_eq!(
        variables(&granted),
        [
            "NCCL_IB_HCA==erdma_0:1",
            "NCCL_IB_GID_INDEX=1",
            "NCCL_SOCKET_IFNAME=eth0",
            "UCX_NET_DEVICES=erdma_0:1",
            "UCX_IB_GID_INDEX=1",
            "NVSHMEM_HCA_LIST=erdma_0:1",
            "NVSHMEM_IB_GID_INDEX=1",
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0",
            "OMPI_MCA_btl_openib_if_include=erdma_0:1",
            "OMPI_MCA_btl_openib_gid_index=1",
        ]
    );
    let said = "visible in sysfs, not accessible: erdma_1";
    assert!(granted.reasons.iter().any(|reason| reason.text == said), "{:#?}", granted.reasons);
}

#[test]
fn families_are_chosen_by_the_user() {
    let node = node([infiniband("mlx5_0", 0)]);
    for (families, expected) in [
        (&[EnvFamily::Nccl][..], &["NCCL_IB_HCA==mlx5_0:1"][..]),
        (&[EnvFamily::Ucx], &["UCX_NET_DEVICES=mlx5_0:1"]),
        (&[EnvFamily::Nvshmem], &["NVSHMEM_HCA_LIST=mlx5_0:1"]),
        (
            &[EnvFamily::Mpi],
            &["UCX_NET_DEVICES=mlx5_0:1", "OMPI_MCA_btl_openib_if_include=mlx5_0:1"],
        ),
        (&[], &[]),
    ] {
        let mut asks = request("all");
        asks.env.families = families.iter().copied().collect();
        assert_eq!(variables(&grant(&asks, &node, &PodView::Host)), expected, "{families:?}");
    }
}

#[test]
fn c36_exact_names() {
    let node = node([infiniband("mlx5_1", 1), infiniband("mlx5_10", 10)]);
    let granted = grant(&request("mlx5_1"), &node, &PodView::Host);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_1:1"));
    // Ports that are not ACTIVE are in no list.
    let mut hca = infiniband("mlx5_0", 0);
    let port = hca.ports[0].clone();
    hca.ports.insert(0, Port { state: PortState::Down, ..port });
    hca.ports[1].number = 2;
    let node = super::machines::node([hca, infiniband("mlx5_1", 1)]);
    let granted = grant(&request("all"), &node, &PodView::Host);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_0:2,mlx5_1:1"));
}

#[test]
fn c39_a_value_from_another_cluster_stays_and_is_told() {
    let node = node((0..2).map(|n| infiniband(&format!("bnxt_re{n}"), n)));
    let mut asks = request("all");
    env(&mut asks, "NCCL_IB_HCA", "rdma0,rdma1");
    env(&mut asks, "UCX_NET_DEVICES", "mlx5_0:1");
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), None);
    assert_eq!(variable(&granted, "UCX_NET_DEVICES"), None);
    warned(
        &granted,
        "NCCL_IB_HCA names none of the injected HCAs (bnxt_re0, bnxt_re1): it is rdma0,rdma1",
    );
    warned(&granted, "UCX_NET_DEVICES names none of the injected HCAs");

    for right in ["bnxt", "=bnxt_re1", "^rdma", "bnxt_re0:1"] {
        asks.container.env.clear();
        env(&mut asks, "NCCL_IB_HCA", right);
        env(&mut asks, "UCX_NET_DEVICES", "bnxt_re0:1,eth0");
        assert_eq!(grant(&asks, &node, &PodView::Host).warnings, [""; 0], "{right}");
    }
}

#[test]
fn a_wrong_index_of_the_container_is_told() {
    let node = node([roce("mlx5_0", 0, "eth1", "5 v2 ::ffff:10.1.0.7 net1")]);
    let pod = network(&node, [interface("net1", "macvlan", &["10.1.0.7/24"])]);
    let mut asks = request("all");
    env(&mut asks, "NCCL_IB_GID_INDEX", "3");
    env(&mut asks, "NCCL_IB_DISABLE", "1");
    env(&mut asks, "NCCL_SOCKET_IFNAME", "=enp90s0np0");
    let granted = grant(&asks, &node, &pod);
    assert_eq!(variable(&granted, "NCCL_IB_GID_INDEX"), None);
    warned(&granted, "NCCL_IB_GID_INDEX=3 is set, and the GIDs of this container are mlx5_0:5");
    warned(&granted, "NCCL_IB_DISABLE is set: NCCL uses TCP");
    warned(&granted, "NCCL_SOCKET_IFNAME==enp90s0np0 names none of the interfaces here (net1)");

    asks.container.env.clear();
    env(&mut asks, "NCCL_IB_GID_INDEX", "5");
    env(&mut asks, "UCX_IB_GID_INDEX", "auto");
    assert_eq!(grant(&asks, &node, &pod).warnings, [""; 0]);
    // A range of the container's own would be undone by an index.
    asks.container.env.clear();
    env(&mut asks, "NCCL_IB_ADDR_RANGE", "10.1.0.0/16");
    env(&mut asks, "UCX_IB_ROCE_SUBNETS", "10.1.0.0/16");
    let granted = grant(&asks, &node, &pod);
    assert_eq!(variable(&granted, "NCCL_IB_GID_INDEX"), None);
    assert_eq!(variable(&granted, "UCX_IB_GID_INDEX"), None);
}

#[test]
fn c42_the_socket_interface_is_that_of_the_default_route() {
    let mut host = node([infiniband("mlx5_0", 0)]);
    let mut unnumbered = interface("enp220s0f0", "-", &[]);
    unnumbered.default_route = true;
    unnumbered.index = 1;
    let mut first = interface("enp90s0np0", "-", &["10.168.192.89/24"]);
    first.default_route = true;
    host.interfaces = vec![unnumbered, first, interface("enp90s0v0", "-", &[])];
    let granted = grant(&request("all"), &host, &PodView::Host);
    assert_eq!(variable(&granted, "NCCL_SOCKET_IFNAME"), Some("enp90s0np0"));

    for (interfaces, expected) in [(["eth0", "net1"], "eth0"), (["eth1", "eth10"], "=eth1")] {
        let [out, other] = interfaces.map(|name| interface(name, "veth", &["10.88.0.9/16"]));
        let pod = network(&host, [out, other]);
        let granted = grant(&request("all"), &host, &pod);
        assert_eq!(variable(&granted, "NCCL_SOCKET_IFNAME"), Some(expected));
    }
    let unknown = PodView::Unknown { reason: "docker does not say".into() };
    let granted = grant(&request("all"), &host, &unknown);
    assert_eq!(variable(&granted, "NCCL_SOCKET_IFNAME"), None);
    assert_eq!(granted.warnings, [""; 0], "InfiniBand has no GIDs to look for");
}

#[test]
fn c44_each_gpu_has_its_adapter() {
    let mut node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let gpus = ["0009:00:00.0", "000a:00:00.0"];
    let nics = ["0105:00:00.0", "0205:00:00.0"];
    for (place, gpu) in (0..).zip(gpus) {
        node.gpus.push(Gpu {
            pci: pci(gpu),
            vendor: 0x10de,
            numa: Some(0),
            minor: Some(place),
            uuid: None,
        });
        for (other, nic) in (0..).zip(nics) {
            node.hcas[other as usize].pci = Some(pci(nic));
            node.relations.push(Relation {
                hca: format!("mlx5_{other}"),
                gpu: pci(gpu),
                nearness: if other == place { Nearness::HostBridge } else { Nearness::Other },
            });
        }
    }
    let mut asks = request("all");
    env(&mut asks, "NVIDIA_VISIBLE_DEVICES", "all");
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(
        variable(&granted, "VLLM_GPU_NIC_PCIE_MAPPING"),
        Some("0009:00:00.0=0105:00:00.0,000a:00:00.0=0205:00:00.0")
    );
    // Equally near ones are shared out.
    for relation in &mut node.relations {
        relation.nearness = Nearness::NumaNode;
    }
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(
        variable(&granted, "VLLM_GPU_NIC_PCIE_MAPPING"),
        Some("0009:00:00.0=0105:00:00.0,000a:00:00.0=0205:00:00.0")
    );
    asks.env.file = true;
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(granted.files[1].content, "0009:00:00.0=0105:00:00.0\n000a:00:00.0=0205:00:00.0\n");
}

#[track_caller]
fn with_topology(asks: &Request, file: Option<TopologyFile>) -> Grant {
    let node = node([infiniband("mlx5_0", 0)]);
    let policy = Policy { topology_file: Some("/etc/topo.xml".into()), ..Policy::default() };
    let inventory =
        Inventory { node: &node, pod: &PodView::Host, topology: file, smc: None, children: None };
    match decide(asks, &inventory, &policy) {
        Outcome::Granted(grant) => *grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn c49_a_topology_file_is_bound_and_named() {
    let mut asks = request("all");
    let present = |mode| Some(TopologyFile::Present { mode });
    let granted = with_topology(&asks, present(0o644));
    assert_eq!(granted.mounts[0].source, "/etc/topo.xml");
    assert_eq!(variable(&granted, "NCCL_TOPO_FILE"), Some(&*granted.mounts[0].destination));
    for missing in [Some(TopologyFile::Missing), None] {
        let granted = with_topology(&asks, missing);
        warned(&granted, "NCCL topology file /etc/topo.xml not found on the node; not set");
        assert_eq!((variable(&granted, "NCCL_TOPO_FILE"), granted.mounts.len()), (None, 0));
    }
    // C90: who cannot read it is told.
    assert_eq!(with_topology(&asks, present(0o600)).warnings, [""; 0]);
    asks.container.user_namespace = true;
    warned(&with_topology(&asks, present(0o600)), "/etc/topo.xml has mode 0600 on the node");

    env(&mut asks, "NCCL_TOPO_FILE", "/mine.xml");
    let granted = with_topology(&asks, present(0o644));
    assert_eq!((variable(&granted, "NCCL_TOPO_FILE"), granted.mounts.len()), (None, 0));
}

#[test]
fn the_topology_of_the_vendors_daemon_is_bound_where_the_container_has_none() {
    let node = node([infiniband("mlx5_0", 0)]);
    let granted = |asks: &Request, mode| {
        let topology = Some(TopologyFile::Vendor { mode });
        let inventory = Inventory { topology, ..Inventory::of(&node, &PodView::Host) };
        match decide(asks, &inventory, &Policy::default()) {
            Outcome::Granted(grant) => *grant,
            other => panic!("{other:?}"),
        }
    };
    let folder = "/run/nvidia-topologyd";
    let grant = granted(&request("all"), 0o644);
    let mount = crate::grant::GrantedMount {
        source: folder.into(),
        destination: folder.into(),
        executable: false,
    };
    assert_eq!(grant.mounts, [mount]);
    let named = variable(&grant, "NCCL_TOPO_FILE");
    assert_eq!(named, Some("/run/nvidia-topologyd/virtualTopology.xml"));
    // Pods written for the vendor's plugin mount it themselves; others have a topology of their own.
    for destination in
        ["/var/run/nvidia-topologyd", folder, "/run", "/run/nvidia-topologyd/virtualTopology.xml"]
    {
        let mut asks = request("all");
        asks.container.mounts.push(crate::request::Mount {
            destination: destination.into(),
            source: "/x".into(),
            kind: "bind".into(),
        });
        let grant = granted(&asks, 0o644);
        assert_eq!((grant.mounts.len(), variable(&grant, "NCCL_TOPO_FILE")), (0, None));
    }
    let mut asks = request("all");
    env(&mut asks, "NCCL_TOPO_FILE", "/mine.xml");
    assert!(granted(&asks, 0o644).mounts.is_empty());
    let mut asks = request("all");
    asks.env.families.remove(&EnvFamily::Nccl);
    assert!(granted(&asks, 0o644).mounts.is_empty());
    let mut asks = request("all");
    asks.container.uid = Some(1000);
    warned(&granted(&asks, 0o640), "virtualTopology.xml has mode 0640 on the node");
}

#[test]
fn c103_efa_gets_no_variable_of_nccls_verbs_or_of_ucx() {
    let node = node([efa("rdmap79s0", 0), efa("rdmap80s0", 1), infiniband("ibp1s0", 2)]);
    let pod = network(&node, [interface("eth0", "-", &["10.0.0.5/24"])]);
    let granted = grant(&request("driver:efa"), &node, &pod);
    assert_eq!(names(&granted), ["rdmap79s0", "rdmap80s0"]);
    assert_eq!(variables(&granted), ["NCCL_SOCKET_IFNAME=eth0"]);
    // Beside InfiniBand, that alone is listed.
    let granted = grant(&request("all"), &node, &pod);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=ibp1s0:1"));
}

#[test]
fn iwarp_gets_none_either_and_is_warned_about() {
    let mut hca = roce("erdma_0", 0, "eth0", "0 v1 16:3e12:3456:: eth0");
    hca.node_type = NodeType::Rnic;
    let node = node([hca]);
    let pod = network(&node, [interface("eth0", "-", &["10.0.0.5/24"])]);
    let granted = grant(&request("link:iwarp"), &node, &pod);
    assert_eq!(variables(&granted), ["NCCL_SOCKET_IFNAME=eth0"]);
    warned(&granted, "erdma_0 is in iWARP mode: only programs that connect by rdma_cm");
}

#[test]
fn ranks_over_ssh_read_a_file() {
    let node = node([infiniband("mlx5_0", 0)]);
    let pod = network(&node, [interface("eth0", "-", &["10.0.0.5/24"])]);
    let mut asks = request("all");
    asks.env.file = true;
    env(&mut asks, "NCCL_DEBUG", "INFO");
    env(&mut asks, "NCCL_IB_HCA", "=mlx5_0");
    env(&mut asks, "NCCL_EVIL", "1\nNCCL_IB_DISABLE=1");
    env(&mut asks, "PATH", "/bin");
    let granted = grant(&asks, &node, &pod);
    let [file] = &granted.files[..] else { panic!("{:?}", granted.files) };
    assert_eq!(file.path, "/etc/nccl.conf");
    assert_eq!(file.content, "NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0\nNCCL_SOCKET_IFNAME=eth0\n");

    for destination in ["/etc/nccl.conf", "/etc"] {
        asks.container.mounts = vec![Mount {
            destination: destination.into(),
            source: "/x".into(),
            kind: "bind".into(),
        }];
        let granted = grant(&asks, &node, &pod);
        assert_eq!(granted.files, []);
        warned(&granted, &format!("/etc/nccl.conf is not bound: a mount at {destination}"));
    }
}
