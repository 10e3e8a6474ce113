//! The node's leases, as those take them who make sub-interfaces.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::book::Leasing;
use crate::netns::addresses::{Lease, Leases, Prober, Problem, Wish, take_all};
use crate::policy::Pools;

/// Gives addresses that no lease of the node holds, and for which nobody answers.
#[derive(Debug)]
pub struct Node(Mutex<Leases>);

impl Node {
    /// With these leases.
    pub const fn new(leases: Leases) -> Self {
        Self(Mutex::new(leases))
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leasing for Node {
    fn take(
        &self,
        wishes: &[(Wish, Pools)],
        prober: &mut dyn Prober,
    ) -> Vec<Result<Lease, String>> {
        let answers = take_all(&self.0, wishes, prober);
        answers.into_iter().map(|answer| answer.map_err(|refused| refused.to_string())).collect()
    }

    fn release(&self, sandbox: &str) -> Result<(), String> {
        told(&self.leases().release(sandbox))
    }

    fn retain(&self, wanted: &dyn Fn(&str) -> bool) -> Result<(), String> {
        told(&self.leases().retain(wanted))
    }
}

/// What cannot be given back stays taken, and is told.
fn told(problems: &[Problem]) -> Result<(), String> {
    let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if sentences.is_empty() { Ok(()) } else { Err(sentences.join("; ")) }
}
