//! What is known of the runtime during one session with it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::nri::container::{RuntimeLimits, carrier};
use crate::nri::proto::{Container, ContainerAdjustment, PodSandbox};
use crate::nri::{Configuration, Runtime};
use crate::policy::Policy;
use crate::request::Carrier;
use crate::roots::Roots;

/// As Docker calls itself.
const DOCKER: &str = "docker";

/// The runtime of a session.
#[derive(Debug)]
pub struct Session {
    /// Who it is and what it can do.
    pub runtime: Runtime,
    /// In words, for records and messages.
    pub label: String,
    /// The path from a grant to its containers.
    pub carrier: Carrier,
    /// What its process may lock and raise.
    pub limits: RuntimeLimits,
    /// After this time without an answer it goes on without us.
    pub request_timeout: Duration,
    /// Where containers are left to the wrapper although nothing in a request says that they are
    /// the wrapper's.
    pub left: Option<String>,
}

impl Session {
    /// The session that a runtime begins with that configuration.
    pub fn new(
        configuration: &Configuration,
        limits: RuntimeLimits,
        roots: &Roots,
        policy: &Policy,
    ) -> Self {
        let runtime = configuration.runtime.clone();
        Self {
            label: runtime.to_string(),
            carrier: carrier(&runtime, limits),
            limits,
            request_timeout: configuration.request_timeout,
            left: docker_wrapper(&runtime, roots, policy),
            runtime,
        }
    }

    /// The annotations that say what a container asks for: its pod's. Docker has no pods, and its
    /// containers are annotated themselves.
    pub fn annotations<'a>(
        &self,
        sandbox: &'a PodSandbox,
        container: &'a Container,
    ) -> &'a BTreeMap<String, String> {
        if self.is_docker() { &container.annotations } else { &sandbox.annotations }
    }

    /// What the runtime takes of an adjustment. Docker refuses a container over most fields, and
    /// over most options of a mount.
    pub fn carried(&self, adjust: ContainerAdjustment) -> ContainerAdjustment {
        if self.is_docker() {
            ContainerAdjustment { env: adjust.env, ..ContainerAdjustment::default() }
        } else {
            adjust
        }
    }

    /// Whether it is Docker, whose NRI is a part of others'.
    pub fn is_docker(&self) -> bool {
        self.runtime.name == DOCKER
    }

    /// How long a container waits for what is not at hand.
    pub fn patience(&self) -> Duration {
        self.request_timeout / 4
    }
}

/// Docker's requests do not say which runtime a container is for. Where it has been told of the
/// wrapper, a container that asks is left to that; elsewhere it is refused like any other whose
/// runtime cannot do what is asked.
fn docker_wrapper(runtime: &Runtime, roots: &Roots, policy: &Policy) -> Option<String> {
    if runtime.name != DOCKER {
        return None;
    }
    let text = fs::read_to_string(roots.etc.join("docker/daemon.json")).ok()?;
    let file: serde_json::Value = serde_json::from_str(&text).ok()?;
    let runtimes = file.get("runtimes")?.as_object()?;
    let ours = runtimes.keys().find(|name| policy.wrapper_handlers.contains(*name))?;
    Some(format!(
        "Docker's NRI cannot add device nodes: left to the runtime {ours}, which serves it if the \
         container was started with --runtime {ours}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c84_docker_with_the_wrapper_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        fs::create_dir_all(roots.etc.join("docker")).unwrap();
        let docker = Runtime::detect("docker", "29.2.0", "");
        let containerd = Runtime::detect("containerd", "2.1.9", "");
        let policy = Policy::default();
        for (text, left) in [
            ("", false),
            ("{}", false),
            (r#"{"runtimes": {"nvidia": {}}}"#, false),
            (r#"{"runtimes": {"rdma": {"path": "rdma-ctk-runtime"}}}"#, true),
        ] {
            fs::write(roots.etc.join("docker/daemon.json"), text).unwrap();
            assert_eq!(docker_wrapper(&docker, &roots, &policy).is_some(), left, "{text}");
            assert_eq!(docker_wrapper(&containerd, &roots, &policy), None);
        }
    }
}
