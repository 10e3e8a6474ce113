use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;

const HOOK: &str = "/usr/bin/rdma-ctk-hook";
use crate::grant::proptests::inputs;
use crate::grant::tests::machines::{infiniband, roce};
use crate::inventory::{PortState, Role};

fn node(hcas: Vec<Hca>) -> Node {
    let rdma_cm = CharDev { name: "rdma_cm".into(), major: 10, minor: 260, mode: Some(0o666) };
    Node { hcas, rdma_cm: Some(rdma_cm), ..Node::default() }
}

fn soft(name: &str, number: u32) -> Hca {
    let mut hca = roce(name, number, "eth0", "0 v2 fe80::1 eth0");
    hca.pci = None;
    hca.role = Role::Software { parent: Some("eth0".into()) };
    hca
}

fn make(node: &Node) -> Made {
    spec(node, &Policy::default(), Some(HOOK), &BTreeMap::new()).unwrap()
}

fn names(made: &Made) -> Vec<&str> {
    made.spec.iter().flat_map(|spec| &spec.devices).map(|device| device.name.as_str()).collect()
}

#[test]
fn a_soft_adapter_is_one_device_and_all() {
    let made = make(&node(vec![soft("rxe0", 0)]));
    assert_eq!(made.notes, Vec::<String>::new());
    assert_snapshot!(made.spec.unwrap().to_json().unwrap());
}

#[test]
fn adapters_are_named_by_kernel_and_by_pci_address() {
    let made = make(&node(vec![infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]));
    assert_eq!(names(&made), ["mlx5_0", "0000:10:00.0", "mlx5_1", "0000:11:00.0", "all"]);
    let spec = made.spec.unwrap();
    // A name that begins with a digit.
    assert_eq!(spec.cdi_version, "0.5.0");
    let nodes = |name: &str| -> Vec<&str> {
        let device = spec.devices.iter().find(|device| device.name == name).unwrap();
        device.container_edits.device_nodes.iter().map(|node| node.path.as_str()).collect()
    };
    assert_eq!(nodes("mlx5_1"), ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]);
    assert_eq!(nodes("mlx5_1"), nodes("0000:11:00.0"));
    assert_eq!(
        nodes("all"),
        ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
    );
}

#[test]
fn c79_a_hole_is_an_error() {
    let mut lacking = infiniband("mlx5_1", 1);
    lacking.uverbs = None;
    let error = spec(
        &node(vec![infiniband("mlx5_0", 0), lacking]),
        &Policy::default(),
        None,
        &BTreeMap::new(),
    );
    assert_eq!(error, Err(CdiError::NoUverbs { hca: "mlx5_1".into() }));

    let mut unmade = infiniband("mlx5_0", 0);
    unmade.uverbs.as_mut().unwrap().mode = None;
    let error = spec(&node(vec![unmade]), &Policy::default(), None, &BTreeMap::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/infiniband/uverbs0 is missing, while the kernel has the device (231:192): look at \
         /dev and udev, and generate again"
    );

    let mut no_cm = node(vec![infiniband("mlx5_0", 0)]);
    no_cm.rdma_cm.as_mut().unwrap().mode = None;
    assert!(matches!(
        spec(&no_cm, &Policy::default(), None, &BTreeMap::new()),
        Err(CdiError::NoNode { .. })
    ));
}

#[test]
fn what_cannot_be_given_is_left_out_and_named() {
    let mut away = infiniband("mlx5_1", 1);
    away.home = Home::Elsewhere;
    let mut down = infiniband("mlx5_2", 2);
    down.ports[0].state = PortState::Down;
    let mut no_node_and_down = infiniband("mlx5_3", 3);
    no_node_and_down.ports[0].state = PortState::Down;
    no_node_and_down.uverbs = None;
    let made = make(&node(vec![
        infiniband("mlx5_0", 0),
        away,
        down,
        no_node_and_down,
        soft("_odd", 4),
        soft("all", 5),
    ]));
    assert_eq!(names(&made), ["mlx5_0", "0000:10:00.0", "all"]);
    assert_snapshot!(made.notes.join("\n"), @r#"
    mlx5_1 is left out: it was moved into another network namespace
    mlx5_2 is left out: it has no ACTIVE port (port 1: DOWN)
    mlx5_3 is left out: it has no ACTIVE port (port 1: DOWN)
    "_odd" cannot be the name of a CDI device
    all is no device of its own: the name is taken
    "#);
}

#[test]
fn policy_is_kept() {
    let policy =
        Policy::from_toml("[default]\nadapters = ['mlx5_1']\nnodes = ['uverbs']\n").unwrap();
    let node = node(vec![infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let made = spec(&node, &policy, None, &BTreeMap::new()).unwrap();
    assert_eq!(names(&made), ["mlx5_1", "0000:11:00.0", "all"]);
    let spec = made.spec.unwrap();
    assert_eq!(spec.nodes().into_iter().collect::<Vec<_>>(), ["/dev/infiniband/uverbs1"]);
    assert_eq!(spec.container_edits, Edits::default());
    assert!(!spec.to_json().unwrap().contains("hooks"));
}

#[test]
fn without_an_adapter_there_is_no_specification() {
    assert_eq!(make(&node(Vec::new())), Made { spec: None, notes: Vec::new() });
}

#[test]
fn an_exclusive_node_says_so() {
    let mut node = node(vec![infiniband("mlx5_0", 0)]);
    node.netns_mode = NetnsMode::Exclusive;
    node.rdma_cm = None;
    let made = make(&node);
    assert_eq!(names(&made), ["mlx5_0", "0000:10:00.0", "all"]);
    assert_eq!(made.notes.len(), 2, "{:?}", made.notes);
}

#[test]
fn names_are_those_that_cdi_takes() {
    for name in ["mlx5_0", "0000:3b:00.0", "rocep1s0f0", "a", "0", "a.b-c:d"] {
        assert!(is_device_name(name), "{name}");
    }
    for name in ["", "_a", "a_", "-", "a b", "a/b", "a=b", "ä", "a,b", "0000:3b:00."] {
        assert!(!is_device_name(name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// On whatever node: names that CDI takes, each once; nodes that `/dev` has; one hook.
    #[test]
    fn whatever_is_made_is_valid(inputs in inputs()) {
        let Ok(Made { spec: Some(spec), .. }) = spec(&inputs.node, &inputs.policy, Some(HOOK), &BTreeMap::new()) else {
            return Ok(());
        };
        let names: BTreeSet<&str> = spec.devices.iter().map(|d| d.name.as_str()).collect();
        prop_assert_eq!(names.len(), spec.devices.len());
        prop_assert!(names.iter().all(|name| is_device_name(name)));
        prop_assert!(!spec.devices.is_empty());
        let there = inputs.node.hcas.iter().flat_map(|hca| &hca.uverbs).chain(&inputs.node.rdma_cm);
        let there: BTreeSet<String> =
            there.filter(|dev| dev.mode.is_some()).map(CharDev::path).collect();
        prop_assert!(spec.nodes().iter().all(|path| there.contains(*path)));
        let again: Spec = serde_json::from_str(&spec.to_json().unwrap()).unwrap();
        prop_assert_eq!(&again, &spec);
        prop_assert_eq!(spec.container_edits.hooks.len(), 1);
    }
}
