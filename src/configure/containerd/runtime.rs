//! An entry among containerd's runtimes that starts containers by way of the wrapper.
//!
//! It is a copy of the entry that it derives from, so that everything else (cgroup driver, CNI
//! folders, base specification) is the same, with another `BinaryName`. Annotations of a pod only
//! reach the wrapper by `pod_annotations`, whose patterns are Go's `path.Match`: `*` ends at `/`.

use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table, TableLike, value};

use super::super::change::{Content, Plan};
use super::super::record::{locate, replace};
use super::super::tables::{get, lay, list, put, same, table, table_at, text_at, texts_at};
use super::super::{NAME, WRAPPER};
use super::ContainerdError;
use super::merged::{File, Merge, Tree, load};
use super::node::{Node, generated};
use super::version::Version;
use crate::roots::Roots;

/// Our file among the imported ones.
const DROP_IN: &str = "99-rdma-ctk-runtime.toml";
/// containerd's own default entry.
const RUNC: &str = "runc";
/// The shim that takes an OCI runtime by `BinaryName`.
const SHIM: &str = "io.containerd.runc.v2";
/// Annotations that the wrapper is to see: ours with and without a scope, and those of vendors
/// that are understood.
pub const ANNOTATIONS: [&str; 4] =
    ["*.rdma-ctk.io", "*.rdma-ctk.io/*", "network.alibabacloud.com/*", "k8s.volcengine.com/*"];

/// What is wanted.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// containerd's main file, as containerd knows it.
    pub config: PathBuf,
    /// containerd's version; `None` where it is not known.
    pub version: Option<Version>,
    /// Name of the entry: the RuntimeClass handler.
    pub name: String,
    /// The wrapper.
    pub program: String,
    /// The entry to derive from; `None`: the default one.
    pub from: Option<String>,
    /// Make it the default.
    pub default: bool,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            config: "/etc/containerd/config.toml".into(),
            version: None,
            name: NAME.to_owned(),
            program: WRAPPER.to_owned(),
            from: None,
            default: false,
        }
    }
}

/// The name of the CRI plugin whose `containerd` table has the runtimes, in a file of that version.
fn plugin(version: i64) -> &'static str {
    if version >= 3 { "io.containerd.cri.v1.runtime" } else { "io.containerd.grpc.v1.cri" }
}

/// The `containerd` table of a file.
fn containerd(file: &File) -> Option<&dyn TableLike> {
    table_at(file.document.as_table(), &["plugins", plugin(file.version()), "containerd"])
}

/// What the files' `containerd` tables come to.
fn merged<'a>(files: impl IntoIterator<Item = &'a File>, merge: Merge) -> Table {
    let mut all = Table::new();
    for file in files {
        let path = ["plugins", plugin(file.version())];
        // A table of a plugin that counts as a whole takes away what it does not have.
        if merge == Merge::Whole && table_at(file.document.as_table(), &path).is_some() {
            all.clear();
        }
        if let Some(table) = containerd(file) {
            lay(&mut all, table);
        }
    }
    all
}

/// The entry of that name as containerd would read it, with the programs that it starts: for the
/// check-up. `None`: there is none.
///
/// # Errors
/// containerd's files cannot be read.
pub fn entry(
    main: &Path,
    name: &str,
    merge: Merge,
    locate: &dyn Fn(&Path) -> PathBuf,
) -> Result<Option<Entry>, ContainerdError> {
    let files = load(main, Tree { locate, with: None }, merge)?;
    let all = merged(&files, merge);
    let default = text_at(&all, &["default_runtime_name"]).unwrap_or(RUNC) == name;
    Ok(table_at(&all, &["runtimes", name]).map(|entry| Entry {
        program: text_at(entry, &["options", "BinaryName"]).map(str::to_owned),
        annotations: texts_at(entry, &["pod_annotations"]).unwrap_or_default(),
        default,
    }))
}

/// An entry among containerd's runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The OCI runtime.
    pub program: Option<String>,
    /// Annotations of the pod that it is shown.
    pub annotations: Vec<String>,
    /// Containers get it that name none.
    pub default: bool,
}

/// What has to change so that containerd has the entry. Reads, and changes nothing.
///
/// # Errors
/// containerd's files cannot be understood, or must not be changed by us.
pub fn runtime_plan(roots: &Roots, options: &RuntimeOptions) -> Result<Plan, ContainerdError> {
    make(roots, options).map_err(|error| error.located(roots))
}

fn make(roots: &Roots, options: &RuntimeOptions) -> Result<Plan, ContainerdError> {
    let locate = |path: &Path| locate(roots, path);
    let node = Node::read(&options.config, options.version, DROP_IN, &locate)?;
    let mut plan = Plan::default();
    let wanted = Wanted::of(&node, options, &mut plan.notes)?;
    let now = merged(&node.files, node.merge);
    let mut changed = None;
    if !wanted.is_in(&now) {
        let (path, text) = wanted.place(&node, &locate)?;
        replace(&locate(&path), Some(Content::Text(text)), &mut plan)?;
        changed = Some(path);
    }
    let stale = node.drop_in.as_ref().filter(|path| changed.as_ref() != Some(*path));
    if let Some(path) = stale.filter(|path| locate(path).is_file()) {
        replace(&locate(path), None, &mut plan)?;
    }
    advise(options, &wanted, &mut plan);
    Ok(plan)
}

/// What is to be in the `containerd` table.
#[derive(Debug)]
struct Wanted {
    name: String,
    /// The whole entry.
    entry: Table,
    /// The default entry, where it has to be written down to stay.
    runc: Option<Table>,
    default: bool,
    /// What it derives from.
    base: String,
    /// The OCI runtime of that.
    real: Option<String>,
}

impl Wanted {
    fn of(
        node: &Node,
        options: &RuntimeOptions,
        notes: &mut Vec<String>,
    ) -> Result<Self, ContainerdError> {
        let now = merged(&node.files, node.merge);
        let default = text_at(&now, &["default_runtime_name"]).unwrap_or(RUNC);
        let base = match &options.from {
            Some(name) => name.clone(),
            // It is ours already, and was copied once.
            None if default == options.name && table_at(&now, &["runtimes", default]).is_none() => {
                RUNC.to_owned()
            }
            None => default.to_owned(),
        };
        let found = table_at(&now, &["runtimes", &base]);
        let mut entry = Table::new();
        match found {
            Some(table) => lay(&mut entry, table),
            None if base == RUNC => {}
            None => {
                let runtimes = table_at(&now, &["runtimes"]);
                let known = runtimes.map(|table| table.iter().map(|(name, _)| name.to_owned()));
                let known: Vec<String> = known.into_iter().flatten().collect();
                let known = if known.is_empty() { RUNC.to_owned() } else { known.join(", ") };
                return Err(ContainerdError::NoRuntime { name: base, known });
            }
        }
        let kind = text_at(&entry, &["runtime_type"]).unwrap_or(SHIM).to_owned();
        if kind != SHIM {
            return Err(ContainerdError::NotRunc { name: base, kind });
        }
        let real = text_at(&entry, &["options", "BinaryName"]).filter(|name| !name.is_empty());
        let real = real.map(str::to_owned);
        let systemd = get(&entry, &["options", "SystemdCgroup"]).and_then(Item::as_bool);
        // What the admin has put into an entry of that name stays, but for what makes it ours.
        if let Some(present) = table_at(&now, &["runtimes", &options.name]) {
            lay(&mut entry, present);
        }
        put(&mut entry, "runtime_type", Some(SHIM));
        let mut annotations = texts_at(&entry, &["pod_annotations"]).unwrap_or_default();
        for wanted in ANNOTATIONS {
            if !annotations.iter().any(|present| present == wanted) {
                annotations.push(wanted.to_owned());
            }
        }
        put(&mut entry, "pod_annotations", Some(list(&annotations)));
        if let Some(inner) = table(&mut entry, "options", false) {
            put(inner, "BinaryName", Some(options.program.as_str()));
            put(inner, "SystemdCgroup", systemd);
            if systemd.is_none() {
                notes.push(format!(
                    "{base} says nothing of SystemdCgroup, so {} neither: both have containerd's \
                     default",
                    options.name
                ));
            }
        }
        // Up to 1.7 a file with any runtime in it has no others (go-toml makes a new map).
        let lost = table_at(&now, &["runtimes"]).is_none() && node.merge == Merge::Whole;
        let runc = lost.then(|| Table::from_iter([("runtime_type", value(SHIM))]));
        Ok(Self {
            name: options.name.clone(),
            entry,
            runc,
            default: options.default,
            base,
            real: real.filter(|program| *program != options.program),
        })
    }

    /// Whether that table has it all: an entry may say more than ours.
    fn is_in(&self, now: &Table) -> bool {
        let named = text_at(now, &["default_runtime_name"]) == Some(&self.name);
        let has = table_at(now, &["runtimes", &self.name])
            .is_some_and(|present| covers(present, &self.entry));
        has && (named || !self.default)
    }

    /// The file to change, and its new text.
    fn place(
        &self,
        node: &Node,
        locate: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<(PathBuf, String), ContainerdError> {
        let Some(main) = node.files.first() else {
            let version = node.config_version();
            let text =
                self.set(&File::parse(node.main.clone(), format!("version = {version}\n"))?)?;
            return Ok((node.main.clone(), text));
        };
        let has_plugin = |file: &&File| {
            table_at(file.document.as_table(), &["plugins", plugin(file.version())]).is_some()
        };
        let last = node.files.iter().rev().find(has_plugin);
        // A table that counts as a whole must not be in two files.
        let alone = node.merge == Merge::Deep || last.is_none();
        if let Some(path) = node.drop_in.as_ref().filter(|_| alone) {
            let mut document = DocumentMut::new();
            document.insert("version", value(main.version()));
            let settings = self.set(&File { path: path.clone(), text: String::new(), document })?;
            let text = format!(
                "# Made by `rdma-ctk configure containerd --runtime`; `--undo` takes it away.\n\
                 {settings}"
            );
            let files = load(&node.main, Tree { locate, with: Some((path, &text)) }, node.merge)?;
            if self.is_in(&merged(&files, node.merge)) {
                return Ok((path.clone(), text));
            }
        }
        // Among files that are merged the last one that has the entry has the last word.
        let with_entry = node.files.iter().rev().find(|file| {
            containerd(file).is_some_and(|table| get(table, &["runtimes", &self.name]).is_some())
        });
        let file = with_entry.or(last).unwrap_or(main);
        if generated(&file.text) {
            return Err(ContainerdError::Generated { path: file.path.clone() });
        }
        if file.document.as_table().is_empty() {
            let head = if file.text.is_empty() || file.text.ends_with('\n') { "" } else { "\n" };
            let text = format!("{}{head}version = {}\n", file.text, node.config_version());
            let first = File::parse(file.path.clone(), text)?;
            return Ok((file.path.clone(), self.set(&first)?));
        }
        Ok((file.path.clone(), self.set(file)?))
    }

    /// The file's text with the entry in it.
    fn set(&self, file: &File) -> Result<String, ContainerdError> {
        let mut document = file.document.clone();
        let no_table =
            |key: &str| ContainerdError::NoTable { path: file.path.clone(), key: key.into() };
        let mut at: &mut dyn TableLike = document.as_table_mut();
        for key in ["plugins", plugin(file.version())] {
            at = table(at, key, true).ok_or_else(|| no_table(key))?;
        }
        at = table(at, "containerd", !self.default).ok_or_else(|| no_table("containerd"))?;
        put(at, "default_runtime_name", self.default.then_some(self.name.as_str()));
        at = table(at, "runtimes", true).ok_or_else(|| no_table("runtimes"))?;
        if let Some(runc) = &self.runc {
            let entry = table(at, RUNC, false).ok_or_else(|| no_table(RUNC))?;
            fill(entry, runc).map_err(|key| no_table(&key))?;
        }
        let entry = table(at, &self.name, false).ok_or_else(|| no_table(&self.name))?;
        fill(entry, &self.entry).map_err(|key| no_table(&key))?;
        Ok(document.to_string())
    }
}

/// Whether `present` has everything that `wanted` has.
fn covers(present: &dyn TableLike, wanted: &Table) -> bool {
    wanted.iter().all(|(key, item)| {
        let Some(there) = present.get(key) else { return false };
        match (item.as_table(), there.as_table_like()) {
            (Some(wanted), Some(there)) => covers(there, wanted),
            (None, None) => same(there, item),
            _ => false,
        }
    })
}

/// Sets everything of `from` in a table, and leaves alone what is as it should be. The key that
/// stands where a table is to be is the error.
fn fill(into: &mut dyn TableLike, from: &Table) -> Result<(), String> {
    for (key, item) in from.iter() {
        match item {
            Item::Table(inner) => {
                let table = table(into, key, false).ok_or_else(|| key.to_owned())?;
                fill(table, inner)?;
            }
            item => {
                if !into.get(key).is_some_and(|old| same(old, item)) {
                    put(into, key, item.as_value().cloned());
                }
            }
        }
    }
    Ok(())
}

fn advise(options: &RuntimeOptions, wanted: &Wanted, plan: &mut Plan) {
    let changes = !plan.files.is_empty();
    let mut note = |text: String| plan.notes.push(text);
    if changes {
        note(
            "restart containerd (`systemctl restart containerd`); containers that run go on".into(),
        );
    } else {
        note(format!("nothing to change: containerd has the runtime {}", options.name));
    }
    if let Some(real) = &wanted.real {
        note(format!(
            "{} runs {real}: for the wrapper to end in that, and not in the first of runc, crun and \
             youki, set runtime = {real:?} in [wrapper] of /etc/rdma-ctk/config.toml",
            wanted.base
        ));
    }
    if options.default {
        note(
            "every container of this node goes through the wrapper, which leaves those alone that \
             ask for nothing"
                .into(),
        );
    } else {
        note(format!(
            "a pod takes it by a RuntimeClass with this handler: `rdma-ctk configure \
             runtime-class --name {} | kubectl apply -f -`, and runtimeClassName: {0}",
            options.name
        ));
    }
}

#[cfg(test)]
mod tests;
