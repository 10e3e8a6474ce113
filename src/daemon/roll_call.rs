//! A second look at what there is, a while after a session began.
//!
//! Runtimes have had races in which a container that is created while a plugin registers is neither
//! listed to it nor announced (containerd#13698, cri-o#10090), and a plugin may look connected and
//! hear nothing. Only a registration makes a runtime tell what there is. So a second plugin that
//! wants to hear of next to nothing registers once, compares the list with what the first one was
//! told, and goes. The first stays, so that this opens no gap.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::audit::Census;
use super::plugin::NriPlugin;
use crate::nri::proto::ContainerUpdate;
use crate::nri::{Configuration, Events, Identity, Outline, Pieces, Plugin, serve};
use crate::request::mentions_us;

/// How long after the beginning of a session.
pub const PAUSE: Duration = Duration::from_secs(15);
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes the second look when its time has come.
pub(super) fn spawn(daemon: NriPlugin) -> JoinHandle<()> {
    tokio::spawn(async move {
        sleep(PAUSE).await;
        if daemon.session().is_some_and(|session| !session.is_docker()) {
            call(daemon).await;
        }
    })
}

async fn call(daemon: NriPlugin) {
    let stream = match UnixStream::connect(&daemon.socket).await {
        Ok(stream) => stream,
        Err(problem) => {
            // A runtime that starts its plugins itself may have its socket switched off.
            debug!("no second look at what there is: {}: {problem}", daemon.socket.display());
            return;
        }
    };
    let identity = match Identity::new("99", "rdma-ctk-roll-call") {
        Ok(identity) => identity,
        Err(problem) => {
            warn!("no second look at what there is: {problem}");
            return;
        }
    };
    let census = Mutex::new(Census::new(daemon.containers.key()));
    let list = Arc::new(List { daemon, census, done: Notify::new() });
    let stop = {
        let list = Arc::clone(&list);
        async move { list.done.notified().await }
    };
    if timeout(PATIENCE, serve(stream, list, &identity, stop)).await.is_err() {
        warn!("the runtime does not tell what there is a second time");
    }
}

/// Listens to the list.
struct List {
    daemon: NriPlugin,
    census: Mutex<Census>,
    done: Notify,
}

impl Outline for List {
    fn concerns(&self, annotation: &str) -> bool {
        mentions_us([annotation])
    }

    fn whole(&self, _: &str) -> bool {
        false
    }
}

#[async_trait]
impl Plugin for List {
    async fn configure(&self, _: Configuration) -> Result<Events, String> {
        // To hear of nothing cannot be asked for; what follows an update is rare, and not waited
        // for by anybody.
        Ok(Events::POST_UPDATE_CONTAINER)
    }

    fn outline(&self) -> Option<&dyn Outline> {
        Some(self)
    }

    async fn synchronize(&self, pieces: Pieces) -> Result<Vec<ContainerUpdate>, String> {
        let last = pieces.last;
        let census = {
            let mut census = self.census.lock().unwrap_or_else(PoisonError::into_inner);
            census.add(pieces);
            last.then(|| std::mem::take(&mut *census))
        };
        if let Some(census) = census {
            self.daemon.called_over(&census);
            self.done.notify_one();
        }
        Ok(Vec::new())
    }
}
