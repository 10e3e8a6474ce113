//! Reading the node in part leads to the decision that reading all of it leads to.

use std::collections::{BTreeMap, BTreeSet};

use super::rig::Rig;
use crate::grant::{Inventory, Outcome, decide};
use crate::inventory::{Focus, NetlinkView, PodView, part, snapshot};
use crate::oci::container::Network;
use crate::oci::survey::{Case, survey_by};
use crate::policy::Policy;
use crate::request::{Carrier, CarrierPath, Container, Pod, Request};

const MACHINES: [&str; 12] = [
    "efa-nvlink",
    "efa-p5",
    "erdma-iwarp",
    "erdma-roce",
    "flat-vm",
    "gpu-infiniband",
    "gpu-roce",
    "irdma",
    "mana",
    "many-hcas",
    "roce-sriov",
    "soft-roce",
];

fn container(host_network: bool, env: &[(&str, &str)]) -> Container {
    Container {
        id: "c1".into(),
        name: "main".into(),
        pod: Pod { uid: "u".into(), host_network, ..Pod::default() },
        env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..Container::default()
    }
}

/// What is granted or why not, without what is said on the way.
fn essence(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(grant) => {
            let grant = crate::grant::Grant { reasons: Vec::new(), ..(**grant).clone() };
            format!("{} {grant:?}", grant.digest())
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_node_that_is_read_in_part_leads_to_the_same_decision() {
    let mut granted = 0;
    for machine in MACHINES {
        let rig = Rig::new(machine);
        let whole = snapshot(&rig.roots, None);
        // As rtnetlink would tell them.
        let view =
            NetlinkView { interfaces: Some(whole.interfaces.clone()), ..NetlinkView::default() };
        let none = NetlinkView::default();
        let read = |focus: &Focus| {
            part(&rig.roots, Some(if focus.interfaces { &view } else { &none }), focus)
        };
        let whole = read(&Focus::EVERYTHING);
        let first = whole.hcas.first().map_or("x", |hca| hca.name.as_str()).to_owned();
        let last = whole.hcas.last().map_or("x", |hca| hca.name.as_str()).to_owned();
        let requests = [
            ("devices", "all".to_owned()),
            ("devices", "1".to_owned()),
            ("devices", "2".to_owned()),
            ("devices", "999".to_owned()),
            ("devices", first.clone()),
            ("devices", format!("{last},{first}")),
            ("devices", format!("{first},nothing_9")),
            ("devices", "gpu".to_owned()),
            ("devices", "rail:0".to_owned()),
            ("devices", "link:roce".to_owned()),
            ("devices", "*_0".to_owned()),
            ("devices", "none".to_owned()),
            ("memlock", "1Gi".to_owned()),
        ];
        for ((key, value), host, gpus) in requests.iter().flat_map(|request| {
            [(request, true, false), (request, false, false), (request, true, true)]
        }) {
            let annotations = BTreeMap::from([(format!("{key}.rdma-ctk.io"), value.clone())]);
            let env = if gpus { &[("NVIDIA_VISIBLE_DEVICES", "all")][..] } else { &[] };
            let container = container(host, env);
            let carrier = Carrier { path: CarrierPath::Wrapper, ..Carrier::default() };
            let policy = Policy::default();
            let (network, pod) = if host {
                (Network::Host, PodView::Host)
            } else {
                let reason = "its network namespace is made after this".to_owned();
                (Network::Later, PodView::Pending { reason })
            };
            let mut case = Case {
                roots: &rig.roots,
                policy: &policy,
                annotations: &annotations,
                container: container.clone(),
                carrier: carrier.clone(),
                network,
                group: "",
            };
            let staged = survey_by(&mut case, &read);
            let request = Request::read(&annotations, container, carrier, &policy, &whole);
            let what = format!("{machine} {key}={value} host={host} gpus={gpus}");
            match (staged, request) {
                (Ok(staged), Ok(request)) => {
                    let inventory = Inventory::of(&whole, &pod);
                    let expected = decide(&request, &inventory, &policy);
                    granted += usize::from(matches!(expected, Outcome::Granted(_)));
                    assert_eq!(essence(&staged.outcome), essence(&expected), "{what}");
                }
                (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string(), "{what}"),
                (staged, request) => panic!("{what}: {staged:?} {request:?}"),
            }
        }
    }
    assert!(granted > 150, "{granted}");
}

#[test]
fn only_the_adapters_that_are_named_are_read_and_only_granted_tables() {
    let rig = Rig::new("many-hcas");
    let whole = snapshot(&rig.roots, None);
    let named = whole.hcas[3].name.clone();
    let annotations = BTreeMap::from([("devices.rdma-ctk.io".to_owned(), named.clone())]);
    let policy = Policy::default();
    let mut case = Case {
        roots: &rig.roots,
        policy: &policy,
        annotations: &annotations,
        container: container(true, &[]),
        carrier: Carrier { path: CarrierPath::Wrapper, ..Carrier::default() },
        network: Network::Host,
        group: "",
    };
    let view = NetlinkView { interfaces: Some(whole.interfaces.clone()), ..NetlinkView::default() };
    let read = survey_by(&mut case, &|focus| part(&rig.roots, Some(&view), focus)).unwrap();
    let names: Vec<&String> = read.node.hcas.iter().map(|hca| &hca.name).collect();
    assert_eq!(names, [&named]);
    assert_eq!(read.node.unread.len(), whole.hcas.len() - 1);
    let Outcome::Granted(grant) = &read.outcome else { panic!("{:?}", read.outcome) };
    assert!(grant.reasons.iter().any(|reason| reason.text.contains("visible in sysfs")));

    let nothing = Focus {
        adapters: Some(BTreeSet::from([named])),
        gids: Some(BTreeSet::new()),
        gpus: false,
        pkeys: false,
        mads: false,
        numa: false,
        interfaces: false,
    };
    let bare = part(&rig.roots, None, &nothing);
    assert!(bare.gpus.is_empty());
    let ports = bare.hcas.iter().flat_map(|hca| &hca.ports);
    assert!(ports.clone().count() > 0);
    assert!(ports.into_iter().all(|port| port.gids.is_empty() && port.pkeys.is_empty()));
}
