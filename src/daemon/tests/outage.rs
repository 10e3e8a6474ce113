//! What becomes of containers that are created while the daemon is away, late or not ready.

use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::UnixListener;

use super::rig::{Plan, Rig, adjusted, container, pod};
use crate::daemon::metrics::{MishapLabel, ReasonLabel, RefusalClass};
use crate::daemon::plugin::NriPlugin;
use crate::daemon::records::Verdict;
use crate::inventory::{Node, PodNetwork, PodView};
use crate::nri::proto::{Container, ContainerState, Event, PodSandbox};
use crate::nri::scripted::{Fault, Scripted};
use crate::nri::{Mishap, MishapKind, Plugin};
use crate::request::MARKER;

const ALL: &[(&str, &str)] = &[("devices.rdma-ctk.io", "all")];

fn running(pod: &PodSandbox, id: &str, name: &str) -> Container {
    let state = ContainerState::ContainerRunning.into();
    Container { state, ..container(pod, id, name) }
}

fn slipped(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Slipped { .. })
}

#[tokio::test]
async fn c60_a_slow_inventory_is_an_error_in_time_and_the_next_call_succeeds() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let read = move || {
        gate.lock().unwrap().recv()?;
        Ok(Node::default())
    };
    let rig = Rig::plan(Plan { read: Some(Box::new(read)), ..Plan::default() });
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", ALL);
    let begun = Instant::now();
    let text = session.create(&asks, &container(&asks, "c1", "main")).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(text.starts_with("rdma-ctk: devices.rdma-ctk.io: all: "), "{text}");
    assert!(text.contains("not ready"), "{text}");
    // Who did not ask does not wait.
    let plain = pod("plain", &[("devices.rdma-ctk.io/container.other", "all")]);
    assert_eq!(session.create(&plain, &container(&plain, "c2", "main")).await, Ok(None));

    release.send(()).unwrap();
    rig.node().await;
    let text = session.create(&asks, &container(&asks, "c3", "main")).await.unwrap_err();
    assert!(!text.contains("not ready"), "{text}");
    assert!(session.runtime.violations().is_empty());
}

/// The daemon was ended right after its answer, before what it had granted was on record: a container
/// of SMC-R would run on TCP, and nobody would know.
#[tokio::test]
async fn smc_that_was_granted_and_is_not_on_record_does_not_start() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", &[("smc.rdma-ctk.io/container.main", "bpf")]);
    let marked = |id: &str, name: &str| {
        let mut marked = container(&asks, id, name);
        marked.annotations.insert(MARKER.into(), "0fac37c0a5e33e5b".into());
        marked
    };
    let text = session.start(&asks, &marked("c1", "main")).await.unwrap_err();
    assert!(text.starts_with("rdma-ctk: smc.rdma-ctk.io/container.main: bpf: "), "{text}");
    assert!(text.contains("is not on record"), "{text}");
    session.start(&asks, &marked("c2", "other")).await.unwrap();
}

/// A call that panicked or was late has been answered by the session; who it was about is on record.
#[tokio::test]
async fn c60_a_call_that_went_wrong_is_on_record_with_its_pod() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", ALL);
    let plugin = NriPlugin(Arc::clone(&rig.daemon));
    let mishap = |call, failed, container: Option<Container>| Mishap {
        call,
        kind: MishapKind::Late,
        failed,
        text: format!("{call}: no answer within 1500 ms"),
        pod: Some(asks.clone()),
        container,
    };
    plugin.mishap(mishap("CreateContainer", true, Some(container(&asks, "c1", "main"))));
    plugin.mishap(mishap("RunPodSandbox", false, None));
    plugin.mishap(mishap("UpdateContainer", true, Some(container(&asks, "c2", "other"))));
    let record = rig.record("c1").await;
    let sentence = "CreateContainer: no answer within 1500 ms".to_owned();
    assert_eq!((record.pod.name.as_str(), record.name.as_str()), ("asks", "main"));
    assert_eq!(record.verdict, Verdict::Refused { sentence });
    let [pod] = &rig.records().await.pods[..] else { panic!("one pod") };
    assert_eq!(pod.pod.name, "asks");
    assert_eq!(
        pod.mishaps,
        [
            "RunPodSandbox: no answer within 1500 ms",
            "container other: UpdateContainer: no answer within 1500 ms"
        ]
    );
    let refusals = &rig.daemon.metrics.refusals;
    let label = ReasonLabel { reason: RefusalClass::Internal };
    assert_eq!(refusals.get_or_create(&label).get(), 1);
    session.event(Event::RemovePodSandbox, &asks, None).await.unwrap();
    assert!(rig.records().await.pods.is_empty());
}

/// The inventory and a pod's network share what a container waits, so that the shortest deadline
/// that policy can set is kept.
#[tokio::test]
async fn c60_what_is_waited_for_fits_into_the_shortest_deadline() {
    let node = Rig::new("gpu-infiniband").node().await;
    let read = move || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(Node::clone(&node))
    };
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let look = move |_: &Path, _: &Node| {
        // An error is the end of the test.
        let _ = gate.lock().unwrap().recv();
        PodView::Ready(PodNetwork::default())
    };
    let rig = Rig::plan(Plan {
        read: Some(Box::new(read)),
        look: Some(Box::new(look)),
        policy: "[daemon]\ndeadline_percent = 30\n",
        ..Plan::default()
    });
    let mut session = rig.silent();
    session.runtime.request_timeout = Duration::from_secs(8);
    session.runtime.start("containerd", "2.1.9", "").await.unwrap();
    let asks = pod("asks", ALL);
    let answer = session.create(&asks, &container(&asks, "c1", "main")).await;
    drop(release);
    assert!(answer.unwrap().is_some());
    let mishap = MishapLabel { call: "CreateContainer", kind: "late" };
    assert_eq!(rig.daemon.metrics.mishaps.get_or_create(&mishap).get(), 0);
}

#[tokio::test]
async fn c61_created_while_we_were_away_it_is_refused_at_start() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", ALL);
    // Its creation was not told.
    let unseen = container(&asks, "c1", "main");
    let text = session.start(&asks, &unseen).await.unwrap_err();
    assert!(text.starts_with("rdma-ctk: devices.rdma-ctk.io: all: "), "{text}");
    assert!(text.contains("not connected"), "{text}");
    assert!(matches!(rig.record("c1").await.verdict, Verdict::Refused { .. }));
    // What the kubelet does next.
    let again = container(&asks, "c2", "main");
    let adjust = session.create(&asks, &again).await.unwrap();
    assert_eq!(session.start(&asks, &adjusted(&again, adjust.as_ref())).await, Ok(()));
    assert_eq!(rig.records().await.containers.len(), 1);

    for (annotations, name) in
        [(&[][..], "main"), (ALL, "istio-proxy"), (&[("devices.rdma-ctk.io", "none")], "main")]
    {
        let pod = pod("free", annotations);
        assert_eq!(
            session.start(&pod, &container(&pod, "c9", name)).await,
            Ok(()),
            "{annotations:?}"
        );
    }
}

#[tokio::test]
async fn a_container_without_its_grant_does_not_pass_the_validation() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.3.0").await;
    let asks = pod("asks", ALL);
    let late = container(&asks, "c1", "main");
    let text = session.validate(&asks, &late, Some(Default::default())).await.unwrap_err();
    assert!(text.starts_with("rdma-ctk: "), "{text}");
    let good = container(&asks, "c2", "main");
    let adjust = session.create(&asks, &good).await.unwrap();
    assert_eq!(session.validate(&asks, &good, adjust).await, Ok(()));
    let plain = pod("plain", &[]);
    assert_eq!(session.validate(&plain, &container(&plain, "c3", "main"), None).await, Ok(()));
}

#[tokio::test]
async fn c61_what_slipped_through_is_named_counted_and_on_record() {
    let rig = Rig::new("gpu-infiniband");
    let (asks, plain) = (pod("asks", ALL), pod("plain", &[]));
    let before = {
        let session = rig.session("containerd", "2.1.9").await;
        let good = running(&asks, "good", "main");
        let adjust = session.create(&asks, &good).await.unwrap();
        adjusted(&good, adjust.as_ref())
    };
    let containers =
        [before.clone(), running(&asks, "bad", "other"), running(&plain, "plain", "main")];
    rig.session_with(&[asks.clone(), plain.clone()], &containers).await;
    assert_eq!(rig.daemon.metrics.slipped.get(), 1);
    let Verdict::Slipped { sentence } = rig.record("bad").await.verdict else { panic!() };
    assert!(
        sentence
            .ends_with("started without RDMA because rdma-ctk was not connected; restart the pod"),
        "{sentence}"
    );
    assert_eq!(rig.verdicts(|_| true).await, 2);

    // Told once, also by the next daemon; and gone when the container is.
    let rig = rig.restarted();
    let session = rig.session_with(&[asks.clone(), plain], &containers).await;
    assert_eq!((rig.daemon.metrics.slipped.get(), rig.verdicts(slipped).await), (0, 1));
    session.event(Event::RemoveContainer, &asks, Some(&containers[1])).await.unwrap();
    assert_eq!((rig.verdicts(slipped).await, rig.verdicts(|_| true).await), (0, 1));
}

#[tokio::test]
async fn what_ended_while_we_were_away_leaves_no_record() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let pod_a = pod("a", &[("devices.rdma-ctk.io", "all"), ("env.rdma-ctk.io", "file")]);
    let adjust = session.create(&pod_a, &container(&pod_a, "c", "main")).await.unwrap().unwrap();
    let source = adjust.mounts[0].source.clone();
    let folder = std::fs::File::open(std::path::Path::new(&source).parent().unwrap()).unwrap();
    folder.set_modified(std::time::SystemTime::now() - Duration::from_secs(60)).unwrap();
    rig.daemon.journal.written().await;
    let rig = rig.restarted();
    rig.session("containerd", "2.1.9").await;
    assert!(rig.records().await.containers.is_empty());
    assert!(!std::path::Path::new(&source).exists());
}

#[tokio::test(start_paused = true)]
async fn c64_a_container_that_was_hidden_is_found_within_30_seconds() {
    let rig = Rig::new("gpu-infiniband");
    let listener = UnixListener::bind(&rig.daemon.socket).unwrap();
    // Not after the inventory, which is not read by this clock.
    let mut session = rig.silent();
    session.runtime.start("containerd", "2.1.9", "").await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(rig.daemon.metrics.slipped.get(), 0);

    let (stream, _) = listener.accept().await.unwrap();
    let mut second = Scripted::new(stream);
    let asks = pod("asks", ALL);
    let hidden = running(&asks, "hidden", "main");
    let (stream, register) = second.registration().await.unwrap();
    assert_eq!(register.plugin_name, "rdma-ctk-roll-call");
    second.answer(stream, None).await.unwrap();
    let events = second.configure("containerd", "2.1.9", "", "").await.unwrap();
    assert_eq!(events, 1 << 8);
    second.synchronize(&[asks], &[hidden]).await.unwrap();
    second.closed().await;
    assert!(begun.elapsed() <= Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!((rig.daemon.metrics.slipped.get(), rig.daemon.metrics.unseen.get()), (1, 1));
    let Verdict::Slipped { sentence } = rig.record("hidden").await.verdict else { panic!() };
    assert!(sentence.contains("restart the pod"), "{sentence}");
    drop(session);
}

#[tokio::test]
async fn c63_a_large_node_is_synchronised_in_time() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", ALL);
    let mut pods: Vec<PodSandbox> = (0..2500).map(|n| pod(&format!("p{n}"), &[])).collect();
    pods.push(asks.clone());
    let filler = "x".repeat(20_000);
    let mut containers: Vec<Container> = (0..5000)
        .map(|n| {
            let mut container = running(&pods[n / 2], &format!("c{n}"), "main");
            container.args.push(filler.clone());
            container
        })
        .collect();
    containers.push(running(&asks, "slipped", "main"));
    let (requests, _) = session.runtime.synchronize(&pods, &containers).await.unwrap();
    assert!(requests > 20, "{requests}");
    assert_eq!(rig.daemon.metrics.slipped.get(), 1);
    let worst = session.runtime.records().into_iter().map(|record| record.elapsed).max();
    assert!(worst.unwrap() < Duration::from_millis(1500), "{worst:?}");
}

#[tokio::test]
async fn the_state_says_who_serves_whom() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let state = rig.records().await.daemon.unwrap();
    let runtime = state.runtime.unwrap();
    assert_eq!((runtime.name.as_str(), runtime.version.as_str()), ("containerd", "2.1.9"));
    assert_eq!((runtime.request_timeout_ms, runtime.registration_timeout_ms), (2000, 5000));
    assert!(state.connected);
    drop(session.runtime);
    session.task.await.unwrap();
    assert!(!rig.records().await.daemon.unwrap().connected);
    assert_eq!(rig.daemon.metrics.sessions.get(), 1);
    assert_eq!(rig.daemon.metrics.connected.get(), 0);
}

#[tokio::test]
async fn a_handler_that_panics_answers_an_error_and_is_counted() {
    let look = |_: &std::path::Path, _: &Node| panic!("a bug");
    let rig = Rig::plan(Plan { look: Some(Box::new(look)), ..Plan::default() });
    rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let asks = pod("asks", ALL);
    // A look that panics is a look that failed: InfiniBand does without.
    let adjust = session.create(&asks, &container(&asks, "c", "main")).await;
    assert!(matches!(adjust, Ok(Some(_))), "{adjust:?}");
    let nonsense = session.runtime.call_bytes("CreateContainer", vec![0xff; 9]).await;
    assert!(matches!(nonsense, Err(Fault::Status { .. })), "{nonsense:?}");
}
