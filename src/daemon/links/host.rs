//! The node as far as moving adapters goes: what is looked at before, and who moves.

use std::fmt::Debug;
use std::path::Path;

use crate::grant::{Use, interfaces};
use crate::inventory::{Hca, Node};
use crate::netns::links::linux::Linux;
use crate::netns::links::{Kernel, Place, Saved, users};
use crate::roots::Roots;

/// What is asked of the node; blocking.
pub trait Host: Debug + Send + Sync {
    /// The namespace at a path that a runtime gave; `None`: it is the host's own.
    ///
    /// # Errors
    /// There is none, as a sentence without its end.
    fn place(&self, path: &Path) -> Result<Option<Place>, String>;

    /// Index of an adapter, and what is to be put back of its interface.
    ///
    /// # Errors
    /// It cannot be known, likewise.
    fn save(&self, hca: &Hca) -> Result<(u32, Option<Saved>), String>;

    /// Who uses an adapter.
    fn uses(&self, hca: &Hca, node: &Node) -> Use;

    /// What moves adapters.
    fn kernel(&self) -> Box<dyn Kernel>;
}

/// The node that this runs on.
#[derive(Debug, Clone)]
pub struct Live {
    roots: Roots,
    linux: Linux,
}

impl Live {
    /// The node of these trees.
    pub fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone(), linux: Linux::new(roots) }
    }
}

impl Host for Live {
    fn place(&self, path: &Path) -> Result<Option<Place>, String> {
        self.linux.place(path).map_err(|error| error.to_string())
    }

    fn save(&self, hca: &Hca) -> Result<(u32, Option<Saved>), String> {
        let index = self.linux.index(&hca.name)?;
        let netdev = interfaces(hca).first().map(|name| self.linux.save(name)).transpose()?;
        Ok((index, netdev))
    }

    fn uses(&self, hca: &Hca, node: &Node) -> Use {
        users::of(&self.roots, hca, node)
    }

    fn kernel(&self) -> Box<dyn Kernel> {
        Box::new(self.linux.clone())
    }
}
