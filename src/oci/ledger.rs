//! What the wrapper has granted, put down: for exec sessions, for the hooks, and for `inspect`.
//!
//! Records of ours and not what `runc state` or the bundle could tell: an exec session names its
//! container only by identifier and state folder, where a bundle is found is each runtime's own
//! secret, and the document does not tell which of its variables were ours. The record is named by
//! both words, since two engines may use one identifier.
//!
//! A record goes when its container goes (the `poststop` hook, or `delete`), or when another starts by
//! its name; what is left over, because the engine was killed, goes when there are many and its bundle
//! is gone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Surroundings;
use crate::grant::GrantedFile;
use crate::inventory::runtime_limits::in_user_namespace;
use crate::records::{Record, RecordError, Store, Verdict};
use crate::request::Request;
use crate::roots::Roots;

/// From so many records on those without a bundle are looked for.
const MANY: usize = 128;
/// Files are made before their record, and never so long.
const PATIENCE: Duration = Duration::from_secs(600);
/// So many records are kept at most.
const MOST: usize = 1024;

/// A record of the wrapper's, which reads as a [`Record`] too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// What was decided.
    #[serde(flatten)]
    pub(super) record: Record,
    /// Folder of the container's document.
    pub(super) bundle: PathBuf,
    /// What was asked, for what is decided once more when the network is there.
    pub(super) request: Option<Box<Request>>,
    /// All limits of the container, as its document has them.
    pub(super) limits: Vec<Value>,
}

/// The records of the wrapper.
#[derive(Debug)]
pub(super) struct Ledger {
    store: Store,
}

impl Ledger {
    /// The ledger of whoever calls the wrapper.
    pub(super) fn here(surroundings: &Surroundings<'_>) -> Self {
        // Without a folder of its own it does not matter whose it is.
        let user = (surroundings.variable)("XDG_RUNTIME_DIR").is_some()
            && (!nix::unistd::geteuid().is_root()
                || in_user_namespace(&surroundings.roots, std::process::id()));
        Self::of(surroundings, user)
    }

    /// The ledger of whoever runs containers here: the node's, or a user's own.
    pub(super) fn of(surroundings: &Surroundings<'_>, user: bool) -> Self {
        let named = || (surroundings.variable)("XDG_RUNTIME_DIR").map(PathBuf::from);
        let roots = &surroundings.roots;
        // A hook has no variables but those of the file that made it run.
        let own = if user { named().or_else(|| runtime_folder(roots)) } else { None };
        let store = match own.filter(|folder| folder.is_absolute()) {
            Some(folder) => Store::wrappers(&Roots { run: folder, ..surroundings.roots.clone() }),
            None => Store::wrappers(&surroundings.roots),
        };
        Self { store }
    }

    /// The ledger in that folder.
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { store: Store::at(folder) }
    }

    /// The ledger in which that record is; `None`: it is where no record of the wrapper's is, and
    /// nothing there is ours to remove.
    pub(super) fn around(record: &Path) -> Option<(Self, String)> {
        let key = record.file_stem()?.to_str()?.to_owned();
        let containers = record.parent()?;
        let folder = containers.parent()?;
        let ours = containers.ends_with("containers") && folder.ends_with("rdma-ctk/wrapper");
        ours.then(|| (Self::at(folder.to_owned()), key))
    }

    /// Makes its folders.
    pub(super) fn prepare(&self) -> Result<(), RecordError> {
        self.store.prepare_containers()
    }

    /// Where a record is.
    pub(super) fn path(&self, key: &str) -> Result<PathBuf, RecordError> {
        self.store.record_path(key)
    }

    /// The record of that name; `None`: there is none.
    pub(super) fn read(&self, key: &str) -> Result<Option<Entry>, RecordError> {
        self.store.read_as(key)
    }

    /// Whether there is a record of that name.
    pub(super) fn has_record(&self, key: &str) -> bool {
        self.path(key).is_ok_and(|path| path.exists())
    }

    /// The folder of the files that are bound into containers.
    pub(super) fn files(&self) -> PathBuf {
        self.store.files_folder()
    }

    /// Whether there are files of that name.
    pub(super) fn has_files(&self, key: &str) -> bool {
        self.store.files_made(key).is_some()
    }

    /// Writes a record, and forgets old ones where there are many.
    pub(super) fn write(&self, key: &str, entry: &Entry) -> Result<(), RecordError> {
        self.store.write_as(key, entry)?;
        self.sweep(key);
        Ok(())
    }

    /// Writes a file that is to be bound; where it is.
    pub(super) fn file(&self, key: &str, file: &GrantedFile) -> Result<PathBuf, RecordError> {
        self.store.write_file(key, file)
    }

    /// Removes a record and the files of its container.
    pub(super) fn remove(&self, key: &str) -> Result<(), RecordError> {
        self.store.remove(key)
    }

    /// Whether a container is on record with that grant.
    pub(super) fn confirms(&self, key: &str, digest: &str) -> bool {
        matches!(
            self.read(key),
            Ok(Some(Entry { record: Record { verdict: Verdict::Granted { grant }, .. }, .. }))
                if grant.digest() == digest
        )
    }

    /// Whether a container by that identifier, whose document is in that folder, is on record with
    /// that grant, whatever its runtime's state folder is: hooks are not told.
    pub(super) fn has_granted(&self, id: &str, bundle: &Path, digest: &str) -> bool {
        let end = format!("-{id}");
        let mut keys = self.store.identifiers().containers.into_iter();
        keys.any(|key| {
            (key.ends_with(&end) || !key.contains('-'))
                && matches!(
                    self.read(&key),
                    Ok(Some(Entry {
                        record: Record { id: found, verdict: Verdict::Granted { grant }, .. },
                        bundle: folder,
                        ..
                    })) if found == id && folder == bundle && grant.digest() == digest
                )
        })
    }

    fn sweep(&self, kept: &str) {
        let known = self.store.identifiers();
        if known.containers.len() < MANY && known.files.len() < MANY {
            return;
        }
        // Files without a record: of one that was killed between the two, if not of one that is.
        for key in known.files.iter().filter(|key| *key != kept && !known.containers.contains(key))
        {
            let age = self.store.files_made(key).and_then(|made| made.elapsed().ok());
            if age.is_some_and(|age| age > PATIENCE) {
                drop(self.remove(key));
            }
        }
        let mut left: Vec<(u64, String)> = Vec::new();
        for key in known.containers.into_iter().filter(|key| key != kept) {
            match self.read(&key) {
                Ok(Some(entry)) if entry.bundle.is_dir() => left.push((entry.record.at, key)),
                // One that cannot be removed is met again at the next sweep.
                _ => drop(self.remove(&key)),
            }
        }
        left.sort();
        let more = left.len().saturating_sub(MOST);
        left.drain(..more).for_each(|(_, key)| drop(self.remove(&key)));
    }
}

/// The folder that systemd makes for the user whom this process is outside of its user namespace.
fn runtime_folder(roots: &Roots) -> Option<PathBuf> {
    let map = std::fs::read_to_string(roots.proc.join("self/uid_map")).ok()?;
    let user = outside(&map, nix::unistd::geteuid().as_raw())?;
    Some(roots.run.join("user").join(user.to_string())).filter(|folder| folder.is_dir())
}

/// Who a user of the namespace with that `uid_map` is outside of it.
fn outside(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (words.next()??, words.next()??, words.next()??);
        let at = user.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    })
}

/// The name of a container's record: by its runtime's state folder and its identifier.
pub(super) fn key(root: Option<&Path>, id: &OsStr) -> String {
    let root = root.map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
    let mut hash = fnv(0xcbf2_9ce4_8422_2325, root);
    let id = id.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    match std::str::from_utf8(id) {
        Ok(id) if !id.is_empty() && id.len() <= 160 && id.as_bytes().iter().all(fits) => {
            format!("{hash:016x}-{id}")
        }
        _ => {
            hash = fnv(fnv(hash, &[0]), id);
            format!("{hash:016x}")
        }
    }
}

/// The name of a record of podman's hook, which knows no state folder.
pub(super) fn of_podman(id: &OsStr) -> String {
    key(None, id)
}

/// FNV-1a, 64 bits.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{PodName, read_all};

    fn entry(id: &str, at: u64, bundle: &Path) -> Entry {
        Entry {
            record: Record {
                id: id.into(),
                name: "main".into(),
                pod: PodName::default(),
                runtime: "the runtime wrapper".into(),
                at,
                verdict: Verdict::Granted { grant: Box::default() },
            },
            bundle: bundle.to_owned(),
            request: None,
            limits: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_found_by_state_folder_and_identifier() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let surroundings = Surroundings { roots: roots.clone(), variable: &|_| None };
        let ledger = Ledger::of(&surroundings, false);
        ledger.prepare().unwrap();
        let one = key(Some("/run/runc/a".as_ref()), "c1".as_ref());
        let other = key(Some("/run/runc/b".as_ref()), "c1".as_ref());
        assert_ne!(one, other);
        let written = entry("c1", 1, folder.path());
        ledger.write(&one, &written).unwrap();
        assert_eq!(ledger.read(&one).unwrap(), Some(written));
        assert_eq!(ledger.read(&other).unwrap(), None);
        let digest = crate::grant::Grant::default().digest();
        assert!(ledger.confirms(&one, &digest));
        assert!(!ledger.confirms(&one, "0") && !ledger.confirms(&other, &digest));
        let seen = read_all(&roots);
        assert_eq!((seen.containers.len(), seen.unreadable.len()), (1, 0));
        let path = ledger.path(&one).unwrap();
        let (again, found) = Ledger::around(&path).unwrap();
        assert_eq!(found, one);
        again.remove(&found).unwrap();
        assert!(!path.exists());
        for foreign in ["/etc/x/y.json", "/run/rdma-ctk/wrapper/files/y.json", "y.json", "/"] {
            assert!(Ledger::around(foreign.as_ref()).is_none(), "{foreign}");
        }
    }

    #[test]
    fn a_user_is_told_by_the_map_of_its_namespace() {
        let rootless = "0 1000 1\n1 100000 65536\n";
        for (map, user, expected) in [
            ("         0          0 4294967295\n", 1000, Some(1000)),
            (rootless, 0, Some(1000)),
            (rootless, 7, Some(100_006)),
            (rootless, 70_000, None),
            ("", 0, None),
            ("0 x 1\n", 0, None),
            ("0 4294967295 9\n", 1, None),
        ] {
            assert_eq!(outside(map, user), expected, "{map:?} {user}");
        }
    }

    #[test]
    fn every_identifier_has_a_name_that_is_none_of_a_path() {
        let long = "x".repeat(300);
        for id in ["", "..", "a/b", "a+b", "é", "a b", &long] {
            let name = key(None, id.as_ref());
            assert!(name.len() <= 177 && !name.contains('/'), "{name}");
            assert_ne!(name, key(None, "other".as_ref()));
        }
    }

    #[test]
    fn what_is_left_over_goes_when_there_are_many() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(folder.path().join("wrapper"));
        ledger.prepare().unwrap();
        for number in 0..200_u64 {
            let bundle = if number % 2 == 0 { folder.path() } else { "/nowhere".as_ref() };
            ledger.write(&format!("k{number}"), &entry("c", number, bundle)).unwrap();
        }
        let left = ledger.store.identifiers().containers;
        assert!(left.len() <= MANY, "{}", left.len());
        assert!((0..200).step_by(2).all(|number| left.contains(&format!("k{number}"))));
    }

    #[test]
    fn files_whose_record_was_never_written_go_when_there_are_many() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(folder.path().join("wrapper"));
        ledger.prepare().unwrap();
        let file = GrantedFile { path: "/etc/nccl.conf".into(), content: "A=1\n".into() };
        let long_ago = std::time::SystemTime::now() - 2 * PATIENCE;
        for number in 0..200_u64 {
            let key = format!("k{number}");
            let path = ledger.file(&key, &file).unwrap();
            if number != 7 {
                let made = std::fs::File::open(path.parent().unwrap()).unwrap();
                made.set_modified(long_ago).unwrap();
            }
        }
        // One of them is this container's, and one has just been made.
        ledger.write("k9", &entry("c", 1, folder.path())).unwrap();
        let mut left = ledger.store.identifiers().files;
        left.sort();
        assert_eq!(left, ["k7", "k9"]);
    }
}
