//! The daemon on a fixture node, and a scripted runtime that calls it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::daemon::children::Children;
use crate::daemon::journal::Journal;
use crate::daemon::links::Links;
use crate::daemon::links::host::{Host, Live};
use crate::daemon::plugin::{Daemon, NriPlugin, Parts};
use crate::daemon::pods::{Look, Pods};
use crate::daemon::policies::{Policies, Source};
use crate::daemon::records::{self, Record, Records, Store, Verdict};
use crate::daemon::snapshot::{Keeper, Read};
use crate::inventory::{self, Node, PodNetwork, PodView, fixture};
use crate::netns::children::Ground;
use crate::netns::children::linux::Linux;
use crate::nri::proto::{
    Container, ContainerAdjustment, ContainerRequest, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Empty, Event, LinuxContainer, LinuxDevice, LinuxNamespace,
    LinuxPodSandbox, LinuxResources, PodSandbox, StateChangeEvent, UpdateContainerRequest,
    UpdateContainerResponse, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use crate::nri::scripted::{Fault, Scripted};
use crate::nri::{Identity, Plugin, SessionEnd, serve};
use crate::roots::Roots;

/// A node with a daemon.
pub struct Rig {
    pub roots: Roots,
    pub daemon: Arc<Daemon>,
    /// Told after each reading of the node.
    pub read: Arc<Notify>,
    _folder: Arc<TempDir>,
    /// Nobody has said how the node is to be read.
    plain: bool,
}

/// How a [`Rig`] differs from the plain one.
pub struct Plan {
    pub node: &'static str,
    pub policy: &'static str,
    pub read: Option<Box<Read>>,
    pub look: Option<Box<Look>>,
    pub host: Option<Box<dyn Host>>,
    pub ground: Option<Box<dyn Ground>>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            node: "gpu-infiniband",
            policy: "",
            read: None,
            look: None,
            host: None,
            ground: None,
        }
    }
}

impl Rig {
    /// A daemon that runs on the fixture of that name.
    pub fn new(node: &'static str) -> Self {
        Self::plan(Plan { node, ..Plan::default() })
    }

    pub fn plan(plan: Plan) -> Self {
        // In memory where that can be, since it is thousands of small files.
        let builder = tempfile::Builder::new();
        let folder = builder.tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let folder = Arc::new(folder);
        let roots = Roots::below(folder.path());
        let file =
            format!("{}/integration/fixtures/{}.tree", env!("CARGO_MANIFEST_DIR"), plan.node);
        fixture::unpack(Path::new(&file), folder.path()).unwrap();
        std::fs::create_dir_all(roots.etc.join("rdma-ctk")).unwrap();
        std::fs::write(roots.etc.join("rdma-ctk/config.toml"), plan.policy).unwrap();
        Self::on(folder, roots, plan)
    }

    /// Another daemon on the same node, as after a restart.
    pub fn restarted(&self) -> Self {
        self.restarted_with(None)
    }

    /// The same, on that host.
    pub fn restarted_with(&self, host: Option<Box<dyn Host>>) -> Self {
        self.restarted_as(Plan { host, ..Plan::default() })
    }

    /// The same, read and looked at like that.
    pub fn restarted_as(&self, plan: Plan) -> Self {
        Self::on(Arc::clone(&self._folder), self.roots.clone(), plan)
    }

    fn on(folder: Arc<TempDir>, roots: Roots, plan: Plan) -> Self {
        let Plan { read, look, host, ground, .. } = plan;
        let (from, plain) = (roots.clone(), read.is_none());
        let read = read.unwrap_or_else(|| Box::new(move || Ok(inventory::snapshot(&from, None))));
        let look = look.unwrap_or_else(|| {
            Box::new(|_: &Path, _: &Node| PodView::Ready(PodNetwork::default()))
        });
        let keeper = Keeper::new(read);
        let after = Arc::new(Notify::new());
        let told = Arc::clone(&after);
        keeper.start(move || told.notify_one()).unwrap();
        let store = Store::new(&roots);
        store.prepare().unwrap();
        let config = roots.etc.join("rdma-ctk/config.toml");
        let pods = Pods::new(keeper.clone(), look);
        let host = host.unwrap_or_else(|| Box::new(Live::new(&roots)));
        let links = Links::new(&roots, host, keeper.clone(), pods.clone());
        let ground = ground.unwrap_or_else(|| Box::new(Linux::new(&roots)));
        let children = Children::new(&roots, ground, keeper.clone(), pods.clone());
        let daemon = Daemon::new(Parts {
            roots: roots.clone(),
            kubelet: folder.path().join("kubelet"),
            socket: folder.path().join("nri.sock"),
            pods,
            links,
            children,
            keeper,
            policies: Policies::load(Source::Default(config)).unwrap(),
            journal: Journal::new(store),
        });
        daemon.containers.recall(records::read_all(&roots).containers);
        Self { roots, daemon: Arc::new(daemon), read: after, _folder: folder, plain }
    }

    /// A session with a runtime of that name and version, which has nothing yet. On a node that is
    /// read as usual it is read by then.
    pub async fn session(&self, name: &str, version: &str) -> Session {
        if self.plain {
            self.node().await;
        }
        let mut session = self.silent();
        session.runtime.start(name, version, "").await.unwrap();
        session
    }

    /// A session with a runtime that has these pods and containers.
    pub async fn session_with(&self, pods: &[PodSandbox], containers: &[Container]) -> Session {
        let mut session = self.silent();
        let (stream, _) = session.runtime.registration().await.unwrap();
        session.runtime.answer(stream, None).await.unwrap();
        session.runtime.configure("containerd", "2.1.9", "", "").await.unwrap();
        session.runtime.synchronize(pods, containers).await.unwrap();
        session
    }

    /// A session in which the runtime has said nothing yet.
    pub fn silent(&self) -> Session {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let plugin: Arc<dyn Plugin> = Arc::new(NriPlugin(Arc::clone(&self.daemon)));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let identity = Identity::new("10", "rdma-ctk").unwrap();
            plugin.connected(None);
            serve(ours, plugin, &identity, async { stopped.await.unwrap_or(()) }).await
        });
        Session { runtime: Scripted::new(theirs), _stop: stop, task }
    }

    /// What is on record, once all of it is written.
    pub async fn records(&self) -> Records {
        self.daemon.book();
        self.daemon.journal.written().await;
        records::read_all(&self.roots)
    }

    /// The one record of that container.
    pub async fn record(&self, id: &str) -> Record {
        let all = self.records().await.containers;
        all.into_iter()
            .find(|record| record.id == id)
            .unwrap_or_else(|| panic!("no record of {id}"))
    }

    /// Number of containers on record with a verdict of that kind.
    pub async fn verdicts(&self, kind: fn(&Verdict) -> bool) -> usize {
        self.records().await.containers.iter().filter(|record| kind(&record.verdict)).count()
    }

    /// How many adapters there are with a port that is up.
    pub async fn active(&self) -> usize {
        let node = self.node().await;
        node.hcas.iter().filter(|hca| hca.active_ports().next().is_some()).count()
    }

    /// The inventory, read.
    pub async fn node(&self) -> Arc<Node> {
        self.daemon.keeper.node(std::time::Duration::from_secs(20)).await.unwrap()
    }
}

/// A session with a runtime.
pub struct Session {
    pub runtime: Scripted,
    _stop: oneshot::Sender<()>,
    pub task: JoinHandle<SessionEnd>,
}

impl Session {
    pub async fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Option<ContainerAdjustment>, String> {
        let request =
            CreateContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        let answer: Result<CreateContainerResponse, Fault> =
            self.runtime.call("CreateContainer", &request).await;
        answer.map(|answer| answer.adjust).map_err(text)
    }

    /// What happens to a container whose creation is answered with `adjust`, and its start.
    pub async fn start(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        self.event(Event::StartContainer, pod, Some(container)).await
    }

    pub async fn event(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        let change = StateChangeEvent {
            event: event.into(),
            pod: Some(pod.clone()),
            container: container.cloned(),
        };
        self.runtime.call::<_, Empty>("StateChange", &change).await.map(|_| ()).map_err(text)
    }

    pub async fn stop(&self, pod: &PodSandbox, container: &Container) {
        let request =
            ContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        self.runtime.call::<_, Empty>("StopContainer", &request).await.unwrap();
    }

    pub async fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        resources: LinuxResources,
    ) -> Vec<ContainerUpdate> {
        let request = UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            linux_resources: Some(resources),
        };
        let answer: UpdateContainerResponse =
            self.runtime.call("UpdateContainer", &request).await.unwrap();
        answer.update
    }

    pub async fn validate(
        &self,
        pod: &PodSandbox,
        container: &Container,
        adjust: Option<ContainerAdjustment>,
    ) -> Result<(), String> {
        let request = ValidateContainerAdjustmentRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            adjust,
            ..ValidateContainerAdjustmentRequest::default()
        };
        let answer: ValidateContainerAdjustmentResponse =
            self.runtime.call("ValidateContainerAdjustment", &request).await.unwrap();
        if answer.reject { Err(answer.reason) } else { Ok(()) }
    }
}

fn text(fault: Fault) -> String {
    match fault {
        Fault::Status { text, .. } => text,
        fault => fault.to_string(),
    }
}

/// A pod with these annotations, in a network namespace of its own.
pub fn pod(name: &str, annotations: &[(&str, &str)]) -> PodSandbox {
    let network = LinuxNamespace { r#type: "network".into(), path: format!("/run/netns/{name}") };
    PodSandbox {
        id: format!("box-{name}"),
        name: name.into(),
        uid: format!("uid-{name}"),
        namespace: "ml".into(),
        annotations: annotations.iter().map(|&(k, v)| (k.into(), v.into())).collect(),
        linux: Some(LinuxPodSandbox { namespaces: vec![network], ..Default::default() }),
        ..PodSandbox::default()
    }
}

/// A container of that pod.
pub fn container(pod: &PodSandbox, id: &str, name: &str) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: pod.id.clone(),
        name: name.into(),
        env: vec!["PATH=/bin".into()],
        args: vec!["sleep".into()],
        linux: Some(LinuxContainer::default()),
        ..Container::default()
    }
}

/// The container as it is once the runtime has made the change.
pub fn adjusted(container: &Container, adjust: Option<&ContainerAdjustment>) -> Container {
    let mut container = container.clone();
    let Some(adjust) = adjust else { return container };
    container.annotations.extend(adjust.annotations.clone());
    let linux = container.linux.get_or_insert_default();
    linux.devices.extend(adjust.linux.iter().flat_map(|linux| linux.devices.clone()));
    container
}

/// Adapters that an adjustment brings, by their nodes.
pub fn uverbs(adjust: Option<&ContainerAdjustment>) -> Vec<String> {
    let devices = adjust.iter().flat_map(|adjust| &adjust.linux).flat_map(|linux| &linux.devices);
    let names = devices.filter_map(|device| device.path.strip_prefix("/dev/infiniband/uverbs"));
    names.map(str::to_owned).collect()
}

/// The node of an adapter, as another plugin puts it into a container.
pub fn device(minor: i64) -> LinuxDevice {
    LinuxDevice {
        path: format!("/dev/infiniband/uverbs{}", minor - 192),
        r#type: "c".into(),
        major: 231,
        minor,
        ..LinuxDevice::default()
    }
}

/// Variables that an adjustment sets.
pub fn variables(adjust: Option<&ContainerAdjustment>) -> BTreeMap<String, String> {
    let env = adjust.iter().flat_map(|adjust| &adjust.env);
    env.map(|variable| (variable.key.clone(), variable.value.clone())).collect()
}
