//! The policy in force. It comes from a file, or from the runtime when that started us with a
//! configuration; a broken one never takes the place of one that works.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{error, info};

use crate::policy::{LoadError, Policy, PolicyError};

/// Where the policy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The node's file, which need not be there.
    Default(PathBuf),
    /// A file that somebody named, which has to be there.
    Named(PathBuf),
}

impl Source {
    fn load(&self) -> Result<Policy, LoadError> {
        let (path, optional) = match self {
            Self::Default(path) => (path, true),
            Self::Named(path) => (path, false),
        };
        match fs::read_to_string(path) {
            Ok(text) => Policy::from_toml(&text)
                .map_err(|source| LoadError::Policy { path: path.clone(), source }),
            Err(error) if optional && error.kind() == io::ErrorKind::NotFound => {
                Ok(Policy::default())
            }
            Err(source) => Err(LoadError::Read { path: path.clone(), source }),
        }
    }
}

/// The keeper of the policy.
#[derive(Debug)]
pub struct Policies {
    source: Source,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    policy: Arc<Policy>,
    /// The runtime gave it, so the file does not count.
    by_runtime: bool,
}

impl Policies {
    /// The policy that `source` has now.
    ///
    /// # Errors
    /// There is a file, and it cannot be read or is broken.
    pub fn load(source: Source) -> Result<Self, LoadError> {
        let policy = Arc::new(source.load()?);
        Ok(Self { source, current: Mutex::new(Current { policy, by_runtime: false }) })
    }

    /// The policy in force.
    pub fn now(&self) -> Arc<Policy> {
        Arc::clone(&self.current().policy)
    }

    /// Reads the file again; a broken one changes nothing. True: it is in force, or would be if
    /// the runtime had not given another.
    pub fn reload(&self) -> bool {
        match self.source.load() {
            Ok(policy) => {
                let mut current = self.current();
                if current.by_runtime {
                    info!("the policy is the runtime's and stays; the file is well");
                } else if *current.policy == policy {
                    info!("the policy is as it was");
                } else {
                    info!("the policy has changed and is in force for new containers");
                    current.policy = Arc::new(policy);
                }
                true
            }
            Err(problem) => {
                error!("the policy stays as it was: {problem}");
                false
            }
        }
    }

    /// Takes the text that the runtime has given, if there is any.
    ///
    /// # Errors
    /// The text is no policy; what was in force still is.
    pub fn configure(&self, text: &str) -> Result<(), PolicyError> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let policy = Policy::from_toml(text)?;
        let mut current = self.current();
        current.policy = Arc::new(policy);
        current.by_runtime = true;
        Ok(())
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_stops_the_start_and_changes_nothing_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let source = Source::Default(path.clone());
        let policies = Policies::load(source.clone()).unwrap();
        assert_eq!(*policies.now(), Policy::default());

        fs::write(&path, "rails = [\"mlx5_0\"]\n").unwrap();
        assert!(policies.reload());
        assert_eq!(policies.now().rails, ["mlx5_0"]);

        fs::write(&path, "skip_containers = []\nclaims = 7\n").unwrap();
        assert!(!policies.reload());
        assert_eq!(policies.now().rails, ["mlx5_0"]);
        let error = Policies::load(source).unwrap_err().to_string();
        assert!(error.contains("config.toml: line 2, column"), "{error}");

        fs::remove_file(&path).unwrap();
        assert!(policies.reload());
        assert_eq!(*policies.now(), Policy::default());
        assert!(Policies::load(Source::Named(path)).is_err());
    }

    #[test]
    fn a_text_of_the_runtime_goes_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, "rails = [\"mlx5_0\"]\n").unwrap();
        let policies = Policies::load(Source::Named(path)).unwrap();
        policies.configure(" \n").unwrap();
        assert_eq!(policies.now().rails, ["mlx5_0"]);
        let error = policies.configure("rails = 7").unwrap_err();
        assert_eq!(error.line, 1);
        assert_eq!(policies.now().rails, ["mlx5_0"]);
        policies.configure("rails = [\"mlx5_1\"]").unwrap();
        assert!(policies.reload());
        assert_eq!(policies.now().rails, ["mlx5_1"]);
    }
}
