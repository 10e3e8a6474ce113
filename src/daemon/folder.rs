//! A folder of small files, an entry each as JSON, where what was written is there after a crash.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest entry that is read; a thousand routes have some 100 kB.
const LONGEST: u64 = 8 << 20;

/// Entries by name: `FOLDER/NAME.json`.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// That at this path, which may not be there yet.
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// All entries, and what is wrong with those that cannot be read, a sentence each. An entry in
    /// another one's file is wrong.
    pub fn read_all<T: DeserializeOwned>(
        &self,
        name: impl Fn(&T) -> &str,
    ) -> (Vec<T>, Vec<String>) {
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        let names = match fs::read_dir(&self.path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (entries, problems),
            Err(error) => {
                problems.push(format!("{}: {error}", self.path.display()));
                return (entries, problems);
            }
        };
        let mut paths: Vec<PathBuf> = names.flatten().map(|name| name.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            match read::<T>(path) {
                Ok(entry) if self.file(name(&entry)).is_ok_and(|own| own == *path) => {
                    entries.push(entry);
                }
                Ok(entry) => problems.push(format!("{}: is of {}", path.display(), name(&entry))),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        (entries, problems)
    }

    /// Writes an entry in the place of the last one of that name.
    ///
    /// # Errors
    /// It is not on disk, or the name cannot be a file's.
    pub fn write<T: Serialize>(&self, name: &str, entry: &T) -> io::Result<()> {
        let path = self.file(name)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let beside = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        serde_json::to_writer(&mut file, entry).map_err(io::Error::from)?;
        file.flush()?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        self.settle()
    }

    /// Removes the entry of that name; that there is none is no error.
    ///
    /// # Errors
    /// It is still on disk.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.file(name)?) {
            Ok(()) => self.settle(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            let told = format!("{name:?} cannot be a file name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, told));
        }
        Ok(self.path.join(format!("{name}.json")))
    }

    /// Makes what was done in the folder last beyond a crash.
    fn settle(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let data = fs::symlink_metadata(path)?;
    if !data.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    if data.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
}
