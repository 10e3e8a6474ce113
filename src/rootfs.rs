//! Looking into a container's root file system. What is in there is the tenant's: a path
//! is resolved as the container itself would resolve it (openat2(2), `RESOLVE_IN_ROOT`), so that
//! no link leads out, and nothing but a regular file is read, so that no pipe blocks.

mod libraries;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Longest file that is read.
const LONGEST: u64 = 64 << 10;

/// A container's root.
#[derive(Debug)]
pub struct Rootfs(File);

impl Rootfs {
    /// The root at that path, which is the host's (`/proc/PID/root`); `None` where it cannot be
    /// opened.
    pub fn open(path: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits());
        options.open(path).ok().map(Self)
    }

    fn at(&self, path: &str, flags: OFlag) -> Option<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let path = Path::new(".").join(path.trim_start_matches('/'));
        openat2(self.0.as_fd(), &path, how).ok().map(File::from)
    }

    /// A regular file, to be read. What is there is looked at before it is opened, and what is opened
    /// is what was looked at: the handle's own inode.
    fn regular(&self, path: &str) -> Option<File> {
        let handle = self.at(path, OFlag::O_PATH)?;
        if !handle.metadata().ok()?.is_file() {
            return None;
        }
        let again = format!("/proc/self/fd/{}", handle.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(again).ok()
    }

    /// Whether there is something at that path.
    pub fn exists(&self, path: &str) -> bool {
        self.at(path, OFlag::O_PATH).is_some()
    }

    /// Whether a regular file without a byte is at that path, and no link to one.
    pub fn is_empty_file(&self, path: &str) -> bool {
        let found = self.at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW);
        let found = found.and_then(|file| file.metadata().ok());
        found.is_some_and(|found| found.is_file() && found.len() == 0)
    }

    /// Text of a regular file; `None` where there is none, or it is longer than 64 KiB.
    pub fn read(&self, path: &str) -> Option<String> {
        let file = self.regular(path)?;
        let mut text = String::new();
        file.take(LONGEST + 1).read_to_string(&mut text).ok()?;
        (text.len() as u64 <= LONGEST).then_some(text)
    }

    /// The first bytes of a regular file, at most so many; `None` where there is none.
    pub fn head(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let file = self.regular(path)?;
        let mut head = Vec::with_capacity(usize::try_from(most).unwrap_or(0));
        file.take(most).read_to_end(&mut head).ok()?;
        Some(head)
    }

    /// Writes a small file that everybody may read and nobody write. One that is there, is not empty
    /// and does not begin with `head` is somebody else's and stays: false then.
    ///
    /// # Errors
    /// There is no folder for it, or it cannot be written.
    pub fn put(&self, path: &str, text: &str, head: &str) -> io::Result<bool> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self
            .at(folder, OFlag::O_PATH | OFlag::O_DIRECTORY)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if self.is_empty_file(path) || self.read(path).is_some_and(|old| old.starts_with(head)) {
            unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir)?;
        }
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW;
        match openat(&folder, name, flags | OFlag::O_CLOEXEC, Mode::from_bits_truncate(0o444)) {
            Ok(file) => {
                let mut file = File::from(file);
                // Whatever the umask of the engine is.
                file.set_permissions(Permissions::from_mode(0o444))?;
                file.write_all(text.as_bytes())?;
                Ok(true)
            }
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the file system of the root is mounted read-only; not known is no.
    pub fn is_read_only(&self) -> bool {
        fstatvfs(&self.0).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
    }

    /// Names in a folder; empty where there is none.
    pub fn list(&self, path: &str) -> Vec<String> {
        let Some(folder) = self.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY) else {
            return Vec::new();
        };
        let Ok(mut folder) = Dir::from_fd(folder.into()) else { return Vec::new() };
        let mut names: Vec<String> = folder
            .iter()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    use super::*;

    /// The kernel tells of each opening; of looking (`O_PATH`) it tells nothing.
    #[test]
    fn nothing_but_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&folder.path().join("pipe"), Mode::S_IRWXU).unwrap();
        fs::write(folder.path().join("file"), "text").unwrap();
        let root = Rootfs::open(folder.path()).unwrap();
        let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        watch.add_watch(folder.path(), AddWatchFlags::IN_OPEN).unwrap();
        let opened = || -> Vec<_> {
            let events = watch.read_events().unwrap_or_default();
            events.into_iter().filter_map(|event| event.name).collect()
        };
        assert_eq!((root.read("pipe"), root.head("pipe", 3)), (None, None));
        assert!(root.exists("pipe"));
        assert!(!root.put("/pipe", "x", "x").unwrap());
        assert!(opened().is_empty());
        assert_eq!(root.read("file").as_deref(), Some("text"));
        assert_eq!(opened(), ["file"]);
    }

    #[test]
    fn links_stay_inside_and_pipes_do_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("secret");
        fs::write(&outside, "outside").unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/file"), "inside").unwrap();
        symlink("/etc/file", root.join("absolute")).unwrap();
        symlink(&outside, root.join("out")).unwrap();
        symlink("../secret", root.join("up")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let root = Rootfs::open(&root).unwrap();
        assert_eq!(root.read("absolute").as_deref(), Some("inside"));
        for name in ["out", "up", "pipe", "etc", "none"] {
            assert_eq!(root.read(name), None, "{name}");
        }
        assert!(root.exists("pipe"));
        assert!(!root.exists("out"));
        assert_eq!(root.list("/"), ["absolute", "etc", "out", "pipe", "up"]);
        assert_eq!(root.list("none"), [""; 0]);
        assert_eq!(root.head("absolute", 3).as_deref(), Some(&b"ins"[..]));
        assert_eq!((root.head("out", 3), root.head("pipe", 3)), (None, None));
        // A link is somebody else's file, wherever it leads.
        assert!(!root.put("/out", "x", "outside").unwrap());
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
        assert!(root.put("/etc/new", "ours\n", "ours").unwrap());
        let path = folder.path().join("root");
        fs::write(path.join("etc/empty"), "").unwrap();
        symlink("/etc/empty", path.join("link")).unwrap();
        assert!(root.is_empty_file("/etc/empty"));
        for name in ["link", "pipe", "etc", "none", "etc/file"] {
            assert!(!root.is_empty_file(name), "{name}");
        }
        assert!(!root.put("/link", "ours\n", "ours").unwrap());
        assert!(root.put("/etc/empty", "ours\n", "ours").unwrap());
        assert!(root.put("/none/new", "ours\n", "ours").is_err());
    }
}
