//! The keeper of the inventory: one [`Node`] that is always at hand, made anew when an event says
//! that something changed, and once a minute for what no event tells.
//!
//! Reading sysfs can take as long as a driver likes, so it happens on a thread of its own, one read
//! at a time. A read that hangs or fails leaves the last snapshot in place; before the first one
//! whoever asks is told that there is none, never shown an empty node.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::inventory::{Hca, Node};

/// An event is rarely alone: a driver that loads makes dozens. So long is waited for the next one.
pub const QUIET: Duration = Duration::from_millis(100);
/// Events that do not end delay a read no longer than this.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// A read without any event, for what no event tells.
pub const RESCAN: Duration = Duration::from_secs(60);

/// How often it is looked whether a read has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Makes a snapshot; blocking.
pub type Read = dyn Fn() -> Result<Node, Box<dyn std::error::Error + Send + Sync>> + Send + Sync;

/// There is no inventory yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The first read has not ended.
    #[error("the inventory of this node is not ready: its first reading takes longer than {} s", .since.as_secs())]
    Reading {
        /// For how long it has been going on.
        since: Duration,
    },
    /// The reads so far have failed.
    #[error("the inventory of this node is not ready: {reason}")]
    Failed {
        /// Why the last one did.
        reason: String,
    },
}

/// The keeper; clones share one snapshot.
#[derive(Clone)]
pub struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    read: Box<Read>,
    current: watch::Sender<Option<Arc<Node>>>,
    signal: Arc<Signal>,
    rescan: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    started: Instant,
    /// When the last read that succeeded was begun.
    read_at: Option<Instant>,
    /// Why the last read failed.
    failure: Option<String>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("state", &self.inner.state).finish_non_exhaustive()
    }
}

impl Keeper {
    /// A keeper that reads with `read`, nothing being read yet.
    pub fn new(read: Box<Read>) -> Self {
        Self::every(read, RESCAN)
    }

    fn every(read: Box<Read>, rescan: Duration) -> Self {
        let state = State { started: Instant::now(), read_at: None, failure: None };
        Self {
            inner: Arc::new(Inner {
                read,
                current: watch::Sender::new(None),
                signal: Arc::default(),
                rescan,
                state: Mutex::new(state),
            }),
        }
    }

    /// Something on the node has changed.
    pub fn poke(&self) {
        self.inner.signal.poke();
    }

    /// The present snapshot, if there is one.
    pub fn now(&self) -> Option<Arc<Node>> {
        self.inner.current.borrow().clone()
    }

    /// The present snapshot; without one, waits that long for the first.
    pub async fn node(&self, patience: Duration) -> Result<Arc<Node>, NotReady> {
        let mut receiver = self.inner.current.subscribe();
        let first = timeout(patience, receiver.wait_for(Option::is_some));
        if let Ok(Ok(node)) = first.await
            && let Some(node) = node.as_ref()
        {
            return Ok(Arc::clone(node));
        }
        let state = self.state();
        Err(match &state.failure {
            Some(reason) => NotReady::Failed { reason: reason.clone() },
            None => NotReady::Reading { since: state.started.elapsed() },
        })
    }

    /// How old the present snapshot is; `None`: there is none.
    pub fn age(&self) -> Option<Duration> {
        self.state().read_at.map(|at| at.elapsed())
    }

    /// Waits until a read has succeeded that was begun after `moment`, at most that long. Whether one
    /// has.
    pub async fn read_since(&self, moment: Instant, patience: Duration) -> bool {
        let read = async {
            while self.state().read_at.is_none_or(|at| at < moment) {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(patience, read).await.is_ok()
    }

    /// Told each time a different snapshot takes the place of the present one.
    pub fn watch(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.inner.current.subscribe()
    }

    /// Keeps the snapshot current as long as there is a keeper, on a thread of its own, which wakes
    /// nobody when it finds nothing new. `after` is called there after each read.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(&self, after: impl Fn() + Send + 'static) -> io::Result<()> {
        let (inner, signal) = (Arc::downgrade(&self.inner), Arc::clone(&self.inner.signal));
        let rescan = self.inner.rescan;
        let keep = move || {
            while let Some(inner) = inner.upgrade() {
                inner.refresh();
                // Not held while waiting, so that the last keeper ends this.
                drop(inner);
                after();
                signal.wait(rescan);
            }
        };
        thread::Builder::new().name("inventory".to_owned()).spawn(keep).map(|_| ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }
}

impl Inner {
    fn refresh(&self) {
        let begun = Instant::now();
        let node = match catch_unwind(AssertUnwindSafe(|| (self.read)())) {
            Ok(Ok(node)) => node,
            Ok(Err(error)) => return self.failed(error.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("no reason given");
                return self.failed(format!("reading it failed badly: {text}"));
            }
        };
        {
            let mut state = self.state();
            state.read_at = Some(begun);
            state.failure = None;
        }
        // Nobody else puts one there.
        let current = self.current.borrow().clone();
        if current.as_deref() != Some(&node) {
            for remark in new_remarks(current.as_deref(), &node) {
                warn!("inventory: {remark}");
            }
            if current.is_some_and(|old| looks_alike(&old, &node)) {
                debug!("interfaces, addresses or GIDs have changed");
            } else {
                info!(hcas = node.hcas.len(), gpus = node.gpus.len(), "inventory read");
            }
            self.current.send_replace(Some(Arc::new(node)));
        }
        debug!(took = ?begun.elapsed(), "inventory is current");
    }

    fn failed(&self, reason: String) {
        let mut state = self.state();
        if state.failure.as_ref() != Some(&reason) {
            warn!("the inventory could not be read and stays as it was: {reason}");
        }
        state.failure = Some(reason);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread looks, and finds nobody.
        self.signal.poke();
    }
}

/// Where the thread waits that reads.
#[derive(Debug, Default)]
struct Signal {
    poked: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn poke(&self) {
        *self.poked() = true;
        self.changed.notify_one();
    }

    /// Waits until something has changed and no more events come for a while, at most so long.
    fn wait(&self, longest: Duration) {
        if !self.wait_for(longest) {
            return;
        }
        let begun = Instant::now();
        while self.wait_for(QUIET) && begun.elapsed() < PATIENCE {}
    }

    /// Waits for an event, at most so long. True: there was one.
    fn wait_for(&self, longest: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.poked(), longest, |poked| !*poked);
        let (mut poked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *poked)
    }

    fn poked(&self) -> MutexGuard<'_, bool> {
        self.poked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two snapshots have the same adapters, in the same state, and the same GPUs. What else
/// changes all day with the pods (interfaces, addresses, GIDs) is not worth a line of the log.
fn looks_alike(old: &Node, new: &Node) -> bool {
    let adapters = |node: &Node| {
        let of = |hca: &Hca| {
            let ports = hca.ports.iter().map(|port| (port.number, port.state, port.netdev.clone()));
            let ports: Vec<_> = ports.collect();
            (
                hca.name.clone(),
                hca.pci,
                hca.uverbs.clone(),
                hca.home.clone(),
                hca.role.clone(),
                ports,
            )
        };
        node.hcas.iter().map(of).collect::<Vec<_>>()
    };
    (&old.rdma_cm, old.netns_mode, &old.gpudirect) == (&new.rdma_cm, new.netns_mode, &new.gpudirect)
        && old.gpus == new.gpus
        && adapters(old) == adapters(new)
}

/// Remarks that the last snapshot did not have.
fn new_remarks<'a>(old: Option<&Node>, new: &'a Node) -> impl Iterator<Item = &'a String> {
    let old = old.map(|node| node.remarks.clone()).unwrap_or_default();
    new.remarks.iter().filter(move |remark| !old.contains(remark))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use tokio::time::sleep;

    use super::*;

    fn node(remark: &str) -> Node {
        Node { remarks: vec![remark.to_owned()], ..Node::default() }
    }

    /// A keeper that runs, and how often it has read.
    fn running(
        read: impl Fn(usize) -> Result<Node, String> + Send + Sync + 'static,
    ) -> (Keeper, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let keeper = Keeper::new(Box::new(move || {
            read(counter.fetch_add(1, Ordering::SeqCst)).map_err(Into::into)
        }));
        keeper.start(|| {}).unwrap();
        (keeper, count)
    }

    #[test]
    fn what_pods_change_is_no_news() {
        use crate::inventory::{Driver, Home, Interface, NodeType, Role};
        let hca = Hca {
            name: "mlx5_0".into(),
            index: None,
            driver: Driver("mlx5".into()),
            node_type: NodeType::Ca,
            node_guid: String::new(),
            firmware: None,
            pci: None,
            numa: None,
            local_cpus: Default::default(),
            uverbs: None,
            ports: Vec::new(),
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        };
        let old = Node { hcas: vec![hca.clone()], ..Node::default() };
        let interface = Interface {
            name: "veth1".into(),
            index: 7,
            lower: None,
            kind: Some("veth".into()),
            controller: None,
            addresses: Vec::new(),
            default_route: false,
            up: true,
        };
        let more = Node { interfaces: vec![interface], ..old.clone() };
        assert!(looks_alike(&old, &more));
        let away = Node { hcas: vec![Hca { home: Home::Elsewhere, ..hca }], ..Node::default() };
        assert!(!looks_alike(&old, &away));
        assert!(!looks_alike(&old, &Node::default()));
    }

    #[tokio::test]
    async fn c60_a_slow_first_read_is_told_and_blocks_nobody() {
        let (release, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let (keeper, _) = running(move |_| {
            gate.lock().unwrap().recv().unwrap();
            Ok(node("here"))
        });
        let begun = Instant::now();
        let error = keeper.node(Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(error, NotReady::Reading { .. }), "{error}");
        assert!(error.to_string().contains("not ready"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!((keeper.now(), keeper.age()), (None, None));

        release.send(()).unwrap();
        let first = keeper.node(Duration::from_secs(10)).await.unwrap();
        assert_eq!(first.remarks, ["here"]);
        assert!(keeper.age().is_some());
    }

    #[tokio::test]
    async fn a_failed_read_is_told_and_takes_nothing_away() {
        let (keeper, count) = running(|n| match n {
            0 => Err("sysfs is gone".to_owned()),
            1 => Ok(node("first")),
            _ => Err("sysfs is gone again".to_owned()),
        });
        while count.load(Ordering::SeqCst) < 1 {
            sleep(Duration::from_millis(1)).await;
        }
        let error = keeper.node(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error, NotReady::Failed { reason: "sysfs is gone".into() });

        keeper.poke();
        assert_eq!(keeper.node(Duration::from_secs(10)).await.unwrap().remarks, ["first"]);
        keeper.poke();
        while count.load(Ordering::SeqCst) < 3 {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(20)).await;
        assert_eq!(keeper.now().unwrap().remarks, ["first"]);
    }

    #[tokio::test]
    async fn many_events_make_one_read_and_no_change_is_told() {
        let (keeper, count) = running(|_| Ok(node("same")));
        keeper.node(Duration::from_secs(10)).await.unwrap();
        let mut changes = keeper.watch();
        changes.mark_unchanged();
        for _ in 0..50 {
            keeper.poke();
            sleep(Duration::from_millis(1)).await;
        }
        while count.load(Ordering::SeqCst) < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(QUIET * 3).await;
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert!(!changes.has_changed().unwrap());
    }

    #[tokio::test]
    async fn what_no_event_tells_is_found_within_a_minute() {
        assert!(RESCAN <= Duration::from_secs(60));
        let count = AtomicUsize::new(0);
        let read = move || Ok(node(&count.fetch_add(1, Ordering::SeqCst).to_string()));
        let keeper = Keeper::every(Box::new(read), Duration::from_millis(200));
        keeper.start(|| {}).unwrap();
        keeper.node(Duration::from_secs(10)).await.unwrap();
        let mut changes = keeper.watch();
        changes.mark_unchanged();
        assert_eq!(keeper.now().unwrap().remarks, ["0"]);
        timeout(Duration::from_secs(10), changes.changed()).await.unwrap().unwrap();
        assert_eq!(keeper.now().unwrap().remarks, ["1"]);
    }

    #[tokio::test]
    async fn without_a_keeper_nobody_reads() {
        let (keeper, count) = running(|_| Ok(node("same")));
        let (sender, ended) = mpsc::channel::<()>();
        let other = Keeper::new(Box::new(|| Ok(Node::default())));
        let last = move || _ = &sender;
        other.start(last).unwrap();
        other.node(Duration::from_secs(10)).await.unwrap();
        drop(other);
        // The thread has let go of what it held.
        assert!(ended.recv_timeout(Duration::from_secs(10)).is_err());
        assert!(ended.try_recv() == Err(mpsc::TryRecvError::Disconnected));
        keeper.node(Duration::from_secs(10)).await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_read_that_panics_is_a_failed_read() {
        let (keeper, _) = running(|n| if n == 0 { panic!("a bug") } else { Ok(node("well")) });
        while keeper.state().failure.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        keeper.poke();
        assert_eq!(keeper.node(Duration::from_secs(10)).await.unwrap().remarks, ["well"]);
    }
}
