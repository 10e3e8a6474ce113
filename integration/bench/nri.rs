//! The daemon against a plugin that does nothing, on the same transport, driven by the same
//! scripted runtime: `cargo bench --bench nri`. Both run side by side, and each call is made to one
//! and then to the other, so that a busy machine is busy for both. Needs root: the pod has a
//! network namespace of its own, with interfaces made by `ip`.
//!
//! `cargo bench --bench nri -- idle 300` watches the idle daemon for 300 s instead.

use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use prost::Message;
use rdma_ctk::daemon::service::{self, Listen, Settings};
use rdma_ctk::inventory::fixture;
use rdma_ctk::nri::proto::{
    Container, CreateContainerRequest, CreateContainerResponse, LinuxContainer, LinuxDevice,
    LinuxNamespace, LinuxPodSandbox, PodSandbox, StateChangeEvent, SynchronizeRequest,
};
use rdma_ctk::nri::scripted::Scripted;
use rdma_ctk::nri::{Configuration, Events, Identity, Options, Plugin, run};
use rdma_ctk::roots::Roots;
use tokio::net::UnixListener;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Calls of each kind, after as many tenths that do not count.
const CALLS: usize = 2000;
/// Starts of each plugin.
const STARTS: usize = 20;
/// Pods that are synchronised with.
const PODS: usize = 20_000;

struct Nothing;

#[async_trait]
impl Plugin for Nothing {
    async fn configure(&self, _: Configuration) -> Result<Events, String> {
        Ok(Events::RUN_POD_SANDBOX
            | Events::STOP_POD_SANDBOX
            | Events::REMOVE_POD_SANDBOX
            | Events::CREATE_CONTAINER
            | Events::START_CONTAINER
            | Events::UPDATE_CONTAINER
            | Events::STOP_CONTAINER
            | Events::REMOVE_CONTAINER)
    }
}

/// The plugin's side: this program again, as a process of its own.
fn plugin(kind: &str, machine: &Path, socket: PathBuf) -> Fallible<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match kind {
        "nothing" => {
            let identity = Identity::new("10", "nothing")?;
            let lock = socket.with_extension("lock");
            let options = Options { identity, socket, lock };
            runtime.block_on(run(Arc::new(Nothing), None, &options, std::future::pending()))?;
        }
        _ => {
            drop(runtime);
            // Where namespaces and the pods' processes are, this machine; the rest is the fixture.
            let roots = Roots { proc: "/proc".into(), ..Roots::below(machine) };
            service::run(Settings {
                roots,
                kubelet: machine.join("kubelet"),
                config: None,
                metrics: Some(Listen::Off),
                socket,
                index: "10".to_owned(),
                name: "rdma-ctk".to_owned(),
            })?;
        }
    }
    Ok(())
}

/// This program by another name for each kind of plugin, and so another file: of pages that
/// processes share, each is said to have a part only.
fn program(kind: &str) -> Fallible<PathBuf> {
    Ok(std::env::current_exe()?.with_extension(kind))
}

/// A plugin and the runtime's end of its session.
struct Side {
    child: Child,
    runtime: Scripted,
    /// Held, so that the plugin finds its socket should it look again.
    _listener: UnixListener,
}

impl Side {
    async fn start(kind: &str, machine: &Path) -> Fallible<(Self, Duration)> {
        let socket = machine.join(format!("{kind}.sock"));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let begun = Instant::now();
        let child = Command::new(program(kind)?)
            .args(["plugin".as_ref(), kind.as_ref(), machine.as_os_str(), socket.as_os_str()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (stream, _) = listener.accept().await?;
        let mut runtime = Scripted::new(stream);
        runtime.request_timeout = Duration::from_secs(30);
        let (number, _) = runtime.registration().await?;
        let elapsed = begun.elapsed();
        runtime.answer(number, None).await?;
        runtime.configure("containerd", "v2.1.9", "", "").await?;
        Ok((Self { child, runtime, _listener: listener }, elapsed))
    }

    async fn create(&self, request: &CreateContainerRequest) -> Fallible<Duration> {
        let begun = Instant::now();
        let response: CreateContainerResponse =
            self.runtime.call("CreateContainer", request).await?;
        let elapsed = begun.elapsed();
        black_box(response);
        Ok(elapsed)
    }

    /// `name` of `/proc/PID/smaps_rollup` or `status`, in KiB or as a number.
    fn of_process(&self, file: &str, name: &str) -> Fallible<u64> {
        of_file(Path::new(&format!("/proc/{}/{file}", self.child.id())), name)
    }

    /// How often the threads that there are have gone to sleep.
    fn wakes(&self) -> Fallible<u64> {
        let mut all = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            all += of_file(&thread?.path().join("status"), "voluntary_ctxt_switches:")?;
        }
        Ok(all)
    }
}

fn of_file(file: &Path, name: &str) -> Fallible<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or(name)?;
    let number: String = line.chars().filter(char::is_ascii_digit).collect();
    Ok(number.parse()?)
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process in a network namespace with an address in each rail of the fixture `gpu-roce`.
struct Pod(Child);

impl Pod {
    fn new() -> Fallible<Self> {
        // The fixture's slots 10 and 11 of each HCA are this address.
        let script = "for n in 0 1 2 3 4 5 6 7; do
              ip link add parent$n type veth peer name peer$n && ip link set parent$n up &&
              ip link set peer$n up && ip link add link parent$n net$n type macvlan &&
              ip link set net$n up && ip addr add 10.$((16 + n)).0.16/16 dev net$n || exit 1
            done; echo ready; exec sleep 3600";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut ready = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().ok_or("no output")?, &mut ready)?;
        Ok(Self(child))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sandbox(id: usize, annotations: &[(&str, &str)], pid: u32) -> PodSandbox {
    let namespace =
        LinuxNamespace { r#type: "network".to_owned(), path: format!("/proc/{pid}/ns/net") };
    let namespaces = if pid == 0 { Vec::new() } else { vec![namespace] };
    PodSandbox {
        id: format!("{id:064x}"),
        name: format!("pod-{id}"),
        uid: format!("uid-{id}"),
        namespace: "default".to_owned(),
        annotations: annotations.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
        linux: Some(LinuxPodSandbox { namespaces, ..LinuxPodSandbox::default() }),
        ..PodSandbox::default()
    }
}

fn container(id: usize, sandbox: &PodSandbox) -> Container {
    let device = |name: &str, minor| LinuxDevice {
        path: format!("/dev/{name}"),
        r#type: "c".to_owned(),
        major: 1,
        minor,
        ..LinuxDevice::default()
    };
    Container {
        id: format!("{id:064x}"),
        pod_sandbox_id: sandbox.id.clone(),
        name: "main".to_owned(),
        args: vec!["sh".to_owned(), "-c".to_owned(), "sleep 1".to_owned()],
        env: (0..30).map(|n| format!("VARIABLE_{n}=some value of usual length {n}")).collect(),
        linux: Some(LinuxContainer {
            devices: vec![device("null", 3), device("zero", 5), device("full", 7)],
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len() - 1);
    times[at].as_secs_f64() * 1e6
}

/// A row of the table: what, of the daemon, of the plugin that does nothing, their ratio.
fn row(what: &str, daemon: f64, nothing: f64, unit: &str) {
    println!(
        "{what:<62} {daemon:>9.1} {unit:<3} {nothing:>9.1} {unit:<3} {:>6.2}",
        daemon / nothing
    );
}

async fn round_trips(
    what: &str,
    daemon: &Side,
    nothing: &Side,
    pod: &PodSandbox,
    looked_at: bool,
) -> Fallible<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for call in 0..CALLS + CALLS / 10 {
        let mut pod = pod.clone();
        if !looked_at {
            pod.id = format!("{:064x}", 1_000_000 + call);
        }
        let container = container(call, &pod);
        let request = CreateContainerRequest { pod: Some(pod), container: Some(container) };
        let (first, second) = (daemon.create(&request).await?, nothing.create(&request).await?);
        if call >= CALLS / 10 {
            ours.push(first);
            theirs.push(second);
        }
        if !looked_at && call == 40 + CALLS / 10 {
            break;
        }
    }
    for (name, percent) in [("median", 50), ("p99", 99)] {
        let (a, b) = (quantile(&mut ours, percent), quantile(&mut theirs, percent));
        row(&format!("{what}, {name}"), a, b, "us");
    }
    Ok(())
}

async fn compare(machine: &Path) -> Fallible<()> {
    let (daemon, _) = Side::start("rdma-ctk", machine).await?;
    let (nothing, _) = Side::start("nothing", machine).await?;
    for side in [&daemon, &nothing] {
        side.runtime.synchronize(&[], &[]).await?;
    }
    let process = Pod::new()?;
    let pid = process.0.id();
    println!("{:<62} {:>13} {:>13} {:>6}", "CreateContainer", "rdma-ctk", "nothing", "ratio");

    let quiet = sandbox(1, &[], pid);
    round_trips("did not ask", &daemon, &nothing, &quiet, true).await?;
    let labels: Vec<(String, String)> =
        (0..100).map(|n| (format!("example.org/annotation-{n}"), "v".repeat(200))).collect();
    let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let verbose = sandbox(2, &labels, pid);
    round_trips("did not ask, 100 annotations", &daemon, &nothing, &verbose, true).await?;

    for (n, devices) in [(3, "mlx5_0"), (4, "mlx5_0,mlx5_1,mlx5_2,mlx5_3"), (5, "all")] {
        let asking = sandbox(n, &[("devices.rdma-ctk.io", devices)], pid);
        let event = StateChangeEvent { event: 1, pod: Some(asking.clone()), ..Default::default() };
        daemon.runtime.call_bytes("StateChange", event.encode_to_vec()).await?;
        // The pod's network is read while nobody waits.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let what = format!("devices {devices}: RoCE, 256 GIDs each, pod read");
        round_trips(&what, &daemon, &nothing, &asking, true).await?;
    }
    let unread = sandbox(6, &[("devices.rdma-ctk.io", "all")], pid);
    round_trips("devices all: pod not read yet", &daemon, &nothing, &unread, false).await?;

    println!("\n{:<62} {:>13} {:>13} {:>6}", "Process", "rdma-ctk", "nothing", "ratio");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    drop((daemon, nothing));
    for _ in 0..STARTS {
        ours.push(Side::start("rdma-ctk", machine).await?.1);
        theirs.push(Side::start("nothing", machine).await?.1);
    }
    row("start to registered, median", quantile(&mut ours, 50), quantile(&mut theirs, 50), "us");

    let (daemon, _) = Side::start("rdma-ctk", machine).await?;
    let pods: Vec<PodSandbox> = (0..PODS).map(|n| sandbox(n, &labels[..3], pid)).collect();
    let containers: Vec<Container> =
        pods.iter().enumerate().map(|(n, pod)| container(n, pod)).collect();
    let mut decoding = Vec::new();
    for _ in 0..3 {
        let mut total = Duration::ZERO;
        for (pods, containers) in pods.chunks(1000).zip(containers.chunks(1000)) {
            let bytes = SynchronizeRequest {
                pods: pods.to_vec(),
                containers: containers.to_vec(),
                more: true,
            }
            .encode_to_vec();
            let begun = Instant::now();
            black_box(SynchronizeRequest::decode(bytes.as_slice())?);
            total += begun.elapsed();
        }
        decoding.push(total);
    }
    let (nothing, _) = Side::start("nothing", machine).await?;
    let mut synchronised = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (side, times) in [&daemon, &nothing].into_iter().zip(&mut synchronised) {
            let before: usize = side.runtime.records().len();
            side.runtime.synchronize(&pods, &containers).await?;
            let records = side.runtime.records();
            times.push(records[before..].iter().map(|record| record.elapsed).sum());
        }
    }
    let [mut ours, mut theirs] = synchronised;
    let what = format!("synchronised, {PODS} pods and containers");
    let (ours, theirs) = (quantile(&mut ours, 50), quantile(&mut theirs, 50));
    row(&what, ours / 1e3, theirs / 1e3, "ms");
    row("  against decoding alone", ours / 1e3, quantile(&mut decoding, 50) / 1e3, "ms");
    let peak = |side: &Side| side.of_process("status", "VmHWM:");
    row("  peak resident", peak(&daemon)? as f64 / 1024.0, peak(&nothing)? as f64 / 1024.0, "MiB");
    Ok(())
}

async fn idle(machine: &Path, seconds: u64) -> Fallible<()> {
    let (daemon, _) = Side::start("rdma-ctk", machine).await?;
    let (nothing, _) = Side::start("nothing", machine).await?;
    let pods: Vec<PodSandbox> =
        (0..110).map(|n| sandbox(n, &[("devices.rdma-ctk.io", "all")], 0)).collect();
    let containers: Vec<Container> =
        pods.iter().enumerate().map(|(n, pod)| container(n, pod)).collect();
    for side in [&daemon, &nothing] {
        side.runtime.synchronize(&pods, &containers).await?;
    }
    // What the connection brings about is done by then.
    tokio::time::sleep(Duration::from_secs(70)).await;
    let wakes = |side: &Side| side.wakes();
    let before = [wakes(&daemon)?, wakes(&nothing)?];
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let minutes = seconds as f64 / 60.0;
    println!("{:<62} {:>13} {:>13}", "Idle with 110 pods that asked", "rdma-ctk", "nothing");
    let woken = [wakes(&daemon)? - before[0], wakes(&nothing)? - before[1]];
    let per_minute = woken.map(|woken| woken as f64 / minutes);
    println!("{:<62} {:>13.1} {:>13.1}", "wake-ups a minute", per_minute[0], per_minute[1]);
    let pss = |side: &Side| side.of_process("smaps_rollup", "Pss:").map(|kib| kib as f64 / 1024.0);
    println!("{:<62} {:>9.2} MiB {:>9.2} MiB", "PSS", pss(&daemon)?, pss(&nothing)?);
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [word, kind, machine, socket] = arguments.as_slice()
        && word == "plugin"
    {
        return plugin(kind, Path::new(machine), socket.into());
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures/gpu-roce.tree");
    for kind in ["rdma-ctk", "nothing"] {
        std::fs::copy(std::env::current_exe()?, program(kind)?)?;
    }
    // In memory, as sysfs and /run are.
    let machine = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    fixture::unpack(&tree, machine.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.as_slice() {
        [word, seconds] if word == "idle" => {
            runtime.block_on(idle(machine.path(), seconds.parse()?))
        }
        _ => runtime.block_on(compare(machine.path())),
    }
}
