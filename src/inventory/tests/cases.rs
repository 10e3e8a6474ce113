//! Machines in the states that users reported, and those that namespaces and names make.

use std::fs;

use super::*;

fn names(node: &Node) -> Vec<&str> {
    node.hcas.iter().map(|hca| hca.name.as_str()).collect()
}

/// Where the link points, from the folder that it is in.
fn place(link: &Path) -> PathBuf {
    fs::canonicalize(link).unwrap()
}

#[test]
fn c11_an_hca_is_whole_without_rdma_cm() {
    let (_dir, roots) = fixture("soft-roce");
    let before = snapshot(&roots, None);
    fs::remove_file(roots.sys.join("class/misc/rdma_cm")).unwrap();
    fs::remove_file(roots.dev.join("infiniband/rdma_cm")).unwrap();
    let after = snapshot(&roots, None);
    assert_eq!(after.rdma_cm, None);
    assert_eq!(after.hcas, before.hcas);
    assert_eq!(after.remarks, Vec::<String>::new());
}

#[test]
fn c12_a_port_without_issm_is_a_port() {
    let (_dir, roots) = fixture("gpu-infiniband");
    let node = snapshot(&roots, None);
    for (name, issm) in [("mlx5_0", Some((231, 64))), ("mlx5_1", None)] {
        let hca = node.hca(name).unwrap();
        let port = &hca.ports[0];
        assert_eq!(port.issm.as_ref().map(|device| (device.major, device.minor)), issm, "{name}");
        assert!(port.umad.is_some() && hca.uverbs.is_some(), "{name}");
        assert_eq!((port.state, &hca.home), (PortState::Active, &Home::Host), "{name}");
    }
    assert_eq!(node.remarks, Vec::<String>::new());
}

#[test]
fn c19_device_numbers_are_read_wherever_they_are() {
    let (_dir, roots) = fixture("many-hcas");
    let node = snapshot(&roots, None);
    assert_eq!(node.hcas.len(), 40);
    let number = |node: &Node, hca: &str| {
        let device = node.hca(hca).unwrap().uverbs.clone().unwrap();
        (device.name, device.major, device.minor)
    };
    assert_eq!(number(&node, "mlx5_31"), ("uverbs31".into(), 231, 223));
    assert_eq!(number(&node, "mlx5_32"), ("uverbs32".into(), 511, 0));
    assert_eq!(number(&node, "mlx5_39"), ("uverbs39".into(), 511, 7));
    let rdma_cm = node.rdma_cm.unwrap();
    assert_eq!((rdma_cm.major, rdma_cm.minor), (10, 56));
    // Not even the first ones are computed.
    fs::write(roots.sys.join("class/infiniband_verbs/uverbs5/dev"), "234:1048575\n").unwrap();
    assert_eq!(number(&snapshot(&roots, None), "mlx5_5"), ("uverbs5".into(), 234, 1_048_575));
}

#[test]
fn c34_a_full_gid_table_is_seen_to_be_full() {
    let (_dir, roots) = fixture("gpu-roce");
    for hca in snapshot(&roots, None).hcas {
        let port = &hca.ports[0];
        assert_eq!((port.gid_slots, port.gids.len()), (256, 256), "{}", hca.name);
        assert!(port.gids.iter().all(|gid| gid.kind.is_some() && gid.netdev.is_some()));
    }
}

#[test]
fn c48_a_numa_node_of_minus_one_is_unknown() {
    for (name, hca) in [("flat-vm", "mlx5_0"), ("erdma-roce", "erdma_0")] {
        let (_dir, roots) = fixture(name);
        let node = snapshot(&roots, None);
        let hca = node.hca(hca).unwrap();
        assert_eq!((hca.numa, hca.local_cpus.len()), (None, 0), "{name}");
        assert!(node.gpus.iter().all(|gpu| gpu.numa.is_none()), "{name}");
    }
}

#[test]
fn c49_a_flat_tree_is_said_to_be_flat() {
    let flat = |name| {
        let (_dir, roots) = fixture(name);
        snapshot(&roots, None).remarks.iter().any(|remark| remark.contains("tree is flat"))
    };
    assert!(flat("flat-vm"));
    assert!(!flat("gpu-infiniband"));
    // Without a GPU there is nothing to be near to.
    assert!(!flat("erdma-iwarp"));
}

#[test]
fn c103_efa_devices_are_told_by_their_driver_and_none_is_fine() {
    let (_dir, roots) = fixture("efa-nvlink");
    let node = snapshot(&roots, None);
    let efa: Vec<&str> =
        node.hcas.iter().filter(|hca| hca.driver.is("efa")).map(|hca| hca.name.as_str()).collect();
    assert_eq!(node.hcas.len(), 10);
    assert_eq!(efa.len(), 8);
    assert!(efa.iter().all(|name| name.starts_with("rdmap")), "{efa:?}");

    for gone in ["class/infiniband", "class/infiniband_verbs", "class/infiniband_mad"] {
        fs::remove_dir_all(roots.sys.join(gone)).unwrap();
    }
    let node = snapshot(&roots, None);
    assert_eq!((names(&node).len(), node.remarks.len()), (0, 0));
    // Nor is no sysfs at all, which is worth a word.
    fs::remove_dir_all(&roots.sys).unwrap();
    let node = snapshot(&roots, None);
    assert_eq!((node.hcas.len(), node.remarks.len()), (0, 1));
}

#[test]
fn c105_an_hca_without_ib_uverbs_is_listed_without_a_node() {
    let (_dir, roots) = fixture("gpu-infiniband");
    let whole = snapshot(&roots, None);
    fs::remove_dir_all(roots.sys.join("class/infiniband_verbs")).unwrap();
    let node = snapshot(&roots, None);
    assert_eq!(names(&node), names(&whole));
    assert!(node.hcas.iter().all(|hca| hca.uverbs.is_none() && hca.home == Home::Host));
}

#[test]
fn names_say_nothing() {
    for name in ["roce-sriov", "efa-nvlink", "erdma-roce", "soft-roce", "mana", "irdma"] {
        let (_dir, roots) = fixture(name);
        let facts = |node: &Node| {
            let mut facts: Vec<_> = node
                .hcas
                .iter()
                .map(|hca| {
                    let device = hca.uverbs.clone().map(|device| device.name);
                    (device, hca.driver.clone(), hca.role.clone(), hca.home.clone(), hca.numa)
                })
                .collect();
            facts.sort_by_key(|(device, ..)| device.clone());
            facts
        };
        let before = snapshot(&roots, None);
        // As udev would rename them: the link, the folder behind it, and what uverbs says.
        for (number, hca) in before.hcas.iter().enumerate() {
            let link = roots.sys.join("class/infiniband").join(&hca.name);
            let new = format!("efa_bond_rxe{number}");
            let target = fs::read_link(&link).unwrap().with_file_name(&new);
            let folder = place(&link);
            fs::rename(&folder, folder.with_file_name(&new)).unwrap();
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(target, link.with_file_name(&new)).unwrap();
            let uverbs = hca.uverbs.as_ref().unwrap();
            let ibdev = roots.sys.join("class/infiniband_verbs").join(&uverbs.name).join("ibdev");
            fs::write(ibdev, format!("{new}\n")).unwrap();
        }
        let after = snapshot(&roots, None);
        assert!(after.hcas.iter().all(|hca| hca.name.starts_with("efa_bond_rxe")), "{name}");
        assert_eq!(facts(&after), facts(&before), "{name}");
    }
}

#[test]
fn an_hca_that_was_moved_away_is_still_found() {
    let (_dir, roots) = fixture("gpu-infiniband");
    let whole = snapshot(&roots, None);
    fs::remove_file(roots.sys.join("class/infiniband/mlx5_4")).unwrap();
    let node = snapshot(&roots, None);
    assert_eq!(names(&node), names(&whole));
    let (hca, was) = (node.hca("mlx5_4").unwrap(), whole.hca("mlx5_4").unwrap());
    assert_eq!(hca.home, Home::Elsewhere);
    assert_eq!((&hca.driver, hca.pci, hca.numa), (&was.driver, was.pci, was.numa));
    assert_eq!((&hca.local_cpus, &hca.uverbs), (&was.local_cpus, &was.uverbs));
    let port = &hca.ports[0];
    assert_eq!((&port.umad, &port.issm), (&was.ports[0].umad, &was.ports[0].issm));
    assert_eq!(port.link_layer, LinkLayer::InfiniBand);
    assert_eq!(hca.active_ports().count(), 0);
    assert!(node.hcas.iter().filter(|hca| hca.name != "mlx5_4").all(|hca| hca.home == Home::Host));
}

#[test]
fn a_virtual_hca_that_was_moved_away_is_still_found() {
    let (_dir, roots) = fixture("soft-roce");
    fs::remove_file(roots.sys.join("class/infiniband/rxe0")).unwrap();
    let node = snapshot(&roots, None);
    let hca = node.hca("rxe0").unwrap();
    assert_eq!((&hca.home, &hca.role), (&Home::Elsewhere, &Role::Software { parent: None }));
}

#[test]
fn a_roce_hca_whose_interface_is_in_a_pod_is_told() {
    // The interface leaves class net; the port's GIDs stay, with the name that it has in the pod.
    for (machine, netdev, hca) in [
        ("gpu-roce", "rdma3", "mlx5_3"),
        ("roce-sriov", "eth8", "mlx5_2"),
        ("roce-sriov", "en8f0pf0sf88", "mlx5_4"),
        ("irdma", "ens785f0", "irdma0"),
        ("erdma-iwarp", "eth1", "erdma_1"),
        ("erdma-roce", "eth0", "erdma_0"),
    ] {
        let (_dir, roots) = fixture(machine);
        let home = |node: &Node| node.hca(hca).unwrap().home.clone();
        assert_eq!(home(&snapshot(&roots, None)), Home::Host, "{machine} {hca}");
        fs::remove_file(roots.sys.join("class/net").join(netdev)).unwrap();
        let node = snapshot(&roots, None);
        assert_eq!(home(&node), Home::NetdevElsewhere, "{machine} {hca}");
        assert_eq!(node.hca(hca).unwrap().ports[0].netdev, None, "{machine} {hca}");
        let away = node.hcas.iter().filter(|hca| hca.home != Home::Host).count();
        assert_eq!(away, 1, "{machine} {hca}");
    }
}

#[test]
fn an_hca_without_interface_is_at_home_where_none_is_needed() {
    for (machine, netdev, hca) in
        [("gpu-infiniband", "ibp24s0", "mlx5_0"), ("efa-p5", "ens32", "rdmap79s0")]
    {
        let (_dir, roots) = fixture(machine);
        fs::remove_file(roots.sys.join("class/net").join(netdev)).unwrap();
        assert_eq!(snapshot(&roots, None).hca(hca).unwrap().home, Home::Host, "{machine}");
    }
    // A tree without any interface says nothing about where they are.
    let (_dir, roots) = fixture("gpu-roce");
    fs::remove_dir_all(roots.sys.join("class/net")).unwrap();
    assert!(snapshot(&roots, None).hcas.iter().all(|hca| hca.home == Home::Host));
}

#[test]
fn a_soft_roce_hca_on_a_pods_interface_is_not_the_hosts() {
    let (_dir, roots) = fixture("soft-roce");
    // Made on the `eth0` of a pod: the host's of that name has another hardware address.
    let address = roots.sys.join("class/net/eth0/address");
    fs::write(&address, "52:54:00:99:99:99\n").unwrap();
    assert_eq!(snapshot(&roots, None).hcas[0].home, Home::NetdevElsewhere);
    // The host's own got another address later: its link-local GID follows, its GUID does not.
    let gid = roots.sys.join("class/infiniband/rxe0/ports/1/gids/0");
    fs::write(gid, "fe80:0000:0000:0000:5054:00ff:fe99:9999\n").unwrap();
    assert_eq!(snapshot(&roots, None).hcas[0].home, Home::Host);
}

#[test]
fn the_hca_of_a_bond_is_found_without_its_gids() {
    // While the bond has no address, only the missing second HCA tells that one is left for both.
    let (_dir, roots) = fixture("roce-sriov");
    let gids = roots.sys.join("class/infiniband/rocep59s0f0/ports/1/gids");
    for slot in 0..4 {
        fs::write(gids.join(slot.to_string()), "0000:0000:0000:0000:0000:0000:0000:0000").unwrap();
    }
    let role = |node: &Node, hca: &str| node.hca(hca).unwrap().role.clone();
    let node = snapshot(&roots, None);
    assert_eq!(role(&node, "rocep59s0f0"), Role::Bond { netdev: "bond0".into() });
    assert_eq!(node.hca("rocep59s0f0").unwrap().ports[0].netdev.as_deref(), Some("bond0"));
    // Two HCAs below a bond that has no address are just two HCAs.
    let gids = roots.sys.join("class/infiniband/bnxt_re0/ports/1/gids");
    for slot in 0..4 {
        fs::write(gids.join(slot.to_string()), "0000:0000:0000:0000:0000:0000:0000:0000").unwrap();
    }
    let node = snapshot(&roots, None);
    for hca in ["bnxt_re0", "bnxt_re1"] {
        assert_eq!(role(&node, hca), Role::Physical { vfs: 0 }, "{hca}");
    }
}

#[test]
fn a_node_in_dev_is_taken_by_its_mode_and_may_be_missing() {
    let (_dir, roots) = fixture("soft-roce");
    fs::remove_file(roots.dev.join("infiniband/rdma_cm")).unwrap();
    let node = snapshot(&roots, None);
    assert_eq!(node.rdma_cm.unwrap().mode, None);
    assert_eq!(node.hcas[0].uverbs.as_ref().unwrap().mode, Some(0o666));
}

#[test]
fn a_stale_node_in_dev_is_named() {
    let (_dir, roots) = fixture("soft-roce");
    let node = roots.dev.join("infiniband/uverbs0");
    fs::remove_file(&node).unwrap();
    // A link is as good as a node, and this one is there on every machine.
    std::os::unix::fs::symlink("/dev/null", &node).unwrap();
    let remarks = snapshot(&roots, None).remarks;
    assert_eq!(remarks.len(), 1);
    assert!(
        remarks[0].contains("is device 1:3, but the kernel's uverbs0 is 231:192"),
        "{remarks:?}"
    );
}

#[test]
fn the_namespace_mode_is_read() {
    let (_dir, roots) = fixture("soft-roce");
    let file = roots.sys.join("module/ib_core/parameters/netns_mode");
    for (text, mode) in [("Y\n", NetnsMode::Shared), ("N\n", NetnsMode::Exclusive)] {
        fs::write(&file, text).unwrap();
        assert_eq!(snapshot(&roots, None).netns_mode, mode);
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(snapshot(&roots, None).netns_mode, NetnsMode::Shared);
}

#[test]
fn gid_tables_can_be_read_alone() {
    for name in ["gpu-roce", "mana", "soft-roce"] {
        let (_dir, roots) = fixture(name);
        for hca in snapshot(&roots, None).hcas {
            let tables = gids(&roots, &hca.name);
            let expected: Vec<PortGids> = hca
                .ports
                .into_iter()
                .map(|port| PortGids { hca: hca.name.clone(), port: port.number, gids: port.gids })
                .collect();
            assert_eq!(tables, expected, "{name}");
        }
    }
    let (_dir, roots) = fixture("soft-roce");
    for hca in ["", ".", "..", "rxe1", "rxe0/ports/1", "../infiniband/rxe0", "\0"] {
        assert_eq!(gids(&roots, hca), [], "{hca:?}");
    }
}

#[test]
fn the_files_of_a_snapshot_are_known() {
    let (dir, roots) = fixture("soft-roce");
    let files = files(&roots);
    let gids = files.iter().filter(|file| file.to_string_lossy().contains("/gids/")).count();
    // The attributes only of the three that are used.
    assert_eq!(gids, 1024);
    let attributes = |file: &&PathBuf| file.to_string_lossy().contains("/gid_attrs/");
    assert_eq!(files.iter().filter(attributes).count(), 2 * 3);
    assert!(files.iter().all(|file| file.starts_with(dir.path())));
}
