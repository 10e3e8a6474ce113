//! Where the log goes: to the journal under systemd, else to standard error, for people on a
//! terminal and for programs where asked.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Form of the log on standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// The journal if standard error leads there, else text.
    #[default]
    Auto,
    /// Text, a line each.
    Text,
    /// JSON, a line each.
    Json,
}

/// The level for each module: `info`, or `info,rdma_ctk::nri=debug`.
#[derive(Debug, Clone)]
pub struct Levels(Targets);

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("{text:?}: expected a level, or MODULE=LEVEL with commas between"))
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self(Targets::new().with_default(tracing::Level::INFO))
    }
}

/// Begins to log; once in a process. `silent` is a process without a standard error of use, such as
/// one that a runtime has started.
///
/// # Errors
/// The process logs already.
pub fn begin(format: Format, levels: &Levels, silent: bool) -> Result<(), LogError> {
    let journal = || tracing_journald::layer().ok().map(Layer::boxed);
    let text = || {
        let colour = io::stderr().is_terminal();
        let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colour);
        layer.with_target(false).boxed()
    };
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Format::Json => tracing_subscriber::fmt::layer().json().with_writer(io::stderr).boxed(),
        Format::Text => text(),
        Format::Auto if silent || leads_to_journal() => journal().unwrap_or_else(text),
        Format::Auto => text(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(levels.0.clone()))
        .try_init()
        .map_err(|_| LogError)
}

/// Somebody else logs in this process already.
#[derive(Debug, thiserror::Error)]
#[error("the log has been begun already")]
pub struct LogError;

/// Whether standard error is the stream that systemd has connected to the journal, as
/// `$JOURNAL_STREAM` says (systemd.exec(5)): a variable alone may have been inherited.
fn leads_to_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let path = format!("/proc/self/fd/{}", io::stderr().as_raw_fd());
    fs::metadata(path).is_ok_and(|data| stream == format!("{}:{}", data.dev(), data.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words_for_modules() {
        for text in ["info", "debug", "info,rdma_ctk::nri=trace", "off"] {
            assert!(text.parse::<Levels>().is_ok(), "{text}");
        }
        let error = "rdma_ctk=loud".parse::<Levels>().unwrap_err();
        assert!(error.contains("rdma_ctk=loud"), "{error}");
    }
}
