//! Telling whoever called what went wrong, where they look: the runtime's log file, which containerd
//! and podman read for the message that a user sees, and standard error for everybody else.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::PREFIX;
use super::cmdline::{CommandLine, LogFormat};
use super::journal::{self, Priority};
use crate::roots::Roots;

/// Where the caller of a runtime wants to be told.
#[derive(Debug)]
pub struct Reporter {
    roots: Roots,
    log: Option<PathBuf>,
    format: LogFormat,
}

/// A line of a JSON log, as runc writes it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    level: &'a str,
    msg: &'a str,
    time: String,
}

impl Reporter {
    /// One for that command line.
    pub fn new(roots: &Roots, line: &CommandLine) -> Self {
        Self {
            roots: roots.clone(),
            log: line.log.as_ref().and_then(|log| file_of(log)),
            format: line.log_format,
        }
    }

    /// Says why the program ends without having done what it was called for. `problem` is one line
    /// without prefix.
    pub fn fail(&self, problem: &str) {
        let text = format!("{PREFIX}{problem}");
        self.log("error", &text);
        journal::send(&self.roots, Priority::Error, &text);
        // Nobody is left to be told that this fails.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Says in the log alone what has gone wrong elsewhere, prefix and all.
    pub fn relay(&self, text: &str) {
        self.log("error", text);
    }

    /// Says what the user should know of a container that starts all the same.
    pub fn warn(&self, sentence: &str) {
        let text = format!("{PREFIX}{sentence}");
        self.log("warning", &text);
        journal::send(&self.roots, Priority::Warning, &text);
    }

    /// Says what was done.
    pub fn note(&self, sentence: &str) {
        journal::send(&self.roots, Priority::Info, &format!("{PREFIX}{sentence}"));
    }

    fn log(&self, level: &str, message: &str) {
        let Some(path) = &self.log else { return };
        let Some(line) = line(self.format, level, message, SystemTime::now()) else { return };
        // The engine has named the file, and made the folder. O_NONBLOCK: it may be a pipe.
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o644)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(path);
        if let Ok(mut file) = file {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// The file that `--log` names: crun also takes `file:PATH`, and names of services, which are none.
fn file_of(log: &std::path::Path) -> Option<PathBuf> {
    match log.to_str().and_then(|text| text.split_once(':')) {
        Some(("file", path)) => Some(path.into()),
        Some(("syslog" | "journald", _)) => None,
        _ => Some(log.to_owned()),
    }
}

fn line(format: LogFormat, level: &str, message: &str, now: SystemTime) -> Option<String> {
    let time = rfc3339(now);
    let text = match format {
        LogFormat::Json => serde_json::to_string(&Line { level, msg: message, time }).ok()?,
        LogFormat::Text => {
            let quoted = serde_json::to_string(message).ok()?;
            format!("time=\"{time}\" level={level} msg={quoted}")
        }
    };
    Some(text + "\n")
}

/// A time in UTC, such as `2026-11-30T20:07:10Z`.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01, by counting.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    let mut year = 1970;
    loop {
        let length = 365 + u64::from(leap(year));
        // A clock beyond this is wrong, and is not to be counted to.
        if days < length || year == 9999 {
            break;
        }
        days -= length;
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length || month == 12 {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days.min(30) + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::oci::cmdline::parse;

    #[test]
    fn times_are_written_as_engines_read_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_069_230, "2026-11-30T20:07:10Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), expected, "{seconds}");
        }
        // No clock makes it count for ever.
        rfc3339(UNIX_EPOCH + Duration::from_secs(u64::MAX / 4));
    }

    fn told(arguments: &[&str], log: &std::path::Path) -> String {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let reporter = Reporter::new(&roots, &parse(arguments));
        reporter.warn("first");
        reporter.fail("no \"x\" here");
        std::fs::read_to_string(log).unwrap_or_default()
    }

    #[test]
    fn the_log_is_added_to_in_the_format_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.json");
        std::fs::write(&log, "before\n").unwrap();
        let path = log.to_str().unwrap();
        let text = told(&["--log", path, "--log-format", "json", "create", "x"], &log);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let last: Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!(last["level"], "error");
        assert_eq!(last["msg"], "rdma-ctk: no \"x\" here");
        assert!(last["time"].as_str().unwrap().ends_with('Z'));

        let plain = folder.path().join("plain");
        let text = told(&["--log", &format!("file:{}", plain.display()), "create", "x"], &plain);
        assert!(text.contains("level=warning msg=\"rdma-ctk: first\""), "{text}");
        assert_eq!(told(&["--log=journald:x", "create", "x"], &folder.path().join("none")), "");
    }
}
