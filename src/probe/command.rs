//! The command line of `rdma-ctk-probe`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use super::{Exit, Live, Options, Place, memory, run, screen};
use crate::inventory::{self, Node, rdma_netlink};
use crate::roots::Roots;

/// What the help says at its end.
const AFTER: &str = "\
Exit status, by the first thing that does not work:
   0  everything that this container was given works
   1  the probe itself could not do its work
   2  wrong usage
   3  there is no adapter, or none was given to this container
   4  a device node is there and cannot be opened (device cgroup, mode, stale)
   5  the image has no libibverbs that can be loaded
   6  libibverbs has no provider for the adapter, or cannot open it
   7  too little memory can be registered
   8  no port is up, or none has a GID that reaches anybody
   9  the adapter cannot talk to itself
  10  rdma_cm was given and does not work

The program needs nothing of the image: copy or mount it into any container. libibverbs is tried as
the image has it, by the image's own dynamic loader.";

/// Tell what works of RDMA in this container, and the first thing that does not
#[derive(Debug, Parser)]
#[command(name = "rdma-ctk-probe", version, term_width = 100, after_help = AFTER)]
pub struct Arguments {
    /// Only this adapter (again and again for more)
    #[arg(short, long = "device", value_name = "NAME")]
    devices: Vec<String>,
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// Memory to register at most; never more than half of what the container has left
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory::parse_size)]
    memory: u64,
    /// Milliseconds of traffic for each of latency and bandwidth; 0 for none
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(..=60_000))]
    traffic: u64,
    /// Seconds that the image's library may take for one adapter
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// The image's dynamic loader, where it is at an unusual place
    #[arg(long, value_name = "FILE")]
    loader: Option<PathBuf>,
}

/// Runs the program.
pub fn main() -> Exit {
    let arguments = Arguments::parse();
    let roots = Roots::below(Path::new("/"));
    let node = node(&roots);
    let machine =
        Live { patience: Duration::from_secs(arguments.patience), loader: arguments.loader };
    let options = Options {
        devices: arguments.devices,
        memory: arguments.memory,
        traffic: arguments.traffic,
    };
    let place = Place { roots: &roots, image: Path::new("/"), node: &node };
    let report = run(&machine, &place, &options);
    let text = if arguments.json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => text + "\n",
            Err(error) => {
                eprintln!("rdma-ctk: the report cannot be written as JSON: {error}");
                return Exit::Failure;
            }
        }
    } else {
        screen(&report)
    };
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        eprintln!("rdma-ctk: standard output: {error}");
        return Exit::Failure;
    }
    report.result
}

/// What the kernel shows in here. Where netlink does not answer, as under some seccomp profiles,
/// sysfs alone has to do.
fn node(roots: &Roots) -> Node {
    match rdma_netlink::read(roots) {
        Ok(view) => inventory::snapshot(roots, view.as_ref()),
        Err(_) => inventory::snapshot(roots, None),
    }
}
