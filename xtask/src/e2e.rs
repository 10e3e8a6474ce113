//! The end-to-end tests: batches of cases, each batch in one boot of the test machine.
//!
//! The guest's side is `integration/e2e`. It prints `plan N`, then a line for each case: `ok NAME`,
//! `FAIL NAME: why` or `skip NAME: why`. Exit status 124 and 125 of `vm run` are the machine's
//! trouble, not the product's: the batch is run once more, twice at most, and said to have been.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::machine;
use crate::test::{Options, Tally};

/// A program that Debian does not have, built with Go: its name and version.
type Tool = (&'static str, &'static str);

/// The containerd whose NRI has validation, sysctls and visible limits.
const NEWER: &str = "2.4.2";
const CONTAINERD: Tool = ("containerd", NEWER);
/// The official CRI client.
const CRICTL: Tool = ("crictl", "1.37.0");
/// containerd's client for people.
const NERDCTL: Tool = ("nerdctl", "2.3.5");

/// One boot.
struct Batch {
    /// Name of the batch and of its module in `integration/e2e`.
    name: &'static str,
    about: &'static str,
    /// Options of `vm run`.
    machine: &'static [&'static str],
    /// For these the host must have a Go toolchain, unless they are in the cache.
    tools: &'static [Tool],
    long: bool,
}

impl Batch {
    /// One that needs nothing but the machine with these options.
    const fn new(
        name: &'static str,
        about: &'static str,
        machine: &'static [&'static str],
    ) -> Self {
        Self { name, about, machine, tools: &[], long: false }
    }
}

const BATCHES: &[Batch] = &[
    Batch::new("units", "the unit tests that want a kernel with RDMA", &["--nodes=2"]),
    Batch::new("pods", "what pods get and do not get, on containerd 2.1", &["--containerd=2"]),
    Batch::new(
        "outage",
        "the plugin or the runtime killed, stopped, restarted",
        &["--containerd=2"],
    ),
    Batch::new("older", "containerd 1.7, external and pre-installed", &["--containerd=1"]),
    Batch::new(
        "numa",
        "two NUMA nodes with a card each",
        &["--containerd=2", "--nodes=2", "--nics=2"],
    ),
    Batch::new(
        "roce",
        "RoCE adapters on the pods' own interfaces, on kernel 7.2",
        &["--kernel=next"],
    ),
    Batch::new(
        "netns",
        "what may move into pods, and limits of the rdma cgroup",
        &["--containerd=2"],
    ),
    Batch::new(
        "children",
        "sub-interfaces on the host's adapter, on kernel 7.2",
        &["--kernel=next"],
    ),
    Batch::new(
        "smc",
        "SMC-R for programs that know nothing of it",
        &["--containerd=2", "--rxe-lo"],
    ),
    Batch {
        tools: &[NERDCTL],
        ..Batch::new(
            "smc_engines",
            "SMC-R by the wrapper and by hooks, without the daemon",
            &["--containerd=2", "--rxe-lo"],
        )
    },
    Batch {
        tools: &[CONTAINERD, CRICTL],
        ..Batch::new(
            "newer",
            "containerd 2.4: validation, required plugins, visible limits",
            &["--containerd", NEWER],
        )
    },
    Batch::new(
        "probe",
        "rdma-ctk-probe in containers that work and that do not",
        &["--containerd=2"],
    ),
    Batch {
        tools: &[NERDCTL],
        ..Batch::new("oci", "the wrapper under nerdctl, ctr and docker", &["--containerd=2"])
    },
    Batch::new("podman", "our hooks under podman, with runc, with crun and rootless", &[]),
    Batch::new("handler", "pods of a RuntimeClass, the daemon beside it", &["--containerd=2"]),
    Batch {
        tools: &[NERDCTL],
        ..Batch::new("cdi", "our CDI file under every engine", &["--containerd=2"])
    },
    Batch::new("package", "the Debian package installed, used and removed", &["--containerd=2"]),
    Batch {
        long: true,
        ..Batch::new(
            "starts",
            "how long sandboxes take to start: a measurement",
            &["--containerd=2"],
        )
    },
    Batch { long: true, ..Batch::new("pair", "pods on two nodes", &["--guests=2"]) },
    Batch::new(
        "transport",
        "our frames, deadlines and reconnections with containerd 2.1",
        &["--containerd=2"],
    ),
    Batch::new("transport_17", "likewise with containerd 1.7", &["--containerd=1"]),
    Batch {
        tools: &[CONTAINERD],
        long: true,
        ..Batch::new("transport_24", "likewise with containerd 2.4", &["--containerd", NEWER])
    },
];

/// Seconds that a whole batch may take, boot included.
const TIME_LIMIT: &str = "--timeout=1200";
/// How the machine runs again that has failed: emulated on several threads, a kernel now and then falls
/// over code that it has just patched itself (`Oops: int3`).
const STEADY: &str = "--one-thread";

/// The names, for the help.
pub fn print_batches() {
    for batch in BATCHES {
        println!("  {:<12} {}{}", batch.name, batch.about, if batch.long { " (long)" } else { "" });
    }
}

/// Run the batches that are asked for, and add the time of each to `tiers`.
pub fn run(options: &Options, tiers: &mut Vec<(String, Duration)>) -> anyhow::Result<Tally> {
    for name in &options.batches {
        if !BATCHES.iter().any(|batch| batch.name == name) {
            bail!("no batch {name}");
        }
    }
    let wanted = |batch: &&Batch| match options.batches.as_slice() {
        [] => options.long || !batch.long,
        names => names.iter().any(|name| name == batch.name),
    };
    let started = Instant::now();
    let programs = machine::build()?;
    tiers.push(("release build".to_owned(), started.elapsed()));
    let started = Instant::now();
    machine::set_up()?;
    tiers.push(("machine set-up".to_owned(), started.elapsed()));

    let queue: Mutex<VecDeque<_>> = Mutex::new(BATCHES.iter().filter(wanted).collect());
    let done = Mutex::new((Tally::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(batch) = lock(&queue).pop_front() {
                    let started = Instant::now();
                    let tally = run_batch(batch, &programs, options);
                    let mut done = lock(&done);
                    done.0 += tally;
                    done.1.push((format!("e2e {}", batch.name), started.elapsed()));
                }
            });
        }
    });
    let (tally, times) = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    tiers.extend(times);
    Ok(tally)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run_batch(batch: &Batch, programs: &Path, options: &Options) -> Tally {
    let name = batch.name;
    let cannot = |why: &str| {
        let (word, tally) = if options.all {
            ("FAIL", Tally { failed: 1, ..Tally::default() })
        } else {
            ("skip", Tally { skipped: 1, ..Tally::default() })
        };
        println!("[{name}] {word} {name}: {why}");
        tally
    };
    let mut machine: Vec<String> = batch.machine.iter().map(|&option| option.into()).collect();
    for &(tool, version) in batch.tools {
        match machine::go_tool(tool, version) {
            // "vm" shares the containerd that it is to use by itself.
            Ok(_) if (tool, version) == CONTAINERD => (),
            Ok(folder) => machine.push(format!("--share={tool}={}", folder.display())),
            Err(error) => return cannot(&format!("{error:#}; that wants Go and its modules")),
        }
    }
    if name == "smc" || name == "netns" {
        machine::tell_system_calls(programs);
    }
    if name.starts_with("smc") {
        machine::build_programs_of_smc(programs);
    }
    if name == "package" {
        match crate::dist::run(&["--deb".to_owned()]) {
            Ok(()) => {
                machine.push(format!("--share=dist={}", machine::root().join("dist").display()))
            }
            Err(error) => return cannot(&format!("{error:#}")),
        }
    }
    if name == "units" {
        match machine::unit_tests() {
            Ok((folder, program)) => {
                machine.push(format!("--share=units={}", folder.display()));
                machine.push(format!("--env=CTK_UNITS=/mnt/units/{program}"));
            }
            Err(error) => return cannot(&format!("{error:#}")),
        }
    }
    let mut outcome = boot(batch, &machine, programs, options);
    for _ in 0..2 {
        if !outcome.as_ref().is_ok_and(|outcome| outcome.machine_trouble) {
            break;
        }
        println!("[{name}] the machine failed, not the product: once more, on one thread");
        if !machine.iter().any(|option| option == STEADY) {
            machine.push(STEADY.to_owned());
        }
        outcome = boot(batch, &machine, programs, options);
    }
    match outcome {
        Ok(outcome) => outcome.judge(name),
        Err(error) => {
            println!("[{name}] FAIL {name}: {error:#}");
            Tally { failed: 1, ..Tally::default() }
        }
    }
}

/// What one boot said.
#[derive(Debug, Default)]
struct Outcome {
    /// Cases that it meant to run; `None` if it did not get that far.
    plan: Option<usize>,
    tally: Tally,
    machine_trouble: bool,
    status: Option<i32>,
}

impl Outcome {
    /// Take in a line of output. Of several guests, whose lines have numbers, the first one counts.
    fn hear(&mut self, line: &str) {
        let line = line.strip_prefix("[0] ").unwrap_or(line);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "plan" => self.plan = rest.parse().ok(),
            "ok" => self.tally.passed += 1,
            "FAIL" => self.tally.failed += 1,
            "skip" => self.tally.skipped += 1,
            _ => (),
        }
    }

    /// The tally, with a failure for everything that should have been there and was not.
    fn judge(self, name: &str) -> Tally {
        let mut tally = self.tally;
        let heard = tally.passed + tally.failed + tally.skipped;
        let mut fail = |count: usize, why: String| {
            println!("[{name}] FAIL {name}: {why}");
            tally.failed += count;
        };
        match self.plan {
            None => fail(1, "it said nothing of its cases".to_owned()),
            Some(0) => fail(1, "no case has such a name".to_owned()),
            Some(plan) if heard < plan => {
                fail(plan - heard, format!("{} of {plan} cases gave no result", plan - heard));
            }
            Some(plan) if self.tally.skipped == plan => fail(1, "every case skipped".to_owned()),
            Some(_) if self.status != Some(0) && self.tally.failed == 0 => {
                fail(1, format!("exit status {:?} after the last case", self.status));
            }
            Some(_) => (),
        }
        tally
    }
}

fn boot(
    batch: &Batch,
    machine: &[String],
    programs: &Path,
    options: &Options,
) -> anyhow::Result<Outcome> {
    let mut machine: Vec<&str> = machine.iter().map(String::as_str).collect();
    machine.push(TIME_LIMIT);
    let command = ["python3", "-u", "/mnt/e2e/run.py", batch.name, &options.case];
    let mut child = machine::run(programs, &machine, &command)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run integration/vm")?;
    let mut outcome = Outcome::default();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line.context("cannot read the output of the machine")?;
        outcome.hear(&line);
        println!("[{}] {line}", batch.name);
    }
    let status = child.wait().context("cannot wait for the machine")?;
    outcome.status = status.code();
    outcome.machine_trouble = matches!(outcome.status, Some(124 | 125));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &[&str], status: i32) -> Tally {
        let mut outcome = Outcome { status: Some(status), ..Outcome::default() };
        lines.iter().for_each(|line| outcome.hear(line));
        outcome.judge("test")
    }

    #[test]
    fn outcomes_are_judged() {
        let tally = |passed, failed, skipped| Tally { passed, failed, skipped };
        for (lines, status, expected) in [
            (&["plan 2", "ok a", "skip b: no card"][..], 0, tally(1, 0, 1)),
            (&["plan 2", "ok a", "FAIL b: too small"], 1, tally(1, 1, 0)),
            // Silence is a failure: no plan, cases without result, a crash after the last one.
            (&["okay", "FAILURE"], 0, tally(0, 1, 0)),
            (&["plan 3", "ok a"], 125, tally(1, 2, 0)),
            (&["plan 1", "ok a"], 1, tally(1, 1, 0)),
            // So is a batch that skips everything, and a name that matches nothing.
            (&["plan 2", "skip a: x", "skip b: y"], 0, tally(0, 1, 2)),
            (&["plan 0"], 0, tally(0, 1, 0)),
            (&["[0] plan 1", "[1] plan 1", "[1] FAIL a: late", "[0] ok a"], 0, tally(1, 0, 0)),
        ] {
            assert_eq!(judged(lines, status), expected, "{lines:?}");
        }
    }
}
