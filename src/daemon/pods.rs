//! What each pod's network looks like from inside, read before it is needed.
//!
//! A pod's addresses are there when its sandbox runs, and its containers are created a moment
//! later. So the network is read when the sandbox is announced, off the event loop; a container
//! waits for it a little, and then does without. Pods that do not mention us are not looked at.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::debug;

use super::ids::Ids;
use super::snapshot::Keeper;
use crate::inventory::{Node, PodView};
use crate::nri::container::Network;

/// A view older than this is read anew before it is used, since addresses come and go.
const FRESH: Duration = Duration::from_secs(30);
/// How long a pod's network waits for the first inventory.
const INVENTORY: Duration = Duration::from_secs(60);
/// So many network namespaces are read at once, at most: each takes a thread.
const AT_ONCE: usize = 4;

/// Looks at the namespace under a path, on a node like this; blocking.
pub type Look = dyn Fn(&Path, &Node) -> PodView + Send + Sync;

/// The views of all pods that are looked at; clones share them.
#[derive(Clone)]
pub struct Pods {
    inner: Arc<Inner>,
}

struct Inner {
    keeper: Keeper,
    look: Box<Look>,
    turns: Semaphore,
    pods: Mutex<HashMap<String, State>>,
}

struct State {
    path: PathBuf,
    view: watch::Sender<Option<View>>,
    reading: bool,
}

#[derive(Clone)]
struct View {
    /// When it was had.
    at: Instant,
    view: Arc<PodView>,
}

impl View {
    /// Good enough not to look again.
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH && !matches!(*self.view, PodView::Unknown { .. })
    }
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("pods", &self.pods().len()).finish_non_exhaustive()
    }
}

impl Pods {
    /// No pods yet; `look` will look at them, on the node that `keeper` knows.
    pub fn new(keeper: Keeper, look: Box<Look>) -> Self {
        let turns = Semaphore::new(AT_ONCE);
        Self { inner: Arc::new(Inner { keeper, look, turns, pods: Mutex::default() }) }
    }

    /// Begins to read the network of the pod with that sandbox, unless that is going on. To be
    /// called within a tokio runtime.
    pub fn begin(&self, sandbox: &str, network: &Network) {
        let Network::Own(path) = network else { return };
        let mut pods = self.pods();
        let state = pods.entry(sandbox.to_owned()).or_insert_with(|| State {
            path: path.clone(),
            view: watch::Sender::new(None),
            reading: false,
        });
        if state.path != *path {
            // The sandbox has been given another namespace, so what was seen is not its network.
            state.path.clone_from(path);
            state.view.send_replace(None);
        } else if state.reading {
            return;
        }
        state.reading = true;
        let (pods, sandbox, path) = (self.clone(), sandbox.to_owned(), path.clone());
        tokio::spawn(async move { pods.read(&sandbox, path).await });
    }

    /// The network of the pod with that sandbox, as seen not long ago; if need be it is read
    /// first, and waited for so long. After that the last one seen will do, else it is pending.
    pub async fn view(&self, sandbox: &str, network: &Network, patience: Duration) -> Arc<PodView> {
        match network {
            Network::Host => return Arc::new(PodView::Host),
            Network::Unknown => {
                return Arc::new(PodView::Unknown {
                    reason: "the runtime does not say which network namespace it has".to_owned(),
                });
            }
            Network::Own(_) => {}
        }
        let asked = Instant::now();
        if self.seen(sandbox, network).is_none_or(|view| !view.is_fresh()) {
            self.begin(sandbox, network);
        }
        let receiver = self.pods().get(sandbox).map(|state| state.view.subscribe());
        if let Some(mut receiver) = receiver {
            let will_do = |view: &Option<View>| {
                view.as_ref().is_some_and(|view| view.at >= asked || view.is_fresh())
            };
            if let Ok(Ok(view)) = timeout(patience, receiver.wait_for(will_do)).await
                && let Some(view) = view.as_ref()
            {
                return Arc::clone(&view.view);
            }
        }
        match self.seen(sandbox, network) {
            Some(old) => old.view,
            None => Arc::new(PodView::Pending {
                reason: format!(
                    "reading it takes longer than {} ms",
                    // To the millisecond it would tell what else was waited for.
                    patience.as_millis().next_multiple_of(10)
                ),
            }),
        }
    }

    /// Forgets a pod.
    pub fn forget(&self, sandbox: &str) {
        self.pods().remove(sandbox);
    }

    /// Forgets all pods but these.
    pub fn retain(&self, sandboxes: &Ids) {
        self.pods().retain(|sandbox, _| sandboxes.contains(sandbox));
    }

    /// Gives back the memory of views that would be read anew anyway.
    pub fn tidy(&self) {
        let mut pods = self.pods();
        pods.retain(|_, state| {
            let view = state.view.borrow();
            state.reading || view.as_ref().is_some_and(View::is_fresh)
        });
        pods.shrink_to_fit();
    }

    async fn read(&self, sandbox: &str, path: PathBuf) {
        let begun = Instant::now();
        let view = self.look(&path).await;
        debug!(sandbox, path = %path.display(), took = ?begun.elapsed(), "network of pod read");
        let mut pods = self.pods();
        // Gone meanwhile, or moved: then nobody wants to know.
        if let Some(state) = pods.get_mut(sandbox).filter(|state| state.path == path) {
            state.reading = false;
            state.view.send_replace(Some(View { at: Instant::now(), view: Arc::new(view) }));
        }
    }

    async fn look(&self, path: &Path) -> PodView {
        let Ok(_turn) = self.inner.turns.acquire().await else {
            return PodView::Unknown { reason: "rdma-ctk is stopping".to_owned() };
        };
        let node = match self.inner.keeper.node(INVENTORY).await {
            Ok(node) => node,
            Err(problem) => return PodView::Unknown { reason: problem.to_string() },
        };
        let (inner, path) = (Arc::clone(&self.inner), path.to_owned());
        match tokio::task::spawn_blocking(move || (inner.look)(&path, &node)).await {
            Ok(view) => view,
            Err(error) => PodView::Unknown { reason: format!("reading it failed badly: {error}") },
        }
    }

    fn seen(&self, sandbox: &str, network: &Network) -> Option<View> {
        let pods = self.pods();
        let state = pods.get(sandbox)?;
        let same = matches!(network, Network::Own(path) if *path == state.path);
        let view = state.view.borrow().clone();
        view.filter(|_| same)
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, State>> {
        self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::inventory::{PodNetwork, PortGids};

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(30);

    fn own(path: &str) -> Network {
        Network::Own(path.into())
    }

    fn ready(number: u32) -> PodView {
        let gids = PortGids { hca: "mlx5_0".into(), port: number, gids: Vec::new() };
        PodView::Ready(PodNetwork { gids: vec![gids], ..PodNetwork::default() })
    }

    /// Pods whose networks come one by one through the channel.
    fn gated() -> (Pods, mpsc::Sender<Result<u32, String>>, Arc<AtomicUsize>) {
        let (sender, gate) = mpsc::channel::<Result<u32, String>>();
        let (gate, count) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let reads = Arc::clone(&count);
        let keeper = Keeper::new(Box::new(|| Ok(Node::default())));
        keeper.start(|| {}).unwrap();
        let look = move |_: &Path, _: &Node| {
            reads.fetch_add(1, Ordering::SeqCst);
            match gate.lock().unwrap().recv() {
                Ok(Ok(number)) => ready(number),
                Ok(Err(reason)) => PodView::Unknown { reason },
                Err(_) => PodView::Unknown { reason: "the test is over".into() },
            }
        };
        let pods = Pods::new(keeper, Box::new(look));
        (pods, sender, count)
    }

    #[tokio::test]
    async fn what_was_begun_is_waited_for_and_read_once() {
        let (pods, gate, reads) = gated();
        pods.begin("box", &own("/run/netns/a"));
        pods.begin("box", &own("/run/netns/a"));
        let late = pods.view("box", &own("/run/netns/a"), SHORT).await;
        assert!(
            matches!(&*late, PodView::Pending { reason } if reason.contains("30 ms")),
            "{late:?}"
        );
        gate.send(Ok(1)).unwrap();
        for _ in 0..3 {
            let view = pods.view("box", &own("/run/netns/a"), LONG).await;
            assert_eq!(*view, ready(1));
        }
        assert_eq!(reads.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_pod_that_was_not_announced_is_read_when_it_is_needed() {
        let (pods, gate, _) = gated();
        gate.send(Ok(7)).unwrap();
        assert_eq!(*pods.view("box", &own("/n"), LONG).await, ready(7));
        pods.forget("box");
        gate.send(Ok(8)).unwrap();
        assert_eq!(*pods.view("box", &own("/n"), LONG).await, ready(8));
    }

    #[tokio::test]
    async fn another_namespace_is_another_network() {
        let (pods, gate, _) = gated();
        gate.send(Ok(1)).unwrap();
        pods.view("box", &own("/a"), LONG).await;
        gate.send(Ok(2)).unwrap();
        assert_eq!(*pods.view("box", &own("/b"), LONG).await, ready(2));
    }

    #[tokio::test]
    async fn what_needs_no_reading_is_not_read() {
        let (pods, _gate, reads) = gated();
        assert_eq!(*pods.view("box", &Network::Host, SHORT).await, PodView::Host);
        let view = pods.view("box", &Network::Unknown, SHORT).await;
        assert!(matches!(*view, PodView::Unknown { .. }));
        assert_eq!(reads.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_network_that_cannot_be_read_says_why() {
        let (pods, gate, _) = gated();
        gate.send(Err("no such file".into())).unwrap();
        let view = pods.view("box", &own("/gone"), LONG).await;
        assert_eq!(*view, PodView::Unknown { reason: "no such file".into() });
        gate.send(Ok(3)).unwrap();
        assert_eq!(*pods.view("box", &own("/gone"), LONG).await, ready(3));
    }

    #[tokio::test]
    async fn a_pod_that_goes_while_it_is_read_leaves_nothing_behind() {
        let (pods, gate, reads) = gated();
        pods.begin("box", &own("/a"));
        while reads.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        pods.retain(&Ids::default());
        gate.send(Ok(1)).unwrap();
        tokio::time::sleep(SHORT).await;
        assert!(pods.pods().is_empty());
    }
}
