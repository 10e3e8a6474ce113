//! Reading of attribute files: small texts that may vanish while one looks at them.
//!
//! Everything is opened relative to a folder that is already open, so a deep sysfs path is walked
//! once and not once per file, and all texts go through one buffer. This is rustix and not nix,
//! which cannot list a folder that is open already, and needs eight calls where two do.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, openat, readlinkat, seek};
use rustix::io::{Errno, read};

/// An attribute file is at most a page (`sysfs_emit`), except for CPU lists, which may be longer
/// since Linux 5.16; 64 KiB hold every CPU list of [`HIGHEST`](super::cpuset::HIGHEST) CPUs that
/// a kernel would write.
const LONGEST: usize = 64 * 1024;

/// Remarks beyond this many are counted, not kept: a tree that is broken everywhere must not fill
/// the memory or the log.
const MOST_REMARKS: usize = 32;

/// Reads attribute files, and notes what could not be read.
///
/// A file that is not there, is empty, or says that it has nothing to say (`EINVAL` of an empty
/// GID slot, `EOPNOTSUPP` of a driver without the operation, `ENODEV` of a device that is just
/// going away) is `None` without a remark: for an inventory, absence is a value.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    /// Names of a folder, as the kernel hands them out.
    listing: Vec<MaybeUninit<u8>>,
    remarks: Vec<String>,
    unkept: usize,
    /// Paths of the files that were opened, where somebody wants to know.
    opened: Option<Vec<PathBuf>>,
}

/// An open folder, and where it is.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    /// Its names were read once, and the next reading would begin where that ended.
    listed: Cell<bool>,
}

impl Folder {
    fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path, listed: Cell::new(false) }
    }
}

impl Reader {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; LONGEST],
            listing: vec![MaybeUninit::uninit(); LISTING],
            remarks: Vec::new(),
            unkept: 0,
            opened: None,
        }
    }

    /// One that also keeps the paths of all files that it opens; see [`Reader::into_opened`].
    pub(super) fn recording() -> Self {
        Self { opened: Some(Vec::new()), ..Self::new() }
    }

    /// Paths of the files that were opened and read, in that order.
    pub(super) fn into_opened(self) -> Vec<PathBuf> {
        self.opened.unwrap_or_default()
    }

    /// The remarks so far, and none from then on.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        let mut remarks = std::mem::take(&mut self.remarks);
        match std::mem::take(&mut self.unkept) {
            0 => {}
            more => remarks.push(format!("{more} more of the kind")),
        }
        remarks
    }

    /// Notes a sentence, once.
    pub(super) fn remark(&mut self, sentence: String) {
        if self.remarks.contains(&sentence) {
            return;
        }
        if self.remarks.len() < MOST_REMARKS {
            self.remarks.push(sentence);
        } else {
            self.unkept += 1;
        }
    }

    /// Notes that `what` failed on `path`, unless the errno only says that nothing is there.
    fn failed(&mut self, what: &str, path: &Path, errno: Errno) {
        if !is_absence(errno) {
            let reason = nix::errno::Errno::from_raw(errno.raw_os_error()).desc();
            self.remark(format!("{}: cannot {what}: {reason}", path.display()));
        }
    }

    /// Opens the folder at `path`.
    pub(super) fn open(&mut self, path: &Path) -> Option<Folder> {
        match open(path, FOLDER, Mode::empty()) {
            Ok(fd) => Some(Folder::new(fd, path.to_owned())),
            Err(errno) => {
                self.failed("open the folder", path, errno);
                None
            }
        }
    }

    /// Opens the folder `name` (a relative path) of `at`.
    pub(super) fn folder(&mut self, at: &Folder, name: &str) -> Option<Folder> {
        match openat(&at.fd, name, FOLDER, Mode::empty()) {
            Ok(fd) => Some(Folder::new(fd, at.path.join(name))),
            Err(errno) => {
                self.failed("open the folder", &at.path.join(name), errno);
                None
            }
        }
    }

    /// The text of the file `name` (a relative path) of `at`, without white space around it;
    /// `None` where that leaves nothing.
    pub(super) fn text(&mut self, at: &Folder, name: &str) -> Option<&str> {
        let length = match self.fill(at, name) {
            Ok(length) => length,
            Err(errno) => {
                self.failed("read", &at.path.join(name), errno);
                return None;
            }
        };
        if std::str::from_utf8(&self.buffer[..length]).is_err() {
            self.remark(format!("{}: is not text", at.path.join(name).display()));
            return None;
        }
        // Checked again because a borrow of the buffer cannot live across the remark above.
        let text = std::str::from_utf8(&self.buffer[..length]).ok()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// The text of a file as `parse` understands it. What it does not understand is noted, with
    /// `expected`.
    pub(super) fn parsed<T>(
        &mut self,
        at: &Folder,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(at, name)?;
        match parse(text) {
            Some(value) => Some(value),
            None => {
                let shown: String = text.chars().take(60).collect();
                let path = at.path.join(name);
                self.remark(format!("{}: {shown:?} is not {expected}", path.display()));
                None
            }
        }
    }

    /// A decimal number.
    pub(super) fn number(&mut self, at: &Folder, name: &str) -> Option<u32> {
        self.parsed(at, name, "a number", |text| text.parse().ok())
    }

    fn fill(&mut self, at: &Folder, name: &str) -> Result<usize, Errno> {
        // O_NONBLOCK: a tree given by hand may hold a fifo, and opening one would wait for ever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = openat(&at.fd, name, flags, Mode::empty())?;
        if let Some(opened) = &mut self.opened {
            opened.push(at.path.join(name));
        }
        let mut length = read(&fd, &mut self.buffer[..])?;
        // sysfs gives an attribute in one piece, so a second call is only made where the first
        // one may have been cut at a page.
        while length > 0 && length.is_multiple_of(PAGE) && length < self.buffer.len() {
            match read(&fd, &mut self.buffer[length..])? {
                0 => break,
                more => length += more,
            }
        }
        Ok(length)
    }

    /// Where the symbolic link `name` of `at` points, as it is written.
    pub(super) fn link(&mut self, at: &Folder, name: &str) -> Option<String> {
        match readlinkat(&at.fd, name, Vec::new()) {
            Ok(target) => target.into_string().ok(),
            Err(errno) => {
                // EINVAL: it is there, but is no link.
                self.failed("read the link", &at.path.join(name), errno);
                None
            }
        }
    }

    /// Names in `at`, sorted. Those that are not text are left out: no kernel object has one.
    pub(super) fn names(&mut self, at: &Folder) -> Vec<String> {
        let mut names = Vec::new();
        self.entries(at, |name| names.push(name.to_owned()));
        names.sort_unstable();
        names
    }

    /// Those names in `at` that are plain decimal numbers, as numbers and ascending.
    pub(super) fn numbers(&mut self, at: &Folder) -> Vec<u32> {
        let mut numbers = Vec::new();
        self.entries(at, |name| numbers.extend(plain_number(name)));
        numbers.sort_unstable();
        numbers
    }

    fn entries(&mut self, at: &Folder, mut each: impl FnMut(&str)) {
        if at.listed.replace(true)
            && let Err(errno) = seek(&at.fd, SeekFrom::Start(0))
        {
            return self.failed("list", &at.path, errno);
        }
        let mut listing = RawDir::new(&at.fd, &mut self.listing);
        while let Some(entry) = listing.next() {
            match entry.map(|entry| each_name(entry.file_name().to_str(), &mut each)) {
                Ok(()) => {}
                Err(errno) => return self.failed("list", &at.path, errno),
            }
        }
    }
}

fn each_name<E>(name: Result<&str, E>, each: &mut impl FnMut(&str)) {
    match name {
        Err(_) | Ok("." | "..") => {}
        Ok(name) => each(name),
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Room for some two hundred names at a time.
const LISTING: usize = 8 * 1024;

/// The smallest page size of Linux.
const PAGE: usize = 4096;

/// Whether an error only says that there is nothing: not there, no longer there, or no value.
fn is_absence(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::NODEV
            | Errno::NXIO
            | Errno::INVAL
            | Errno::NOTDIR
            | Errno::OPNOTSUPP
            | Errno::NODATA
    )
}

/// A name such as `12`; not `+1`, `01` or `1a`.
fn plain_number(name: &str) -> Option<u32> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = name == "0" || !name.starts_with('0');
    if plain && canonical { name.parse().ok() } else { None }
}

/// `relative` as seen from the folder `base`, both as written, without looking at the disk: the
/// links of sysfs are relative and their middle parts are no links themselves. `None` where it
/// leaves the tree.
pub(super) fn resolve(base: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Reader, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = Reader::new();
        let folder = reader.open(dir.path()).unwrap();
        (dir, reader, folder)
    }

    #[test]
    fn absence_is_a_value_and_the_rest_is_noted() {
        let (dir, mut reader, at) = tree();
        std::fs::write(dir.path().join("empty"), "").unwrap();
        std::fs::write(dir.path().join("line"), "\n").unwrap();
        std::fs::write(dir.path().join("value"), "4: ACTIVE\n").unwrap();
        assert_eq!(reader.text(&at, "absent"), None);
        assert_eq!(reader.text(&at, "value/below"), None);
        assert_eq!(reader.text(&at, "empty"), None);
        assert_eq!(reader.text(&at, "line"), None);
        assert_eq!(reader.text(&at, "value"), Some("4: ACTIVE"));
        assert_eq!(reader.take_remarks(), Vec::<String>::new());

        std::fs::write(dir.path().join("bytes"), [0xff, 0xfe]).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(reader.text(&at, "bytes"), None);
        assert_eq!(reader.text(&at, "folder"), None);
        assert_eq!(reader.number(&at, "value"), None);
        let base = dir.path().display();
        assert_eq!(
            reader.take_remarks(),
            [
                format!("{base}/bytes: is not text"),
                format!("{base}/folder: cannot read: Is a directory"),
                format!("{base}/value: \"4: ACTIVE\" is not a number"),
            ]
        );
    }

    #[test]
    fn a_fifo_in_a_given_tree_does_not_stop_the_reader() {
        let (dir, mut reader, at) = tree();
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(reader.text(&at, "fifo"), None);
    }

    #[test]
    fn a_text_longer_than_a_page_is_read_whole() {
        let (dir, mut reader, at) = tree();
        let text = "1,".repeat(5000);
        std::fs::write(dir.path().join("cpulist"), &text).unwrap();
        assert_eq!(reader.text(&at, "cpulist"), Some(text.as_str()));
    }

    #[test]
    fn remarks_are_bounded() {
        let mut reader = Reader::new();
        for number in 0..100 {
            reader.remark(format!("remark {number}"));
        }
        let remarks = reader.take_remarks();
        assert_eq!(remarks.len(), MOST_REMARKS + 1);
        assert_eq!(remarks.last().unwrap(), "68 more of the kind");
    }

    #[test]
    fn names_are_sorted_and_numbers_are_plain() {
        let (dir, mut reader, at) = tree();
        for name in ["10", "9", "01", "+1", "a", "4294967296"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(reader.names(&at), ["+1", "01", "10", "4294967296", "9", "a"]);
        assert_eq!(reader.numbers(&at), [9, 10]);
    }

    #[test]
    fn links_are_resolved_as_they_are_written() {
        for (base, link, resolved) in [
            ("class/net", "../../devices/virtual/net/lo", Some("devices/virtual/net/lo")),
            ("a/b", "../../..", None),
            ("a", "./b//c", Some("a/b/c")),
            ("", "x", Some("x")),
        ] {
            assert_eq!(resolve(base, link).as_deref(), resolved, "{base} {link}");
        }
    }
}
