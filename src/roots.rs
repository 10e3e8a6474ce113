//! Where the node's file trees are. Only the program's edge knows real paths: everything else is
//! handed a [`Roots`], so the same code runs on a live node and on a fixture tree.

use std::path::{Path, PathBuf};

/// The five trees that rdma-ctk reads, and of which it writes only below `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// sysfs, `/sys` on a live node.
    pub sys: PathBuf,
    /// procfs, `/proc` on a live node.
    pub proc: PathBuf,
    /// devtmpfs, `/dev` on a live node.
    pub dev: PathBuf,
    /// Run-time state, `/run` on a live node.
    pub run: PathBuf,
    /// Configuration, `/etc` on a live node.
    pub etc: PathBuf,
}

impl Roots {
    /// The five trees as folders of `root`: `/` for the live node, a fixture's folder otherwise.
    pub fn below(root: &Path) -> Self {
        Self {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
            run: root.join("run"),
            etc: root.join("etc"),
        }
    }

    /// True for the live node's own trees: only there do netlink and the device files themselves
    /// speak of the same machine as the trees do.
    pub fn is_live(&self) -> bool {
        self.sys == Path::new("/sys")
    }
}
