//! What a plugin is to a session.

use super::outline::Outline;
use super::proto::{
    Container, ContainerUpdate, CreateContainerResponse, LinuxResources, PodSandbox,
    ValidateContainerAdjustmentRequest,
};
use super::session::SessionEnd;
use super::version::{Events, Runtime};
use async_trait::async_trait;
use std::time::Duration;

/// What a runtime says when it configures the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// Who it is and what it can do.
    pub runtime: Runtime,
    /// The text of the plugin's file in the runtime's configuration folder. Empty for a plugin
    /// that the runtime did not start itself.
    pub config: String,
    /// After this time without an answer the runtime drops the plugin and goes on without it. The
    /// session answers an error after a part of it ([`Plugin::deadline_percent`]).
    pub request_timeout: Duration,
    /// Within this time a plugin has to register.
    pub registration_timeout: Duration,
}

/// A part of the pods and containers that there are when a session begins, as far as they are of
/// use to the plugin ([`Plugin::outline`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Pieces {
    /// No other part came before in this session.
    pub first: bool,
    /// No other part follows.
    pub last: bool,
    /// Pods.
    pub pods: Vec<PodSandbox>,
    /// Containers, of these pods or of those of other parts; without those that have exited.
    pub containers: Vec<Container>,
}

/// The receiver of a runtime's calls.
///
/// The runtime holds one lock for all calls on the node, so every call is to be short; nothing
/// here may block the thread. A call is dropped at its next `await` when its time is up
/// ([`Plugin::deadline_percent`] of the runtime's) or the session ends.
///
/// Where a method returns a `Result`, an `Err` fails the operation: creation, update or start of
/// the container; its text is what the user sees, as it stands. So do a panic and a call that is
/// too late, in the session's words. The other methods cannot fail: after a panic in one of them,
/// or when it was too late, the runtime is told that all is well, and the log what happened. (An
/// error from RunPodSandbox leaks the sandbox on containerd 2.0 to 2.2.5 and 2.3.0 to 2.3.2.)
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// A stream to a runtime is there, which that process holds; `None` where it cannot be told.
    /// Called before [`Self::configure`].
    fn connected(&self, runtime: Option<u32>) {
        let _ = runtime;
    }

    /// The part of the runtime's request timeout after which a call is answered with an error.
    fn deadline_percent(&self) -> u8 {
        75
    }

    /// A session begins. The events to subscribe to; those that the runtime does not know are
    /// left out of the subscription.
    async fn configure(&self, configuration: Configuration) -> Result<Events, String>;

    /// What of pods and containers is of use when a session begins, from
    /// [`Self::before_synchronising`] on; `None`: everything.
    fn outline(&self) -> Option<&dyn Outline> {
        None
    }

    /// The runtime is about to tell what there is, or a part of it.
    async fn before_synchronising(&self) {}

    /// What there is, in one or several parts. The updates of all parts are sent with the last;
    /// a resource limit is all that they can change. An error ends the session: the next begins
    /// after a pause.
    async fn synchronize(&self, pieces: Pieces) -> Result<Vec<ContainerUpdate>, String> {
        drop(pieces);
        Ok(Vec::new())
    }

    /// A pod's sandbox has its network; no container of it exists.
    async fn run_pod_sandbox(&self, pod: PodSandbox) {
        drop(pod);
    }

    /// A pod's containers have been stopped, its network is about to go.
    async fn stop_pod_sandbox(&self, pod: PodSandbox) {
        drop(pod);
    }

    /// A pod is gone.
    async fn remove_pod_sandbox(&self, pod: PodSandbox) {
        drop(pod);
    }

    /// A container is about to be created: what to change in it, and in others.
    async fn create_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateContainerResponse, String> {
        drop((pod, container));
        Ok(CreateContainerResponse::default())
    }

    /// A container has been created, with the changes of all plugins.
    async fn post_create_container(&self, pod: PodSandbox, container: Container) {
        drop((pod, container));
    }

    /// A container is about to start; none of its code has run.
    async fn start_container(&self, pod: PodSandbox, container: Container) -> Result<(), String> {
        drop((pod, container));
        Ok(())
    }

    /// A container has started.
    async fn post_start_container(&self, pod: PodSandbox, container: Container) {
        drop((pod, container));
    }

    /// A container's resources are about to be changed to `resources`: what to change in this.
    async fn update_container(
        &self,
        pod: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        drop((pod, container, resources));
        Ok(Vec::new())
    }

    /// A container's resources have been changed.
    async fn post_update_container(&self, pod: PodSandbox, container: Container) {
        drop((pod, container));
    }

    /// A container has been stopped.
    async fn stop_container(&self, pod: PodSandbox, container: Container) {
        drop((pod, container));
    }

    /// A container is gone.
    async fn remove_container(&self, pod: PodSandbox, container: Container) {
        drop((pod, container));
    }

    /// All plugins have answered for a container: whether it may be created like that. An `Err` is
    /// the reason why not. NRI 0.10 and later.
    async fn validate_container_adjustment(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), String> {
        drop(request);
        Ok(())
    }

    /// A call went wrong, and was answered in the session's words.
    fn mishap(&self, mishap: Mishap) {
        drop(mishap);
    }

    /// A session has ended; [`Self::configure`] begins the next.
    fn session_ended(&self, end: &SessionEnd) {
        let _ = end;
    }
}

/// A call that went wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Mishap {
    /// The call's name in the protocol.
    pub call: &'static str,
    /// How.
    pub kind: MishapKind,
    /// The answer was an error: what was asked for does not happen.
    pub failed: bool,
    /// What happened, in the words that are answered with.
    pub text: String,
    /// The pod that the call was about.
    pub pod: Option<PodSandbox>,
    /// The container that it was about.
    pub container: Option<Container>,
}

/// How a call went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MishapKind {
    /// It panicked.
    Panic,
    /// Its time was up before it was done.
    Late,
}

/// How a plugin calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    index: String,
    name: String,
}

/// No name for a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Plugins are called in the order of their indices.
    #[error("plugin index {0:?}: two digits are wanted, such as 10")]
    Index(String),
    /// Since NRI 0.12 runtimes refuse other names.
    #[error("plugin name {0:?}: letters, digits and _.+- are allowed")]
    Name(String),
}

impl Identity {
    /// A plugin's index and name.
    ///
    /// # Errors
    /// One of them is not what runtimes accept.
    pub fn new(index: &str, name: &str) -> Result<Self, IdentityError> {
        if index.len() != 2 || !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(IdentityError::Index(index.to_owned()));
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.+-".contains(&b);
        if name.is_empty() || !name.bytes().all(allowed) {
            return Err(IdentityError::Name(name.to_owned()));
        }
        Ok(Self { index: index.to_owned(), name: name.to_owned() })
    }

    /// Two digits.
    #[must_use]
    pub fn index(&self) -> &str {
        &self.index
    }

    /// The name without the index.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_runtimes_accept() {
        assert_eq!(Identity::new("10", "rdma-ctk").unwrap().to_string(), "10-rdma-ctk");
        for index in ["", "1", "100", "1a", "٣٣"] {
            assert_eq!(Identity::new(index, "x"), Err(IdentityError::Index(index.into())));
        }
        for name in ["", "a b", "a/b", "é"] {
            assert_eq!(Identity::new("10", name), Err(IdentityError::Name(name.into())));
        }
    }
}
