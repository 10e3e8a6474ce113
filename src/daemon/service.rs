//! The daemon's life: from its start by hand, by systemd or by the runtime, to a clean stop.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tracing::{error, info, warn};

use super::children::Children;
use super::journal::Journal;
use super::links::Links;
use super::links::host::Live;
use super::metrics::endpoint::Endpoint;
use super::metrics::node::NodeCollector;
use super::metrics::smc::SmcCollector;
use super::plugin::{Daemon, NriPlugin, Parts};
use super::pods::Pods;
use super::policies::{Policies, Source};
use super::records::{RecordError, Store};
use super::snapshot::Keeper;
use super::{cdi, events, memory};
use crate::inventory::{self, Node, rdma_netlink};
use crate::netns;
use crate::nri::{self, Identity, IdentityError, LaunchError, Launched, Options, RunError};
use crate::policy::{self, LoadError};
use crate::roots::Roots;

/// How long a thread that has read something waits for more to read.
const IDLE: Duration = Duration::from_millis(500);
/// How long the first reading of the inventory waits for a session.
const HEAD_START: Duration = Duration::from_millis(50);
/// After so many readings of the inventory the start is over.
const SETTLED: usize = 1;
/// Threads at a time: pods that are read, the inventory, records, a scrape, and some that hang.
pub(super) const THREADS: usize = 16;

/// What the daemon is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's trees.
    pub roots: Roots,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The policy file; `None`: the node's own, which need not be there.
    pub config: Option<PathBuf>,
    /// Where metrics are read; `None`: where policy says.
    pub metrics: Option<Listen>,
    /// The runtime's socket.
    pub socket: PathBuf,
    /// Two digits: plugins are called in this order.
    pub index: String,
    /// The name to register with.
    pub name: String,
}

/// Where metrics are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// Over HTTP.
    At(SocketAddr),
}

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The policy file cannot be used.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// Records cannot be kept.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// The runtime that started this process did not do it as it should.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// No name for a plugin.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The plugin cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system does not give what every program gets.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Whether a runtime has started this process from its plugin folder.
pub fn launched_by_runtime() -> bool {
    std::env::var_os("NRI_PLUGIN_SOCKET").is_some()
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// It cannot begin.
pub fn run(settings: Settings) -> Result<(), ServiceError> {
    memory::share_one_pool();
    let launched = Launched::from_env()?;
    let source = match &settings.config {
        Some(path) => Source::Named(path.clone()),
        None => Source::Default(policy::path(&settings.roots)),
    };
    let policies = Policies::load(source)?;
    let store = Store::new(&settings.roots);
    store.prepare()?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_keep_alive(IDLE)
        .build()
        .map_err(|source| ServiceError::System { action: "start", source })?;
    let done = runtime.block_on(serve(settings, launched, policies, store));
    // Whoever hangs in a read of a driver's file must not keep the process.
    runtime.shutdown_background();
    done
}

async fn serve(
    settings: Settings,
    launched: Option<Launched>,
    policies: Policies,
    store: Store,
) -> Result<(), ServiceError> {
    let listen = settings
        .metrics
        .unwrap_or_else(|| policies.now().daemon.metrics.map_or(Listen::Off, Listen::At));
    let options = Options {
        identity: Identity::new(&settings.index, &settings.name)?,
        socket: settings.socket.clone(),
        lock: settings.roots.run.join("rdma-ctk/nri.lock"),
    };
    let daemon = assemble(&settings, policies, store);
    let (mut hangup, stop) = signals()?;

    let keeping = Arc::clone(&daemon);
    let cdi_due = Arc::new(Notify::new());
    tokio::spawn(cdi::run(Arc::clone(&daemon), Arc::clone(&cdi_due)));
    let read = Arc::clone(&cdi_due);
    let reads = AtomicUsize::new(0);
    let tidy = move || {
        keeping.tidy();
        if keeping.policies.now().cdi.keep {
            read.notify_one();
        }
        memory::give_back();
        if reads.fetch_add(1, Ordering::Relaxed) == SETTLED {
            memory::forget_code();
        }
    };
    tokio::spawn(begin_inventory(Arc::clone(&daemon), tidy));
    tokio::spawn(keep_files(Arc::clone(&daemon)));
    if let Listen::At(address) = listen {
        daemon.metrics_at.get_or_init(|| address);
        tokio::spawn(serve_metrics(Arc::clone(&daemon), address));
    }
    tokio::spawn(tell_systemd(daemon.told.subscribe(), settings.socket));
    tokio::spawn(watchdog());
    let reloading = Arc::clone(&daemon);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            notify(&[NotifyState::Reloading, now()]);
            if !reloading.policies.reload() {
                reloading.metrics.policy_errors.inc();
            }
            cdi_due.notify_one();
            notify(&[NotifyState::Ready]);
        }
    });

    let plugin = Arc::new(NriPlugin(Arc::clone(&daemon)));
    nri::run(plugin, launched, &options, stop).await?;
    notify(&[NotifyState::Stopping]);
    daemon.book();
    daemon.journal.written().await;
    info!("stopped");
    Ok(())
}

fn assemble(settings: &Settings, policies: Policies, store: Store) -> Arc<Daemon> {
    let roots = settings.roots.clone();
    let keeper = Keeper::new(Box::new({
        let roots = roots.clone();
        move || Ok(read_node(&roots))
    }));
    let pods = Pods::new(
        keeper.clone(),
        Box::new({
            let roots = roots.clone();
            move |path, node| netns::pod_view(&roots, path, node, netns::pod::PATIENCE)
        }),
    );
    let links = Links::new(&roots, Box::new(Live::new(&roots)), keeper.clone(), pods.clone());
    let ground = Box::new(netns::children::linux::Linux::new(&roots));
    let children = Children::new(&roots, ground, keeper.clone(), pods.clone());
    let journal = Journal::new(store);
    Arc::new(Daemon::new(Parts {
        roots,
        kubelet: settings.kubelet.clone(),
        socket: settings.socket.clone(),
        keeper,
        pods,
        links,
        children,
        policies,
        journal,
    }))
}

/// The node, from all sources. Where RDMA netlink fails, sysfs alone has to do.
fn read_node(roots: &Roots) -> Node {
    match rdma_netlink::read(roots) {
        Ok(view) => inventory::snapshot(roots, view.as_ref()),
        Err(problem) => {
            let mut node = inventory::snapshot(roots, None);
            node.remarks.push(problem.to_string());
            node
        }
    }
}

/// SIGHUP, and whatever ends the daemon.
fn signals() -> Result<(Signal, impl Future<Output = ()>), ServiceError> {
    let failed = |source| ServiceError::System { action: "listen to signals", source };
    let hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
    };
    Ok((hangup, stop))
}

/// Begins to read the inventory, and to hear of its changes, once there is a session: a runtime
/// that starts waits for plugins to register, and the first reading has thousands of files. Without
/// a runtime that takes us in it is begun a moment later all the same.
async fn begin_inventory(daemon: Arc<Daemon>, after: impl Fn() + Send + 'static) {
    let mut told = daemon.told.subscribe();
    // An error is the end of time or of the daemon.
    let _ = tokio::time::timeout(HEAD_START, told.changed()).await;
    events::listen(&daemon.roots, daemon.keeper.clone());
    if let Err(problem) = daemon.keeper.start(after) {
        error!("the inventory cannot be read: {problem}");
    }
}

/// Keeps the files current that are bound into containers.
async fn keep_files(daemon: Arc<Daemon>) {
    let mut changes = daemon.keeper.watch();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = daemon.stale_files.notified() => {}
        }
        daemon.refresh_files().await;
    }
}

/// Lets metrics be read. Where the address is taken, as by an instance that this one stands by for,
/// it is tried again when a session begins or ends.
async fn serve_metrics(daemon: Arc<Daemon>, address: SocketAddr) {
    let mut told = daemon.told.subscribe();
    loop {
        let mut registry = Registry::default();
        daemon.metrics.register(&mut registry);
        let containers = Arc::clone(&daemon.containers);
        registry.register_collector(Box::new(NodeCollector::new(
            daemon.keeper.clone(),
            daemon.roots.clone(),
            Arc::new(move || containers.holders()),
        )));
        let smc = daemon.smc.clone();
        registry.register_collector(Box::new(SmcCollector::new(
            daemon.roots.clone(),
            Box::new(move || smc.processes()),
        )));
        match Endpoint::bind(address, registry).await {
            Ok(endpoint) => {
                info!(%address, "metrics are at /metrics");
                return endpoint.run().await;
            }
            Err(problem) => warn!("{problem}"),
        }
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// Tells systemd how it goes: ready once a runtime has us.
async fn tell_systemd(mut told: watch::Receiver<Option<String>>, socket: PathBuf) {
    let mut ready = false;
    loop {
        let status = match &*told.borrow_and_update() {
            Some(runtime) => {
                if !std::mem::replace(&mut ready, true) {
                    notify(&[NotifyState::Ready]);
                }
                format!("registered with {runtime}")
            }
            None => format!("waiting for a container runtime at {}", socket.display()),
        };
        notify(&[NotifyState::Status(&status)]);
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// Tells systemd that the event loop turns, if it wants to know.
async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    // Often enough that one that is late is not the end, and no more.
    let mut turns = tokio::time::interval(interval * 2 / 3);
    loop {
        turns.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn now() -> NotifyState<'static> {
    // A time that cannot be had is none that systemd would believe, either.
    NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0))
}

fn notify(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(problem) = sd_notify::notify(states) {
        tracing::debug!("systemd is not told: {problem}");
    }
}
