//! Annotations that name a container which their pod does not have: a typing error that nothing
//! else would ever tell. A pod's containers become known one by one, so one waits before saying
//! that a name was not among them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ids::Ids;
use super::records::PodName;
use crate::request::{mentions_us, unmatched_scopes};

/// What stands before the name of a container in an annotation's key.
const SCOPE: &str = "/container.";

/// So long after the last new container of a pod, the names that are left over are told. Init
/// containers may hold up the others; when these come after all, what was told is taken back.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pods whose annotations name containers.
#[derive(Debug, Default)]
pub struct Scopes {
    pods: Mutex<HashMap<String, Named>>,
}

#[derive(Debug)]
struct Named {
    pod: PodName,
    /// The annotations that name a container.
    scoped: BTreeMap<String, String>,
    /// Names of the containers that there have been.
    met: Vec<String>,
    last: Instant,
    told: bool,
}

/// What is left over of a pod's annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmatched {
    /// The pod.
    pub pod: PodName,
    /// The annotations.
    pub annotations: Vec<String>,
}

impl Scopes {
    /// A pod that begins, with its annotations.
    pub fn begin(&self, pod: &PodName, annotations: &BTreeMap<String, String>) {
        let scoped: BTreeMap<String, String> = annotations
            .iter()
            .filter(|(key, _)| mentions_us([key]) && key.contains(SCOPE))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !scoped.is_empty() {
            let (pod, last) = (pod.clone(), Instant::now());
            let named = Named { pod, scoped, met: Vec::new(), last, told: false };
            self.pods().insert(named.pod.sandbox.clone(), named);
        }
    }

    /// A container of that name is made in that pod. True: what was told of the pod was wrong, and
    /// nothing is left over.
    pub fn met(&self, sandbox: &str, name: &str) -> bool {
        let mut pods = self.pods();
        let Some(named) = pods.get_mut(sandbox) else { return false };
        named.last = Instant::now();
        named.met.push(name.to_owned());
        let (done, told) = (named.left().is_empty(), named.told);
        if done {
            pods.remove(sandbox);
        }
        done && told
    }

    /// What is left over and has not been told, of pods that have had no new container for so
    /// long.
    pub fn overdue(&self, quiet: Duration) -> Vec<Unmatched> {
        let mut pods = self.pods();
        let late = |named: &&mut Named| !named.told && named.last.elapsed() >= quiet;
        pods.values_mut().filter(late).map(Named::tell).collect()
    }

    /// A pod that ends: what is left over of it and has not been told.
    pub fn end(&self, sandbox: &str) -> Option<Unmatched> {
        let mut named = self.pods().remove(sandbox)?;
        (!named.told).then(|| named.tell())
    }

    /// Forgets all pods but these.
    pub fn retain(&self, sandboxes: &Ids) {
        self.pods().retain(|sandbox, _| sandboxes.contains(sandbox));
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Named {
    fn tell(&mut self) -> Unmatched {
        self.told = true;
        Unmatched { pod: self.pod.clone(), annotations: self.left() }
    }

    fn left(&self) -> Vec<String> {
        unmatched_scopes(&self.scoped, &self.met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(scopes: &Scopes, keys: &[&str]) {
        let annotations = keys.iter().map(|&key| (key.to_owned(), "all".to_owned())).collect();
        let pod = PodName { sandbox: "box".into(), ..PodName::default() };
        scopes.begin(&pod, &annotations);
    }

    fn annotations(unmatched: impl IntoIterator<Item = Unmatched>) -> Vec<String> {
        unmatched.into_iter().flat_map(|unmatched| unmatched.annotations).collect()
    }

    #[test]
    fn a_name_that_no_container_has_is_told_once() {
        let scopes = Scopes::default();
        begin(
            &scopes,
            &[
                "devices.rdma-ctk.io/container.worker",
                "devices.rdma-ctk.io/container.wroker",
                "env.rdma-ctk.io/container.wroker",
                "devices.rdma-ctk.io/pod",
                "devices.example.org/container.x",
            ],
        );
        assert!(!scopes.met("box", "worker"));
        assert_eq!(scopes.overdue(PATIENCE), []);
        let told = annotations(scopes.overdue(Duration::ZERO));
        assert_eq!(
            told,
            ["devices.rdma-ctk.io/container.wroker", "env.rdma-ctk.io/container.wroker"]
        );
        assert_eq!(scopes.overdue(Duration::ZERO), []);
        assert_eq!(scopes.end("box"), None);
    }

    #[test]
    fn a_container_that_comes_late_takes_it_back() {
        let scopes = Scopes::default();
        begin(&scopes, &["devices.rdma-ctk.io/container.main"]);
        assert!(!scopes.met("box", "init"));
        assert_eq!(scopes.overdue(Duration::ZERO).len(), 1);
        assert!(scopes.met("box", "main"));
        assert!(!scopes.met("box", "main"));
    }

    #[test]
    fn a_pod_that_ends_early_is_told_then() {
        let scopes = Scopes::default();
        begin(&scopes, &["devices.rdma-ctk.io/container.main"]);
        assert_eq!(annotations(scopes.end("box")), ["devices.rdma-ctk.io/container.main"]);
        assert_eq!(scopes.end("box"), None);
        begin(&scopes, &["devices.rdma-ctk.io"]);
        assert_eq!(scopes.overdue(Duration::ZERO), []);
    }
}
