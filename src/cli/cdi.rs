//! `rdma-ctk cdi`: the node's CDI file.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::output::{print, render, table};
use super::root::{Trees, ViewArgs};
use super::{Error, Exit, policy_file};
use crate::cdi::{self, Done, KeepError, Kept, judge, keep, made, others, watch};
use crate::edit::cdi::{Device, KIND, LIMITS, Spec};
use crate::policy::{self, Policy};

/// Adapters as CDI devices, for `--device rdma-ctk.io/hca=NAME` of nerdctl, docker and podman
#[derive(Debug, Args)]
pub struct CdiArgs {
    #[command(subcommand)]
    command: CdiCommand,
}

#[derive(Debug, Subcommand)]
enum CdiCommand {
    Generate(GenerateArgs),
    List(ListArgs),
    Validate(ValidateArgs),
}

/// Write the CDI file of this node: /var/run/cdi/rdma-ctk.io-hca.json
///
/// Nothing is written while an adapter that can be given lacks a device node. Without an adapter the
/// file is taken away.
#[derive(Debug, Args)]
struct GenerateArgs {
    /// Write to this file, or with - to standard output
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    output: Option<PathBuf>,
    /// Go on, and write again when the node changes; the daemon does that too, if policy says so
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// Show the devices that engines find, and what CDI cannot give
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    view: ViewArgs,
}

/// Say what is wrong with the CDI file: itself, beside this node, and beside the files of others
///
/// Exit status: 0 nothing is wrong, 1 could not look, 2 wrong usage, 5 something is.
#[derive(Debug, Args)]
struct ValidateArgs {
    /// The file [default: /var/run/cdi/rdma-ctk.io-hca.json]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
}

/// Which node, and what it may give.
#[derive(Debug, Args)]
struct NodeArgs {
    /// Look at the node in this folder or .tree file, and write to standard output
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Policy file [default: /etc/rdma-ctk/config.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Bind the node's own providers of libibverbs too, as with [cdi] libraries = true in the policy
    #[arg(long)]
    with_libs: bool,
}

impl NodeArgs {
    fn trees(&self) -> Result<Trees, Error> {
        Trees::of(self.root.as_deref())
    }

    fn policy(&self, trees: &Trees) -> Result<Policy, Error> {
        let mut policy = match &self.config {
            Some(path) => policy_file(path)?,
            None => policy::load(&trees.roots)?,
        };
        policy.cdi.libraries |= self.with_libs;
        Ok(policy)
    }
}

/// Runs the command.
///
/// # Errors
/// The file cannot be made or written, or standard output cannot be written.
pub fn run(args: &CdiArgs) -> Result<Exit, Error> {
    match &args.command {
        CdiCommand::Generate(args) if args.watch => follow(args),
        CdiCommand::Generate(args) => generate(args),
        CdiCommand::List(args) => list(args),
        CdiCommand::Validate(args) => validate(args),
    }
}

fn generate(args: &GenerateArgs) -> Result<Exit, Error> {
    let trees = args.node.trees()?;
    let policy = args.node.policy(&trees)?;
    let node = trees.node();
    let elsewhere = !trees.roots.is_live();
    let stdout = args.output.as_deref().map_or(elsewhere, |path| path == "-");
    if !stdout && args.output.is_none() {
        let kept = keep(&trees.roots, &node, &policy)?;
        print(&describe(&kept))?;
        return Ok(Exit::Success);
    }
    let made = made(&trees.roots, &node, &policy)?;
    for note in &made.notes {
        eprintln!("rdma-ctk: note: {note}");
    }
    let spec = made.spec.ok_or(Error::NoCdiDevice)?;
    match &args.output {
        Some(path) if !stdout => {
            if trees.roots.is_live() {
                cdi::accompany(&trees.roots, &spec)?;
            }
            cdi::write(path, &spec)?;
            print(&format!("{}: {} devices\n", path.display(), spec.devices.len()))?;
        }
        _ => print(&spec.to_json().map_err(super::output::FormatError::from)?)?,
    }
    Ok(Exit::Success)
}

/// What was done, and what there is to know.
fn describe(kept: &Kept) -> String {
    let path = kept.path.display();
    let mut text = match kept.done {
        Done::Same => format!("{path}: is up to date\n"),
        Done::Written(devices) => format!("{path}: written, {devices} devices\n"),
        Done::Removed => format!("{path}: taken away, there is no adapter to give\n"),
        Done::Nothing => "no adapter to give, and nothing to write\n".to_owned(),
    };
    for note in &kept.notes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Keeps the file up to date until the process is ended. What goes wrong is said once, until
/// something else does.
fn follow(args: &GenerateArgs) -> Result<Exit, Error> {
    let trees = args.node.trees()?;
    let mut said = String::new();
    let ended = watch(&trees.roots, |remarks| {
        for remark in remarks {
            eprintln!("rdma-ctk: changes of the node may be noticed late: {remark}");
        }
        let turn = args
            .node
            .policy(&trees)
            .and_then(|policy| Ok(keep(&trees.roots, &trees.node(), &policy)?));
        let (text, changed) = match turn {
            Ok(kept) => (describe(&kept), matches!(kept.done, Done::Written(_) | Done::Removed)),
            Err(error) => (format!("rdma-ctk: {error}\n"), false),
        };
        if changed || said != text {
            // Without a reader there is nobody to tell; the file is what counts.
            let _ = print(&text);
            said = text;
        }
    });
    match ended {
        Ok(never) => match never {},
        Err(errno) => Err(Error::Stream(errno.into())),
    }
}

/// A device as engines find it.
#[derive(Debug, Serialize)]
struct Row {
    device: String,
    nodes: Vec<String>,
    /// `None`: no file has it; one made there would.
    file: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Listing {
    devices: Vec<Row>,
    notes: Vec<String>,
    limits: [&'static str; LIMITS.len()],
}

fn list(args: &ListArgs) -> Result<Exit, Error> {
    let trees = args.view.trees()?;
    let path = cdi::path(&trees.roots);
    let mut listing = Listing { devices: Vec::new(), notes: Vec::new(), limits: LIMITS };
    match read(&path) {
        Ok(Some(spec)) => listing.devices.extend(rows(&spec, Some(trees.shown(&path)))),
        Ok(None) if trees.roots.is_live() => listing
            .notes
            .push(format!("{}: not there; `rdma-ctk cdi generate` writes it", path.display())),
        Ok(None) => {
            let policy = policy::load(&trees.roots)?;
            let made = made(&trees.roots, &trees.node(), &policy)?;
            listing.notes.extend(made.notes);
            listing.notes.push(format!(
                "{}: not there in this root; shown is what it would have",
                trees.shown(&path).display()
            ));
            listing.devices.extend(made.spec.iter().flat_map(|spec| rows(spec, None)));
        }
        Err(error) => listing.notes.push(error.to_string()),
    }
    let found = others(&trees.roots, &path);
    for other in found.files {
        for (name, nodes) in &other.devices {
            let ours = other.kind == KIND;
            if ours || nodes.iter().any(|node| node.starts_with("/dev/infiniband/")) {
                listing.devices.push(Row {
                    device: format!("{}={name}", other.kind),
                    nodes: nodes.iter().cloned().collect(),
                    file: Some(trees.shown(&other.path)),
                });
            }
        }
    }
    for (path, why) in found.unread {
        let path = trees.shown(&path);
        listing.notes.push(format!("{}: engines skip it: {why}", path.display()));
    }
    let text = match render(args.view.output, &listing)? {
        Some(text) => text,
        None => show(&listing),
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// The devices of our file, which is there or is not.
fn rows(spec: &Spec, file: Option<PathBuf>) -> Vec<Row> {
    let row = |device: &Device| Row {
        device: format!("{}={}", spec.kind, device.name),
        nodes: device.container_edits.device_nodes.iter().map(|n| n.path.clone()).collect(),
        file: file.clone(),
    };
    spec.devices.iter().map(row).collect()
}

fn show(listing: &Listing) -> String {
    let short = |node: &String| node.rsplit('/').next().unwrap_or_default().to_owned();
    let mut text = if listing.devices.is_empty() {
        "no CDI device\n".to_owned()
    } else {
        let rows = listing.devices.iter().map(|row| {
            let nodes: Vec<String> = row.nodes.iter().map(short).collect();
            let file =
                row.file.as_ref().map_or_else(|| "-".into(), |file| file.display().to_string());
            vec![row.device.clone(), nodes.join(" "), file]
        });
        table(&["DEVICE", "NODES", "FILE"], rows)
    };
    for note in &listing.notes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "note: {note}");
    }
    text.push_str("\nCDI does not give everything:\n");
    for limit in listing.limits {
        let _ = writeln!(text, "  {limit}");
    }
    text
}

/// Our file; `None`: there is none.
fn read(path: &std::path::Path) -> Result<Option<Spec>, KeepError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(KeepError::Io { path: path.to_owned(), source }),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| KeepError::Json { path: path.to_owned(), source })
}

fn validate(args: &ValidateArgs) -> Result<Exit, Error> {
    let trees = args.node.trees()?;
    let policy = args.node.policy(&trees)?;
    let path = args.file.clone().unwrap_or_else(|| cdi::path(&trees.roots));
    let flaws = judge(&trees.roots, &trees.node(), &policy, &path);
    let wrong = flaws.iter().any(cdi::Flaw::is_wrong);
    let mut text = String::new();
    for flaw in &flaws {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}{flaw}", if flaw.is_wrong() { "" } else { "note: " });
    }
    if !wrong {
        let what = if path.exists() { "is valid and up to date" } else { "not there, nor wanted" };
        let _ = writeln!(text, "{}: {what}", path.display());
    }
    print(&trees.worded(&text))?;
    Ok(if wrong { Exit::Unhealthy } else { Exit::Success })
}
