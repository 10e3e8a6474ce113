//! containerd as it is configured on a node, and which file of its to change.

use std::path::{Path, PathBuf};

use super::edit::{self, Wanted};
use super::merged::{File, Merge, Settings, TABLE, Tree, glob, load, resolve, settings, stray};
use super::version::Version;
use super::{ContainerdError, Form, Options, PLUGIN, TOLERATE};

/// Our file among the imported ones. It is read late, since later files win.
pub(super) const DROP_IN: &str = "99-rdma-ctk.toml";
/// Who turns NRI's settings into nothing when listed in `disabled_plugins`.
const NEEDED: [&str; 3] = [TABLE, "io.containerd.grpc.v1.cri", "cri"];

/// containerd's configuration on this node.
#[derive(Debug)]
pub(super) struct Node {
    /// The main file.
    pub main: PathBuf,
    /// Everything that is read, without our own file; empty: there is no main file.
    pub files: Vec<File>,
    /// Our own file, where an import of the main file reads it.
    pub drop_in: Option<PathBuf>,
    /// What is known of the version: what was told, else what the main file's version implies.
    pub version: Option<Version>,
    pub merge: Merge,
    /// Without our own file.
    pub settings: Settings,
}

impl Node {
    /// Reads it all; `ours` is the name of the drop-in that is not to count.
    pub fn read(
        main: &Path,
        version: Option<Version>,
        ours: &str,
        locate: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<Self, ContainerdError> {
        let main = main.to_owned();
        let tree = Tree { locate, with: None };
        let implied = |files: &[File]| files.first().and_then(|f| Version::at_least(f.version()));
        let version = match version {
            Some(version) => Some(version),
            // How imports are followed depends on the version, the main file does not.
            None => implied(&load(&main, tree, Merge::Whole)?),
        };
        let deep = version.is_some_and(|version| version >= Version::DEEP_MERGE);
        let merge = if deep { Merge::Deep } else { Merge::Whole };
        let mut files = load(&main, tree, merge)?;
        if let Some(file) = files.first() {
            let says_something = !file.document.as_table().is_empty();
            if says_something && file.version() < 2 {
                let (path, version) = (file.path.clone(), file.version());
                return Err(ContainerdError::OldConfig { path, version });
            }
        }
        let drop_in = files.first().and_then(|main| drop_in_path(main, merge, ours));
        files.retain(|file| Some(&file.path) != drop_in.as_ref());
        let settings = settings(&files, merge);
        Ok(Self { main, files, drop_in, version, merge, settings })
    }

    fn on_by_default(&self) -> bool {
        self.version.is_some_and(|version| version >= Version::NRI_ON)
    }

    fn has_validator(&self) -> bool {
        self.version.is_some_and(|version| version >= Version::VALIDATOR)
    }

    /// Settings that are not as they should be, each with the value that it should have.
    pub fn wanted(&self, options: &Options) -> Wanted {
        let now = &self.settings;
        let off = now.disable.unwrap_or_else(|| !self.on_by_default());
        let closed = now.disable_connections == Some(true) && options.form == Form::Service;
        let mut wanted = Wanted {
            disable: off.then_some(false),
            disable_connections: closed.then_some(false),
            ..Wanted::default()
        };
        if options.require && self.has_validator() {
            wanted.validator = (now.validator != Some(true)).then_some(true);
            let named = format!("{}-{PLUGIN}", options.index);
            if !now.required_plugins.iter().any(|name| *name == PLUGIN || *name == named) {
                let mut list = now.required_plugins.clone();
                list.push(PLUGIN.to_owned());
                wanted.required_plugins = Some(list);
            }
            let tolerable = now.tolerate.as_deref().is_some_and(|key| !key.is_empty());
            wanted.tolerate = (!tolerable).then(|| TOLERATE.to_owned());
        }
        wanted
    }

    /// The file to change and its new text: the least of the changes that have the effect.
    pub fn change(
        &self,
        wanted: &Wanted,
        locate: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<(PathBuf, String), ContainerdError> {
        let Some(main) = self.files.first() else {
            let text = edit::first("", self.config_version(), wanted)?;
            return Ok((self.main.clone(), text));
        };
        let last = self.files.iter().rev().find(|file| file.nri().is_some());
        // A table that counts as a whole must not be in two files.
        let alone = self.merge == Merge::Deep || last.is_none();
        if let Some(path) = self.drop_in.as_ref().filter(|_| alone) {
            let text = edit::drop_in(main.version(), wanted);
            if self.settles(path, &text, wanted, locate)? {
                return Ok((path.clone(), text));
            }
        }
        // The last file with the table has the last word.
        let file = last.unwrap_or(main);
        if generated(&file.text) {
            return Err(ContainerdError::Generated { path: file.path.clone() });
        }
        let text = if file.document.as_table().is_empty() {
            edit::first(&file.text, self.config_version(), wanted)?
        } else {
            edit::set(file, wanted)?
        };
        Ok((file.path.clone(), text))
    }

    /// Whether the settings come to what is wanted when that text is in that file.
    fn settles(
        &self,
        path: &Path,
        text: &str,
        wanted: &Wanted,
        locate: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<bool, ContainerdError> {
        let files = load(&self.main, Tree { locate, with: Some((path, text)) }, self.merge)?;
        let then = settings(&files, self.merge);
        let same = |wanted: Option<bool>, then: Option<bool>| wanted.is_none() || wanted == then;
        Ok(same(wanted.disable, then.disable)
            && same(wanted.disable_connections, then.disable_connections)
            && same(wanted.validator, then.validator)
            && wanted.required_plugins.as_ref().is_none_or(|list| *list == then.required_plugins)
            && (wanted.tolerate.is_none() || wanted.tolerate == then.tolerate))
    }

    /// The version of a main file that is to be written.
    pub fn config_version(&self) -> i64 {
        self.version.map_or(2, Version::config_version)
    }

    /// Whether `disabled_plugins` takes away what we need.
    pub fn disabled(&self) -> bool {
        self.files.iter().any(|file| disabled(file).next().is_some())
    }

    /// What looks like a mistake in the files.
    pub fn noticed(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for file in &self.files {
            let path = file.path.display();
            for key in stray(file) {
                notes.push(format!(
                    "{path}: {key} is not in [plugins.\"{TABLE}\"], and containerd ignores it there"
                ));
            }
            for plugin in disabled(file) {
                notes.push(format!(
                    "{path}: disabled_plugins takes {plugin} away, and with it NRI; take it off \
                     the list"
                ));
            }
        }
        notes
    }
}

/// What `disabled_plugins` of a file takes away of what we need.
fn disabled(file: &File) -> impl Iterator<Item = &str> {
    let list = file.document.get("disabled_plugins").and_then(|item| item.as_array());
    let list = list.into_iter().flatten().filter_map(|plugin| plugin.as_str());
    list.filter(|plugin| NEEDED.contains(plugin))
}

/// Where a file of ours is read by an import of the main file.
fn drop_in_path(main: &File, merge: Merge, ours: &str) -> Option<PathBuf> {
    main.imports().into_iter().rev().find_map(|import| {
        let pattern = resolve(import, &main.path, merge)?;
        let (folder, name) = (pattern.parent()?, pattern.file_name()?.to_str()?);
        let matches = import.contains('*') && glob(name, ours);
        let plain = !folder.to_str()?.contains('*');
        (matches && plain).then(|| folder.join(ours))
    })
}

/// Whether the file says in its first lines that somebody generates it.
pub(super) fn generated(text: &str) -> bool {
    let head = text.lines().take(10).filter(|line| line.trim_start().starts_with('#'));
    head.map(str::to_ascii_lowercase).any(|line| line.contains("do not edit"))
}
