//! Registration with containerd: NRI switched on and open to us, and where containerd can, its own
//! validator told that no container is to be created without us.

mod advice;
mod edit;
mod merged;
mod node;
mod runtime;
mod version;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::change::{Content, Plan};
use super::record::{locate, replace};
use crate::roots::Roots;
use advice::advise;
use node::{DROP_IN, Node};

pub use edit::Wanted;
pub use merged::{File, Merge, Settings, TABLE, Tree, glob, load, resolve, settings, stray};
pub use runtime::{RuntimeOptions, entry, runtime_plan};
pub use version::{Version, VersionError};

/// The plugin's name, by which it registers and is required.
const PLUGIN: &str = "rdma-ctk";
/// The annotation by which a pod lets the validator start it without us; among our keys.
pub const TOLERATE: &str = "tolerate-missing.rdma-ctk.io";
/// containerd's default for `plugin_path`.
const PLUGIN_PATH: &str = "/opt/nri/plugins";

/// The configuration cannot be understood, or must not be changed by us.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no TOML.
    #[error("{}: line {line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// Imports without end.
    #[error("{}: imports more files than can be followed", path.display())]
    Imports {
        /// The main file.
        path: PathBuf,
    },
    /// A value stands where a table is to be.
    #[error("{}: {key:?} is no table", path.display())]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// The file is of version 1, in which plugins have other names.
    #[error(
        "{}: configuration version {version}; version 2 is the first that can be changed here. `containerd \
         config migrate` prints the file in the present version",
        path.display()
    )]
    OldConfig {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: i64,
    },
    /// No such entry among containerd's runtimes.
    #[error("containerd has no runtime {name:?} to derive from (have: {known})")]
    NoRuntime {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Its shim does not take another OCI runtime.
    #[error(
        "containerd's runtime {name:?} is of the type {kind:?}, which runs no OCI runtime of ours: \
         only io.containerd.runc.v2 does; name another with --from"
    )]
    NotRunc {
        /// The entry.
        name: String,
        /// Its type.
        kind: String,
    },
    /// This containerd has no NRI, or one that carries no limits.
    #[error(
        "containerd {version} cannot raise the locked-memory limit through NRI: 1.7.7 is the first \
         that can; `rdma-ctk configure containerd --runtime` works with older ones"
    )]
    TooOld {
        /// Its version.
        version: Version,
    },
    /// Somebody generates the file, and would write over the change.
    #[error(
        "{}: says that it is generated and not to be edited; make its template import \
         /etc/containerd/conf.d/*.toml, or name another file with --config",
        path.display()
    )]
    Generated {
        /// The file.
        path: PathBuf,
    },
    /// `99` or another index that is none.
    #[error("plugin index {0:?}: two digits are wanted, such as 10")]
    Index(String),
    /// What is there cannot be looked at.
    #[error(transparent)]
    Apply(#[from] super::record::ApplyError),
}

impl ContainerdError {
    /// With the path of the file itself where it has the path that containerd knows.
    fn located(mut self, roots: &Roots) -> Self {
        match &mut self {
            Self::Read { path, .. }
            | Self::Parse { path, .. }
            | Self::Imports { path }
            | Self::NoTable { path, .. }
            | Self::OldConfig { path, .. }
            | Self::Generated { path } => *path = locate(roots, path),
            Self::NoRuntime { .. }
            | Self::NotRunc { .. }
            | Self::TooOld { .. }
            | Self::Index(_)
            | Self::Apply(_) => {}
        }
        self
    }
}

/// How the plugin is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// By systemd, or as a DaemonSet; it connects to the socket.
    #[default]
    Service,
    /// By containerd, from its folder of plugins.
    Plugin,
}

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// containerd's main file, as containerd knows it.
    pub config: PathBuf,
    /// containerd's version; `None` where it is not known.
    pub version: Option<Version>,
    /// How the plugin is started.
    pub form: Form,
    /// Its place among plugins: two digits.
    pub index: String,
    /// The program, for the link in the folder of plugins.
    pub program: PathBuf,
    /// Whether the validator is to be told that no container is created without us.
    pub require: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: "/etc/containerd/config.toml".into(),
            version: None,
            form: Form::Service,
            index: "10".to_owned(),
            program: "/usr/bin/rdma-ctk".into(),
            require: true,
        }
    }
}

/// What the containerd of this node says of its version; `None` where it cannot be asked.
pub fn installed_version() -> Option<Version> {
    let output = Command::new("containerd").arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).parse().ok()
}

/// What has to change so that containerd takes us as a plugin. Reads, and changes nothing.
///
/// # Errors
/// containerd's files cannot be understood, or must not be changed by us.
pub fn plan(roots: &Roots, options: &Options) -> Result<Plan, ContainerdError> {
    make(roots, options).map_err(|error| error.located(roots))
}

fn make(roots: &Roots, options: &Options) -> Result<Plan, ContainerdError> {
    if options.index.len() != 2 || !options.index.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ContainerdError::Index(options.index.clone()));
    }
    if let Some(version) = options.version.filter(|version| *version < Version::LIMITS) {
        return Err(ContainerdError::TooOld { version });
    }
    let locate = |path: &Path| locate(roots, path);
    let node = Node::read(&options.config, options.version, DROP_IN, &locate)?;
    let wanted = node.wanted(options);
    let mut plan = Plan { files: Vec::new(), notes: node.noticed() };
    // Where our own file is not the place any more it goes.
    let changed = if wanted.is_nothing() { None } else { Some(node.change(&wanted, &locate)?) };
    let stale = node.drop_in.as_ref().filter(|path| {
        changed.as_ref().is_none_or(|(changed, _)| changed != *path) && locate(path).is_file()
    });
    if let Some(path) = stale {
        replace(&locate(path), None, &mut plan)?;
    }
    if let Some((path, text)) = changed {
        replace(&locate(&path), Some(Content::Text(text)), &mut plan)?;
    }
    links(&node, options, &locate, &mut plan)?;
    advise(&node, options, &wanted, &locate, &mut plan);
    Ok(plan)
}

/// The link by which containerd starts us, and those of ours that are not to be there.
fn links(
    node: &Node,
    options: &Options,
    locate: &dyn Fn(&Path) -> PathBuf,
    plan: &mut Plan,
) -> Result<(), ContainerdError> {
    let folder = locate(Path::new(node.settings.plugin_path.as_deref().unwrap_or(PLUGIN_PATH)));
    let ours = format!("{}-{PLUGIN}", options.index);
    let mut names: Vec<String> = match fs::read_dir(&folder) {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    let is_ours = |name: &String| {
        let index = name.strip_suffix(PLUGIN).and_then(|front| front.strip_suffix('-'));
        index.is_some_and(|index| index.len() == 2 && index.bytes().all(|b| b.is_ascii_digit()))
    };
    for name in names.iter().filter(|name| is_ours(name)) {
        let path = folder.join(name);
        let wanted = options.form == Form::Plugin && *name == ours;
        if !path.is_symlink() {
            plan.notes.push(format!(
                "{} was put there by hand, and containerd starts it; take it away if that is not \
                 meant",
                path.display()
            ));
        } else if !wanted {
            replace(&path, None, plan)?;
        }
    }
    let path = folder.join(&ours);
    if options.form == Form::Plugin && (path.is_symlink() || !path.exists()) {
        replace(&path, Some(Content::Link(options.program.clone())), plan)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
