//! Who has what of SMC-R on this machine, a file for each container below `/run/rdma-ctk/smc`.
//!
//! Containers of the daemon are told by its runtime when a session begins; those of the runtime
//! wrapper and of hooks have nobody who remembers them. So each writes down what has to be taken
//! back, and the daemon, which makes the switch agree with what there is, leaves theirs alone. A
//! claim of a hook is worth as much as the folder that it names: when that has gone, and nobody was
//! called for it, whoever comes next takes back what it was for.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::bpf::{Group, Switch};
use super::prepare;
use crate::grant::{PNET_OURS, SmcGrant};
use crate::roots::Roots;

/// The claims could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// A file or folder cannot be used.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A claim cannot be written as text.
    #[error("cannot put down the claim {path}: {source}", path = path.display())]
    Syntax {
        /// Its file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// A key that can be no file name.
    #[error("{0:?} is not made of letters, digits, '_', '.' and '-'")]
    Key(String),
}

/// Who takes a claim back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keeper {
    /// The daemon, which is told what runs.
    Daemon,
    /// A hook of the runtime, which is told when its container has gone.
    Hook,
}

impl Keeper {
    const fn word(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Hook => "hook",
        }
    }
}

/// What one container has of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who takes it back.
    pub keeper: Keeper,
    /// For a hook's: a folder that is there as long as the container, its control group's where it
    /// is switched.
    pub place: PathBuf,
    /// Its control group, where a hook has switched that.
    pub group: Option<Group>,
    /// PNET ids of ours that it needs.
    pub names: BTreeSet<String>,
}

impl Claim {
    /// The claim of a container of the daemon; `None`: there is nothing that others could take away.
    pub fn of_daemon(grant: &SmcGrant) -> Option<Self> {
        let names = names(grant);
        let claim = Self { keeper: Keeper::Daemon, place: PathBuf::new(), group: None, names };
        (!claim.names.is_empty()).then_some(claim)
    }

    /// The claim of a hook for a container whose control group, or bundle, is that folder.
    pub fn of_hook(grant: &SmcGrant, place: &Path, group: Option<Group>) -> Self {
        Self { keeper: Keeper::Hook, place: place.to_owned(), group, names: names(grant) }
    }

    /// Whether there is still a container that it is for.
    fn holds(&self) -> bool {
        match (self.keeper, self.group) {
            (Keeper::Daemon, _) => true,
            // Numbers of control groups are not given again.
            (Keeper::Hook, Some(group)) => {
                fs::metadata(&self.place).is_ok_and(|folder| folder.ino() == group.id)
            }
            (Keeper::Hook, None) => self.place.is_dir(),
        }
    }
}

fn names(grant: &SmcGrant) -> BTreeSet<String> {
    let names = grant.pnet.iter().map(|pnet| pnet.name.clone());
    names.filter(|name| name.starts_with(PNET_OURS)).collect()
}

/// The claims of this machine, for whoever is at it: one at a time.
#[derive(Debug)]
pub struct Claims {
    roots: Roots,
    folder: PathBuf,
    _turn: Flock<File>,
}

impl Claims {
    /// Waits for its turn, which lasts until the answer is dropped.
    ///
    /// # Errors
    /// The folder cannot be made or locked.
    pub fn open(roots: &Roots) -> Result<Self, ClaimError> {
        let folder = roots.run.join("rdma-ctk/smc");
        DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(|source| {
            ClaimError::File { action: "make folder", path: folder.clone(), source }
        })?;
        let path = folder.join("lock");
        let failed = |source| ClaimError::File { action: "lock", path: path.clone(), source };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let turn = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed(errno.into()))?;
        Ok(Self { roots: roots.clone(), folder, _turn: turn })
    }

    /// Writes a container's claim, under a name that its keeper gives it.
    ///
    /// # Errors
    /// The name is none, or the file cannot be written.
    pub fn put(&self, key: &str, claim: &Claim) -> Result<(), ClaimError> {
        let path = self.path(claim.keeper, key)?;
        let text = serde_json::to_vec(claim)
            .map_err(|source| ClaimError::Syntax { path: path.clone(), source })?;
        let beside = path.with_extension("new");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(|source| ClaimError::File { action: "write", path, source })
    }

    /// Removes a claim; `None`: there was none.
    ///
    /// # Errors
    /// The name is none, or the file cannot be read or removed.
    pub fn take(&self, keeper: Keeper, key: &str) -> Result<Option<Claim>, ClaimError> {
        let path = self.path(keeper, key)?;
        let claim = read(&path).map_err(|source| ClaimError::File {
            action: "read",
            path: path.clone(),
            source,
        })?;
        remove(&path)?;
        Ok(claim)
    }

    /// All claims, by keeper and key, as far as they can be read. What is no claim is no longer there
    /// afterwards.
    pub fn all(&self) -> Vec<(Keeper, String, Claim)> {
        self.read_all().0
    }

    /// Control groups that hooks have switched.
    ///
    /// # Errors
    /// A claim cannot be read, so that it is not known whose the other groups are.
    pub fn groups(&self) -> Result<Vec<Group>, ClaimError> {
        let (all, unread) = self.read_all();
        match unread {
            Some(unread) => Err(unread),
            None => Ok(all.into_iter().filter_map(|(_, _, claim)| claim.group).collect()),
        }
    }

    fn read_all(&self) -> (Vec<(Keeper, String, Claim)>, Option<ClaimError>) {
        let failed = |path: PathBuf, source| ClaimError::File { action: "read", path, source };
        let (mut all, mut unread) = (Vec::new(), None);
        let files = match fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(source) => return (all, Some(failed(self.folder.clone(), source))),
        };
        for file in files.flatten() {
            let Some(name) = file.file_name().to_str().map(str::to_owned) else { continue };
            let Some(stem) = name.strip_suffix(".json") else { continue };
            let known = [Keeper::Daemon, Keeper::Hook].into_iter().find_map(|keeper| {
                Some((keeper, stem.strip_prefix(keeper.word())?.strip_prefix('-')?.to_owned()))
            });
            let claim = match read(&file.path()) {
                Ok(claim) => claim,
                // Too many open files, say: it is a claim all the same.
                Err(source) => {
                    unread.get_or_insert_with(|| failed(file.path(), source));
                    continue;
                }
            };
            match known.zip(claim) {
                Some(((keeper, key), claim)) if claim.keeper == keeper => {
                    all.push((keeper, key, claim));
                }
                _ => drop(remove(&file.path())),
            }
        }
        all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        (all, unread)
    }

    /// Takes back what containers had that have gone without anybody being called. Returned is what
    /// could not be taken back, a sentence each.
    pub fn sweep(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (keeper, key, claim) in self.all() {
            if !claim.holds() {
                problems.extend(self.give_back(keeper, &key));
            }
        }
        problems
    }

    /// Takes back what a container had, as far as nobody else needs it. Returned is what could not
    /// be taken back, a sentence each.
    pub fn give_back(&self, keeper: Keeper, key: &str) -> Vec<String> {
        let claim = match self.take(keeper, key) {
            Ok(Some(claim)) => claim,
            Ok(None) => return Vec::new(),
            Err(problem) => return vec![problem.to_string()],
        };
        let mut problems = Vec::new();
        if let Some(group) = claim.group
            && let Err(problem) = Switch::new(&self.roots, false).remove(group.id)
        {
            problems.push(format!("a stopped container stays in the switch of SMC-R: {problem}"));
        }
        problems.extend(self.forget(&claim.names));
        problems
    }

    /// Takes PNET ids of ours out of the host's table, except those that somebody claims.
    pub fn forget<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let all = self.all();
        let used = |name: &String| all.iter().any(|(_, _, claim)| claim.names.contains(name));
        let unused = names.into_iter().filter(|name| !used(name));
        let failed = unused.filter_map(|name| Some((name, prepare::forget(name).err()?)));
        failed.map(|(name, problem)| format!("the PNET id {name} stays: {problem}")).collect()
    }

    fn path(&self, keeper: Keeper, key: &str) -> Result<PathBuf, ClaimError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if key.is_empty() || key.len() > 200 || !key.bytes().all(fits) {
            return Err(ClaimError::Key(key.to_owned()));
        }
        Ok(self.folder.join(format!("{}-{key}.json", keeper.word())))
    }
}

/// `None`: it is not there, or is no claim.
fn read(path: &Path) -> io::Result<Option<Claim>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path) -> Result<(), ClaimError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ClaimError::File { action: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::PnetGrant;
    use crate::request::SmcMethod;

    fn grant(names: &[&str]) -> SmcGrant {
        let pnet = names.iter().map(|name| PnetGrant {
            name: (*name).to_owned(),
            adapter: "mlx5_0".into(),
            port: 1,
            interface: "eth0".into(),
        });
        SmcGrant {
            method: SmcMethod::Bpf,
            eid: None,
            pnet: pnet.collect(),
            sysctls: Vec::new(),
            by_runtime: false,
            mptcp: false,
            later: false,
        }
    }

    #[test]
    fn a_claim_is_there_until_it_is_taken_or_its_container_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let place = folder.path().join("group");
        fs::create_dir(&place).unwrap();
        let group = Group { id: fs::metadata(&place).unwrap().ino(), depth: 2 };
        let claims = Claims::open(&roots).unwrap();
        // Names of others are nobody's to take away.
        assert_eq!(Claim::of_daemon(&grant(&["00163E0A0B0C"])), None);
        let daemons = Claim::of_daemon(&grant(&["RCTK1"])).unwrap();
        let hooks = Claim::of_hook(&grant(&["RCTK1", "OTHER"]), &place, Some(group));
        assert_eq!(hooks.names, ["RCTK1".to_owned()].into());
        claims.put("c1", &daemons).unwrap();
        claims.put("0a-c1", &hooks).unwrap();
        drop(claims);
        let claims = Claims::open(&roots).unwrap();
        assert_eq!(
            claims.all(),
            [
                (Keeper::Daemon, "c1".to_owned(), daemons),
                (Keeper::Hook, "0a-c1".to_owned(), hooks.clone())
            ]
        );
        assert_eq!(claims.groups().unwrap(), [group]);
        // Somebody claims the name: it is not asked for at all, where there is no SMC to be asked.
        assert_eq!(claims.forget([&"RCTK1".to_owned()]), Vec::<String>::new());
        claims.sweep();
        assert_eq!(claims.all().len(), 2);
        // Another group by that path.
        let other = Claim { group: Some(Group { id: group.id + 1, depth: 2 }), ..hooks.clone() };
        claims.put("0b-c2", &other).unwrap();
        let bundle = Claim { group: None, ..hooks };
        claims.put("0c-c3", &bundle).unwrap();
        assert!(bundle.holds() && !other.holds());
        claims.sweep();
        let left: Vec<String> = claims.all().into_iter().map(|(_, key, _)| key).collect();
        assert_eq!(left, ["c1", "0a-c1", "0c-c3"]);
        fs::remove_dir(&place).unwrap();
        claims.sweep();
        let left: Vec<String> = claims.all().into_iter().map(|(_, key, _)| key).collect();
        assert_eq!(left, ["c1"]);
        assert_eq!(claims.take(Keeper::Hook, "c1").unwrap(), None);
        assert!(claims.take(Keeper::Daemon, "c1").unwrap().is_some());
        assert_eq!(claims.take(Keeper::Daemon, "c1").unwrap(), None);
    }

    #[test]
    fn what_is_no_claim_goes_and_a_key_is_no_path() {
        let folder = tempfile::tempdir().unwrap();
        let claims = Claims::open(&Roots::below(folder.path())).unwrap();
        let path = folder.path().join("run/rdma-ctk/smc/hook-x.json");
        fs::write(&path, "{").unwrap();
        assert_eq!(claims.all(), []);
        assert!(!path.exists());
        // What cannot be read may be one.
        fs::create_dir(&path).unwrap();
        assert_eq!(claims.all(), []);
        let unread = claims.groups().unwrap_err().to_string();
        assert!(unread.starts_with("cannot read ") && path.exists(), "{unread}");
        assert!(claims.take(Keeper::Hook, "x").is_err());
        for key in ["", "a/b", "é", &"x".repeat(300)] {
            assert!(claims.take(Keeper::Hook, key).is_err(), "{key}");
        }
    }
}
