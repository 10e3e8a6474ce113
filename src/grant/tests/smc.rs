//! SMC-R: by which method, on which conditions, with what prepared.

use super::machines::*;
use crate::grant::{Grant, Inventory, Outcome, PnetGrant, SmcFacts, decide};
use crate::inventory::*;
use crate::policy::Policy;
use crate::request::*;

/// A kernel on which every method can be had.
fn able() -> SmcFacts {
    SmcFacts {
        loaded: true,
        sysctls: ["wmem".to_owned(), "smcr_buf_type".to_owned()].into(),
        ..SmcFacts::default()
    }
}

/// A mainline kernel of 6.12.
fn mainline() -> SmcFacts {
    SmcFacts {
        tcp2smc: Can::No("no mainline kernel has a sysctl that turns sockets".into()),
        preload: Can::No("policy names no library".into()),
        ..able()
    }
}

fn asks(method: SmcMethod) -> Request {
    let mut request = nothing();
    request.smc = method;
    typed(&mut request, Key::Smc, &method.to_string());
    request
}

fn on_host(method: SmcMethod) -> Request {
    let mut request = asks(method);
    request.container.pod.host_network = true;
    request
}

/// A node with a RoCE adapter, whose interface has this address.
fn machine() -> Node {
    let mut node =
        node([roce("mlx5_0", 0, "eth1", "0 v2 fe80::9 eth1\n1 v2 ::ffff:10.1.0.5 eth1")]);
    let mut eth1 = interface("eth1", "-", &["10.1.0.5/24"]);
    eth1.index = 7;
    node.interfaces = vec![eth1];
    node
}

/// A pod with one interface of that kind.
fn pod(kind: &str, lower: Option<u32>, addresses: &[&str]) -> PodView {
    let mut eth0 = interface("eth0", kind, addresses);
    eth0.lower = lower;
    network(&machine(), [eth0])
}

fn decided(
    request: &Request,
    node: &Node,
    pod: &PodView,
    facts: &SmcFacts,
    policy: &Policy,
) -> Outcome {
    let inventory = Inventory { smc: Some(facts), ..Inventory::of(node, pod) };
    decide(request, &inventory, policy)
}

#[track_caller]
fn given(
    request: &Request,
    node: &Node,
    pod: &PodView,
    facts: &SmcFacts,
    policy: &Policy,
) -> Grant {
    match decided(request, node, pod, facts, policy) {
        Outcome::Granted(grant) => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn denied(
    request: &Request,
    node: &Node,
    pod: &PodView,
    facts: &SmcFacts,
    policy: &Policy,
) -> String {
    match decided(request, node, pod, facts, policy) {
        Outcome::Refused(refusal) => refusal.sentence,
        other => panic!("not refused: {other:?}"),
    }
}

/// A policy that allows everything about SMC-R.
fn open() -> Policy {
    let mut policy = Policy::default();
    policy.default.smc = [SmcMethod::Tcp2smc, SmcMethod::Bpf, SmcMethod::Preload].into();
    policy.default.smc_sysctls = ["wmem".to_owned(), "rmem".to_owned()].into();
    policy.smc.preload_library = Some("/usr/lib64/libsmc-preload.so".into());
    policy
}

#[test]
fn smc_alone_gives_no_device_and_no_limit() {
    let (node, policy) = (machine(), Policy::default());
    let grant = given(&on_host(SmcMethod::Auto), &node, &PodView::Host, &mainline(), &policy);
    let smc = grant.smc.as_ref().unwrap();
    assert_eq!((smc.method, smc.eid.as_deref()), (SmcMethod::Bpf, Some("RDMA-CTK")));
    assert_eq!((smc.pnet.len(), smc.sysctls.len(), smc.mptcp), (0, 0, false));
    let rest = Grant { smc: None, reasons: Vec::new(), warnings: Vec::new(), ..grant };
    assert_eq!(rest, Grant::default());
    // Beside devices it is the same.
    let mut both = request("all");
    both.container.pod.host_network = true;
    both.smc = SmcMethod::Bpf;
    let grant = given(&both, &node, &PodView::Host, &mainline(), &policy);
    assert_eq!(
        (names(&grant), grant.smc.as_ref().unwrap().method),
        (vec!["mlx5_0"], SmcMethod::Bpf)
    );
}

#[test]
fn c99_auto_takes_the_first_method_that_can_be_had_and_says_why_not_another() {
    let node = machine();
    let pod = pod("ipvlan", Some(7), &["10.1.0.9/24"]);
    let no = |why: &str| Can::No(why.to_owned());
    let old = SmcFacts { bpf: no("no IPPROTO_SMC"), ..mainline() };
    let with_library = SmcFacts { preload: Can::Yes, ..old.clone() };
    for (facts, method) in [
        (able(), SmcMethod::Tcp2smc),
        (mainline(), SmcMethod::Bpf),
        (with_library, SmcMethod::Preload),
    ] {
        let grant = given(&asks(SmcMethod::Auto), &node, &pod, &facts, &open());
        assert_eq!(grant.smc.as_ref().unwrap().method, method);
        let said = grant.reasons.iter().find(|reason| reason.about == "smc").unwrap();
        assert!(said.text.starts_with(&format!("sockets are turned by {method}")), "{}", said.text);
        let named = method == SmcMethod::Tcp2smc || said.text.contains("no mainline kernel has");
        assert!(named, "{}", said.text);
    }
    let none = denied(&asks(SmcMethod::Auto), &node, &pod, &old, &open());
    assert_eq!(
        none,
        "smc.rdma-ctk.io=auto: no method can be had here: tcp2smc: no mainline kernel has a sysctl \
         that turns sockets; bpf: no IPPROTO_SMC; preload: policy names no library"
    );
    let missing = denied(&asks(SmcMethod::Auto), &node, &pod, &SmcFacts::default(), &open());
    assert!(missing.contains("SMC-R is not available on this kernel (no smc module)"), "{missing}");
    let bpf = denied(&asks(SmcMethod::Bpf), &node, &pod, &old, &open());
    assert_eq!(bpf, "smc.rdma-ctk.io=bpf: no IPPROTO_SMC");
    // A mainline kernel: no sysctl is set that does not turn anything.
    let sysctl = denied(&asks(SmcMethod::Tcp2smc), &node, &pod, &mainline(), &open());
    assert!(sysctl.ends_with("no mainline kernel has a sysctl that turns sockets"), "{sysctl}");
}

#[test]
fn what_changes_a_namespace_takes_a_key_of_the_pod_and_a_namespace_of_its_own() {
    let (node, policy) = (machine(), open());
    let view = pod("ipvlan", Some(7), &["10.1.0.9/24"]);
    let host = denied(&on_host(SmcMethod::Tcp2smc), &node, &PodView::Host, &able(), &policy);
    assert!(host.contains("hostNetwork pod shares the host's network namespace"), "{host}");
    let mut one = asks(SmcMethod::Tcp2smc);
    one.asked_by.get_mut(&Key::Smc).unwrap().annotation = "smc.rdma-ctk.io/container.a".into();
    let single = denied(&one, &node, &view, &able(), &policy);
    assert!(single.contains("it changes the whole pod"), "{single}");
    // For one container, the other methods will do.
    one.smc = SmcMethod::Auto;
    let grant = given(&one, &node, &view, &able(), &policy);
    assert_eq!(grant.smc.unwrap().method, SmcMethod::Bpf);
    // Where the runtime sets sysctls it does.
    let mut whole = asks(SmcMethod::Tcp2smc);
    let smc = given(&whole, &node, &view, &able(), &policy).smc.unwrap();
    assert_eq!(smc.sysctls, [("net.smc.tcp2smc".to_owned(), "1".to_owned())]);
    assert!(smc.by_runtime);
    whole.carrier.sysctl = Can::No("containerd 2.2.1".into());
    assert!(!given(&whole, &node, &view, &able(), &policy).smc.unwrap().by_runtime);
}

#[test]
fn sysctls_are_those_that_policy_allows_and_the_kernel_has() {
    let (node, view) = (machine(), pod("ipvlan", Some(7), &["10.1.0.9/24"]));
    let mut asks = asks(SmcMethod::Bpf);
    asks.smc_sysctls = [("wmem".to_owned(), 262_144)].into();
    let smc = given(&asks, &node, &view, &able(), &open()).smc.unwrap();
    assert_eq!(smc.sysctls, [("net.smc.wmem".to_owned(), "262144".to_owned())]);
    let closed = denied(&asks, &node, &view, &able(), &Policy::default());
    assert!(
        closed.contains(
            "policy does not let it set net.smc.wmem (config.toml, [default] smc_sysctls: none)"
        ),
        "{closed}"
    );
    asks.smc_sysctls = [("rmem".to_owned(), 262_144)].into();
    let old = denied(&asks, &node, &view, &able(), &open());
    assert!(old.contains("this kernel has no net.smc.rmem (it has: smcr_buf_type, wmem)"), "{old}");
    let mut host = on_host(SmcMethod::Bpf);
    host.smc_sysctls = [("wmem".to_owned(), 262_144)].into();
    let shared = denied(&host, &node, &PodView::Host, &able(), &open());
    assert!(shared.contains("which is never changed"), "{shared}");
}

#[test]
fn policy_chooses_methods_and_key() {
    let (node, mut policy) = (machine(), Policy::default());
    policy.default.smc = [SmcMethod::Preload].into();
    let denied_bpf = denied(&on_host(SmcMethod::Bpf), &node, &PodView::Host, &able(), &policy);
    assert!(
        denied_bpf.ends_with("policy does not allow it (config.toml, [default] smc: preload)"),
        "{denied_bpf}"
    );
    policy.default.keys = [Key::Devices].into();
    let key = denied(&on_host(SmcMethod::Bpf), &node, &PodView::Host, &able(), &policy);
    assert!(key.contains("policy does not let namespace team-a use this key"), "{key}");
}

#[test]
fn c96_what_would_always_fall_back_is_refused_in_words() {
    let policy = Policy::default();
    let bare = Policy {
        smc: crate::policy::Smc { eid: String::new(), ..Default::default() },
        ..Policy::default()
    };
    let of = |hcas: Vec<Hca>| node(hcas);
    let v1 = "0 v1 ::ffff:10.1.0.5 eth1";
    let six = "0 v2 fd93::12 eth1";
    let mut iwarp = roce("erdma_0", 0, "eth1", v1);
    iwarp.node_type = NodeType::Rnic;
    let mut down = roce("mlx5_0", 0, "eth1", v1);
    down.ports[0].state = PortState::Down;
    for (node, policy, said) in [
        (of(vec![]), &policy, "this node has no RDMA adapter"),
        (of(vec![iwarp]), &policy, "erdma_0 is of node type RNIC (iWARP)"),
        (of(vec![infiniband("mlx5_0", 0)]), &policy, "mlx5_0 has no ACTIVE port on Ethernet"),
        (of(vec![down]), &policy, "mlx5_0 has no ACTIVE port on Ethernet"),
        (of(vec![efa("rdmap0", 0)]), &policy, "rdmap0 is of another node type than CA"),
        (
            of(vec![roce("mlx5_0", 0, "eth1", six)]),
            &policy,
            "no RoCE v1 GID and no RoCE v2 GID of an",
        ),
        (machine(), &bare, "policy sets none: [smc] eid"),
    ] {
        let sentence = denied(&on_host(SmcMethod::Bpf), &node, &PodView::Host, &mainline(), policy);
        assert!(sentence.contains(said), "{sentence}");
    }
    // Another's EID does as well.
    let theirs = SmcFacts { eids: ["SITE-1".to_owned()].into(), ..mainline() };
    let grant = given(&on_host(SmcMethod::Bpf), &machine(), &PodView::Host, &theirs, &bare);
    assert_eq!(grant.smc.unwrap().eid, None);
    // Version 1 and a mask of /32.
    let old = of(vec![roce("mlx5_0", 0, "eth1", v1)]);
    let view = network(&old, [interface("eth0", "ipvlan", &["10.1.0.9/32"])]);
    let alone = denied(&asks(SmcMethod::Bpf), &old, &view, &mainline(), &bare);
    assert!(alone.contains("10.1.0.9/32: without a RoCE v2 GID"), "{alone}");
}

#[test]
fn a_host_in_exclusive_mode_needs_the_adapter_in_the_pod() {
    let mut node = machine();
    node.netns_mode = NetnsMode::Exclusive;
    let view = pod("ipvlan", Some(7), &["10.1.0.9/24"]);
    let refused = denied(&asks(SmcMethod::Bpf), &node, &view, &mainline(), &Policy::default());
    assert!(refused.contains("the host is in exclusive mode"), "{refused}");
    let PodView::Ready(mut network) = view else { panic!() };
    network.hcas = vec!["mlx5_0".into()];
    let view = PodView::Ready(network);
    given(&asks(SmcMethod::Bpf), &node, &view, &mainline(), &Policy::default());
}

#[test]
fn a_name_is_given_only_where_the_kernel_needs_and_can_use_it() {
    let (node, policy) = (machine(), Policy::default());
    let asks = asks(SmcMethod::Bpf);
    // On the adapter's own interface the kernel finds it.
    for kind in ["ipvlan", "macvlan", "vlan"] {
        let view = pod(kind, Some(7), &["10.9.0.9/24"]);
        assert_eq!(
            given(&asks, &node, &view, &mainline(), &policy).smc.unwrap().pnet,
            [],
            "{kind}"
        );
    }
    let other =
        denied(&asks, &node, &pod("ipvlan", Some(3), &["10.9.0.9/24"]), &mainline(), &policy);
    assert!(other.contains("it does not lie on the interface of an adapter"), "{other}");
    // A veth whose address lies in the adapter's subnet.
    let near = pod("veth", Some(12), &["10.1.0.77/24"]);
    let pnet = given(&asks, &node, &near, &mainline(), &policy).smc.unwrap().pnet;
    let [PnetGrant { name, adapter, port: 1, interface }] = &pnet[..] else { panic!("{pnet:?}") };
    assert_eq!((adapter.as_str(), interface.as_str()), ("mlx5_0", "eth0"));
    assert!(name.starts_with("RCTK") && name.len() == 16, "{name}");
    assert!(name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()), "{name}");
    // One that the adapter has already.
    let named = SmcFacts {
        pnet: [(SmcFacts::port("mlx5_0", 1), "00163E0A0B0C".to_owned())].into(),
        ..mainline()
    };
    let pnet = given(&asks, &node, &near, &named, &policy).smc.unwrap().pnet;
    assert_eq!(pnet[0].name, "00163E0A0B0C");
    // One whose address does not.
    let far =
        denied(&asks, &node, &pod("veth", Some(12), &["10.244.1.2/24"]), &mainline(), &policy);
    assert!(
        far.contains("eth0 10.244.1.2/24: a veth, whose address lies in no adapter's subnet"),
        "{far}"
    );
    let pending = PodView::Pending { reason: "reading it takes longer".into() };
    let unknown = denied(&asks, &node, &pending, &mainline(), &policy);
    assert!(unknown.contains("the pod's network is not known: reading it takes"), "{unknown}");
}

#[test]
fn ipv6_and_reserved_ports_are_said() {
    let policy = open();
    let six = pod("ipvlan", Some(7), &["10.1.0.9/24", "fd00::9/64"]);
    let grant = given(&asks(SmcMethod::Bpf), &machine(), &six, &mainline(), &policy);
    warned(&grant, "IPv6 sockets stay on TCP");
    let mut erdma = roce("erdma_0", 0, "eth1", "0 v1 ::ffff:10.1.0.5 eth1");
    erdma.node_type = NodeType::Rnic;
    let mut node = node([erdma]);
    node.interfaces = machine().interfaces;
    let view = pod("ipvlan", Some(7), &["10.1.0.9/24"]);
    let grant = given(&asks(SmcMethod::Tcp2smc), &node, &view, &able(), &policy);
    warned(&grant, "TCP ports 65500 to 65515 are eRDMA's");
}

#[test]
fn preload_extends_the_variable_and_binds_the_library_to_be_run() {
    let mut asks = on_host(SmcMethod::Preload);
    let library = crate::grant::LIBRARY;
    for (before, after) in [
        (None, library.to_owned()),
        (Some(""), library.to_owned()),
        (Some("/opt/a.so"), format!("/opt/a.so:{library}")),
    ] {
        asks.container.env =
            before.map(|value| ("LD_PRELOAD".to_owned(), value.to_owned())).into_iter().collect();
        let grant = given(&asks, &machine(), &PodView::Host, &able(), &open());
        assert_eq!(variable(&grant, "LD_PRELOAD"), Some(after.as_str()));
        let [mount] = &grant.mounts[..] else { panic!("{:?}", grant.mounts) };
        assert!(mount.executable && mount.source == "/usr/lib64/libsmc-preload.so");
        warned(&grant, "linked to glibc");
    }
}

#[test]
fn a_kernel_of_its_own_and_other_paths_are_refused() {
    let (node, policy) = (machine(), Policy::default());
    let mut sandboxed = on_host(SmcMethod::Bpf);
    sandboxed.container.pod.runtime_handler = "runsc".into();
    let refused = denied(&sandboxed, &node, &PodView::Host, &mainline(), &policy);
    assert!(refused.contains("sockets of a kernel of its own cannot be turned"), "{refused}");
    let mut listed = on_host(SmcMethod::Bpf);
    listed.carrier.path = CarrierPath::Cdi;
    listed.carrier.name = "the CDI file".into();
    let refused = denied(&listed, &node, &PodView::Host, &mainline(), &policy);
    assert!(refused.contains("the CDI file does not serve SMC-R"), "{refused}");
}

#[test]
fn where_the_network_is_made_later_the_rest_is_decided_before() {
    let (node, policy) = (machine(), Policy::default());
    let pending = PodView::Pending { reason: "its network namespace is made after this".into() };
    for path in [CarrierPath::Wrapper, CarrierPath::Hook] {
        let mut wrapped = asks(SmcMethod::Bpf);
        wrapped.carrier.path = path;
        let smc = given(&wrapped, &node, &pending, &mainline(), &policy).smc.unwrap();
        assert_eq!((smc.method, smc.later, smc.pnet.len()), (SmcMethod::Bpf, true, 0));
        // And once it is there.
        let near = pod("veth", Some(12), &["10.1.0.77/24"]);
        let smc = given(&wrapped, &node, &near, &mainline(), &policy).smc.unwrap();
        assert_eq!((smc.later, smc.pnet.len()), (false, 1));
        let far = pod("veth", Some(12), &["10.244.1.2/24"]);
        let refused = denied(&wrapped, &node, &far, &mainline(), &policy);
        assert!(refused.contains("a veth, whose address lies in no adapter's subnet"), "{refused}");
        // What does not hang on the network is refused at once.
        let nothing = denied(&wrapped, &node, &pending, &SmcFacts::default(), &policy);
        assert!(nothing.contains("no smc module"), "{nothing}");
    }
}

#[test]
fn mptcp_is_turned_where_policy_says() {
    let mut policy = Policy::default();
    policy.smc.mptcp = true;
    let grant = given(&on_host(SmcMethod::Bpf), &machine(), &PodView::Host, &mainline(), &policy);
    assert!(grant.smc.unwrap().mptcp);
}
