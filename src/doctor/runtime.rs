//! Runtimes: whether NRI is on, its timeouts, its validator, and what a version lacks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::nri_config::{self, NriConfig};
use super::processes::{Process, runtimes};
use super::{Context, Finding, Live, Machine, Unable};
use crate::configure::containerd::TABLE;
use crate::nri::version::{Feature, Kind, Runtime, Version};
use crate::roots::Roots;

/// NRI's timeouts where nothing is set, in every runtime.
const REQUEST: Duration = Duration::from_secs(2);
const REGISTRATION: Duration = Duration::from_secs(5);

/// Name by which containerd's validator would require us.
const PLUGIN: &str = "rdma-ctk";

/// A runtime of this node.
struct Found {
    kind: Kind,
    /// As it says it; `None` where nobody asked it.
    version: Option<String>,
    running: bool,
    config: NriConfig,
}

impl Found {
    const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Crio => "cri-o",
            _ => "containerd",
        }
    }

    fn title(&self) -> String {
        match &self.version {
            Some(version) => format!("{} {version}", self.name()),
            None => self.name().to_owned(),
        }
    }

    fn number(&self) -> Option<Version> {
        self.version.as_deref().and_then(Version::parse)
    }

    /// Whether NRI is on where no file says so; `None` where that depends on an unknown version.
    fn on_by_default(&self) -> Option<bool> {
        let since = if self.kind == Kind::Crio { Version(1, 30, 0) } else { Version(2, 0, 0) };
        match self.number() {
            Some(version) => Some(version >= since),
            // containerd 1.7 does not read a file of version 3.
            None if self.kind != Kind::Crio && self.config.version >= 3 => Some(true),
            None => None,
        }
    }

    fn fix(&self, setting: &str) -> String {
        match self.kind {
            Kind::Crio => format!("set {setting} in /etc/crio/crio.conf.d, then restart crio"),
            _ => "`rdma-ctk configure containerd --nri`, then restart containerd".to_owned(),
        }
    }

    fn files(&self) -> String {
        match self.config.files.as_slice() {
            [] => "its defaults".to_owned(),
            [file] => file.display().to_string(),
            [file, more @ ..] => format!("{} and {} more", file.display(), more.len()),
        }
    }
}

/// Runtimes that are running or configured here.
fn found(context: &Context<'_>) -> Result<Vec<Found>, Unable> {
    let processes = runtimes(context.roots).unwrap_or_default();
    let process = |name: &str| processes.iter().find(|process| process.name == name);
    let mut found = Vec::new();
    let main = context.roots.etc.join("containerd/config.toml");
    if process("containerd").is_some() || main.is_file() {
        let version = version(context, "containerd");
        let old = version.as_deref().and_then(Version::parse).is_some_and(|v| v < Version(2, 0, 0));
        let config = containerd_config(context, process("containerd"), old)?;
        let running = process("containerd").is_some();
        found.push(Found { kind: Kind::Containerd, version, running, config });
    }
    let folder = context.roots.etc.join("crio");
    if process("crio").is_some() || folder.is_dir() {
        let version = version(context, "cri-o");
        let config = nri_config::crio(&folder).map_err(|e| Unable::Config(Box::new(e)))?;
        let running = process("crio").is_some();
        found.push(Found { kind: Kind::Crio, version, running, config });
    }
    if found.is_empty() {
        return Err(Unable::Absent("neither containerd nor CRI-O here"));
    }
    Ok(found)
}

/// containerd's settings; its command line may name another file than the usual.
fn containerd_config(
    context: &Context<'_>,
    process: Option<&Process>,
    old: bool,
) -> Result<NriConfig, Unable> {
    let named = process.and_then(|process| process.argument(&["--config", "-c"]));
    let path = PathBuf::from(named.unwrap_or("/etc/containerd/config.toml"));
    let locate = |path: &Path| match path.strip_prefix("/etc") {
        Ok(rest) => context.roots.etc.join(rest),
        Err(_) => path.to_owned(),
    };
    nri_config::containerd(&path, &locate, old).map_err(|e| Unable::Config(Box::new(e)))
}

/// Version of that runtime: as it told the daemon, else as the program tells.
fn version(context: &Context<'_>, name: &str) -> Option<String> {
    let told = context.records.daemon.as_ref().and_then(|daemon| daemon.runtime.as_ref());
    if let Some(runtime) = told.filter(|runtime| runtime.name == name) {
        return Some(runtime.version.clone());
    }
    installed(context.live?, name)
}

/// Program of a runtime.
fn program(name: &str) -> &str {
    if name == "cri-o" { "crio" } else { name }
}

/// Version that a runtime's program tells.
fn installed(live: &dyn Live, name: &str) -> Option<String> {
    let text = live.version(program(name))?;
    text.split_whitespace()
        .find(|word| Version::parse(word).is_some())
        .map(|word| word.trim_start_matches('v').to_owned())
}

/// Name and version of the runtime that is installed on the running node.
pub fn runtime_here(roots: &Roots) -> Option<(&'static str, String)> {
    if !roots.is_live() {
        return None;
    }
    ["containerd", "cri-o"].into_iter().find_map(|name| Some((name, installed(&Machine, name)?)))
}

/// Process of that runtime, as it calls itself.
pub fn runtime_process(roots: &Roots, name: &str) -> Option<u32> {
    let processes = runtimes(roots).unwrap_or_default();
    processes.iter().find(|process| process.name == program(name)).map(|process| process.pid)
}

/// Whether a plugin from outside can reach NRI.
pub fn nri(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let all = found(context)?;
    let mut findings = Vec::new();
    for runtime in &all {
        let title = runtime.title();
        let on = runtime.config.enabled.or_else(|| runtime.on_by_default());
        let finding = match (on, runtime.config.enabled, runtime.kind) {
            (Some(false), Some(_), Kind::Crio) => Finding::fail(
                format!(
                    "NRI is switched off in {title}: enable_nri = false in {}",
                    runtime.files()
                ),
                runtime.fix("enable_nri = true"),
            ),
            (Some(false), None, Kind::Crio) => Finding::fail(
                format!("NRI is disabled in {title} by default: set enable_nri = true"),
                runtime.fix("enable_nri = true"),
            ),
            (Some(false), Some(_), _) => Finding::fail(
                format!("NRI is switched off in {title}: disable = true in {}", runtime.files()),
                runtime.fix(""),
            ),
            (Some(false), None, _) => Finding::fail(
                format!(
                    "NRI is disabled in {title} by default: set disable=false under \
                     io.containerd.nri.v1.nri"
                ),
                runtime.fix(""),
            ),
            (None, ..) => Finding::warn(
                format!(
                    "whether NRI is on in {title} depends on its version, and {} does not say",
                    runtime.files()
                ),
                runtime.fix("enable_nri = true"),
            ),
            (Some(true), ..) if runtime.config.connections == Some(false) => Finding::fail(
                format!(
                    "{title} takes no NRI plugin from outside: connections are disabled in {}",
                    runtime.files()
                ),
                runtime.fix("nri_disable_connections = false"),
            ),
            (Some(true), ..) => socket(context, runtime),
        };
        findings.push(finding);
        for setting in &runtime.config.stray {
            findings.push(Finding::warn(
                format!("{setting} in {} has no effect there", runtime.files()),
                format!("move it into [plugins.\"{}\"]", TABLE),
            ));
        }
    }
    if let [one, other] = all.as_slice()
        && one.running
        && other.running
        && socket_path(one) == socket_path(other)
    {
        findings.push(Finding::warn(
            format!(
                "{} and {} share the socket {}: whichever starts later takes it from the other",
                one.name(),
                other.name(),
                socket_path(one)
            ),
            "give one of them another socket, or switch NRI off there",
        ));
    }
    Ok(findings)
}

fn socket_path(runtime: &Found) -> &str {
    runtime.config.socket.as_deref().unwrap_or("/var/run/nri/nri.sock")
}

/// NRI is on: is its socket there?
fn socket(context: &Context<'_>, runtime: &Found) -> Finding {
    let path = socket_path(runtime);
    let below_run = path.strip_prefix("/var/run/").or_else(|| path.strip_prefix("/run/"));
    let file = below_run.map_or_else(|| PathBuf::from(path), |rest| context.roots.run.join(rest));
    let title = runtime.title();
    if file.exists() {
        Finding::ok(format!("NRI is on in {title}, at {path}"))
    } else if runtime.running {
        Finding::fail(
            format!("NRI is on in {title} by {}, but {path} is not there", runtime.files()),
            format!("restart {}, and look into its log for NRI", runtime.name()),
        )
    } else {
        Finding::ok(format!("NRI is on in {title}, which is not running"))
    }
}

/// The timeouts that hold: those that the runtime told the daemon, else those of its files.
pub fn timeouts(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let told = context.records.daemon.as_ref().and_then(|daemon| daemon.runtime.as_ref());
    let mut findings = Vec::new();
    for runtime in found(context)? {
        let told = told
            .filter(|told| told.name == runtime.name() && told.request_timeout_ms > 0)
            .map(|told| Duration::from_millis(told.request_timeout_ms));
        let set = runtime.config.request_timeout;
        let holds = told.or(set).unwrap_or(REQUEST);
        let registration = runtime.config.registration_timeout.unwrap_or(REGISTRATION);
        let mut text = format!("{} waits {} for an answer", runtime.title(), seconds(holds));
        // Writing to a String cannot fail.
        let _ = match told {
            Some(_) => write!(text, " (as it told the daemon)"),
            None if set.is_some() => write!(text, " (by {})", runtime.files()),
            None => write!(text, " (its default)"),
        };
        let _ = write!(text, " and {} for a registration", seconds(registration));
        findings.push(match (told, set) {
            (Some(told), Some(set)) if told != set => Finding::warn(
                format!("{text}, though {} says {}", runtime.files(), seconds(set)),
                format!("restart {} to make its settings hold", runtime.name()),
            ),
            _ if holds < Duration::from_secs(1) => Finding::warn(
                format!("{text}: too short for a node under load"),
                "a late answer drops the plugin: raise plugin_request_timeout to 2s or more",
            ),
            _ => Finding::ok(text),
        });
    }
    Ok(findings)
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// The runtime's version, and what it lacks of what we would use.
pub fn versions(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let mut findings = Vec::new();
    for runtime in found(context)? {
        let Some(version) = &runtime.version else {
            findings.push(Finding::warn(
                format!("the version of {} is not known", runtime.name()),
                "run doctor on the node, or start the daemon, which is told it",
            ));
            continue;
        };
        let known = Runtime::detect(runtime.name(), version, "");
        let carried = [
            (known.can.devices, Feature::Devices),
            (known.can.rlimits, Feature::Rlimits),
            (known.can.cpuset, Feature::Cpuset),
        ];
        let lacking: Vec<Feature> =
            carried.iter().filter(|(can, _)| !can).map(|(_, feature)| *feature).collect();
        for feature in &lacking {
            findings.push(Finding::fail(
                format!("{known}: {}", feature.needs()),
                format!("update {}", runtime.name()),
            ));
        }
        if !lacking.is_empty() {
            continue;
        }
        let mut missing = Vec::new();
        for (can, feature) in [
            (known.can.rlimits_visible, Feature::RlimitsVisible),
            (known.can.required_plugins, Feature::RequiredPlugins),
        ] {
            if !can {
                missing.push(feature.needs());
            }
        }
        findings.push(if missing.is_empty() {
            Finding::ok(format!("{known} carries all that a grant needs"))
        } else {
            Finding::ok(format!("{known} carries all that a grant needs; {}", missing.join("; ")))
        });
    }
    Ok(findings)
}

/// Whether a container can be created while the plugin is away.
pub fn validator(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let mut findings = Vec::new();
    for runtime in found(context)? {
        let title = runtime.title();
        let can = runtime
            .version
            .as_ref()
            .map(|version| Runtime::detect(runtime.name(), version, "").can.required_plugins);
        if can == Some(false) {
            findings.push(Finding::warn(
                format!(
                    "{title} cannot require a plugin: containers that are created while rdma-ctk \
                     is away are refused at their start if it is back by then; else they start \
                     without, and are named afterwards"
                ),
                Feature::RequiredPlugins.needs(),
            ));
            continue;
        }
        let required =
            runtime.config.required_plugins.iter().any(|name| {
                name == PLUGIN || name.split_once('-').is_some_and(|(_, n)| n == PLUGIN)
            });
        findings.push(match (runtime.config.validator == Some(true), required) {
            (true, true) => {
                Finding::ok(format!("{title} refuses containers while rdma-ctk is away"))
            }
            (true, false) => Finding::warn(
                format!(
                    "the default validator of {title} is on and does not require {PLUGIN}: \
                     containers that are created while it is away start without"
                ),
                runtime.fix("nri_validator_required_plugins = [\"rdma-ctk\"]"),
            ),
            (false, _) => Finding::warn(
                format!(
                    "the default validator of {title} is off: containers that are created while \
                     {PLUGIN} is away start without"
                ),
                runtime.fix("nri_enable_default_validator = true"),
            ),
        });
    }
    Ok(findings)
}

/// Ways to start a container that do not pass through NRI.
pub fn others(context: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    let roots = context.roots;
    let mut around = Vec::new();
    if roots.etc.join("docker").is_dir() || roots.run.join("docker.sock").exists() {
        around.push("docker");
    }
    if roots.etc.join("containers").is_dir() {
        around.push("podman");
    }
    if roots.etc.join("nerdctl").is_dir()
        || context.live.is_some_and(|live| live.version("nerdctl").is_some())
    {
        around.push("nerdctl");
    }
    if around.is_empty() {
        return Err(Unable::Absent("neither docker nor podman nor nerdctl here"));
    }
    Ok(vec![Finding::ok(format!(
        "containers of {} do not pass through NRI: annotations have no effect there",
        around.join(" and ")
    ))])
}

/// What NRI cannot give, and why that does not matter.
pub fn capabilities(_: &Context<'_>) -> Result<Vec<Finding>, Unable> {
    Ok(vec![Finding::ok(
        "NRI cannot change capabilities; IPC_LOCK is not needed, since the memlock limit is raised, \
         for users other than root too",
    )])
}
