//! The commands that a person types, one file each. A command reads its arguments, calls what does
//! the work, and words the answer.

mod cdi;
mod config;
mod configure;
mod doctor;
mod exit;
mod explain;
mod inspect;
mod list;
mod nri;
pub mod output;
mod root;
mod smc;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Parser, Subcommand};

use crate::policy::Policy;
pub use exit::Exit;

/// What the help says at its end.
const AFTER: &str = "\
Exit status: 0 done, 1 could not be done, 2 wrong usage; explain: 3 nobody asks, 4 refused;
doctor and cdi validate: 5 something is wrong";

/// RDMA inside containers by one opt-in
#[derive(Debug, Parser)]
#[command(name = "rdma-ctk", version, term_width = 100, after_help = AFTER)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    /// What was typed. A container runtime that starts this program from its plugin folder types
    /// nothing.
    pub fn typed() -> Self {
        let bare = std::env::args_os().len() <= 1;
        if bare && crate::daemon::service::launched_by_runtime() {
            Self::parse_from(["rdma-ctk", "nri"])
        } else {
            Self::parse()
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::ListArgs),
    Explain(Box<explain::ExplainArgs>),
    Inspect(inspect::InspectArgs),
    Doctor(doctor::DoctorArgs),
    Cdi(cdi::CdiArgs),
    Smc(smc::SmcArgs),
    Config(config::ConfigArgs),
    Configure(configure::ConfigureArgs),
    Nri(nri::NriArgs),
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No temporary folder.
    #[error("cannot make the folder {path}: {error}", path = path.display())]
    Temporary {
        /// Where, with X for what would have been random.
        path: PathBuf,
        /// Why not.
        error: nix::errno::Errno,
    },
    /// The fixture is none.
    #[error(transparent)]
    Fixture(#[from] crate::inventory::fixture::FixtureError),
    /// `--root` of what has nothing of a node.
    #[error("{path}: no node: expected sys, proc, dev, run or etc in it", path = path.display())]
    NoNode {
        /// As typed.
        path: PathBuf,
    },
    /// `configure --root` of a file.
    #[error(
        "{path}: no folder: --root takes one here, that holds etc, run and usr of the node or image",
        path = path.display()
    )]
    NoFolder {
        /// As typed.
        path: PathBuf,
    },
    /// A document that the wrapper would refuse.
    #[error(transparent)]
    Bundle(#[from] explain::BundleError),
    /// The answer cannot be written in the format asked for.
    #[error(transparent)]
    Format(#[from] output::FormatError),
    /// Standard input or output failed.
    #[error("standard input or output: {0}")]
    Stream(#[from] io::Error),
    /// The daemon cannot run.
    #[error(transparent)]
    Service(#[from] crate::daemon::service::ServiceError),
    /// Nothing can be logged.
    #[error(transparent)]
    Log(#[from] crate::daemon::logging::LogError),
    /// A variable of the environment is wrong.
    #[error("{name}: {problem}")]
    Variable {
        /// Which.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that was named cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A policy that was named is none.
    #[error("{path}: {error}", path = path.display())]
    Policy {
        /// Which.
        path: PathBuf,
        /// What is wrong where.
        error: crate::policy::PolicyError,
    },
    /// The node's policy cannot be used.
    #[error(transparent)]
    NodePolicy(#[from] crate::policy::LoadError),
    /// A manifest cannot be used.
    #[error("{path}: {error}", path = path.display())]
    Manifest {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: explain::ManifestError,
    },
    /// `explain --container` of a container that there is not.
    #[error("no container is called {name:?}; there are: {known}")]
    NoContainer {
        /// As typed.
        name: String,
        /// Those of the manifest.
        known: String,
    },
    /// `inspect NAME` of what nobody has on record.
    #[error(
        "{name:?} is not on record: no container or pod of that name has asked for RDMA since the \
         daemon serves"
    )]
    NotOnRecord {
        /// As typed.
        name: String,
    },
    /// containerd cannot be configured.
    #[error(transparent)]
    Containerd(#[from] crate::configure::containerd::ContainerdError),
    /// CRI-O cannot be configured.
    #[error(transparent)]
    Crio(#[from] crate::configure::crio::CrioError),
    /// podman cannot be configured.
    #[error(transparent)]
    Podman(#[from] crate::configure::podman::PodmanError),
    /// Docker cannot be configured.
    #[error(transparent)]
    Docker(#[from] crate::configure::docker::DockerError),
    /// The wrapper would be the default runtime, and is not there.
    #[error(
        "{path} is not there, and as the default runtime it would let no container start; install \
         it, or leave --default out",
        path = path.display()
    )]
    NoWrapper {
        /// Where it should be.
        path: PathBuf,
    },
    /// A configuration cannot be written or taken back.
    #[error(transparent)]
    Apply(#[from] crate::configure::ApplyError),
    /// The CDI file cannot be made.
    #[error(transparent)]
    Cdi(#[from] crate::cdi::KeepError),
    /// `cdi generate` to a file, with nothing to put into it.
    #[error("no adapter can be given, and a CDI file without a device is an invalid one")]
    NoCdiDevice,
    /// `doctor CHECK` of a check that there is not.
    #[error("no check is called {name:?}; there are: {known}")]
    NoCheck {
        /// As typed.
        name: String,
        /// The checks.
        known: String,
    },
    /// `smc explain` of what is no code.
    #[error("{code:?} is no fallback reason: expected a number such as 0x03030002")]
    NoCode {
        /// As typed.
        code: String,
    },
    /// The program of SMC-R cannot be taken away.
    #[error(transparent)]
    Smc(#[from] crate::smc::bpf::BpfError),
    /// `doctor --explain` of a text that is in no table.
    #[error("no usual cause of this text is known; `rdma-ctk doctor` runs all checks")]
    NoCause,
}

/// Runs the command that was typed.
///
/// # Errors
/// It could not do its work; the error is one line.
pub fn run(cli: &Cli) -> Result<Exit, Error> {
    match &cli.command {
        Command::List(args) => list::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Cdi(args) => cdi::run(args),
        Command::Smc(args) => smc::run(args),
        Command::Config(args) => config::run(args),
        Command::Configure(args) => configure::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Nri(args) => nri::run(args),
    }
}

/// The policy in that file.
fn policy_file(path: &Path) -> Result<Policy, Error> {
    let text =
        fs::read_to_string(path).map_err(|error| Error::Read { path: path.to_owned(), error })?;
    Policy::from_toml(&text).map_err(|error| Error::Policy { path: path.to_owned(), error })
}
