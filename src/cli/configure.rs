//! `rdma-ctk configure`: registration with a container runtime.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::output::print;
use super::{Error, Exit};
use crate::configure::containerd::{Form, Options, Version, installed_version, plan};
use crate::configure::{Plan, apply, undo, undo_plan};
use crate::roots::Roots;

/// Register with a container runtime, or take that back
#[derive(Debug, Args)]
pub struct ConfigureArgs {
    #[command(subcommand)]
    runtime: RuntimeCommand,
}

#[derive(Debug, Subcommand)]
enum RuntimeCommand {
    Containerd(Box<ContainerdArgs>),
}

/// Change containerd's configuration
///
/// What is to change is printed as a diff. Files are backed up, and changed once only, however often
/// the command is run. containerd has to be restarted afterwards; it is not done here.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["nri", "undo"])))]
struct ContainerdArgs {
    /// Switch NRI on for rdma-ctk, and have containers refused while it is away
    #[arg(long)]
    nri: bool,
    /// Take back what was changed
    #[arg(long)]
    undo: bool,
    /// Print the changes, and make none
    #[arg(long)]
    dry_run: bool,
    /// How rdma-ctk is started: service (it connects) or plugin (containerd starts it)
    #[arg(long, value_name = "FORM", value_enum, default_value_t, hide_possible_values = true)]
    form: FormArg,
    /// Place among the plugins: two digits
    #[arg(long, value_name = "NN", default_value = "10")]
    index: String,
    /// Let containers be created while rdma-ctk is away
    #[arg(long)]
    no_require: bool,
    /// containerd's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/containerd/config.toml")]
    config: PathBuf,
    /// containerd's version, such as 2.1.9 [default: as `containerd --version` says]
    #[arg(long, value_name = "VERSION")]
    containerd_version: Option<Version>,
    /// The program that containerd is to start [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Change the files below this folder (etc, run) instead of this node's
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum FormArg {
    #[default]
    Service,
    Plugin,
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be understood or changed, or standard output cannot be written.
pub fn run(args: &ConfigureArgs) -> Result<Exit, Error> {
    let RuntimeCommand::Containerd(args) = &args.runtime;
    let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    // A mistyped folder is not to be made.
    fs::read_dir(&root).map_err(|error| Error::Read { path: root.clone(), error })?;
    let roots = Roots::below(&root);
    let plan = if args.undo { undo_plan(&roots)? } else { plan(&roots, &options(args, &roots)?)? };
    if !args.dry_run {
        if args.undo {
            undo(&roots, &plan)?;
        } else {
            apply(&roots, &plan)?;
        }
    }
    print(&describe(&plan, args.dry_run))?;
    Ok(Exit::Success)
}

fn options(args: &ContainerdArgs, roots: &Roots) -> Result<Options, Error> {
    let version = match args.containerd_version {
        Some(version) => Some(version),
        // The program here says nothing of another node's.
        None if roots.is_live() => installed_version(),
        None => None,
    };
    Ok(Options {
        config: args.config.clone(),
        version,
        form: match args.form {
            FormArg::Service => Form::Service,
            FormArg::Plugin => Form::Plugin,
        },
        index: args.index.clone(),
        program: match &args.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?,
        },
        require: !args.no_require,
    })
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
