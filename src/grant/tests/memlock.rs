use super::machines::*;
use crate::grant::{MemlockGrant, Notes, Reason};
use crate::inventory::PodView;
use crate::policy::Policy;
use crate::request::*;

const MIB: u64 = 1 << 20;

#[test]
fn the_limit_is_raised_and_never_lowered() {
    let node = node([infiniband("mlx5_0", 0)]);
    let all = u64::MAX;
    for (wanted, present, set) in [
        (Memlock::Unlimited, Limit::Invisible, Some(all)),
        (Memlock::Unlimited, Limit::Inherited(None), Some(all)),
        (Memlock::Unlimited, Limit::Inherited(Some(8 * MIB)), Some(all)),
        (Memlock::Unlimited, Limit::Inherited(Some(all)), None),
        (Memlock::Unlimited, Limit::Own(64 << 10), Some(all)),
        (Memlock::Unlimited, Limit::Own(all), None),
        (Memlock::Bytes(64 * MIB), Limit::Invisible, Some(64 * MIB)),
        (Memlock::Bytes(64 * MIB), Limit::Own(64 * MIB), None),
        (Memlock::Bytes(64 * MIB), Limit::Own(65 * MIB), None),
        (Memlock::Bytes(64 * MIB), Limit::Own(63 * MIB), Some(64 * MIB)),
        (Memlock::Bytes(64 * MIB), Limit::Inherited(Some(all)), None),
    ] {
        let mut request = request("mlx5_0");
        request.memlock = wanted;
        request.container.memlock = present;
        let grant = grant(&request, &node, &PodView::Host);
        let expected = set.map(|bytes| MemlockGrant { bytes, higher_hard: None });
        assert_eq!(grant.memlock, expected, "{wanted:?} {present:?}");
        let unsure = set.is_some_and(|bytes| bytes != all)
            && matches!(present, Limit::Invisible | Limit::Inherited(None));
        let warned = grant.warnings.iter().any(|warning| warning.contains("may have been higher"));
        assert_eq!(warned, unsure, "{wanted:?} {present:?}");
    }
}

#[test]
fn a_higher_hard_limit_stays() {
    let node = node([infiniband("mlx5_0", 0)]);
    for (soft, hard, expected) in [
        (64 << 10, Some(u64::MAX), Some(u64::MAX)),
        (64 << 10, Some(64 * MIB), None),
        (64 << 10, Some(64 << 10), None),
        (64 << 10, None, None),
    ] {
        let mut request = request("mlx5_0");
        request.memlock = Memlock::Bytes(64 * MIB);
        request.container.memlock = Limit::Own(soft);
        request.container.memlock_hard = hard;
        let grant = grant(&request, &node, &PodView::Host).memlock.unwrap();
        assert_eq!((grant.bytes, grant.higher_hard), (64 * MIB, expected), "{soft} {hard:?}");
        assert_eq!(grant.hard(), expected.unwrap_or(64 * MIB));
    }
}

#[test]
fn c01_ipc_lock_of_another_user_is_inert() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.container.uid = Some(1000);
    request.container.capabilities = Some(["IPC_LOCK".to_owned()].into());
    request.container.memlock = Limit::Inherited(Some(8 * MIB));
    let grant = grant(&request, &node, &PodView::Host);
    assert_eq!(grant.memlock, Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }));
    let said = "IPC_LOCK is not effective for uid 1000; memlock limit raised instead";
    assert!(grant.reasons.iter().any(|reason| reason.text == said), "{:#?}", grant.reasons);
}

#[test]
fn c02_policy_has_a_ceiling() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut policy = Policy::default();
    policy.default.memlock_max = Some(68_719_476_736);
    let mut request = request("mlx5_0");
    let grant = grant_under(&request, &node, &PodView::Host, &policy);
    assert_eq!(grant.memlock, Some(MemlockGrant { bytes: 68_719_476_736, higher_hard: None }));

    request.memlock = Memlock::Bytes(1 << 40);
    typed(&mut request, Key::Memlock, "1Ti");
    assert_eq!(
        refusal_under(&request, &node, &PodView::Host, &policy),
        "memlock.rdma-ctk.io=1Ti: policy allows at most 64 GiB (config.toml, [default] memlock_max)"
    );
}

#[test]
fn c67_a_limit_set_by_another_plugin_stays() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.container.memlock = Limit::Own(u64::MAX);
    assert_eq!(grant(&request, &node, &PodView::Host).memlock, None);
}

#[test]
fn c89_ipc_lock_does_not_count_in_a_user_namespace() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.container.uid = Some(0);
    request.container.user_namespace = true;
    request.container.capabilities = Some(["IPC_LOCK".to_owned()].into());
    let grant = grant(&request, &node, &PodView::Host);
    assert_eq!(grant.memlock, Some(MemlockGrant { bytes: u64::MAX, higher_hard: None }));
    let said = "IPC_LOCK has no effect in a user namespace";
    assert!(grant.reasons.iter().any(|reason| reason.text.contains(said)), "{:#?}", grant.reasons);
}

#[test]
fn without_cap_sys_resource_the_limit_is_clamped() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.carrier.memlock_ceiling = Some(8 * MIB);
    request.container.memlock = Limit::Inherited(Some(64 << 10));
    let grant = grant(&request, &node, &PodView::Host);
    assert_eq!(grant.memlock, Some(MemlockGrant { bytes: 8 * MIB, higher_hard: None }));
    warned(&grant, "cannot raise the memlock limit above 8 MiB; unlimited was wanted");

    request.container.memlock = Limit::Inherited(Some(8 * MIB));
    assert_eq!(super::machines::grant(&request, &node, &PodView::Host).memlock, None);
}

#[test]
fn a_runtime_without_rlimits_is_named() {
    let node = node([infiniband("mlx5_0", 0)]);
    let mut request = request("mlx5_0");
    request.carrier.rlimits = Can::No("containerd 1.7.7 or newer has it".into());
    let sentence = refusal(&request, &node, &PodView::Host);
    assert!(sentence.ends_with("containerd 1.7.7 or newer has it"), "{sentence}");
    request.container.memlock = Limit::Inherited(Some(u64::MAX));
    assert_eq!(grant(&request, &node, &PodView::Host).memlock, None);
}

#[test]
fn a_warning_is_a_reason_too() {
    let mut notes = Notes::default();
    notes.warn("memlock", "w");
    assert_eq!(notes.warnings, ["w"]);
    assert_eq!(notes.reasons, [Reason { about: "memlock".into(), text: "w".into() }]);
}
