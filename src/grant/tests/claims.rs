use super::machines::*;
use crate::grant::{Inventory, MemlockGrant, Outcome, decide};
use crate::inventory::*;
use crate::policy::{Claims, Policy};
use crate::request::*;

fn claim(names: &[&str]) -> Request {
    let mut request = nothing();
    request.claim = Some(Claim {
        by: "the device plugin of rdma/hca".into(),
        uverbs: [].into(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    });
    request
}

fn under(claims: Claims) -> Policy {
    Policy { claims, ..Policy::default() }
}

#[test]
fn a_claim_gets_the_limit_and_no_adapter_more() {
    let mut node =
        node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1), infiniband("mlx5_2", 2)]);
    node.hcas[1].numa = Some(1);
    node.hcas[1].local_cpus = cpus("32-63");
    let mut asks = claim(&["mlx5_1"]);
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(names(&granted), ["mlx5_1"]);
    assert_eq!(granted.memlock, Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }));
    assert_eq!((granted.devices.len(), granted.env.len(), granted.cpus), (0, 0, None));
    assert_eq!((granted.near, granted.files.len(), granted.mounts.len()), (None, 0, 0));

    let granted = grant_under(&asks, &node, &PodView::Host, &under(Claims::Full));
    assert_eq!(names(&granted), ["mlx5_1"]);
    assert_eq!(granted.devices, []);
    assert_eq!(variable(&granted, "NCCL_IB_HCA"), Some("=mlx5_1:1"));
    assert_eq!(granted.cpus, Some(cpus("32-63")));

    // By the numbers of its nodes, or by PCI address.
    asks.claim.as_mut().unwrap().names = ["0000:12:00.0".to_owned()].into();
    asks.claim.as_mut().unwrap().uverbs = [(231, 192)].into();
    assert_eq!(names(&grant(&asks, &node, &PodView::Host)), ["mlx5_0", "mlx5_2"]);

    let inventory = Inventory::of(&node, &PodView::Host);
    let off = decide(&asks, &inventory, &under(Claims::Off));
    assert!(matches!(off, Outcome::LeftAlone { .. }), "{off:?}");
}

#[test]
fn a_claim_is_warned_and_never_refused() {
    let node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let mut asks = claim(&["mlx5_0", "mlx5_1"]);
    asks.numa = NumaMode::Strict;
    asks.require = [Requirement::Gid].into();
    asks.memlock = Memlock::Bytes(1 << 40);
    asks.capabilities = ["IPC_LOCK".to_owned()].into();
    for (key, value) in
        [(Key::Numa, "strict"), (Key::Memlock, "1Ti"), (Key::Capabilities, "IPC_LOCK")]
    {
        typed(&mut asks, key, value);
    }
    let mut policy = under(Claims::Limit);
    policy.default.memlock_max = Some(1 << 30);
    policy.default.adapters = ["mlx5_1".to_owned()].into();
    let granted = grant_under(&asks, &node, &PodView::Host, &policy);
    assert_eq!(names(&granted), ["mlx5_1"]);
    assert_eq!(granted.memlock, Some(MemlockGrant { bytes: 1 << 30, higher_hard: None }));
    assert_eq!(granted.capabilities, [""; 0]);
    warned(&granted, "holds mlx5_0 by the device plugin of rdma/hca, which policy does not give");
    warned(&granted, "numa.rdma-ctk.io=strict: policy gives only the memlock limit");
    warned(&granted, "capabilities.rdma-ctk.io=IPC_LOCK: has no effect");

    asks.carrier.rlimits = Can::No("containerd 1.7.7 has it".into());
    let granted = grant_under(&asks, &node, &PodView::Host, &policy);
    assert_eq!(granted.memlock, None);
    warned(&granted, "containerd 1.7.7 has it");

    for (request, policy) in [
        (claim(&["mlx5_7"]), Policy::default()),
        (claim(&["mlx5_0"]), {
            let mut policy = Policy::default();
            policy.default.adapters.clear();
            policy
        }),
    ] {
        let outcome = decide(&request, &Inventory::of(&node, &PodView::Host), &policy);
        assert!(matches!(outcome, Outcome::LeftAlone { .. }), "{outcome:?}");
    }
    let mut kata = claim(&["mlx5_0"]);
    kata.container.pod.runtime_handler = "kata".into();
    let left = outcome(&kata, &node, &PodView::Host);
    assert!(matches!(left, Outcome::LeftAlone { .. }), "{left:?}");
}

#[test]
fn a_key_goes_before_a_claim() {
    let node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let mut asks = request("mlx5_0");
    asks.claim = claim(&["mlx5_1"]).claim;
    let granted = grant(&asks, &node, &PodView::Host);
    assert_eq!(names(&granted), ["mlx5_0"]);
    let said = "held by the device plugin of rdma/hca already: mlx5_1";
    assert!(granted.reasons.iter().any(|reason| reason.text == said), "{:#?}", granted.reasons);
    asks.devices = Some(Devices::None);
    assert_eq!(outcome(&asks, &node, &PodView::Host), Outcome::NotAsked);
}

#[test]
fn limits_of_the_rdma_cgroup_are_a_line_for_each_adapter() {
    let node = node([infiniband("mlx5_0", 0), infiniband("mlx5_1", 1)]);
    let mut policy = Policy::default();
    let mut asks = request("mlx5_0");
    asks.limits = Some(Limits { hca_handle: Some(2), hca_object: Some(2000) });
    typed(&mut asks, Key::Limits, "hca_handle=2,hca_object=2000");
    let sentence = refusal_under(&asks, &node, &PodView::Host, &policy);
    assert!(sentence.contains("policy does not let namespace team-a use this key"), "{sentence}");

    policy.default.keys.insert(Key::Limits);
    let granted = grant_under(&asks, &node, &PodView::Host, &policy);
    let line = |value: &str| [("rdma.max".to_owned(), value.to_owned())];
    assert_eq!(granted.unified, line("mlx5_0 hca_handle=2 hca_object=2000"));

    asks.devices = Some(Devices::All);
    asks.limits = Some(Limits { hca_handle: None, hca_object: Some(7) });
    let granted = grant_under(&asks, &node, &PodView::Host, &policy);
    assert_eq!(granted.unified, line("mlx5_0 hca_object=7\nmlx5_1 hca_object=7"));
    asks.carrier.unified_lines = Can::No("it needs runc 1.2".into());
    let sentence = refusal_under(&asks, &node, &PodView::Host, &policy);
    assert!(sentence.ends_with("cannot limit 2 adapters (mlx5_0, mlx5_1): it needs runc 1.2"));
    asks.carrier.unified = Can::No("there is no rdma controller".into());
    let sentence = refusal_under(&asks, &node, &PodView::Host, &policy);
    assert!(sentence.ends_with("cannot set rdma.max: there is no rdma controller"), "{sentence}");
}

#[test]
fn gpudirect_is_required_by_word() {
    let mut node = node([infiniband("mlx5_0", 0)]);
    let mut asks = request("all");
    asks.require = [Requirement::Gpudirect].into();
    assert!(refusal(&asks, &node, &PodView::Host).ends_with("this node has no GPU"));
    node.gpus.push(Gpu {
        pci: pci("0000:1b:00.0"),
        vendor: 0x10de,
        numa: None,
        minor: Some(0),
        uuid: None,
    });
    assert!(refusal(&asks, &node, &PodView::Host).contains("load nvidia_peermem"));
    node.gpudirect.push("nvidia_peermem".into());
    assert_eq!(names(&grant(&asks, &node, &PodView::Host)), ["mlx5_0"]);
}
