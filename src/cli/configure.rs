//! `rdma-ctk configure`: registration with a container runtime or engine.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::output::print;
use super::{Error, Exit};
use crate::configure::containerd::{
    self, Form, Options, RuntimeOptions, Version, installed_version, runtime_plan,
};
use crate::configure::{NAME, Owner, Plan, WRAPPER, apply, crio, docker, podman, undo, undo_plan};
use crate::policy;
use crate::roots::Roots;

/// What a cluster has to know of the handler.
const RUNTIME_CLASS: &str = include_str!("../../packaging/kubernetes/runtimeclass.yaml");

/// Register with a container runtime, or take that back
#[derive(Debug, Args)]
pub struct ConfigureArgs {
    #[command(subcommand)]
    runtime: RuntimeCommand,
}

#[derive(Debug, Subcommand)]
enum RuntimeCommand {
    Containerd(Box<ContainerdArgs>),
    CriO(Box<CrioArgs>),
    Podman(Box<PodmanArgs>),
    Docker(Box<DockerArgs>),
    RuntimeClass(RuntimeClassArgs),
}

/// How it is done.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Take back what was changed
    #[arg(long)]
    undo: bool,
    /// Print the changes, and make none
    #[arg(long)]
    dry_run: bool,
    /// Change the files below this folder (etc, run, usr) instead of this node's
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// The entry for the wrapper.
#[derive(Debug, Args)]
struct WrapperArgs {
    /// Name of the runtime, and of a RuntimeClass's handler
    #[arg(long, default_value = NAME)]
    name: String,
    /// The wrapper
    #[arg(long, value_name = "FILE", default_value = WRAPPER)]
    wrapper: String,
    /// Make it the default: all containers go through it
    #[arg(long)]
    default: bool,
}

/// Change containerd's configuration
///
/// What is to change is printed as a diff. Files are backed up, and changed once only, however often
/// the command is run. containerd has to be restarted afterwards; it is not done here.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["nri", "runtime", "undo"])))]
struct ContainerdArgs {
    /// Switch NRI on for rdma-ctk, and have containers refused while it is away
    #[arg(long)]
    nri: bool,
    /// Add a runtime that is the wrapper, for a RuntimeClass, nerdctl and ctr
    #[arg(long)]
    runtime: bool,
    /// With --nri, how rdma-ctk is started: service (it connects) or plugin (containerd starts it)
    #[arg(long, value_name = "FORM", value_enum, default_value_t, hide_possible_values = true)]
    form: FormArg,
    /// With --nri, the place among the plugins: two digits
    #[arg(long, value_name = "NN", default_value = "10")]
    index: String,
    /// With --nri, let containers be created while rdma-ctk is away
    #[arg(long)]
    no_require: bool,
    /// With --nri, the program that containerd is to start [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// With --runtime, the runtime to derive from [default: the default one]
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    #[command(flatten)]
    entry: WrapperArgs,
    /// containerd's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/containerd/config.toml")]
    config: PathBuf,
    /// containerd's version, such as 2.1.9 [default: as `containerd --version` says]
    #[arg(long, value_name = "VERSION")]
    containerd_version: Option<Version>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum FormArg {
    #[default]
    Service,
    Plugin,
}

/// Add a runtime that is the wrapper to CRI-O, in a drop-in
///
/// It is a copy of the runtime that it derives from. CRI-O has to be restarted afterwards.
#[derive(Debug, Args)]
struct CrioArgs {
    #[command(flatten)]
    entry: WrapperArgs,
    /// The runtime to derive from [default: the default one]
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Add this folder to those of hooks; one with the stage precreate is refused
    #[arg(long, value_name = "DIR")]
    hooks: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Add our hooks, and a runtime that is the wrapper, to podman, in a drop-in
///
/// With the hooks `podman run --annotation devices.rdma-ctk.io=all` needs no --runtime. The folders
/// of hooks that there are stay.
#[derive(Debug, Args)]
struct PodmanArgs {
    #[command(flatten)]
    entry: WrapperArgs,
    /// The folder of our hooks
    #[arg(long, value_name = "DIR", default_value = podman::OUR_HOOKS)]
    hooks: PathBuf,
    #[command(flatten)]
    common: CommonArgs,
}

/// Add a runtime that is the wrapper to Docker's daemon.json, and switch CDI on where it is off
///
/// Order and indentation of the file stay.
#[derive(Debug, Args)]
struct DockerArgs {
    #[command(flatten)]
    entry: WrapperArgs,
    /// Docker's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/docker/daemon.json")]
    config: PathBuf,
    /// Docker's version, such as 28.2.2 [default: as `dockerd --version` says]
    #[arg(long, value_name = "VERSION")]
    docker_version: Option<Version>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Print the RuntimeClass by which pods take the wrapper, for `kubectl apply -f -`
#[derive(Debug, Args)]
struct RuntimeClassArgs {
    /// Its name, and the handler's
    #[arg(long, default_value = NAME)]
    name: String,
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be understood or changed, or standard output cannot be written.
pub fn run(args: &ConfigureArgs) -> Result<Exit, Error> {
    match &args.runtime {
        RuntimeCommand::Containerd(args) => {
            carry_out(Owner::Containerd, &args.common, |place| args.plan(place))
        }
        RuntimeCommand::CriO(args) => {
            carry_out(Owner::CriO, &args.common, |place| args.plan(place))
        }
        RuntimeCommand::Podman(args) => {
            carry_out(Owner::Podman, &args.common, |place| args.plan(place))
        }
        RuntimeCommand::Docker(args) => {
            carry_out(Owner::Docker, &args.common, |place| args.plan(place))
        }
        RuntimeCommand::RuntimeClass(args) => {
            print(&RUNTIME_CLASS.replace(": rdma\n", &format!(": {}\n", args.name)))?;
            Ok(Exit::Success)
        }
    }
}

/// Whose files are changed.
struct Place {
    root: PathBuf,
    roots: Roots,
}

fn carry_out(
    owner: Owner,
    args: &CommonArgs,
    plan: impl FnOnce(&Place) -> Result<Plan, Error>,
) -> Result<Exit, Error> {
    let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    // A mistyped folder is not to be made.
    if root.is_file() {
        return Err(Error::NoFolder { path: root });
    }
    fs::read_dir(&root).map_err(|error| Error::Read { path: root.clone(), error })?;
    let place = Place { roots: Roots::below(&root), root };
    let plan = if args.undo { undo_plan(&place.roots, owner)? } else { plan(&place)? };
    if !args.dry_run {
        if args.undo {
            undo(&place.roots, owner, &plan)?;
        } else {
            apply(&place.roots, owner, &plan)?;
        }
    }
    print(&describe(&plan, args.dry_run))?;
    Ok(Exit::Success)
}

impl ContainerdArgs {
    fn plan(&self, place: &Place) -> Result<Plan, Error> {
        let version = match self.containerd_version {
            Some(version) => Some(version),
            // The program here says nothing of another node's.
            None if place.roots.is_live() => installed_version(),
            None => None,
        };
        if !self.runtime {
            return self.plan_nri(place, version);
        }
        self.entry.check(place)?;
        let options = RuntimeOptions {
            config: self.config.clone(),
            version,
            name: self.entry.name.clone(),
            program: self.entry.wrapper.clone(),
            from: self.from.clone(),
            default: self.entry.default,
        };
        let mut plan = runtime_plan(&place.roots, &options)?;
        self.entry.advise(place, &mut plan);
        Ok(plan)
    }

    fn plan_nri(&self, place: &Place, version: Option<Version>) -> Result<Plan, Error> {
        let options = Options {
            config: self.config.clone(),
            version,
            form: match self.form {
                FormArg::Service => Form::Service,
                FormArg::Plugin => Form::Plugin,
            },
            index: self.index.clone(),
            program: match &self.program {
                Some(program) => program.clone(),
                None => std::env::current_exe()?,
            },
            require: !self.no_require,
        };
        Ok(containerd::plan(&place.roots, &options)?)
    }
}

impl CrioArgs {
    fn plan(&self, place: &Place) -> Result<Plan, Error> {
        self.entry.check(place)?;
        let options = crio::Options {
            name: self.entry.name.clone(),
            program: self.entry.wrapper.clone(),
            from: self.from.clone(),
            default: self.entry.default,
            hooks: self.hooks.clone(),
            ..crio::Options::default()
        };
        let mut plan = crio::plan(&place.roots, &options)?;
        self.entry.advise(place, &mut plan);
        Ok(plan)
    }
}

impl PodmanArgs {
    fn plan(&self, place: &Place) -> Result<Plan, Error> {
        self.entry.check(place)?;
        let options = podman::Options {
            name: self.entry.name.clone(),
            program: self.entry.wrapper.clone(),
            default: self.entry.default,
            hooks: self.hooks.clone(),
            share: place.root.join("usr/share"),
        };
        let mut plan = podman::plan(&place.roots, &options)?;
        self.entry.note_missing(place, &mut plan);
        Ok(plan)
    }
}

impl DockerArgs {
    fn plan(&self, place: &Place) -> Result<Plan, Error> {
        self.entry.check(place)?;
        let version = match self.docker_version {
            Some(version) => Some(version),
            None if place.roots.is_live() => docker::installed_version(),
            None => None,
        };
        let options = docker::Options {
            config: self.config.clone(),
            version,
            name: self.entry.name.clone(),
            program: self.entry.wrapper.clone(),
            default: self.entry.default,
        };
        let mut plan = docker::plan(&place.roots, &options)?;
        self.entry.note_missing(place, &mut plan);
        Ok(plan)
    }
}

impl WrapperArgs {
    /// Refuses what would leave a node without a container.
    fn check(&self, place: &Place) -> Result<(), Error> {
        if self.default && self.is_missing(place) {
            return Err(Error::NoWrapper { path: self.wrapper.clone().into() });
        }
        Ok(())
    }

    fn is_missing(&self, place: &Place) -> bool {
        let path = Path::new(&self.wrapper);
        !place.root.join(path.strip_prefix("/").unwrap_or(path)).is_file()
    }

    fn note_missing(&self, place: &Place, plan: &mut Plan) {
        if self.is_missing(place) {
            plan.notes.push(format!(
                "{} is not there yet: containers of this runtime fail until it is",
                self.wrapper
            ));
        }
    }

    /// What follows for Kubernetes: whose the containers of the handler are.
    fn advise(&self, place: &Place, plan: &mut Plan) {
        self.note_missing(place, plan);
        let name = &self.name;
        let note = match policy::load(&place.roots) {
            Err(problem) => format!("whose containers those of {name} are is not known: {problem}"),
            Ok(policy) if policy.wrapper_handlers.contains(name) => format!(
                "pods of the handler {name} belong to the wrapper: policy names it in \
                 wrapper_handlers, and the NRI plugin leaves them alone"
            ),
            Ok(policy) => format!(
                "policy does not name {name} in wrapper_handlers ({}): the NRI plugin serves its \
                 pods, and the wrapper only those that have no grant; capabilities come from the \
                 wrapper alone, so add it there for these",
                policy.wrapper_handlers.iter().cloned().collect::<Vec<_>>().join(", ")
            ),
        };
        plan.notes.push(note);
    }
}

/// The changes as a diff, and what follows from them.
fn describe(plan: &Plan, dry_run: bool) -> String {
    let mut text = plan.diff();
    let count = plan.files.len();
    // Writing to a String cannot fail.
    let _ = match (count, dry_run) {
        // The notes say why.
        (0, _) if !plan.notes.is_empty() => Ok(()),
        (0, _) => writeln!(text, "nothing to change"),
        (_, true) => writeln!(text, "{} would change; nothing was done", files(count)),
        (_, false) => writeln!(text, "{} changed", files(count)),
    };
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}
