//! containerd's configuration as containerd puts it together: the main file, then what it imports,
//! breadth first (`LoadConfig` of `cmd/containerd/server/config`).
//!
//! How a later file's table of a plugin meets an earlier one's depends on the version: up to 1.7 it
//! takes its place as a whole, since 2.0 the tables are merged key by key, lists replaced. A value
//! is never merged with the one below. The file's own list of imports counts, not the default one
//! of `containerd config default`, and files match an import in the order of their names.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use toml_edit::{DocumentMut, TableLike, Value};

use super::super::tables::{TomlError, parse};
use super::ContainerdError;

/// The table of NRI's plugin, by the same name in every version of configuration files.
pub const TABLE: &str = "io.containerd.nri.v1.nri";

/// Imports beyond this number are not followed; containerd itself only stops at circles.
const MOST_FILES: usize = 256;

/// A configuration file.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path as containerd knows it.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// The same, parsed.
    pub document: DocumentMut,
}

impl File {
    /// Parses a file.
    ///
    /// # Errors
    /// It is no TOML.
    pub fn parse(path: PathBuf, text: String) -> Result<Self, ContainerdError> {
        match parse(&text) {
            Ok(document) => Ok(Self { path, text, document }),
            Err(TomlError { line, message }) => Err(ContainerdError::Parse { path, line, message }),
        }
    }

    /// `version` of the file; 1 where it has none.
    pub fn version(&self) -> i64 {
        self.document.get("version").and_then(|item| item.as_integer()).unwrap_or(1)
    }

    /// Its imports, as they are written.
    pub fn imports(&self) -> Vec<&str> {
        let list = self.document.get("imports").and_then(|item| item.as_array());
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Its table of NRI's plugin.
    pub fn nri(&self) -> Option<&dyn TableLike> {
        let plugins = self.document.get("plugins")?.as_table_like()?;
        plugins.get(TABLE)?.as_table_like()
    }
}

/// How tables of plugins in several files come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The last file's table counts as a whole (containerd 1.x).
    Whole,
    /// Key by key (containerd 2.x).
    Deep,
}

/// The node's files, as they are or as they would be.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    /// Turns a path of the node into the file to read.
    pub locate: &'a dyn Fn(&Path) -> PathBuf,
    /// A file that is to be there, with its text.
    pub with: Option<(&'a Path, &'a str)>,
}

impl Tree<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        match self.with {
            Some((with, text)) if with == path => Ok(text.to_owned()),
            _ => fs::read_to_string((self.locate)(path)),
        }
    }

    /// Names in a folder, sorted.
    fn names(&self, folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir((self.locate)(folder)).into_iter().flatten().flatten();
        let with = self.with.map(|(path, _)| path).filter(|path| path.parent() == Some(folder));
        let with = with.and_then(|path| path.file_name()).map(ToOwned::to_owned);
        entries
            .map(|entry| entry.file_name())
            .chain(with)
            .filter_map(|name| name.into_string().ok())
            .collect()
    }
}

impl std::fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("with", &self.with).finish_non_exhaustive()
    }
}

/// Reads the main file and everything that it imports, in the order in which containerd does. A
/// missing main file is no error: there are no files then.
///
/// # Errors
/// A file cannot be read or is no TOML.
pub fn load(main: &Path, tree: Tree<'_>, merge: Merge) -> Result<Vec<File>, ContainerdError> {
    let mut files: Vec<File> = Vec::new();
    let mut pending = VecDeque::from([main.to_owned()]);
    while let Some(path) = pending.pop_front() {
        if files.iter().any(|file| file.path == path) {
            continue;
        }
        if files.len() == MOST_FILES {
            return Err(ContainerdError::Imports { path: main.to_owned() });
        }
        let text = match tree.read(&path) {
            Ok(text) => text,
            Err(error) if files.is_empty() && error.kind() == io::ErrorKind::NotFound => {
                return Ok(files);
            }
            Err(source) => return Err(ContainerdError::Read { path, source }),
        };
        let file = File::parse(path, text)?;
        for import in file.imports() {
            pending.extend(expand(import, &file.path, tree, merge));
        }
        files.push(file);
    }
    Ok(files)
}

/// The path of an import of that file; `None` for a pattern that this containerd looks up in the
/// folder that it was started in, which is not known.
pub fn resolve(import: &str, file: &Path, merge: Merge) -> Option<PathBuf> {
    if merge == Merge::Whole && import.contains('*') && !import.starts_with('/') {
        return None;
    }
    let folder = file.parent().unwrap_or_else(|| Path::new("/"));
    // `.` and `..` are taken out as Go's filepath.Clean does.
    let mut clean = PathBuf::new();
    for part in folder.join(import).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = clean.pop(),
            part => clean.push(part),
        }
    }
    Some(clean)
}

fn expand(import: &str, file: &Path, tree: Tree<'_>, merge: Merge) -> Vec<PathBuf> {
    let Some(path) = resolve(import, file, merge) else { return Vec::new() };
    let (Some(folder), Some(pattern)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Vec::new();
    };
    if !pattern.contains('*') {
        return vec![path];
    }
    let names = tree.names(folder);
    names.iter().filter(|name| glob(pattern, name)).map(|name| folder.join(name)).collect()
}

/// Whether a name matches a pattern: `*` for any run of characters, `?` for one.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Where the last `*` was, and how much of the name it has taken.
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let rest = name.clone();
        match (pattern.next(), name.next()) {
            (Some('*'), _) => {
                star = Some((pattern.clone(), rest.clone()));
                name = rest;
            }
            (None, None) => return true,
            (Some(p), Some(n)) if p == n || p == '?' => {}
            _ => {
                let Some((after, taken)) = &mut star else { return false };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, name) = (after.clone(), taken.clone());
            }
        }
    }
}

/// What NRI's settings come to; `None` where no file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// NRI is off.
    pub disable: Option<bool>,
    /// There is no socket for plugins that come from outside.
    pub disable_connections: Option<bool>,
    /// The socket.
    pub socket_path: Option<String>,
    /// Longest time for an answer, as written (`2s`).
    pub request_timeout: Option<String>,
    /// Longest time from connection to registration, as written.
    pub registration_timeout: Option<String>,
    /// Folder of plugins that the runtime starts.
    pub plugin_path: Option<String>,
    /// Folder of their configurations.
    pub plugin_config_path: Option<String>,
    /// The default validator is on.
    pub validator: Option<bool>,
    /// Plugins without which no container is created.
    pub required_plugins: Vec<String>,
    /// The annotation by which a pod goes without them.
    pub tolerate: Option<String>,
    /// What the validator is told to reject besides (`reject_…`).
    pub rejects: Vec<String>,
}

/// What the settings of those files come to, in the order in which they are read.
pub fn settings<'a>(files: impl IntoIterator<Item = &'a File>, merge: Merge) -> Settings {
    let mut settings = Settings::default();
    for table in files.into_iter().filter_map(File::nri) {
        if merge == Merge::Whole {
            settings = Settings::default();
        }
        settings.read(table);
    }
    settings
}

impl Settings {
    fn read(&mut self, table: &dyn TableLike) {
        fn set<T>(slot: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *slot = value;
            }
        }
        let boolean = |table: &dyn TableLike, key: &str| table.get(key)?.as_bool();
        let text = |table: &dyn TableLike, key: &str| table.get(key)?.as_str().map(str::to_owned);
        set(&mut self.disable, boolean(table, "disable"));
        set(&mut self.disable_connections, boolean(table, "disable_connections"));
        set(&mut self.socket_path, text(table, "socket_path"));
        set(&mut self.request_timeout, text(table, "plugin_request_timeout"));
        set(&mut self.registration_timeout, text(table, "plugin_registration_timeout"));
        set(&mut self.plugin_path, text(table, "plugin_path"));
        set(&mut self.plugin_config_path, text(table, "plugin_config_path"));
        let Some(validator) = table.get("default_validator").and_then(|item| item.as_table_like())
        else {
            return;
        };
        set(&mut self.validator, boolean(validator, "enable"));
        set(&mut self.tolerate, text(validator, "tolerate_missing_plugins_annotation"));
        if let Some(list) = validator.get("required_plugins").and_then(|item| item.as_array()) {
            self.required_plugins =
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        for (key, item) in validator.iter().filter(|(key, _)| key.starts_with("reject_")) {
            self.rejects.retain(|known| known != key);
            if item.as_bool() == Some(true) {
                self.rejects.push(key.to_owned());
            }
        }
    }
}

/// Settings of NRI's in tables where nobody looks, by their path in the file: a mistake that people
/// make, since containerd says nothing about them.
pub fn stray(file: &File) -> Vec<String> {
    const ANYWHERE: [&str; 4] = [
        "plugin_request_timeout",
        "plugin_registration_timeout",
        "disable_connections",
        "plugin_config_path",
    ];
    const AT_THE_TOP: [&str; 4] = ["disable", "plugin_path", "socket_path", "default_validator"];
    fn walk(table: &dyn TableLike, path: &mut Vec<String>, found: &mut Vec<String>) {
        if path.iter().map(String::as_str).eq(["plugins", TABLE]) {
            return;
        }
        for (key, item) in table.iter() {
            path.push(key.to_owned());
            if ANYWHERE.contains(&key) || (path.len() == 1 && AT_THE_TOP.contains(&key)) {
                found.push(path.join("."));
            } else if let Some(inner) = item.as_table_like() {
                walk(inner, path, found);
            }
            path.pop();
        }
    }
    let mut found = Vec::new();
    walk(file.document.as_table(), &mut Vec::new(), &mut found);
    found
}
