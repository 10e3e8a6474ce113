//! Wakes the keeper of the inventory when the kernel tells of a change.
#![allow(unsafe_code)] // tokio wants somebody's word that a descriptor stays the same.

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use super::snapshot::Keeper;
use crate::inventory::events::Events;
use crate::roots::Roots;

/// Listens from now on. Where that cannot be, changes are noticed by the slow rescan. To be called
/// within a tokio runtime.
pub fn listen(roots: &Roots, keeper: Keeper) {
    if !roots.is_live() {
        return;
    }
    match Events::open(roots).map_err(io::Error::from).and_then(register) {
        Ok(events) => {
            tokio::spawn(hear(events, keeper));
        }
        Err(problem) => warn!("changes of the node are noticed once a minute only: {problem}"),
    }
}

fn register(events: Events) -> io::Result<AsyncFd<Events>> {
    // SAFETY: `Events` holds one epoll descriptor from its beginning to its end, and `as_raw_fd`
    // gives no other.
    let registered = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}

async fn hear(mut events: AsyncFd<Events>, keeper: Keeper) {
    loop {
        for remark in events.get_mut().take_remarks() {
            warn!("changes of the node may be noticed late: {remark}");
        }
        let Ok(mut ready) = events.readable_mut().await else { return };
        let changes = ready.get_inner_mut().drain();
        ready.clear_ready();
        if changes.any() {
            keeper.poke();
        }
    }
}
