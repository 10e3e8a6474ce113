//! `rdma-ctk-hook ACTION [--from FILE] [...]`: what engines call at points of a container's life.
//!
//! An OCI hook reads the container's state from standard input, podman's `precreate` the whole
//! document. One file an action, one row each in [`ACTIONS`].

mod cdi;
mod network;
mod precreate;
pub mod state;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use nix::fcntl::OFlag;
use nix::sys::stat::{fstat, makedev};
use nix::unistd::getppid;

use super::journal::{self, Priority};
use super::report::Reporter;
use super::{OciError, PREFIX, Surroundings, cmdline};

/// An action: its name, what it is for, and its function.
struct Action {
    name: &'static str,
    about: &'static str,
    run: fn(&Call<'_>) -> Result<(), OciError>,
}

/// What the hook can be called for.
const ACTIONS: &[Action] = &[
    Action { name: "precreate", about: "podman, before a start", run: precreate::run },
    Action {
        name: "createRuntime",
        about: "once there are namespaces",
        run: network::create_runtime,
    },
    Action { name: "cdi", about: "a container with a CDI device of ours", run: cdi::run },
    Action { name: "poststop", about: "when a container is gone", run: network::poststop },
    Action { name: "version", about: "say which version this is", run: version },
];

/// Why a hook could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It was called with something else than an action and its options.
    #[error(
        "{what}; usage: rdma-ctk-hook ACTION [--from FILE] [--record FILE], where ACTION is one of {actions}"
    )]
    Usage {
        /// What is wrong.
        what: String,
        /// What there is.
        actions: String,
    },
    /// Standard input or output failed.
    #[error("standard {stream}: {source}")]
    Stream {
        /// `input` or `output`
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What came by standard input is no state of a container.
    #[error("what came by standard input is no container state: {source}")]
    State {
        /// Why not.
        source: serde_json::Error,
    },
    /// What came by standard input is too long.
    #[error("more than {most} bytes came by standard input")]
    Long {
        /// How much is read.
        most: usize,
    },
}

/// A call of the hook.
#[derive(Debug)]
pub struct Call<'a> {
    /// What it finds itself in.
    pub surroundings: &'a Surroundings<'a>,
    /// `--from FILE`: the file that made it run.
    pub from: Option<PathBuf>,
    /// `--record FILE`: where the wrapper wrote down what it granted.
    pub record: Option<PathBuf>,
}

impl Call<'_> {
    /// Standard input, at most so many bytes of it.
    ///
    /// # Errors
    /// There is more, or it cannot be read.
    pub fn input(&self, most: usize) -> Result<Vec<u8>, HookError> {
        let mut text = Vec::new();
        io::stdin()
            .lock()
            .take(most as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|source| HookError::Stream { stream: "input", source })?;
        if text.len() > most { Err(HookError::Long { most }) } else { Ok(text) }
    }

    /// Says what the user should know, in the journal: standard output and error are the engine's.
    pub fn warn(&self, sentence: &str) {
        self.tell(Priority::Warning, sentence);
    }

    /// Says what was done.
    pub fn note(&self, sentence: &str) {
        self.tell(Priority::Info, sentence);
    }

    fn tell(&self, priority: Priority, sentence: &str) {
        journal::send(&self.surroundings.roots, priority, &format!("{PREFIX}{sentence}"));
    }
}

/// The hook: does what the first argument says.
pub fn main(surroundings: &Surroundings<'_>, arguments: &[OsString]) -> ExitCode {
    let mut call = Call { surroundings, from: None, record: None };
    let done = read(arguments, &mut call).map_err(OciError::from).and_then(|run| run(&call));
    let Err(problem) = done else { return ExitCode::SUCCESS };
    let text = match &call.from {
        Some(from) => format!("{PREFIX}{problem} (hook of {})", from.display()),
        None => format!("{PREFIX}{problem}"),
    };
    journal::send(&surroundings.roots, Priority::Error, &text);
    // runc puts it into its own error.
    let _ = writeln!(io::stderr(), "{text}");
    let dropped = is_dropped(io::stderr());
    if dropped || arguments.first().is_some_and(|action| action == "precreate") {
        tell_parent(surroundings, &text);
    }
    if dropped {
        tell_log(surroundings, &text);
    }
    ExitCode::FAILURE
}

/// Whether what is written there goes nowhere.
fn is_dropped(stream: impl AsFd) -> bool {
    /// `/dev/null` (`Documentation/admin-guide/devices.txt`)
    const NULL: u64 = makedev(1, 3);
    fstat(stream).is_ok_and(|found| found.st_rdev == NULL)
}

/// Says it where the engine itself speaks: podman drops what `precreate` says, and crun what any hook
/// says, so that the user would see an exit status and no more.
fn tell_parent(surroundings: &Surroundings<'_>, text: &str) {
    let stream = surroundings.roots.proc.join(getppid().to_string()).join("fd/2");
    let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let open = OpenOptions::new().append(true).custom_flags(flags.bits()).open(stream);
    // One that is a socket cannot be opened: then there is the journal.
    if let Ok(mut stream) = open {
        let _ = writeln!(stream, "{text}");
    }
}

/// Says it in the log of the runtime that runs the hook: podman tells its user what stands there or, if
/// that is more than the runtime's own line, what the runtime has written.
fn tell_log(surroundings: &Surroundings<'_>, text: &str) {
    let path = surroundings.roots.proc.join(getppid().to_string()).join("cmdline");
    let Ok(line) = std::fs::read(path) else { return };
    let words = line.split(|byte| *byte == 0).skip(1).map(|word| OsString::from_vec(word.to_vec()));
    let line = cmdline::parse(&words.collect::<Vec<_>>());
    // Where it is relative, it is so to the working folder of another process.
    if line.log.as_ref().is_some_and(|log| log.is_absolute()) {
        Reporter::new(&surroundings.roots, &line).relay(text);
    }
}

type Run = fn(&Call<'_>) -> Result<(), OciError>;

/// The action that is meant; options go into `call`.
fn read(arguments: &[OsString], call: &mut Call<'_>) -> Result<Run, HookError> {
    let actions = || {
        let words = ACTIONS.iter().map(|action| format!("{} ({})", action.name, action.about));
        words.collect::<Vec<_>>().join(", ")
    };
    let usage = |what: String| HookError::Usage { what, actions: actions() };
    let Some((wanted, rest)) = arguments.split_first() else {
        return Err(usage("no action is named".to_owned()));
    };
    // First the options, so that an error names the file that is wrong.
    let mut rest = rest.iter();
    let mut stray = None;
    while let Some(option) = rest.next() {
        match (option.to_str(), rest.next()) {
            (Some("--from"), Some(file)) => call.from = Some(file.into()),
            (Some("--record"), Some(file)) => call.record = Some(file.into()),
            _ => stray = stray.or(Some(option)),
        }
    }
    if let Some(stray) = stray {
        return Err(usage(format!("{stray:?} is no option with a value")));
    }
    ACTIONS
        .iter()
        .find(|action| *wanted == *action.name)
        .map(|action| action.run)
        .ok_or_else(|| usage(format!("there is no action {wanted:?}")))
}

fn version(_: &Call<'_>) -> Result<(), OciError> {
    writeln!(io::stdout(), "rdma-ctk-hook {}", env!("CARGO_PKG_VERSION"))
        .map_err(|source| HookError::Stream { stream: "output", source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;

    fn called(arguments: &[&str]) -> (Result<(), String>, Option<PathBuf>) {
        let roots = Roots::below("/nowhere".as_ref());
        let surroundings = Surroundings { roots, variable: &|_| None };
        let mut call = Call { surroundings: &surroundings, from: None, record: None };
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        let read = read(&arguments, &mut call).map(drop).map_err(|error| error.to_string());
        (read, call.from)
    }

    #[test]
    fn a_wrong_call_is_told_with_the_file_that_made_it() {
        assert_eq!(called(&["version"]), (Ok(()), None));
        for (arguments, part) in [
            (&[][..], "no action is named"),
            (&["fly"], "there is no action \"fly\""),
            (&["version", "--from"], "\"--from\" is no option with a value"),
            (&["version", "--x", "y"], "\"--x\" is no option"),
        ] {
            let error = called(arguments).0.unwrap_err();
            assert!(error.contains(part) && error.contains("version (say which"), "{error}");
        }
        let (wrong, from) = called(&["fly", "--from", "/h/rdma-ctk.json"]);
        assert!(wrong.is_err());
        assert_eq!(from, Some("/h/rdma-ctk.json".into()));
    }
}
