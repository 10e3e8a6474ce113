//! Sub-interfaces of pods, from the runtime's events to the journal, in simulated namespaces.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::service::THREADS;
use super::rig::{Plan, Rig, Session, container, pod, uverbs};
use crate::inventory::{Interface, Node, PodNetwork, PodView};
use crate::netns::children::simulated::Hand;
use crate::nri::proto::{CreateContainerResponse, Event, LinuxNamespace, PodSandbox};

const POLICY: &str = "[links]\nchildren = 2\n\
    [[links.pools]]\nadapters = [\"*\"]\nrange = \"10.1.0.64/30\"\nprefix_length = 24\n\
    [default]\nnetns = [\"shared\", \"host\", \"ipvlan\"]\n\
    keys = [\"devices\", \"netns\", \"address\"]\n";
const IPVLAN: &[(&str, &str)] = &[
    ("devices.rdma-ctk.io", "mlx5_0"),
    ("netns.rdma-ctk.io", "ipvlan"),
    ("address.rdma-ctk.io", "none"),
];

/// A node whose pods see what was made in their simulated namespaces.
fn plan(hand: &Hand) -> Plan {
    let seen = hand.clone();
    let look = move |path: &Path, _: &Node| {
        let pod: u64 = path.to_str().unwrap().rsplit('-').next().unwrap().parse().unwrap();
        let world = seen.world();
        let inside = world.namespaces.get(&pod).into_iter().flatten();
        let interfaces = inside.map(|(name, child)| Interface {
            name: name.clone(),
            index: child.index.unwrap(),
            lower: Some(child.parent_index),
            kind: Some(child.kind.word().into()),
            controller: None,
            addresses: Vec::new(),
            default_route: false,
            up: true,
        });
        PodView::Ready(PodNetwork { interfaces: interfaces.collect(), ..PodNetwork::default() })
    };
    Plan {
        node: "gpu-roce",
        policy: POLICY,
        look: Some(Box::new(look)),
        ground: Some(Box::new(hand.clone())),
        ..Plan::default()
    }
}

async fn rig(hand: &Hand) -> Rig {
    rig_of(plan(hand)).await
}

async fn rig_of(plan: Plan) -> Rig {
    let rig = Rig::plan(plan);
    std::fs::create_dir_all(rig.roots.proc.join("sys/kernel/random")).unwrap();
    std::fs::write(rig.roots.proc.join("sys/kernel/random/boot_id"), "boot-0\n").unwrap();
    let now = Instant::now();
    rig.daemon.keeper.poke();
    assert!(rig.daemon.keeper.read_since(now, Duration::from_secs(20)).await);
    rig
}

async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..400 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

/// Creates a container, as the kubelet does it: again while its network is made.
async fn created(
    session: &Session,
    pod: &PodSandbox,
    id: &str,
) -> Result<CreateContainerResponse, String> {
    loop {
        match session.create(pod, &container(pod, id, "main")).await {
            Err(text) if text.contains("are being made") => {}
            Err(text) => return Err(text),
            Ok(adjust) => return Ok(CreateContainerResponse { adjust, ..Default::default() }),
        }
    }
}

fn names(hand: &Hand, pod: u64) -> Vec<String> {
    hand.world().namespaces.get(&pod).into_iter().flat_map(|room| room.keys().cloned()).collect()
}

#[tokio::test]
async fn it_is_the_pods_from_its_start_to_its_end() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("train-1", IPVLAN);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    until("it is made", || names(&hand, 1) == ["rdma0"]).await;
    for id in ["init", "main", "main-again"] {
        let answer = created(&session, &pod, id).await.unwrap();
        assert_eq!(uverbs(answer.adjust.as_ref()).len(), 1, "{id}");
    }
    assert_eq!(names(&hand, 1), ["rdma0"]);
    assert_eq!(rig.daemon.metrics.sub_interfaces.get(), 1);
    let folder = rig.roots.run.join("rdma-ctk/children");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    session.event(Event::StopPodSandbox, &pod, None).await.unwrap();
    assert!(names(&hand, 1).is_empty(), "it was waited for");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    session.event(Event::RemovePodSandbox, &pod, None).await.unwrap();
    assert_eq!(rig.daemon.metrics.sub_interfaces.get(), 0);
}

#[tokio::test]
async fn one_that_is_not_made_refuses_the_container_and_is_tried_again() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    hand.world().budget = Some(2);
    let pod = pod("train-1", IPVLAN);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    until("it was tried", || hand.world().budget.is_none()).await;
    until("nothing is left", || names(&hand, 1).is_empty()).await;
    let mut answers = Vec::new();
    for _ in 0..100 {
        match created(&session, &pod, "c1").await {
            Ok(answer) => {
                assert_eq!(uverbs(answer.adjust.as_ref()).len(), 1);
                break;
            }
            Err(text) => answers.push(text),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = "rdma-ctk: netns.rdma-ctk.io=ipvlan: the kernel refuses";
    assert!(answers.iter().all(|text| text == told), "{answers:?}");
    assert_eq!(names(&hand, 1), ["rdma0"]);
}

#[tokio::test]
async fn a_pod_that_ends_while_it_is_made_leaves_nothing() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    for number in 1..=20_u64 {
        let pod = pod(&format!("short-{number}"), IPVLAN);
        session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
        if number % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(number)).await;
        }
        session.event(Event::StopPodSandbox, &pod, None).await.unwrap();
        session.event(Event::RemovePodSandbox, &pod, None).await.unwrap();
    }
    until("nothing is left", || {
        let world = hand.world();
        world.namespaces.values().all(|room| room.is_empty())
            && std::fs::read_dir(rig.roots.run.join("rdma-ctk/children"))
                .map_or(0, |names| names.count())
                == 0
    })
    .await;
}

/// While many pods wait for answers from the wire, others end, and containers that ask for something
/// else are served: with no more threads than the service has.
#[test]
fn pods_that_wait_for_the_wire_hold_up_nobody() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().unwrap();
    runtime.block_on(async {
        let hand = Hand::default();
        let policy = POLICY.replace("children = 2", "children = 64").leak();
        let rig = rig_of(Plan { policy, ..plan(&hand) }).await;
        let session = rig.session("containerd", "2.1.9").await;
        let first = pod("first-100", IPVLAN);
        session.event(Event::RunPodSandbox, &first, None).await.unwrap();
        created(&session, &first, "c0").await.unwrap();
        hand.world().silent = true;
        let pods: Vec<PodSandbox> =
            (1..=30).map(|number| pod(&format!("many-{number}"), IPVLAN)).collect();
        for pod in &pods {
            session.event(Event::RunPodSandbox, pod, None).await.unwrap();
        }
        until("several ask at once", || hand.world().asking == 8).await;
        // Its network is read on a thread too.
        let plain = pod("plain-200", &[("devices.rdma-ctk.io", "mlx5_0")]);
        session.event(Event::RunPodSandbox, &plain, None).await.unwrap();
        let answer = created(&session, &plain, "c1").await.unwrap();
        assert_eq!(uverbs(answer.adjust.as_ref()).len(), 1);
        session.event(Event::StopPodSandbox, &first, None).await.unwrap();
        until("it ends", || names(&hand, 100).is_empty()).await;
        assert_eq!(hand.world().asking, 8);
        hand.world().silent = false;
        for pod in &pods {
            created(&session, pod, &format!("c-{}", pod.name)).await.unwrap();
        }
    });
}

#[tokio::test]
async fn an_address_for_an_adapter_that_is_not_given_is_refused() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    let asks = [
        ("devices.rdma-ctk.io", "mlx5_0"),
        ("netns.rdma-ctk.io", "ipvlan"),
        ("address.rdma-ctk.io", "mlx5_0=10.1.0.65/24,mlx5_1=10.1.0.66/24"),
    ];
    let pod = pod("train-1", &asks);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    let refused = created(&session, &pod, "c1").await.unwrap_err();
    assert!(
        refused.contains("10.1.0.66/24 is for mlx5_1, which the pod is not given"),
        "{refused}"
    );
    assert!(names(&hand, 1).is_empty());
}

#[tokio::test]
async fn annotations_that_name_more_containers_than_a_pod_has_are_refused() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    let keys: Vec<String> =
        (0..400).map(|number| format!("devices.rdma-ctk.io/container.c{number}")).collect();
    let many = keys.iter().map(|key| (key.as_str(), "mlx5_0"));
    let asks: Vec<(&str, &str)> = IPVLAN.iter().copied().chain(many).collect();
    let pod = pod("train-1", &asks);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    let refused = created(&session, &pod, "c1").await.unwrap_err();
    assert!(refused.contains("name 400 containers"), "{refused}");
    assert!(names(&hand, 1).is_empty());
}

#[tokio::test]
async fn after_a_restart_pods_have_what_they_had_and_no_more_than_policy_allows() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    let (stays, goes) = (pod("stays-1", IPVLAN), pod("goes-2", IPVLAN));
    for (pod, id) in [(&stays, "c1"), (&goes, "c2")] {
        session.event(Event::RunPodSandbox, pod, None).await.unwrap();
        created(&session, pod, id).await.unwrap();
    }
    let third = pod("third-3", IPVLAN);
    session.event(Event::RunPodSandbox, &third, None).await.unwrap();
    let refused = created(&session, &third, "c3").await.unwrap_err();
    assert!(refused.contains("policy allows 2 (links.children)"), "{refused}");
    drop(session);
    let rig = rig.restarted_as(Plan { policy: POLICY, ..plan(&hand) });
    let session = rig.session_with(std::slice::from_ref(&stays), &[]).await;
    until("one is gone", || names(&hand, 2).is_empty()).await;
    assert_eq!(names(&hand, 1), ["rdma0"]);
    // Its next container finds it, and another pod has room again.
    let answer = created(&session, &stays, "c4").await.unwrap();
    assert_eq!(uverbs(answer.adjust.as_ref()).len(), 1);
    assert_eq!(names(&hand, 1), ["rdma0"]);
    session.event(Event::RunPodSandbox, &third, None).await.unwrap();
    created(&session, &third, "c5").await.unwrap();
}

#[tokio::test]
async fn pods_that_did_not_ask_and_those_of_the_host_are_left_alone() {
    let hand = Hand::default();
    let rig = rig(&hand).await;
    let session = rig.session("containerd", "2.1.9").await;
    let plain = pod("plain-1", &[]);
    let shared = pod("shared-2", &[("devices.rdma-ctk.io", "mlx5_0")]);
    let mut host = pod("host-3", IPVLAN);
    host.linux.as_mut().unwrap().namespaces =
        vec![LinuxNamespace { r#type: "pid".into(), path: String::new() }];
    for pod in [&plain, &shared, &host] {
        session.event(Event::RunPodSandbox, pod, None).await.unwrap();
        created(&session, pod, &format!("c-{}", pod.name)).await.unwrap();
    }
    assert!(hand.world().namespaces.is_empty());
    assert!(!rig.roots.run.join("rdma-ctk/children").exists());
}

#[tokio::test]
async fn the_vendors_annotation_asks_for_them_where_policy_serves_it() {
    let networks = r#"[{"cniConf":{"name":"rdma"}}]"#;
    let vendors: &[(&str, &str)] = &[("k8s.volcengine.com/pod-networks", networks)];
    let hand = Hand::default();
    let left = rig(&hand).await;
    let session = left.session("containerd", "2.1.9").await;
    let pod_1 = pod("left-1", vendors);
    session.event(Event::RunPodSandbox, &pod_1, None).await.unwrap();
    created(&session, &pod_1, "c1").await.unwrap();
    assert!(hand.world().namespaces.is_empty(), "the vendor's plugin makes it");

    let served = format!("[dialects]\nvolcengine = \"serve\"\n{POLICY}");
    let rig = rig_of(Plan { policy: served.leak(), ..plan(&hand) }).await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod_2 = pod("served-2", vendors);
    session.event(Event::RunPodSandbox, &pod_2, None).await.unwrap();
    let answer = created(&session, &pod_2, "c2").await.unwrap();
    assert_eq!(names(&hand, 2), ["rdma0"]);
    assert_eq!(uverbs(answer.adjust.as_ref()).len(), 1);
}
