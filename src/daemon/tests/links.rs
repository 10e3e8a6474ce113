//! Adapters that move into pods, from the runtime's events to the journal, on a simulated kernel.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::rig::{Plan, Rig, container, pod, uverbs};
use crate::daemon::links::host::Host;
use crate::grant::Use;
use crate::inventory::{Hca, Home, Node, NodeType, PodNetwork, PodView};
use crate::netns::links::simulated::{At, Fate, Handle, Namespace, World};
use crate::netns::links::{Kernel, Place, Saved};
use crate::nri::proto::{Event, LinuxNamespace};

const POLICY: &str =
    "[links]\nmovable = [\"mlx5_*\"]\n[default]\nnetns = [\"shared\", \"host\", \"exclusive\"]\n";
const EXCLUSIVE: &[(&str, &str)] =
    &[("devices.rdma-ctk.io", "mlx5_0"), ("netns.rdma-ctk.io", "exclusive")];

/// A node whose kernel is simulated; the pod's number is at the end of its namespace's path.
#[derive(Debug)]
struct Simulated(Handle);

impl Host for Simulated {
    fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        let inode = path.to_str().and_then(|path| path.rsplit('-').next()?.parse().ok());
        let inode: usize = inode.ok_or("no such namespace")?;
        self.0.world().pods.entry(inode).or_insert(Namespace { path: true, held: false });
        Ok(Some(Place { path: path.to_owned(), device: 4, inode: inode as u64 }))
    }

    fn save(&self, hca: &Hca) -> Result<(u32, Option<Saved>), String> {
        let world = self.0.world();
        let adapter = world.adapters.get(&hca.name).ok_or("no such adapter")?;
        Ok((1, adapter.saved.clone()))
    }

    fn uses(&self, _: &Hca, _: &Node) -> Use {
        Use::default()
    }

    fn kernel(&self) -> Box<dyn Kernel> {
        Box::new(self.0.clone())
    }
}

fn handle() -> Handle {
    Handle(Arc::new(Mutex::new(World::new(4))))
}

/// A node in the exclusive mode, whose pods see what the simulated kernel has moved.
async fn rig(handle: &Handle) -> Rig {
    let seen = handle.clone();
    let look = move |path: &Path, _: &Node| {
        let pod: usize = path.to_str().unwrap().rsplit('-').next().unwrap().parse().unwrap();
        let world = seen.world();
        let inside = world.adapters.iter().filter(|(_, adapter)| adapter.rdma == At::Pod(pod));
        let hcas = inside.map(|(name, _)| name.clone()).collect();
        PodView::Ready(PodNetwork { hcas, ..PodNetwork::default() })
    };
    let plan = Plan {
        policy: POLICY,
        look: Some(Box::new(look)),
        host: Some(Box::new(Simulated(handle.clone()))),
        ..Plan::default()
    };
    let rig = Rig::plan(plan);
    let mode = rig.roots.sys.join("module/ib_core/parameters");
    std::fs::create_dir_all(&mode).unwrap();
    std::fs::write(mode.join("netns_mode"), "N\n").unwrap();
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

fn away(handle: &Handle) -> BTreeSet<String> {
    let world = handle.world();
    let away = world.adapters.iter().filter(|(_, adapter)| adapter.rdma != At::Home);
    away.map(|(name, _)| name.clone()).collect()
}

#[tokio::test]
async fn c51_c75_an_adapter_is_the_pods_from_its_start_to_its_end() {
    let handle = handle();
    let rig = rig(&handle).await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("train-1", EXCLUSIVE);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    until("it moves", || away(&handle).contains("mlx5_0")).await;
    assert!(rig.roots.run.join("rdma-ctk/links/mlx5_0.json").exists());
    // Containers come and go, and the adapter stays.
    for id in ["init", "main", "main-again"] {
        let name = id.split('-').next().unwrap();
        let main = container(&pod, id, name);
        let mut answer = session.create(&pod, &main).await;
        while matches!(&answer, Err(text) if text.contains("on their way")) {
            answer = session.create(&pod, &main).await;
        }
        assert_eq!(uverbs(answer.unwrap().as_ref()).len(), 1, "{id}");
        session.stop(&pod, &main).await;
    }
    assert_eq!(away(&handle), ["mlx5_0".to_owned()].into());
    session.event(Event::StopPodSandbox, &pod, None).await.unwrap();
    assert!(away(&handle).is_empty(), "it was waited for");
    assert!(!rig.roots.run.join("rdma-ctk/links/mlx5_0.json").exists());
    session.event(Event::RemovePodSandbox, &pod, None).await.unwrap();
    assert_eq!(rig.daemon.metrics.adapters_away.get(), 0);
}

#[tokio::test]
async fn c71_a_second_pod_is_refused_and_told_the_owner() {
    let handle = handle();
    let rig = rig(&handle).await;
    let session = rig.session("containerd", "2.1.9").await;
    let (first, second) = (pod("first-1", EXCLUSIVE), pod("second-2", EXCLUSIVE));
    for pod in [&first, &second] {
        session.event(Event::RunPodSandbox, pod, None).await.unwrap();
        until("it moves", || away(&handle).contains("mlx5_0")).await;
    }
    let asks = container(&second, "c2", "main");
    let mut refused = session.create(&second, &asks).await.unwrap_err();
    while refused.contains("on their way into") {
        refused = session.create(&second, &asks).await.unwrap_err();
    }
    assert_eq!(
        refused.split(" (can be").next().unwrap(),
        "rdma-ctk: devices.rdma-ctk.io=mlx5_0: mlx5_0 cannot be given: it already belongs to pod \
         ml/first-1"
    );
    // Once the first has ended, the next try succeeds.
    session.event(Event::StopPodSandbox, &first, None).await.unwrap();
    let mut answer = session.create(&second, &asks).await;
    for _ in 0..50 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = session.create(&second, &asks).await;
    }
    assert_eq!(uverbs(answer.unwrap().as_ref()).len(), 1);
    assert_eq!(handle.world().adapters["mlx5_0"].rdma, At::Pod(2));
}

#[tokio::test]
async fn a_move_that_fails_refuses_the_container_and_moves_nothing() {
    let handle = handle();
    let rig = rig(&handle).await;
    let session = rig.session("containerd", "2.1.9").await;
    // Looking is well, writing is not.
    handle.world().fates = vec![Fate::Refused; 200];
    let pod = pod("train-1", EXCLUSIVE);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    let main = container(&pod, "c1", "main");
    let mut refused = session.create(&pod, &main).await.unwrap_err();
    while refused.contains("on their way into") {
        refused = session.create(&pod, &main).await.unwrap_err();
    }
    assert!(refused.starts_with("rdma-ctk: netns.rdma-ctk.io=exclusive: mlx5_0"), "{refused}");
    handle.world().fates.clear();
    until("nothing is away", || away(&handle).is_empty()).await;
}

#[tokio::test]
async fn after_a_restart_the_journal_and_the_runtime_decide_what_stays() {
    let handle = handle();
    let rig = rig(&handle).await;
    let session = rig.session("containerd", "2.1.9").await;
    let keys = |devices| [("devices.rdma-ctk.io", devices), ("netns.rdma-ctk.io", "exclusive")];
    let (stays, goes) = (pod("stays-1", &keys("mlx5_0")), pod("goes-2", &keys("mlx5_3")));
    for pod in [&stays, &goes] {
        session.event(Event::RunPodSandbox, pod, None).await.unwrap();
    }
    for (pod, id) in [(&stays, "c1"), (&goes, "c2")] {
        let mut answer = session.create(pod, &container(pod, id, "main")).await;
        while matches!(&answer, Err(text) if text.contains("on their way into")) {
            answer = session.create(pod, &container(pod, id, "main")).await;
        }
        assert_eq!(uverbs(answer.unwrap().as_ref()).len(), 1);
    }
    assert_eq!(away(&handle).len(), 2);
    let entry = rig.roots.run.join("rdma-ctk/links/mlx5_3.json");
    let whole = || std::fs::read_to_string(&entry).is_ok_and(|text| text.contains("\"step\":null"));
    until("both are written down", whole).await;
    drop(session);
    // Killed; while it was dead, one of the pods has ended.
    let rig = rig.restarted_with(Some(Box::new(Simulated(handle.clone()))));
    let _session = rig.session_with(std::slice::from_ref(&stays), &[]).await;
    until("one is back", || away(&handle).len() == 1).await;
    assert_eq!(away(&handle), ["mlx5_0".to_owned()].into());
    until("its entry goes", || !entry.exists()).await;
    assert!(rig.roots.run.join("rdma-ctk/links/mlx5_0.json").exists());
}

#[tokio::test]
async fn c56_a_pod_in_the_hosts_namespace_moves_nothing() {
    let handle = handle();
    let rig = rig(&handle).await;
    let session = rig.session("containerd", "2.1.9").await;
    let mut host = pod("host-1", EXCLUSIVE);
    host.linux.as_mut().unwrap().namespaces =
        vec![LinuxNamespace { r#type: "pid".into(), path: String::new() }];
    session.event(Event::RunPodSandbox, &host, None).await.unwrap();
    let adjust = session.create(&host, &container(&host, "c1", "main")).await.unwrap();
    assert_eq!(uverbs(adjust.as_ref()).len(), 1);
    assert!(away(&handle).is_empty());
    assert!(handle.world().pods.is_empty());
}

#[tokio::test]
async fn what_was_known_of_an_adapter_is_known_when_it_is_away() {
    let handle = handle();
    let rig = rig(&handle).await;
    let node = rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("train-1", EXCLUSIVE);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    until("it moves", || away(&handle).contains("mlx5_0")).await;
    // As the host sees it then: its node, under another number, and nothing else.
    let mut hidden = Node::clone(&node);
    let was = node.hca("mlx5_0").unwrap();
    let hca = hidden.hcas.iter_mut().find(|hca| hca.name == "mlx5_0").unwrap();
    hca.home = Home::Elsewhere;
    hca.ports.clear();
    hca.node_type = NodeType::Unspecified;
    hca.uverbs.as_mut().unwrap().minor = 250;
    let seen = rig.daemon.links.recognise(Arc::new(hidden));
    let now = seen.hca("mlx5_0").unwrap();
    assert_eq!((now.node_type, now.ports.len()), (was.node_type, was.ports.len()));
    assert_eq!(now.uverbs.as_ref().unwrap().minor, 250);
    assert!(now.ports.iter().all(|port| port.gids.is_empty() && port.umad.is_none()));
    assert_eq!(now.home, Home::Elsewhere);
    let same = rig.daemon.links.recognise(Arc::clone(&node));
    assert!(Arc::ptr_eq(&same, &node), "what is at home is as it is seen");
}
