//! An NRI plugin on rdma-ctk's transport, without rdma-ctk's engine.
//!
//! By default it does nothing: the peer that benches compare with. A pod's annotation `conformance`
//! makes it do one thing to the pod's containers, so that a real runtime's reaction to it can be
//! seen:
//!
//! * `grant`: device nodes of all adapters of the node, and unlimited locked memory
//! * `env N`: a variable of N bytes
//! * `annotations N`: N bytes of annotations, in a thousand of them
//! * `refuse TEXT`, `panic`, `sleep MILLISECONDS`: instead of an answer to CreateContainer
//! * `refuse-start TEXT`: likewise to StartContainer
//! * `fail-pod`: panic in RunPodSandbox, which cannot fail
//! * `refuse-once`: an error for the first synchronisation of which the pod is a part
//!
//! It wants to hear of everything, or with `CONFORMANCE_CREATE_ONLY` in the environment of
//! CreateContainer only. What it hears goes to standard error, a line each; to the file LAUNCHED_LOG when a runtime
//! starts it, since that leaves it no standard error.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rdma_ctk::nri::proto::{
    Container, ContainerAdjustment, ContainerUpdate, CreateContainerResponse, KeyValue,
    LinuxContainerAdjustment, LinuxDevice, LinuxResources, OptionalFileMode, PodSandbox,
    PosixRlimit, ValidateContainerAdjustmentRequest,
};
use rdma_ctk::nri::{
    Configuration, Events, Identity, Launched, Options, Pieces, Plugin, SessionEnd, run,
};

const LAUNCHED_LOG: &str = "/var/log/conformance.log";

#[derive(Default)]
struct Conformance {
    refused: AtomicBool,
}

fn wish(pod: &PodSandbox) -> (&str, &str) {
    let wish = pod.annotations.get("conformance").map_or("", String::as_str);
    wish.split_once(' ').unwrap_or((wish, ""))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|e| format!("conformance: {text:?}: {e}"))
}

#[async_trait]
impl Plugin for Conformance {
    async fn configure(&self, configuration: Configuration) -> Result<Events, String> {
        eprintln!(
            "configured by {}, {} ms, config {:?}",
            configuration.runtime,
            configuration.request_timeout.as_millis(),
            configuration.config
        );
        if std::env::var_os("CONFORMANCE_CREATE_ONLY").is_some() {
            return Ok(Events::CREATE_CONTAINER);
        }
        Ok(Events::RUN_POD_SANDBOX
            | Events::STOP_POD_SANDBOX
            | Events::REMOVE_POD_SANDBOX
            | Events::CREATE_CONTAINER
            | Events::POST_CREATE_CONTAINER
            | Events::START_CONTAINER
            | Events::POST_START_CONTAINER
            | Events::UPDATE_CONTAINER
            | Events::POST_UPDATE_CONTAINER
            | Events::STOP_CONTAINER
            | Events::REMOVE_CONTAINER
            | Events::VALIDATE_CONTAINER_ADJUSTMENT)
    }

    async fn synchronize(&self, pieces: Pieces) -> Result<Vec<ContainerUpdate>, String> {
        let refuse = pieces.pods.iter().any(|pod| wish(pod).0 == "refuse-once");
        if refuse && !self.refused.swap(true, Ordering::Relaxed) {
            return Err("conformance: not yet".to_owned());
        }
        eprintln!("synchronized {} {}", pieces.pods.len(), pieces.containers.len());
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, pod: PodSandbox) {
        eprintln!("run {}", pod.name);
        assert_ne!(wish(&pod).0, "fail-pod");
    }

    async fn stop_pod_sandbox(&self, pod: PodSandbox) {
        eprintln!("stop {}", pod.name);
    }

    async fn remove_pod_sandbox(&self, pod: PodSandbox) {
        eprintln!("remove {}", pod.name);
    }

    async fn create_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateContainerResponse, String> {
        eprintln!("create {}/{}", pod.name, container.name);
        let mut adjust = ContainerAdjustment::default();
        match wish(&pod) {
            ("", _) => return Ok(CreateContainerResponse::default()),
            ("grant", _) => {
                let linux = LinuxContainerAdjustment { devices: devices()?, ..Default::default() };
                adjust.linux = Some(linux);
                adjust.rlimits.push(PosixRlimit {
                    r#type: "RLIMIT_MEMLOCK".into(),
                    hard: u64::MAX,
                    soft: u64::MAX,
                });
            }
            ("env", size) => {
                let value = "e".repeat(number(size)?);
                adjust.env.push(KeyValue { key: "CONFORMANCE".into(), value });
            }
            ("annotations", size) => {
                let value = "a".repeat(number(size)? / 1000);
                let all = (0..1000).map(|i| (format!("conformance.test/{i}"), value.clone()));
                adjust.annotations.extend(all);
            }
            ("refuse", text) => return Err(text.to_owned()),
            ("panic", _) => panic!("as wished"),
            ("sleep", time) => {
                tokio::time::sleep(Duration::from_millis(number(time)? as u64)).await
            }
            _ => {}
        }
        Ok(CreateContainerResponse { adjust: Some(adjust), update: Vec::new() })
    }

    async fn post_create_container(&self, pod: PodSandbox, container: Container) {
        eprintln!("post-create {}/{}", pod.name, container.name);
    }

    async fn start_container(&self, pod: PodSandbox, container: Container) -> Result<(), String> {
        eprintln!("start {}/{}", pod.name, container.name);
        match wish(&pod) {
            ("refuse-start", text) => Err(text.to_owned()),
            _ => Ok(()),
        }
    }

    async fn post_start_container(&self, pod: PodSandbox, container: Container) {
        eprintln!("post-start {}/{}", pod.name, container.name);
    }

    async fn update_container(
        &self,
        pod: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        let cpus = resources.cpu.unwrap_or_default().cpus;
        eprintln!("update {}/{} cpus {cpus:?}", pod.name, container.name);
        Ok(Vec::new())
    }

    async fn post_update_container(&self, pod: PodSandbox, container: Container) {
        eprintln!("post-update {}/{}", pod.name, container.name);
    }

    async fn stop_container(&self, pod: PodSandbox, container: Container) {
        eprintln!("stop {}/{}", pod.name, container.name);
    }

    async fn remove_container(&self, pod: PodSandbox, container: Container) {
        eprintln!("remove {}/{}", pod.name, container.name);
    }

    async fn validate_container_adjustment(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), String> {
        let (pod, container) =
            (request.pod.unwrap_or_default(), request.container.unwrap_or_default());
        eprintln!("validate {}/{}", pod.name, container.name);
        Ok(())
    }

    fn session_ended(&self, end: &SessionEnd) {
        eprintln!("ended {:?}: {end}", end.stage);
    }
}

/// All character devices in /dev/infiniband.
fn devices() -> Result<Vec<LinuxDevice>, String> {
    let error = |e: std::io::Error| format!("conformance: /dev/infiniband: {e}");
    let mut devices = Vec::new();
    for entry in std::fs::read_dir("/dev/infiniband").map_err(error)? {
        let path = entry.map_err(error)?.path();
        let meta = path.metadata().map_err(error)?;
        if !meta.file_type().is_char_device() {
            continue;
        }
        devices.push(LinuxDevice {
            path: path.to_string_lossy().into_owned(),
            r#type: "c".into(),
            major: i64::try_from(nix::sys::stat::major(meta.rdev())).unwrap_or(-1),
            minor: i64::try_from(nix::sys::stat::minor(meta.rdev())).unwrap_or(-1),
            file_mode: Some(OptionalFileMode { value: 0o666 }),
            uid: None,
            gid: None,
        });
    }
    Ok(devices)
}

/// Waits for SIGTERM.
async fn terminated() {
    let kind = tokio::signal::unix::SignalKind::terminate();
    match tokio::signal::unix::signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let launched = Launched::from_env()?;
    if launched.is_some() {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(LAUNCHED_LOG)?;
        nix::unistd::dup2_stderr(&log)?;
    }
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let mut argument = |otherwise: &str| arguments.next().unwrap_or_else(|| otherwise.to_owned());
    let options = Options {
        identity: Identity::new("10", "conformance")?,
        socket: PathBuf::from(argument("/var/run/nri/nri.sock")),
        lock: PathBuf::from(argument("/run/conformance/nri.lock")),
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(
        Arc::new(Conformance::default()),
        launched,
        &options,
        terminated(),
    ))?;
    Ok(())
}
