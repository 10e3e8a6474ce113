//! The real runtime: which one it is, and becoming it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memchr::memmem;
use nix::time::{ClockId, clock_gettime};

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
    /// The policy file is there and cannot be read, so that which one it names is not known.
    #[error("cannot read {}, which may name the runtime ([wrapper] runtime): {source}", config.display())]
    Policy {
        /// The policy file.
        config: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It leads back to this program.
    #[error(
        "{} leads back to rdma-ctk-runtime; name the runtime behind it in {} ([wrapper] runtime)",
        path.display(), config.display()
    )]
    Circle {
        /// The one that does.
        path: PathBuf,
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
    match configured(roots)? {
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
fn configured(roots: &Roots) -> Result<Option<String>, RuntimeError> {
    let config = policy::path(roots);
    match fs::read(&config) {
        Ok(text) => Ok(wrapped_runtime(&String::from_utf8_lossy(&text))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        // Another runtime would know nothing of the containers of the one that is meant.
        Err(source) => Err(RuntimeError::Policy { config, source }),
    }
}

/// Whether a runtime reads its command line as GNU's programs do: crun, and youki.
pub fn reads_letters(runtime: &Path) -> bool {
    let file = fs::canonicalize(runtime).unwrap_or_else(|_| runtime.to_owned());
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ["crun", "youki"].iter().any(|known| name.contains(known))
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

/// How often the wrapper may come by itself on one way. A script that looks for the runtime elsewhere
/// may call it once more.
const MOST: u32 = 3;
/// How often it has been there already, where somebody stands between it and the runtime. A runtime
/// itself is not told.
const TIMES: &str = "RDMA_CTK_RUNTIME_TIMES";
/// A process that has used up so much time before it is this program has been it more often.
const TIME: Duration = Duration::from_millis(500);
/// How much of a script is looked at.
const SCRIPT: u64 = 64 << 10;

/// How often this program has become a runtime on its way here.
pub fn times(surroundings: &Surroundings<'_>) -> u32 {
    let times = (surroundings.variable)(TIMES);
    times.and_then(|times| times.to_str()?.parse().ok()).unwrap_or(0)
}

/// Becomes the runtime: same arguments, environment, descriptors, working directory, and the same
/// process, for whose end the caller waits. Returns only when that fails, or leads back here.
pub fn become_it(
    surroundings: &Surroundings<'_>,
    runtime: &Path,
    arguments: &[OsString],
) -> RuntimeError {
    let times = times(surroundings);
    let path = runtime.to_owned();
    if times >= MOST {
        return RuntimeError::Circle { path, config: policy::path(&surroundings.roots) };
    }
    let mut command = Command::new(runtime);
    command.args(arguments);
    if may_lead_back(runtime, time_used()) {
        command.env(TIMES, (times + 1).to_string());
    } else if times > 0 {
        command.env_remove(TIMES);
    }
    RuntimeError::Exec { path, source: command.exec() }
}

/// Processor time of this process, which a change of its program does not set back.
fn time_used() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Whether what is called a runtime may call this program: a script in which it is named, a program
/// of another name than the runtimes', which looks for one in turn, or whatever has brought us here
/// for so long that it must be so.
fn may_lead_back(runtime: &Path, used: Duration) -> bool {
    let name = runtime.file_name().unwrap_or_default().as_bytes();
    let foreign = !NAMES.iter().any(|known| memmem::find(name, known.as_bytes()).is_some());
    foreign || used >= TIME || names_us(runtime)
}

/// Whether it is a script, and this program is named in it.
fn names_us(runtime: &Path) -> bool {
    let Ok(mut file) = File::open(runtime) else { return false };
    let mut text = vec![0; 2];
    if file.read_exact(&mut text).is_err() || text != b"#!" {
        return false;
    }
    text.clear();
    // What cannot be read further does not run either.
    let _ = file.take(SCRIPT).read_to_end(&mut text);
    memmem::find(&text, b"rdma-ctk").is_some()
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

    #[test]
    fn a_policy_that_cannot_be_read_names_no_other_runtime() {
        let rig = Rig::new();
        rig.program("sbin/runc");
        rig.program("sbin/crun");
        let path = policy::path(&rig.roots);
        fs::write(&path, b"# caf\xe9\n[wrapper]\nruntime = \"crun\"\n").unwrap();
        assert_eq!(rig.find().unwrap(), "sbin/crun");
        fs::write(&path, b"[wrapper]\nnote = \"caf\xe9\"\nruntime = \"crun\"\n").unwrap();
        assert_eq!(rig.find().unwrap(), "sbin/crun");
        fs::remove_file(&path).unwrap();
        assert_eq!(rig.find().unwrap(), "sbin/runc");
        fs::create_dir(&path).unwrap();
        let error = rig.find().unwrap_err();
        assert!(error.contains("config.toml, which may name the runtime"), "{error}");
    }

    #[test]
    fn what_may_lead_back_is_told_how_often() {
        let rig = Rig::new();
        let script = |name: &str, text: &str| {
            let path = rig.program(name);
            fs::write(&path, text).unwrap();
            path
        };
        for (path, used, expected) in [
            (rig.program("bin/runc"), 0, false),
            (rig.program("bin/crun-1.21"), 499, false),
            (rig.program("bin/youki"), 500, true),
            (rig.program("bin/nvidia-container-runtime"), 0, true),
            (script("sbin/runc", "#!/bin/sh\nexec /opt/runc \"$@\"\n"), 0, false),
            (script("sbin/crun", "#!/bin/sh\nexec rdma-ctk-runtime \"$@\"\n"), 0, true),
            (script("sbin/youki", "rdma-ctk-runtime"), 0, false),
            (rig.folder.path().join("bin/none-crun"), 0, false),
        ] {
            let told = may_lead_back(&path, Duration::from_millis(used));
            assert_eq!(told, expected, "{}", path.display());
        }
    }
}
