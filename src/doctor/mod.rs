//! The node's check-up: a registry of [`Check`]s, each a row with a name and a function over a
//! [`Context`], so that each runs on a fixture as well as on a node.
//!
//! A check that could not look ([`Unable`]) is told apart from one that looked and found nothing.
//! A finding without a fix is fine as it is, or its sentence says who has to decide.

use serde::Serialize;

use crate::daemon::records::Records;
use crate::inventory::Node;
use crate::roots::Roots;

mod adapters;
mod bundles;
mod causes;
mod checks;
mod containers;
mod daemon;
mod live;
mod memory;
mod nri_config;
mod place;
mod ports;
mod processes;
mod registered;
mod runtime;
mod smc;
#[cfg(test)]
mod tests;

pub use causes::{Cause, explain};
pub use checks::CHECKS;
pub use containers::unheard;
pub use daemon::ago;
pub use live::{Live, Machine};
pub use memory::size;
pub use runtime::{runtime_here, runtime_process};

/// What the checks look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The trees of the node or of the fixture.
    pub roots: &'a Roots,
    /// What the inventory made of them.
    pub node: &'a Node,
    /// What the daemon has on record.
    pub records: &'a Records,
    /// The node itself, for what no tree tells; `None` on a fixture.
    pub live: Option<&'a dyn Live>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("roots", self.roots)
            .field("live", &self.live.is_some())
            .finish_non_exhaustive()
    }
}

impl<'a> Context<'a> {
    /// The node itself, or the reason why the check is left out.
    fn live(&self) -> Result<&'a dyn Live, Unable> {
        self.live.ok_or(Unable::NotLive)
    }
}

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Name, as printed and as `doctor NAME` takes it.
    pub name: &'static str,
    /// What it looks at, for `doctor --list`.
    pub what: &'static str,
    /// Looks.
    pub run: fn(&Context<'_>) -> Result<Vec<Finding>, Unable>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Some containers will not get what they ask for, or get it slower.
    Warn,
    /// No container that asks will work, or one runs without what it asked for.
    Fail,
}

impl Level {
    /// As printed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What is the case: a sentence that names the device, file or process.
    pub sentence: String,
    /// What to do about it.
    pub fix: Option<String>,
}

impl Finding {
    fn ok(sentence: impl Into<String>) -> Self {
        Self { level: Level::Ok, sentence: sentence.into(), fix: None }
    }

    fn warn(sentence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warn, sentence: sentence.into(), fix: Some(fix.into()) }
    }

    fn fail(sentence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Fail, sentence: sentence.into(), fix: Some(fix.into()) }
    }
}

/// Why a check could not look.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// Only the node itself knows.
    #[error("only the node itself can tell")]
    NotLive,
    /// What it looks at is not there.
    #[error("{0}")]
    Absent(&'static str),
    /// A runtime's settings could not be read.
    #[error(transparent)]
    Config(Box<nri_config::NriConfigError>),
    /// A file could not be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// [`Check::name`]
    pub check: &'static str,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// Why it could not look; then there are no findings.
    pub unable: Option<String>,
}

/// Runs those checks.
pub fn run<'c>(
    context: &Context<'_>,
    checks: impl IntoIterator<Item = &'c Check>,
) -> Vec<Diagnosis> {
    checks
        .into_iter()
        .map(|check| match (check.run)(context) {
            Ok(mut findings) => {
                findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
                Diagnosis { check: check.name, findings, unable: None }
            }
            Err(unable) => Diagnosis {
                check: check.name,
                findings: Vec::new(),
                unable: Some(unable.to_string()),
            },
        })
        .collect()
}
