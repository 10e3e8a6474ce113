//! Adapters that move into pods (`netns.rdma-ctk.io: exclusive`), from the sandbox's start to its
//! end and beyond.
//!
//! What moves is decided and done when the sandbox runs, beside the runtime's call; a container
//! waits for it a little ([`PATIENCE`]), and the kubelet asks again. What comes back is looked after
//! until it is back.

pub mod host;
pub mod journal;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, OnceCell, Semaphore, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};

use self::host::Host;
use self::journal::Folder;
use super::ids::Ids;
use super::pods::Pods;
use super::session::Session;
use super::snapshot::Keeper;
use crate::grant::{Moving, exclusive, is_movable};
use crate::inventory::{Hca, Home, Node, Port};
use crate::netns::links::fleet::{Event, Fleet};
use crate::netns::links::{Entry, Goal};
use crate::nri::container::{Network, pod};
use crate::nri::proto::PodSandbox;
use crate::policy::Policy;
use crate::request::{
    Carrier, Container, Devices, Key, NetnsRequest, POD_NETWORKS, Pod, Request, SUFFIX, mentions_us,
};
use crate::roots::Roots;

/// What is asked for in `netns` where adapters are to move.
pub const WAYS: &[&str] = &["exclusive"];
/// How long a container waits for its pod's adapters.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// How long the sandbox's start waits for the first inventory, and for one after a move.
const INVENTORY: Duration = Duration::from_secs(60);
const ANEW: Duration = Duration::from_secs(5);
/// Most containers of a pod, and one more for those without a name.
const CONTAINERS: usize = 256;
/// How often adapters are looked after: those that should come back, first and at the longest, and
/// those that are where they should be.
const TEND: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The adapters of pods; clones share them.
#[derive(Debug, Clone)]
pub struct Links {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    roots: Roots,
    host: Box<dyn Host>,
    keeper: Keeper,
    views: Pods,
    /// `None` until this process serves: another one's adapters are none of ours to move.
    fleet: Mutex<Option<Fleet>>,
    opened: OnceCell<()>,
    pods: Mutex<HashMap<String, watch::Sender<State>>>,
    /// Adapters that the host does not see any more, as it saw them last.
    known: Mutex<HashMap<String, Hca>>,
    nudge: Notify,
    /// Whoever moves something has the fleet to himself: who waits for it keeps no thread, of which
    /// the daemon has few.
    turn: Semaphore,
    away: Gauge,
    stuck: Gauge,
}

/// How far a pod's adapters are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// They are on their way.
    Working,
    /// They are in the pod.
    Ready,
    /// They are not, and why: a sentence.
    Failed(String),
    /// The pod has ended.
    Ended,
}

/// What a pod asks for, as far as its sandbox tells.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The pod.
    pub pod: Pod,
    /// Identifier of its sandbox.
    pub sandbox: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its network namespace.
    pub namespace: PathBuf,
    /// The way to its containers.
    pub carrier: Carrier,
}

impl Ask {
    /// What a pod asks for in one of these ways, where it may ask for that and has a namespace of its
    /// own.
    pub(super) fn of(
        sandbox: &PodSandbox,
        network: &Network,
        session: &Session,
        ways: &[&str],
        served: bool,
    ) -> Option<Self> {
        let Network::Own(namespace) = network else { return None };
        let asks = Self::mentions(&sandbox.annotations, ways, served) && !session.is_docker();
        asks.then(|| Self {
            pod: pod(sandbox),
            sandbox: sandbox.id.clone(),
            annotations: sandbox.annotations.clone(),
            namespace: namespace.clone(),
            carrier: session.carrier.clone(),
        })
    }

    /// Whether anything in there may ask for one of these ways of the network side into the pod; all
    /// else is not looked at. `served`: a vendor's annotation for networks asks for them too.
    pub fn mentions(annotations: &BTreeMap<String, String>, ways: &[&str], served: bool) -> bool {
        let key = format!("{}.{SUFFIX}", Key::Netns.word());
        annotations.iter().any(|(name, value)| {
            let whole = name.split('/').next().unwrap_or_default();
            let ours = whole == key && ways.contains(&value.trim());
            // In which way, its request says.
            ours || (served && name == POD_NETWORKS)
        })
    }

    /// The requests of containers whose adapters are to reach the pod in one of these ways: of those
    /// that are named in an annotation, and of one that is not. What is wrong with an annotation,
    /// its container is told.
    ///
    /// # Errors
    /// More are named than a pod has: a sentence.
    pub(super) fn requests(
        &self,
        policy: &Policy,
        node: &Node,
        ways: impl Fn(NetnsRequest) -> bool,
    ) -> Result<Vec<Request>, String> {
        let ours = self.annotations.keys().filter(|key| mentions_us([key]));
        let names = ours.filter_map(|key| Some(key.split_once("/container.")?.1));
        let mut names: Vec<&str> = names.chain([""]).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > CONTAINERS {
            // Each is read for itself, out of all annotations.
            return Err(format!(
                "annotations of the pod name {} containers, and a pod has no more than {CONTAINERS}",
                names.len() - 1
            ));
        }
        let read = |name: &str| {
            let container =
                Container { name: name.to_owned(), pod: self.pod.clone(), ..Container::default() };
            Request::read(&self.annotations, container, self.carrier.clone(), policy, node).ok()
        };
        let moves = |request: &Request| {
            ways(request.netns)
                && request.devices.as_ref().is_some_and(|devices| *devices != Devices::None)
        };
        Ok(names.into_iter().filter_map(read).filter(moves).collect())
    }
}

impl Links {
    /// No adapters yet.
    pub fn new(roots: &Roots, host: Box<dyn Host>, keeper: Keeper, views: Pods) -> Self {
        Self {
            inner: Arc::new(Inner {
                roots: roots.clone(),
                host,
                keeper,
                views,
                fleet: Mutex::default(),
                opened: OnceCell::new(),
                pods: Mutex::default(),
                known: Mutex::default(),
                nudge: Notify::new(),
                turn: Semaphore::new(1),
                away: Gauge::default(),
                stuck: Gauge::default(),
            }),
        }
    }

    /// How many adapters are away, and how many of them do not come back.
    pub fn gauges(&self) -> (Gauge, Gauge) {
        (self.inner.away.clone(), self.inner.stuck.clone())
    }

    /// Takes over what the journal holds, repairs it, and looks after it from now on; once.
    pub async fn open(&self) {
        let open = async || {
            let inner = Arc::clone(&self.inner);
            self.blocking(move || inner.open()).await;
            let links = self.clone();
            tokio::spawn(async move { links.run().await });
            // What was found is looked at at once.
            self.inner.nudge.notify_one();
        };
        self.inner.opened.get_or_init(open).await;
    }

    /// Begins to move a pod's adapters, unless that is going on or done. To be called within a tokio
    /// runtime.
    pub fn begin(&self, ask: Ask, policy: Arc<Policy>) {
        let before = {
            let mut pods = self.pods();
            let state = pods
                .entry(ask.sandbox.clone())
                .or_insert_with(|| watch::Sender::new(State::Failed(String::new())));
            let State::Failed(before) = state.borrow().clone() else { return };
            state.send_replace(State::Working);
            before
        };
        let links = self.clone();
        tokio::spawn(async move { links.attach(ask, policy, before).await });
    }

    /// How far the adapters of a pod are, after waiting for them at most so long. What failed is
    /// tried again.
    pub async fn ready(&self, ask: Ask, policy: Arc<Policy>, patience: Duration) -> State {
        let sandbox = ask.sandbox.clone();
        self.begin(ask, policy);
        let receiver = self.pods().get(&sandbox).map(watch::Sender::subscribe);
        let Some(mut receiver) = receiver else { return State::Ended };
        match timeout(patience, receiver.wait_for(|state| *state != State::Working)).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => State::Ended,
            Err(_) => State::Working,
        }
    }

    /// A pod's sandbox stops: its adapters come back, and are waited for at most so long.
    pub async fn end(&self, sandbox: &str, patience: Duration) {
        let known =
            self.pods().get(sandbox).map(|state| state.send_replace(State::Ended)).is_some();
        if !known {
            return;
        }
        let (links, id) = (self.clone(), sandbox.to_owned());
        // It goes on when nobody waits for it any more.
        let back = tokio::spawn(async move {
            let inner = Arc::clone(&links.inner);
            links.blocking(move || inner.tend(|fleet| fleet.call_home(&id))).await
        });
        if timeout(patience, back).await.is_err() && !patience.is_zero() {
            info!(sandbox, "the adapters of the pod are still on their way back");
        }
        self.inner.nudge.notify_one();
    }

    /// The node with what is known of adapters that are in pods, where the host sees nothing of them
    /// but their nodes: ports and what hangs on them. GIDs are those that the pod sees.
    pub fn recognise(&self, node: Arc<Node>) -> Arc<Node> {
        let known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        let hidden = |hca: &Hca| hca.home == Home::Elsewhere && known.contains_key(&hca.name);
        if !node.hcas.iter().any(hidden) {
            return node;
        }
        let mut node = Node::clone(&node);
        for hca in node.hcas.iter_mut().filter(|hca| hidden(hca)) {
            let Some(known) = known.get(&hca.name) else { continue };
            let ports = known.ports.iter().map(|port| {
                let now = hca.ports.iter().find(|now| now.number == port.number);
                Port {
                    umad: now.and_then(|now| now.umad.clone()),
                    issm: now.and_then(|now| now.issm.clone()),
                    gids: Vec::new(),
                    ..port.clone()
                }
            });
            *hca = Hca {
                ports: ports.collect(),
                uverbs: hca.uverbs.clone(),
                home: Home::Elsewhere,
                ..known.clone()
            };
        }
        Arc::new(node)
    }

    /// Forgets a pod whose sandbox is removed.
    pub fn forget(&self, sandbox: &str) {
        self.pods().remove(sandbox);
    }

    /// Only these sandboxes are there: the adapters of others come back.
    pub fn retain(&self, sandboxes: &Ids) {
        self.pods().retain(|sandbox, _| sandboxes.contains(sandbox));
        let (links, sandboxes) = (self.clone(), sandboxes.clone());
        tokio::spawn(async move {
            let inner = Arc::clone(&links.inner);
            let retain = move |fleet: &mut Fleet| {
                fleet.retain(|sandbox| sandboxes.contains(sandbox));
            };
            links.blocking(move || inner.tend(retain)).await;
        });
    }

    /// Looks after adapters, for ever: often while some should come back, and now and then at those
    /// whose pod may have ended without a word.
    async fn run(&self) {
        let mut pause = TEND.0;
        loop {
            let nudged = timeout(pause, self.inner.nudge.notified()).await.is_ok();
            let inner = Arc::clone(&self.inner);
            let quiet = self.blocking(move || inner.tend(|_| {})).await.unwrap_or(true);
            pause = match (quiet, nudged) {
                (true, _) => TEND.1,
                (false, true) => TEND.0,
                (false, false) => (pause * 2).min(TEND.1),
            };
        }
    }

    /// Moves what a pod asks for, after a try that failed for the reason `before`, if any.
    async fn attach(&self, ask: Ask, policy: Arc<Policy>, before: String) {
        let begun = Instant::now();
        let sandbox = ask.sandbox.clone();
        let pod = format!("{}/{}", ask.pod.namespace, ask.pod.name);
        let done = match self.inner.keeper.node(INVENTORY).await {
            Ok(node) => {
                let inner = Arc::clone(&self.inner);
                let moved =
                    self.blocking(move || inner.move_in(&ask, &node, &policy, before)).await;
                moved.unwrap_or_else(|| Err("a fault of rdma-ctk while it moved adapters".into()))
            }
            Err(problem) => Err(problem.to_string()),
        };
        let state = match done {
            Ok(moved) => {
                if !moved.is_empty() {
                    info!(pod, adapters = ?moved, took = ?begun.elapsed(), "adapters moved into the pod");
                    // Its nodes may have other numbers, and its addresses are in the pod now.
                    self.inner.keeper.poke();
                    self.inner.keeper.read_since(Instant::now(), ANEW).await;
                    self.inner.views.forget(&sandbox);
                }
                State::Ready
            }
            Err(sentence) => {
                warn!(pod, "no adapter moved into the pod: {sentence}");
                State::Failed(sentence)
            }
        };
        if let Some(sender) = self.pods().get(&sandbox) {
            sender.send_if_modified(|present| {
                let working = *present == State::Working;
                if working {
                    *present = state;
                }
                working
            });
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.inner.turn.acquire().await.ok()?;
        match tokio::task::spawn_blocking(task).await {
            Ok(done) => Some(done),
            Err(problem) => {
                error!("moving adapters failed badly: {problem}");
                None
            }
        }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<State>>> {
        self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn fleet(&self) -> MutexGuard<'_, Option<Fleet>> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) {
        let folder = Folder::new(&self.roots);
        let (entries, problems) = folder.read_all();
        for problem in problems {
            error!("an adapter may be away that nobody brings back: {problem}");
        }
        for entry in &entries {
            info!(adapter = entry.hca, pod = entry.pod, goal = ?entry.goal, "found in the journal");
        }
        let inside = entries.iter().filter(|entry| entry.is_inside());
        let sandboxes: Vec<String> = inside.map(|entry| entry.sandbox.clone()).collect();
        let boot = boot(&self.roots);
        self.know(&entries);
        let fleet = Fleet::new(&boot, entries, self.host.kernel(), Box::new(folder));
        self.count(&fleet);
        *self.fleet() = Some(fleet);
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        for sandbox in sandboxes {
            // Asked again, it is found to be there or on its way back.
            let state = State::Failed("rdma-ctk was started anew".to_owned());
            pods.entry(sandbox).or_insert_with(|| watch::Sender::new(state));
        }
    }

    /// Does something with the fleet, brings back what is to come back, and tells of it. Whether
    /// nothing is left to do.
    fn tend(&self, first: impl FnOnce(&mut Fleet)) -> bool {
        let mut guard = self.fleet();
        let Some(fleet) = guard.as_mut() else { return true };
        first(fleet);
        let events = fleet.tend();
        for event in &events {
            match event {
                Event::Back { hca, pod } => info!(adapter = hca, pod, "the adapter is back"),
                Event::Stuck { hca, pod, reason } => {
                    error!(adapter = hca, pod, "the adapter does not come back: {reason}");
                }
            }
        }
        self.count(fleet);
        if !events.is_empty() {
            self.keeper.poke();
        }
        fleet.is_quiet()
    }

    fn know(&self, entries: &[Entry]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            if let Some(adapter) = &entry.adapter {
                known.insert(entry.hca.clone(), Hca::clone(adapter));
            }
        }
    }

    fn count(&self, fleet: &Fleet) {
        let (away, stuck) = fleet.counts();
        self.away.set(i64::try_from(away).unwrap_or(i64::MAX));
        self.stuck.set(i64::try_from(stuck).unwrap_or(i64::MAX));
    }

    /// Moves what a pod asks for; the names of what is in there now.
    fn move_in(
        &self,
        ask: &Ask,
        node: &Node,
        policy: &Policy,
        before: String,
    ) -> Result<Vec<String>, String> {
        // Not while others wait for the fleet.
        let requests = ask.requests(policy, node, |way| way == NetnsRequest::Exclusive)?;
        let mut guard = self.fleet();
        let fleet = guard.as_mut().ok_or("rdma-ctk does not serve yet")?;
        let ended = {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            pods.get(&ask.sandbox).is_none_or(|state| *state.borrow() == State::Ended)
        };
        if ended {
            return Err("the pod has ended".to_owned());
        }
        let (names, inside) = fleet.of(&ask.sandbox);
        match (names.is_empty(), inside) {
            (false, true) => return Ok(names),
            // The reason of the first try is the one that counts.
            (false, false) if !before.is_empty() => return Err(before),
            (false, false) => {
                return Err(refused(format!("{} on the way back first", names.join(", "))));
            }
            (true, _) => {}
        }
        let away = fleet.owners();
        let free = node.hcas.iter().filter(|hca| !away.contains_key(&hca.name));
        let uses = free
            .filter(|hca| is_movable(policy, hca) && !requests.is_empty())
            .map(|hca| (hca.name.clone(), self.host.uses(hca, node)))
            .collect();
        let moving = Moving { away, uses };
        let mut names: Vec<String> = Vec::new();
        for request in requests.iter().filter(|request| !request.container.pod.host_network) {
            let chosen = exclusive(request, node, policy, &moving);
            for name in chosen.map_err(|refusal| refusal.sentence)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let entries = self.entries(ask, node, &names)?;
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        self.know(&entries);
        let done = fleet.attach(entries);
        self.count(fleet);
        if done.is_err() {
            self.nudge.notify_one();
        }
        done.map_err(refused)?;
        Ok(names)
    }

    fn entries(&self, ask: &Ask, node: &Node, names: &[String]) -> Result<Vec<Entry>, String> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let Some(namespace) = self.host.place(&ask.namespace).map_err(refused)? else {
            return Ok(Vec::new());
        };
        let boot = boot(&self.roots);
        let entry = |name: &String| {
            let hca = node.hca(name).ok_or_else(|| refused(format!("{name} is gone")))?;
            let (index, netdev) =
                self.host.save(hca).map_err(|why| refused(format!("{name}: {why}")))?;
            Ok(Entry {
                boot: boot.clone(),
                pod: format!("{}/{}", ask.pod.namespace, ask.pod.name),
                sandbox: ask.sandbox.clone(),
                namespace: namespace.clone(),
                hca: name.clone(),
                index,
                adapter: Some(Box::new(hca.clone())),
                netdev,
                goal: Goal::Inside,
                step: None,
                settled: false,
                stuck: None,
            })
        };
        names.iter().map(entry).collect()
    }
}

fn refused(why: String) -> String {
    format!("{}.{SUFFIX}=exclusive: {why}", Key::Netns.word())
}

/// The boot that this is.
pub(super) fn boot(roots: &Roots) -> String {
    let path = roots.proc.join("sys/kernel/random/boot_id");
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
