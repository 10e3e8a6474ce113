//! What was decided, kept as files, so that every decision can be asked for afterwards, without
//! the daemon too:
//!
//! ```text
//! RUN/rdma-ctk/                       0755
//!   daemon.json                       who serves, and which runtime
//!   containers/ID.json        (0700)  one container's verdict
//!   pods/ID.json              (0700)  what is wrong with a pod as a whole
//!   files/ID/nccl.conf        (0755)  files that are bound into containers, 0444
//!   wrapper/containers, files         the same of the runtime wrapper
//! ```
//!
//! Identifiers come from the runtime and become file names, so they are checked here. A file is
//! replaced as a whole (written beside, then renamed), except the bound ones: a bind mount holds
//! on to the file itself, so these are rewritten in place.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::grant::{Grant, GrantedFile};
use crate::request::Pod;
use crate::roots::Roots;

/// Longest record that is read; a grant over hundreds of adapters has some 100 kB.
const LONGEST: u64 = 8 << 20;

/// Why a record could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// An identifier that cannot be a file name.
    #[error("identifier {0:?} is not made of letters, digits, '_', '.' and '-'")]
    Identifier(String),
    /// A file of ours could not be written, read or removed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is no record.
    #[error("{} is no record of rdma-ctk: {source}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// What was decided for one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The container's identifier.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// The pod around it.
    pub pod: PodName,
    /// The runtime that asked, in words: `containerd 2.1.9 (NRI 0.8.0)`.
    pub runtime: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// What was decided.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Which pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Identifier of its sandbox.
    pub sandbox: String,
}

impl PodName {
    /// The name of that pod, whose sandbox has that identifier.
    pub fn new(pod: &Pod, sandbox: &str) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            sandbox: sandbox.to_owned(),
        }
    }
}

impl std::fmt::Display for PodName {
    /// `NAMESPACE/NAME`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What became of a container that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It was given this.
    Granted {
        /// The whole decision.
        grant: Box<Grant>,
    },
    /// It was not let start.
    Refused {
        /// Why.
        sentence: String,
    },
    /// It could not be given what it asked for, and policy lets it start without.
    Waived {
        /// Why.
        sentence: String,
    },
    /// It runs without, since it was made while nobody was there to see to it.
    Slipped {
        /// What is known, and what to do.
        sentence: String,
    },
    /// It is somebody else's to serve.
    Left {
        /// Whose.
        sentence: String,
    },
}

/// What is wrong with a pod as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Which pod.
    pub pod: PodName,
    /// When it was noticed, in seconds since 1970.
    pub at: u64,
    /// Annotations whose scope names no container of the pod.
    pub unmatched: Vec<String>,
    /// Calls of the runtime about the pod or one of its containers that went wrong on this side and
    /// had no other consequence: a sentence each, the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mishaps: Vec<String>,
}

/// Who serves, written when a session begins or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonState {
    /// Process identifier.
    pub pid: u32,
    /// Version of rdma-ctk.
    pub version: String,
    /// The runtime, once it has said who it is.
    pub runtime: Option<RuntimeState>,
    /// Whether the session stands.
    pub connected: bool,
    /// When that last changed, in seconds since 1970.
    pub since: u64,
    /// Where its metrics are to be read, by HTTP; `None`: nowhere.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

impl DaemonState {
    /// The state of this process, which has no session.
    pub fn beginning() -> Self {
        Self {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime: None,
            connected: false,
            since: seconds_since_1970(),
            metrics: None,
        }
    }
}

/// The runtime at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeState {
    /// As it calls itself: `containerd`, `cri-o`, `docker`.
    pub name: String,
    /// Its version, as it says it.
    pub version: String,
    /// Version of its NRI.
    pub nri: String,
    /// Its real request timeout in milliseconds; 0: it did not say.
    pub request_timeout_ms: u64,
    /// Its real registration timeout in milliseconds; 0: it did not say.
    pub registration_timeout_ms: u64,
}

/// Everything that is on record.
#[derive(Debug, Default)]
pub struct Records {
    /// Containers, by namespace, pod and name.
    pub containers: Vec<Record>,
    /// Pods with something wrong, by namespace and name.
    pub pods: Vec<PodRecord>,
    /// Who serves; `None`: nobody has since the node booted.
    pub daemon: Option<DaemonState>,
    /// Files that could not be read.
    pub unreadable: Vec<RecordError>,
}

/// Reads everything that is on record below `roots.run`. Nothing there is an empty answer; a file
/// that vanishes meanwhile is left out.
pub fn read_all(roots: &Roots) -> Records {
    let store = Store::new(roots);
    let mut records = Records::default();
    records.containers = store.read_folder("containers", &mut records.unreadable);
    let wrapped = Store::wrappers(roots).read_folder("containers", &mut records.unreadable);
    records.containers.extend(wrapped);
    records.containers.sort_by(|a, b| {
        (&a.pod.namespace, &a.pod.name, &a.name, &a.id).cmp(&(
            &b.pod.namespace,
            &b.pod.name,
            &b.name,
            &b.id,
        ))
    });
    records.pods = store.read_folder("pods", &mut records.unreadable);
    records.pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    records.daemon = store.daemon().unwrap_or_else(|error| {
        records.unreadable.push(error);
        None
    });
    records
}

/// The folder of records.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The store below `roots.run`; nothing is made yet.
    pub fn new(roots: &Roots) -> Self {
        Self::at(roots.run.join("rdma-ctk"))
    }

    /// The store of the runtime wrapper, beside the daemon's, which forgets what it does not know.
    pub fn wrappers(roots: &Roots) -> Self {
        Self::at(roots.run.join("rdma-ctk/wrapper"))
    }

    /// The store in that folder.
    pub const fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Makes the folders for containers and their files.
    pub fn prepare_containers(&self) -> Result<(), RecordError> {
        let folders = [("", 0o755), ("containers", 0o700), ("files", 0o755)];
        folders.into_iter().try_for_each(|(folder, mode)| {
            let path = self.folder.join(folder);
            if path.is_dir() { Ok(()) } else { make_folder(&path, mode) }
        })
    }

    /// Writes a record of another shape under that name, instead of [`Store::write`].
    pub fn write_as(&self, name: &str, record: &impl Serialize) -> Result<(), RecordError> {
        replace(&self.path("containers", name)?, record)
    }

    /// A record that [`Store::write_as`] wrote; `None`: there is none.
    pub fn read_as<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RecordError> {
        read(&self.path("containers", name)?)
    }

    /// Where the record of that name is.
    pub fn record_path(&self, name: &str) -> Result<PathBuf, RecordError> {
        self.path("containers", name)
    }

    /// Makes the folders.
    pub fn prepare(&self) -> Result<(), RecordError> {
        for (folder, mode) in
            [("", 0o755), ("containers", 0o700), ("pods", 0o700), ("files", 0o755)]
        {
            make_folder(&self.folder.join(folder), mode)?;
        }
        Ok(())
    }

    /// Writes what was decided for a container.
    pub fn write(&self, record: &Record) -> Result<(), RecordError> {
        replace(&self.path("containers", &record.id)?, record)
    }

    /// Writes what is wrong with a pod.
    pub fn write_pod(&self, record: &PodRecord) -> Result<(), RecordError> {
        replace(&self.path("pods", &record.pod.sandbox)?, record)
    }

    /// What is wrong with a pod; `None`: nothing.
    pub fn read_pod(&self, sandbox: &str) -> Result<Option<PodRecord>, RecordError> {
        read(&self.path("pods", sandbox)?)
    }

    /// Writes who serves.
    pub fn write_daemon(&self, state: &DaemonState) -> Result<(), RecordError> {
        replace(&self.folder.join("daemon.json"), state)
    }

    /// Removes a container's record and files; none there is no error.
    pub fn remove(&self, id: &str) -> Result<(), RecordError> {
        remove_file(&self.path("containers", id)?)?;
        let folder = self.folder.join("files").join(checked(id)?);
        match fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(RecordError::Io { action: "remove", path: folder, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes a pod's record; none there is no error.
    pub fn remove_pod(&self, sandbox: &str) -> Result<(), RecordError> {
        remove_file(&self.path("pods", sandbox)?)
    }

    /// One container's record; `None`: there is none.
    pub fn read(&self, id: &str) -> Result<Option<Record>, RecordError> {
        read(&self.path("containers", id)?)
    }

    /// Who serves; `None`: nobody has.
    pub fn daemon(&self) -> Result<Option<DaemonState>, RecordError> {
        read(&self.folder.join("daemon.json"))
    }

    /// Identifiers of the containers and of the pods on record, and of containers with files.
    pub fn identifiers(&self) -> Identifiers {
        let names = |folder: &str, suffix: &str| {
            let entries = fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
            entries
                .filter_map(|entry| {
                    let name = entry.file_name().into_string().ok()?;
                    let id = name.strip_suffix(suffix)?;
                    checked(id).ok().map(str::to_owned)
                })
                .collect()
        };
        Identifiers {
            containers: names("containers", ".json"),
            pods: names("pods", ".json"),
            files: names("files", ""),
        }
    }

    /// When a container's folder of files was last written to; `None`: it has none.
    pub fn files_made(&self, id: &str) -> Option<SystemTime> {
        let folder = self.folder.join("files").join(checked(id).ok()?);
        fs::metadata(folder).and_then(|data| data.modified()).ok()
    }

    /// Writes a file that is to be bound into the container, and says where it is. A file that is
    /// there already keeps its identity, so that a container which has it bound sees the new text.
    pub fn write_file(&self, id: &str, file: &GrantedFile) -> Result<PathBuf, RecordError> {
        let path = self.file_path(id, file)?;
        if let Some(folder) = path.parent() {
            make_folder(folder, 0o755)?;
        }
        let io = |action| move |path: &Path, source| io_error(action, path, source);
        let old = fs::read(&path).unwrap_or_default();
        if old == file.content.as_bytes() && !old.is_empty() {
            return Ok(path);
        }
        // Without CAP_DAC_OVERRIDE not even root writes to its own file of mode 0444.
        match fs::set_permissions(&path, Permissions::from_mode(0o644)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io("open")(&path, error));
            }
            _ => {}
        }
        let handle = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(|error| io("open")(&path, error))?;
        // The umask of whoever started us must not decide who can read it.
        handle
            .set_permissions(Permissions::from_mode(0o444))
            .and_then(|()| handle.write_all_at(file.content.as_bytes(), 0))
            .and_then(|()| handle.set_len(file.content.len() as u64))
            .map_err(|error| io("write")(&path, error))?;
        Ok(path)
    }

    /// The folder in which each container's files are.
    pub fn files_folder(&self) -> PathBuf {
        self.folder.join("files")
    }

    /// Where [`Store::write_file`] puts that file.
    pub fn file_path(&self, id: &str, file: &GrantedFile) -> Result<PathBuf, RecordError> {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        Ok(self.folder.join("files").join(checked(id)?).join(checked(name)?))
    }

    fn path(&self, folder: &str, id: &str) -> Result<PathBuf, RecordError> {
        Ok(self.folder.join(folder).join(format!("{}.json", checked(id)?)))
    }

    fn read_folder<T: DeserializeOwned>(
        &self,
        folder: &str,
        unreadable: &mut Vec<RecordError>,
    ) -> Vec<T> {
        let folder = self.folder.join(folder);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    unreadable.push(io_error("read", &folder, error));
                }
                return Vec::new();
            }
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut records = Vec::new();
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "json")) {
            match read(&path) {
                Ok(record) => records.extend(record),
                Err(error) => unreadable.push(error),
            }
        }
        records
    }
}

/// What there are records of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// Containers with a verdict.
    pub containers: Vec<String>,
    /// Pods with something wrong.
    pub pods: Vec<String>,
    /// Containers with files.
    pub files: Vec<String>,
}

/// Now.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `id`, if it can be a file name: `[A-Za-z0-9_.-]`, not only dots, at most 200 characters.
fn checked(id: &str) -> Result<&str, RecordError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let named = id.bytes().any(|b| b != b'.');
    if named && id.len() <= 200 && id.bytes().all(fits) {
        Ok(id)
    } else {
        Err(RecordError::Identifier(id.to_owned()))
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> RecordError {
    RecordError::Io { action, path: path.to_owned(), source }
}

fn make_folder(path: &Path, mode: u32) -> Result<(), RecordError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|error| io_error("make folder", path, error))
}

fn replace(path: &Path, value: &impl Serialize) -> Result<(), RecordError> {
    let text = serde_json::to_vec(value)
        .map_err(|source| RecordError::Syntax { path: path.to_owned(), source })?;
    let written = beside(path).and_then(|(mut file, new)| {
        let written = file.write_all(&text).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            // What went wrong is told already.
            let _ = fs::remove_file(&new);
        }
        written
    });
    written.map_err(|error| io_error("write", path, error))
}

/// A new file beside that one, which nobody else writes to, and its path: two engines may make a
/// container by one name at once, and a file that both write to would be put in place half written.
fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut attempts = 0;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let new = path.with_extension(format!("{}-{number}.new", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new) {
            // Of one that had our process identifier, and died.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts < 100 => {
                attempts += 1;
            }
            made => return made.map(|file| (file, new)),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let mut text = Vec::new();
    let done = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path, error)),
        Ok(_) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| RecordError::Syntax { path: path.to_owned(), source }),
    }
}

fn remove_file(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
