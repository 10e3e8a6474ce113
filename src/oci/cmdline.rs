//! Command lines of OCI runtimes: `RUNTIME [global flags] SUBCOMMAND [flags] [ID]`.
//!
//! The wrapper acts on a few subcommands and must not mistake a flag's value or a container's name
//! for one: a container may be called `create`. So the flags that take a value are known here by
//! name, from the command-line tables of runc, crun and youki. A flag that is not known takes none,
//! and a word where a subcommand should be and that is none is taken for the value of such a flag.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is known of the flags at one place of the line.
#[derive(Debug)]
struct Table {
    /// Those whose value may be the next argument, with one letter or more.
    with_value: &'static [&'static str],
    /// Those of them that are crun's: its reader (GNU's) takes the beginning of a name for it.
    crun: &'static [&'static str],
    /// Letters without a value, behind which GNU's readers and youki's go on with the next letter.
    switches: &'static [u8],
}

/// Global flags; `r`, `l` and `s` are youki's.
const GLOBAL: Table = Table {
    with_value: &[
        "cgroup-manager",
        "config",
        "criu",
        "log",
        "l",
        "log-format",
        "log-level",
        "root",
        "r",
        "rootless",
    ],
    crun: &["cgroup-manager", "log", "log-format", "log-level", "root", "rootless"],
    switches: b"sv",
};

/// Flags of `create`, `run` and `restore`; `c` and `p` are youki's.
const START: Table = Table {
    with_value: &[
        "bundle",
        "b",
        "config",
        "f",
        "console-socket",
        "c",
        "pid-file",
        "p",
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
    ],
    crun: &[
        "bundle",
        "config",
        "console-socket",
        "pid-file",
        "preserve-fds",
        "image-path",
        "work-path",
        "manage-cgroups-mode",
        "lsm-profile",
        "lsm-mount-context",
    ],
    switches: b"d",
};

/// Flags of `delete`.
const DELETE: Table = Table { with_value: &[], crun: &[], switches: b"fr" };

/// Flags of `exec`.
const EXEC: Table = Table {
    with_value: &[
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
    ],
    crun: &["console-socket", "cwd", "env", "user", "process", "pid-file", "cap", "preserve-fds"],
    switches: b"dt",
};

/// The subcommands of runc, crun and youki, `create`, `run`, `restore` and `exec` apart.
const OTHERS: &[&[u8]] = &[
    b"checkpoint",
    b"completion",
    b"delete",
    b"events",
    b"features",
    b"h",
    b"help",
    b"info",
    b"kill",
    b"list",
    b"mounts",
    b"pause",
    b"ps",
    b"resume",
    b"spec",
    b"start",
    b"state",
    b"update",
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
    /// `delete`: what is on record of a container that has no hook for that goes.
    Delete {
        /// The container; `None` when the command line names none.
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
    /// What GNU's readers (crun) and youki's see in the line, if it is something else: `-bundle DIR`
    /// and `-b=DIR` are the bundle `undle` or `=DIR` for crun.
    pub other: Option<Box<Start>>,
}

impl Start {
    /// Whether every runtime takes the same document.
    pub fn is_plain(&self) -> bool {
        let config = self.config.as_deref().unwrap_or_else(|| "config.json".as_ref());
        self.other.is_none() && (config.is_absolute() || config == Path::new("config.json"))
    }

    /// The reading that counts: `gnu`'s where the runtime is one whose reader is GNU's or like it,
    /// else Go's, unless only the other leads to a document. crun looks for a `--config` that is
    /// relative in the working directory, and did in the bundle before.
    pub fn settle(&self, gnu: bool, exists: &dyn Fn(&Path) -> bool) -> Self {
        let leads =
            |start: &Self| exists(&start.document()) || start.config.as_deref().is_some_and(exists);
        let other = self.other.as_deref();
        let other = other.filter(|other| gnu || (!leads(self) && leads(other)));
        let mut settled = Self { other: None, ..other.unwrap_or(self).clone() };
        let config = settled.config.take();
        settled.config = config.map(|config| {
            let here = config != Path::new("config.json") && exists(&config);
            let absolute = here.then(|| std::path::absolute(&config).ok()).flatten();
            absolute.unwrap_or(config)
        });
        settled
    }

    /// Folder of the bundle, from which the document's own paths start. crun's document may lie
    /// elsewhere.
    pub fn folder(&self) -> &Path {
        let named = self.bundle.as_deref().filter(|bundle| !bundle.as_os_str().is_empty());
        named.unwrap_or_else(|| Path::new("."))
    }

    /// Path of the document.
    pub fn document(&self) -> PathBuf {
        self.folder().join(self.config.as_deref().unwrap_or_else(|| "config.json".as_ref()))
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
    let mut flags = Flags::new(arguments, &GLOBAL, Order::FlagsFirst, Reader::Go);
    loop {
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
            b"delete" => Action::Delete { id: delete(rest) },
            other if OTHERS.contains(&other) => Action::Pass,
            // Rather an edit too many than a container without.
            _ => {
                flags.at += 1;
                continue;
            }
        };
        return line;
    }
}

fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Start {
    let (mut start, is_plain) = read_start(arguments, Reader::Go);
    if !is_plain {
        let (other, _) = read_start(arguments, Reader::Gnu);
        start.other = (other != start).then(|| Box::new(other));
    }
    start
}

/// What one reader sees, and whether all of them do.
fn read_start<A: AsRef<OsStr>>(arguments: &[A], reader: Reader) -> (Start, bool) {
    let mut start = Start::default();
    // runc takes these flags behind the identifier too.
    let mut flags = Flags::new(arguments, &START, Order::Mixed, reader);
    while let Some(flag) = flags.next() {
        match flag.name {
            b"bundle" | b"b" => start.bundle = flag.value.map(PathBuf::from),
            b"config" | b"f" => start.config = flag.value.map(PathBuf::from),
            _ => {}
        }
    }
    start.id = flags.positional.map(OsStr::to_owned);
    (start, flags.is_plain)
}

fn delete<A: AsRef<OsStr>>(arguments: &[A]) -> Option<OsString> {
    let mut flags = Flags::new(arguments, &DELETE, Order::Mixed, Reader::Go);
    let mut pattern = false;
    while let Some(flag) = flags.next() {
        // crun's: what follows is no identifier then.
        pattern |= matches!(flag.name, b"regex" | b"r");
    }
    flags.positional.map(OsStr::to_owned).filter(|_| !pattern)
}

fn exec<A: AsRef<OsStr>>(arguments: &[A]) -> Action {
    let mut process = None;
    // What follows the identifier is the command.
    let mut flags = Flags::new(arguments, &EXEC, Order::FlagsFirst, Reader::Go);
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

/// Whose reading goes first where two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// One dash is as good as two (runc).
    Go,
    /// One dash is for letters (crun, and youki).
    Gnu,
}

/// The flags of a command line, one after the other.
struct Flags<'a, A> {
    arguments: &'a [A],
    at: usize,
    table: &'static Table,
    order: Order,
    reader: Reader,
    /// The first word that is no flag.
    positional: Option<&'a OsStr>,
    /// No flag so far that two readers read differently.
    is_plain: bool,
}

impl<'a, A: AsRef<OsStr>> Flags<'a, A> {
    fn new(arguments: &'a [A], table: &'static Table, order: Order, reader: Reader) -> Self {
        Self { arguments, at: 0, table, order, reader, positional: None, is_plain: true }
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
            let Some(mut flag) = self.read(argument) else {
                if self.order == Order::FlagsFirst {
                    return None;
                }
                self.positional = self.positional.or(Some(argument));
                self.at += 1;
                continue;
            };
            self.at += 1;
            if flag.value.is_none() && flag.takes_value {
                flag.value = self.arguments.get(self.at).map(AsRef::as_ref);
                self.at += 1;
            }
            return Some(flag);
        }
        None
    }

    /// `--name`, `--name=value`, `-n`, `-n value`; by Go's readers `-name`, `-n=value`; by GNU's the
    /// beginning of a name, letters together (`-dn value`) and a value that is joined (`-nvalue`).
    fn read(&mut self, argument: &'a OsStr) -> Option<Flag<'a>> {
        let bytes = argument.as_bytes();
        if let Some(body) = bytes.strip_prefix(b"--") {
            return Some(self.table.long(body));
        }
        let body = bytes.strip_prefix(b"-").filter(|body| !body.is_empty())?;
        let end = body.iter().position(|&byte| byte == b'=');
        let name = &body[..end.unwrap_or(body.len())];
        let value = end.map(|end| OsStr::from_bytes(&body[end + 1..]));
        let known = knows(self.table.with_value, name);
        let go = Flag { name, value, takes_value: known };
        Some(match self.table.letters(body) {
            None => go,
            Some(letters) if !known => letters,
            Some(letters) => {
                self.is_plain &= letters == go;
                if self.reader == Reader::Go { go } else { letters }
            }
        })
    }

    /// What follows the flags.
    fn rest(&self) -> &'a [A] {
        self.arguments.get(self.at..).unwrap_or_default()
    }
}

fn knows(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes() == name)
}

/// A flag. Where two names begin with what stands there, it is as it stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flag<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
    takes_value: bool,
}

impl Table {
    fn long<'a>(&self, body: &'a [u8]) -> Flag<'a> {
        let end = body.iter().position(|&byte| byte == b'=');
        let mut name = &body[..end.unwrap_or(body.len())];
        let value = end.map(|end| OsStr::from_bytes(&body[end + 1..]));
        let mut takes_value = knows(self.with_value, name);
        if !takes_value && !name.is_empty() {
            let begun = |known: &&&str| known.as_bytes().starts_with(name);
            let mut names = self.crun.iter().filter(begun);
            if let Some(first) = names.next() {
                takes_value = true;
                if names.next().is_none() {
                    name = first.as_bytes();
                }
            }
        }
        Flag { name, value, takes_value }
    }

    /// Letters behind one dash, of which one takes a value: the rest, or the next argument.
    fn letters<'a>(&self, body: &'a [u8]) -> Option<Flag<'a>> {
        let at = body.iter().position(|letter| !self.switches.contains(letter))?;
        let (name, rest) = (&body[at..=at], &body[at + 1..]);
        let value = (!rest.is_empty()).then(|| OsStr::from_bytes(rest));
        knows(self.with_value, name).then_some(Flag { name, value, takes_value: true })
    }
}

#[cfg(test)]
mod tests;
