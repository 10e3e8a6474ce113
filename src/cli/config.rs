//! `rdma-ctk config`: the policy file.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::output::print;
use super::{Error, Exit, policy_file};
use crate::policy::{DEFAULT_TOML, MULTI_TENANT_TOML, path};
use crate::roots::Roots;

/// Print or check the policy file
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the policy that holds without a file, every key explained
    Default {
        /// The closed variant, for nodes with several tenants
        #[arg(long)]
        multi_tenant: bool,
    },
    /// Read a policy file as the daemon would, and say what is wrong with it
    Check {
        /// The file [default: /etc/rdma-ctk/config.toml]
        file: Option<PathBuf>,
    },
}

/// Runs the command.
///
/// # Errors
/// The file cannot be used, or standard output cannot be written.
pub fn run(args: &ConfigArgs) -> Result<Exit, Error> {
    match &args.command {
        ConfigCommand::Default { multi_tenant: false } => print(DEFAULT_TOML)?,
        ConfigCommand::Default { multi_tenant: true } => print(MULTI_TENANT_TOML)?,
        ConfigCommand::Check { file } => {
            let file = file.clone().unwrap_or_else(|| path(&Roots::below(Path::new("/"))));
            let policy = policy_file(&file)?;
            let rules = match policy.rules.len() {
                0 => "no rules".to_owned(),
                1 => "1 rule".to_owned(),
                many => format!("{many} rules"),
            };
            print(&format!("{}: can be used, {rules}\n", file.display()))?;
        }
    }
    Ok(Exit::Success)
}
