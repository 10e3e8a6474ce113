use super::machines::*;
use crate::grant::{Grant, resend};
use crate::inventory::*;
use crate::request::*;

/// An adapter on each of the NUMA nodes given; `-` is unknown.
fn on(places: &str) -> Node {
    let hcas = places.split(',').enumerate().map(|(number, place)| {
        let mut hca = infiniband(&format!("mlx5_{number}"), number.try_into().unwrap());
        hca.numa = place.parse().ok();
        hca.local_cpus = match hca.numa {
            Some(0) => cpus("0-31"),
            Some(_) => cpus("32-63"),
            // What sysfs prints for a function without a node.
            None => cpus("0-63"),
        };
        hca
    });
    node(hcas)
}

fn shown(grant: &Grant) -> (String, String) {
    let text = |set: &Option<CpuSet>| set.as_ref().map_or_else(|| "-".into(), CpuSet::to_string);
    (text(&grant.cpus), text(&grant.mems))
}

#[test]
fn c45_cpus_next_to_the_adapter() {
    let node = on("1");
    let mut asks = request("all");
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(shown(&granted), ("32-63".into(), "-".into()));
    assert_eq!(granted.near, Some(cpus("32-63")));
    asks.numa = NumaMode::Strict;
    assert_eq!(shown(&grant(&asks, &node, &PodView::Host)), ("32-63".into(), "1".into()));
    asks.numa = NumaMode::Off;
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!((shown(&granted), granted.near), (("-".into(), "-".into()), None));

    let granted = grant(&request("all"), &on("0,1"), &PodView::Host);
    assert_eq!(shown(&granted), ("-".into(), "-".into()));
    warned(&granted, "the adapters are on NUMA nodes 0-1 (mlx5_0: 0, mlx5_1: 1)");
}

#[test]
fn c46_exclusive_cpus_are_not_fought() {
    let node = on("1");
    let mut asks = request("all");
    asks.container.cpus = Some(cpus("0-7"));
    asks.container.cpu_shares = Some(8 * 1024);
    for limit in [Some(8000), None] {
        asks.container.cpu_limit_milli = limit;
        let granted = grant(&asks, &node, &PodView::Host);
        assert_eq!(shown(&granted), ("-".into(), "-".into()));
        warned(&granted, "NUMA mismatch: CPUs on node 0, mlx5_0 on node 1");
    }
    asks.numa = NumaMode::Strict;
    typed(&mut asks, Key::Numa, "strict");
    let sentence = refusal(&asks, &node, &PodView::Host);
    assert!(sentence.starts_with("numa.rdma-ctk.io=strict: NUMA mismatch: CPUs on"), "{sentence}");

    // On the right node there is nothing to say.
    asks.container.cpus = Some(cpus("32-39"));
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(granted.warnings, [""; 0]);
    assert_eq!(shown(&granted), ("-".into(), "1".into()));
}

#[test]
fn c48_an_unknown_numa_node_is_unknown() {
    let node = on("-");
    let mut asks = request("all");
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(shown(&granted), ("-".into(), "-".into()));
    assert_eq!(granted.warnings, [""; 0]);
    asks.numa = NumaMode::Strict;
    assert!(refusal(&asks, &node, &PodView::Host).ends_with("mlx5_0 reports no NUMA node"));
    // Beside one that is known, that one counts.
    assert_eq!(shown(&grant(&request("all"), &on("-,1"), &PodView::Host)).0, "32-63");
}

#[test]
fn c67_cpus_of_another_plugin_stay() {
    let node = on("1");
    let mut asks = request("all");
    asks.container.cpus = Some(cpus("0-63"));
    asks.container.cpus_owned = Some("10-topology-aware".into());
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(shown(&granted), ("-".into(), "-".into()));
    warned(&granted, "CPU set is managed by another plugin (10-topology-aware) and stays as it is");
}

#[test]
fn a_set_is_narrowed_within_what_was_given() {
    let node = on("1");
    for (given, parent, shares, limit, expected, warning) in [
        // A shared pool of the kubelet's.
        (Some("2-63"), None, Some(2048), Some(2000), "32-63", None),
        (None, Some("16-47"), Some(2), None, "32-47", None),
        (Some("30-33"), Some("0-63"), None, None, "32-33", None),
        (None, Some("32-40"), None, None, "-", None),
        (Some("0-15"), None, None, None, "-", Some("no CPU of 0-15 that is not isolated")),
        (None, None, Some(40_000), Some(40_500), "-", Some("fewer than the CPU limit of 40.500")),
        (None, None, None, Some(32_000), "32-63", None),
    ] {
        let mut asks = request("all");
        asks.container.cpus = given.map(cpus);
        asks.container.parent_cpus = parent.map(cpus);
        asks.container.cpu_shares = shares;
        asks.container.cpu_limit_milli = limit;
        let granted = grant(&asks, &node, &PodView::Host);
        assert_eq!(shown(&granted).0, expected, "{given:?} {parent:?} {limit:?}");
        match warning {
            Some(warning) => warned(&granted, warning),
            None => assert_eq!(granted.warnings, [""; 0]),
        }
    }
}

#[test]
fn isolated_cpus_are_not_taken() {
    let mut node = on("1");
    node.isolated = cpus("40-63");
    assert_eq!(shown(&grant(&request("all"), &node, &PodView::Host)).0, "32-39");
    node.isolated = cpus("32-63");
    let granted = grant(&request("all"), &node, &PodView::Host);
    warned(&granted, "no CPU of 0-63 that is not isolated is next to the adapters");
    let mut asks = request("all");
    asks.numa = NumaMode::Strict;
    assert!(refusal(&asks, &node, &PodView::Host).contains("not isolated"));
}

#[test]
fn memory_nodes_that_were_given_are_only_narrowed() {
    let node = on("1");
    for (given, expected) in [(None, "1"), (Some("0-1"), "1"), (Some("1"), "-")] {
        let mut asks = request("all");
        asks.numa = NumaMode::Strict;
        asks.container.mems = given.map(cpus);
        assert_eq!(shown(&grant(&asks, &node, &PodView::Host)).1, expected, "{given:?}");
    }
    let mut asks = request("all");
    asks.numa = NumaMode::Strict;
    asks.container.mems = Some(cpus("0"));
    let sentence = refusal(&asks, &node, &PodView::Host);
    assert!(sentence.contains("memory nodes 0 are not those of the adapters, 1"), "{sentence}");
}

#[test]
fn a_path_that_cannot_set_cpus_says_so_under_strict() {
    let node = on("1");
    let mut asks = request("all");
    asks.carrier.cpuset = Can::No("a CDI file has no CPUs".into());
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!((shown(&granted).0, granted.warnings.len()), ("-".into(), 0));
    asks.numa = NumaMode::Strict;
    assert!(refusal(&asks, &node, &PodView::Host).contains("a CDI file has no CPUs"));
}

#[test]
fn what_the_kubelet_sends_again_is_narrowed_again() {
    let node = on("1");
    let mut asks = request("all");
    asks.container.cpu_shares = Some(2048);
    let granted = grant(&asks, &node, &PodView::Host);
    let resent = |given: &str, shares: u64| {
        let container = Container { cpu_shares: Some(shares), ..asks.container.clone() };
        resend(&cpus(given), &granted, &container, &node).cpus
    };
    assert_eq!(resent("0-47", 2048), Some(cpus("32-47")));
    assert_eq!(resent("32-40", 2048), None);
    assert_eq!(resent("0-15", 2048), None);
    // It has become exclusive.
    assert_eq!(resent("30-33", 4096), None);
    // The adapter is gone: its CPUs are still known.
    let gone = super::machines::node([]);
    let again = resend(&cpus("0-47"), &granted, &asks.container, &gone);
    assert_eq!(again.cpus, Some(cpus("32-47")));

    asks.numa = NumaMode::Off;
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(resend(&cpus("0-47"), &granted, &asks.container, &node).cpus, None);
}
