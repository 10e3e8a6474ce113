//! Exit codes of `rdma-ctk`, in one place: scripts rely on them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done. Of `explain`: at least one container is granted, and none is refused.
    Success = 0,
    /// It could not be done; a sentence on standard error says why.
    Failure = 1,
    /// The command line is wrong. clap ends the program with this code by itself.
    Usage = 2,
    /// `explain`: no container asks for anything, or what asks is somebody else's to serve.
    NotAsked = 3,
    /// `explain`: at least one container is refused, or would be if policy did not let it start
    /// without.
    Refused = 4,
    /// `doctor`: at least one check failed; `cdi validate`: the file is wrong. Warnings alone end
    /// with [`Exit::Success`].
    Unhealthy = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
