//! `rdma-ctk explain`: what a container would get, and why, without running it.

mod bundle;
mod manifest;
mod show;
#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fs, io};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::output::{print, render};
use super::root::{Trees, ViewArgs};
use super::{Error, Exit, policy_file};
use crate::daemon::links::journal::away;
use crate::daemon::{records, runtime_limits};
use crate::doctor;
use crate::edit;
use crate::grant::{Inventory, Moving, Outcome, Refusal, TopologyFile, Use, decide, exclusive};
use crate::inventory::topologyd::topologyd;
use crate::inventory::{Hca, Interface, Node, PodNetwork, PodView, PortGids};
use crate::nri::container::{self, Network, RuntimeLimits, parent_cpus};
use crate::nri::proto::User;
use crate::nri::version::Runtime;
use crate::oci::admit::Station;
use crate::policy::{self, OnRefusal, Policy};
use crate::request::{CarrierPath, NetnsRequest, Pod, Request, SmcMethod, slips};
use crate::roots::Roots;
use crate::smc;
pub use bundle::BundleError;
pub use manifest::{ManifestError, Subject};
pub use show::reasons;

/// Longest manifest.
const LONGEST: u64 = 8 << 20;

/// What the help says at its end.
const AFTER: &str = "\
Exit status: 0 granted, 1 could not tell, 2 wrong usage, 3 no container asks for anything (or what
asks is somebody else's to serve), 4 at least one container is refused";

/// What the help says of the two ways to call it.
const USAGE: &str = "rdma-ctk explain [OPTIONS] <FILE>
       rdma-ctk explain [OPTIONS] -a KEY=VALUE [-a KEY=VALUE]...
       rdma-ctk explain [OPTIONS] --bundle <FOLDER|CONFIG.JSON>";

/// Tell what a pod's containers would get, and why
#[derive(Debug, Args)]
#[command(override_usage = USAGE, after_help = AFTER)]
pub struct ExplainArgs {
    /// Manifest of a pod, or of something that makes pods (- for standard input); none is needed
    /// with -a
    #[arg(value_name = "FILE", required_unless_present_any = ["annotations", "bundle"])]
    file: Option<PathBuf>,
    /// An OCI bundle, or its config.json: what the runtime wrapper would make of it
    #[arg(
        long,
        value_name = "FOLDER|CONFIG.JSON",
        conflicts_with_all = [
            "file", "annotations", "container", "namespace", "runtime_handler", "user",
            "host_network", "addresses", "variables", "cpus", "runtime",
        ]
    )]
    bundle: Option<PathBuf>,
    /// With --bundle: what podman's precreate hook would make of it
    #[arg(long, requires = "bundle")]
    hook: bool,
    #[command(flatten)]
    view: ViewArgs,
    /// An annotation, over those of the manifest; without one, all that is known of the pod
    #[arg(short, long = "annotation", value_name = "KEY=VALUE", value_parser = pair)]
    annotations: Vec<(String, String)>,
    /// Only this container of the manifest; without one, the container's name [default: app]
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// The pod's namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The pod's runtime handler
    #[arg(long, value_name = "NAME")]
    runtime_handler: Option<String>,
    /// User of the container
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// The pod is in the host's network namespace
    #[arg(long)]
    host_network: bool,
    /// An address in the pod, with the interface that has it
    #[arg(long = "pod-address", value_name = "INTERFACE=ADDRESS/LENGTH", value_parser = address)]
    addresses: Vec<PodAddress>,
    /// A variable that the container has
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    variables: Vec<(String, String)>,
    /// CPUs that the container is given
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Policy file [default: etc/rdma-ctk/config.toml of the node]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The container runtime, such as "containerd 2.1.9" [default: the node's]
    #[arg(long, value_name = "NAME VERSION", value_parser = runtime)]
    runtime: Option<Runtime>,
}

/// `INTERFACE=ADDRESS/LENGTH`
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodAddress {
    interface: String,
    address: IpAddr,
    length: u8,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn address(text: &str) -> Result<PodAddress, String> {
    let parse = || {
        let (interface, rest) = text.split_once('=')?;
        let (address, length) = rest.split_once('/')?;
        let address = IpAddr::from_str(address).ok()?;
        let length = length.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let fits = !interface.is_empty() && length <= most;
        fits.then(|| PodAddress { interface: interface.to_owned(), address, length })
    };
    parse().ok_or_else(|| "expected INTERFACE=ADDRESS/LENGTH, such as net1=10.0.0.5/24".to_owned())
}

fn runtime(text: &str) -> Result<Runtime, String> {
    match text.split_once(' ') {
        Some((name @ ("containerd" | "cri-o"), version)) if !version.trim().is_empty() => {
            Ok(Runtime::detect(name, version.trim(), ""))
        }
        _ => Err("expected \"containerd VERSION\" or \"cri-o VERSION\"".to_owned()),
    }
}

/// What came of one container.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// `NAMESPACE/NAME`
    pub pod: String,
    /// Container.
    pub container: String,
    /// The path that would carry it: `NRI on containerd 2.1.9`.
    pub path: String,
    /// What had to be assumed.
    pub notes: Vec<String>,
    /// What was noticed in the annotations.
    pub remarks: Vec<String>,
    /// The decision.
    pub decision: Outcome,
    /// What the runtime would be asked to change; `None` without a grant.
    pub adjustment: Option<Value>,
}

/// Runs the command.
///
/// # Errors
/// The manifest, the policy or the fixture cannot be used, or standard output cannot be written.
pub fn run(args: &ExplainArgs) -> Result<Exit, Error> {
    let trees = args.view.trees()?;
    let policy = match &args.policy {
        Some(path) => policy_file(path)?,
        None => policy::load(&trees.roots)?,
    };
    let explanations: Vec<Explanation> = match &args.bundle {
        Some(path) => {
            let by = if args.hook { CarrierPath::Hook } else { CarrierPath::Wrapper };
            vec![bundle::explain(&trees.roots, &policy, path, by)?]
        }
        None => {
            let node = trees.node();
            let world = World::new(args, &trees, &node, &policy);
            subjects(args)?.into_iter().map(|subject| world.explain(subject)).collect()
        }
    };
    let text = match render(args.view.output, &explanations)? {
        Some(text) => text,
        None => show::describe(&explanations)?,
    };
    print(&text)?;
    Ok(exit(&explanations))
}

/// Containers that were asked about.
fn subjects(args: &ExplainArgs) -> Result<Vec<Subject>, Error> {
    let mut subjects = match &args.file {
        Some(path) => {
            let text =
                manifest_text(path).map_err(|error| Error::Read { path: path.clone(), error })?;
            manifest::subjects(&text)
                .map_err(|error| Error::Manifest { path: path.clone(), error })?
        }
        None => vec![manifest::bare(args.container.as_deref().unwrap_or("app"))],
    };
    if let Some(name) = &args.container {
        let all: Vec<String> = subjects.iter().map(|s| s.container.name.clone()).collect();
        subjects.retain(|subject| subject.container.name == *name);
        if subjects.is_empty() {
            return Err(Error::NoContainer { name: name.clone(), known: all.join(", ") });
        }
    }
    for subject in &mut subjects {
        subject.apply(args);
    }
    Ok(subjects)
}

fn manifest_text(path: &std::path::Path) -> io::Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        io::stdin().take(LONGEST).read_to_string(&mut text)?;
    } else {
        fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    }
    Ok(text)
}

impl Subject {
    /// Puts what the command line says over what the manifest says.
    fn apply(&mut self, args: &ExplainArgs) {
        let Self { sandbox, container, .. } = self;
        sandbox.annotations.extend(args.annotations.iter().cloned());
        if let Some(namespace) = &args.namespace {
            sandbox.namespace.clone_from(namespace);
        }
        if let Some(handler) = &args.runtime_handler {
            sandbox.runtime_handler.clone_from(handler);
            self.notes.retain(|note| !note.contains("--runtime-handler"));
        }
        if args.host_network
            && let Some(linux) = &mut sandbox.linux
        {
            linux.namespaces.retain(|namespace| namespace.r#type != "network");
        }
        if let Some(uid) = args.user {
            container.user = Some(User { uid, ..User::default() });
        }
        container.env.extend(args.variables.iter().map(|(name, value)| format!("{name}={value}")));
        if let Some(cpus) = &args.cpus {
            let linux = container.linux.get_or_insert_default();
            let resources = linux.resources.get_or_insert_default();
            resources.cpu.get_or_insert_default().cpus.clone_from(cpus);
        }
    }
}

/// What all containers are decided against.
struct World<'a> {
    roots: &'a Roots,
    node: &'a Node,
    policy: &'a Policy,
    runtime: Runtime,
    limits: RuntimeLimits,
    addresses: &'a [PodAddress],
    notes: Vec<String>,
}

/// The runtime where nobody says which: the oldest that shows all and carries all.
const ASSUMED: (&str, &str) = ("containerd", "2.3.0");

impl<'a> World<'a> {
    fn new(args: &'a ExplainArgs, trees: &'a Trees, node: &'a Node, policy: &'a Policy) -> Self {
        let roots = &trees.roots;
        let mut notes = Vec::new();
        let told = records::read_all(roots).daemon.and_then(|daemon| daemon.runtime);
        let runtime = match (&args.runtime, told) {
            (Some(runtime), _) => runtime.clone(),
            (None, Some(told)) => Runtime::detect(&told.name, &told.version, &told.nri),
            (None, None) => match doctor::runtime_here(roots) {
                Some((name, version)) => Runtime::detect(name, &version, ""),
                None => {
                    notes.push(format!(
                        "no container runtime is found here, so this is the answer under {} {}; \
                         for another one name it, as in --runtime \"{} 2.1.9\"",
                        ASSUMED.0, ASSUMED.1, ASSUMED.0
                    ));
                    Runtime::detect(ASSUMED.0, ASSUMED.1, "")
                }
            },
        };
        let limits = doctor::runtime_process(roots, &runtime.name)
            .map(|pid| runtime_limits::of_process(roots, pid))
            .unwrap_or_default();
        Self { roots, node, policy, runtime, limits, addresses: &args.addresses, notes }
    }

    /// What the daemon would decide about that container.
    fn explain(&self, subject: Subject) -> Explanation {
        let Subject { mut sandbox, container: subject, siblings, mut notes } = subject;
        notes.extend(slips(&sandbox.annotations, &siblings));
        notes.extend(self.notes.iter().cloned());
        if let Some(linux) = &mut sandbox.linux {
            linux.cgroup_parent = self.pods_group().to_owned();
        }
        let mut described = container::container(&sandbox, &subject, &self.runtime, self.limits);
        let wrapped = self.policy.wrapper_handlers.contains(&sandbox.runtime_handler);
        let carrier = if wrapped {
            let station = bundle::station(self.roots, CarrierPath::Wrapper);
            let of_runtime = Station { limits: self.limits, ..station };
            of_runtime.carrier(&described)
        } else {
            container::carrier(&self.runtime, self.limits)
        };
        let path = carrier.name.clone();
        described.parent_cpus = parent_cpus(self.roots, &sandbox, &subject).unwrap_or_default();
        let pod = described.pod.clone();
        let read = Request::read(&sandbox.annotations, described, carrier, self.policy, self.node);
        let (remarks, decision) = match read {
            Ok(request) => {
                let view = self.view(container::network(&sandbox, Some(&subject)));
                let decision = match self.moved(&request, view, &mut notes) {
                    Ok(view) => {
                        let topology = self.topology();
                        let smc = (request.smc != SmcMethod::Off)
                            .then(|| smc::probe::probe(self.roots, &self.policy.smc));
                        let inventory = Inventory {
                            node: self.node,
                            pod: &view,
                            topology,
                            smc: smc.as_ref(),
                            children: None,
                        };
                        decide(&request, &inventory, self.policy)
                    }
                    Err(refusal) => self.refused(&pod, refusal),
                };
                (request.remarks, decision)
            }
            Err(error) => (Vec::new(), self.refused(&pod, Refusal { sentence: error.to_string() })),
        };
        let adjustment = match &decision {
            Outcome::Granted(grant) if wrapped => Some(show::tidy(&bundle::added(grant))),
            Outcome::Granted(grant) => {
                let store = records::Store::new(self.roots);
                let files: Vec<String> = grant
                    .files
                    .iter()
                    .filter_map(|file| store.file_path("ID", file).ok())
                    .map(|path| path.to_string_lossy().into_owned())
                    .collect();
                Some(show::tidy(&edit::nri::adjustment(grant, &files)))
            }
            _ => None,
        };
        Explanation {
            pod: format!("{}/{}", pod.namespace, pod.name),
            container: subject.name,
            path,
            notes,
            remarks,
            decision,
            adjustment,
        }
    }

    fn refused(&self, pod: &Pod, refusal: Refusal) -> Outcome {
        match self.policy.allowance(pod).on_refusal {
            OnRefusal::Warn => Outcome::Waived(refusal),
            OnRefusal::Refuse => Outcome::Refused(refusal),
        }
    }

    /// The pod's network once the adapters have moved into it that it wants for itself.
    fn moved(
        &self,
        request: &Request,
        view: PodView,
        notes: &mut Vec<String>,
    ) -> Result<PodView, Refusal> {
        if request.netns != NetnsRequest::Exclusive || !request.asks() || view == PodView::Host {
            return Ok(view);
        }
        let away = away(self.roots).0.into_iter();
        let unused = |hca: &Hca| (hca.name.clone(), Use::default());
        let moving = Moving {
            away: away.map(|away| (away.adapter.clone(), format!("now, {away}"))).collect(),
            uses: self.node.hcas.iter().map(unused).collect(),
        };
        let hcas = exclusive(request, self.node, self.policy, &moving)?;
        notes.push(format!(
            "moves into the pod when its sandbox runs, unless somebody uses it then: {}",
            hcas.join(", ")
        ));
        let network = match view {
            PodView::Ready(network) => network,
            _ => self.told_network(),
        };
        Ok(PodView::Ready(PodNetwork { hcas, ..network }))
    }

    /// The group that the kubelet makes pods in.
    fn pods_group(&self) -> &'static str {
        let slice = "kubepods.slice";
        let slices = self.roots.sys.join("fs/cgroup").join(slice).is_dir();
        if slices { slice } else { "/kubepods" }
    }

    /// The pod's network as far as it is told.
    fn view(&self, network: Network) -> PodView {
        match network {
            Network::Host => PodView::Host,
            Network::Own(_) | Network::Unknown if self.addresses.is_empty() => {
                PodView::Unknown { reason: "it does not run yet (--pod-address tells them)".into() }
            }
            Network::Own(_) | Network::Unknown => PodView::Ready(self.told_network()),
        }
    }

    fn told_network(&self) -> PodNetwork {
        let mut interfaces: Vec<Interface> = Vec::new();
        for PodAddress { interface, address, length } in self.addresses {
            match interfaces.iter_mut().find(|known| known.name == *interface) {
                Some(known) => known.addresses.push((*address, *length)),
                None => interfaces.push(Interface {
                    name: interface.clone(),
                    index: u32::try_from(interfaces.len() + 2).unwrap_or(u32::MAX),
                    lower: None,
                    kind: None,
                    controller: None,
                    addresses: vec![(*address, *length)],
                    default_route: interfaces.is_empty(),
                    up: true,
                }),
            }
        }
        let ports = self.node.hcas.iter().flat_map(|hca| {
            hca.ports.iter().map(|port| PortGids {
                hca: hca.name.clone(),
                port: port.number,
                gids: port.gids.clone(),
            })
        });
        PodNetwork { interfaces, gids: ports.collect(), ..PodNetwork::default() }
    }

    /// What is seen of the topology file that policy names, else of the vendor's; nothing on a
    /// fixture.
    fn topology(&self) -> Option<TopologyFile> {
        if !self.roots.is_live() {
            return None;
        }
        let Some(path) = self.policy.topology_file.as_ref() else {
            return topologyd(self.roots).map(|mode| TopologyFile::Vendor { mode });
        };
        Some(match fs::metadata(path) {
            Ok(file) if file.is_file() => {
                TopologyFile::Present { mode: file.permissions().mode() & 0o7777 }
            }
            _ => TopologyFile::Missing,
        })
    }
}

/// Refused counts more than granted, and granted more than not asked; one that is left to somebody
/// else is as one that did not ask.
fn exit(explanations: &[Explanation]) -> Exit {
    let any = |wanted: fn(&Outcome) -> bool| explanations.iter().any(|e| wanted(&e.decision));
    if any(|outcome| matches!(outcome, Outcome::Refused(_) | Outcome::Waived(_))) {
        Exit::Refused
    } else if any(|outcome| matches!(outcome, Outcome::Granted(_))) {
        Exit::Success
    } else {
        Exit::NotAsked
    }
}
