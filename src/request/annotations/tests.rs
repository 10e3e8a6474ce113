use std::collections::BTreeSet;

use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::policy::Dialect;
use crate::request::{
    EnvFamily, EnvMode, Limits, Link, Memlock, NetnsRequest, NodeKind, NumaMode, Requirement,
    Selector, carries_grant, is_unprintable, mentions_us, slips, unmatched_scopes,
};

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn container(name: &str) -> Container {
    Container { name: name.to_owned(), ..Container::default() }
}

fn claim() -> Claim {
    Claim {
        by: "another plugin, by uverbs0".into(),
        uverbs: BTreeSet::from([(231, 192)]),
        names: BTreeSet::from(["mlx5_0".to_owned()]),
    }
}

fn read(pairs: &[(&str, &str)], name: &str) -> Result<Request, RequestError> {
    parse(&annotations(pairs), container(name), Carrier::default(), &Policy::default(), None)
}

fn devices(pairs: &[(&str, &str)], name: &str) -> Option<String> {
    read(pairs, name).unwrap().devices.map(|devices| devices.to_string())
}

/// The request for container `a` with adapters and one more key.
fn with(key: &str, value: &str) -> Request {
    read(&[("devices.rdma-ctk.io", "all"), (key, value)], "a").unwrap()
}

fn error(pairs: &[(&str, &str)]) -> String {
    read(pairs, "a").unwrap_err().to_string()
}

fn value_error(key: &str, value: &str) -> String {
    error(&[(&format!("{key}.rdma-ctk.io"), value)])
}

#[test]
fn nothing_asked_is_nothing() {
    let request = read(&[("example.org/devices", "all"), ("devices", "all")], "a").unwrap();
    assert_eq!(request, Request::nothing(container("a"), Carrier::default()));
    assert!(!request.asks());
}

#[test]
fn c74_the_most_specific_scope_wins() {
    let pod =
        [("devices.rdma-ctk.io/pod", "mlx5_0"), ("devices.rdma-ctk.io/container.b", "mlx5_1")];
    assert_eq!(devices(&pod, "a").as_deref(), Some("mlx5_0"));
    assert_eq!(devices(&pod, "b").as_deref(), Some("mlx5_1"));

    let all = [
        ("devices.rdma-ctk.io", "1"),
        ("devices.rdma-ctk.io/pod", "2"),
        ("devices.rdma-ctk.io/container.a", "3"),
    ];
    for (scopes, expected) in [
        (&all[..1], "1"),
        (&all[..2], "2"),
        (&all[..], "3"),
        (&[all[0], all[2]][..], "3"),
        (&[all[1], all[2]][..], "3"),
    ] {
        assert_eq!(devices(scopes, "a").as_deref(), Some(expected));
    }
    let asked = &read(&all, "a").unwrap().asked_by[&Key::Devices];
    assert_eq!(asked.annotation, "devices.rdma-ctk.io/container.a");
    assert_eq!(asked.value, "3");
}

#[test]
fn scopes_count_for_each_key_by_itself() {
    let request = read(
        &[
            ("devices.rdma-ctk.io", "all"),
            ("memlock.rdma-ctk.io", "1Gi"),
            ("memlock.rdma-ctk.io/container.a", "2Gi"),
            ("numa.rdma-ctk.io/pod", "off"),
            ("env.rdma-ctk.io/container.b", "off"),
        ],
        "a",
    )
    .unwrap();
    assert_eq!(request.memlock, Memlock::Bytes(2 << 30));
    assert_eq!(request.numa, NumaMode::Off);
    assert_eq!(request.env, EnvMode::default());
    assert_eq!(request.asked_by.len(), 3);
}

#[test]
fn c07_c73_only_the_container_that_asked_asks() {
    let pod = [
        ("devices.rdma-ctk.io/container.trainer", "all"),
        ("memlock.rdma-ctk.io", "64Gi"),
        ("require.rdma-ctk.io/pod", "gid"),
    ];
    assert!(read(&pod, "trainer").unwrap().asks());
    let sidecar = read(&pod, "logger").unwrap();
    assert!(!sidecar.asks());
    assert_eq!(sidecar.devices, None);
}

#[test]
fn c75_init_and_ephemeral_containers_are_reached_like_others() {
    for name in ["init", "debugger-x7", "main"] {
        for key in ["devices.rdma-ctk.io", "devices.rdma-ctk.io/pod"] {
            assert_eq!(devices(&[(key, "all")], name).as_deref(), Some("all"), "{name} {key}");
        }
    }
}

#[test]
fn none_takes_a_container_out() {
    let pod = [
        ("devices.rdma-ctk.io", "all"),
        ("devices.rdma-ctk.io/container.b", "none"),
        ("memlock.rdma-ctk.io", "64Gi"),
    ];
    assert!(read(&pod, "a").unwrap().asks());
    let out = parse(
        &annotations(&pod),
        container("b"),
        Carrier::default(),
        &Policy::default(),
        Some(claim()),
    )
    .unwrap();
    assert_eq!((out.devices, out.claim), (Some(Devices::None), None));
    assert!(!read(&pod, "b").unwrap().asks());
}

#[test]
fn skipped_containers_are_reached_by_their_name_only() {
    let pod = [("devices.rdma-ctk.io", "all"), ("smc.rdma-ctk.io/pod", "auto")];
    for name in ["istio-proxy", "linkerd-proxy"] {
        assert!(!read(&pod, name).unwrap().asks(), "{name}");
    }
    assert!(read(&pod, "istio-proxy-2").unwrap().asks());
    let named = [("devices.rdma-ctk.io/container.istio-proxy", "1")];
    assert_eq!(devices(&named, "istio-proxy").as_deref(), Some("1"));
    // What is wrong pod-wide is none of its business either.
    let wrong = [("device.rdma-ctk.io", "all"), ("devices.rdma-ctk.io/Pod", "all")];
    assert!(!read(&wrong, "istio-proxy").unwrap().asks());
    assert!(read(&wrong, "a").is_err());
}

#[test]
fn devices_are_read_in_every_form() {
    let name = |name: &str| Selector::Name(name.into());
    for (text, expected) in [
        ("all", Devices::All),
        (" all ", Devices::All),
        ("none", Devices::None),
        ("1", Devices::Count(1)),
        ("16", Devices::Count(16)),
        ("mlx5_0", Devices::Select(vec![name("mlx5_0")])),
        ("mlx5_0,mlx5_0", Devices::Select(vec![name("mlx5_0")])),
        ("erdma_*, bnxt_re-1.x", Devices::Select(vec![name("erdma_*"), name("bnxt_re-1.x")])),
        ("pci:0000:3B:00.0", Devices::Select(vec![Selector::Pci("3b:00.0".parse().unwrap())])),
        ("netdev:eth1", Devices::Select(vec![Selector::Netdev("eth1".into())])),
        ("driver:efa", Devices::Select(vec![Selector::Driver("efa".into())])),
        ("link:ib", Devices::Select(vec![Selector::Link(Link::InfiniBand)])),
        ("link:infiniband", Devices::Select(vec![Selector::Link(Link::InfiniBand)])),
        ("link:roce", Devices::Select(vec![Selector::Link(Link::Roce)])),
        ("link:iwarp", Devices::Select(vec![Selector::Link(Link::Iwarp)])),
        ("link:other", Devices::Select(vec![Selector::Link(Link::Other)])),
        ("numa:1", Devices::Select(vec![Selector::Numa(1)])),
        ("gpu", Devices::Select(vec![Selector::Gpu])),
        ("rail:0", Devices::Select(vec![Selector::Rail(vec![0])])),
        ("rail:0,2", Devices::Select(vec![Selector::Rail(vec![0, 2])])),
        (
            "mlx5_9,rail:0, 2 ,3,gpu",
            Devices::Select(vec![name("mlx5_9"), Selector::Rail(vec![0, 2, 3]), Selector::Gpu]),
        ),
    ] {
        let request = read(&[("devices.rdma-ctk.io", text)], "a").unwrap();
        assert_eq!(request.devices, Some(expected), "{text:?}");
    }
}

#[test]
fn nodes_env_and_require_are_lists() {
    for (text, expected) in [
        ("uverbs", &[NodeKind::Uverbs][..]),
        ("uverbs,rdma_cm", &[NodeKind::Uverbs, NodeKind::RdmaCm]),
        ("umad, issm", &[NodeKind::Umad, NodeKind::Issm]),
    ] {
        assert!(with("nodes.rdma-ctk.io", text).nodes.iter().eq(expected), "{text:?}");
    }
    use EnvFamily::{Mpi, Nccl, Nvshmem, Ucx};
    let all = &[Nccl, Ucx, Nvshmem, Mpi][..];
    for (text, families, file) in [
        ("auto", all, false),
        ("file", all, true),
        ("off", &[], false),
        ("nccl", &[Nccl], false),
        ("mpi,ucx", &[Ucx, Mpi], false),
        ("nccl,file", &[Nccl], true),
    ] {
        let env = with("env.rdma-ctk.io", text).env;
        assert!(env.families.iter().eq(families) && env.file == file, "{text:?} {env:?}");
    }
    let require = with("require.rdma-ctk.io", "rdma_cm,gpudirect,roce-interface,gid").require;
    use Requirement::{Gid, Gpudirect, RdmaCm, RoceInterface};
    assert_eq!(require, BTreeSet::from([RdmaCm, Gpudirect, RoceInterface, Gid]));
}

#[test]
fn memlock_capabilities_and_limits_are_read() {
    for (text, expected) in [
        ("unlimited", Memlock::Unlimited),
        ("65536", Memlock::Bytes(65_536)),
        ("64K", Memlock::Bytes(64_000)),
        ("64Mi", Memlock::Bytes(64 << 20)),
        ("1T", Memlock::Bytes(1_000_000_000_000)),
    ] {
        assert_eq!(with("memlock.rdma-ctk.io", text).memlock, expected, "{text:?}");
    }
    let capabilities = with("capabilities.rdma-ctk.io", "cap_ipc_lock, NET_RAW").capabilities;
    assert!(capabilities.iter().eq(["IPC_LOCK", "NET_RAW"]));
    for (text, hca_handle, hca_object) in [
        ("hca_handle=2,hca_object=2000", Some(2), Some(2000)),
        ("hca_object=0", None, Some(0)),
        ("hca_handle = 1", Some(1), None),
    ] {
        let limits = with("limits.rdma-ctk.io", text).limits;
        assert_eq!(limits, Some(Limits { hca_handle, hca_object }), "{text:?}");
    }
}

#[test]
fn words_are_read() {
    for (text, mode) in
        [("prefer", NumaMode::Prefer), ("strict", NumaMode::Strict), ("off", NumaMode::Off)]
    {
        assert_eq!(with("numa.rdma-ctk.io", text).numa, mode);
    }
    for text in ["auto", "shared", "exclusive", "ipvlan", "macvlan", "host"] {
        assert_eq!(with("netns.rdma-ctk.io", text).netns.to_string(), text);
    }
    for text in ["off", "auto", "tcp2smc", "bpf", "preload"] {
        assert_eq!(with("smc.rdma-ctk.io", text).smc.to_string(), text);
    }
}

#[test]
fn smc_is_a_request_of_its_own() {
    let request =
        read(&[("smc.rdma-ctk.io", "auto"), ("netns.rdma-ctk.io", "shared")], "a").unwrap();
    assert!(request.asks());
    assert_eq!(request.devices, None);
    assert!(!read(&[("smc.rdma-ctk.io", "off")], "a").unwrap().asks());
}

#[test]
fn keys_without_adapters_are_an_error() {
    assert_snapshot!(error(&[("memlock.rdma-ctk.io", "64Gi")]), @r#"memlock.rdma-ctk.io: container "a" has no adapters for it to apply to: add devices.rdma-ctk.io, or write memlock.rdma-ctk.io/container.NAME for the container that has them"#);
    assert_snapshot!(error(&[("numa.rdma-ctk.io/container.a", "off"), ("devices.rdma-ctk.io/container.b", "all")]), @r#"numa.rdma-ctk.io/container.a: container "a" has no adapters for it to apply to: add devices.rdma-ctk.io/container.a, or write numa.rdma-ctk.io/container.NAME for the container that has them"#);
    for (key, value) in [
        ("nodes", "uverbs"),
        ("memlock", "1Gi"),
        ("capabilities", "IPC_LOCK"),
        ("numa", "off"),
        ("env", "off"),
        ("netns", "shared"),
        ("address", "10.1.0.7/24"),
        ("limits", "hca_handle=1"),
        ("require", "gid"),
    ] {
        let key = format!("{key}.rdma-ctk.io");
        let pair = (key.as_str(), value);
        assert!(matches!(read(&[pair], "a"), Err(RequestError::NothingToApplyTo { .. })), "{key}");
        // Another container that is only taken out has nothing for it either.
        let out = ("devices.rdma-ctk.io/container.b", "none");
        assert!(read(&[pair, out], "a").is_err(), "{key}");
        // With an allocation of somebody else's there is something.
        let map = annotations(&[pair]);
        let claimed =
            parse(&map, container("a"), Carrier::default(), &Policy::default(), Some(claim()));
        assert!(claimed.unwrap().asks(), "{key}");
        // Containers that are taken out have none by intent.
        assert!(read(&[pair, ("devices.rdma-ctk.io", "none")], "a").is_ok(), "{key}");
        assert!(read(&[pair], "istio-proxy").is_ok(), "{key}");
    }
    let smc = ("smc.rdma-ctk.io", "auto");
    assert!(read(&[smc, ("memlock.rdma-ctk.io", "1Gi")], "a").is_err());
    assert!(read(&[smc, ("require.rdma-ctk.io", "gid")], "a").is_ok());
}

#[test]
fn unknown_keys_name_the_nearest() {
    assert_snapshot!(error(&[("device.rdma-ctk.io", "all")]), @"device.rdma-ctk.io: there is no such key; did you mean devices.rdma-ctk.io?");
    assert_snapshot!(error(&[("memlcok.rdma-ctk.io/container.a", "1")]), @"memlcok.rdma-ctk.io/container.a: there is no such key; did you mean memlock.rdma-ctk.io/container.a?");
    assert_snapshot!(error(&[("gpus.rdma-ctk.io/pod", "1")]), @"gpus.rdma-ctk.io/pod: there is no such key; in front of .rdma-ctk.io goes one of devices, nodes, memlock, capabilities, numa, env, netns, address, smc, limits, require");
    assert_snapshot!(error(&[("rdma-ctk.io/devices", "all")]), @"rdma-ctk.io/devices: there is no such key; did you mean devices.rdma-ctk.io?");
    assert_snapshot!(error(&[("rdma-ctk.io", "all")]), @"rdma-ctk.io: there is no such key; in front of .rdma-ctk.io goes one of devices, nodes, memlock, capabilities, numa, env, netns, address, smc, limits, require");
    assert_snapshot!(error(&[("Devices.rdma-ctk.io", "all")]), @"Devices.rdma-ctk.io: there is no such key; did you mean devices.rdma-ctk.io?");
    assert_snapshot!(error(&[("devices.RDMA-CTK.io", "all")]), @"devices.RDMA-CTK.io: there is no such key; did you mean devices.rdma-ctk.io?");
    // Of another container: not this one's business.
    assert!(read(&[("device.rdma-ctk.io/container.b", "all")], "a").is_ok());
}

#[test]
fn slips_that_no_container_is_told_of() {
    for (key, expected) in [
        (
            "devices.rdma-ctk.oi",
            "devices.rdma-ctk.oi: is none of our keys, and asks for nothing; did you mean \
             devices.rdma-ctk.io?",
        ),
        (
            "device.rdma-ctk.com/container.main",
            "device.rdma-ctk.com/container.main: is none of our keys, and asks for nothing; did \
             you mean devices.rdma-ctk.io/container.main?",
        ),
        (
            "devices.rdma-ctk.io/container.mian",
            "devices.rdma-ctk.io/container.mian: the pod has no container mian; it has main, logger",
        ),
        (
            "env.rdma-ctk.io/container.x",
            "env.rdma-ctk.io/container.x: the pod has no container x; it has main, logger",
        ),
        ("devices.rdma-ctk.io/container.main", ""),
        ("devices.rdma-ctk.io", ""),
        ("devices.example.org", ""),
        ("colour.rdma-ctk.oi", ""),
        ("rdma-ctk.oi", ""),
        ("devices", ""),
    ] {
        let told = slips(&annotations(&[(key, "all")]), &["main", "logger"]);
        assert_eq!(told.concat(), expected, "{key}");
    }
}

#[test]
fn unknown_scopes_name_the_nearest() {
    assert_snapshot!(error(&[("devices.rdma-ctk.io/trainer", "all")]), @r#"devices.rdma-ctk.io/trainer: "trainer" is no scope; did you mean devices.rdma-ctk.io/container.trainer?"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/Pod", "all")]), @r#"devices.rdma-ctk.io/Pod: "Pod" is no scope; did you mean devices.rdma-ctk.io/pod?"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/pods", "all")]), @r#"devices.rdma-ctk.io/pods: "pods" is no scope; did you mean devices.rdma-ctk.io/pod?"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/containers.a", "all")]), @r#"devices.rdma-ctk.io/containers.a: "containers.a" is no scope; did you mean devices.rdma-ctk.io/container.a?"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/container/a", "all")]), @r#"devices.rdma-ctk.io/container/a: "container/a" is no scope; did you mean devices.rdma-ctk.io/container.a?"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/container", "all")]), @r#"devices.rdma-ctk.io/container: "container" is no scope; there are devices.rdma-ctk.io, devices.rdma-ctk.io/pod and devices.rdma-ctk.io/container.NAME"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/container.", "all")]), @r#"devices.rdma-ctk.io/container.: "container." is no scope; there are devices.rdma-ctk.io, devices.rdma-ctk.io/pod and devices.rdma-ctk.io/container.NAME"#);
    assert_snapshot!(error(&[("devices.rdma-ctk.io/", "all")]), @r#"devices.rdma-ctk.io/: "" is no scope; there are devices.rdma-ctk.io, devices.rdma-ctk.io/pod and devices.rdma-ctk.io/container.NAME"#);
}

#[test]
fn values_that_do_not_parse_name_the_nearest() {
    assert_snapshot!(error(&[("devices.rdma-ctk.io/container.a", "mlx_0,")]), @r#"devices.rdma-ctk.io/container.a: "mlx_0,": empty selector beside a comma; expected all, none, a count, or selectors such as mlx5_0,link:roce"#);
    assert_snapshot!(value_error("devices", ""), @r#"devices.rdma-ctk.io: "": empty value; expected all, none, a count, or selectors such as mlx5_0,link:roce"#);
    assert_snapshot!(value_error("devices", "0"), @r#"devices.rdma-ctk.io: "0" is no number from 1 to 4096"#);
    assert_snapshot!(value_error("devices", "99999999999"), @r#"devices.rdma-ctk.io: "99999999999" is no number from 1 to 4096"#);
    assert_snapshot!(value_error("devices", "all,mlx5_0"), @r#"devices.rdma-ctk.io: "all,mlx5_0": "all" stands alone, not in a list"#);
    assert_snapshot!(value_error("devices", "2,mlx5_0"), @r#"devices.rdma-ctk.io: "2,mlx5_0": "2" stands alone, not in a list"#);
    assert_snapshot!(value_error("devices", "numa:0,1"), @r#"devices.rdma-ctk.io: "numa:0,1": "1" stands alone, not in a list"#);
    assert_snapshot!(value_error("devices", "../../etc"), @r#"devices.rdma-ctk.io: "../../etc" is no selector: a device name has up to 63 letters, digits, _ - . and * for any run"#);
    assert_snapshot!(value_error("devices", "0000:3b:00.0"), @r#"devices.rdma-ctk.io: "0000:3b:00.0" is no selector: a PCI address is written pci:0000:3b:00.0"#);
    assert_snapshot!(value_error("devices", "pci:3b:00"), @r#"devices.rdma-ctk.io: "pci:3b:00" is no selector: "3b:00" is no PCI address: expected DDDD:BB:DD.F in hexadecimal, such as 0000:3b:00.0"#);
    assert_snapshot!(value_error("devices", "netdv:eth0"), @r#"devices.rdma-ctk.io: "netdv:eth0" is no selector: its kind is none of pci, netdev, driver, link, numa, rail; did you mean netdev:eth0?"#);
    assert_snapshot!(value_error("devices", "vendor:mlx"), @r#"devices.rdma-ctk.io: "vendor:mlx" is no selector: its kind is none of pci, netdev, driver, link, numa, rail"#);
    assert_snapshot!(value_error("devices", "netdev:a/b"), @r#"devices.rdma-ctk.io: "netdev:a/b" is no selector: expected the name of a network interface behind netdev:"#);
    assert_snapshot!(value_error("devices", "driver:"), @r#"devices.rdma-ctk.io: "driver:" is no selector: expected the name of a driver, such as driver:mlx5"#);
    assert_snapshot!(value_error("devices", "link:rocev2"), @r#"devices.rdma-ctk.io: "link:rocev2": "rocev2" is none of infiniband, ib, roce, iwarp, other; did you mean "roce"?"#);
    assert_snapshot!(value_error("devices", "numa:-1"), @r#"devices.rdma-ctk.io: "numa:-1": "-1" is no number from 0 to 4096"#);
    assert_snapshot!(value_error("devices", "rail:x"), @r#"devices.rdma-ctk.io: "rail:x": "x" is no number from 0 to 4096"#);
    assert_snapshot!(value_error("devices", "gpu:0"), @r#"devices.rdma-ctk.io: "gpu:0" is no selector: gpu takes no value: it means the GPUs of the container"#);
    assert_snapshot!(value_error("nodes", "uverbs,uverb"), @r#"nodes.rdma-ctk.io: "uverbs,uverb": "uverb" is none of uverbs, rdma_cm, umad, issm; did you mean "uverbs"?"#);
    assert_snapshot!(value_error("nodes", " "), @r#"nodes.rdma-ctk.io: " ": empty value; expected uverbs, rdma_cm, umad, issm"#);
    assert_snapshot!(value_error("memlock", "infinity"), @r#"memlock.rdma-ctk.io: "infinity" is none of unlimited, bytes with unit such as 64Gi; did you mean "unlimited"?"#);
    assert_snapshot!(value_error("memlock", "unlimted"), @r#"memlock.rdma-ctk.io: "unlimted" is none of unlimited, bytes with unit such as 64Gi; did you mean "unlimited"?"#);
    assert_snapshot!(value_error("memlock", "lots"), @r#"memlock.rdma-ctk.io: "lots" is none of unlimited, bytes with unit such as 64Gi"#);
    assert_snapshot!(value_error("memlock", "1.5Gi"), @r#"memlock.rdma-ctk.io: "1.5Gi": expected a whole number; a smaller unit expresses the same"#);
    assert_snapshot!(value_error("memlock", "64Gb"), @r#"memlock.rdma-ctk.io: "64Gb": "Gb" is no unit: expected K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024)"#);
    assert_snapshot!(value_error("memlock", ""), @r#"memlock.rdma-ctk.io: "": empty value; expected unlimited, or bytes with unit such as 64Gi"#);
    assert_snapshot!(value_error("capabilities", "IPC_LOK"), @r#"capabilities.rdma-ctk.io: "IPC_LOK" is none of the capabilities of Linux; did you mean "IPC_LOCK"?"#);
    assert_snapshot!(value_error("capabilities", "ALL"), @r#"capabilities.rdma-ctk.io: "ALL" is none of the capabilities of Linux"#);
    assert_snapshot!(value_error("numa", "strct"), @r#"numa.rdma-ctk.io: "strct" is none of prefer, strict, off; did you mean "strict"?"#);
    assert_snapshot!(value_error("numa", ""), @r#"numa.rdma-ctk.io: "" is none of prefer, strict, off"#);
    assert_snapshot!(value_error("env", "auto,nccl"), @r#"env.rdma-ctk.io: "auto,nccl": "auto" stands alone, not in a list"#);
    assert_snapshot!(value_error("env", "ncll"), @r#"env.rdma-ctk.io: "ncll" is none of auto, file, off, nccl, ucx, nvshmem, mpi; did you mean "nccl"?"#);
    assert_snapshot!(value_error("netns", "private"), @r#"netns.rdma-ctk.io: "private" is none of auto, shared, exclusive, ipvlan, macvlan, host"#);
    assert_snapshot!(value_error("smc", "on"), @r#"smc.rdma-ctk.io: "on" is none of off, auto, tcp2smc, bpf, preload"#);
    assert_snapshot!(value_error("limits", "hca_handles=1"), @r#"limits.rdma-ctk.io: "hca_handles=1": "hca_handles" is none of hca_handle, hca_object; did you mean "hca_handle"?"#);
    assert_snapshot!(value_error("limits", "hca_handle=max"), @r#"limits.rdma-ctk.io: "hca_handle=max": "max" is no number from 0 to 2147483647"#);
    assert_snapshot!(value_error("limits", "hca_handle=1,hca_handle=2"), @r#"limits.rdma-ctk.io: "hca_handle=1,hca_handle=2": "hca_handle" is given twice"#);
    assert_snapshot!(value_error("require", "roce_interface"), @r#"require.rdma-ctk.io: "roce_interface" is none of rdma_cm, gpudirect, roce-interface, gid; did you mean "roce-interface"?"#);
}

#[test]
fn tenants_text_cannot_break_the_line() {
    let long = "x/".repeat(5000);
    for value in ["a\nb: forged", "\u{1b}[2J", "a\u{202e}b", "a\u{2028}b: forged", long.as_str()] {
        let text = value_error("devices", value);
        assert!(!text.contains(is_unprintable), "{text:?}");
        assert!(text.len() < 600, "{}", text.len());
    }
    let text = error(&[("devices.rdma-ctk.io/\n\u{7}", "all")]);
    assert!(!text.contains(is_unprintable), "{text:?}");
}

#[test]
fn our_mark_is_refused_on_pods_and_seen_on_containers() {
    assert_snapshot!(error(&[("grant.rdma-ctk.io", "x")]), @"grant.rdma-ctk.io: this key is ours to set on a container; take it off the pod");
    assert!(read(&[("grant.rdma-ctk.io/container.a", "x")], "a").is_err());
    assert!(carries_grant(&annotations(&[("grant.rdma-ctk.io", "x")])));
    assert!(!carries_grant(&annotations(&[("devices.rdma-ctk.io", "all")])));
}

#[test]
fn the_toleration_of_the_runtimes_validator_is_a_known_key() {
    for key in ["tolerate-missing.rdma-ctk.io", "tolerate-missing.rdma-ctk.io/container.a"] {
        assert!(!read(&[(key, "true")], "a").unwrap().asks());
    }
}

#[test]
fn pods_that_do_not_mention_us_are_told_by_their_keys() {
    for (key, expected) in [
        ("devices.rdma-ctk.io", true),
        ("devices.rdma-ctk.io/container.a", true),
        ("rdma-ctk.io/devices", true),
        ("network.alibabacloud.com/erdma-smcr", true),
        ("k8s.volcengine.com/pod-networks", true),
        ("example.org/devices.rdma-ctk.io", false),
        ("not-rdma-ctk.io", false),
        ("notrdma-ctk.io/x", false),
        ("kubernetes.io/config.source", false),
        ("", false),
        ("io", false),
        ("ä.io", false),
    ] {
        assert_eq!(mentions_us([key]), expected, "{key:?}");
        assert_eq!(mentions_us(["a.example.org/x", key]), expected, "{key:?}");
    }
    assert!(!mentions_us(BTreeMap::<String, String>::new().keys()));
}

#[test]
fn scopes_that_match_no_container_are_listed() {
    let map = annotations(&[
        ("devices.rdma-ctk.io", "all"),
        ("devices.rdma-ctk.io/container.trainer", "all"),
        ("memlock.rdma-ctk.io/container.trianer", "1Gi"),
        ("numa.rdma-ctk.io/container.b", "off"),
        ("example.org/container.c", "x"),
    ]);
    assert_eq!(
        unmatched_scopes(&map, &["trainer", "logger"]),
        ["memlock.rdma-ctk.io/container.trianer", "numa.rdma-ctk.io/container.b"]
    );
    assert!(unmatched_scopes(&map, &["trainer", "trianer", "b"]).is_empty());
}

#[test]
fn vendors_annotations_ask_only_where_policy_serves_them() {
    let networks =
        r#"[{"cniConf":{"name":"rdma"}},{"cniConf":{"name":"rdma"}},{"cniConf":{"name":"eth"}}]"#;
    let map = annotations(&[
        ("network.alibabacloud.com/erdma-smcr", "true"),
        ("k8s.volcengine.com/pod-networks", networks),
    ]);
    let read = |map: &BTreeMap<String, String>, dialect: Dialect, name: &str| {
        let mut policy = Policy::default();
        policy.dialects.alibabacloud = dialect;
        policy.dialects.volcengine = dialect;
        parse(map, container(name), Carrier::default(), &policy, None)
    };
    for dialect in [Dialect::Complete, Dialect::Off] {
        assert!(!read(&map, dialect, "a").unwrap().asks());
    }
    let served = read(&map, Dialect::Serve, "a").unwrap();
    assert_eq!(served.smc, SmcMethod::Auto);
    assert_eq!(served.devices, Some(Devices::Count(2)));
    assert_eq!(served.netns, NetnsRequest::Ipvlan);
    assert_eq!(served.asked_by[&Key::Netns].annotation, "k8s.volcengine.com/pod-networks");
    assert!(!read(&map, Dialect::Serve, "istio-proxy").unwrap().asks());

    let mut ours = map.clone();
    ours.insert("smc.rdma-ctk.io".into(), "off".into());
    ours.insert("devices.rdma-ctk.io".into(), "1".into());
    let both = read(&ours, Dialect::Serve, "a").unwrap();
    assert_eq!((both.smc, both.devices), (SmcMethod::Off, Some(Devices::Count(1))));

    let mode = |map: &BTreeMap<String, String>, mode: &str| {
        let text = format!("dialects.volcengine = \"serve\"\ndialects.volcengine_mode = {mode:?}");
        let policy = Policy::from_toml(&text).unwrap();
        parse(map, container("a"), Carrier::default(), &policy, None)
    };
    let multi = mode(&map, "shared-multi").unwrap();
    assert_eq!((multi.devices, multi.netns), (Some(Devices::Count(2)), NetnsRequest::Ipvlan));
    let moved = mode(&map, "exclusive").unwrap();
    assert_eq!((moved.devices, moved.netns), (Some(Devices::Count(2)), NetnsRequest::Exclusive));
    let error = mode(&map, "shared-host").unwrap_err().to_string();
    assert!(error.contains("expected one block of the name rdma, which stands"), "{error}");
    let one = annotations(&[(
        "k8s.volcengine.com/pod-networks",
        r#"[{"cniConf":{"name":"rdma"}},{"cniConf":{"name":"eth"}}]"#,
    )]);
    let host = mode(&one, "shared-host").unwrap();
    assert_eq!((host.devices, host.netns), (Some(Devices::All), NetnsRequest::Ipvlan));
    assert_eq!(mode(&one, "shared").unwrap().devices, Some(Devices::Count(1)));

    let off = annotations(&[
        ("network.alibabacloud.com/erdma-smcr", "false"),
        ("k8s.volcengine.com/pod-networks", "[]"),
    ]);
    assert!(!read(&off, Dialect::Serve, "a").unwrap().asks());
    for (key, value) in [
        ("network.alibabacloud.com/erdma-smcr", "yes"),
        ("k8s.volcengine.com/pod-networks", "rdma"),
        ("k8s.volcengine.com/pod-networks", "{}"),
    ] {
        let wrong = annotations(&[(key, value)]);
        assert!(read(&wrong, Dialect::Complete, "a").is_ok());
        let error = read(&wrong, Dialect::Serve, "a").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}: {value:?}: expected ")), "{error}");
    }
}

fn selectors() -> impl Strategy<Value = Selector> {
    prop_oneof![
        // Digits alone would be a count, and these words have meanings of their own.
        "[a-z][a-z0-9_.*-]{0,20}"
            .prop_filter("a word", |name| !["all", "none", "gpu"].contains(&name.as_str()))
            .prop_map(Selector::Name),
        (any::<u16>(), any::<u8>(), 0_u8..32, 0_u8..8).prop_map(
            |(domain, bus, device, function)| {
                let domain = domain.into();
                Selector::Pci(crate::inventory::PciAddress { domain, bus, device, function })
            }
        ),
        "[a-z0-9@.]{3,15}".prop_map(Selector::Netdev),
        "[a-z0-9_]{1,20}".prop_map(Selector::Driver),
        prop_oneof![Just(Link::InfiniBand), Just(Link::Roce), Just(Link::Iwarp), Just(Link::Other)]
            .prop_map(Selector::Link),
        (0_u32..4096).prop_map(Selector::Numa),
        Just(Selector::Gpu),
        prop::collection::vec(0_u32..4096, 1..5).prop_map(Selector::Rail),
    ]
}

proptest! {
    #[test]
    fn devices_that_are_written_are_read_again(
        selectors in prop::collection::btree_set(selectors(), 1..6),
        count in 1_u32..4096,
    ) {
        let select = Devices::Select(selectors.into_iter().collect());
        for devices in [select, Devices::Count(count), Devices::All, Devices::None] {
            let request = read(&[("devices.rdma-ctk.io", &devices.to_string())], "a").unwrap();
            prop_assert_eq!(request.devices, Some(devices));
        }
    }

    #[test]
    fn env_and_limits_that_are_written_are_read_again(
        families in prop::collection::btree_set(prop::sample::select(&EnvFamily::ALL[..]), 0..5),
        file: bool,
        hca_handle in prop::option::of(0_u32..1000),
        hca_object in 0_u32..i32::MAX.unsigned_abs(),
    ) {
        let file = file && !families.is_empty();
        let env = EnvMode { families, file };
        prop_assert_eq!(&with("env.rdma-ctk.io", &env.to_string()).env, &env);
        let limits = Limits { hca_handle, hca_object: Some(hca_object) };
        prop_assert_eq!(with("limits.rdma-ctk.io", &limits.to_string()).limits, Some(limits));
    }

    #[test]
    fn no_annotation_panics(
        pairs in prop::collection::btree_map(
            prop_oneof![
                "[a-z]{0,8}[.]?rdma-ctk[.]io(/[a-z.]{0,12})?",
                "(devices|nodes|memlock|capabilities|numa|env|netns|address|smc|limits|require)[.]rdma-ctk[.]io(/pod|/container[.]a)?",
                ".{0,30}",
            ],
            prop_oneof!["[a-z0-9:,=*._ -]{0,40}", ".{0,60}"],
            0..6,
        ),
    ) {
        let result = parse(&pairs, container("a"), Carrier::default(), &Policy::default(), None);
        if let Err(error) = result {
            prop_assert!(!error.to_string().contains('\n'));
        }
        let _ = unmatched_scopes(&pairs, &["a"]);
        let _ = mentions_us(pairs.keys());
    }

    #[test]
    fn keys_of_others_change_nothing(
        pairs in prop::collection::btree_map("[a-z]{1,8}[.]example[.]org/[a-z]{1,8}", ".{0,20}", 0..6),
    ) {
        let request =
            parse(&pairs, container("a"), Carrier::default(), &Policy::default(), None).unwrap();
        prop_assert_eq!(request, Request::nothing(container("a"), Carrier::default()));
    }
}

#[test]
fn smc_takes_sysctls_behind_the_method() {
    let request = with("smc.rdma-ctk.io", "auto, wmem=262144,net.smc.smcr_buf_type=2");
    assert_eq!(request.smc, SmcMethod::Auto);
    let sysctls = [("smcr_buf_type".to_owned(), 2), ("wmem".to_owned(), 262_144)];
    assert_eq!(request.smc_sysctls, BTreeMap::from(sysctls));
    for (value, said) in [
        ("auto,wmem=1", "\"1\" is no number from 16384 to"),
        ("auto,wmem=", "is no number from"),
        ("auto,wmen=65536", "did you mean \"wmem\"?"),
        ("auto,tcp2smc=1", "is none of autocorking_size"),
        ("auto,../../kernel/core_pattern=1", "is none of autocorking_size"),
        ("auto,wmem=65536,wmem=65536", "\"wmem\" is given twice"),
        ("off,wmem=65536", "\"off\" stands alone"),
        ("wmem=65536", "is none of off, auto"),
    ] {
        let error = value_error("smc", value);
        assert!(error.contains(said), "{value}: {error}");
    }
}
