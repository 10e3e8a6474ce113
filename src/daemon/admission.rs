//! What a container gets when it is created, started and updated: the runtime's words into the
//! engine, the engine's answer back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::{error, info, warn};

use super::children::{self, Children};
use super::containers::{Asked, Granted};
use super::cpu_manager;
use super::gate;
use super::links::{self, State};
use super::metrics::RefusalClass;
use super::plugin::Daemon;
use super::records::{PodName, Verdict, seconds_since_1970};
use super::session::Session;
use super::snapshot::NotReady;
use crate::edit;
use crate::grant::{Grant, Inventory, Made, Outcome, TopologyFile, decide, resend};
use crate::inventory::topologyd::topologyd;
use crate::inventory::{CpuSet, Node, PodView, cgroup};
use crate::nri::Mishap;
use crate::nri::container::{self, Network, may_claim, network, pod};
use crate::nri::proto::{
    Container, ContainerUpdate, CreateContainerResponse, LinuxContainerUpdate, LinuxCpu,
    LinuxResources, PodSandbox,
};
use crate::policy::{OnRefusal, Policy};
use crate::request::{self, NetnsRequest, NumaMode, Request, SmcMethod, mentions_us};
use crate::roots::Roots;

/// How long a pod's network may take to be read when nobody waits for it.
const LEISURE: Duration = Duration::from_secs(30);

/// Tasks that an answer goes through before it has left: ttrpc's writer, the trunk.
const HOPS: usize = 2;

/// The prefix of every text that reaches a user.
const PREFIX: &str = "rdma-ctk: ";

/// The container that is being decided about.
struct Candidate<'a> {
    sandbox: &'a PodSandbox,
    container: &'a Container,
    session: Arc<Session>,
    policy: Arc<Policy>,
    /// By when there is to be whatever is waited for; the inventory and the network share the time.
    until: Instant,
}

impl Candidate<'_> {
    /// How long may still be waited.
    fn patience(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn pod(&self) -> PodName {
        let PodSandbox { id, name, namespace, uid, .. } = self.sandbox;
        let uid = if uid.is_empty() { id } else { uid }.clone();
        PodName { namespace: namespace.clone(), name: name.clone(), uid, sandbox: id.clone() }
    }
}

type Answer = Result<CreateContainerResponse, String>;

/// What a container was given, to be kept in mind.
#[derive(Debug)]
pub(super) struct Given {
    id: String,
    pod: PodName,
    node: Arc<Node>,
    asked: Asked,
    grant: Box<Grant>,
    /// Its network was not known yet.
    pending: bool,
}

impl Daemon {
    /// What to change in a container that is being created.
    pub(super) async fn admit(
        self: &Arc<Self>,
        sandbox: &PodSandbox,
        container: &Container,
    ) -> Answer {
        let begun = Instant::now();
        self.containers.tell(&container.id);
        if self.scopes.met(&sandbox.id, &container.name) {
            self.journal.matched(&sandbox.id);
        }
        let nothing = CreateContainerResponse::default();
        let Some(session) = self.session() else {
            // Only ever if a runtime calls before it has configured us.
            return Err(format!("{PREFIX}the session is not configured"));
        };
        let annotations = session.annotations(sandbox, container);
        let mentioned = mentions_us(annotations.keys());
        let node = self.keeper.now();
        if !mentioned && !node.as_deref().is_some_and(|node| may_claim(container, node)) {
            return Ok(nothing);
        }
        let policy = self.policies.now();
        let until = begun + session.patience();
        let case = Candidate { sandbox, container, session, policy, until };
        let node = match node {
            Some(node) => node,
            None => match self.keeper.node(case.patience()).await {
                Ok(node) => node,
                Err(problem) => return self.unready(&case, &problem),
            },
        };
        self.decide(&case, &node).await
    }

    async fn decide(self: &Arc<Self>, case: &Candidate<'_>, node: &Arc<Node>) -> Answer {
        let Candidate { sandbox, container, session, policy, .. } = case;
        let nothing = CreateContainerResponse::default();
        let described = container::container(sandbox, container, &session.runtime, session.limits);
        let annotations = session.annotations(sandbox, container);
        let read = Request::read(annotations, described, session.carrier.clone(), policy, node);
        let mut request = match read {
            Ok(request) if request.asks() => request,
            Ok(_) => return Ok(nothing),
            Err(problem) if policy.wrapper_handlers.contains(&sandbox.runtime_handler) => {
                return self.leave(case, format!("it belongs to the runtime wrapper: {problem}"));
            }
            Err(problem) => {
                return self.refuse(case, RefusalClass::Annotation, problem.to_string());
            }
        };
        if let Some(reason) = &session.left {
            return self.leave(case, reason.clone());
        }
        let own = network(sandbox, Some(container));
        let anew = match self.moved(case, &request, &own).await {
            Ok(anew) => anew,
            Err((class, sentence)) => return self.refuse(case, class, sentence),
        };
        let node = anew.as_ref().unwrap_or(node);
        let children = match self.made(case, &request, &own).await {
            Ok(children) => children,
            Err((class, sentence)) => return self.refuse(case, class, sentence),
        };
        let (topology, view) = tokio::join!(
            self.look(case, &mut request),
            self.pods.view(&sandbox.id, &own, case.patience())
        );
        // Some runtimes name the host's namespace like any other, by a process in it.
        request.container.pod.host_network |= *view == PodView::Host;
        let smc = match request.smc {
            SmcMethod::Off => None,
            _ => Some(self.smc.facts(policy).await),
        };
        let children = children.as_deref();
        let inventory = Inventory { node, pod: &view, topology, smc: smc.as_ref(), children };
        match decide(&request, &inventory, policy) {
            Outcome::NotAsked => Ok(nothing),
            Outcome::LeftAlone { reason } => self.leave(case, reason),
            Outcome::Refused(refusal) => {
                self.refuse(case, RefusalClass::Decision, refusal.sentence)
            }
            Outcome::Waived(refusal) => self.waive(case, refusal.sentence),
            Outcome::Granted(grant) => {
                if let Some(smc) = &grant.smc
                    && let Err(why) = self.smc.prepare(&container.id, smc, &own).await
                {
                    let sentence = format!("smc.rdma-ctk.io: {}: {why}", smc.method);
                    return self.refuse(case, RefusalClass::Internal, sentence);
                }
                let asked = Asked { request: Arc::new(request), network: own };
                self.give(case, node, asked, grant, matches!(*view, PodView::Pending { .. }))
            }
        }
    }

    /// Waits for the pod's adapters, if it is to have any for itself; the inventory after that. A pod
    /// in the host's namespace has all adapters there already.
    async fn moved(
        &self,
        case: &Candidate<'_>,
        request: &Request,
        network: &Network,
    ) -> Result<Option<Arc<Node>>, (RefusalClass, String)> {
        if request.netns != NetnsRequest::Exclusive || request.devices.is_none() {
            return Ok(None);
        }
        let Some(ask) = self.ask(case.sandbox, network, links::WAYS) else { return Ok(None) };
        let patience = links::PATIENCE.min(case.patience());
        match self.links.ready(ask, Arc::clone(&case.policy), patience).await {
            State::Ready => Ok(self.keeper.now().map(|node| self.links.recognise(node))),
            State::Failed(sentence) => Err((RefusalClass::Decision, sentence)),
            State::Working => Err((
                RefusalClass::NotReady,
                "its adapters are on their way into the pod; the container is to be created again"
                    .to_owned(),
            )),
            State::Ended => Err((RefusalClass::NotReady, "the pod has ended".to_owned())),
        }
    }

    /// Waits for the pod's sub-interfaces, if the container is to have any; those that there are.
    async fn made(
        &self,
        case: &Candidate<'_>,
        request: &Request,
        network: &Network,
    ) -> Result<Option<Arc<[Made]>>, (RefusalClass, String)> {
        if !Children::serve(request) {
            return Ok(None);
        }
        let none = || Some(Arc::from([]));
        let Some(ask) = self.ask(case.sandbox, network, children::WAYS) else { return Ok(none()) };
        let patience = links::PATIENCE.min(case.patience());
        match self.children.ready(ask, Arc::clone(&case.policy), patience).await {
            State::Ready => Ok(self.children.made(&case.sandbox.id).or_else(none)),
            State::Failed(sentence) => Err((RefusalClass::Decision, sentence)),
            State::Working => Err((
                RefusalClass::NotReady,
                "its sub-interfaces are being made; the container is to be created again"
                    .to_owned(),
            )),
            State::Ended => Err((RefusalClass::NotReady, "the pod has ended".to_owned())),
        }
    }

    /// What the runtime does not say and small files of the node do: whose a container's CPUs are
    /// and which its group has, into the request, and whether policy's topology file is there. Read
    /// off the event loop, if there is anything to read.
    async fn look(&self, case: &Candidate<'_>, request: &mut Request) -> Option<TopologyFile> {
        let cpus = request.numa != NumaMode::Off;
        let container = &request.container;
        let given = container.cpus.clone().filter(|_| cpus);
        let group = group(case).filter(|_| cpus);
        if given.is_none() && group.is_none() && case.policy.topology_file.is_none() {
            // One look at a file system in memory.
            return topology(&case.policy, &self.roots);
        }
        let (pod, name) = (container.pod.uid.clone(), container.name.clone());
        let (roots, kubelet) = (self.roots.clone(), self.kubelet.clone());
        let policy = Arc::clone(&case.policy);
        let read = tokio::task::spawn_blocking(move || {
            let owner = given.and_then(|given| cpu_manager::owner(&kubelet, &pod, &name, &given));
            let topology = topology(&policy, &roots);
            let parent = group.map(|(parent, own)| {
                cgroup::parent_cpus(&roots, &parent, &own).map_err(|problem| problem.to_string())
            });
            (owner, parent.unwrap_or(Ok(None)), topology)
        });
        let (owner, parent, topology) = match timeout_at(case.until, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(problem)) => (None, Err(problem.to_string()), None),
            Err(_) => (None, Err("reading them takes too long".to_owned()), None),
        };
        request.container.cpus_owned = owner;
        match parent {
            Ok(cpus) => request.container.parent_cpus = cpus,
            Err(problem) => {
                warn!(pod = %case.pod(), "the CPUs of its group are unknown: {problem}");
            }
        }
        topology
    }

    fn give(
        self: &Arc<Self>,
        case: &Candidate<'_>,
        node: &Arc<Node>,
        asked: Asked,
        grant: Box<Grant>,
        pending: bool,
    ) -> Answer {
        let id = &case.container.id;
        let mut files = Vec::with_capacity(grant.files.len());
        for file in &grant.files {
            match self.journal.store().write_file(id, file) {
                Ok(path) => files.push(path.to_string_lossy().into_owned()),
                Err(problem) => {
                    return self.refuse(case, RefusalClass::Internal, problem.to_string());
                }
            }
        }
        let adjust = case.session.carried(edit::nri::adjustment(&grant, &files));
        let given = Given {
            id: id.clone(),
            pod: case.pod(),
            node: Arc::clone(node),
            asked,
            grant,
            pending,
        };
        self.unbooked().push(given);
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            // Behind the answer. Whatever the runtime asks next does it itself if it comes first.
            for _ in 0..HOPS {
                tokio::task::yield_now().await;
            }
            daemon.book();
        });
        Ok(CreateContainerResponse { adjust: Some(adjust), update: Vec::new() })
    }

    /// Keeps in mind what containers were given whose creation has been answered.
    pub(super) fn book(&self) {
        let given = std::mem::take(&mut *self.unbooked());
        given.into_iter().for_each(|given| self.book_one(given));
    }

    fn book_one(&self, given: Given) {
        let Given { id, pod, node, asked, grant, pending } = given;
        let container = &asked.request.container;
        let name = container.name.clone();
        let mut granted = Granted::new(pod.clone(), &name, &grant);
        granted.measure(&node, container.cpus.as_ref().or(container.parent_cpus.as_ref()));
        if !grant.files.is_empty() {
            granted.asked = Some(asked);
            if pending {
                self.stale_files.notify_one();
            }
        }
        if let Some(history) = self.containers.grant(&id, granted) {
            self.journal.remove_container(&history);
        }
        self.metrics.grants.inc();
        self.record(&id, &name, pod, Verdict::Granted { grant });
    }

    fn leave(&self, case: &Candidate<'_>, sentence: String) -> Answer {
        let (pod, container) = (case.pod(), case.container);
        info!(%pod, container = container.name, "left alone: {sentence}");
        self.metrics.left.inc();
        self.containers.record(&container.id);
        self.record(&container.id, &container.name, pod, Verdict::Left { sentence });
        Ok(CreateContainerResponse::default())
    }

    fn waive(&self, case: &Candidate<'_>, sentence: String) -> Answer {
        let (pod, container) = (case.pod(), case.container);
        warn!(%pod, container = container.name, "starts without, as policy says: {sentence}");
        self.metrics.waived.inc();
        self.containers.record(&container.id);
        self.record(&container.id, &container.name, pod, Verdict::Waived { sentence });
        Ok(CreateContainerResponse::default())
    }

    /// Refuses a container, or lets it go without where policy says so.
    fn refuse(&self, case: &Candidate<'_>, class: RefusalClass, sentence: String) -> Answer {
        if case.policy.allowance(&pod(case.sandbox)).on_refusal == OnRefusal::Warn {
            return self.waive(case, sentence);
        }
        let (pod, container) = (case.pod(), case.container);
        Err(self.refusal(&container.id, &container.name, pod, class, sentence))
    }

    fn refusal(
        &self,
        id: &str,
        name: &str,
        pod: PodName,
        class: RefusalClass,
        sentence: String,
    ) -> String {
        warn!(%pod, container = name, "refused: {sentence}");
        self.metrics.refused(class);
        if let Some(history) = self.containers.refuse(id, &pod, name) {
            self.journal.remove_container(&history);
        }
        let text = format!("{PREFIX}{sentence}");
        self.record(id, name, pod, Verdict::Refused { sentence });
        text
    }

    /// A call went wrong on this side, and has been answered. Where that was an error the container
    /// is refused; else the pod's record says what happened.
    pub(super) fn bungled(&self, mishap: Mishap) {
        let Mishap { call, kind, failed, text, pod: sandbox, container } = mishap;
        self.metrics.mishap(call, kind);
        self.book();
        let Some(sandbox) = sandbox else { return error!(call, "a call went wrong: {text}") };
        let name = PodName::new(&pod(&sandbox), &sandbox.id);
        let of = container.as_ref().map(|container| container.name.as_str());
        error!(pod = %name, container = of, call, "a call went wrong: {text}");
        match container {
            Some(Container { id, name: of, .. }) if failed && call != "UpdateContainer" => {
                self.refusal(&id, &of, name, RefusalClass::Internal, text);
            }
            container => {
                self.containers.trouble(&sandbox.id);
                let of = container.map(|container| format!("container {}: ", container.name));
                let sentence = of.unwrap_or_default() + &text;
                self.journal.mishap(name, seconds_since_1970(), sentence);
            }
        }
    }

    /// There is no inventory: what a container asks is all that can be known of it.
    fn unready(&self, case: &Candidate<'_>, problem: &NotReady) -> Answer {
        let Candidate { sandbox, container, session, policy, .. } = case;
        let annotations = session.annotations(sandbox, container);
        match gate::asked(annotations, &pod(sandbox), &container.name, policy) {
            Some(asked) => self.refuse(case, RefusalClass::NotReady, format!("{asked}: {problem}")),
            None => Ok(CreateContainerResponse::default()),
        }
    }

    /// Whether a container may start, or be created like this, that `marked` says to carry its
    /// grant. Refuses one that has asked and was created without us.
    pub(super) fn gate(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        marked: bool,
    ) -> Result<(), String> {
        if marked || !mentions_us(sandbox.annotations.keys()) {
            return Ok(());
        }
        let devices = container.linux.as_ref().map(|linux| linux.devices.as_slice());
        let has = |path: &str| devices.unwrap_or_default().iter().any(|node| node.path == path);
        if self.containers.excuses(&container.id, has) {
            return Ok(());
        }
        let policy = self.policies.now();
        let described = pod(sandbox);
        let asked = gate::asked(&sandbox.annotations, &described, &container.name, &policy);
        let left = self.session().is_some_and(|session| session.left.is_some());
        let Some(asked) = asked.filter(|_| !left) else { return Ok(()) };
        let name = PodName::new(&described, &sandbox.id);
        let sentence = format!(
            "{asked}: the container was created while rdma-ctk was not connected, and has no RDMA; \
             it has to be created again"
        );
        self.refuse_start(sandbox, container, name, sentence)
    }

    /// Refuses a container that is about to start, or lets it go where policy says so.
    pub(super) fn refuse_start(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        name: PodName,
        sentence: String,
    ) -> Result<(), String> {
        if self.policies.now().allowance(&pod(sandbox)).on_refusal == OnRefusal::Warn {
            warn!(pod = %name, container = container.name, "starts without, as policy says: {sentence}");
            self.metrics.waived.inc();
            self.containers.record(&container.id);
            self.record(&container.id, &container.name, name, Verdict::Waived { sentence });
            return Ok(());
        }
        let (id, class) = (&container.id, RefusalClass::Gate);
        Err(self.refusal(id, &container.name, name, class, sentence))
    }

    /// What to change in new resources of a container: a CPU set that the kubelet sends is narrowed
    /// as it was at creation. Never anything about devices.
    pub(super) fn update(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        resources: &LinuxResources,
    ) -> Option<ContainerUpdate> {
        let granted = self.containers.granted(&container.id)?;
        self.compare_devices(&granted, container);
        let grant = granted.narrowing?;
        let cpu = resources.cpu.as_ref()?;
        let given: CpuSet = cpu.cpus.parse().ok().filter(|given: &CpuSet| !given.is_empty())?;
        let (session, node) = (self.session()?, self.keeper.now()?);
        let mut described =
            container::container(sandbox, container, &session.runtime, session.limits);
        adopt(&mut described, cpu);
        let resent = resend(&given, &grant, &described, &node);
        info!(
            pod = %granted.pod, container = granted.name,
            "CPUs {given} were sent for it: {}", resent.said
        );
        let cpus = resent.cpus?.to_string();
        let cpu = LinuxCpu { cpus, ..LinuxCpu::default() };
        let resources = LinuxResources { cpu: Some(cpu), ..LinuxResources::default() };
        Some(ContainerUpdate {
            container_id: container.id.clone(),
            linux: Some(LinuxContainerUpdate { resources: Some(resources) }),
            ignore_failure: false,
        })
    }

    /// Looks whether the container still has the device nodes that it was given.
    fn compare_devices(&self, granted: &Granted, container: &Container) {
        let Some(linux) = container.linux.as_ref().filter(|linux| !linux.devices.is_empty()) else {
            return;
        };
        let lost: Vec<&String> = granted
            .devices
            .iter()
            .filter(|path| !linux.devices.iter().any(|device| device.path == **path))
            .collect();
        if !lost.is_empty() {
            self.metrics.mismatches.inc();
            warn!(
                pod = %granted.pod, container = granted.name, ?lost,
                "the runtime does not list device nodes any more that the container was given"
            );
        }
    }

    /// Writes the files anew that are bound into containers, where what they should say has
    /// changed since.
    pub async fn refresh_files(&self) {
        let Some(node) = self.keeper.now() else { return };
        let node = self.links.recognise(node);
        self.book();
        let policy = self.policies.now();
        let of = Arc::clone(&policy);
        let roots = self.roots.clone();
        let topology = tokio::task::spawn_blocking(move || topology(&of, &roots)).await;
        let topology = topology.unwrap_or_default();
        for (id, pod, Asked { request, network }) in self.containers.with_files() {
            let view = self.pods.view(&pod.sandbox, &network, LEISURE).await;
            if matches!(*view, PodView::Pending { .. } | PodView::Unknown { .. }) {
                // What the file says is no worse than what could be said now.
                continue;
            }
            // What a file says is of the devices alone.
            let request = Request { smc: SmcMethod::Off, ..Request::clone(&request) };
            let children = self.children.made(&pod.sandbox);
            let inventory = Inventory {
                node: &node,
                pod: &view,
                topology,
                smc: None,
                children: children.as_deref(),
            };
            let Outcome::Granted(grant) = decide(&request, &inventory, &policy) else { continue };
            // The container may be gone by now. And a file that names other adapters than its nodes
            // and its environment do is worse than one that is old.
            let adapters: Vec<&String> =
                grant.adapters.iter().map(|adapter| &adapter.name).collect();
            let Some(granted) = self.containers.granted(&id) else { continue };
            if !granted.adapters.iter().eq(adapters) {
                continue;
            }
            for file in grant.files {
                let (store, id) = (self.journal.store().clone(), id.clone());
                let written =
                    tokio::task::spawn_blocking(move || store.write_file(&id, &file)).await;
                if let Ok(Err(problem)) = written {
                    warn!(%pod, "a file of the container stays as it was: {problem}");
                }
            }
        }
    }
}

/// Where the group of a container will be, as the pod says it and as the container does.
fn group(case: &Candidate<'_>) -> Option<(String, String)> {
    let parent = case.sandbox.linux.as_ref().map(|linux| linux.cgroup_parent.clone());
    let own = case.container.linux.as_ref().map(|linux| linux.cgroups_path.clone());
    let group = (parent.unwrap_or_default(), own.unwrap_or_default());
    (group != Default::default()).then_some(group)
}

/// Takes over the limits that a container is to have from now on.
fn adopt(container: &mut request::Container, cpu: &LinuxCpu) {
    // 0 is "as it was" in a request that changes resources.
    if let Some(shares) = cpu.shares.as_ref().map(|shares| shares.value).filter(|&s| s > 0) {
        container.cpu_shares = Some(shares);
    }
    let period = cpu.period.as_ref().map(|period| period.value).filter(|&period| period > 0);
    let quota = cpu.quota.as_ref().map(|quota| quota.value);
    match (quota, period) {
        (Some(quota), _) if quota < 0 => container.cpu_limit_milli = None,
        (Some(quota), Some(period)) if quota > 0 => {
            let quota = u64::try_from(quota).unwrap_or(u64::MAX);
            container.cpu_limit_milli = quota.checked_mul(1000).map(|quota| quota / period);
        }
        _ => {}
    }
}

/// What is seen of the topology file that policy names, else of the vendor's.
fn topology(policy: &Policy, roots: &Roots) -> Option<TopologyFile> {
    let Some(path) = policy.topology_file.as_ref() else {
        return topologyd(roots).map(|mode| TopologyFile::Vendor { mode });
    };
    Some(match fs::metadata(path) {
        Ok(data) if data.is_file() => {
            TopologyFile::Present { mode: data.permissions().mode() & 0o7777 }
        }
        Ok(_) | Err(_) => TopologyFile::Missing,
    })
}
