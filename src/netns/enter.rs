//! Getting into another network namespace.
//!
//! A namespace belongs to a thread, and a thread of a pool that was moved would do the pool's next
//! task in there. So each visit has a thread of its own, which ends with it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use super::Error;
use crate::roots::Roots;

/// `NSFS_MAGIC` of `linux/magic.h`: the file system of namespaces.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
/// Far more than a conversation over netlink needs.
const STACK: usize = 512 * 1024;

/// A network namespace that is held open: it lives on, whatever happens to its path.
#[derive(Debug)]
pub struct Namespace {
    path: PathBuf,
    file: OwnedFd,
}

impl Namespace {
    /// Opens the namespace at a path that a runtime named: `/proc/PID/ns/net`, or a file below
    /// `/run` or `/var/run`.
    ///
    /// The path is input. No symbolic link in it is followed, except the last one of
    /// `/proc/PID/ns/net`, which is no path but a reference; and what is there is looked at before
    /// it is opened for use, so that no device, pipe or file of somebody else is ever opened.
    ///
    /// # Errors
    /// As [`Error`] says; the path is in all of them.
    pub fn open(roots: &Roots, path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Open { path: path.to_owned(), source };
        let (root, rest, reference) =
            place(roots, path).ok_or_else(|| Error::Place { path: path.to_owned() })?;
        // The root itself is the admin's word, and may be a link.
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut at = open(root, flags, Mode::empty()).map_err(failed)?;
        let mut gone = PathBuf::new();
        for (step, name) in rest.iter().enumerate() {
            gone.push(name);
            let last = step + 1 == rest.len();
            let follow = if last && reference { OFlag::empty() } else { OFlag::O_NOFOLLOW };
            let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | follow;
            at = openat(&at, *name, flags, Mode::empty()).map_err(failed)?;
            if is_link(&fstat(&at).map_err(failed)?) {
                return Err(Error::Link { path: path.to_owned(), link: gone });
            }
        }
        if fstatfs(&at).map_err(failed)?.filesystem_type() != NSFS_MAGIC {
            return Err(Error::Kind { path: path.to_owned() });
        }
        // The same file again, now for use: setns(2) takes no O_PATH descriptor.
        let same = roots.proc.join(format!("self/fd/{}", at.as_raw_fd()));
        let file =
            open(&same, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Opens the namespace behind a path of ours below `/proc/PID`, by which somebody holds it. Links
    /// are followed: the path is no input, and what is there is looked at before it is used.
    ///
    /// # Errors
    /// As [`Error`] says; the path is in all of them.
    pub fn open_handle(roots: &Roots, path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Open { path: path.to_owned(), source };
        let at = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
        if fstatfs(&at).map_err(failed)?.filesystem_type() != NSFS_MAGIC {
            return Err(Error::Kind { path: path.to_owned() });
        }
        // The same file again, whatever is at the path by now.
        let same = roots.proc.join(format!("self/fd/{}", at.as_raw_fd()));
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = open(&same, flags, Mode::empty()).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// What tells it from every other namespace of this boot that is alive: device and number of
    /// its inode.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn identity(&self) -> Result<(u64, u64), Error> {
        let stat =
            fstat(&self.file).map_err(|source| Error::Look { path: self.path.clone(), source })?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The descriptor that holds it.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Whether the calling thread is in this namespace already.
    pub fn is_current(&self, roots: &Roots) -> bool {
        let identity = |stat: FileStat| (stat.st_dev, stat.st_ino);
        let own = nix::sys::stat::stat(&roots.proc.join("thread-self/ns/net")).map(identity);
        own.is_ok() && own == fstat(&self.file).map(identity)
    }

    /// Does `task` in this namespace, on a thread that exists for nothing else, and waits for it.
    /// What the task opens there, such as a netlink socket, stays in the namespace when it is
    /// handed out. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// When there is no thread, or no way in, or the task panics.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.visit(|| {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Ok(task())
        })
    }

    /// Like [`Namespace::run`], with the sysfs of this namespace in the place of the node's: a
    /// mounted sysfs shows the interfaces and RDMA devices of the namespace in which it was mounted.
    /// The mount is in a mount namespace of the thread, and goes with it.
    ///
    /// # Errors
    /// As for [`Namespace::run`].
    pub fn run_with_sysfs<T: Send>(
        &self,
        roots: &Roots,
        task: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        self.visit(|| {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            // Mounts from here on reach nobody; those of others still arrive.
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            let flags =
                MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("sysfs"), &roots.sys, Some("sysfs"), flags, none)?;
            Ok(task())
        })
    }

    fn visit<T: Send>(&self, visit: impl FnOnce() -> nix::Result<T> + Send) -> Result<T, Error> {
        let path = || self.path.clone();
        let visited: Result<T, Errno> = thread::scope(|scope| {
            thread::Builder::new()
                .name("netns".to_owned())
                .stack_size(STACK)
                .spawn_scoped(scope, visit)
                .map_err(|source| Error::Thread { path: path(), source })?
                .join()
                .map_err(|_| Error::Panicked { path: path() })
        })?;
        visited.map_err(|source| Error::Enter { path: path(), source })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Which tree a path is in, its parts from there, and whether the last part is a reference to a
/// namespace (`/proc/PID/ns/net`) rather than a file. `None` if no namespace is kept there.
fn place<'a>(roots: &'a Roots, path: &'a Path) -> Option<(&'a Path, Vec<&'a str>, bool)> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(part) => parts.push(part.to_str()?),
            // `components` leaves `.` out except at the beginning, where it makes a relative path.
            Component::CurDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    if !path.is_absolute() {
        return None;
    }
    match parts[..] {
        ["proc", pid, "ns", "net"] if number(pid) => Some((&roots.proc, parts[1..].to_vec(), true)),
        ["proc", pid, "task", tid, "ns", "net"] if number(pid) && number(tid) => {
            Some((&roots.proc, parts[1..].to_vec(), true))
        }
        ["run", _, ..] => Some((&roots.run, parts[1..].to_vec(), false)),
        ["var", "run", _, ..] => Some((&roots.run, parts[2..].to_vec(), false)),
        _ => None,
    }
}

fn number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_link(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A namespace of its own for a test, or `None` where tests may not make one: that takes
    /// `CAP_SYS_ADMIN`, which an unprivileged build does not have.
    pub fn fresh() -> Option<Namespace> {
        let made = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)?;
                let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                open("/proc/thread-self/ns/net", flags, Mode::empty())
            });
            thread.join().unwrap()
        });
        match made {
            Ok(file) => Some(Namespace { path: "a namespace of this test".into(), file }),
            Err(errno) => {
                eprintln!("skipped: no network namespace can be made here: {errno}");
                None
            }
        }
    }

    fn live() -> Roots {
        Roots::below(Path::new("/"))
    }

    #[test]
    fn namespaces_are_kept_in_known_places_only() {
        let roots = live();
        let place = |path| {
            let found = place(&roots, Path::new(path))?;
            Some(format!("{} {} {}", found.0.display(), found.1.join("/"), found.2))
        };
        for (path, expected) in [
            ("/proc/71/ns/net", Some("/proc 71/ns/net true")),
            ("/proc/71/task/72/ns/net", Some("/proc 71/task/72/ns/net true")),
            ("/run/netns/cni-5", Some("/run netns/cni-5 false")),
            ("/var/run/netns/cni-5", Some("/run netns/cni-5 false")),
            ("/var/run/docker/netns/0a", Some("/run docker/netns/0a false")),
            ("//run//netns/./a", Some("/run netns/a false")),
            ("/proc/self/ns/net", None),
            ("/proc/71/ns/mnt", None),
            ("/proc/71/root/run/netns/a", None),
            ("/proc/71/fd/5", None),
            ("/run/../etc/passwd", None),
            ("/run", None),
            ("run/netns/a", None),
            ("./run/netns/a", None),
            ("/dev/watchdog", None),
            ("/etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(place(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_unopened() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { run: root.path().to_owned(), ..live() };
        fs::create_dir(root.path().join("netns")).unwrap();
        fs::write(root.path().join("netns/file"), "").unwrap();
        nix::unistd::mkfifo(&root.path().join("netns/pipe"), Mode::S_IRWXU).unwrap();
        symlink("/proc/self/ns/net", root.path().join("netns/link")).unwrap();
        symlink("netns", root.path().join("other")).unwrap();
        let failed = |path: &str| Namespace::open(&roots, Path::new(path)).unwrap_err().to_string();
        assert_eq!(failed("/run/netns/file"), "/run/netns/file is no namespace");
        assert_eq!(failed("/run/netns/pipe"), "/run/netns/pipe is no namespace");
        assert_eq!(failed("/run/netns"), "/run/netns is no namespace");
        assert_eq!(
            failed("/run/netns/link"),
            "/run/netns/link: netns/link is a symbolic link, which is not followed"
        );
        assert_eq!(
            failed("/run/other/file"),
            "/run/other/file: other is a symbolic link, which is not followed"
        );
        assert_eq!(
            failed("/run/netns/gone"),
            "/run/netns/gone: cannot open the network namespace: ENOENT: No such file or directory"
        );
        assert_eq!(
            failed("/proc/1/../1/ns/net"),
            "/proc/1/../1/ns/net: a network namespace is expected at /proc/PID/ns/net or below /run"
        );
    }

    #[test]
    fn our_own_namespace_is_known_as_such() {
        let path = format!("/proc/{}/ns/net", std::process::id());
        let own = Namespace::open(&live(), Path::new(&path)).unwrap();
        assert!(own.is_current(&live()));
        assert_eq!(own.path(), Path::new(&path));
        let Some(other) = fresh() else { return };
        assert!(!other.is_current(&live()));
        assert!(other.run(|| other.is_current(&live())).unwrap());
        // Only the visitor was moved.
        assert!(own.is_current(&live()));
    }

    #[test]
    fn a_panic_inside_is_an_error_outside() {
        let Some(namespace) = fresh() else { return };
        let error = namespace.run(|| panic!("inside")).unwrap_err();
        assert!(matches!(error, Error::Panicked { .. }), "{error}");
    }

    #[test]
    fn a_namespace_of_another_kind_cannot_be_entered() {
        let file = open("/proc/thread-self/ns/uts", OFlag::O_RDONLY, Mode::empty()).unwrap();
        let namespace = Namespace { path: "/run/utsns/x".into(), file };
        let error = namespace.run(|| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("/run/utsns/x: cannot enter the network namespace: E"),
            "{error}"
        );
    }
}
