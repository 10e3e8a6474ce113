//! What holds for every decision, on [inputs] made at random.

mod pools;

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;

use super::{Grant, Outcome};
use crate::inventory::*;
use crate::policy::Claims;
use crate::request::*;
pub use pools::{Inputs, inputs};
use pools::{NAMES, hca};

fn unique<T: Ord>(items: impl IntoIterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

fn addresses(interfaces: &[Interface]) -> BTreeSet<IpAddr> {
    interfaces.iter().flat_map(|i| &i.addresses).map(|(address, _)| *address).collect()
}

/// A grant without what is said about it.
fn silent(outcome: Outcome) -> Option<Grant> {
    match outcome {
        Outcome::Granted(grant) => {
            Some(Grant { reasons: Vec::new(), warnings: Vec::new(), ..*grant })
        }
        _ => None,
    }
}

/// Fewer cases than usual, since each is a whole node; `PROPTEST_CASES` sets another number.
fn config() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES");
    asked.map_or_else(|| ProptestConfig::with_cases(96), |_| ProptestConfig::default())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_same_inputs_get_the_same_outcome(inputs in inputs()) {
        prop_assert_eq!(inputs.decide(), inputs.clone().decide());
    }

    #[test]
    fn a_grant_never_exceeds_the_policy(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { request, node, policy, .. } = &inputs;
        let allowance = policy.allowance(&request.container.pod);
        let hcas: Vec<&Hca> =
            grant.adapters.iter().map(|adapter| node.hca(&adapter.name).unwrap()).collect();
        for hca in &hcas {
            prop_assert!(allowance.permits(hca), "{}", hca.name);
        }
        for device in &grant.devices {
            let is = |found: Option<&CharDev>| found.is_some_and(|found| {
                found.path() == device.path
                    && (found.major, found.minor) == (device.major, device.minor)
            });
            let ports = || hcas.iter().flat_map(|hca| &hca.ports);
            let kind = if is(node.rdma_cm.as_ref()) {
                NodeKind::RdmaCm
            } else if hcas.iter().any(|hca| is(hca.uverbs.as_ref())) {
                NodeKind::Uverbs
            } else if ports().any(|port| is(port.umad.as_ref())) {
                NodeKind::Umad
            } else {
                prop_assert!(ports().any(|port| is(port.issm.as_ref())), "{:?}", device);
                NodeKind::Issm
            };
            prop_assert!(allowance.nodes.contains(&kind) && request.nodes.contains(&kind));
        }
        if let Some(limit) = grant.memlock {
            prop_assert!(allowance.memlock_max.is_none_or(|most| limit.bytes <= most));
            prop_assert!(request.carrier.memlock_ceiling.is_none_or(|most| limit.bytes <= most));
            if let Limit::Own(present) | Limit::Inherited(Some(present)) = request.container.memlock
            {
                prop_assert!(limit.bytes > present);
            }
            prop_assert_eq!(&request.carrier.rlimits, &Can::Yes);
        }
        for capability in &grant.capabilities {
            prop_assert!(allowance.capabilities.contains(capability));
            prop_assert!(request.capabilities.contains(capability));
        }
        if !grant.unified.is_empty() {
            prop_assert!(allowance.keys.contains(&Key::Limits));
        }
        if request.devices.is_some() {
            prop_assert!(allowance.keys.contains(&Key::Devices));
        }
    }

    #[test]
    fn nothing_that_is_there_is_set_again(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let container = &inputs.request.container;
        prop_assert!(unique(grant.env.iter().map(|variable| &variable.name)));
        for variable in &grant.env {
            // The one variable that is a list, to which something is added.
            let list = variable.name == "LD_PRELOAD";
            prop_assert!(list || container.env.iter().all(|(name, _)| *name != variable.name));
        }
        prop_assert!(unique(grant.devices.iter().map(|device| &device.path)));
        for device in &grant.devices {
            prop_assert!(container.devices.iter().all(|present| present.path != device.path));
        }
        let files = grant.files.iter().map(|file| &file.path);
        let destinations: Vec<&String> =
            files.chain(grant.mounts.iter().map(|mount| &mount.destination)).collect();
        prop_assert!(unique(&destinations));
        for destination in destinations {
            prop_assert!(container.mounts.iter().all(|mount| mount.destination != *destination));
        }
        prop_assert!(unique(grant.adapters.iter().map(|adapter| &adapter.name)));
    }

    #[test]
    fn cpus_are_only_narrowed(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { request, node, .. } = &inputs;
        let container = &request.container;
        if let Some(cpus) = &grant.cpus {
            let given = container.cpus.as_ref().or(container.parent_cpus.as_ref());
            prop_assert!(cpus.is_subset(given.unwrap_or(&node.online)));
            prop_assert!(!cpus.is_empty() && cpus.intersection(&node.isolated).is_empty());
            prop_assert!(grant.near.as_ref().is_some_and(|near| cpus.is_subset(near)));
            prop_assert!(container.cpus_owned.is_none());
            let room = 1000 * cpus.len() as u64;
            prop_assert!(container.cpu_limit_milli.is_none_or(|limit| limit <= room));
        }
        if let Some(mems) = &grant.mems {
            prop_assert_eq!(request.numa, NumaMode::Strict);
            prop_assert!(!mems.is_empty());
            prop_assert!(container.mems.as_ref().is_none_or(|given| mems.is_subset(given)));
        }
    }

    #[test]
    fn a_gid_is_never_another_pods(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { node, pod, .. } = &inputs;
        let own = match pod {
            PodView::Ready(network) => addresses(&network.interfaces),
            _ => BTreeSet::new(),
        };
        let host = addresses(&node.interfaces);
        for adapter in &grant.adapters {
            for gid in &adapter.gids {
                prop_assert!(own.contains(&gid.address) || host.contains(&gid.address));
                let port = node.hca(&adapter.name).unwrap();
                let port = port.ports.iter().find(|port| port.number == gid.port).unwrap();
                let read = match pod {
                    PodView::Ready(network) => network.gids(&adapter.name, gid.port),
                    _ => &[],
                };
                let table = if read.is_empty() { &port.gids } else { read };
                prop_assert!(table.iter().any(|entry| entry.index == gid.index
                    && entry.address() == gid.address
                    && entry.kind == Some(GidKind::V2)));
            }
        }
    }

    #[test]
    fn a_claim_is_never_refused_and_gets_nothing_more(inputs in inputs()) {
        let mut inputs = inputs;
        inputs.request.devices = None;
        inputs.request.smc = SmcMethod::Off;
        match (inputs.decide(), &inputs.request.claim) {
            (Outcome::NotAsked, None) | (Outcome::LeftAlone { .. }, Some(_)) => {}
            (Outcome::Granted(grant), Some(claim)) => {
                prop_assert_eq!(&grant.devices, &[]);
                prop_assert!(grant.capabilities.is_empty() && grant.unified.is_empty());
                for adapter in &grant.adapters {
                    let node = inputs.node.hca(&adapter.name).unwrap().uverbs.as_ref();
                    let held = node.is_some_and(|n| claim.uverbs.contains(&(n.major, n.minor)));
                    prop_assert!(held || claim.names.contains(&adapter.name));
                }
                if inputs.policy.claims == Claims::Limit {
                    prop_assert!(grant.env.is_empty() && grant.files.is_empty());
                    prop_assert!(grant.mounts.is_empty());
                    prop_assert!(grant.cpus.is_none() && grant.near.is_none());
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn an_unrelated_hca_changes_nothing_for_a_name(
        inputs in inputs(),
        name in select(&NAMES[..]),
        stranger in hca(9, "stranger0"),
        place in 0_usize..7,
    ) {
        let mut inputs = inputs;
        inputs.request.devices = Some(Devices::Select(vec![Selector::Name(name.into())]));
        // SMC-R goes by whichever adapter there is.
        inputs.request.smc = SmcMethod::Off;
        let before = inputs.decide();
        let place = place.min(inputs.node.hcas.len());
        inputs.node.hcas.insert(place, stranger);
        let after = inputs.decide();
        prop_assert_eq!(
            std::mem::discriminant(&before), std::mem::discriminant(&after), "{:?}", after
        );
        prop_assert_eq!(silent(before), silent(after));
    }

    #[test]
    fn a_sentence_is_one_line_and_names_its_key(inputs in inputs()) {
        let (Outcome::Refused(refusal) | Outcome::Waived(refusal)) = inputs.decide() else {
            return Ok(());
        };
        prop_assert!(!refusal.sentence.contains(is_unprintable), "{}", refusal.sentence);
        prop_assert!(refusal.sentence.contains(".rdma-ctk.io"), "{}", refusal.sentence);
    }
}

/// A property says nothing of what its inputs never reach.
#[test]
fn the_pools_reach_every_corner() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::collections::BTreeMap;

    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..1200 {
        let inputs = inputs().new_tree(&mut runner).unwrap().current();
        let corners: &[(&str, bool)] = match &inputs.decide() {
            Outcome::NotAsked => &[("not asked", true)],
            Outcome::LeftAlone { .. } => &[("left alone", true)],
            Outcome::Refused(_) => &[("refused", true)],
            Outcome::Waived(_) => &[("waived", true)],
            Outcome::Granted(grant) => &[
                ("granted", true),
                ("claimed", inputs.request.devices.is_none()),
                ("several adapters", grant.adapters.len() > 1),
                ("nodes", !grant.devices.is_empty()),
                ("a rule", grant.devices.iter().any(|device| device.rule_only)),
                ("a limit", grant.memlock.is_some()),
                ("cpus", grant.cpus.is_some()),
                ("mems", grant.mems.is_some()),
                ("a gid", grant.adapters.iter().any(|adapter| !adapter.gids.is_empty())),
                ("no use", grant.adapters.iter().any(|adapter| !adapter.usable)),
                ("variables", !grant.env.is_empty()),
                ("files", !grant.files.is_empty()),
                ("mounts", !grant.mounts.is_empty()),
                ("cgroup limits", !grant.unified.is_empty()),
                ("capabilities", !grant.capabilities.is_empty()),
                ("smc", grant.smc.is_some()),
            ],
        };
        for (corner, reached) in corners {
            *seen.entry(corner).or_default() += u32::from(*reached);
        }
    }
    assert!(seen.len() == 20 && seen.values().all(|count| *count > 1), "{seen:?}");
}
