//! Command lines of OCI runtimes: `RUNTIME [global flags] SUBCOMMAND [flags] [ID]`.
//!
//! The wrapper acts on a few subcommands and must not mistake a flag's value or a container's name
//! for one: a container may be called `create`. So the flags that take a value are known here by
//! name, from the command-line tables of runc, crun and youki. A flag that is not known takes none.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Global flags whose value may be the next argument; `r` and `l` are youki's.
const GLOBAL_WITH_VALUE: &[&str] =
    &["cgroup-manager", "config", "criu", "log", "l", "log-format", "root", "r", "rootless"];

/// Flags of `create`, `run` and `restore` that take a value.
const START_WITH_VALUE: &[&str] = &[
    "bundle",
    "b",
    "config",
    "f",
    "console-socket",
    "pid-file",
    "pidfd-socket",
    "preserve-fds",
    "image-path",
    "work-path",
    "parent-path",
    "manage-cgroups-mode",
    "empty-ns",
    "lsm-profile",
    "lsm-mount-context",
    "status-fd",
    "page-server",
];

/// Flags of `exec` that take a value.
const EXEC_WITH_VALUE: &[&str] = &[
    "console-socket",
    "pidfd-socket",
    "cwd",
    "env",
    "e",
    "user",
    "u",
    "additional-gids",
    "g",
    "process",
    "p",
    "pid-file",
    "process-label",
    "apparmor",
    "cap",
    "c",
    "preserve-fds",
    "cgroup",
];

/// What the wrapper has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `create`, `run` and `restore`: the document of the bundle is edited first.
    Start(Start),
    /// `exec` with `--process FILE`: that document is completed. Without one the runtime itself
    /// starts from the bundle's document, in which the edit is.
    Exec {
        /// The process document.
        process: PathBuf,
        /// Container that it runs in; `None` when the command line names none.
        id: Option<OsString>,
    },
    /// Everything else goes to the real runtime as it is.
    Pass,
}

/// A container that is to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Folder that holds the document; `None`: the working directory.
    pub bundle: Option<PathBuf>,
    /// crun's `--config`: the document's name in the bundle, if not `config.json`.
    pub config: Option<PathBuf>,
    /// The container's identifier; `None` when the command line names none.
    pub id: Option<OsString>,
}

impl Start {
    /// Path of the document.
    pub fn document(&self) -> PathBuf {
        let bundle = self.bundle.clone().unwrap_or_else(|| ".".into());
        bundle.join(self.config.as_deref().unwrap_or_else(|| "config.json".as_ref()))
    }
}

/// In which form a runtime writes its log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line, which containerd and podman read.
    Json,
}

/// A runtime's command line, as far as the wrapper needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// What to do.
    pub action: Action,
    /// `--log FILE`: where the caller reads the reason of a failure.
    pub log: Option<PathBuf>,
    /// `--log-format`
    pub log_format: LogFormat,
    /// `--root DIR`: the runtime's state folder.
    pub root: Option<PathBuf>,
}

/// Reads the arguments after the program's name.
pub fn parse<A: AsRef<OsStr>>(arguments: &[A]) -> CommandLine {
    let mut line =
        CommandLine { action: Action::Pass, log: None, log_format: LogFormat::Text, root: None };
    let mut flags = Flags::new(arguments, GLOBAL_WITH_VALUE, Order::FlagsFirst);
    while let Some(flag) = flags.next() {
        match flag.name {
            b"log" | b"l" => line.log = flag.value.map(PathBuf::from),
            b"log-format" if flag.value == Some("json".as_ref()) => {
                line.log_format = LogFormat::Json;
            }
            b"log-format" => line.log_format = LogFormat::Text,
            b"root" | b"r" => line.root = flag.value.map(PathBuf::from),
            _ => {}
        }
    }
    let Some((subcommand, rest)) = flags.rest().split_first() else { return line };
    line.action = match subcommand.as_ref().as_bytes() {
        b"create" | b"run" | b"restore" => Action::Start(start(rest)),
        b"exec" => exec(rest),
        _ => Action::Pass,
    };
    line
}

fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Start {
    let mut start = Start::default();
    // runc and crun take these flags behind the identifier too.
    let mut flags = Flags::new(arguments, START_WITH_VALUE, Order::Mixed);
    while let Some(flag) = flags.next() {
        match flag.name {
            b"bundle" | b"b" => start.bundle = flag.value.map(PathBuf::from),
            b"config" | b"f" => start.config = flag.value.map(PathBuf::from),
            _ => {}
        }
    }
    start.id = flags.positional.map(OsStr::to_owned);
    start
}

fn exec<A: AsRef<OsStr>>(arguments: &[A]) -> Action {
    let mut process = None;
    // What follows the identifier is the command.
    let mut flags = Flags::new(arguments, EXEC_WITH_VALUE, Order::FlagsFirst);
    while let Some(flag) = flags.next() {
        if matches!(flag.name, b"process" | b"p") {
            process = flag.value.map(PathBuf::from);
        }
    }
    let id = flags.rest().first().map(|id| id.as_ref().to_owned());
    process.map_or(Action::Pass, |process| Action::Exec { process, id })
}

/// Where flags may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Before the first word that is none.
    FlagsFirst,
    /// Anywhere.
    Mixed,
}

/// The flags of a command line, one after the other.
struct Flags<'a, A> {
    arguments: &'a [A],
    at: usize,
    with_value: &'static [&'static str],
    order: Order,
    /// The first word that is no flag.
    positional: Option<&'a OsStr>,
}

impl<'a, A: AsRef<OsStr>> Flags<'a, A> {
    fn new(arguments: &'a [A], with_value: &'static [&'static str], order: Order) -> Self {
        Self { arguments, at: 0, with_value, order, positional: None }
    }

    fn next(&mut self) -> Option<Flag<'a>> {
        while let Some(argument) = self.arguments.get(self.at) {
            let argument = argument.as_ref();
            if argument == "--" {
                self.at += 1;
                let next = self.arguments.get(self.at).map(AsRef::as_ref);
                self.positional = self.positional.or(next);
                return None;
            }
            let Some(mut flag) = Flag::read(argument, self.with_value) else {
                if self.order == Order::FlagsFirst {
                    return None;
                }
                self.positional = self.positional.or(Some(argument));
                self.at += 1;
                continue;
            };
            self.at += 1;
            if flag.value.is_none() && knows(self.with_value, flag.name) {
                flag.value = self.arguments.get(self.at).map(AsRef::as_ref);
                self.at += 1;
            }
            return Some(flag);
        }
        None
    }

    /// What follows the flags.
    fn rest(&self) -> &'a [A] {
        self.arguments.get(self.at..).unwrap_or_default()
    }
}

fn knows(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes() == name)
}

/// `--name`, `--name=value`, `-n`, `-n=value`, `-nvalue`: Go's parsers take one dash for two, and
/// GNU's a value that is joined to a letter.
struct Flag<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
}

impl<'a> Flag<'a> {
    fn read(argument: &'a OsStr, with_value: &[&str]) -> Option<Self> {
        let bytes = argument.as_bytes();
        let (long, body) = match (bytes.strip_prefix(b"--"), bytes.strip_prefix(b"-")) {
            (Some(body), _) => (true, body),
            (None, Some(body)) => (false, body),
            (None, None) => return None,
        };
        if body.is_empty() {
            return None;
        }
        let end = body.iter().position(|&byte| byte == b'=');
        let name = &body[..end.unwrap_or(body.len())];
        if !long && name.len() > 1 && !knows(with_value, name) && knows(with_value, &body[..1]) {
            return Some(Self { name: &body[..1], value: Some(OsStr::from_bytes(&body[1..])) });
        }
        Some(Self { name, value: end.map(|end| OsStr::from_bytes(&body[end + 1..])) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(line: &str) -> CommandLine {
        parse(&line.split_whitespace().collect::<Vec<_>>())
    }

    fn action(line: &str) -> Action {
        read(line).action
    }

    fn start(bundle: &str, id: &str) -> Action {
        Action::Start(Start {
            bundle: (!bundle.is_empty()).then(|| bundle.into()),
            config: None,
            id: (!id.is_empty()).then(|| id.into()),
        })
    }

    #[test]
    fn the_subcommand_is_found_behind_the_global_flags() {
        for (line, expected) in [
            (
                "--root /r --log /b/log.json --log-format json --systemd-cgroup create --bundle /b \
                 --pid-file /b/p x",
                start("/b", "x"),
            ),
            ("--root=/r create --bundle=/b x", start("/b", "x")),
            ("create -b /b x", start("/b", "x")),
            ("create -b/b x", start("/b", "x")),
            ("create -bundle /b x", start("/b", "x")),
            ("create x --bundle /b", start("/b", "x")),
            ("run x", start("", "x")),
            ("run --detach -- x", start("", "x")),
            ("-- create x", start("", "x")),
            ("create --preserve-fds 3 --no-pivot --no-new-keyring x", start("", "x")),
            ("--systemd-cgroup create --bundle /b --pid-file f --no-pivot x", start("/b", "x")),
            (
                "--cgroup-manager systemd --config /c restore --image-path /i --bundle /b x",
                start("/b", "x"),
            ),
            ("--rootless true create x", start("", "x")),
            ("--debug --systemd-cgroup=false create x", start("", "x")),
            ("-r /state -l /log create -b /b x", start("/b", "x")),
            ("state create", Action::Pass),
            ("kill --all create 9", Action::Pass),
            ("--log create state x", Action::Pass),
            ("--root create delete --force x", Action::Pass),
            ("update --resources=- create", Action::Pass),
            ("start create", Action::Pass),
            ("--version", Action::Pass),
            ("features", Action::Pass),
            ("", Action::Pass),
            ("--", Action::Pass),
            ("--root", Action::Pass),
        ] {
            assert_eq!(action(line), expected, "{line}");
        }
    }

    #[test]
    fn a_container_named_create_and_values_named_like_flags_confuse_nothing() {
        assert_eq!(action("create --pid-file --bundle create"), start("", "create"));
        assert_eq!(action("create --bundle create create"), start("create", "create"));
        assert_eq!(action("create -- --bundle"), start("", "--bundle"));
    }

    #[test]
    fn the_document_is_in_the_bundle_unless_crun_is_told_another() {
        for (line, path) in [
            ("create x", "./config.json"),
            ("create --bundle /b x", "/b/config.json"),
            ("create --bundle /b --config other.json x", "/b/other.json"),
            ("create -b /b -f /c/other.json x", "/c/other.json"),
        ] {
            let Action::Start(start) = action(line) else { panic!("{line}") };
            assert_eq!(start.document(), PathBuf::from(path), "{line}");
        }
    }

    #[test]
    fn exec_is_taken_with_a_process_file_only() {
        let exec = |process: &str, id: Option<&str>| Action::Exec {
            process: process.into(),
            id: id.map(Into::into),
        };
        assert_eq!(
            action("--root /r exec --process /t/p --console-socket /s --detach --pid-file f x"),
            exec("/t/p", Some("x"))
        );
        assert_eq!(action("exec -p=/t/p x"), exec("/t/p", Some("x")));
        assert_eq!(action("exec --process /t/p"), exec("/t/p", None));
        assert_eq!(action("exec x sh --process /etc/shadow"), Action::Pass);
        assert_eq!(action("exec --env A=B --user 1 x sh"), Action::Pass);
        assert_eq!(action("exec -u --process x sh"), Action::Pass);
    }

    #[test]
    fn the_log_is_known_for_every_subcommand() {
        let line = read("--log /b/log.json --log-format=json --root=/r create x");
        assert_eq!(line.log, Some("/b/log.json".into()));
        assert_eq!(line.log_format, LogFormat::Json);
        assert_eq!(line.root, Some("/r".into()));
        assert_eq!(read("--log-format json --log-format text state x").log_format, LogFormat::Text);
    }

    proptest! {
        /// Whatever is typed is read, and a subcommand is only ever what stands behind the flags.
        #[test]
        fn every_line_is_read(words in proptest::collection::vec("-{0,2}[a-z=/]{0,6}", 0..8)) {
            let line = parse(&words);
            let known = ["create", "run", "restore", "exec"];
            let named = words.iter().any(|word| known.contains(&word.as_str()));
            prop_assert!(named || line.action == Action::Pass);
        }
    }
}
