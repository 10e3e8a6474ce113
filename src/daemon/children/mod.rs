//! Sub-interfaces of pods (`netns.rdma-ctk.io: ipvlan`, `macvlan`), from the sandbox's start to its
//! end and beyond.
//!
//! As with adapters that move ([`super::links`]), what is made is decided and done when the sandbox
//! runs, beside the runtime's call; a container waits for it a little, and the kubelet asks again.

mod addresses;
pub mod journal;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, OnceCell, Semaphore, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};

use self::journal::Folder;
use super::ids::Ids;
use super::links::{Ask, State, boot};
use super::pods::Pods;
use super::snapshot::Keeper;
use crate::grant::{Made, Present, Wanted, children, is_child, together, word};
use crate::inventory::{Node, Prefix};
use crate::netns::addresses::{Leases, Wanted as WantedAddress, Wish};
use crate::netns::children::book::{Book, Event, Found, Hands, Order};
use crate::netns::children::making::Work;
use crate::netns::children::node::Node as Leased;
use crate::netns::children::{self, Child, Entry, Ground, Kind};
use crate::policy::Policy;
use crate::request::{Key, NetnsRequest, Request, SUFFIX};
use crate::roots::Roots;

/// What is asked for in `netns` where sub-interfaces are to be made.
pub const WAYS: &[&str] = &["ipvlan", "macvlan"];
/// How long the sandbox's start waits for the first inventory.
const INVENTORY: Duration = Duration::from_secs(60);
/// How often what should go is tried again, at first and at the longest.
const TEND: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Pods at once whose sub-interfaces are made, and threads at once that look after the rest: most of
/// the daemon's threads are left to containers that ask for something else.
const MAKERS: usize = 8;
const TENDERS: usize = 2;

/// The sub-interfaces of pods; clones share them.
#[derive(Debug, Clone)]
pub struct Children {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    roots: Roots,
    keeper: Keeper,
    views: Pods,
    /// Until this process serves, and what it is then.
    ground: Mutex<Option<Box<dyn Ground>>>,
    /// `None` until this process serves: another one's are none of ours to end.
    book: Mutex<Option<Book>>,
    opened: OnceCell<()>,
    pods: Mutex<HashMap<String, watch::Sender<State>>>,
    /// What was made, apart from the book, which is held while namespaces are entered.
    made: Mutex<HashMap<String, Arc<[Made]>>>,
    nudge: Notify,
    makers: Semaphore,
    tenders: Semaphore,
    present: Gauge,
    stuck: Gauge,
}

impl Children {
    /// None yet.
    pub fn new(roots: &Roots, ground: Box<dyn Ground>, keeper: Keeper, views: Pods) -> Self {
        Self {
            inner: Arc::new(Inner {
                roots: roots.clone(),
                keeper,
                views,
                ground: Mutex::new(Some(ground)),
                book: Mutex::default(),
                opened: OnceCell::new(),
                pods: Mutex::default(),
                made: Mutex::default(),
                nudge: Notify::new(),
                makers: Semaphore::new(MAKERS),
                tenders: Semaphore::new(TENDERS),
                present: Gauge::default(),
                stuck: Gauge::default(),
            }),
        }
    }

    /// How many there are, and how many of them do not go.
    pub fn gauges(&self) -> (Gauge, Gauge) {
        (self.inner.present.clone(), self.inner.stuck.clone())
    }

    /// Whether that request is for sub-interfaces.
    pub fn serve(request: &Request) -> bool {
        is_child(request.netns)
            && request
                .devices
                .as_ref()
                .is_some_and(|devices| *devices != crate::request::Devices::None)
    }

    /// Takes over what the journal holds, ends what was not completed, and looks after it from now
    /// on; once.
    pub async fn open(&self) {
        let open = async || {
            let inner = Arc::clone(&self.inner);
            blocking(&self.inner.tenders, move || inner.open()).await;
            let children = self.clone();
            tokio::spawn(async move { children.run().await });
            self.inner.nudge.notify_one();
        };
        self.inner.opened.get_or_init(open).await;
    }

    /// Begins to make a pod's sub-interfaces, unless that is going on or done. To be called within a
    /// tokio runtime.
    pub fn begin(&self, ask: Ask, policy: Arc<Policy>) {
        {
            let mut pods = self.inner.pods();
            let state = pods
                .entry(ask.sandbox.clone())
                .or_insert_with(|| watch::Sender::new(State::Failed(String::new())));
            if !matches!(*state.borrow(), State::Failed(_)) {
                return;
            }
            state.send_replace(State::Working);
        }
        let children = self.clone();
        tokio::spawn(async move { children.attach(ask, policy).await });
    }

    /// How far the sub-interfaces of a pod are, after waiting for them at most so long. What failed
    /// is tried again.
    pub async fn ready(&self, ask: Ask, policy: Arc<Policy>, patience: Duration) -> State {
        let sandbox = ask.sandbox.clone();
        self.begin(ask, policy);
        let receiver = self.inner.pods().get(&sandbox).map(watch::Sender::subscribe);
        let Some(mut receiver) = receiver else { return State::Ended };
        match timeout(patience, receiver.wait_for(|state| *state != State::Working)).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => State::Ended,
            Err(_) => State::Working,
        }
    }

    /// What was made for a pod; `None`: nothing is made or going to be.
    pub fn made(&self, sandbox: &str) -> Option<Arc<[Made]>> {
        self.inner.made().get(sandbox).cloned()
    }

    /// A pod's sandbox stops: its sub-interfaces go and their addresses become free, which is waited
    /// for at most so long.
    pub async fn end(&self, sandbox: &str, patience: Duration) {
        let state = self.inner.pods().get(sandbox).map(|state| state.send_replace(State::Ended));
        if state.is_none() {
            return;
        }
        self.inner.made().remove(sandbox);
        let (inner, id) = (Arc::clone(&self.inner), sandbox.to_owned());
        let end = move |book: &mut Book| book.end(&id);
        // It goes on when nobody waits for it any more.
        let gone = tokio::spawn(async move {
            let tend = Arc::clone(&inner);
            blocking(&inner.tenders, move || tend.tend(end)).await
        });
        if timeout(patience, gone).await.is_err() && !patience.is_zero() {
            info!(sandbox, "the sub-interfaces of the pod are still going");
        }
        self.inner.nudge.notify_one();
    }

    /// Forgets a pod whose sandbox is removed.
    pub fn forget(&self, sandbox: &str) {
        self.inner.pods().remove(sandbox);
        self.inner.made().remove(sandbox);
    }

    /// Only these sandboxes are there: the sub-interfaces of others go.
    pub fn retain(&self, sandboxes: &Ids) {
        self.inner.pods().retain(|sandbox, _| sandboxes.contains(sandbox));
        self.inner.made().retain(|sandbox, _| sandboxes.contains(sandbox));
        let (inner, sandboxes) = (Arc::clone(&self.inner), sandboxes.clone());
        tokio::spawn(async move {
            let retain = move |book: &mut Book| {
                if let Some(problem) = book.retain(|sandbox| sandboxes.contains(sandbox)) {
                    error!("what is on record of sub-interfaces: {problem}");
                }
            };
            let tend = Arc::clone(&inner);
            blocking(&inner.tenders, move || tend.tend(retain)).await;
        });
    }

    /// Tries again what does not go, for ever.
    async fn run(&self) {
        let mut pause = TEND.0;
        loop {
            let nudged = timeout(pause, self.inner.nudge.notified()).await.is_ok();
            let inner = Arc::clone(&self.inner);
            let quiet = blocking(&self.inner.tenders, move || inner.tend(|_| {})).await;
            let quiet = quiet.unwrap_or(true);
            pause = match (quiet, nudged) {
                (true, _) => TEND.1,
                (false, true) => TEND.0,
                (false, false) => (pause * 2).min(TEND.1),
            };
        }
    }

    /// Makes what a pod asks for.
    async fn attach(&self, ask: Ask, policy: Arc<Policy>) {
        let begun = Instant::now();
        let sandbox = ask.sandbox.clone();
        let pod = format!("{}/{}", ask.pod.namespace, ask.pod.name);
        let done = match self.inner.keeper.node(INVENTORY).await {
            Ok(node) => {
                let inner = Arc::clone(&self.inner);
                let make = move || inner.make(&ask, &node, &policy);
                let made = blocking(&self.inner.makers, make).await;
                made.unwrap_or_else(|| Err("a fault of rdma-ctk while it made them".to_owned()))
            }
            Err(problem) => Err(problem.to_string()),
        };
        let state = match done {
            Ok(made) => {
                if !made.is_empty() {
                    let told: Vec<&str> = made.iter().map(|made| made.interface.as_str()).collect();
                    info!(pod, interfaces = ?told, took = ?begun.elapsed(), "sub-interfaces made");
                }
                // Its addresses are others by now.
                self.inner.views.forget(&sandbox);
                self.inner.made().insert(sandbox.clone(), made.into());
                State::Ready
            }
            Err(sentence) => {
                warn!(pod, "no sub-interface was made for the pod: {sentence}");
                State::Failed(sentence)
            }
        };
        let working = self.inner.pods().get(&sandbox).is_some_and(|sender| {
            sender.send_if_modified(|present| {
                let working = *present == State::Working;
                if working {
                    *present = state;
                }
                working
            })
        });
        if !working {
            // The pod has ended meanwhile, and nobody else will end what was made since.
            self.inner.made().remove(&sandbox);
            let inner = Arc::clone(&self.inner);
            let end = move || inner.tend(|book| book.end(&sandbox));
            blocking(&self.inner.tenders, end).await;
        }
    }
}

/// Does what may block on a thread for that, of which there are so many at once.
async fn blocking<T: Send + 'static>(
    threads: &Semaphore,
    task: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let _thread = threads.acquire().await.ok()?;
    match tokio::task::spawn_blocking(task).await {
        Ok(done) => Some(done),
        Err(problem) => {
            error!("making sub-interfaces failed badly: {problem}");
            None
        }
    }
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, Option<Book>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<State>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Arc<[Made]>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) {
        let Some(ground) = self.ground.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let folder = Folder::new(&self.roots);
        let (entries, mut problems) = folder.read_all();
        let found = Found { entries, whole: problems.is_empty() };
        let (leases, unread) = Leases::open(&self.roots);
        problems.extend(unread.iter().map(ToString::to_string));
        let leases = Leased::new(leases);
        let boot = boot(&self.roots);
        let (journal, leases) = (Box::new(folder), Box::new(leases));
        let (book, more) = Book::new(&boot, found, Hands { ground, journal, leases });
        for problem in problems.iter().chain(&more) {
            error!("what is on record of sub-interfaces: {problem}");
        }
        {
            let (mut pods, mut made) = (self.pods(), self.made());
            for entry in book.entries().filter(|entry| entry.state == children::State::Made) {
                info!(pod = entry.pod, "sub-interfaces found in the journal");
                made.insert(entry.sandbox.clone(), made_of(entry));
                pods.insert(entry.sandbox.clone(), watch::Sender::new(State::Ready));
            }
        }
        self.count(&book);
        *self.book() = Some(book);
    }

    /// Does something with the book, ends what is to go, and tells of it. Whether nothing is left to
    /// do.
    fn tend(&self, first: impl FnOnce(&mut Book)) -> bool {
        let mut guard = self.book();
        let Some(book) = guard.as_mut() else { return true };
        first(book);
        for event in book.tend() {
            match event {
                Event::Gone { pod, hcas } => {
                    info!(pod, adapters = ?hcas, "the sub-interfaces are gone");
                }
                Event::Stuck { pod, reason } => {
                    error!(pod, "the sub-interfaces of the pod do not go: {reason}");
                }
            }
        }
        self.count(book);
        book.is_quiet()
    }

    fn count(&self, book: &Book) {
        let (present, stuck) = book.counts();
        self.present.set(i64::try_from(present).unwrap_or(i64::MAX));
        self.stuck.set(i64::try_from(stuck).unwrap_or(i64::MAX));
    }

    /// Makes what a pod asks for; what there is then.
    fn make(&self, ask: &Ask, node: &Node, policy: &Policy) -> Result<Vec<Made>, String> {
        // Not while others wait for the book: a pod's annotations may be long.
        let requests = ask.requests(policy, node, is_child)?;
        let (work, kind) = match self.begin(ask, &requests, node, policy)? {
            Begun::Made(made) => return Ok(made),
            Begun::Work(work, kind) => (work, kind),
        };
        let (entry, made) = work.run();
        let mut guard = self.book();
        let book = guard.as_mut().ok_or("rdma-ctk does not serve any more")?;
        let done = book.finish(entry, made);
        self.count(book);
        if done.is_err() {
            self.nudge.notify_one();
        }
        done.map_err(|why| refused(kind, &why))?;
        Ok(book.of(&ask.sandbox).map(|entry| made_of(entry).to_vec()).unwrap_or_default())
    }

    /// Decides what is to be made for a pod.
    fn begin(
        &self,
        ask: &Ask,
        requests: &[Request],
        node: &Node,
        policy: &Policy,
    ) -> Result<Begun, String> {
        let mut guard = self.book();
        let book = guard.as_mut().ok_or("rdma-ctk does not serve yet")?;
        let ended = {
            let pods = self.pods();
            pods.get(&ask.sandbox).is_none_or(|state| *state.borrow() == State::Ended)
        };
        if ended {
            return Err("the pod has ended".to_owned());
        }
        // What a try left behind goes before the next.
        book.tend_one(&ask.sandbox);
        if let Some(entry) = book.of(&ask.sandbox)
            && entry.state == children::State::Made
        {
            return Ok(Begun::Made(made_of(entry).to_vec()));
        }
        let present: Vec<Present> = book.all().map(present).collect();
        let own_network = requests.iter().filter(|request| !request.container.pod.host_network);
        let chosen = own_network.map(|request| {
            let chosen = children(request, node, policy, &present);
            Ok((request, chosen.map_err(|refusal| refusal.sentence)?))
        });
        let chosen: Vec<(&Request, Vec<Wanted>)> = chosen.collect::<Result<_, String>>()?;
        let addresses = addresses::wanted(&chosen)?;
        let wanted: Vec<Wanted> = chosen.into_iter().flat_map(|(_, chosen)| chosen).collect();
        let Some(kind) = wanted.first().map(|wanted| wanted.kind) else {
            return Ok(Begun::Made(Vec::new()));
        };
        let told = |why: String| refused(kind, &why);
        let wanted = together(wanted, node, policy).map_err(told)?;
        // Those of pods whose lease is lost, too.
        let held = book.all().flat_map(|(child, _)| child.addresses.iter().map(|own| own.address));
        let orders = self.orders(ask, (node, policy), wanted, addresses, held);
        let Some(namespace) = book.place(&ask.namespace).map_err(told)? else {
            return Ok(Begun::Made(Vec::new()));
        };
        let entry = Entry {
            boot: boot(&self.roots),
            pod: format!("{}/{}", ask.pod.namespace, ask.pod.name),
            sandbox: ask.sandbox.clone(),
            namespace,
            children: Vec::new(),
            state: children::State::Making,
            stuck: None,
        };
        let work = book.begin(entry, orders).map_err(told)?;
        self.count(book);
        Ok(Begun::Work(work, kind))
    }

    fn orders(
        &self,
        ask: &Ask,
        (node, policy): (&Node, &Policy),
        wanted: Vec<Wanted>,
        mut addresses: HashMap<String, WantedAddress>,
        held: impl Iterator<Item = IpAddr>,
    ) -> Vec<Order> {
        let host = node.interfaces.iter().flat_map(|interface| &interface.addresses);
        let others: Vec<IpAddr> = host.map(|(address, _)| *address).chain(held).collect();
        let order = |wanted: Wanted| {
            let parent = node.interfaces.iter().find(|i| i.index == wanted.parent_index);
            let own = parent.into_iter().flat_map(|parent| &parent.addresses);
            let own = own.filter_map(|(address, length)| Prefix::new(*address, *length)).collect();
            let pools = node.hca(&wanted.hca).map(|hca| policy.links.pools_of(hca));
            let asked = addresses.remove(&wanted.hca).unwrap_or(WantedAddress::Pool);
            Order {
                wish: Wish {
                    boot: boot(&self.roots),
                    sandbox: ask.sandbox.clone(),
                    pod: format!("{}/{}", ask.pod.namespace, ask.pod.name),
                    uid: ask.pod.uid.clone(),
                    hca: wanted.hca.clone(),
                    parent: wanted.parent.clone(),
                    parent_index: wanted.parent_index,
                    own,
                    others: others.clone(),
                    wanted: asked,
                },
                pools: pools.unwrap_or_default(),
                child: Child {
                    hca: wanted.hca,
                    kind: kind(wanted.kind),
                    parent: wanted.parent,
                    parent_index: wanted.parent_index,
                    interface: String::new(),
                    index: None,
                    mac: String::new(),
                    mtu: 0,
                    addresses: Vec::new(),
                },
            }
        };
        wanted.into_iter().map(order).collect()
    }
}

/// What a pod has, or is to be given.
enum Begun {
    /// That is there, or nothing.
    Made(Vec<Made>),
    /// That is to be made, of that kind.
    Work(Work, NetnsRequest),
}

const fn kind(way: NetnsRequest) -> Kind {
    match way {
        NetnsRequest::Macvlan => Kind::Macvlan,
        _ => Kind::Ipvlan,
    }
}

fn present((child, pod): (&Child, &str)) -> Present {
    Present {
        hca: child.hca.clone(),
        parent: child.parent.clone(),
        kind: match child.kind {
            Kind::Ipvlan => NetnsRequest::Ipvlan,
            Kind::Macvlan => NetnsRequest::Macvlan,
        },
        pod: pod.to_owned(),
    }
}

fn made_of(entry: &Entry) -> Arc<[Made]> {
    let made = |child: &Child| Made {
        hca: child.hca.clone(),
        interface: child.interface.clone(),
        addressed: !child.addresses.is_empty(),
    };
    entry.children.iter().map(made).collect()
}

fn refused(kind: NetnsRequest, why: &str) -> String {
    format!("{}.{SUFFIX}={}: {why}", Key::Netns.word(), word(kind))
}
