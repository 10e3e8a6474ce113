//! The real runtime: which one it is, and becoming it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Surroundings;
use crate::policy::{self, wrapped_runtime};
use crate::roots::Roots;

/// Names that are looked for where the configuration names none.
const NAMES: [&str; 3] = ["runc", "crun", "youki"];

/// Where programs are looked for where nobody says (the shims of some engines have no `PATH`).
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why there is no runtime to become.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The one that is configured is not there.
    #[error(
        "{}: [wrapper] runtime = {name:?}: {why}; install it or name another", config.display()
    )]
    Configured {
        /// The policy file.
        config: PathBuf,
        /// What it names.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// None is configured, and none is installed.
    #[error("no OCI runtime: none of runc, crun and youki is in {path}; install one, or name it in {} ([wrapper] runtime)", config.display())]
    None {
        /// Where was looked.
        path: String,
        /// The policy file.
        config: PathBuf,
    },
    /// It is there and does not start.
    #[error("cannot run {}: {source}", path.display())]
    Exec {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The real runtime: the one that the policy file names, else the first that is installed. Never
/// this program itself, whatever links lead to it.
///
/// # Errors
/// There is none.
pub fn find(surroundings: &Surroundings<'_>) -> Result<PathBuf, RuntimeError> {
    let roots = &surroundings.roots;
    let own = fs::metadata(roots.proc.join("self/exe")).ok();
    let path = (surroundings.variable)("PATH").filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| PATH.into());
    let config = policy::path(roots);
    match configured(roots) {
        Some(name) => search(&path, &name, own.as_ref()).map_err(|why| RuntimeError::Configured {
            config,
            name,
            why: why.to_string(),
        }),
        None => {
            NAMES.iter().find_map(|name| search(&path, name, own.as_ref()).ok()).ok_or_else(|| {
                RuntimeError::None { path: path.to_string_lossy().into_owned(), config }
            })
        }
    }
}

/// What the policy file names. Asked at every call of the wrapper, so that nothing else of the file
/// matters: a container whose policy is broken can still be stopped.
fn configured(roots: &Roots) -> Option<String> {
    wrapped_runtime(&fs::read_to_string(policy::path(roots)).ok()?)
}

/// What is wrong with a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
enum Unfit {
    #[error("it is not there")]
    Absent,
    #[error("it is no program")]
    NoProgram,
    #[error("it is rdma-ctk-runtime itself")]
    Itself,
}

/// The program by that name: an absolute path, or one of the folders of `path`.
fn search(path: &OsStr, name: &str, own: Option<&Metadata>) -> Result<PathBuf, Unfit> {
    let name = Path::new(name);
    if name.is_absolute() {
        return fit(name, own).map(|()| name.to_owned());
    }
    if name.components().count() != 1 {
        return Err(Unfit::NoProgram);
    }
    let mut worst = Unfit::Absent;
    // What is relative would depend on the working directory, which is the engine's.
    for folder in std::env::split_paths(path).filter(|folder| folder.is_absolute()) {
        let candidate = folder.join(name);
        match fit(&candidate, own) {
            Ok(()) => return Ok(candidate),
            Err(why) => worst = worst.max(why),
        }
    }
    Err(worst)
}

fn fit(path: &Path, own: Option<&Metadata>) -> Result<(), Unfit> {
    let found = fs::metadata(path).map_err(|_| Unfit::Absent)?;
    if own.is_some_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino())) {
        return Err(Unfit::Itself);
    }
    let executable = found.is_file() && found.permissions().mode() & 0o111 != 0;
    if executable { Ok(()) } else { Err(Unfit::NoProgram) }
}

/// Becomes the runtime: same arguments, environment, descriptors, working directory, and the same
/// process, for whose end the caller waits. Returns only when that fails.
pub fn become_it(runtime: &Path, arguments: &[OsString]) -> RuntimeError {
    let source = Command::new(runtime).args(arguments).exec();
    RuntimeError::Exec { path: runtime.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Rig {
        folder: tempfile::TempDir,
        roots: Roots,
    }

    impl Rig {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots::below(folder.path());
            fs::create_dir_all(roots.proc.join("self")).unwrap();
            fs::create_dir_all(roots.etc.join("rdma-ctk")).unwrap();
            fs::create_dir_all(folder.path().join("bin")).unwrap();
            fs::create_dir_all(folder.path().join("sbin")).unwrap();
            Self { folder, roots }
        }

        fn program(&self, name: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        }

        fn own(&self, path: &Path) {
            symlink(path, self.roots.proc.join("self/exe")).unwrap();
        }

        fn config(&self, text: &str) {
            fs::write(policy::path(&self.roots), text).unwrap();
        }

        fn find(&self) -> Result<String, String> {
            let path = format!("bin:{0}/bin:{0}/sbin", self.folder.path().display());
            let variable = |name: &str| (name == "PATH").then(|| OsString::from(&path));
            let surroundings = Surroundings { roots: self.roots.clone(), variable: &variable };
            let found = find(&surroundings).map_err(|error| error.to_string())?;
            Ok(found.strip_prefix(self.folder.path()).unwrap().display().to_string())
        }
    }

    #[test]
    fn the_first_that_is_installed_is_taken() {
        let rig = Rig::new();
        let error = rig.find().unwrap_err();
        assert!(error.contains("none of runc, crun and youki"), "{error}");
        rig.program("sbin/youki");
        assert_eq!(rig.find().unwrap(), "sbin/youki");
        rig.program("sbin/crun");
        assert_eq!(rig.find().unwrap(), "sbin/crun");
        rig.program("sbin/runc");
        assert_eq!(rig.find().unwrap(), "sbin/runc");
        // No program, so not it.
        fs::write(rig.folder.path().join("bin/runc"), "").unwrap();
        assert_eq!(rig.find().unwrap(), "sbin/runc");
    }

    #[test]
    fn it_is_never_itself_not_by_a_link_either() {
        let rig = Rig::new();
        let own = rig.program("bin/rdma-ctk-runtime");
        rig.own(&own);
        symlink("rdma-ctk-runtime", rig.folder.path().join("bin/runc")).unwrap();
        fs::hard_link(&own, rig.folder.path().join("bin/crun")).unwrap();
        assert!(rig.find().is_err());
        rig.program("sbin/crun");
        assert_eq!(rig.find().unwrap(), "sbin/crun");
        for name in [own.display().to_string(), "runc".to_owned()] {
            rig.config(&format!("[wrapper]\nruntime = \"{name}\"\n"));
            let error = rig.find().unwrap_err();
            assert!(error.contains("it is rdma-ctk-runtime itself"), "{error}");
        }
    }

    #[test]
    fn the_configured_one_goes_first_and_must_be_there() {
        let rig = Rig::new();
        rig.program("sbin/runc");
        let nvidia = rig.program("sbin/nvidia-container-runtime");
        rig.config("[wrapper]\nruntime = \"nvidia-container-runtime\"\n");
        assert_eq!(rig.find().unwrap(), "sbin/nvidia-container-runtime");
        rig.config(&format!("[wrapper]\nruntime = {:?}\n", nvidia.display().to_string()));
        assert_eq!(rig.find().unwrap(), "sbin/nvidia-container-runtime");
        for (name, why) in [
            ("/nowhere/runc", "it is not there"),
            ("./runc", "it is no program"),
            ("kata", "it is not there"),
        ] {
            rig.config(&format!("[wrapper]\nruntime = \"{name}\"\n"));
            let error = rig.find().unwrap_err();
            assert!(error.contains(why) && error.contains("config.toml"), "{name}: {error}");
        }
    }
}
