//! Registration with CRI-O: a drop-in with a runtime that is the wrapper, a copy of the one that it
//! derives from. CRI-O hands a pod's annotations to its containers as they are.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::change::{Content, Plan};
use super::drop_ins::{FileError, load, sorted};
use super::record::{ApplyError, locate, replace};
use super::tables::{get, lay, list, plain, put, table, table_at, text_at, texts_at};
use super::{NAME, WRAPPER};
use crate::roots::Roots;

/// Our drop-in. Later files win.
const DROP_IN: &str = "99-rdma-ctk.conf";
/// CRI-O's default runtime, where no file says: the second up to 1.30.
const RUNTIMES: [&str; 2] = ["crun", "runc"];
/// CRI-O's default for `hooks_dir`.
const HOOKS: &str = "/usr/share/containers/oci/hooks.d";

/// CRI-O's files cannot be understood, or must not be changed by us.
#[derive(Debug, thiserror::Error)]
pub enum CrioError {
    /// A file cannot be read, or is no TOML.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file of a hook, or a folder of them, cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No such entry among its runtimes.
    #[error("CRI-O has no runtime {name:?} to derive from (have: {known})")]
    NoRuntime {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// It is no OCI runtime.
    #[error("CRI-O's runtime {name:?} is of the type {kind:?}; only an OCI runtime can be wrapped")]
    NotOci {
        /// The entry.
        name: String,
        /// Its type.
        kind: String,
    },
    /// CRI-O does not start with such a hook.
    #[error("{}: has the stage precreate, with which CRI-O does not start; name another folder", path.display())]
    Precreate {
        /// The file of the hook.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder with `crio.conf` and `crio.conf.d`, as CRI-O knows it.
    pub folder: PathBuf,
    /// Name of the entry: the RuntimeClass handler.
    pub name: String,
    /// The wrapper.
    pub program: String,
    /// The entry to derive from; `None`: the default one.
    pub from: Option<String>,
    /// Make it the default.
    pub default: bool,
    /// A folder of hooks to add.
    pub hooks: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            folder: "/etc/crio".into(),
            name: NAME.to_owned(),
            program: WRAPPER.to_owned(),
            from: None,
            default: false,
            hooks: None,
        }
    }
}

/// What CRI-O's files come to: those whose drop-in's name `counts`.
fn merged(
    roots: &Roots,
    folder: &Path,
    counts: impl Fn(&OsStr) -> bool,
) -> Result<Table, CrioError> {
    let folder = locate(roots, folder);
    let mut files = vec![folder.join("crio.conf")];
    files.extend(sorted(&folder.join("crio.conf.d"), counts));
    let mut all = Table::new();
    for (_, document) in load(files)? {
        lay_file(&mut all, document.as_table());
    }
    Ok(all)
}

/// Lays a file over the ones before. A runtime's table is not merged: CRI-O takes the last one.
fn lay_file(all: &mut Table, file: &dyn TableLike) {
    const PATH: [&str; 3] = ["crio", "runtime", "runtimes"];
    let runtimes = table_at(file, &PATH);
    for (name, _) in runtimes.into_iter().flat_map(TableLike::iter) {
        let mut at: Option<&mut dyn TableLike> = Some(all);
        for key in PATH {
            at = at.and_then(|table| table.get_mut(key)).and_then(Item::as_table_like_mut);
        }
        if let Some(table) = at {
            table.remove(name);
        }
    }
    lay(all, file);
}

/// What has to change. Reads, and changes nothing.
///
/// # Errors
/// CRI-O's files cannot be understood, or CRI-O would not start afterwards.
pub fn plan(roots: &Roots, options: &Options) -> Result<Plan, CrioError> {
    let now = merged(roots, &options.folder, |name| name != DROP_IN)?;
    let runtime = ["crio", "runtime"];
    let runtime = table_at(&now, &runtime);
    let default = runtime.and_then(|table| text_at(table, &["default_runtime"]));
    let known = runtime.and_then(|table| table_at(table, &["runtimes"]));
    let base = match (&options.from, default) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) if name != options.name => name.to_owned(),
        // CRI-O's own: the one that is there.
        (None, _) => {
            let named =
                RUNTIMES.iter().find(|name| known.is_some_and(|table| table.contains_key(name)));
            (*named.unwrap_or(&RUNTIMES[0])).to_owned()
        }
    };
    let mut entry = Table::new();
    match known.and_then(|table| table.get(&base)).and_then(Item::as_table_like) {
        Some(table) => lay(&mut entry, table),
        // What CRI-O knows without any file.
        None if RUNTIMES.contains(&base.as_str()) => {
            put(&mut entry, "runtime_root", Some(format!("/run/{base}")));
        }
        None => {
            let known = known.map(|table| table.iter().map(|(name, _)| name.to_owned()));
            let known = known
                .map_or_else(|| RUNTIMES.join(", "), |names| names.collect::<Vec<_>>().join(", "));
            return Err(CrioError::NoRuntime { name: base, known });
        }
    }
    let kind = text_at(&entry, &["runtime_type"]).unwrap_or_default().to_owned();
    if !matches!(kind.as_str(), "" | "oci" | "pod") {
        return Err(CrioError::NotOci { name: base, kind });
    }
    let real =
        text_at(&entry, &["runtime_path"]).filter(|path| !path.is_empty()).map(str::to_owned);
    // It would put the other's path in the place of ours.
    entry.remove("inherit_default_runtime");
    put(&mut entry, "runtime_path", Some(options.program.as_str()));
    if kind.is_empty() {
        put(&mut entry, "runtime_type", Some("oci"));
    }
    let hooks = match &options.hooks {
        None => None,
        Some(folder) => {
            no_precreate(&locate(roots, folder))?;
            // What comes after ours replaces it anyway.
            let before = merged(roots, &options.folder, |name| name < OsStr::new(DROP_IN))?;
            let present = texts_at(&before, &["crio", "runtime", "hooks_dir"]);
            let mut all = present.unwrap_or_else(|| vec![HOOKS.to_owned()]);
            let folder = folder.display().to_string();
            if !all.contains(&folder) {
                all.push(folder);
            }
            Some(all)
        }
    };
    let mut plan = Plan::default();
    let path = locate(roots, &options.folder).join("crio.conf.d").join(DROP_IN);
    let text = drop_in(options, &entry, hooks.as_deref());
    replace(&path, Some(Content::Text(text)), &mut plan)?;
    later(roots, options, &mut plan)?;
    advise(options, &base, real, &mut plan);
    Ok(plan)
}

fn drop_in(options: &Options, entry: &Table, hooks: Option<&[String]>) -> String {
    let mut document = DocumentMut::new();
    let direct = options.default || hooks.is_some();
    if let Some(crio) = table(document.as_table_mut(), "crio", true)
        && let Some(runtime) = table(crio, "runtime", !direct)
    {
        put(runtime, "default_runtime", options.default.then_some(options.name.as_str()));
        put(runtime, "hooks_dir", hooks.map(list));
        if let Some(runtimes) = table(runtime, "runtimes", true) {
            runtimes.insert(&options.name, plain(&Item::Table(entry.clone())));
        }
    }
    format!("# Made by `rdma-ctk configure cri-o`; `--undo` takes it away.\n{document}")
}

/// Says when a file that is read after ours takes something back.
fn later(roots: &Roots, options: &Options, plan: &mut Plan) -> Result<(), CrioError> {
    let folder = locate(roots, &options.folder).join("crio.conf.d");
    for (path, document) in load(sorted(&folder, |name| name > DROP_IN))? {
        let ours = ["default_runtime", "hooks_dir"];
        for key in ours.iter().filter(|key| match **key {
            "default_runtime" => options.default,
            _ => options.hooks.is_some(),
        }) {
            if get(document.as_table(), &["crio", "runtime", key]).is_some() {
                plan.notes.push(format!(
                    "{}: is read after {DROP_IN} and sets {key} too: its value counts",
                    path.display()
                ));
            }
        }
    }
    Ok(())
}

/// Refuses a folder of hooks with which CRI-O does not start.
fn no_precreate(folder: &Path) -> Result<(), CrioError> {
    match precreate(folder)?.into_iter().next() {
        Some(path) => Err(CrioError::Precreate { path }),
        None => Ok(()),
    }
}

/// Files with the stage `precreate` in the folders of hooks that CRI-O reads: for the check-up.
///
/// # Errors
/// CRI-O's files cannot be read.
pub fn with_precreate(roots: &Roots) -> Result<Vec<PathBuf>, CrioError> {
    let folder = Options::default().folder;
    if !locate(roots, &folder).is_dir() {
        return Ok(Vec::new());
    }
    let now = merged(roots, &folder, |_| true)?;
    let folders = texts_at(&now, &["crio", "runtime", "hooks_dir"]);
    let folders = folders.unwrap_or_else(|| vec![HOOKS.to_owned()]);
    let mut found = Vec::new();
    for folder in folders {
        let folder = locate(roots, Path::new(&folder));
        // CRI-O passes over folders that are not there, too.
        if folder.is_dir() {
            found.extend(precreate(&folder)?);
        }
    }
    Ok(found)
}

/// The hooks of a folder that have that stage.
fn precreate(folder: &Path) -> Result<Vec<PathBuf>, CrioError> {
    let entries = fs::read_dir(folder)
        .map_err(|source| CrioError::Read { path: folder.to_owned(), source })?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let text = fs::read_to_string(&path)
            .map_err(|source| CrioError::Read { path: path.clone(), source })?;
        let hook: Value = serde_json::from_str(&text).unwrap_or_default();
        let stages = hook["stages"].as_array().or_else(|| hook["stage"].as_array());
        if stages.into_iter().flatten().any(|stage| stage == "precreate") {
            found.push(path);
        }
    }
    Ok(found)
}

fn advise(options: &Options, base: &str, real: Option<String>, plan: &mut Plan) {
    let mut note = |text: String| plan.notes.push(text);
    if plan.files.is_empty() {
        note(format!("nothing to change: CRI-O has the runtime {}", options.name));
    } else {
        note("restart CRI-O (`systemctl restart crio`); containers that run go on".into());
    }
    if let Some(real) = real.filter(|real| *real != options.program) {
        note(format!(
            "{base} is {real}: for the wrapper to end in that, and not in the first of runc, crun and \
             youki, set runtime = {real:?} in [wrapper] of /etc/rdma-ctk/config.toml"
        ));
    }
    if !options.default {
        note(format!(
            "a pod takes it by a RuntimeClass with this handler: `rdma-ctk configure \
             runtime-class --name {} | kubectl apply -f -`, and runtimeClassName: {0}",
            options.name
        ));
    }
}

/// The program of a runtime, and whether it is the default: for the check-up.
///
/// # Errors
/// CRI-O's files cannot be read.
pub fn entry(roots: &Roots, name: &str) -> Result<Option<(String, bool)>, CrioError> {
    let now = merged(roots, &Options::default().folder, |_| true)?;
    let default = text_at(&now, &["crio", "runtime", "default_runtime"]) == Some(name);
    let program = text_at(&now, &["crio", "runtime", "runtimes", name, "runtime_path"]);
    Ok(program.map(|program| (program.to_owned(), default)))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::tests::Fixture;
    use super::super::{Owner, apply};
    use super::*;

    const PACKAGED: &str = "[crio.image]\nsignature_policy = \"/etc/crio/policy.json\"\n\n\
        [crio.runtime]\ndefault_runtime = \"crun\"\n\n[crio.runtime.runtimes.crun]\n\
        # where the package puts it\nruntime_path = \"/usr/libexec/crio/crun\"\n\
        runtime_root = \"/run/crun\"\nmonitor_path = \"/usr/libexec/crio/conmon\"\n\
        allowed_annotations = [\n    \"io.containers.trace-syscall\",\n]\n";

    fn shown(fixture: &Fixture, options: &Options) -> String {
        fixture.shown(&plan(&fixture.roots, options).unwrap())
    }

    #[test]
    fn the_entry_is_a_copy_of_the_default_one() {
        let fixture = Fixture::new(&[("etc/crio/crio.conf.d/10-crio.conf", PACKAGED)]);
        assert_snapshot!(shown(&fixture, &Options::default()));
        fixture.there_and_back(Owner::CriO, |roots| plan(roots, &Options::default()).unwrap());
    }

    #[test]
    fn default_and_hooks_are_set_where_asked_for() {
        let fixture = Fixture::new(&[
            ("etc/crio/crio.conf", "[crio.runtime]\nhooks_dir = ['/etc/hooks.d']\n"),
            ("etc/crio/crio.conf.d/99-z.conf", "[crio.runtime]\nhooks_dir = []\n"),
            ("etc/our-hooks/a.json", "{\"stages\": [\"createRuntime\"]}"),
        ]);
        let hooks = Some("/etc/our-hooks".into());
        let options = Options { default: true, hooks, ..Options::default() };
        assert_snapshot!(shown(&fixture, &options));
    }

    #[test]
    fn a_folder_with_precreate_is_refused() {
        let fixture =
            Fixture::new(&[("etc/h/a.json", "{\"version\":\"1.0.0\",\"stages\":[\"precreate\"]}")]);
        let options = Options { hooks: Some("/etc/h".into()), ..Options::default() };
        let error = plan(&fixture.roots, &options).unwrap_err();
        assert!(matches!(error, CrioError::Precreate { .. }), "{error}");
    }

    #[test]
    fn what_cannot_be_wrapped_is_named() {
        for (text, from, part) in [
            ("", Some("kata"), "no runtime \"kata\""),
            ("[crio.runtime.runtimes.kata]\nruntime_type = 'vm'\n", Some("kata"), "type \"vm\""),
            ("[crio", None, "crio.conf: line 1"),
        ] {
            let fixture = Fixture::new(&[("etc/crio/crio.conf", text)]);
            let options = Options { from: from.map(str::to_owned), ..Options::default() };
            let error = plan(&fixture.roots, &options).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_entry_is_told() {
        let fixture = Fixture::new(&[]);
        assert_eq!(entry(&fixture.roots, "rdma").unwrap(), None);
        let made = plan(&fixture.roots, &Options::default()).unwrap();
        apply(&fixture.roots, Owner::CriO, &made).unwrap();
        assert_eq!(entry(&fixture.roots, "rdma").unwrap(), Some((WRAPPER.to_owned(), false)));
    }
}
