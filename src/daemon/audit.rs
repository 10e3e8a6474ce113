//! Who slipped through: when a session begins the runtime tells what there is, and what asked for
//! RDMA, runs, and carries no grant was made while nobody was there to see to it.
//!
//! The runtime may send what there is in parts, of which the containers of one may belong to pods
//! of another, so that little is kept of each until the last has come: a node may have thousands.

use std::collections::HashMap;

use super::gate;
use super::ids::{Ids, Key};
use super::records::PodName;
use crate::nri::Pieces;
use crate::nri::container::pod;
use crate::nri::proto::{Container, ContainerState, PodSandbox};
use crate::policy::Policy;
use crate::request::{carries_grant, mentions_us};

/// What a runtime has told at the beginning of a session.
#[derive(Debug, Default)]
pub struct Census {
    /// Sandboxes.
    pub sandboxes: Ids,
    /// Containers.
    pub containers: Ids,
    /// Pods that mention us.
    mentioning: HashMap<String, PodSandbox>,
    /// Containers that run, of pods that may mention us.
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    id: String,
    name: String,
    sandbox: String,
    /// It carries a mark, which counts unless its pod carries one: then it may be the tenant's.
    marked: bool,
    /// Its device nodes below `/dev/infiniband`.
    nodes: Vec<String>,
}

/// A container that runs without what it asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slipped {
    /// Its identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its pod.
    pub pod: PodName,
    /// What it asked for.
    pub asked: String,
}

impl Slipped {
    /// What is told of it.
    pub fn sentence(&self) -> String {
        format!(
            "{}: the container started without RDMA because rdma-ctk was not connected; restart \
             the pod",
            self.asked
        )
    }
}

impl Census {
    /// Nothing told yet.
    pub fn new(key: &Key) -> Self {
        Self { sandboxes: Ids::new(key), containers: Ids::new(key), ..Self::default() }
    }

    /// Takes over one part.
    pub fn add(&mut self, pieces: Pieces) {
        for sandbox in pieces.pods {
            self.sandboxes.insert(&sandbox.id);
            if mentions_us(sandbox.annotations.keys()) {
                self.mentioning.insert(sandbox.id.clone(), sandbox);
            }
        }
        for container in pieces.containers {
            let runs = matches!(
                container.state(),
                ContainerState::ContainerRunning | ContainerState::ContainerPaused
            );
            let marked = carries_grant(&container.annotations);
            let Container { id, name, pod_sandbox_id: sandbox, linux, .. } = container;
            self.containers.insert(&id);
            // Of a pod that is known by now not to mention us, nothing is to be kept.
            let dumb = self.sandboxes.contains(&sandbox) && !self.mentioning.contains_key(&sandbox);
            if runs && !dumb {
                let devices = linux.unwrap_or_default().devices.into_iter();
                let nodes = devices
                    .map(|device| device.path)
                    .filter(|path| path.starts_with("/dev/infiniband/"))
                    .collect();
                self.running.push(Running { id, name, sandbox, marked, nodes });
            }
        }
    }

    /// The pod of that sandbox, if it mentions us.
    pub fn mentioning(&self, sandbox: &str) -> Option<&PodSandbox> {
        self.mentioning.get(sandbox)
    }

    /// Containers that run without what they asked for, those left out for which `excuses` holds
    /// by their identifier and their device nodes.
    pub fn slipped(
        &self,
        policy: &Policy,
        excuses: impl Fn(&str, &[String]) -> bool,
    ) -> Vec<Slipped> {
        self.running
            .iter()
            .filter_map(|container| {
                let sandbox = self.mentioning.get(&container.sandbox)?;
                let marked = container.marked && !carries_grant(&sandbox.annotations);
                if marked || excuses(&container.id, &container.nodes) {
                    return None;
                }
                let pod = pod(sandbox);
                let asked = gate::asked(&sandbox.annotations, &pod, &container.name, policy)?;
                Some(Slipped {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    pod: PodName::new(&pod, &container.sandbox),
                    asked,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::request::MARKER;

    fn sandbox(id: &str, annotations: &[(&str, &str)]) -> PodSandbox {
        let annotations = annotations.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        PodSandbox { id: id.into(), name: id.into(), annotations, ..PodSandbox::default() }
    }

    fn container(id: &str, sandbox: &str, state: ContainerState) -> Container {
        Container {
            id: id.into(),
            name: "main".into(),
            pod_sandbox_id: sandbox.into(),
            state: state.into(),
            ..Container::default()
        }
    }

    #[test]
    fn c61_what_asked_and_runs_without_a_mark_has_slipped_through() {
        use ContainerState::{ContainerCreated, ContainerRunning, ContainerStopped};
        let asks = [("devices.rdma-ctk.io", "all")];
        let mut marked = container("marked", "asks", ContainerRunning);
        marked.annotations = BTreeMap::from([(MARKER.to_owned(), "1".to_owned())]);
        let containers = vec![
            container("slipped", "asks", ContainerRunning),
            container("recorded", "asks", ContainerRunning),
            container("created", "asks", ContainerCreated),
            container("stopped", "asks", ContainerStopped),
            marked,
            container("plain", "dumb", ContainerRunning),
            container("orphan", "nowhere", ContainerRunning),
            container("early", "late", ContainerRunning),
        ];
        let mut census = Census::default();
        let pods = vec![sandbox("asks", &asks), sandbox("dumb", &[])];
        census.add(Pieces { first: true, last: false, pods, containers });
        let pods = vec![sandbox("late", &asks)];
        census.add(Pieces { first: false, last: true, pods, containers: Vec::new() });

        let slipped = census.slipped(&Policy::default(), |id, _| id == "recorded");
        let ids: Vec<_> = slipped.iter().map(|slipped| slipped.id.as_str()).collect();
        assert_eq!(ids, ["slipped", "early"]);
        assert_eq!(slipped[0].pod.name, "asks");
        assert_eq!(
            slipped[0].sentence(),
            "devices.rdma-ctk.io: all: the container started without RDMA because rdma-ctk was \
             not connected; restart the pod"
        );
        assert_eq!((census.sandboxes.len(), census.containers.len()), (3, 8));
    }
}
