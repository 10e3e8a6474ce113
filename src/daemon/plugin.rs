//! The daemon as an NRI plugin: the runtime's calls, each counted and timed, and none that blocks.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::task::JoinHandle;
use tracing::{error, warn};

use super::admission::Given;
use super::audit::{Census, Slipped};
use super::children::{self, Children};
use super::containers::Containers;
use super::journal::Journal;
use super::links::{self, Ask, Links};
use super::metrics::Metrics;
use super::pods::Pods;
use super::policies::Policies;
use super::records::{DaemonState, PodName, Record, RuntimeState, Verdict, seconds_since_1970};
use super::scopes::{Scopes, Unmatched};
use super::session::Session;
use super::smc::{Running, Smc};
use super::snapshot::Keeper;
use super::{records, resume, roll_call, runtime_limits};
use crate::nri::container::{Network, RuntimeLimits, network, pod};
use crate::nri::proto::{
    Container, ContainerUpdate, CreateContainerResponse, LinuxResources, PodSandbox,
    ValidateContainerAdjustmentRequest,
};
use crate::nri::{
    Configuration, Events, Mishap, Outline, Pieces, Plugin, Reason, SessionEnd, Stage,
};
use crate::policy::{Dialect, Policy};
use crate::request::{carries_grant, mentions_us};
use crate::roots::Roots;

/// Annotations that one line of the log names.
const NAMED: usize = 8;

/// What the daemon works with.
#[derive(Debug)]
pub struct Daemon {
    /// The node's trees.
    pub roots: Roots,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The runtime's socket, where it can be asked what there is.
    pub socket: PathBuf,
    /// The inventory.
    pub keeper: Keeper,
    /// Networks of pods.
    pub pods: Pods,
    /// Adapters that move into pods.
    pub links: Links,
    /// Sub-interfaces of pods.
    pub children: Children,
    /// The policy.
    pub policies: Policies,
    /// Records.
    pub journal: Journal,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Containers that live.
    pub containers: Arc<Containers>,
    /// SMC-R.
    pub smc: Smc,
    /// Annotations that name containers.
    pub scopes: Scopes,
    /// Where metrics are to be read, once that is settled.
    pub metrics_at: OnceLock<SocketAddr>,
    /// Told each time a session begins or ends.
    pub told: tokio::sync::watch::Sender<Option<String>>,
    /// A file that is bound into a container should say something else by now.
    pub stale_files: tokio::sync::Notify,
    /// What containers were given, and is still to be booked.
    unbooked: Mutex<Vec<Given>>,
    /// What lasts as long as a connection.
    connection: Mutex<Connection>,
    /// Set when what is on record from before this process has been taken over.
    recalled: tokio::sync::OnceCell<()>,
}

#[derive(Debug, Default)]
struct Connection {
    limits: RuntimeLimits,
    session: Option<Arc<Session>>,
    census: Census,
    /// Containers of before this process with files of ours.
    resumed: Vec<Container>,
    /// Containers with SMC-R.
    turned: Vec<Running>,
    roll_call: Option<JoinHandle<()>>,
}

impl Daemon {
    /// A daemon without a session. To be called within a tokio runtime.
    pub fn new(parts: Parts) -> Self {
        let Parts { roots, kubelet, socket, keeper, pods, links, children, policies, journal } =
            parts;
        let (adapters_away, adapters_stuck) = links.gauges();
        let (sub_interfaces, sub_interfaces_stuck) = children.gauges();
        let metrics = Metrics {
            adapters_away,
            adapters_stuck,
            sub_interfaces,
            sub_interfaces_stuck,
            ..Metrics::default()
        };
        Self {
            smc: Smc::new(&roots),
            roots,
            kubelet,
            socket,
            keeper,
            pods,
            links,
            children,
            policies,
            journal,
            metrics: Arc::new(metrics),
            containers: Arc::default(),
            scopes: Scopes::default(),
            metrics_at: OnceLock::new(),
            told: tokio::sync::watch::Sender::new(None),
            stale_files: tokio::sync::Notify::new(),
            unbooked: Mutex::default(),
            connection: Mutex::default(),
            recalled: tokio::sync::OnceCell::new(),
        }
    }

    /// The session that stands.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.connection().session.clone()
    }

    /// Takes over what is on record from before this process; once, and whoever comes meanwhile
    /// waits.
    async fn recall(&self) {
        let recall = async || {
            let roots = self.roots.clone();
            match tokio::task::spawn_blocking(move || records::read_all(&roots)).await {
                Ok(found) => {
                    for problem in &found.unreadable {
                        warn!("a record from before is lost: {problem}");
                    }
                    for pod in found.pods.iter().filter(|pod| !pod.mishaps.is_empty()) {
                        self.containers.trouble(&pod.pod.sandbox);
                    }
                    self.containers.recall(found.containers);
                }
                Err(problem) => error!("the records from before are lost: {problem}"),
            }
        };
        self.recalled.get_or_init(recall).await;
    }

    /// Does what is to be done now and then: tells of annotations that name no container, and
    /// gives memory back.
    pub fn tidy(&self) {
        for unmatched in self.scopes.overdue(super::scopes::PATIENCE) {
            self.tell_unmatched(unmatched);
        }
        self.pods.tidy();
    }

    /// Writes down what was decided for a container.
    pub(super) fn record(&self, id: &str, name: &str, pod: PodName, verdict: Verdict) {
        let runtime = self.session().map(|session| session.label.clone()).unwrap_or_default();
        let (id, name) = (id.to_owned(), name.to_owned());
        self.journal.container(Record {
            id,
            name,
            pod,
            runtime,
            at: seconds_since_1970(),
            verdict,
        });
    }

    /// What a pod asks to be moved or made in one of these ways, where it may ask for that and has a
    /// namespace of its own.
    pub(super) fn ask(
        &self,
        sandbox: &PodSandbox,
        network: &Network,
        ways: &[&str],
    ) -> Option<Ask> {
        let served = self.policies.now().dialects.volcengine == Dialect::Serve;
        Ask::of(sandbox, network, &*self.session()?, ways, served)
    }

    /// Names containers that run without what they asked for.
    pub(super) fn tell_slipped(&self, slipped: Vec<Slipped>) {
        for slipped in slipped {
            let sentence = slipped.sentence();
            error!(
                pod = %slipped.pod, container = slipped.name, id = slipped.id,
                "slipped through: {sentence}"
            );
            self.metrics.slipped.inc();
            self.containers.record(&slipped.id);
            self.record(&slipped.id, &slipped.name, slipped.pod, Verdict::Slipped { sentence });
        }
    }

    fn tell_unmatched(&self, unmatched: Unmatched) {
        let Unmatched { pod, annotations } = unmatched;
        let few: Vec<&String> = annotations.iter().take(NAMED).collect();
        warn!(%pod, annotations = ?few, all = annotations.len(), "annotations name no container of their pod");
        self.metrics.unmatched.inc_by(annotations.len() as u64);
        self.journal.unmatched(pod, seconds_since_1970(), annotations);
    }

    fn tell_state(&self, configuration: Option<&Configuration>, connected: bool) {
        let known = configuration.map(|configuration| RuntimeState {
            name: configuration.runtime.name.clone(),
            version: configuration.runtime.version.clone(),
            nri: configuration.runtime.nri.to_string(),
            request_timeout_ms: millis(configuration.request_timeout),
            registration_timeout_ms: millis(configuration.registration_timeout),
        });
        self.journal.daemon(DaemonState {
            runtime: known,
            connected,
            metrics: self.metrics_at.get().copied(),
            ..DaemonState::beginning()
        });
        self.metrics.connected.set(i64::from(connected));
        self.told.send_replace(
            configuration.filter(|_| connected).map(|known| known.runtime.to_string()),
        );
    }

    pub(super) fn unbooked(&self) -> MutexGuard<'_, Vec<Given>> {
        self.unbooked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and times a call.
    async fn timed<T>(&self, call: &'static str, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        self.book();
        let done = work.await;
        self.metrics.called(call, begun.elapsed());
        done
    }

    /// The last part of what there is has come.
    fn counted(self: &Daemon, census: Census) {
        let policy = self.policies.now();
        self.pods.retain(&census.sandboxes);
        self.links.retain(&census.sandboxes);
        self.children.retain(&census.sandboxes);
        self.scopes.retain(&census.sandboxes);
        // Before what is not told of any more is forgotten.
        let slipped = self.slipped(&census, &policy);
        let Census { containers, sandboxes, .. } = census;
        let kept = self.containers.retain(containers, &sandboxes);
        self.journal.retain(kept, sandboxes);
        self.tell_slipped(slipped);
    }

    fn slipped(&self, census: &Census, policy: &Policy) -> Vec<Slipped> {
        self.book();
        census.slipped(policy, |id, nodes| {
            self.containers.excuses(id, |path| nodes.iter().any(|node| node == path))
        })
    }

    /// What a runtime tells that is asked a while after a session began.
    pub(super) fn called_over(&self, census: &Census) {
        let unseen = self.containers.tell_all(&census.containers);
        if unseen > 0 {
            warn!(unseen, "there are containers that the runtime has told nothing about");
            self.metrics.unseen.inc_by(unseen as u64);
        }
        let policy = self.policies.now();
        self.tell_slipped(self.slipped(census, &policy));
    }
}

/// What a [`Daemon`] is made of.
#[derive(Debug)]
pub struct Parts {
    /// See [`Daemon::roots`].
    pub roots: Roots,
    /// See [`Daemon::kubelet`].
    pub kubelet: PathBuf,
    /// See [`Daemon::socket`].
    pub socket: PathBuf,
    /// See [`Daemon::keeper`].
    pub keeper: Keeper,
    /// See [`Daemon::pods`].
    pub pods: Pods,
    /// See [`Daemon::links`].
    pub links: Links,
    /// See [`Daemon::children`].
    pub children: Children,
    /// See [`Daemon::policies`].
    pub policies: Policies,
    /// See [`Daemon::journal`].
    pub journal: Journal,
}

/// The daemon, as a session wants it: shared.
#[derive(Debug, Clone)]
pub struct NriPlugin(pub Arc<Daemon>);

impl std::ops::Deref for NriPlugin {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl Outline for NriPlugin {
    fn concerns(&self, annotation: &str) -> bool {
        mentions_us([annotation])
    }

    fn whole(&self, container: &str) -> bool {
        self.containers.wants_asked(container) || self.containers.smc(container).is_some()
    }
}

#[async_trait]
impl Plugin for NriPlugin {
    fn connected(&self, runtime: Option<u32>) {
        let limits = runtime.map(|pid| runtime_limits::of_process(&self.roots, pid));
        self.connection().limits = limits.unwrap_or_default();
        self.metrics.sessions.inc();
    }

    fn deadline_percent(&self) -> u8 {
        self.policies.now().daemon.deadline_percent
    }

    async fn configure(&self, configuration: Configuration) -> Result<Events, String> {
        // Not before: an instance that stands by has another one's records before it until then.
        // And beside this, which is not to wait for it.
        let daemon = Arc::clone(&self.0);
        tokio::spawn(async move {
            daemon.recall().await;
            daemon.links.open().await;
            daemon.children.open().await;
        });
        self.policies.configure(&configuration.config).map_err(|problem| {
            error!("the configuration that the runtime gives is no policy: {problem}");
            format!("rdma-ctk: configuration of the plugin: {problem}")
        })?;
        let policy = self.policies.now();
        let session = {
            let mut connection = self.connection();
            let session = Session::new(&configuration, connection.limits, &self.roots, &policy);
            let session = Arc::new(session);
            connection.session = Some(Arc::clone(&session));
            connection.census = Census::new(self.containers.key());
            session
        };
        if session.is_docker() {
            warn!(
                "Docker's NRI carries environment and mounts only, for what another plugin or CDI \
                 has added; devices need --runtime rdma or --device rdma-ctk.io/hca=NAME"
            );
        }
        self.tell_state(Some(&configuration), true);
        Ok(Events::RUN_POD_SANDBOX
            | Events::STOP_POD_SANDBOX
            | Events::REMOVE_POD_SANDBOX
            | Events::CREATE_CONTAINER
            | Events::START_CONTAINER
            | Events::UPDATE_CONTAINER
            | Events::STOP_CONTAINER
            | Events::REMOVE_CONTAINER
            | Events::VALIDATE_CONTAINER_ADJUSTMENT)
    }

    fn outline(&self) -> Option<&dyn Outline> {
        Some(self)
    }

    async fn before_synchronising(&self) {
        // What is on record says which containers are to be told whole.
        self.recall().await;
    }

    async fn synchronize(&self, pieces: Pieces) -> Result<Vec<ContainerUpdate>, String> {
        let begun = Instant::now();
        let last = pieces.last;
        // The parts are compared with what is booked.
        self.book();
        let turned: Vec<Running> =
            pieces.containers.iter().filter_map(|container| self.running_smc(container)).collect();
        self.links.open().await;
        self.children.open().await;
        let with_files: Vec<Container> = pieces
            .containers
            .iter()
            .filter(|container| self.containers.wants_asked(&container.id))
            .cloned()
            .collect();
        let all = {
            let mut connection = self.connection();
            if pieces.first {
                connection.census = Census::new(self.containers.key());
                connection.resumed.clear();
                connection.turned.clear();
            }
            connection.resumed.extend(with_files);
            connection.turned.extend(turned);
            connection.census.add(pieces);
            let Connection { census, resumed, turned, .. } = &mut *connection;
            last.then(|| (std::mem::take(census), std::mem::take(resumed), std::mem::take(turned)))
        };
        if let Some((census, resumed, turned)) = all {
            self.smc.resume(turned);
            let resumed = resumed.into_iter().filter_map(|container| {
                Some((census.mentioning(&container.pod_sandbox_id)?.clone(), container))
            });
            resume::spawn(Arc::clone(&self.0), resumed.collect());
            self.counted(census);
            let call = roll_call::spawn(self.clone());
            if let Some(old) = self.connection().roll_call.replace(call) {
                old.abort();
            }
        }
        self.metrics.called("Synchronize", begun.elapsed());
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, sandbox: PodSandbox) {
        self.timed("RunPodSandbox", async {
            if mentions_us(sandbox.annotations.keys()) {
                let name = PodName::new(&pod(&sandbox), &sandbox.id);
                self.scopes.begin(&name, &sandbox.annotations);
                let network = network(&sandbox, None);
                self.pods.begin(&sandbox.id, &network);
                if let Some(ask) = self.ask(&sandbox, &network, links::WAYS) {
                    self.links.begin(ask, self.policies.now());
                }
                if let Some(ask) = self.ask(&sandbox, &network, children::WAYS) {
                    self.children.begin(ask, self.policies.now());
                }
            }
        })
        .await;
    }

    async fn stop_pod_sandbox(&self, sandbox: PodSandbox) {
        self.timed("StopPodSandbox", async {
            self.pods.forget(&sandbox.id);
            // Before its network is taken down, if that can be.
            let patience = self.session().map(|session| session.patience()).unwrap_or_default();
            self.links.end(&sandbox.id, patience).await;
            self.children.end(&sandbox.id, patience).await;
            if let Some(unmatched) = self.scopes.end(&sandbox.id) {
                self.tell_unmatched(unmatched);
            }
        })
        .await;
    }

    async fn remove_pod_sandbox(&self, sandbox: PodSandbox) {
        self.timed("RemovePodSandbox", async {
            self.pods.forget(&sandbox.id);
            self.links.end(&sandbox.id, Duration::ZERO).await;
            self.links.forget(&sandbox.id);
            self.children.end(&sandbox.id, Duration::ZERO).await;
            self.children.forget(&sandbox.id);
            self.scopes.end(&sandbox.id);
            let troubled = self.containers.calm(&sandbox.id);
            if troubled || mentions_us(sandbox.annotations.keys()) {
                self.journal.remove_pod(&sandbox.id);
            }
            for refused in self.containers.remove_pod(&sandbox.id) {
                self.journal.remove_container(&refused);
            }
        })
        .await;
    }

    async fn create_container(
        &self,
        sandbox: PodSandbox,
        container: Container,
    ) -> Result<CreateContainerResponse, String> {
        self.timed("CreateContainer", self.0.admit(&sandbox, &container)).await
    }

    async fn start_container(
        &self,
        sandbox: PodSandbox,
        container: Container,
    ) -> Result<(), String> {
        self.timed("StartContainer", async {
            self.containers.tell(&container.id);
            self.containers.start(&container.id);
            self.gate(&sandbox, &container, is_marked(&sandbox, &container))?;
            self.start_smc(&sandbox, &container).await
        })
        .await
    }

    async fn update_container(
        &self,
        sandbox: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        self.timed("UpdateContainer", async {
            Ok(self.update(&sandbox, &container, &resources).into_iter().collect())
        })
        .await
    }

    async fn stop_container(&self, _: PodSandbox, container: Container) {
        self.timed("StopContainer", async {
            self.smc.stop(&container.id);
            if let Some(granted) = self.containers.stop(&container.id)
                && !granted.started
            {
                warn!(
                    pod = %granted.pod, container = granted.name,
                    "the container was granted what it asked for and never started: the runtime, \
                     or another plugin that sets the same, has failed it; the runtime's log says \
                     why"
                );
            }
        })
        .await;
    }

    async fn remove_container(&self, _: PodSandbox, container: Container) {
        self.timed("RemoveContainer", async {
            self.smc.stop(&container.id);
            if self.containers.remove(&container.id) {
                self.journal.remove_container(&container.id);
            }
        })
        .await;
    }

    async fn validate_container_adjustment(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), String> {
        self.timed("ValidateContainerAdjustment", async {
            let adjusted = request.adjust.as_ref();
            let marked = adjusted.is_some_and(|adjust| carries_grant(&adjust.annotations));
            let (sandbox, container) = (request.pod.as_ref(), request.container.as_ref());
            match sandbox.zip(container) {
                Some((sandbox, container)) => self.gate(sandbox, container, marked),
                None => Ok(()),
            }
        })
        .await
    }

    fn mishap(&self, mishap: Mishap) {
        self.bungled(mishap);
    }

    fn session_ended(&self, end: &SessionEnd) {
        let mut connection = self.connection();
        connection.session = None;
        connection.census = Census::new(self.containers.key());
        connection.resumed = Vec::new();
        if let Some(call) = connection.roll_call.take() {
            call.abort();
        }
        drop(connection);
        if end.stage >= Stage::Configured && !matches!(end.reason, Reason::Stopped) {
            warn!("the session with the runtime has ended: {end}");
        }
        self.tell_state(None, false);
    }
}

/// Whether a container carries the mark of its grant. One on its pod makes it the tenant's own: a
/// runtime may hand a pod's annotations on to its containers.
fn is_marked(sandbox: &PodSandbox, container: &Container) -> bool {
    carries_grant(&container.annotations) && !carries_grant(&sandbox.annotations)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
