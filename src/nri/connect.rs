//! Sessions for ever: dialling the runtime, again and again, or using the connection that it gave.

use super::launch::Launched;
use super::outline::Outline;
use super::plugin::{Configuration, Identity, Plugin};
use super::session::{Reason, Stage, serve};
use super::standby::{Lock, LockError};
use super::version::Events;
use async_trait::async_trait;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// The first pause before the runtime is dialled again.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause while there is nobody to dial: a look costs nothing, and what a runtime that
/// comes back creates in the meantime goes without us.
const AWAY: Duration = Duration::from_secs(1);
/// The longest pause after sessions that come to nothing, which cost the runtime something too.
const IN_VAIN: Duration = Duration::from_secs(5);

/// How often somebody who stands by looks whether the runtime that started it lives.
const UNWANTED: Duration = Duration::from_secs(60);

/// Where the plugin goes and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Index and name to register with.
    pub identity: Identity,
    /// The runtime's socket. Runtimes delete it and its folder when they start.
    pub socket: PathBuf,
    /// The file whose lock makes an instance the one that is registered.
    pub lock: PathBuf,
}

/// Why a plugin cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Whether it is the only one cannot be told.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The connection that the runtime gave cannot be used.
    #[error("the inherited connection cannot be used: {0}")]
    Inherited(#[source] io::Error),
}

/// Keeps `plugin` registered with the runtime until `stop` completes.
///
/// Without `launched` the socket is dialled for ever, once this is the only instance. With it the
/// runtime started this process and has given it a connection, to be used at once. If another
/// instance is registered then the connection is kept without doing anything, since a plugin that
/// goes away at the start can keep an old runtime from starting, and a new one kills it; once the
/// other is gone the socket is dialled. It is also dialled when the connection is lost while the
/// runtime lives on. When the runtime is gone, so is the reason to go on: it starts another process
/// when it comes back.
///
/// # Errors
/// See [`RunError`].
pub async fn run(
    plugin: Arc<dyn Plugin>,
    launched: Option<Launched>,
    options: &Options,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let parent = nix::unistd::getppid();
    let mut stop = pin!(stop);
    match launched {
        None => {
            let Some(_lock) = only(options, &|| true, stop.as_mut()).await? else { return Ok(()) };
            dial(&plugin, options, &|| true, stop).await;
        }
        Some(Launched { identity, stream }) => {
            let options = Options { identity, ..options.clone() };
            // A process whose parent dies gets another one.
            let runtime_lives = move || nix::unistd::getppid() == parent;
            let stream = inherit(stream).map_err(RunError::Inherited)?;
            kept(stream, &plugin, &options, &runtime_lives, stop).await?;
        }
    }
    Ok(())
}

fn inherit(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

type Stop<'a, F> = Pin<&'a mut F>;

/// Waits until no other instance is registered. `None`: stopped, or not wanted any more.
async fn only<F: Future<Output = ()>>(
    options: &Options,
    wanted: &(dyn Fn() -> bool + Sync),
    stop: Stop<'_, F>,
) -> Result<Option<Lock>, RunError> {
    match Lock::take(&options.lock)? {
        Ok(lock) => return Ok(Some(lock)),
        Err(holder) => tell_standby(holder),
    }
    let unwanted = async {
        while wanted() {
            tokio::time::sleep(UNWANTED).await;
        }
    };
    tokio::select! {
        lock = Lock::wait(&options.lock) => {
            let lock = lock?;
            tracing::info!("the other instance is gone, taking over");
            Ok(Some(lock))
        }
        () = unwanted => Ok(None),
        () = stop => Ok(None),
    }
}

fn tell_standby(holder: Option<u32>) {
    let pid = holder.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    tracing::warn!(pid, "another instance is registered on this node, standing by");
}

/// Uses the connection that the runtime gave, and then goes on as long as that lives.
async fn kept<F: Future<Output = ()>>(
    stream: UnixStream,
    plugin: &Arc<dyn Plugin>,
    options: &Options,
    runtime_lives: &(dyn Fn() -> bool + Sync),
    mut stop: Stop<'_, F>,
) -> Result<(), RunError> {
    let identity = &options.identity;
    let (lock, end) = match Lock::take(&options.lock)? {
        Ok(lock) => {
            plugin.connected(u32::try_from(nix::unistd::getppid().as_raw()).ok());
            let end = serve(stream, Arc::clone(plugin), identity, stop.as_mut()).await;
            (Some(lock), end)
        }
        Err(holder) => {
            tell_standby(holder);
            let mut idle =
                pin!(serve(stream, Arc::new(Idle), identity, std::future::pending::<()>()));
            let end = tokio::select! {
                end = &mut idle => end,
                () = stop.as_mut() => return Ok(()),
                lock = Lock::wait(&options.lock) => {
                    let _lock = lock?;
                    tracing::info!("the other instance is gone, taking over by the socket");
                    let mut dialled = pin!(dial(plugin, options, runtime_lives, stop));
                    tokio::select! {
                        () = &mut dialled => {}
                        _ = idle => dialled.await,
                    }
                    return Ok(());
                }
            };
            (None, end)
        }
    };
    if matches!(end.reason, Reason::Stopped) {
        return Ok(());
    }
    tracing::warn!("the runtime's own connection is lost: {end}");
    // A runtime that ends closes its descriptors before its children get another parent.
    tokio::select! {
        () = tokio::time::sleep(PAUSE) => {}
        () = stop.as_mut() => return Ok(()),
    }
    let lock = match lock {
        Some(lock) => Some(lock),
        None => only(options, runtime_lives, stop.as_mut()).await?,
    };
    if lock.is_some() {
        dial(plugin, options, runtime_lives, stop).await;
    }
    Ok(())
}

/// Dials and serves as long as `wanted`.
async fn dial<F: Future<Output = ()>>(
    plugin: &Arc<dyn Plugin>,
    options: &Options,
    wanted: &(dyn Fn() -> bool + Sync),
    mut stop: Stop<'_, F>,
) {
    let mut attempt = 0;
    let mut told = String::new();
    while wanted() {
        let mut longest = IN_VAIN;
        let failed = match UnixStream::connect(&options.socket).await {
            Err(error) => {
                longest = AWAY;
                format!("cannot reach {}: {error}", options.socket.display())
            }
            Ok(stream) => {
                let identity = &options.identity;
                plugin.connected(peer(&stream));
                let end = serve(stream, Arc::clone(plugin), identity, stop.as_mut()).await;
                if matches!(end.reason, Reason::Stopped) {
                    return;
                }
                if end.stage >= Stage::Synchronised {
                    // It was well, and is told anew what is wrong.
                    attempt = 0;
                    told.clear();
                }
                end.to_string()
            }
        };
        if failed != told {
            tracing::warn!("no session with the runtime: {failed}; trying for ever");
            told = failed;
        }
        tokio::select! {
            () = tokio::time::sleep(pause(attempt, longest, std::process::id())) => {}
            () = stop.as_mut() => return,
        }
        attempt = attempt.saturating_add(1);
    }
    tracing::info!("the runtime that started this plugin is gone");
}

/// The process at the other end: the one that listened. 0 is one that this PID namespace does not
/// show.
fn peer(stream: &UnixStream) -> Option<u32> {
    let pid = stream.peer_cred().ok()?.pid()?;
    u32::try_from(pid).ok().filter(|&pid| pid > 0)
}

/// The pause after so many failures: doubled each time, shortened by up to a quarter so that those
/// who fail together do not come back together.
fn pause(attempt: u32, longest: Duration, seed: u32) -> Duration {
    let doubled = PAUSE.saturating_mul(1 << attempt.min(10)).min(longest);
    // The middle digits of a product: any seed gives another sequence.
    let mixed = seed.wrapping_mul(2_654_435_761).wrapping_add(attempt.wrapping_mul(40_503)) >> 16;
    doubled - doubled / 4 * (mixed % 256) / 256
}

/// Stands by on a connection that cannot be given up: wants to hear of next to nothing, since to
/// hear of nothing cannot be asked for.
struct Idle;

#[async_trait]
impl Plugin for Idle {
    async fn configure(&self, _: Configuration) -> Result<Events, String> {
        Ok(Events::REMOVE_POD_SANDBOX)
    }

    fn outline(&self) -> Option<&dyn Outline> {
        Some(self)
    }
}

impl Outline for Idle {
    fn concerns(&self, _: &str) -> bool {
        false
    }

    fn whole(&self, _: &str) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nri::SessionEnd;
    use crate::nri::scripted::Scripted;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::net::UnixListener;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    /// Wants pods, and keeps the ends of its sessions.
    #[derive(Default)]
    struct Plain(Mutex<Vec<Stage>>);

    #[async_trait]
    impl Plugin for Plain {
        async fn configure(&self, _: Configuration) -> Result<Events, String> {
            Ok(Events::RUN_POD_SANDBOX)
        }

        fn session_ended(&self, end: &SessionEnd) {
            self.0.lock().unwrap().push(end.stage);
        }
    }

    struct Running {
        plugin: Arc<Plain>,
        stop: Option<oneshot::Sender<()>>,
        task: JoinHandle<Result<(), RunError>>,
    }

    fn identity() -> Identity {
        Identity::new("10", "rdma-ctk").unwrap()
    }

    impl Running {
        fn start(folder: &Path, launched: Option<Launched>) -> Self {
            let options = Options {
                identity: identity(),
                socket: folder.join("nri/nri.sock"),
                lock: folder.join("rdma-ctk/nri.lock"),
            };
            let plugin = Arc::new(Plain::default());
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn({
                let plugin = Arc::clone(&plugin);
                async move {
                    let stopped = async { stopped.await.unwrap_or(()) };
                    run(plugin, launched, &options, stopped).await
                }
            });
            Self { plugin, stop: Some(stop), task }
        }

        async fn stop(mut self) {
            let _ = self.stop.take().unwrap().send(());
            tokio::time::timeout(Duration::from_secs(5), self.task)
                .await
                .unwrap()
                .unwrap()
                .unwrap();
        }
    }

    fn listen(folder: &Path) -> UnixListener {
        std::fs::create_dir_all(folder.join("nri")).unwrap();
        UnixListener::bind(folder.join("nri/nri.sock")).unwrap()
    }

    async fn accept(listener: &UnixListener) -> Scripted {
        let accepted = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
        Scripted::new(accepted.unwrap().unwrap().0)
    }

    async fn nobody_comes(listener: &UnixListener) {
        let early = tokio::time::timeout(Duration::from_millis(600), listener.accept()).await;
        assert!(early.is_err());
    }

    #[tokio::test]
    async fn comes_back_when_the_runtime_does() {
        let folder = tempfile::tempdir().unwrap();
        let running = Running::start(folder.path(), None);
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..3 {
            let listener = listen(folder.path());
            let mut runtime = accept(&listener).await;
            assert_eq!(runtime.start("containerd", "2.1.9", "").await, Ok(1));
            drop((listener, runtime));
            std::fs::remove_dir_all(folder.path().join("nri")).unwrap();
        }
        // One that hangs up at once, one that says no, and then a good one.
        let listener = listen(folder.path());
        drop(accept(&listener).await);
        let mut runtime = accept(&listener).await;
        let (stream, _) = runtime.registration().await.unwrap();
        runtime.answer(stream, Some("invalid name")).await.unwrap();
        let mut runtime = accept(&listener).await;
        runtime.start("containerd", "2.1.9", "").await.unwrap();
        let plugin = Arc::clone(&running.plugin);
        running.stop().await;
        runtime.closed().await;
        use Stage::{Connected, Synchronised};
        let stages = plugin.0.lock().unwrap().clone();
        assert_eq!(
            stages,
            [Synchronised, Synchronised, Synchronised, Connected, Connected, Synchronised]
        );
    }

    #[tokio::test]
    async fn stops_while_there_is_no_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let running = Running::start(folder.path(), None);
        tokio::time::sleep(Duration::from_millis(50)).await;
        running.stop().await;
    }

    #[tokio::test]
    async fn of_two_instances_one_is_registered() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path());
        let first = Running::start(folder.path(), None);
        let mut runtime = accept(&listener).await;
        runtime.start("containerd", "2.1.9", "").await.unwrap();
        let second = Running::start(folder.path(), None);
        let third = Running::start(folder.path(), None);
        nobody_comes(&listener).await;
        third.stop().await;
        first.stop().await;
        let mut runtime = accept(&listener).await;
        assert_eq!(runtime.start("containerd", "2.1.9", "").await, Ok(1));
        second.stop().await;
    }

    #[tokio::test]
    async fn uses_the_connection_it_was_started_with() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let launched = Launched { identity: Identity::new("42", "x").unwrap(), stream: ours };
        let running = Running::start(folder.path(), Some(launched));
        let mut runtime = Scripted::new(inherit(theirs).unwrap());
        let (stream, register) = runtime.registration().await.unwrap();
        assert_eq!((register.plugin_idx.as_str(), register.plugin_name.as_str()), ("42", "x"));
        runtime.answer(stream, None).await.unwrap();
        runtime.configure("containerd", "2.1.9", "", "text").await.unwrap();
        // This runtime drops it and lives on.
        drop(runtime);
        let mut runtime = accept(&listener).await;
        let (_, register) = runtime.registration().await.unwrap();
        assert_eq!(register.plugin_name, "x");
        running.stop().await;
    }

    #[tokio::test]
    async fn a_started_instance_idles_while_another_is_registered() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path());
        let first = Running::start(folder.path(), None);
        let _first_session = accept(&listener).await;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let launched = Launched { identity: identity(), stream: ours };
        let second = Running::start(folder.path(), Some(launched));
        let mut runtime = Scripted::new(inherit(theirs).unwrap());
        // It goes along, and wants to hear of next to nothing.
        assert_eq!(runtime.start("containerd", "2.1.9", "").await, Ok(4));
        nobody_comes(&listener).await;
        first.stop().await;
        let mut dialled = accept(&listener).await;
        assert_eq!(dialled.start("containerd", "2.1.9", "").await, Ok(1));
        // Both connections stay: a runtime kills a process that it has started and lost.
        assert_eq!(runtime.synchronize(&[], &[]).await.unwrap().0, 1);
        second.stop().await;
        runtime.closed().await;
    }

    #[tokio::test]
    async fn goes_when_the_runtime_that_started_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let options = Options {
            identity: identity(),
            socket: folder.path().join("nri.sock"),
            lock: folder.path().join("nri.lock"),
        };
        let plugin: Arc<dyn Plugin> = Arc::new(Plain::default());
        let lives = AtomicBool::new(true);
        let stop = pin!(std::future::pending());
        let runtime_lives = || lives.load(Ordering::Relaxed);
        let kept = kept(inherit(ours).unwrap(), &plugin, &options, &runtime_lives, stop);
        let script = async {
            Scripted::new(inherit(theirs).unwrap()).start("containerd", "2.1.9", "").await.unwrap();
            lives.store(false, Ordering::Relaxed);
        };
        let both = async { tokio::join!(kept, script) };
        tokio::time::timeout(Duration::from_secs(5), both).await.unwrap().0.unwrap();
    }

    #[test]
    fn pauses_grow() {
        for seed in [0, 1, 77, 4_194_304, u32::MAX] {
            for (attempt, longest) in
                [(0, 250), (1, 500), (2, 1000), (3, 2000), (4, 4000), (5, 5000), (9999, 5000)]
            {
                let away = pause(attempt, AWAY, seed).as_millis();
                assert!(away <= longest.min(1000) && away >= longest.min(1000) * 3 / 4, "{away}");
                let pause = pause(attempt, IN_VAIN, seed).as_millis();
                assert!(pause <= longest && pause >= longest * 3 / 4, "{seed} {attempt}: {pause}");
            }
        }
        let spread: std::collections::BTreeSet<_> =
            (1000..1100).map(|pid| pause(5, IN_VAIN, pid)).collect();
        assert!(spread.len() > 50, "{spread:?}");
    }
}
