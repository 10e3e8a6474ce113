//! A file that an engine hands to its runtime, such as `config.json`: read, and replaced as a whole
//! or not at all.
//!
//! The folder is opened once and everything happens beneath that handle: a path that somebody
//! exchanges meanwhile leads nowhere else. The folder itself may be reached by links (bundles are);
//! the file may be none, since what is renamed over it would take the link's place.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::signal::kill;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, UnlinkatFlags, fchown, unlinkat};

use super::json::LONGEST;

/// Why a document is not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The folder cannot be opened.
    #[error("cannot open the folder of {}: {source}", path.display())]
    Folder {
        /// The document.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The document.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is a link.
    #[error("{} is a symbolic link: an edit would replace it; put the document itself there", path.display())]
    Link {
        /// The document.
        path: PathBuf,
    },
    /// It is no regular file.
    #[error("{} is no regular file, and cannot be edited", path.display())]
    Kind {
        /// The document.
        path: PathBuf,
    },
    /// It is longer than what is edited.
    #[error("{} has {length} bytes, and at most {LONGEST} are edited", path.display())]
    Long {
        /// The document.
        path: PathBuf,
        /// Its bytes.
        length: u64,
    },
    /// It is no JSON that can be edited.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The document.
        path: PathBuf,
        /// What is wrong with it.
        source: super::json::JsonError,
    },
    /// Its shape does not allow the edit.
    #[error("{}: {source}", path.display())]
    Shape {
        /// The document.
        path: PathBuf,
        /// What is wrong with it.
        source: crate::edit::oci::OciEditError,
    },
    /// The new one cannot be written.
    #[error("cannot {step} {} anew: {source}", path.display())]
    Write {
        /// The document.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// A document that was read.
#[derive(Debug)]
pub struct Document {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    /// What it holds.
    pub text: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    /// Why it cannot be replaced, if so: to be told once it is known that it has to be.
    fixed: Option<Fixed>,
}

/// What makes a file one that is not replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fixed {
    Link,
    Kind,
}

impl Document {
    /// Reads the document at `path`. A link is followed, and something that is no file is not read;
    /// neither can be replaced.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let name = path.file_name().unwrap_or_default();
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => ".".as_ref(),
        };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = openat(AT_FDCWD, folder, flags, Mode::empty()).map_err(|errno| {
            DocumentError::Folder { path: path.to_owned(), source: errno.into() }
        })?;
        let failed = |source| DocumentError::Read { path: path.to_owned(), source };
        let open = |more: OFlag| {
            // O_NONBLOCK: a pipe without a writer would be waited for.
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            openat(folder.as_fd(), name, flags | more, Mode::empty()).map(File::from)
        };
        let (file, link) = match open(OFlag::O_NOFOLLOW) {
            Err(Errno::ELOOP) => (open(OFlag::empty()), true),
            opened => (opened, false),
        };
        let file = file.map_err(|errno| failed(errno.into()))?;
        let found = file.metadata().map_err(failed)?;
        let regular = found.is_file();
        let mut text = Vec::new();
        if regular {
            let length = found.len();
            if length > LONGEST as u64 {
                return Err(DocumentError::Long { path: path.to_owned(), length });
            }
            text.reserve_exact(usize::try_from(length).unwrap_or(0) + 1);
            let read = file.take(LONGEST as u64 + 1).read_to_end(&mut text).map_err(failed)?;
            if read > LONGEST {
                return Err(DocumentError::Long { path: path.to_owned(), length: read as u64 });
            }
        }
        let fixed = match (regular, link) {
            (false, _) => Some(Fixed::Kind),
            (true, true) => Some(Fixed::Link),
            (true, false) => None,
        };
        Ok(Self {
            path: path.to_owned(),
            name: name.to_owned(),
            folder,
            text,
            mode: found.permissions().mode() & 0o7777,
            owner: (found.uid(), found.gid()),
            fixed,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be replaced.
    ///
    /// # Errors
    /// It is a link, or no regular file.
    pub fn check(&self) -> Result<(), DocumentError> {
        let path = self.path.clone();
        match self.fixed {
            None => Ok(()),
            Some(Fixed::Link) => Err(DocumentError::Link { path }),
            Some(Fixed::Kind) => Err(DocumentError::Kind { path }),
        }
    }

    /// Puts `text` in its place: written beside it, with its mode and owner, then renamed. Whoever
    /// looks sees the old one or the new one, and after a failure the old one.
    ///
    /// It is not forced to the disk: a bundle does not outlive the machine's boot.
    ///
    /// # Errors
    /// It is a link or no regular file, or the new one cannot be written with its mode and owner.
    pub fn replace(&self, text: &[u8]) -> Result<(), DocumentError> {
        self.check()?;
        self.put(&self.name, &[text])
    }

    /// Puts down beside the document what it was before an edit and what the edit makes of it. Both,
    /// so that the edit can be taken out again whatever else has become of the document. It lives and
    /// goes with the document's folder.
    ///
    /// # Errors
    /// As [`Document::replace`].
    pub fn keep(&self, before: &[u8], after: &[u8]) -> Result<(), DocumentError> {
        self.check()?;
        self.sweep();
        self.put(&kept(&self.name), &[format!("{}\n", before.len()).as_bytes(), before, after])
    }

    /// What an earlier edit has put down; `None`: nothing that is to be trusted as the document itself
    /// is.
    pub fn kept(&self) -> Option<Kept> {
        let name = kept(&self.name);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file =
            openat(&self.folder, name.as_os_str(), flags, Mode::empty()).map(File::from).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || (found.uid(), found.gid()) != self.owner {
            return None;
        }
        let mut text = Vec::new();
        file.take(2 * LONGEST as u64 + 32).read_to_end(&mut text).ok()?;
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let length: usize = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
        let mut before = text.split_off(end + 1);
        let after = (length <= before.len()).then(|| before.split_off(length))?;
        Some(Kept { before, after })
    }

    /// Removes what an edit has put down.
    pub fn forget(&self) {
        // If it stays it is of a document that is not there.
        let _ = unlinkat(&self.folder, kept(&self.name).as_os_str(), UnlinkatFlags::NoRemoveDir);
    }

    fn put(&self, name: &OsStr, text: &[&[u8]]) -> Result<(), DocumentError> {
        let failed = |step: &'static str| {
            move |source: io::Error| DocumentError::Write { path: self.path.clone(), step, source }
        };
        let errno = |step| move |errno: Errno| failed(step)(errno.into());
        let (mut file, beside) = self.make().map_err(errno("write"))?;
        let written = text
            .iter()
            .try_for_each(|part| file.write_all(part))
            .map_err(failed("write"))
            .and_then(|()| self.own(&file).map_err(failed("give the owner and mode to")))
            .and_then(|()| {
                renameat(&self.folder, beside.as_os_str(), &self.folder, name)
                    .map_err(errno("put in place"))
            });
        if written.is_err() {
            let _ = unlinkat(&self.folder, beside.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    /// A new file, which nobody else writes to: two engines may make one bundle's container at once.
    fn make(&self) -> nix::Result<(File, OsString)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut attempts = 0;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = beside(&self.name);
            name.push(format!("-{}-{number}", std::process::id()));
            match openat(&self.folder, name.as_os_str(), flags, mode) {
                // Of one that had our process identifier, and died.
                Err(Errno::EEXIST) if attempts < 100 => attempts += 1,
                made => return made.map(|file| (File::from(file), name)),
            }
        }
    }

    /// Removes what writers have left behind that were killed. For bundles only: other folders may be
    /// `/tmp`, and long.
    fn sweep(&self) {
        let Ok(folder) =
            openat(&self.folder, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        else {
            return;
        };
        let Ok(mut folder) = Dir::from_fd(folder) else { return };
        let start = beside(&self.name);
        for entry in folder.iter().flatten() {
            let name = entry.file_name();
            if let Some(writer) = writer(name.to_bytes(), start.as_bytes())
                && kill(writer, None) == Err(Errno::ESRCH)
            {
                // One that cannot be removed is in nobody's way.
                let _ = unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir);
            }
        }
    }

    fn own(&self, file: &File) -> io::Result<()> {
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != self.owner {
            let (uid, gid) = self.owner;
            fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        // After the owner: a change of that takes set-user-ID bits away.
        file.set_permissions(PermissionsExt::from_mode(self.mode))
    }
}

/// What an edit has put down of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What it was before.
    pub before: Vec<u8>,
    /// What it was made.
    pub after: Vec<u8>,
}

/// The name of what is kept: `.config.json.rdma-ctk-before`.
fn kept(name: &OsStr) -> OsString {
    let mut kept = beside(name);
    kept.push("-before");
    kept
}

/// Who writes the file by that name, if it is one that is to be renamed: `START-PID-NUMBER`.
fn writer(name: &[u8], start: &[u8]) -> Option<Pid> {
    let rest = std::str::from_utf8(name.strip_prefix(start)?.strip_prefix(b"-")?).ok()?;
    let (writer, number) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    writer.parse().ok().filter(|writer| *writer > 0).map(Pid::from_raw)
}

/// The name beside, which no engine gives: `.config.json.rdma-ctk`.
fn beside(name: &OsStr) -> OsString {
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(".rdma-ctk");
    beside
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn bundle(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn what_is_replaced_keeps_its_mode_and_leaves_nothing_beside() {
        let (folder, path) = bundle("old");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        // Left behind by one that was killed.
        let dead = format!(".config.json.rdma-ctk-{}-7", dead());
        fs::write(folder.path().join(dead), "left over").unwrap();
        let document = Document::read(&path).unwrap();
        assert_eq!(document.text, b"old");
        document.keep(b"old", b"new").unwrap();
        document.replace(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let kept = folder.path().join(".config.json.rdma-ctk-before");
        for file in [&path, &kept] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o640);
        }
        document.forget();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// A process that is no more.
    fn dead() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn writers_at_once_are_in_nobodys_way() {
        let (folder, path) = bundle("");
        // What earlier versions wrote to, and what a living one does.
        let old = folder.path().join(".config.json.rdma-ctk");
        fs::create_dir(&old).unwrap();
        let lives = folder.path().join(format!(".config.json.rdma-ctk-{}-x", std::process::id()));
        fs::write(&lives, "").unwrap();
        let texts: Vec<Vec<u8>> =
            (0..4_u8).map(|writer| vec![b'a' + writer; 100_000 + usize::from(writer)]).collect();
        Document::read(&path).unwrap().replace(&texts[0]).unwrap();
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let document = Document::read(&path).unwrap();
                        assert!(texts.contains(&document.text), "{}", document.text.len());
                        document.replace(text).unwrap();
                    }
                });
            }
        });
        fs::remove_file(lives).unwrap();
        fs::remove_dir(old).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_what_the_dead_were_writing_is_swept() {
        let start = b".config.json.rdma-ctk";
        for (name, expected) in [
            (".config.json.rdma-ctk-12-3", Some(12)),
            (".config.json.rdma-ctk", None),
            (".config.json.rdma-ctk-before", None),
            (".config.json.rdma-ctk-12", None),
            (".config.json.rdma-ctk-12-x", None),
            (".config.json.rdma-ctk--1-3", None),
            (".config.json.rdma-ctk-0-3", None),
            ("config.json", None),
        ] {
            assert_eq!(writer(name.as_bytes(), start).map(Pid::as_raw), expected, "{name}");
        }
    }

    #[test]
    fn what_is_kept_is_read_again_and_trusted_as_the_document_is() {
        let (folder, path) = bundle("old");
        let document = Document::read(&path).unwrap();
        assert_eq!(document.kept(), None);
        document.keep(b"old\n", b"new").unwrap();
        let kept = Kept { before: b"old\n".into(), after: b"new".into() };
        assert_eq!(document.kept(), Some(kept));
        let file = folder.path().join(".config.json.rdma-ctk-before");
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&file, Some(4711), Some(4711)).unwrap();
            assert_eq!(document.kept(), None);
        }
        document.forget();
        document.forget();
        for text in ["", "x\n", "9\nold", "-1\n", "3", "18446744073709551616\n"] {
            fs::write(&file, text).unwrap();
            assert_eq!(document.kept(), None, "{text}");
        }
        document.forget();
        symlink(&path, &file).unwrap();
        assert_eq!(document.kept(), None);
        document.forget();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_owner_is_kept_where_we_may_and_refused_where_not() {
        let (folder, path) = bundle("old");
        if !Uid::effective().is_root() {
            eprintln!("skipped: only root can have files of others");
            return;
        }
        std::os::unix::fs::chown(&path, Some(4711), Some(4712)).unwrap();
        Document::read(&path).unwrap().replace(b"new").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (4711, 4712));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_bundle_may_be_a_link_and_its_document_not() {
        let (folder, path) = bundle("old");
        let around = tempfile::tempdir().unwrap();
        let linked = around.path().join("bundle");
        symlink(folder.path(), &linked).unwrap();
        Document::read(&linked.join("config.json")).unwrap().replace(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");

        let link = around.path().join("config.json");
        symlink(&path, &link).unwrap();
        let document = Document::read(&link).unwrap();
        assert_eq!(document.text, b"new");
        let error = document.replace(b"newer").unwrap_err().to_string();
        assert!(error.contains("config.json is a symbolic link"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn what_is_no_file_is_neither_read_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("config.json");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let document = Document::read(&pipe).unwrap();
        assert!(document.text.is_empty());
        assert!(document.replace(b"x").unwrap_err().to_string().contains("no regular file"));
        let none = Document::read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(none.contains("cannot read"), "{none}");
        let nowhere = Document::read(&folder.path().join("no/config.json")).unwrap_err();
        assert!(matches!(nowhere, DocumentError::Folder { .. }));
    }

    #[test]
    fn a_document_that_is_too_long_is_not_read() {
        let (_folder, path) = bundle("");
        File::options().write(true).open(&path).unwrap().set_len(LONGEST as u64 + 1).unwrap();
        let error = Document::read(&path).unwrap_err().to_string();
        assert!(error.contains("16777217 bytes, and at most 16777216"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_leaves_the_document() {
        let (folder, path) = bundle("old");
        let document = Document::read(&path).unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(matches!(document.replace(b"new"), Err(DocumentError::Write { .. })));
    }
}
