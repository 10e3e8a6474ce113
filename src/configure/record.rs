//! Carrying out a plan, and the record that leads back.
//!
//! Order: the backups, the record, the files, each by rename. Whenever that is cut short, the record
//! names every file that may have been changed, and the way back is the same.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::change::{Content, FileChange, Plan};
use super::reversal::without;
use crate::roots::Roots;

/// What is added to the name of a file to name its backup. Imports of `*.toml` do not match it.
const BACKUP: &str = ".rdma-ctk.bak";

/// A plan cannot be carried out or taken back.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Something else is there now than when the plan was made.
    #[error("{}: has changed since it was looked at; run the command again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file that we changed was changed again, and what is ours cannot be told from the rest.
    #[error(
        "{}: somebody has changed it since, and it cannot be read; take the settings of rdma-ctk back by hand. The text \
         before rdma-ctk is in {}",
        path.display(),
        backup.display()
    )]
    ChangedSince {
        /// The file.
        path: PathBuf,
        /// Its backup.
        backup: PathBuf,
    },
    /// A file that we changed cannot be made what it was.
    #[error(
        "{}: its text before rdma-ctk was kept in {}, which is gone; take the settings of rdma-ctk back \
         by hand, then remove {}",
        path.display(),
        backup.display(),
        record.display()
    )]
    NoBackup {
        /// The file.
        path: PathBuf,
        /// Its backup.
        backup: PathBuf,
        /// The record that leads back.
        record: PathBuf,
    },
    /// A file that we made was changed.
    #[error(
        "{}: made by rdma-ctk, and somebody has put something else there that it cannot take \
         itself out of; remove it by hand",
        path.display()
    )]
    MadeAndChanged {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing to take back.
    #[error("{}: nothing of this runtime is on record: nothing has been configured", path.display())]
    NoRecord {
        /// Where the record would be.
        path: PathBuf,
    },
    /// The record is broken.
    #[error("{}: {source}", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A link below another root leads to a file that is none of that root's.
    #[error(
        "{}: a link leads out of {}, and nothing is changed there; run the command inside, by chroot",
        path.display(),
        root.display()
    )]
    Outside {
        /// The file.
        path: PathBuf,
        /// The root.
        root: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// One change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Whose file it is.
    #[serde(default)]
    owner: Owner,
    path: PathBuf,
    /// What was there before.
    was: Was,
    /// What we have put there; `None`: nothing is left there.
    now: Option<Content>,
    /// Folders that were made for it, outermost first.
    folders: Vec<PathBuf>,
    /// It is being taken back: a backup that is gone has been put in its place.
    #[serde(default)]
    undoing: bool,
}

/// Whose files are changed. What is taken back is taken back for one of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// containerd
    #[default]
    Containerd,
    /// CRI-O
    CriO,
    /// podman
    Podman,
    /// Docker
    Docker,
}

/// What was at a path before we came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Was {
    Nothing,
    Link(PathBuf),
    /// A file, of which this is the copy.
    File(PathBuf),
}

fn record_path(roots: &Roots) -> PathBuf {
    roots.etc.join("rdma-ctk/configured.json")
}

/// Makes the changes of a plan, with a backup beside each file that there was.
///
/// # Errors
/// A file is not as the plan found it, or cannot be written. Changes made before that stay, and
/// [`undo_plan`] takes them back.
pub fn apply(roots: &Roots, owner: Owner, plan: &Plan) -> Result<(), ApplyError> {
    if plan.files.is_empty() {
        return Ok(());
    }
    let path = record_path(roots);
    inside(roots, plan.files.iter().map(|change| change.path.as_path()).chain([path.as_path()]))?;
    unchanged(plan)?;
    let mut entries = read_record(&path)?.unwrap_or_default();
    // What an undo that was cut short has taken back already is as if it had never been ours.
    entries.retain(|entry| !entry.is_back());
    for change in &plan.files {
        // Where our own text still stands the way back leads to what was before the first time.
        let ours = entries
            .iter_mut()
            .find(|entry| entry.path == change.path)
            .filter(|entry| entry.now == change.before);
        if let Some(entry) = ours {
            entry.now.clone_from(&change.after);
            entry.undoing = false;
            continue;
        }
        let old = entries.iter().position(|entry| entry.path == change.path);
        let old = old.map(|at| entries.remove(at));
        entries.push(Entry::begin(owner, change, old)?);
    }
    write_record(&path, &entries)?;
    for change in &plan.files {
        put(&change.path, change.after.as_ref())?;
    }
    Ok(())
}

/// The plan that takes back everything that the record names of one owner.
///
/// # Errors
/// The record names nothing of that owner, or somebody has changed a file since.
pub fn undo_plan(roots: &Roots, owner: Owner) -> Result<Plan, ApplyError> {
    let path = record_path(roots);
    let mut entries = read_record(&path)?.unwrap_or_default();
    entries.retain(|entry| entry.owner == owner);
    if entries.is_empty() {
        return Err(ApplyError::NoRecord { path });
    }
    let mut plan = Plan::default();
    for entry in entries.into_iter().rev().filter(|entry| !entry.is_back()) {
        let before = content(&entry.path)?;
        let after = match &entry.was {
            Was::Nothing => None,
            Was::Link(target) => Some(Content::Link(target.clone())),
            Was::File(backup) => match content(backup)? {
                None => {
                    let backup = backup.clone();
                    return Err(ApplyError::NoBackup { path: entry.path, backup, record: path });
                }
                there => there,
            },
        };
        if before == after {
            continue;
        }
        // A link is replaced in two steps, between which there is nothing.
        let halfway = entry.undoing && before.is_none();
        if before == entry.now || halfway {
            plan.files.push(FileChange { path: entry.path, before, after });
            continue;
        }
        let left = entry.without(before.as_ref(), after.as_ref())?;
        let path = entry.path.display();
        plan.notes.push(if left == before {
            format!("{path}: somebody has changed it since; nothing of rdma-ctk is left in it")
        } else {
            format!("{path}: somebody has changed it since; only what is rdma-ctk's is taken out")
        });
        if left != before {
            plan.files.push(FileChange { path: entry.path, before, after: left });
        }
    }
    Ok(plan)
}

/// Carries out a plan of [`undo_plan`]: every file is what it was, with its owner and mode, and the
/// backups and their part of the record are gone.
///
/// # Errors
/// A file is not as the plan found it, or cannot be written.
pub fn undo(roots: &Roots, owner: Owner, plan: &Plan) -> Result<(), ApplyError> {
    unchanged(plan)?;
    let path = record_path(roots);
    let mut entries =
        read_record(&path)?.ok_or_else(|| ApplyError::NoRecord { path: path.clone() })?;
    inside(roots, entries.iter().map(|entry| entry.path.as_path()).chain([path.as_path()]))?;
    // Before the first step, so that the next attempt knows what a missing backup means.
    let ours = entries.iter_mut().filter(|entry| entry.owner == owner);
    ours.for_each(|entry| entry.undoing = true);
    write_record(&path, &entries)?;
    let (ours, rest): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.owner == owner);
    for entry in ours.iter().rev() {
        let planned = plan.files.iter().find(|change| change.path == entry.path);
        match (&entry.was, planned) {
            (Was::File(backup), Some(change)) if content(backup)? == change.after => {
                fs::rename(backup, &change.path).map_err(at(&change.path))?;
            }
            // Somebody had changed it: what is left is neither ours nor what was before.
            (Was::File(backup), Some(change)) => {
                put(&change.path, change.after.as_ref())?;
                gone(fs::remove_file(backup)).map_err(at(backup))?;
            }
            // It is what it was already, or has been put back before.
            (Was::File(backup), None) => gone(fs::remove_file(backup)).map_err(at(backup))?,
            (Was::Nothing | Was::Link(_), Some(change)) => {
                put(&change.path, change.after.as_ref())?;
            }
            (Was::Nothing | Was::Link(_), None) => {}
        }
        for folder in entry.folders.iter().rev() {
            // Somebody may have put something else there.
            let _ = fs::remove_dir(folder);
        }
    }
    if !rest.is_empty() {
        return write_record(&path, &rest);
    }
    gone(fs::remove_file(&path)).map_err(at(&path))?;
    if let Some(folder) = path.parent() {
        // The policy file is there, as a rule.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

impl Entry {
    /// The entry for a change that is about to be made, with the backup beside the file. `old` is
    /// what the record has of the file, whose text somebody has changed since: then the way back
    /// leads to the text as it is now without what is ours.
    fn begin(owner: Owner, change: &FileChange, old: Option<Self>) -> Result<Self, ApplyError> {
        let mut entry = Self::of(owner, change);
        let base = match old {
            None => change.before.clone(),
            Some(old) => {
                let was = match &old.was {
                    Was::File(backup) => content(backup)?,
                    Was::Nothing | Was::Link(_) => None,
                };
                let base = old.without(change.before.as_ref(), was.as_ref())?;
                if base.is_none() {
                    entry.was = Was::Nothing;
                    if let Was::File(backup) = &old.was {
                        gone(fs::remove_file(backup)).map_err(at(backup))?;
                    }
                }
                entry.folders = old.folders;
                base
            }
        };
        if let (Was::File(backup), Some(Content::Text(text))) = (&entry.was, &base) {
            copy(&change.path, text, backup)?;
        }
        Ok(entry)
    }

    /// What is left of a file that somebody has changed when what is ours is taken out; `was` is
    /// what was there before us.
    fn without(
        &self,
        now: Option<&Content>,
        was: Option<&Content>,
    ) -> Result<Option<Content>, ApplyError> {
        let text = |content: Option<&Content>| match content {
            Some(Content::Text(text)) => Some(text.clone()),
            None => Some(String::new()),
            Some(Content::Link(_)) => None,
        };
        let texts = text(was).zip(text(self.now.as_ref())).zip(text(now));
        let left = match texts {
            // Whatever it was, it is gone, and ours with it.
            Some(_) if now.is_none() => Ok(None),
            Some(((was, ours), now)) => without(&self.path, &was, &ours, &now),
            None => Err(()),
        };
        match (left, &self.was) {
            (Ok(left), _) => Ok(left.map(Content::Text)),
            (Err(()), Was::File(backup)) => {
                Err(ApplyError::ChangedSince { path: self.path.clone(), backup: backup.clone() })
            }
            (Err(()), Was::Nothing | Was::Link(_)) => {
                Err(ApplyError::MadeAndChanged { path: self.path.clone() })
            }
        }
    }

    fn of(owner: Owner, change: &FileChange) -> Self {
        let was = match &change.before {
            Some(Content::Text(_)) => {
                let mut name = change.path.clone().into_os_string();
                name.push(BACKUP);
                Was::File(name.into())
            }
            Some(Content::Link(target)) => Was::Link(target.clone()),
            None => Was::Nothing,
        };
        let missing = change.path.ancestors().skip(1).take_while(|folder| !folder.exists());
        let mut folders: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        folders.reverse();
        let (path, now) = (change.path.clone(), change.after.clone());
        Self { owner, path, was, now, folders, undoing: false }
    }

    /// Whether an undo that was cut short has put the backup in the file's place.
    fn is_back(&self) -> bool {
        let there = |path: &Path| fs::symlink_metadata(path).is_ok();
        matches!(&self.was, Was::File(backup) if self.undoing && !there(backup))
            && there(&self.path)
    }
}

/// That the folders of these files are below the root, wherever links lead: those of an image lead, by
/// their absolute paths, to the files of the node that it is looked at from.
fn inside<'a>(roots: &Roots, mut paths: impl Iterator<Item = &'a Path>) -> Result<(), ApplyError> {
    let root = match roots.etc.parent() {
        Some(root) if root == Path::new("/") => return Ok(()),
        Some(root) if !root.as_os_str().is_empty() => root,
        _ => Path::new("."),
    };
    let real = fs::canonicalize(root).map_err(at(root))?;
    paths.try_for_each(|path| {
        // Folders that are missing are made in the last one that is there.
        let there = path.ancestors().skip(1).find(|folder| fs::symlink_metadata(folder).is_ok());
        let folder = there.filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| ".".as_ref());
        if fs::canonicalize(folder).map_err(at(folder))?.starts_with(&real) {
            return Ok(());
        }
        Err(ApplyError::Outside { path: path.to_owned(), root: root.to_owned() })
    })
}

fn unchanged(plan: &Plan) -> Result<(), ApplyError> {
    for change in &plan.files {
        if content(&change.path)? != change.before {
            return Err(ApplyError::Changed { path: change.path.clone() });
        }
    }
    Ok(())
}

/// The file for a path of the node. Those outside of the known trees are where they say.
pub(super) fn locate(roots: &Roots, path: &Path) -> PathBuf {
    for (root, tree) in [("/etc", &roots.etc), ("/run", &roots.run), ("/var/run", &roots.run)] {
        if let Ok(rest) = path.strip_prefix(root) {
            return tree.join(rest);
        }
    }
    path.to_owned()
}

/// Adds a change to the plan, unless that is there already.
pub(super) fn replace(
    path: &Path,
    after: Option<Content>,
    plan: &mut Plan,
) -> Result<(), ApplyError> {
    let mut path = path.to_owned();
    let mut before = content(&path)?;
    // A configuration that is a link is changed where it lies.
    if let (Some(Content::Link(_)), Some(Content::Text(_))) = (&before, &after) {
        path = fs::canonicalize(&path).map_err(at(&path))?;
        before = content(&path)?;
    }
    if before != after {
        plan.files.push(FileChange { path, before, after });
    }
    Ok(())
}

/// What is at a path now.
pub(super) fn content(path: &Path) -> Result<Option<Content>, ApplyError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            // A configuration file may itself be a link, into a store of such files.
            let link = fs::read_link(path).map_err(at(path))?;
            Ok(Some(Content::Link(link)))
        }
        Ok(_) => Ok(Some(Content::Text(fs::read_to_string(path).map_err(at(path))?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ApplyError::Io { path: path.to_owned(), source }),
    }
}

/// Puts something there, or takes away what is there. A file appears whole or not at all.
fn put(path: &Path, content: Option<&Content>) -> Result<(), ApplyError> {
    if let (Some(folder), Some(_)) = (path.parent(), content) {
        fs::create_dir_all(folder).map_err(at(folder))?;
    }
    match content {
        None => gone(fs::remove_file(path)),
        Some(Content::Link(target)) => {
            // Not by way of another name: a runtime may take each file of this folder for a plugin.
            gone(fs::remove_file(path)).and_then(|()| symlink(target, path))
        }
        Some(Content::Text(text)) => {
            let new = beside(path);
            write(&new, text, fs::metadata(path).ok()).and_then(|()| fs::rename(&new, path))
        }
    }
    .map_err(at(path))
}

/// Writes a new file with the owner and mode of another, or those of a file that everybody may
/// read.
fn write(path: &Path, text: &str, like: Option<fs::Metadata>) -> io::Result<()> {
    gone(fs::remove_file(path))?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    let mode = like.as_ref().map_or(0o644, |like| like.mode() & 0o7777);
    if let Some(like) = like {
        chown(path, Some(like.uid()), Some(like.gid()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Writes a text with the owner and mode of another file.
fn copy(from: &Path, text: &str, to: &Path) -> Result<(), ApplyError> {
    let like = fs::metadata(from).map_err(at(from))?;
    let new = beside(to);
    write(&new, text, Some(like)).and_then(|()| fs::rename(&new, to)).map_err(at(to))
}

/// A name in the same folder that no `*.toml` matches.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".rdma-ctk.new");
    name.into()
}

fn read_record(path: &Path) -> Result<Option<Vec<Entry>>, ApplyError> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| ApplyError::Record { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ApplyError::Io { path: path.to_owned(), source }),
    }
}

fn write_record(path: &Path, entries: &[Entry]) -> Result<(), ApplyError> {
    let text = serde_json::to_string_pretty(entries)
        .map_err(|source| ApplyError::Record { path: path.to_owned(), source })?;
    put(path, Some(&Content::Text(text + "\n")))
}

/// Success, too, where there was nothing to remove.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ApplyError {
    let path = path.to_owned();
    move |source| ApplyError::Io { path, source }
}
