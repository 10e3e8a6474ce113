//! `rdma-ctk nri`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::{Error, Exit};
use crate::daemon::logging::{self, Levels};
use crate::daemon::service::{self, Listen, Settings};
use crate::roots::Roots;

/// Variable with the level of the log, for a daemon that is started without a command line.
const LOG: &str = "RDMA_CTK_LOG";

/// Serve a container runtime as an NRI plugin
///
/// Runs until it is told to stop. SIGHUP reads the policy file again. A container runtime that finds
/// this program in its plugin folder as NN-rdma-ctk starts it without arguments; it then uses the
/// connection that the runtime gives, and the runtime's configuration file for it as the policy.
#[derive(Debug, Args)]
pub struct NriArgs {
    /// Policy file, which has to be there [default: /etc/rdma-ctk/config.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where metrics are read over HTTP: ADDRESS:PORT, or off [default: as the policy says]
    #[arg(long, value_name = "WHERE", value_parser = listen)]
    metrics: Option<Listen>,
    /// The runtime's NRI socket
    #[arg(long, value_name = "FILE", default_value = "/var/run/nri/nri.sock")]
    socket: PathBuf,
    /// Place among the plugins, which are called in the order of their indices: two digits
    #[arg(long, value_name = "NN", default_value = "10")]
    index: String,
    /// Name to register with
    #[arg(long, default_value = "rdma-ctk")]
    name: String,
    /// The kubelet's folder, whose record of CPU sets is read
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet")]
    kubelet: PathBuf,
    /// Folder that holds sys, proc, dev, run and etc: a fixture, to try out what a runtime would get
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// What is logged: a level, or MODULE=LEVEL with commas between [default: $RDMA_CTK_LOG, or info]
    #[arg(long, value_name = "LEVELS")]
    log: Option<Levels>,
    /// Form of the log
    #[arg(long, value_name = "FORM", default_value = "auto")]
    log_format: LogFormat,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// The journal under systemd, text elsewhere
    Auto,
    /// A line of text each
    Text,
    /// A line of JSON each
    Json,
}

fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "off" => Ok(Listen::Off),
        text => SocketAddr::from_str(text)
            .map(Listen::At)
            .map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:9471, or off".to_owned()),
    }
}

/// Runs the daemon as it was asked for.
pub(super) fn run(args: &NriArgs) -> Result<Exit, Error> {
    let format = match args.log_format {
        LogFormat::Auto => logging::Format::Auto,
        LogFormat::Text => logging::Format::Text,
        LogFormat::Json => logging::Format::Json,
    };
    let levels = match (&args.log, std::env::var(LOG)) {
        (Some(levels), _) => levels.clone(),
        (None, Ok(text)) => {
            text.parse().map_err(|problem| Error::Variable { name: LOG, problem })?
        }
        (None, Err(_)) => Levels::default(),
    };
    logging::begin(format, &levels, service::launched_by_runtime())?;
    service::run(Settings {
        roots: Roots::below(&args.root),
        kubelet: args.kubelet.clone(),
        config: args.config.clone(),
        metrics: args.metrics,
        socket: args.socket.clone(),
        index: args.index.clone(),
        name: args.name.clone(),
    })?;
    Ok(Exit::Success)
}
