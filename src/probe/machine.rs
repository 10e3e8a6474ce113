//! What only the running system can tell, behind a trait so that the steps can be tested with
//! containers that are broken in every way.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use super::cm;
use super::verbs::{Ended, Missing, Transcript};

/// The verbs part; see build.rs.
const PART: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verbs-part"));

/// Dynamic loaders at the places that programs name them by.
#[cfg(target_arch = "x86_64")]
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];
#[cfg(target_arch = "aarch64")]
const LOADERS: [&str; 2] = ["/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LOADERS: [&str; 0] = [];

/// The container that the probe runs in.
pub trait Machine {
    /// Opens a device file for reading and writing, as a verbs program does, and closes it.
    ///
    /// # Errors
    /// As open(2): `EPERM` is the device cgroup or the RDMA namespace, `EACCES` the file's mode.
    fn open(&self, path: &Path) -> Result<(), Errno>;

    /// Effective user of this process.
    fn user(&self) -> u32;

    /// Soft `RLIMIT_MEMLOCK` in bytes; `u64::MAX` is no limit.
    fn memlock(&self) -> u64;

    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;

    /// Runs the verbs part with those arguments.
    fn verbs(&self, arguments: &[String]) -> Transcript;

    /// Asks `rdma_cm` to bind each of those addresses; which adapter each belongs to, by node GUID
    /// as sysfs prints it.
    ///
    /// # Errors
    /// Of opening the device, or of making an identifier on it.
    fn bind(&self, device: &Path, addresses: &[IpAddr]) -> Result<Vec<cm::Bound>, Errno>;
}

/// The container itself.
#[derive(Debug, Clone)]
pub struct Live {
    /// How long one run of the verbs part may take.
    pub patience: Duration,
    /// The dynamic loader to use instead of the usual ones.
    pub loader: Option<PathBuf>,
}

impl Machine for Live {
    fn open(&self, path: &Path) -> Result<(), Errno> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        }
    }

    fn user(&self) -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    fn memlock(&self) -> u64 {
        // It fails for no resource that exists.
        getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn verbs(&self, arguments: &[String]) -> Transcript {
        let usual = LOADERS.iter().map(PathBuf::from);
        let loaders: Vec<PathBuf> = match &self.loader {
            Some(loader) => vec![loader.clone()],
            None => usual.filter(|loader| loader.exists()).collect(),
        };
        let mut first = None;
        for loader in loaders {
            let said = match start(&loader, arguments, self.patience) {
                Ok(said) => Transcript { loader: Some(loader.display().to_string()), ..said },
                Err(why) => Transcript::silent(Ended::NotStarted(why)),
            };
            // An image may have two C libraries, and libibverbs for one of them.
            let absent = matches!(said.missing, Some(Missing::Library(_)));
            let started = !matches!(said.ended, Ended::NotStarted(_));
            if started && !absent {
                return said;
            }
            first.get_or_insert(said);
        }
        first.unwrap_or_else(|| Transcript::silent(Ended::NoLoader))
    }

    fn bind(&self, device: &Path, addresses: &[IpAddr]) -> Result<Vec<cm::Bound>, Errno> {
        cm::kernel::bind(device, addresses)
    }
}

/// Of memfd_create(2), since Linux 6.3.
const MFD_EXEC: u32 = 0x10;

/// A file in memory that holds the verbs part: the image may be read-only.
fn part() -> Result<File, String> {
    // Without the flag, kernels since 6.3 may refuse to have it executed; before, they do not know
    // the flag.
    let made = memfd_create(c"verbs-part", MFdFlags::from_bits_retain(MFD_EXEC))
        .or_else(|_| memfd_create(c"verbs-part", MFdFlags::empty()));
    let fd: OwnedFd = made.map_err(|error| format!("no file in memory: {}", error.desc()))?;
    let mut file = File::from(fd);
    file.write_all(PART).map_err(|error| format!("no file in memory: {error}"))?;
    Ok(file)
}

/// Where glibc before 2.34 has dlopen(3) and its kin; later ones have them in libc.so.6, and an image
/// may then lack this file.
const LIBDL: &str = "libdl.so.2";

/// Bytes of output that are read: a provider may print, and not end.
const OUTPUT: u64 = 256 << 10;

fn start(loader: &Path, arguments: &[String], patience: Duration) -> Result<Transcript, String> {
    let said = start_with(loader, None, arguments, patience)?;
    let lacks = |line: &String| line.contains("undefined symbol: dl");
    if !said.noise.iter().any(lacks) {
        return Ok(said);
    }
    let preloaded = match std::env::var("LD_PRELOAD") {
        Ok(others) => format!("{LIBDL}:{others}"),
        Err(_) => LIBDL.to_owned(),
    };
    start_with(loader, Some(preloaded), arguments, patience)
}

fn start_with(
    loader: &Path,
    preload: Option<String>,
    arguments: &[String],
    patience: Duration,
) -> Result<Transcript, String> {
    // Not closed on exec: the loader opens it by its number.
    let part = part()?;
    let mut command = Command::new(loader);
    if let Some(preload) = preload {
        command.env("LD_PRELOAD", preload);
    }
    let mut child = command
        .arg(format!("/proc/self/fd/{}", part.as_raw_fd()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", loader.display()))?;
    let output = child.stdout.take().map(read);
    let errors = child.stderr.take().map(read);
    let ended = wait(&mut child, patience);
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    let (output, errors) = (text(output), text(errors));
    Ok(Transcript::parse(&output, &errors, ended))
}

fn read(stream: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut stream = stream;
        // What was read before an error counts; the rest is drained, so that nobody blocks.
        let _ = stream.by_ref().take(OUTPUT).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, patience: Duration) -> Ended {
    let until = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ended(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // It may have ended meanwhile, and then there is nothing to kill.
                let _ = child.kill();
                let _ = child.wait();
                return Ended::TimedOut(patience.as_secs());
            }
            Err(error) => return Ended::NotStarted(error.to_string()),
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Killed(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        Live { patience: Duration::from_secs(20), loader: None }
    }

    #[test]
    fn the_verbs_part_starts_under_this_systems_loader() {
        let said = live().verbs(&[]);
        assert_eq!(said.ended, Ended::Exited(0), "{said:?}");
        assert!(said.library.is_some() != said.missing.is_some(), "{said:?}");
    }

    #[test]
    fn a_device_that_is_not_there_is_a_fault() {
        let arguments = ["none", "1", "0", "4096", "0"].map(str::to_owned);
        let said = live().verbs(&arguments);
        assert_eq!(said.ended, Ended::Exited(0));
        assert!(said.missing.is_some() || said.fault_in(&["find"]).is_some(), "{said:?}");
    }

    #[test]
    fn a_loader_that_is_none_is_told() {
        let odd = |loader: &str| Live { loader: Some(loader.into()), ..live() };
        let said = odd("/nowhere/ld.so").verbs(&[]);
        assert!(matches!(said.ended, Ended::NotStarted(_)), "{said:?}");
        let said = odd("/bin/false").verbs(&[]);
        assert_eq!(said.fault, Some(super::super::Fault::Died(Ended::Exited(1))));
    }

    /// A loader that is a script.
    fn scripted(script: &str, patience: Duration) -> (tempfile::TempDir, Live) {
        let folder = tempfile::tempdir().unwrap();
        let loader = folder.path().join("loader");
        std::fs::write(&loader, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&loader, mode).unwrap();
        (folder, Live { patience, loader: Some(loader) })
    }

    #[test]
    fn what_hangs_is_ended() {
        let (_folder, machine) = scripted("exec sleep 100", Duration::from_millis(50));
        assert_eq!(machine.verbs(&[]).ended, Ended::TimedOut(0));
    }

    #[test]
    fn an_older_glibc_gets_its_libdl() {
        let script = "if [ \"$LD_PRELOAD\" ]; then echo library $LD_PRELOAD; echo end; else\n\
                      echo \"$1: symbol lookup error: $1: undefined symbol: dlopen\" >&2; exit 127; fi";
        let (_folder, machine) = scripted(script, Duration::from_secs(20));
        let said = machine.verbs(&[]);
        assert_eq!((said.library.as_deref(), said.fault), (Some("libdl.so.2"), None));
    }

    #[test]
    fn c91_musl_has_no_libibverbs_here() {
        let musl = Path::new(LOADERS[1]);
        if !musl.exists() {
            println!("skipped: there is no {} (musl)", musl.display());
            return;
        }
        let said = Live { loader: Some(musl.to_owned()), ..live() }.verbs(&[]);
        assert_eq!(said.ended, Ended::Exited(0), "{said:?}");
        assert!(matches!(said.missing, Some(Missing::Library(_))), "{said:?}");
    }

    #[test]
    fn a_missing_device_file_says_so() {
        assert_eq!(live().open(Path::new("/dev/infiniband/none")), Err(Errno::ENOENT));
        assert!(live().memlock() > 0);
    }
}
