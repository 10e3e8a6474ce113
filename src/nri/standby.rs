//! One instance a node: whoever holds the lock on a file is registered with the runtime, others
//! stand by.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

/// The lock file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {path}: {source}", path = path.display())]
pub struct LockError {
    /// The file.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// The lock, until it is dropped or the process ends. The file stays, and tells the holder's
/// process number.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held")] Flock<File>);

impl Lock {
    /// Takes the lock, or tells who holds it: its process number if it has written it.
    ///
    /// # Errors
    /// The file cannot be made, opened or locked.
    pub fn take(path: &Path) -> Result<Result<Self, Option<u32>>, LockError> {
        let file = open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Ok(held(lock))),
            Err((file, Errno::EWOULDBLOCK)) => Ok(Err(holder(file))),
            Err((_, errno)) => Err(LockError { path: path.to_owned(), source: errno.into() }),
        }
    }

    /// Waits for the lock on a thread of its own. Dropping the future gives the lock up, as soon
    /// as the thread has got it.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn wait(path: &Path) -> Result<Self, LockError> {
        let error = |source| LockError { path: path.to_owned(), source };
        let file = open(path)?;
        let (sender, receiver) = oneshot::channel();
        std::thread::Builder::new()
            .name("nri-standby".to_owned())
            .spawn(move || {
                let mut file = file;
                let result = loop {
                    match Flock::lock(file, FlockArg::LockExclusive) {
                        Err((again, Errno::EINTR)) => file = again,
                        Err((_, errno)) => break Err(errno),
                        Ok(lock) => break Ok(lock),
                    }
                };
                // Nobody waits any more: the lock goes with the message.
                let _ = sender.send(result);
            })
            .map_err(error)?;
        match receiver.await {
            Ok(Ok(lock)) => Ok(held(lock)),
            Ok(Err(errno)) => Err(error(errno.into())),
            Err(gone) => Err(error(io::Error::other(gone))),
        }
    }
}

fn open(path: &Path) -> Result<File, LockError> {
    let open = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    open().map_err(|source| LockError { path: path.to_owned(), source })
}

fn held(mut lock: Flock<File>) -> Lock {
    // For people and for the message of who stands by; the lock is what counts.
    let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write the process number into the lock file");
    }
    Lock(lock)
}

fn holder(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rdma-ctk/nri.lock");
        let first = Lock::take(&path).unwrap().unwrap();
        assert_eq!(Lock::take(&path).unwrap().unwrap_err(), Some(std::process::id()));
        let wait = Lock::wait(&path);
        tokio::pin!(wait);
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut wait).await;
        assert!(early.is_err());
        drop(first);
        let second = wait.await.unwrap();
        assert!(Lock::take(&path).unwrap().is_err());
        drop(second);
        assert!(Lock::take(&path).unwrap().is_ok());
    }

    #[tokio::test]
    async fn who_gives_up_does_not_keep_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nri.lock");
        let first = Lock::take(&path).unwrap().unwrap();
        let wait = Lock::wait(&path);
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), wait).await;
        assert!(early.is_err());
        drop(first);
        Lock::wait(&path).await.unwrap();
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}
