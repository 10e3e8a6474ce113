//! `rdma-ctk smc`: how connections of containers go that asked for SMC-R, and why.

use std::fmt::Write as _;

use clap::{Args, Subcommand};

use super::output::{print, render, table};
use super::root::ViewArgs;
use super::{Error, Exit};
use crate::daemon::records;
use crate::daemon::smc_view::{self, ContainerView, Overview};
use crate::policy;
use crate::smc::bpf::Switch;
use crate::smc::reason::{self, Fallback};

/// Look at SMC-R: connections of containers, fallback reasons, preparations
#[derive(Debug, Args)]
pub struct SmcArgs {
    #[command(subcommand)]
    command: SmcCommand,
}

#[derive(Debug, Subcommand)]
enum SmcCommand {
    /// Show the containers that have SMC-R, their connections, and what is prepared on the node
    Status {
        /// Only this one: container's name or identifier (or its beginning), or NAMESPACE/POD
        #[arg(value_name = "CONTAINER|POD")]
        name: Option<String>,
        #[command(flatten)]
        view: ViewArgs,
    },
    /// Explain a fallback reason, as smcss or the kernel prints it
    Explain {
        /// The code, such as 0x03030002; with the other side's, where it declined
        #[arg(value_name = "CODE", required = true, num_args = 1..=2)]
        codes: Vec<String>,
    },
    /// Take the program out of the kernel: new sockets of all containers are plain TCP again
    Release,
}

/// Runs the command.
///
/// # Errors
/// It could not do its work.
pub fn run(args: &SmcArgs) -> Result<Exit, Error> {
    match &args.command {
        SmcCommand::Status { name, view } => status(name.as_deref(), view),
        SmcCommand::Explain { codes } => explain(codes),
        SmcCommand::Release => release(),
    }
}

fn status(name: Option<&str>, view: &ViewArgs) -> Result<Exit, Error> {
    let trees = view.trees()?;
    let records = records::read_all(&trees.roots);
    let policy = policy::load(&trees.roots)?;
    let mut seen = smc_view::look(&trees.roots, &records, &policy);
    if let Some(name) = name {
        seen.containers.retain(|container| is_meant(name, container));
        if seen.containers.is_empty() {
            return Err(Error::NotOnRecord { name: name.to_owned() });
        }
    }
    let text = match render(view.output, &seen)? {
        Some(text) => text,
        None => describe(&seen, name.is_some()),
    };
    print(&text)?;
    Ok(Exit::Success)
}

fn is_meant(name: &str, container: &ContainerView) -> bool {
    let identifier = name.len() >= 8 && container.id.starts_with(name);
    let pod = container.pod.rsplit('/').next();
    identifier || container.name == name || container.pod == name || pod == Some(name)
}

/// The node, then a line for each container, then its connections.
fn describe(seen: &Overview, whole: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if !whole {
        for line in smc_view::methods(&seen.facts) {
            let _ = writeln!(text, "{line}");
        }
        let _ = match seen.switched {
            Some(groups) => writeln!(text, "program in the kernel: switches {groups} containers"),
            None => writeln!(text, "program in the kernel: none is loaded"),
        };
        let list = |items: Vec<&str>| {
            if items.is_empty() { "none".to_owned() } else { items.join("; ") }
        };
        let strings = |items: &[String]| list(items.iter().map(String::as_str).collect());
        let _ = writeln!(
            text,
            "user EIDs: {}\nadapters: {}\nPNET table: {}\nlink groups in use: {}",
            list(seen.facts.eids.iter().map(String::as_str).collect()),
            strings(&seen.adapters),
            strings(&seen.pnet),
            seen.link_groups
        );
    }
    if seen.containers.is_empty() {
        text.push_str("\nno container on record has SMC-R\n");
    } else {
        let row = |container: &ContainerView| {
            let id = container.id.get(..12).unwrap_or(&container.id).to_owned();
            vec![
                container.pod.clone(),
                container.name.clone(),
                container.method.clone(),
                id,
                container.summary.clone(),
            ]
        };
        let header = ["POD", "CONTAINER", "METHOD", "ID", "CONNECTIONS"];
        text.push('\n');
        text.push_str(&table(&header, seen.containers.iter().map(row)));
    }
    for container in &seen.containers {
        detail(&mut text, container);
    }
    for problem in &seen.problems {
        let _ = writeln!(text, "note: {problem}");
    }
    text
}

fn detail(text: &mut String, container: &ContainerView) {
    let _ = writeln!(text, "\n{} {}", container.pod, container.name);
    connections(text, container);
}

/// A container's connections, and what its network namespace has counted.
pub(super) fn connections(text: &mut String, container: &ContainerView) {
    for one in &container.connections {
        let _ = write!(text, "  {} port {} to port {}", one.mode, one.port, one.peer_port);
        if let (Some(link), Some(gid), Some(peer)) = (&one.link, &one.gid, &one.peer_gid) {
            let _ = write!(text, ", {link}, GID {gid} to {peer}");
        }
        if let (Some(received), Some(sent)) = (one.received, one.sent) {
            let _ = write!(text, ", {received} bytes received, {sent} sent");
        }
        if let (Some(reason), Some(fix)) = (&one.reason, one.fix) {
            let _ = write!(text, ": {reason}\n    to do: {fix}");
        }
        text.push('\n');
    }
    let Some(counters) = &container.namespace else { return };
    let whose =
        if counters.host { "the host's network namespace" } else { "its network namespace" };
    let _ = writeln!(
        text,
        "  {whose} so far: {} connections over SMC-R, {} bytes received, {} sent",
        counters.connections, counters.received, counters.sent
    );
    for fallback in &counters.fallbacks {
        let _ = writeln!(
            text,
            "  {whose} so far: {} to TCP ({}): {}\n    to do: {}",
            fallback.count, fallback.word, fallback.reason, fallback.fix
        );
    }
}

fn explain(codes: &[String]) -> Result<Exit, Error> {
    let mut numbers = codes.iter().map(|code| number(code));
    let reason = numbers.next().transpose()?.unwrap_or(0);
    let peer = numbers.next().transpose()?.unwrap_or(0);
    let fallback = Fallback { reason, peer };
    let known = reason::look_up(reason).map_or("unknown", |known| known.word);
    print(&format!("{reason:#010x} ({known}): {fallback}\nto do: {}\n", fallback.fix()))?;
    Ok(Exit::Success)
}

fn number(code: &str) -> Result<u32, Error> {
    let wrong = || Error::NoCode { code: code.chars().take(60).collect() };
    match code.strip_prefix("0x").or_else(|| code.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| wrong()),
        None => code.parse().map_err(|_| wrong()),
    }
}

fn release() -> Result<Exit, Error> {
    let roots = crate::roots::Roots::below(std::path::Path::new("/"));
    let dropped = Switch::new(&roots, false).keep_only(&[])?;
    print(&format!(
        "the program is out of the kernel; {dropped} containers were switched by it\n"
    ))?;
    Ok(Exit::Success)
}
