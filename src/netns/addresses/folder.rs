//! The folder of leases: names, reading and writing of its files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Lease, Problem, Refused};
use crate::roots::Roots;

/// Longest lease that is read; one with a thousand routes has some 60 kB.
const LONGEST: u64 = 1 << 20;

/// Where leases are.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

/// What the folder holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub leases: Vec<Lease>,
    pub unread: Vec<Unread>,
    /// Files that were begun and never used.
    pub beside: Vec<PathBuf>,
    pub problems: Vec<Problem>,
    /// Why nobody can tell what is held.
    pub blind: Option<String>,
}

/// A file that cannot be read as a lease: what its name says is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    pub path: PathBuf,
    /// `None`: the name does not say, so that it stays until somebody removes it.
    pub sandbox: Option<String>,
    pub addresses: Vec<IpAddr>,
}

impl Folder {
    pub fn new(roots: &Roots) -> Self {
        Self { path: roots.run.join("rdma-ctk/leases") }
    }

    /// Everything that is in there.
    pub fn read(&self) -> Found {
        let mut found = Found::default();
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return found,
            Err(error) => {
                found.blind = Some(format!("{}: {error}", self.path.display()));
                found.problems.push(Problem::Read { path: self.path.clone(), source: error });
                return found;
            }
        };
        let mut paths = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => paths.push(entry.path()),
                Err(error) => {
                    found.blind = Some(format!("{}: {error}", self.path.display()));
                    found.problems.push(Problem::Read { path: self.path.clone(), source: error });
                }
            }
        }
        paths.sort();
        for path in paths {
            if is_beside(&path) {
                found.beside.push(path);
            } else {
                found.add(path);
            }
        }
        found
    }

    /// Removes what a crash left of files that were never used.
    pub fn sweep(&self, found: &mut Found) {
        for path in std::mem::take(&mut found.beside) {
            found.problems.extend(self.take_away(&path).err());
        }
    }

    /// Whether these can be part of a file's name.
    pub fn names(&self, sandbox: &str, hca: &str) -> Result<(), Refused> {
        let fits = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
            (1..=80).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(plain)
        };
        match [sandbox, hca].into_iter().find(|text| !fits(text)) {
            Some(text) => Err(Refused::Name { text: text.escape_default().to_string() }),
            None => Ok(()),
        }
    }

    pub fn write(&self, lease: &Lease) -> Result<(), Refused> {
        let path = self.file(lease);
        self.put(&path, lease).map_err(|source| Refused::Write { path, source })
    }

    fn put(&self, path: &Path, lease: &Lease) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let beside = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&encode(lease)?)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(&self.path)?.sync_all()
    }

    pub fn remove(&self, lease: &Lease) -> Result<(), Problem> {
        self.take_away(&self.file(lease))
    }

    pub fn remove_unread(&self, unread: &Unread) -> Result<(), Problem> {
        self.take_away(&unread.path)
    }

    fn take_away(&self, path: &Path) -> Result<(), Problem> {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(Problem::Remove { path: path.to_owned(), source }),
        }
        // Were the removal undone by a crash, the address would only be held too long.
        File::open(&self.path).and_then(|folder| folder.sync_all()).ok();
        Ok(())
    }

    fn file(&self, lease: &Lease) -> PathBuf {
        self.path.join(file_name(lease))
    }
}

impl Found {
    /// Takes a lease for one that is not ours, and holds what it holds.
    pub fn strange(&mut self, folder: &Folder, lease: &Lease) {
        let path = folder.file(lease);
        let addresses = lease.addresses.iter().map(|prefix| prefix.address).collect();
        let sandbox = Some(lease.sandbox.clone());
        self.unread.push(Unread { path: path.clone(), sandbox, addresses });
        let reason = format!("{} has another lease for {}", lease.pod, lease.hca);
        self.problems.push(Problem::Lease { path, reason });
    }

    fn add(&mut self, path: PathBuf) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let said = Said::of(&name);
        let wrong = match read(&path) {
            Ok(bytes) => match decode(&bytes) {
                Ok(lease) if file_name(&lease) == name => {
                    let twice = self.leases.iter().find(|other| {
                        lease.addresses.iter().any(|own| {
                            other.addresses.iter().any(|theirs| theirs.address == own.address)
                        })
                    });
                    if let Some(other) = twice {
                        let reason = format!("it holds an address that {} holds too", other.pod);
                        self.problems.push(Problem::Lease { path, reason });
                    }
                    self.leases.push(lease);
                    return;
                }
                Ok(lease) => {
                    // What it says is held as well as what its name says.
                    let addresses = lease.addresses.iter().map(|prefix| prefix.address).collect();
                    let unread = Unread { path: path.clone(), sandbox: None, addresses };
                    self.unread.push(unread);
                    format!("it is that of {} for {}", lease.pod, lease.hca)
                }
                Err(reason) => reason,
            },
            Err(error) => error.to_string(),
        };
        let (sandbox, addresses) = match said {
            Some(said) => (Some(said.sandbox), said.addresses),
            None => (None, Vec::new()),
        };
        self.unread.push(Unread { path: path.clone(), sandbox, addresses });
        self.problems.push(Problem::Lease { path, reason: wrong });
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    Ok(bytes)
}

/// Whether a file is one that [`Folder::put`] had begun.
fn is_beside(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(".new").is_some_and(|front| Said::of(&format!("{front}.json")).is_some())
}

/// The text of a lease's file.
///
/// # Errors
/// None that is known; the type asks for it.
pub fn encode(lease: &Lease) -> io::Result<Vec<u8>> {
    serde_json::to_vec(lease).map_err(io::Error::from)
}

/// A lease from the text of its file.
///
/// # Errors
/// It is none: a sentence.
pub fn decode(bytes: &[u8]) -> Result<Lease, String> {
    let lease: Lease =
        serde_json::from_slice(bytes).map_err(|error| format!("it is no lease: {error}"))?;
    if lease.addresses.len() > 2 {
        return Err("it has more addresses than one of each family".to_owned());
    }
    Ok(lease)
}

/// The name of a lease's file: `SANDBOX+ADAPTER+ADDRESS+ADDRESS.json`.
pub fn file_name(lease: &Lease) -> String {
    let addresses = lease.addresses.iter().map(|prefix| format!("+{}", prefix.address));
    format!("{}+{}{}.json", lease.sandbox, lease.hca, addresses.collect::<String>())
}

/// What a lease's file says by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The sandbox.
    pub sandbox: String,
    /// The adapter.
    pub hca: String,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
}

impl Said {
    /// What that name says; `None`: it is none of a lease.
    pub fn of(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(".json")?.split('+');
        let (sandbox, hca) = (parts.next()?, parts.next()?);
        let addresses: Option<Vec<IpAddr>> = parts.map(|part| part.parse().ok()).collect();
        let whole = !sandbox.is_empty() && !hca.is_empty();
        whole.then_some(Self {
            sandbox: sandbox.to_owned(),
            hca: hca.to_owned(),
            addresses: addresses?,
        })
    }
}
