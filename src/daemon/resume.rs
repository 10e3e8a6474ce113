//! After a restart: what containers asked into which files of ours are bound, so that these can be
//! written anew when what they should say changes.
//!
//! Nothing of a container is kept on disk for that, since its environment may hold secrets. The
//! runtime shows the container as it is, and the record what we added: the difference is what the
//! container was.

use std::sync::Arc;

use tracing::{debug, warn};

use super::containers::Asked;
use super::plugin::Daemon;
use super::records::Verdict;
use crate::grant::Grant;
use crate::nri::container::{self, network};
use crate::nri::proto::{Container, PodSandbox};
use crate::request::{self, Limit, Request};

/// How long the first inventory may take, nobody waiting.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Works out what these containers asked, off the runtime's call.
pub(super) fn spawn(daemon: Arc<Daemon>, containers: Vec<(PodSandbox, Container)>) {
    if containers.is_empty() {
        return;
    }
    tokio::spawn(async move {
        for (sandbox, container) in containers {
            resume(&daemon, &sandbox, &container).await;
        }
        daemon.stale_files.notify_one();
    });
}

async fn resume(daemon: &Daemon, sandbox: &PodSandbox, container: &Container) {
    let (store, id) = (daemon.journal.store().clone(), container.id.clone());
    let record = tokio::task::spawn_blocking(move || store.read(&id)).await;
    let grant = match record {
        Ok(Ok(Some(record))) => match record.verdict {
            Verdict::Granted { grant } => grant,
            _ => return,
        },
        Ok(Ok(None)) | Err(_) => return,
        Ok(Err(problem)) => return warn!("files of a container stay as they are: {problem}"),
    };
    let (Some(session), Ok(node)) = (daemon.session(), daemon.keeper.node(PATIENCE).await) else {
        return;
    };
    let mut before = container::container(sandbox, container, &session.runtime, session.limits);
    take_back(&mut before, &grant);
    let (annotations, policy) = (session.annotations(sandbox, container), daemon.policies.now());
    match Request::read(annotations, before, session.carrier.clone(), &policy, &node) {
        Ok(request) => {
            let network = network(sandbox, Some(container));
            daemon
                .containers
                .set_asked(&container.id, Asked { request: Arc::new(request), network });
        }
        Err(problem) => debug!("files of a container stay as they are: {problem}"),
    }
}

/// Makes a container what it was before that grant.
fn take_back(container: &mut request::Container, grant: &Grant) {
    container.env.retain(|(name, value)| {
        !grant.env.iter().any(|ours| ours.name == *name && ours.value == *value)
    });
    container.devices.retain(|device| !grant.devices.iter().any(|ours| ours.path == device.path));
    container.mounts.retain(|mount| {
        let at = |path: &String| *path == mount.destination;
        !grant.files.iter().any(|file| at(&file.path))
            && !grant.mounts.iter().any(|ours| at(&ours.destination))
    });
    if grant.memlock.is_some() {
        container.memlock = Limit::Invisible;
    }
    if grant.cpus.is_some() {
        container.cpus = None;
    }
    container.granted_before = false;
}
