//! The calls of a runtime: ttrpc's requests to a [`Plugin`]'s methods, and its answers back, each
//! within its time and none by a panic.

use super::arrival::Arrivals;
use super::outline;
use super::plugin::{Configuration, Mishap, MishapKind, Pieces, Plugin};
use super::proto::{
    ConfigureRequest, ConfigureResponse, Container, ContainerRequest, ContainerUpdate,
    CreateContainerRequest, Empty, Event, PodRequest, PodSandbox, StateChangeEvent,
    StopContainerResponse, SynchronizeRequest, SynchronizeResponse, UpdateContainerRequest,
    UpdateContainerResponse, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use super::session::Stage;
use super::version::Runtime;
use async_trait::async_trait;
use prost::Message;
use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use ttrpc::r#async::{MethodHandler, Service, TtrpcContext};
use ttrpc::proto::{Code, Request, Response};

/// The plugin's service.
const SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// What runtimes give a request where they do not say it (before NRI 0.7).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Likewise for a registration.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of a request's time after which it is answered with an error. The rest is for the way
/// back, since a runtime that gets nothing goes on without the plugin.
fn share(timeout: Duration, percent: u8) -> Duration {
    timeout / 100 * u32::from(percent.min(100))
}

/// Why a call fails: the code and the text of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure(Code, String);

impl From<String> for Failure {
    fn from(text: String) -> Self {
        // What a plugin in Go that returns an error would answer. DEADLINE_EXCEEDED must not be
        // used: it would read as if the connection were of no use any more.
        Self(Code::UNKNOWN, text)
    }
}

/// The calls of one session.
pub(super) struct Calls {
    plugin: Arc<dyn Plugin>,
    state: Mutex<State>,
    arrivals: Arc<Arrivals>,
    given_up: Notify,
}

struct State {
    stage: Stage,
    request_timeout: Duration,
    /// Of the synchronisation: the time by which all of it has to be answered.
    deadline: Option<Instant>,
    /// Of the synchronisation: what goes out with the last answer.
    updates: Vec<ContainerUpdate>,
    /// Of the synchronisation: pods and containers so far.
    told: (usize, usize),
    /// Why the session is of no use any more.
    given_up: Option<String>,
}

/// The methods of the plugin's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Configure,
    Synchronize,
    Shutdown,
    CreateContainer,
    UpdateContainer,
    ValidateContainerAdjustment,
    StateChange,
    /// One of those that StateChange carries where there is no call of their own.
    Dedicated(Event),
}

const METHODS: &[(&str, Method)] = &[
    ("Configure", Method::Configure),
    ("Synchronize", Method::Synchronize),
    ("Shutdown", Method::Shutdown),
    ("CreateContainer", Method::CreateContainer),
    ("UpdateContainer", Method::UpdateContainer),
    ("ValidateContainerAdjustment", Method::ValidateContainerAdjustment),
    ("StateChange", Method::StateChange),
    ("RunPodSandbox", Method::Dedicated(Event::RunPodSandbox)),
    ("StopPodSandbox", Method::Dedicated(Event::StopPodSandbox)),
    ("RemovePodSandbox", Method::Dedicated(Event::RemovePodSandbox)),
    ("PostCreateContainer", Method::Dedicated(Event::PostCreateContainer)),
    ("StartContainer", Method::Dedicated(Event::StartContainer)),
    ("PostStartContainer", Method::Dedicated(Event::PostStartContainer)),
    ("PostUpdateContainer", Method::Dedicated(Event::PostUpdateContainer)),
    ("StopContainer", Method::Dedicated(Event::StopContainer)),
    ("RemoveContainer", Method::Dedicated(Event::RemoveContainer)),
];

impl Calls {
    pub(super) fn new(plugin: Arc<dyn Plugin>) -> Arc<Self> {
        let state = State {
            stage: Stage::Connected,
            request_timeout: REQUEST_TIMEOUT,
            deadline: None,
            updates: Vec::new(),
            told: (0, 0),
            given_up: None,
        };
        Arc::new(Self {
            plugin,
            state: Mutex::new(state),
            arrivals: Arc::default(),
            given_up: Notify::new(),
        })
    }

    /// Where the times of requests are to be noted.
    pub(super) fn arrivals(&self) -> Arc<Arrivals> {
        Arc::clone(&self.arrivals)
    }

    /// All methods, as ttrpc's server wants them.
    pub(super) fn services(self: &Arc<Self>) -> HashMap<String, Service> {
        let methods = METHODS
            .iter()
            .map(|(name, method)| {
                let call = Call { name, method: *method, calls: Arc::clone(self) };
                let call: Box<dyn MethodHandler + Send + Sync> = Box::new(call);
                ((*name).to_owned(), call)
            })
            .collect();
        HashMap::from([(SERVICE.to_owned(), Service { methods, streams: HashMap::new() })])
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the session has come.
    pub(super) fn stage(&self) -> Stage {
        self.state().stage
    }

    pub(super) fn registered(&self) {
        let mut state = self.state();
        // Configure may have come before the answer to the registration.
        state.stage = state.stage.max(Stage::Registered);
    }

    /// Time within which a request has an answer, whatever happens.
    pub(super) fn patience(&self) -> Duration {
        share(self.state().request_timeout, self.plugin.deadline_percent())
    }

    /// How long the runtime waits for an answer to this call, and by when there is one. `begun`:
    /// when the request came; `timeout`: what the caller says it will wait, in nanoseconds.
    fn limits(&self, method: Method, begun: Instant, timeout: i64) -> (Duration, Instant) {
        let mut state = self.state();
        let mut allowed = state.request_timeout;
        if let Ok(timeout @ 1..) = u64::try_from(timeout) {
            allowed = allowed.min(Duration::from_nanos(timeout));
        }
        let mut deadline = begun + share(allowed, self.plugin.deadline_percent());
        if method == Method::Synchronize {
            // All parts of a synchronisation share the time of one request.
            deadline = state.deadline.map_or(deadline, |first| first.min(deadline));
            state.deadline = Some(deadline);
        }
        (allowed, deadline)
    }

    /// Ends the session, since the runtime counts on this plugin no more but may not say so: NRI
    /// 0.6 keeps the connection of a plugin that it could not synchronise, and never calls it.
    fn give_up(&self, why: String) {
        self.state().given_up.get_or_insert(why);
        self.given_up.notify_one();
    }

    /// Waits until there is a reason to end the session from this side.
    pub(super) async fn given_up(&self) -> String {
        loop {
            self.given_up.notified().await;
            if let Some(why) = self.state().given_up.clone() {
                return why;
            }
        }
    }

    /// The answer to a call. `may_fail` becomes false when silence is better than an error: for
    /// what has happened already, and for RunPodSandbox (see [`Plugin`]).
    async fn answer(
        &self,
        method: Method,
        request: &mut Vec<u8>,
        may_fail: &AtomicBool,
    ) -> Result<Vec<u8>, Failure> {
        match method {
            Method::Configure => self.configure(decode(request)?).await,
            Method::Synchronize => {
                self.plugin.before_synchronising().await;
                // To be rid of the bytes before the plugin works on what they say: they are many.
                let bytes = std::mem::take(request);
                let decoded = outline::read(&bytes, self.plugin.outline()).map_err(malformed)?;
                drop(bytes);
                self.synchronize(decoded).await
            }
            Method::Shutdown => Ok(encode(&Empty {})),
            Method::CreateContainer => {
                let CreateContainerRequest { pod, container } = decode(request)?;
                let response = self
                    .plugin
                    .create_container(pod.unwrap_or_default(), container.unwrap_or_default())
                    .await?;
                Ok(encode(&response))
            }
            Method::UpdateContainer => {
                let UpdateContainerRequest { pod, container, linux_resources } = decode(request)?;
                let update = self
                    .plugin
                    .update_container(
                        pod.unwrap_or_default(),
                        container.unwrap_or_default(),
                        linux_resources.unwrap_or_default(),
                    )
                    .await?;
                Ok(encode(&UpdateContainerResponse { update }))
            }
            Method::ValidateContainerAdjustment => {
                let request: ValidateContainerAdjustmentRequest = decode(request)?;
                let verdict = self.plugin.validate_container_adjustment(request).await;
                Ok(encode(&ValidateContainerAdjustmentResponse {
                    reject: verdict.is_err(),
                    reason: verdict.err().unwrap_or_default(),
                }))
            }
            Method::StateChange => {
                let StateChangeEvent { event, pod, container } = decode(request)?;
                // One that came after this was written is none that was subscribed to.
                let event = Event::try_from(event).unwrap_or(Event::Unknown);
                self.event(event, pod, container, may_fail).await?;
                Ok(encode(&Empty {}))
            }
            Method::Dedicated(
                event @ (Event::RunPodSandbox | Event::StopPodSandbox | Event::RemovePodSandbox),
            ) => {
                let PodRequest { pod } = decode(request)?;
                self.event(event, pod, None, may_fail).await?;
                Ok(encode(&Empty {}))
            }
            Method::Dedicated(event) => {
                let ContainerRequest { pod, container } = decode(request)?;
                self.event(event, pod, container, may_fail).await?;
                Ok(encode(&StopContainerResponse { update: Vec::new() }))
            }
        }
    }

    async fn configure(&self, request: ConfigureRequest) -> Result<Vec<u8>, Failure> {
        let runtime =
            Runtime::detect(&request.runtime_name, &request.runtime_version, &request.nri_version);
        let known = runtime.events();
        let request_timeout = millis(request.request_timeout, REQUEST_TIMEOUT);
        self.state().request_timeout = request_timeout;
        let label = runtime.to_string();
        let wanted = self
            .plugin
            .configure(Configuration {
                runtime,
                config: request.config,
                request_timeout,
                registration_timeout: millis(request.registration_timeout, REGISTRATION_TIMEOUT),
            })
            .await?;
        let events = wanted.and(known);
        if events.is_empty() {
            // 0 would stand for all.
            return Err(Failure::from(format!(
                "rdma-ctk: {label} has none of the events that are needed ({wanted})"
            )));
        }
        self.state().stage = Stage::Configured;
        tracing::info!(
            runtime = %label,
            events = %events,
            request_timeout_ms = millis_of(request_timeout),
            "configured by the runtime"
        );
        Ok(encode(&ConfigureResponse { events: events.bits() }))
    }

    async fn synchronize(&self, request: SynchronizeRequest) -> Result<Vec<u8>, Failure> {
        let SynchronizeRequest { pods, containers, more } = request;
        let (told_pods, told_containers) = (pods.len(), containers.len());
        let first = self.state().stage < Stage::Synchronising;
        self.state().stage = Stage::Synchronising;
        let pieces = Pieces { first, last: !more, pods, containers };
        let updates = self.plugin.synchronize(pieces).await?;
        let mut state = self.state();
        state.updates.extend(updates);
        state.told.0 += told_pods;
        state.told.1 += told_containers;
        let mut response = SynchronizeResponse { update: Vec::new(), more };
        if !more {
            state.stage = Stage::Synchronised;
            state.deadline = None;
            response.update = std::mem::take(&mut state.updates);
            let (pods, containers) = std::mem::take(&mut state.told);
            drop(state);
            tracing::info!(pods, containers, "synchronised with the runtime");
        }
        Ok(encode(&response))
    }

    async fn event(
        &self,
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
        may_fail: &AtomicBool,
    ) -> Result<(), Failure> {
        may_fail.store(event == Event::StartContainer, Ordering::Relaxed);
        let plugin = &self.plugin;
        let pod = pod.unwrap_or_default();
        let container = container.unwrap_or_default();
        match event {
            Event::RunPodSandbox => plugin.run_pod_sandbox(pod).await,
            Event::StopPodSandbox => plugin.stop_pod_sandbox(pod).await,
            Event::RemovePodSandbox => plugin.remove_pod_sandbox(pod).await,
            Event::PostCreateContainer => plugin.post_create_container(pod, container).await,
            Event::StartContainer => plugin.start_container(pod, container).await?,
            Event::PostStartContainer => plugin.post_start_container(pod, container).await,
            Event::PostUpdateContainer => plugin.post_update_container(pod, container).await,
            Event::StopContainer => plugin.stop_container(pod, container).await,
            Event::RemoveContainer => plugin.remove_container(pod, container).await,
            Event::Unknown
            | Event::CreateContainer
            | Event::UpdateContainer
            | Event::UpdatePodSandbox
            | Event::PostUpdatePodSandbox
            | Event::ValidateContainerAdjustment => {}
        }
        Ok(())
    }
}

/// One method, for ttrpc.
struct Call {
    name: &'static str,
    method: Method,
    calls: Arc<Calls>,
}

#[async_trait]
impl MethodHandler for Call {
    async fn handler(&self, context: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        let begun = self.calls.arrivals.take(context.mh.stream_id).unwrap_or_else(Instant::now);
        let (allowed, deadline) = self.calls.limits(self.method, begun, context.timeout_nano);
        let may_fail = AtomicBool::new(true);
        let mut payload = request.payload;
        let answer = self.calls.answer(self.method, &mut payload, &may_fail);
        let answer = Guarded(Box::pin(answer));
        let answer = match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => {
                let panic = panic_text(panic.as_ref());
                let text = format!("internal error: {}: {panic}", self.name);
                self.excuse(MishapKind::Panic, &may_fail, text, &payload)
            }
            Err(_) => {
                let elapsed = millis_of(begun.elapsed());
                let text = format!(
                    "{}: no answer within {elapsed} ms, see the log of rdma-ctk",
                    self.name
                );
                self.excuse(MishapKind::Late, &may_fail, text, &payload)
            }
        };
        let elapsed = begun.elapsed();
        if elapsed >= allowed {
            self.calls.give_up(format!(
                "{} took {} ms, and the runtime waits for {} ms",
                self.name,
                millis_of(elapsed),
                millis_of(allowed)
            ));
        }
        let mut response = Response::new();
        match answer {
            Ok(payload) => response.payload = payload,
            Err(Failure(code, text)) => {
                if self.method == Method::Synchronize {
                    self.calls.give_up(format!("the synchronisation failed: {text}"));
                }
                response.set_status(ttrpc::get_status(code, text));
            }
        }
        Ok(response)
    }
}

impl Call {
    /// What a call is answered that went wrong in this way. The plugin is told whom it was about.
    fn excuse(
        &self,
        kind: MishapKind,
        may_fail: &AtomicBool,
        text: String,
        request: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let failed = may_fail.load(Ordering::Relaxed);
        let answer =
            if failed { Err(Failure::from(format!("rdma-ctk: {text}"))) } else { Ok(Vec::new()) };
        let (pod, container) = self.method.subject(request);
        let mishap = Mishap { call: self.name, kind, failed, text, pod, container };
        let tell = || self.calls.plugin.mishap(mishap);
        if catch_unwind(AssertUnwindSafe(tell)).is_err() {
            tracing::error!(call = self.name, "the plugin panicked when it was told of a mishap");
        }
        answer
    }
}

impl Method {
    /// The pod and the container that a request is about, as far as it tells.
    fn subject(self, request: &[u8]) -> (Option<PodSandbox>, Option<Container>) {
        match self {
            Self::Configure | Self::Synchronize | Self::Shutdown => (None, None),
            Self::StateChange => StateChangeEvent::decode(request)
                .map(|event| (event.pod, event.container))
                .unwrap_or_default(),
            // The others have both in the same two fields.
            Self::CreateContainer
            | Self::UpdateContainer
            | Self::ValidateContainerAdjustment
            | Self::Dedicated(_) => ContainerRequest::decode(request)
                .map(|request| (request.pod, request.container))
                .unwrap_or_default(),
        }
    }
}

/// A call that may panic.
struct Guarded<'a, T>(Pin<Box<dyn Future<Output = T> + Send + 'a>>);

impl<T> Future for Guarded<'_, T> {
    type Output = Result<T, Box<dyn Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The future is not polled again after a panic, and the plugin's state is its own matter.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn decode<M: Message + Default>(request: &[u8]) -> Result<M, Failure> {
    M::decode(request).map_err(malformed)
}

fn malformed(problem: impl std::fmt::Display) -> Failure {
    Failure(Code::INVALID_ARGUMENT, format!("rdma-ctk: malformed request: {problem}"))
}

fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

fn millis(said: i64, otherwise: Duration) -> Duration {
    match u64::try_from(said) {
        Ok(said @ 1..) => Duration::from_millis(said),
        _ => otherwise,
    }
}

fn millis_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
