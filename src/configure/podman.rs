//! Registration with podman: a drop-in that adds our folder of hooks to the ones that there are,
//! and the wrapper to the runtimes. Rootless podman reads it too.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Value};

use super::change::{Content, Plan};
use super::drop_ins::{FileError, load, sorted};
use super::record::{ApplyError, locate, replace};
use super::tables::{get, list, put, table};
use super::{NAME, WRAPPER};
use crate::roots::Roots;

/// Our drop-in. Later files win.
const DROP_IN: &str = "99-rdma-ctk.conf";
/// podman's default for `hooks_dir`.
const HOOKS: &str = "/usr/share/containers/oci/hooks.d";
/// Our hooks: podman alone knows the stage `precreate`, so no engine shares the folder.
pub const OUR_HOOKS: &str = "/usr/share/rdma-ctk/hooks.d/podman";
/// podman's default for the runtimes whose errors come as JSON.
const JSON: [&str; 6] = ["crun", "runc", "kata", "runsc", "youki", "krun"];

/// podman's files cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum PodmanError {
    /// A file cannot be read, or is no TOML.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot be looked at.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the runtime.
    pub name: String,
    /// The wrapper.
    pub program: String,
    /// Make it the default.
    pub default: bool,
    /// The folder of our hooks.
    pub hooks: PathBuf,
    /// Where `/usr/share` is.
    pub share: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: NAME.to_owned(),
            program: WRAPPER.to_owned(),
            default: false,
            hooks: OUR_HOOKS.into(),
            share: "/usr/share".into(),
        }
    }
}

/// podman's configuration files, in the order in which they are read.
fn files(roots: &Roots, share: &Path) -> Result<Vec<(PathBuf, DocumentMut)>, PodmanError> {
    let etc = locate(roots, Path::new("/etc/containers"));
    let mut paths = vec![share.join("containers/containers.conf"), etc.join("containers.conf")];
    let conf = |name: &OsStr| Path::new(name).extension().is_some_and(|end| end == "conf");
    paths.extend(sorted(&etc.join("containers.conf.d"), conf));
    Ok(load(paths)?)
}

/// What a list of `[engine]` comes to. One that ends in `{append=true}` is added to those before.
fn effective<'a>(
    files: impl IntoIterator<Item = &'a (PathBuf, DocumentMut)>,
    key: &str,
    default: &[&str],
) -> Vec<String> {
    let mut all: Vec<String> = default.iter().map(|&text| text.to_owned()).collect();
    for (_, document) in files {
        let found = get(document.as_table(), &["engine", key]).and_then(|item| item.as_array());
        let Some(found) = found else { continue };
        if !appends(found) {
            all.clear();
        }
        all.extend(found.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    all
}

fn appends(list: &Array) -> bool {
    let mut attributes = list.iter().filter_map(Value::as_inline_table);
    attributes.any(|table| table.get("append").and_then(Value::as_bool) == Some(true))
}

fn is_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == DROP_IN)
}

/// What has to change. Reads, and changes nothing.
///
/// # Errors
/// podman's files cannot be understood.
pub fn plan(roots: &Roots, options: &Options) -> Result<Plan, PodmanError> {
    let files = files(roots, &options.share)?;
    let folder = options.hooks.display().to_string();
    let later =
        |path: &Path| path.file_name().is_some_and(|name| name > DROP_IN) && is_drop_in(path);
    let before: Vec<_> =
        files.iter().filter(|(path, _)| !is_ours(path) && !later(path)).cloned().collect();
    let mut hooks = effective(&before, "hooks_dir", &[HOOKS]);
    if !hooks.contains(&folder) {
        hooks.push(folder.clone());
    }
    let mut json = effective(&before, "runtime_supports_json", &JSON);
    if !json.contains(&options.name) {
        json.push(options.name.clone());
    }
    let text = drop_in(options, &hooks, &json);
    let mut plan = Plan::default();
    let path = locate(roots, Path::new("/etc/containers/containers.conf.d")).join(DROP_IN);
    replace(&path, Some(Content::Text(text)), &mut plan)?;
    for (path, document) in files.iter().filter(|(path, _)| later(path)) {
        let list = get(document.as_table(), &["engine", "hooks_dir"]).and_then(|i| i.as_array());
        let kept =
            |list: &Array| appends(list) || list.iter().any(|item| item.as_str() == Some(&folder));
        if list.is_some_and(|list| !kept(list)) {
            plan.notes.push(format!(
                "{}: is read after {DROP_IN} and sets hooks_dir without {folder}: add it there",
                path.display()
            ));
        }
    }
    advise(roots, options, &mut plan);
    Ok(plan)
}

fn is_drop_in(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("containers.conf.d"))
}

fn drop_in(options: &Options, hooks: &[String], json: &[String]) -> String {
    let mut document = DocumentMut::new();
    if let Some(engine) = table(document.as_table_mut(), "engine", false) {
        put(engine, "hooks_dir", Some(list(hooks)));
        put(engine, "runtime_supports_json", Some(list(json)));
        put(engine, "runtime", options.default.then_some(options.name.as_str()));
        if let Some(runtimes) = table(engine, "runtimes", false) {
            put(runtimes, &options.name, Some(list([&options.program])));
        }
    }
    format!("# Made by `rdma-ctk configure podman`; `--undo` takes it away.\n{document}")
}

fn advise(roots: &Roots, options: &Options, plan: &mut Plan) {
    let hooks = options.hooks.strip_prefix("/usr/share").map(|rest| options.share.join(rest));
    let hooks = hooks.unwrap_or_else(|_| locate(roots, &options.hooks));
    let mut note = |text: String| plan.notes.push(text);
    if plan.files.is_empty() {
        note("nothing to change: podman has the hooks and the runtime".into());
    } else {
        note("it holds for containers that are started from now on".into());
    }
    if !hooks.is_dir() {
        note(format!("{} is not there yet: podman goes on without", hooks.display()));
    }
    if options.default {
        note(
            "every container of podman goes through the wrapper, and the hooks leave it to that"
                .into(),
        );
    }
}

/// Whether podman reads our hooks, and which program stands under a runtime's name: for the
/// check-up.
///
/// # Errors
/// podman's files cannot be read.
pub fn registered(
    roots: &Roots,
    share: &Path,
    name: &str,
) -> Result<(bool, Option<String>), PodmanError> {
    let files = files(roots, share)?;
    let hooks = effective(&files, "hooks_dir", &[HOOKS]).iter().any(|folder| folder == OUR_HOOKS);
    let program = files.iter().rev().find_map(|(_, document)| {
        let list = get(document.as_table(), &["engine", "runtimes", name])?.as_array()?;
        list.iter().find_map(Value::as_str).map(str::to_owned)
    });
    Ok((hooks, program))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::tests::Fixture;
    use super::super::{Owner, apply};
    use super::*;

    fn options(fixture: &Fixture) -> Options {
        Options { share: fixture.share(), ..Options::default() }
    }

    #[test]
    fn the_folders_of_others_stay() {
        let fixture = Fixture::new(&[
            ("usr/share/containers/containers.conf", "[engine]\nhooks_dir = ['/a']\n"),
            (
                "etc/containers/containers.conf",
                "[engine]\nhooks_dir = ['/b', {append=true}]\nruntime_supports_json = ['crun']\n",
            ),
            ("etc/containers/containers.conf.d/99-z.conf", "[engine]\nhooks_dir = ['/z']\n"),
        ]);
        assert_snapshot!(fixture.shown(&plan(&fixture.roots, &options(&fixture)).unwrap()));
    }

    #[test]
    fn without_any_file_the_systems_folder_stays() {
        let fixture = Fixture::new(&[]);
        let options = Options { default: true, ..options(&fixture) };
        assert_snapshot!(fixture.shown(&plan(&fixture.roots, &options).unwrap()));
        fixture.there_and_back(Owner::Podman, |roots| plan(roots, &options).unwrap());
    }

    #[test]
    fn a_broken_file_is_named_with_its_line() {
        let fixture = Fixture::new(&[("etc/containers/containers.conf", "\n[engine\n")]);
        let error = plan(&fixture.roots, &options(&fixture)).unwrap_err().to_string();
        assert!(error.contains("etc/containers/containers.conf: line 2"), "{error}");
    }

    #[test]
    fn what_is_registered_is_told() {
        let fixture = Fixture::new(&[]);
        let told = || registered(&fixture.roots, &fixture.share(), "rdma").unwrap();
        assert_eq!(told(), (false, None));
        let made = plan(&fixture.roots, &options(&fixture)).unwrap();
        apply(&fixture.roots, Owner::Podman, &made).unwrap();
        assert_eq!(told(), (true, Some(WRAPPER.to_owned())));
    }
}
