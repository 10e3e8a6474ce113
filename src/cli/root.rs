//! `--root`: the node to look at, the one underneath or a fixture.

use std::path::{Path, PathBuf};

use clap::Args;

use super::Error;
use super::output::Format;
use crate::inventory::{self, Node, fixture, rdma_netlink};
use crate::roots::Roots;

/// Which node, and how to tell of it: what the commands that only look have in common.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// Look at the node in this folder (sys, proc, dev, run, etc) or .tree file, not at this one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// How to write it: table, json or yaml
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub output: Format,
}

/// A node's trees, and the folder that a `.tree` file was unpacked into, which goes with it.
#[derive(Debug)]
pub struct Trees {
    /// The trees.
    pub roots: Roots,
    unpacked: Option<PathBuf>,
}

impl ViewArgs {
    /// The trees to look at.
    ///
    /// # Errors
    /// What was named is neither a folder nor a fixture text, or it cannot be unpacked.
    pub fn trees(&self) -> Result<Trees, Error> {
        Trees::of(self.root.as_deref())
    }
}

impl Trees {
    /// The trees in that folder or fixture text; of this node without one.
    ///
    /// # Errors
    /// What was named is neither a folder nor a fixture text, or it cannot be unpacked.
    pub fn of(root: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = root else {
            return Ok(Trees { roots: Roots::below("/".as_ref()), unpacked: None });
        };
        if path.is_dir() {
            return Trees { roots: Roots::below(path), unpacked: None }.of_a_node(path);
        }
        let template = std::env::temp_dir().join("rdma-ctk-XXXXXX");
        let folder = nix::unistd::mkdtemp(&template)
            .map_err(|error| Error::Temporary { path: template, error })?;
        // Made first, so that a fixture unpacked in part is removed too.
        let trees = Trees { roots: Roots::below(&folder), unpacked: Some(folder.clone()) };
        fixture::unpack(path, &folder)?;
        trees.of_a_node(path)
    }

    /// Itself, unless there is nothing of a node: an empty or mistyped one is not to pass for a
    /// node without adapters.
    fn of_a_node(self, path: &Path) -> Result<Self, Error> {
        let Roots { sys, proc, dev, run, etc } = &self.roots;
        if [sys, proc, dev, run, etc].iter().any(|tree| tree.is_dir()) {
            Ok(self)
        } else {
            Err(Error::NoNode { path: path.to_owned() })
        }
    }

    /// A text with paths as the node has them: see [`Trees::shown`].
    pub fn worded(&self, text: &str) -> String {
        match &self.unpacked {
            None => text.to_owned(),
            Some(folder) => text.replace(&folder.display().to_string(), ""),
        }
    }

    /// A path as the node has it, where its trees were unpacked into a folder that soon is gone.
    pub fn shown(&self, path: &Path) -> PathBuf {
        let inside = self.unpacked.as_ref().and_then(|folder| path.strip_prefix(folder).ok());
        inside.map_or_else(|| path.to_owned(), |inside| Path::new("/").join(inside))
    }

    /// What the node has. RDMA netlink is asked on the running node only; if it does not answer,
    /// that is one of the remarks.
    pub fn node(&self) -> Node {
        if !self.roots.is_live() {
            return inventory::snapshot(&self.roots, None);
        }
        match rdma_netlink::read(&self.roots) {
            Ok(view) => inventory::snapshot(&self.roots, view.as_ref()),
            Err(error) => {
                let mut node = inventory::snapshot(&self.roots, None);
                node.remarks.push(format!("RDMA netlink did not answer: {error}"));
                node
            }
        }
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        if let Some(folder) = &self.unpacked {
            // Nobody is left to be told; the system clears its temporary folder.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
