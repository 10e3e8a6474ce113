//! Following the node without the daemon: a turn at once, one after each change that the kernel
//! tells of, and one a minute for what it does not.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::inventory::events::Events;
use crate::roots::Roots;

/// An event is rarely alone; so long is waited for the next one.
const QUIET: Duration = Duration::from_millis(100);
/// Events that do not end delay a turn no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// A turn without any event.
const RESCAN: Duration = Duration::from_secs(60);

/// Calls `turn` for ever. `turn` gets what cannot be heard, a sentence each.
///
/// # Errors
/// The system does not let us wait.
pub fn watch(roots: &Roots, mut turn: impl FnMut(&[String])) -> nix::Result<Infallible> {
    // Heard before the first turn, so that nothing is missed between them.
    let mut events = Events::open(roots)?;
    loop {
        let remarks = events.take_remarks();
        turn(&remarks);
        let deadline = Instant::now() + RESCAN;
        while !heard(&mut events, deadline)? && Instant::now() < deadline {}
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience && heard(&mut events, Instant::now() + QUIET)? {}
    }
}

/// Waits for a change until then.
fn heard(events: &mut Events, until: Instant) -> nix::Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let ready = {
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => 0,
            ready => ready?,
        }
    };
    Ok(ready > 0 && events.drain().any())
}
