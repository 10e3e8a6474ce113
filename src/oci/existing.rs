//! What the runtime itself knows of containers: the folder that it keeps of each.
//!
//! A runtime refuses an identifier whose folder is there (runc `libcontainer/factory_linux.go`, crun
//! `src/libcrun/status.c`, youki `builder_impl.rs`), so that its container is another one's business.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cmdline::CommandLine;
use super::{Surroundings, runtime};

/// Longest state that is read; runc's has the whole configuration in it, some 50 kB.
const LONGEST: u64 = 4 << 20;

/// The folder that the runtime keeps of the container, whether it is there or not. `known` is the
/// runtime, if it was looked for.
pub(super) fn folder(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    id: &OsStr,
    known: Option<&Path>,
) -> Option<PathBuf> {
    let mut parts = Path::new(id).components();
    let named = matches!(parts.next(), Some(std::path::Component::Normal(_)));
    if !named || parts.next().is_some() {
        return None;
    }
    if let Some(root) = &line.root {
        return Some(root.join(id));
    }
    let found = match known {
        Some(_) => None,
        None => runtime::find(surroundings).ok(),
    };
    let name = known.or(found.as_deref()).and_then(Path::file_name).and_then(OsStr::to_str);
    // What is put before runc leaves the folder to it.
    let name = name.filter(|name| ["crun", "youki"].contains(name)).unwrap_or("runc");
    let own = (surroundings.variable)("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = own.filter(|own| own.is_absolute() && !nix::unistd::geteuid().is_root());
    Some(user.unwrap_or_else(|| surroundings.roots.run.clone()).join(name).join(id))
}

/// Whether there is a container by that identifier.
pub(super) fn is_there(
    surroundings: &Surroundings<'_>,
    line: &CommandLine,
    id: &OsStr,
    known: Option<&Path>,
) -> bool {
    folder(surroundings, line, id, known).is_some_and(|folder| folder.exists())
}

/// As much of a runtime's state as tells the bundle: crun's and youki's say it, runc's has it as the
/// last of its labels, behind the container's annotations.
#[derive(Deserialize)]
struct State {
    bundle: Option<PathBuf>,
    config: Option<Config>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    labels: Option<Vec<String>>,
}

/// Where the runtime has the container's bundle; `None`: it does not say so in a way that is known.
fn bundle(folder: &Path) -> Option<PathBuf> {
    ["state.json", "status"].iter().find_map(|name| {
        let mut text = Vec::new();
        File::open(folder.join(name)).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
        let state: State = serde_json::from_slice(&text).ok()?;
        let labels = state.config.and_then(|config| config.labels).unwrap_or_default();
        let label = labels.iter().rev().find_map(|label| label.strip_prefix("bundle="));
        state.bundle.or_else(|| label.map(PathBuf::from))
    })
}

/// Whether the container with that folder was made from another bundle than `ours`. Where the runtime
/// does not say, it was not.
pub(super) fn is_anothers(folder: &Path, ours: &Path) -> bool {
    let Some(theirs) = bundle(folder) else { return false };
    // Runtimes resolve links on the way.
    match (fs::metadata(&theirs), fs::metadata(ours)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) != (other.dev(), other.ino()),
        _ => theirs != ours,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::oci::cmdline::parse;
    use crate::roots::Roots;

    #[test]
    fn a_runtimes_folder_is_below_its_root() {
        let roots = Roots::below("/m".as_ref());
        let surroundings = Surroundings { roots, variable: &|_| None };
        let of = |arguments: &[&str], id: &str, known: &str| {
            folder(&surroundings, &parse(arguments), id.as_ref(), Some(known.as_ref()))
        };
        for (arguments, id, known, expected) in [
            (&["--root", "/run/x", "delete"][..], "c1", "/bin/runc", Some("/run/x/c1")),
            (&["delete"], "c1", "/bin/runc", Some("/m/run/runc/c1")),
            (&["delete"], "c1", "/bin/crun", Some("/m/run/crun/c1")),
            (&["delete"], "c1", "/bin/nvidia-container-runtime", Some("/m/run/runc/c1")),
            (&["delete"], "..", "/bin/runc", None),
            (&["delete"], "a/b", "/bin/runc", None),
            (&["delete"], "/etc", "/bin/runc", None),
            (&["delete"], "", "/bin/runc", None),
        ] {
            assert_eq!(of(arguments, id, known).as_deref(), expected.map(Path::new), "{id}");
        }
    }

    #[test]
    fn a_bundle_is_told_by_each_runtimes_state() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        let link = folder.path().join("link");
        fs::create_dir(&ours).unwrap();
        fs::create_dir(&theirs).unwrap();
        symlink(&ours, &link).unwrap();
        let runc = |bundle: &Path| {
            // The first is an annotation of the tenant's.
            let labels = ["bundle=/tenant".to_owned(), format!("bundle={}", bundle.display())];
            ("state.json", serde_json::json!({ "id": "c", "config": { "labels": labels } }))
        };
        let crun = |bundle: &Path| ("status", serde_json::json!({ "pid": 1, "bundle": bundle }));
        for ((name, state), expected) in [
            (runc(&ours), false),
            (runc(&link), false),
            (runc(&theirs), true),
            (runc("/gone".as_ref()), true),
            (crun(&link), false),
            (crun(&theirs), true),
            (("state.json", serde_json::json!({ "config": { "labels": null } })), false),
            (("state.json", serde_json::json!([])), false),
        ] {
            let container = folder.path().join("c");
            fs::create_dir(&container).unwrap();
            fs::write(container.join(name), state.to_string()).unwrap();
            assert_eq!(is_anothers(&container, &ours), expected, "{state}");
            fs::remove_dir_all(&container).unwrap();
        }
        assert!(!is_anothers("/nowhere".as_ref(), &ours));
    }
}
