//! Checks on made-up nodes and trees: adapters here, the rest beside.

mod containers;
mod registered;
mod runtimes;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use nix::errno::Errno;

use super::*;
use crate::inventory::{
    CharDev, CpuSet, Driver, Gid, GidKind, Hca, Home, LinkLayer, NetnsMode, NodeType, Port,
    PortState, Role,
};

fn port(netdev: Option<&str>) -> Port {
    let gid = |index: u32, value: &str, kind| Gid {
        index,
        value: value.parse().unwrap(),
        kind: Some(kind),
        netdev: netdev.map(str::to_owned),
    };
    Port {
        number: 1,
        link_layer: LinkLayer::Ethernet,
        state: PortState::Active,
        rate: "200 Gb/sec (4X HDR)".into(),
        lid: 0,
        gid_slots: 256,
        gids: vec![
            gid(0, "fe80::1", GidKind::V1),
            gid(1, "fe80::1", GidKind::V2),
            gid(2, "::ffff:10.0.0.5", GidKind::V1),
            gid(3, "::ffff:10.0.0.5", GidKind::V2),
        ],
        pkeys: vec![0xffff],
        netdev: netdev.map(str::to_owned),
        umad: None,
        issm: None,
    }
}

fn hca(name: &str, driver: &str) -> Hca {
    Hca {
        name: name.into(),
        index: None,
        driver: Driver(driver.into()),
        node_type: NodeType::Ca,
        node_guid: "a088:c203:005f:c296".into(),
        firmware: None,
        pci: "0000:3b:00.0".parse().ok(),
        numa: Some(0),
        local_cpus: CpuSet::new(),
        uverbs: Some(CharDev { name: "uverbs0".into(), major: 231, minor: 192, mode: Some(0o666) }),
        ports: vec![port(Some("eth1"))],
        role: Role::Physical { vfs: 0 },
        home: Home::Host,
    }
}

fn node(hcas: Vec<Hca>) -> Node {
    let rdma_cm = CharDev { name: "rdma_cm".into(), major: 10, minor: 260, mode: Some(0o666) };
    Node { hcas, rdma_cm: Some(rdma_cm), ..Node::default() }
}

/// A tree with those files.
pub fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn look(name: &str, root: &Path, node: &Node, records: &Records) -> Vec<Finding> {
    let roots = Roots::below(root);
    let context = Context { roots: &roots, node, records, live: None };
    let check = CHECKS.iter().find(|check| check.name == name).unwrap();
    (check.run)(&context).unwrap()
}

fn look_at(name: &str, node: &Node) -> Vec<Finding> {
    look(name, Path::new("/nowhere"), node, &Records::default())
}

fn sentences(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.sentence.as_str()).collect()
}

#[test]
fn names_are_unique_and_every_check_survives_an_empty_tree() {
    let folder = tempfile::tempdir().unwrap();
    let (roots, node, records) = (Roots::below(folder.path()), Node::default(), Records::default());
    let context = Context { roots: &roots, node: &node, records: &records, live: None };
    for diagnosis in run(&context, CHECKS) {
        assert!(
            diagnosis.findings.iter().all(|finding| finding.level == Level::Ok),
            "{diagnosis:?}"
        );
        assert_eq!(CHECKS.iter().filter(|check| check.name == diagnosis.check).count(), 1);
    }
}

#[test]
fn every_finding_that_is_not_fine_has_a_fix() {
    let mut ill = hca("mlx5_0", "mlx5");
    ill.uverbs = None;
    ill.numa = None;
    ill.ports[0].netdev = None;
    ill.ports[0].state = PortState::Down;
    let mut node = node(vec![ill]);
    node.rdma_cm = None;
    node.netns_mode = NetnsMode::Exclusive;
    node.numa = [(0, CpuSet::new()), (1, CpuSet::new())].into();
    node.remarks = vec!["mlx5_0: netlink and sysfs differ".into()];
    let (roots, records) = (Roots::below(Path::new("/nowhere")), Records::default());
    let context = Context { roots: &roots, node: &node, records: &records, live: None };
    let findings: Vec<Finding> =
        run(&context, CHECKS).into_iter().flat_map(|diagnosis| diagnosis.findings).collect();
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(bad.len() >= 7, "{bad:?}");
    assert!(bad.iter().all(|finding| finding.fix.is_some()), "{bad:?}");
}

#[test]
fn c103_no_adapter_is_a_healthy_state() {
    assert_eq!(
        look_at("adapters", &node(Vec::new())),
        [Finding::ok("no RDMA adapter on this node")]
    );
}

#[test]
fn c105_a_missing_ib_uverbs_names_the_talos_key() {
    let mut without = hca("mlx5_0", "mlx5");
    without.uverbs = None;
    let findings = look_at("ib_uverbs", &node(vec![without.clone()]));
    assert_eq!(findings[0].level, Level::Fail);
    assert!(
        findings[0].sentence.contains("ib_uverbs is not loaded (Talos: machine.kernel.modules)"),
        "{findings:?}"
    );
    // Loaded, and one device has none: a sub-device, or a driver's trouble.
    let folder = tree(&[("sys/class/infiniband_verbs/abi_version", "6\n")]);
    let findings = look("ib_uverbs", folder.path(), &node(vec![without]), &Records::default());
    assert_eq!(findings[0].level, Level::Warn);
}

#[test]
fn c11_rdma_cm_is_missed_by_name_and_not_with_efa() {
    let mut missing = node(vec![hca("mlx5_0", "mlx5")]);
    missing.rdma_cm = None;
    let findings = look_at("rdma_cm", &missing);
    assert_eq!(findings[0].level, Level::Warn);
    assert_eq!(
        findings[0].sentence,
        "rdma_cm missing: load rdma_ucm; programs using librdmacm (-R, UCX rdmacm, NFS/iSER \
         tools) will fail"
    );
    missing.hcas = vec![hca("rdmap79s0", "efa")];
    assert_eq!(look_at("rdma_cm", &missing)[0].level, Level::Ok);
}

#[test]
fn c12_a_missing_issm_is_not_worth_a_word() {
    let node = node(vec![hca("mlx5_0", "mlx5")]);
    let (roots, records) = (Roots::below(Path::new("/nowhere")), Records::default());
    let context = Context { roots: &roots, node: &node, records: &records, live: None };
    for diagnosis in run(&context, CHECKS) {
        for finding in diagnosis.findings {
            assert!(!finding.sentence.contains("issm"), "{finding:?}");
        }
    }
}

#[test]
fn c34_a_full_gid_table_is_told_with_its_room() {
    let mut full = hca("mlx5_0", "mlx5");
    full.ports[0].gid_slots = 128;
    let gid = full.ports[0].gids[2].clone();
    full.ports[0].gids = (0..126).map(|index| Gid { index, ..gid.clone() }).collect();
    let findings = look_at("gid-room", &node(vec![full.clone()]));
    assert_eq!(
        findings[0].sentence,
        "mlx5_0 port 1: 126 of 128 GIDs used, room for 1 more interface"
    );
    assert_eq!(findings[0].level, Level::Warn);
    // A table with v2 entries only spends one slot on an address.
    for gid in &mut full.ports[0].gids {
        gid.kind = Some(GidKind::V2);
    }
    let findings = look_at("gid-room", &node(vec![full.clone()]));
    assert!(findings[0].sentence.ends_with("room for 2 more interfaces"), "{findings:?}");
    full.ports[0].gids.truncate(64);
    assert_eq!(look_at("gid-room", &node(vec![full]))[0].level, Level::Ok);
}

#[test]
fn c26_a_roce_port_without_interface_or_address_is_told() {
    let mut bare = hca("mlx5_0", "mlx5");
    bare.ports[0].netdev = None;
    let mut unnumbered = hca("mlx5_1", "mlx5");
    unnumbered.ports[0].gids.truncate(2);
    let mut away = hca("mlx5_2", "mlx5");
    away.home = Home::NetdevElsewhere;
    let findings =
        look_at("interfaces", &node(vec![bare, unnumbered, away, hca("mlx5_3", "mlx5")]));
    assert_eq!(
        sentences(&findings),
        [
            "mlx5_0 port 1 is RoCE and has no network interface: nobody can connect through it",
            "mlx5_1 port 1: eth1 has no address, so only link-local GIDs",
            "mlx5_2 port 1: its interface is in a pod",
            "1 RoCE port with an interface",
        ]
    );
    // InfiniBand needs none.
    let mut infiniband = hca("mlx5_0", "mlx5");
    infiniband.ports[0].link_layer = LinkLayer::InfiniBand;
    infiniband.ports[0].netdev = None;
    let roots = Roots::below(Path::new("/nowhere"));
    let (node, records) = (node(vec![infiniband]), Records::default());
    let context = Context { roots: &roots, node: &node, records: &records, live: None };
    assert!(matches!(ports::interfaces(&context), Err(Unable::Absent(_))));
}

#[test]
fn c53_c54_exclusive_mode_is_named_with_the_module_option() {
    let mut node = node(vec![hca("mlx5_0", "mlx5")]);
    assert_eq!(look_at("netns-mode", &node)[0].level, Level::Ok);
    node.netns_mode = NetnsMode::Exclusive;
    let finding = look_at("netns-mode", &node).remove(0);
    assert_eq!(finding.level, Level::Warn);
    assert!(finding.sentence.contains("exclusive mode: an adapter can belong to one pod only"));
    let fix = finding.fix.unwrap();
    assert!(fix.contains("options ib_core netns_mode=") && fix.contains("reboot"), "{fix}");
}

#[test]
fn c48_an_unknown_numa_node_matters_where_there_are_several() {
    let mut unknown = hca("mlx5_0", "mlx5");
    unknown.numa = None;
    let mut node = node(vec![unknown]);
    node.numa = [(0, CpuSet::new())].into();
    assert_eq!(look_at("numa", &node)[0].level, Level::Ok);
    node.numa.insert(1, CpuSet::new());
    let findings = look_at("numa", &node);
    assert_eq!(findings[0].level, Level::Warn);
    assert!(findings[0].sentence.starts_with("mlx5_0 reports no NUMA node"), "{findings:?}");
}

#[test]
fn a_port_without_subnet_manager_is_told_from_one_without_cable() {
    let mut waiting = hca("mlx5_0", "mlx5");
    waiting.ports[0].link_layer = LinkLayer::InfiniBand;
    waiting.ports[0].state = PortState::Init;
    let mut down = hca("mlx5_1", "mlx5");
    down.ports[0].state = PortState::Down;
    let findings = look_at("ports", &node(vec![waiting, down]));
    assert_eq!(findings[0].level, Level::Fail);
    assert_eq!(findings[1].sentence, "mlx5_0 port 1 is INIT");
    assert!(findings[1].fix.as_ref().unwrap().contains("subnet manager"));
    assert!(findings[2].fix.as_ref().unwrap().contains("ip link set eth1 up"));
}

#[test]
fn iwarp_mode_and_a_blank_guid_are_told() {
    let mut iwarp = hca("erdma_0", "erdma");
    iwarp.node_type = NodeType::Rnic;
    let mut blank = hca("mlx5_2", "mlx5");
    blank.node_guid = "0000:0000:0000:0000".into();
    blank.role = Role::Virtual { physical: None };
    let findings = look_at("identity", &node(vec![iwarp, blank]));
    assert!(findings[0].fix.as_ref().unwrap().contains("compat_mode"), "{findings:?}");
    assert_eq!(
        sentences(&findings),
        [
            "in iWARP mode, which NCCL and UCX cannot use: erdma_0",
            "without a node GUID, so that librdmacm will not use it: mlx5_2",
        ]
    );
}

#[test]
fn a_function_without_its_driver_is_told_and_one_of_vfio_is_not() {
    let folder = tree(&[
        ("sys/bus/pci/devices/0000:00:0b.0/vendor", "0x1ded\n"),
        ("sys/bus/pci/devices/0000:00:0b.0/device", "0x107f\n"),
        ("sys/bus/pci/devices/0000:08:00.0/vendor", "0x15b3\n"),
        ("sys/bus/pci/devices/0000:08:00.0/device", "0x1021\n"),
        ("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x1d0f\n"),
        ("sys/bus/pci/devices/0000:3b:00.0/device", "0xefa2\n"),
        ("sys/bus/pci/devices/0000:09:00.0/vendor", "0x1d0f\n"),
        ("sys/bus/pci/devices/0000:09:00.0/device", "0xefa2\n"),
    ]);
    let link = |device: &str, driver: &str| {
        let at = folder.path().join("sys/bus/pci/devices").join(device).join("driver");
        std::os::unix::fs::symlink(format!("../../drivers/{driver}"), at).unwrap();
    };
    link("0000:08:00.0", "mlx5_core");
    link("0000:09:00.0", "vfio-pci");
    let findings =
        look("adapters", folder.path(), &node(vec![hca("rdmap79s0", "efa")]), &Records::default());
    assert_eq!(
        sentences(&findings),
        [
            "RDMA adapters: 1 by efa",
            "0000:00:0b.0 can do RDMA but has no adapter: erdma is not loaded or failed",
            "0000:08:00.0 can do RDMA but has no adapter: mlx5_ib is not loaded or failed",
        ]
    );
}

/// A node on which nothing can be opened, whose daemon serves those metrics.
struct Door(Errno, Option<String>);

impl Live for Door {
    fn memlock(&self) -> Result<(u64, u64), Errno> {
        Err(self.0)
    }
    fn lock(&self, _: NonZeroUsize) -> Result<(), Errno> {
        Err(self.0)
    }
    fn open(&self, _: &Path) -> Result<(), Errno> {
        Err(self.0)
    }
    fn version(&self, program: &str) -> Option<String> {
        (program == "containerd")
            .then(|| "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6".into())
    }
    fn metrics(&self, _: std::net::SocketAddr) -> Option<String> {
        self.1.clone()
    }
}

#[test]
fn a_node_that_does_not_open_is_told_by_the_kernels_reason() {
    let mut node = node(vec![hca("mlx5_0", "mlx5")]);
    node.rdma_cm = None;
    for (errno, level, text) in [
        (Errno::ENOENT, Level::Fail, "is missing, although the kernel has the device 231:192"),
        (Errno::EPERM, Level::Fail, "the device cgroup forbids it"),
        (Errno::EACCES, Level::Warn, "its mode is 0666"),
        (Errno::ENXIO, Level::Fail, "stale"),
        (Errno::EIO, Level::Fail, "(EIO)"),
    ] {
        let (roots, records) = (Roots::below(Path::new("/")), Records::default());
        let door = Door(errno, None);
        let context = Context { roots: &roots, node: &node, records: &records, live: Some(&door) };
        let findings = adapters::nodes(&context).unwrap();
        assert_eq!(findings[0].level, level, "{findings:?}");
        assert!(findings[0].sentence.contains(text), "{findings:?}");
    }
}

#[test]
fn modes_are_judged_without_opening() {
    let mut shut = hca("mlx5_0", "mlx5");
    shut.uverbs.as_mut().unwrap().mode = Some(0o600);
    let mut gone = hca("mlx5_1", "mlx5");
    gone.uverbs.as_mut().unwrap().mode = None;
    let findings = look_at("nodes", &node(vec![shut, gone]));
    assert!(findings[0].sentence.contains("mode 0600"), "{findings:?}");
    assert!(findings[1].sentence.contains("is missing"), "{findings:?}");
    assert_eq!(findings[2].sentence, "1 device node there, for everybody");
}
