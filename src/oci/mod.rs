//! The path without NRI: the OCI runtime wrapper and the hook, one program under two names.
//!
//! ```text
//! engine ── rdma-ctk-runtime create ──► config.json ──► runc, crun, youki, …
//!             cmdline   what is wanted of a runtime
//!             document  a file that is replaced as a whole, or not at all
//!             json      its text, so that nothing is lost
//!             container what it says of a container; engine who made it
//!             admit     the decision; survey reads what it needs of the node
//!             create, exec  the two edits; earlier: what an earlier start has left in the document
//!             ledger    what was granted; gone: of whom nothing is there any more
//!             runtime   the real one, which takes our place
//! engine ── rdma-ctk-hook ACTION ──► hook
//! ```
//!
//! Whatever the wrapper is called for, it ends by becoming the real runtime, with the same
//! arguments, descriptors, environment and working directory.

pub mod admit;
pub mod arena;
pub mod cmdline;
pub mod container;
mod create;
pub mod document;
mod earlier;
pub mod engine;
mod exec;
mod existing;
mod gone;
pub mod hook;
pub mod image;
mod journal;
pub mod json;
mod ledger;
pub mod quick;
pub mod report;
pub mod runtime;
mod smc;
pub mod survey;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use crate::roots::Roots;
use cmdline::Action;
use report::Reporter;

/// The name under which the program is the hook; under every other it is the wrapper.
pub const HOOK: &str = "rdma-ctk-hook";
/// The prefix of every text that reaches a user.
pub const PREFIX: &str = "rdma-ctk: ";

/// What the program finds itself in.
#[derive(Clone)]
pub struct Surroundings<'a> {
    /// The node's trees.
    pub roots: Roots,
    /// A variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("roots", &self.roots).finish_non_exhaustive()
    }
}

/// Why something could not be done; one line each, without [`PREFIX`].
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// A file of the bundle, or a process document.
    #[error(transparent)]
    Document(#[from] document::DocumentError),
    /// There is no real runtime.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// The container is not to start.
    #[error("{sentence}")]
    Refused {
        /// Why not, with what asked for it.
        sentence: String,
    },
    /// What was granted cannot be put down.
    #[error(transparent)]
    Record(#[from] crate::records::RecordError),
    /// The hook was called wrongly, or with something that is no state.
    #[error(transparent)]
    Hook(#[from] hook::HookError),
}

/// The program: the wrapper, or the hook where it is called so.
pub fn main(surroundings: &Surroundings<'_>, arguments: Vec<OsString>) -> ExitCode {
    let called = arguments.first().map(OsString::as_os_str).unwrap_or_default();
    if is_hook(called) {
        return hook::main(surroundings, arguments.get(1..).unwrap_or_default());
    }
    wrapper(surroundings, arguments.get(1..).unwrap_or_default())
}

fn is_hook(called: &OsStr) -> bool {
    called.as_bytes().rsplit(|byte| *byte == b'/').next() == Some(HOOK.as_bytes())
}

/// What the wrapper says of itself before the real runtime's own help.
const HELP: &str = "\
rdma-ctk-runtime is an OCI runtime that gives containers their RDMA adapters and then becomes the
real runtime: that of [wrapper] in /etc/rdma-ctk/config.toml, else the first of runc, crun and youki
in PATH. It has no options of its own. A container asks by annotation:

  nerdctl run --runtime rdma-ctk-runtime --annotation devices.rdma-ctk.io=all IMAGE COMMAND
  docker run --runtime rdma --annotation devices.rdma-ctk.io=all IMAGE COMMAND
                                                      (after `rdma-ctk configure docker`)

What follows is the help of the real runtime.

";

/// Whether somebody only asks what this program is.
fn is_help(arguments: &[OsString]) -> bool {
    matches!(arguments, [only] if ["--help", "-h", "help"].iter().any(|word| only == word))
}

fn wrapper(surroundings: &Surroundings<'_>, arguments: &[OsString]) -> ExitCode {
    if is_help(arguments) {
        let mut out = std::io::stdout();
        // Without a reader there is nobody to tell.
        let _ = out.write_all(HELP.as_bytes()).and_then(|()| out.flush());
    }
    let line = cmdline::parse(arguments);
    let reporter = Reporter::new(&surroundings.roots, &line);
    let done = match &line.action {
        Action::Start(start) if start.is_plain() => {
            create::edit(surroundings, &line, start, &reporter)
        }
        Action::Start(start) => {
            let gnu =
                runtime::find(surroundings).is_ok_and(|runtime| runtime::reads_letters(&runtime));
            let start = start.settle(gnu, &|path| path.exists());
            create::edit(surroundings, &line, &start, &reporter)
        }
        Action::Exec { process, id } => {
            // A session that lacks the variables is better than none.
            if let Err(problem) = exec::complete(surroundings, &line, process, id.as_deref()) {
                reporter.warn(&format!("the exec session lacks what was granted: {problem}"));
            }
            Ok(None)
        }
        Action::Delete { id } => {
            if let Some(id) = id {
                gone::at_delete(surroundings, &line, id, &reporter);
            }
            Ok(None)
        }
        Action::Pass => Ok(None),
    };
    let found = done.and_then(|found| match found {
        Some(runtime) => Ok(runtime),
        None => Ok(runtime::find(surroundings)?),
    });
    let failed = match found {
        Ok(runtime) => OciError::from(runtime::become_it(surroundings, &runtime, arguments)),
        Err(problem) => problem,
    };
    reporter.fail(&failed.to_string());
    ExitCode::FAILURE
}
