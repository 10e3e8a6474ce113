//! The CDI file, kept up to date where policy wants that: after each reading of the node, and when
//! the policy is read again.

use std::sync::Arc;

use tokio::sync::Notify;
use tracing::{info, warn};

use super::plugin::Daemon;
use crate::cdi::{Done, keep};

/// Keeps the file, for ever: a turn each time that `due` is notified.
pub async fn run(daemon: Arc<Daemon>, due: Arc<Notify>) {
    let mut said = None;
    loop {
        due.notified().await;
        let policy = daemon.policies.now();
        let Some(node) = daemon.keeper.now().filter(|_| policy.cdi.keep) else { continue };
        let roots = daemon.roots.clone();
        let turn = tokio::task::spawn_blocking(move || keep(&roots, &node, &policy)).await;
        let failure = match turn {
            Ok(Ok(kept)) => {
                match kept.done {
                    Done::Written(devices) => {
                        info!(devices, "{}: written", kept.path.display());
                        kept.notes.iter().for_each(|note| info!("CDI: {note}"));
                    }
                    Done::Removed => info!("{}: taken away, no adapter", kept.path.display()),
                    Done::Same | Done::Nothing => {}
                }
                None
            }
            Ok(Err(problem)) => Some(problem.to_string()),
            Err(problem) => Some(format!("the CDI file: {problem}")),
        };
        // Once, not once a minute.
        if let Some(problem) = failure.as_ref().filter(|_| failure != said) {
            warn!("{problem}");
        }
        said = failure;
    }
}
