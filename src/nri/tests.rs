//! Sessions with a scripted runtime.

use super::frame::{LONGEST, frame};
use super::mux::{self, Lost, PLUGIN, RUNTIME};
use super::proto::{
    Container, ContainerAdjustment, ContainerRequest, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Empty, Event, KeyValue, LinuxResources, PodRequest, PodSandbox,
    StateChangeEvent, SynchronizeRequest, SynchronizeResponse, UpdateContainerRequest,
    UpdateContainerResponse, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use super::scripted::{Fault, Scripted};
use super::{
    Configuration, Events, Identity, Mishap, MishapKind, Pieces, Plugin, Reason, SessionEnd, Stage,
    serve,
};
use async_trait::async_trait;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Does what a container's name says, and notes what it is told.
#[derive(Default)]
struct Actor {
    seen: Mutex<Vec<String>>,
    configurations: Mutex<Vec<Configuration>>,
    mishaps: Mutex<Vec<Mishap>>,
}

impl Actor {
    fn note(&self, text: impl Into<String>) {
        self.seen.lock().unwrap().push(text.into());
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn adjust(bytes: usize) -> CreateContainerResponse {
    let env = vec![KeyValue { key: "V".into(), value: "x".repeat(bytes) }];
    let adjust = ContainerAdjustment { env, ..Default::default() };
    CreateContainerResponse { adjust: Some(adjust), update: Vec::new() }
}

#[async_trait]
impl Plugin for Actor {
    async fn configure(&self, configuration: Configuration) -> Result<Events, String> {
        if configuration.config == "refuse" {
            return Err("rdma-ctk: no".into());
        }
        self.configurations.lock().unwrap().push(configuration);
        Ok(Events::RUN_POD_SANDBOX
            | Events::STOP_POD_SANDBOX
            | Events::REMOVE_POD_SANDBOX
            | Events::CREATE_CONTAINER
            | Events::START_CONTAINER
            | Events::UPDATE_CONTAINER
            | Events::REMOVE_CONTAINER
            | Events::VALIDATE_CONTAINER_ADJUSTMENT)
    }

    async fn synchronize(&self, pieces: Pieces) -> Result<Vec<ContainerUpdate>, String> {
        let Pieces { first, last, pods, containers } = pieces;
        self.note(format!("{} {} {first} {last}", pods.len(), containers.len()));
        if pods.first().is_some_and(|pod| pod.name == "refuse") {
            return Err("rdma-ctk: not that".into());
        }
        let container_id = format!("of {} pods", pods.len());
        Ok(vec![ContainerUpdate { container_id, ..Default::default() }])
    }

    fn mishap(&self, mishap: Mishap) {
        self.mishaps.lock().unwrap().push(mishap);
    }

    async fn run_pod_sandbox(&self, pod: PodSandbox) {
        match pod.name.as_str() {
            "panic" => panic!("at the disco"),
            "slow" => tokio::time::sleep(Duration::from_secs(3)).await,
            name => self.note(format!("run {name}")),
        }
    }

    async fn stop_pod_sandbox(&self, pod: PodSandbox) {
        self.note(format!("stop {}", pod.name));
    }

    async fn remove_pod_sandbox(&self, pod: PodSandbox) {
        self.note(format!("remove {}", pod.name));
    }

    async fn create_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateContainerResponse, String> {
        self.note(format!("create {} in {}", container.name, pod.name));
        let (verb, number) = container.name.split_once(' ').unwrap_or((&container.name, "0"));
        let number: usize = number.parse().unwrap();
        match verb {
            "bytes" => Ok(adjust(number)),
            "refuse" => Err("rdma-ctk: no adapter \"mlx5_9\"; this node has mlx5_0".into()),
            "panic" => panic!("cannot divide by {number}"),
            // What a stopped process, or one that gets no CPU, would look like.
            "block" => {
                tokio::time::advance(Duration::from_millis(number as u64)).await;
                Ok(adjust(1))
            }
            "sleep" => {
                tokio::time::sleep(Duration::from_millis(number as u64)).await;
                self.note("awake");
                Ok(adjust(1))
            }
            _ => Ok(CreateContainerResponse::default()),
        }
    }

    async fn start_container(&self, pod: PodSandbox, container: Container) -> Result<(), String> {
        self.note(format!("start {} in {}", container.name, pod.name));
        if container.name == "refuse" {
            return Err("rdma-ctk: not without its grant".into());
        }
        Ok(())
    }

    async fn update_container(
        &self,
        _: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        self.note(format!("update {} {}", container.name, resources.cpu.unwrap_or_default().cpus));
        Ok(vec![ContainerUpdate { container_id: container.id, ..Default::default() }])
    }

    async fn remove_container(&self, _: PodSandbox, container: Container) {
        self.note(format!("remove {}", container.name));
    }

    async fn validate_container_adjustment(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), String> {
        match request.container.unwrap_or_default().name.as_str() {
            "refuse" => Err("rdma-ctk: changed behind our back".into()),
            _ => Ok(()),
        }
    }

    fn session_ended(&self, end: &SessionEnd) {
        self.note(format!("ended {:?}", end.stage));
    }
}

struct Rig {
    plugin: Arc<Actor>,
    runtime: Scripted,
    stop: Option<oneshot::Sender<()>>,
    session: JoinHandle<SessionEnd>,
}

impl Rig {
    fn new() -> Self {
        Self::with_buffer(64 << 10)
    }

    /// The trunk holds so many bytes before a write has to wait.
    fn with_buffer(bytes: usize) -> Self {
        let (ours, theirs) = tokio::io::duplex(bytes);
        let plugin = Arc::new(Actor::default());
        let (stop, stopped) = oneshot::channel();
        let session = tokio::spawn({
            let plugin = Arc::clone(&plugin);
            async move {
                let identity = Identity::new("10", "rdma-ctk").unwrap();
                let stopped = async { stopped.await.unwrap_or(()) };
                serve(ours, plugin, &identity, stopped).await
            }
        });
        Self { plugin, runtime: Scripted::new(theirs), stop: Some(stop), session }
    }

    async fn started(name: &str, version: &str, nri: &str) -> Self {
        let mut rig = Self::new();
        rig.runtime.start(name, version, nri).await.unwrap();
        rig.plugin.seen();
        rig
    }

    async fn create(&self, name: &str) -> Result<CreateContainerResponse, Fault> {
        self.runtime.call("CreateContainer", &create_request(name)).await
    }
}

fn pod(name: &str) -> PodSandbox {
    PodSandbox { id: format!("id-{name}"), name: name.into(), ..Default::default() }
}

fn container(name: &str) -> Container {
    Container { id: format!("id-{name}"), name: name.into(), ..Default::default() }
}

fn create_request(name: &str) -> CreateContainerRequest {
    CreateContainerRequest { pod: Some(pod("p")), container: Some(container(name)) }
}

fn status(code: i32, text: &str) -> Fault {
    Fault::Status { code, text: text.into() }
}

#[tokio::test]
async fn a_session() {
    let mut rig = Rig::new();
    let (stream, register) = rig.runtime.registration().await.unwrap();
    assert_eq!((register.plugin_idx.as_str(), register.plugin_name.as_str()), ("10", "rdma-ctk"));
    assert_eq!(register.nri_version, "v0.12.2");
    rig.runtime.answer(stream, None).await.unwrap();
    rig.runtime.configure("containerd", "2.1.9+unknown", "", "some = 'text'").await.unwrap();
    let configuration = rig.plugin.configurations.lock().unwrap()[0].clone();
    assert_eq!(configuration.config, "some = 'text'");
    assert_eq!(configuration.runtime.to_string(), "containerd 2.1.9+unknown (NRI 0.8.0)");
    assert_eq!(configuration.request_timeout, Duration::from_secs(2));
    assert_eq!(configuration.registration_timeout, Duration::from_secs(5));
    let (requests, updates) = rig.runtime.synchronize(&[pod("a")], &[]).await.unwrap();
    assert_eq!((requests, updates.len()), (1, 1));
    assert_eq!(rig.create("bytes 1").await.unwrap(), adjust(1));
    let _ = rig.stop.take().unwrap().send(());
    let end = rig.session.await.unwrap();
    assert!(matches!(end.reason, Reason::Stopped), "{end:?}");
    assert_eq!(end.stage, Stage::Synchronised);
    assert_eq!(rig.plugin.seen(), ["1 0 true true", "create bytes 1 in p", "ended Synchronised"]);
    rig.runtime.closed().await;
    assert_eq!(rig.runtime.violations(), [""; 0]);
}

#[tokio::test]
async fn configure_may_come_before_the_answer_to_the_registration() {
    let mut rig = Rig::new();
    let (stream, _) = rig.runtime.registration().await.unwrap();
    rig.runtime.configure("containerd", "2.1.9", "", "").await.unwrap();
    rig.runtime.answer(stream, None).await.unwrap();
    rig.runtime.synchronize(&[], &[]).await.unwrap();
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn events_that_each_version_knows() {
    // 0x4af: run, stop and remove pods; create, start, update and remove containers.
    for (name, version, nri, events) in [
        ("containerd", "1.7.0", "", 0x4af),
        ("containerd", "1.7.24~ds1", "", 0x4af),
        ("containerd", "v2.0.5", "", 0x4af),
        ("containerd", "2.1.9+unknown", "", 0x4af),
        ("containerd", "2.2.0", "", 0x24af),
        ("containerd", "2.2.7", "", 0x24af),
        ("containerd", "2.3.0", "v0.12.0", 0x24af),
        ("containerd", "2.4.0-beta.0", "0.12.1", 0x24af),
        ("containerd", "(devel)", "(devel)", 0x4af),
        ("containerd", "(devel)", "0.12.2", 0x24af),
        ("cri-o", "1.26.0", "", 0x4af),
        ("cri-o", "1.33.4", "", 0x4af),
        ("cri-o", "1.34.0", "", 0x24af),
        ("cri-o", "1.36.1", "0.0.0-unknown", 0x24af),
        ("something", "9.9.9", "", 0x4af),
    ] {
        let mut rig = Rig::new();
        let answered = rig.runtime.start(name, version, nri).await.unwrap();
        assert_eq!(answered, events, "{name} {version} {nri}");
    }
}

#[tokio::test]
async fn refused_configuration_is_told() {
    let mut rig = Rig::new();
    let (stream, _) = rig.runtime.registration().await.unwrap();
    rig.runtime.answer(stream, None).await.unwrap();
    let refused = rig.runtime.configure("containerd", "2.1.9", "", "refuse").await;
    assert_eq!(refused, Err(status(2, "rdma-ctk: no")));
}

#[tokio::test]
async fn refused_registration_ends_the_session() {
    let mut rig = Rig::new();
    let (stream, _) = rig.runtime.registration().await.unwrap();
    rig.runtime.answer(stream, Some("invalid plugin index")).await.unwrap();
    let end = rig.session.await.unwrap();
    let Reason::Refused(text) = &end.reason else { panic!("{end:?}") };
    assert_eq!((text.as_str(), end.stage), ("invalid plugin index", Stage::Connected));
}

#[tokio::test]
async fn events_by_state_change_and_by_calls_of_their_own() {
    let rig = Rig::started("containerd", "2.3.0", "v0.12.0").await;
    for (event, call) in [
        (Event::RunPodSandbox, "RunPodSandbox"),
        (Event::StopPodSandbox, "StopPodSandbox"),
        (Event::RemovePodSandbox, "RemovePodSandbox"),
        (Event::StartContainer, "StartContainer"),
        (Event::RemoveContainer, "RemoveContainer"),
        (Event::PostCreateContainer, "PostCreateContainer"),
        (Event::PostStartContainer, "PostStartContainer"),
        (Event::PostUpdateContainer, "PostUpdateContainer"),
        (Event::StopContainer, "StopContainer"),
    ] {
        let of_pod = call.ends_with("PodSandbox");
        let both = (Some(pod("p")), (!of_pod).then(|| container("c")));
        let change = StateChangeEvent {
            event: event.into(),
            pod: both.0.clone(),
            container: both.1.clone(),
        };
        let Empty {} = rig.runtime.call("StateChange", &change).await.unwrap();
        let by_change = rig.plugin.seen();
        let Empty {} = if of_pod {
            rig.runtime.call(call, &PodRequest { pod: both.0 }).await.unwrap()
        } else {
            let request = ContainerRequest { pod: both.0, container: both.1 };
            rig.runtime.call(call, &request).await.unwrap()
        };
        assert_eq!(by_change, rig.plugin.seen(), "{call}");
    }
    let refused = StateChangeEvent {
        event: Event::StartContainer.into(),
        pod: Some(pod("p")),
        container: Some(container("refuse")),
    };
    let answer: Result<Empty, Fault> = rig.runtime.call("StateChange", &refused).await;
    assert_eq!(answer, Err(status(2, "rdma-ctk: not without its grant")));
    // An event that a later version may have.
    let unknown = StateChangeEvent { event: 99, ..Default::default() };
    let Empty {} = rig.runtime.call("StateChange", &unknown).await.unwrap();
    let Empty {} = rig.runtime.call("Shutdown", &Empty {}).await.unwrap();
}

#[tokio::test]
async fn update_and_validation() {
    let rig = Rig::started("containerd", "2.3.0", "v0.12.0").await;
    let mut resources = LinuxResources::default();
    resources.cpu.get_or_insert_default().cpus = "0-3".into();
    let request = UpdateContainerRequest {
        pod: Some(pod("p")),
        container: Some(container("c")),
        linux_resources: Some(resources),
    };
    let answer: UpdateContainerResponse =
        rig.runtime.call("UpdateContainer", &request).await.unwrap();
    assert_eq!(answer.update[0].container_id, "id-c");
    assert_eq!(rig.plugin.seen(), ["update c 0-3"]);
    for (name, reject, reason) in
        [("c", false, ""), ("refuse", true, "rdma-ctk: changed behind our back")]
    {
        let request = ValidateContainerAdjustmentRequest {
            container: Some(container(name)),
            ..Default::default()
        };
        let answer: ValidateContainerAdjustmentResponse =
            rig.runtime.call("ValidateContainerAdjustment", &request).await.unwrap();
        assert_eq!((answer.reject, answer.reason.as_str()), (reject, reason));
    }
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let rig = Rig::started("containerd", "2.3.0", "v0.12.0").await;
    for method in ["UpdatePodSandbox", "PostUpdatePodSandbox", "Whatever"] {
        let answer = rig.runtime.call_bytes(method, Vec::new()).await;
        let Err(Fault::Status { code, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(code, 12, "{method}");
    }
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn malformed_requests_are_errors() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    for method in ["CreateContainer", "RunPodSandbox", "StateChange", "Configure"] {
        // Field 1, of a length that is not there.
        let answer = rig.runtime.call_bytes(method, vec![0x0a, 0x7f]).await;
        let Err(Fault::Status { code, text }) = answer else { panic!("{answer:?}") };
        assert_eq!(code, 3, "{method}");
        assert!(text.starts_with("rdma-ctk: malformed request: "), "{text}");
    }
    let answer = rig.runtime.call_service("nri.Else", "CreateContainer", Vec::new()).await;
    assert!(matches!(answer, Err(Fault::Status { .. })), "{answer:?}");
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn refusals_are_what_the_user_sees() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    let refusal = "rdma-ctk: no adapter \"mlx5_9\"; this node has mlx5_0";
    assert_eq!(rig.create("refuse").await, Err(status(2, refusal)));
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_session_goes_on() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    let text = "rdma-ctk: internal error: CreateContainer: cannot divide by 7";
    assert_eq!(rig.create("panic 7").await, Err(status(2, text)));
    rig.create("bytes 1").await.unwrap();
    // What cannot fail does not: an error from RunPodSandbox leaks the sandbox.
    let request = PodRequest { pod: Some(pod("panic")) };
    let Empty {} = rig.runtime.call("RunPodSandbox", &request).await.unwrap();
    rig.create("bytes 1").await.unwrap();
    // The plugin hears of both, and whom they were about.
    let mishaps = std::mem::take(&mut *rig.plugin.mishaps.lock().unwrap());
    let [creation, sandbox] = &mishaps[..] else { panic!("{mishaps:?}") };
    assert_eq!(creation.container.as_ref().unwrap().name, "panic 7");
    assert!(creation.pod.is_some());
    assert_eq!((creation.call, creation.kind), ("CreateContainer", MishapKind::Panic));
    assert_eq!((creation.failed, creation.text.as_str()), (true, &text["rdma-ctk: ".len()..]));
    assert_eq!(sandbox.pod.as_ref().unwrap().name, "panic");
    assert_eq!((sandbox.failed, &sandbox.container), (false, &None));
}

#[tokio::test(start_paused = true)]
async fn c60_slower_than_the_deadline() {
    for timeout in [2000, 500, 10_000] {
        let mut rig = Rig::new();
        rig.runtime.request_timeout = Duration::from_millis(timeout);
        rig.runtime.start("containerd", "2.1.9", "").await.unwrap();
        let answer = rig.create("sleep 20000").await;
        let share = timeout * 3 / 4;
        let text = format!(
            "rdma-ctk: CreateContainer: no answer within {share} ms, see the log of rdma-ctk"
        );
        assert_eq!(answer, Err(status(2, &text)));
        let record = rig.runtime.records().pop().unwrap();
        assert!(record.elapsed < Duration::from_millis(timeout), "{record:?}");
        // The connection is up, and the next call is served.
        rig.create("bytes 1").await.unwrap();
        // The call that was too late does not go on behind the answer.
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(!rig.plugin.seen().contains(&"awake".to_owned()));
        // What cannot fail is answered as well.
        if timeout == 2000 {
            let request = PodRequest { pod: Some(pod("slow")) };
            let Empty {} = rig.runtime.call("RunPodSandbox", &request).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_may_overlap() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    let slow = rig.create("sleep 1000");
    let fast = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        rig.create("bytes 1").await
    };
    let (slow, fast) = tokio::join!(slow, fast);
    slow.unwrap();
    fast.unwrap();
    let methods: Vec<_> = rig.runtime.records().iter().map(|r| r.elapsed.as_millis()).collect();
    assert_eq!(methods[methods.len() - 2..], [0, 1000]);
}

#[tokio::test]
async fn replies_of_any_length() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    let lengths = (4040..4100).chain([0, 1, 20_000, 3_000_000, 4_100_000]);
    for length in lengths {
        assert_eq!(rig.create(&format!("bytes {length}")).await.unwrap(), adjust(length));
    }
    assert_eq!(rig.runtime.violations(), [""; 0]);
    let longest = rig.runtime.frames().into_iter().map(|(_, length)| length).max().unwrap();
    assert!(longest > 4_000_000);
    // Longer than a message may be: the creation fails, the session goes on.
    let answer = rig.create("bytes 5000000").await;
    assert!(matches!(answer, Err(Fault::Status { .. })), "{answer:?}");
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn requests_in_frames_of_any_length() {
    for cut in [1, 9, 10, 11, 4096, 65_536] {
        let rig = Rig::started("containerd", "2.1.9", "").await;
        rig.runtime.cut_frames(cut);
        let mut request = create_request("bytes 5");
        request.container.get_or_insert_default().args = vec!["y".repeat(50_000)];
        let answer: CreateContainerResponse =
            rig.runtime.call("CreateContainer", &request).await.unwrap();
        assert_eq!(answer, adjust(5), "{cut}");
    }
}

#[tokio::test]
async fn a_synchronisation_in_parts() {
    let mut rig = Rig::new();
    let (stream, _) = rig.runtime.registration().await.unwrap();
    rig.runtime.answer(stream, None).await.unwrap();
    rig.runtime.configure("containerd", "2.1.9", "", "").await.unwrap();
    let pods: Vec<PodSandbox> = (0..20_000)
        .map(|i| {
            let mut pod = pod(&format!("pod-{i:05}"));
            pod.annotations.insert("filler".into(), "f".repeat(600));
            pod
        })
        .collect();
    let (requests, updates) = rig.runtime.synchronize(&pods, &[container("c")]).await.unwrap();
    assert_eq!((requests, updates.len()), (4, 4), "{updates:?}");
    let seen = rig.plugin.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen[0].ends_with(" 1 true false"), "{seen:?}");
    assert!(seen[1].ends_with(" 0 false false"), "{seen:?}");
    assert!(seen[3].ends_with(" 0 false true"), "{seen:?}");
    let told: usize =
        seen.iter().map(|s| s.split(' ').next().unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!(told, 20_000);
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_synchronisation_share_their_time() {
    let rig = Rig::started("containerd", "1.7.0", "").await;
    let more = SynchronizeRequest { more: true, ..Default::default() };
    let _: SynchronizeResponse = rig.runtime.call("Synchronize", &more).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let answer: Result<SynchronizeResponse, Fault> = rig.runtime.call("Synchronize", &more).await;
    // The plugin answers at once, so there was no time to lose; but it had none.
    assert!(answer.is_ok());
}

#[tokio::test]
async fn a_session_that_is_not_synchronised_ends() {
    let mut rig = Rig::new();
    let (stream, _) = rig.runtime.registration().await.unwrap();
    rig.runtime.answer(stream, None).await.unwrap();
    rig.runtime.configure("containerd", "1.7.24~ds1", "", "").await.unwrap();
    // NRI 0.6 keeps the connection after that, and never calls the plugin.
    let answer = rig.runtime.synchronize(&[pod("refuse")], &[]).await;
    assert_eq!(answer, Err(status(2, "rdma-ctk: not that")));
    let end = rig.session.await.unwrap();
    let Reason::GivenUp(why) = &end.reason else { panic!("{end:?}") };
    assert_eq!(why, "the synchronisation failed: rdma-ctk: not that");
    assert_eq!(end.stage, Stage::Synchronising);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_runtime_has_lost_patience_ends() {
    let rig = Rig::started("containerd", "1.7.24~ds1", "").await;
    let _ = rig.create("block 2500").await;
    let end = rig.session.await.unwrap();
    let Reason::GivenUp(why) = &end.reason else { panic!("{end:?}") };
    assert_eq!(why, "CreateContainer took 2500 ms, and the runtime waits for 2000 ms");
}

#[tokio::test]
async fn wrong_frames_end_the_session() {
    // A length beyond all bounds, on a connection that nobody knows.
    let rig = Rig::started("containerd", "2.1.9", "").await;
    rig.runtime.raw(&[0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    let end = rig.session.await.unwrap();
    assert!(matches!(end.reason, Reason::Lost(Lost::Frame(_))), "{end:?}");
    assert_eq!(end.stage, Stage::Synchronised);

    // The end, in the middle of a frame.
    let rig = Rig::started("containerd", "2.1.9", "").await;
    rig.runtime.raw(&[0, 0, 0, 1, 0, 0, 0, 4, 1]).await.unwrap();
    drop(rig.runtime);
    let end = rig.session.await.unwrap();
    assert!(matches!(end.reason, Reason::Lost(Lost::Truncated)), "{end:?}");

    // The end, where it may be.
    let rig = Rig::started("containerd", "2.1.9", "").await;
    drop(rig.runtime);
    let end = rig.session.await.unwrap();
    assert!(matches!(end.reason, Reason::Lost(Lost::Closed)), "{end:?}");
    assert_eq!(rig.plugin.seen(), ["ended Synchronised"]);
}

#[tokio::test]
async fn frames_of_unknown_connections_are_skipped() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    for connection in [0, 3, u32::MAX] {
        rig.runtime.raw(&frame(connection, &vec![7; 100_000]).unwrap()).await.unwrap();
    }
    rig.runtime.raw(&frame(PLUGIN, b"").unwrap()).await.unwrap();
    rig.runtime.raw(&frame(RUNTIME, b"").unwrap()).await.unwrap();
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test]
async fn bytes_that_are_no_ttrpc_leave_the_session_answering() {
    // A message of type 9, and a response that nobody asked for; both are ignored.
    let rig = Rig::started("containerd", "2.1.9", "").await;
    rig.runtime.raw(&frame(PLUGIN, &[0, 0, 0, 0, 0, 0, 0, 77, 9, 0]).unwrap()).await.unwrap();
    rig.runtime.raw(&frame(RUNTIME, &[0, 0, 0, 0, 0, 0, 0, 77, 2, 0]).unwrap()).await.unwrap();
    rig.create("bytes 1").await.unwrap();
    // A request longer than ttrpc allows is answered with an error once all of it has come.
    let answer = rig.runtime.call_bytes("CreateContainer", vec![0; 5 << 20]).await;
    assert!(matches!(answer, Err(Fault::Status { .. })), "{answer:?}");
    rig.create("bytes 1").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_calls_before_the_session() {
    let rig = Rig::started("containerd", "2.1.9", "").await;
    let Rig { plugin, runtime, session, .. } = rig;
    let call = tokio::spawn(async move {
        let request = create_request("sleep 1000");
        let call = runtime.call::<_, CreateContainerResponse>("CreateContainer", &request);
        // Drops the connection while the plugin works.
        let _ = tokio::time::timeout(Duration::from_millis(100), call).await;
    });
    call.await.unwrap();
    session.await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(plugin.seen(), ["create sleep 1000 in p", "ended Synchronised"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_calls_be_answered() {
    let mut rig = Rig::started("containerd", "2.1.9", "").await;
    let stop = rig.stop.take().unwrap();
    let (answer, ()) = tokio::join!(rig.create("sleep 1000"), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = stop.send(());
    });
    assert_eq!(answer.unwrap(), adjust(1));
    let end = rig.session.await.unwrap();
    assert!(matches!(end.reason, Reason::Stopped), "{end:?}");
}

#[tokio::test]
async fn a_narrow_trunk_is_enough() {
    let mut rig = Rig::with_buffer(64);
    rig.runtime.start("containerd", "2.1.9", "").await.unwrap();
    let (a, b, c) =
        tokio::join!(rig.create("bytes 90000"), rig.create("bytes 300000"), rig.create("bytes 5"));
    assert_eq!((a.unwrap(), b.unwrap(), c.unwrap()), (adjust(90_000), adjust(300_000), adjust(5)));
    assert_eq!(rig.runtime.violations(), [""; 0]);
}

#[tokio::test]
async fn an_end_takes_a_write_whole_or_not_at_all() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (ours, mut theirs) = tokio::io::duplex(100);
    let (mut plugin, mut runtime, trunk) = mux::open(ours);
    let drained = trunk.drained();
    let trunk = tokio::spawn(trunk.run());
    let sizes = [3_000_000_usize, 4096, 900_000, 1, 600_000, 0, 7];
    let writer = tokio::spawn(async move {
        for size in sizes {
            assert_eq!(plugin.write(&vec![1; size]).await.unwrap(), size);
        }
        assert_eq!(runtime.write(&[2; 5]).await.unwrap(), 5);
        runtime.flush().await.unwrap();
        drop(plugin);
        runtime
    });
    let mut frames = Vec::new();
    let expected: Vec<usize> = sizes.into_iter().filter(|n| *n > 0).chain([5]).collect();
    while frames.len() < expected.len() {
        let id = theirs.read_u32().await.unwrap();
        let length = theirs.read_u32().await.unwrap() as usize;
        let mut payload = vec![0; length];
        theirs.read_exact(&mut payload).await.unwrap();
        assert!(payload.iter().all(|b| u32::from(*b) == id));
        frames.push(length);
    }
    assert_eq!(frames, expected);
    let mut runtime = writer.await.unwrap();
    drained.wait(PLUGIN).await;
    drop(theirs);
    assert!(matches!(trunk.await.unwrap(), Lost::Closed));
    assert_eq!(runtime.read(&mut [0; 9]).await.unwrap(), 0);
    assert!(runtime.write(&[0]).await.is_err());
    assert!(runtime.write(&vec![0; LONGEST + 1]).await.is_err());
}
