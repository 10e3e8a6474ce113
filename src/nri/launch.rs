//! Being started by the runtime from its plugin folder: the connection is an inherited descriptor
//! that the environment names.
#![allow(unsafe_code)] // An inherited descriptor is a number until somebody vouches for it.

use super::plugin::{Identity, IdentityError};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt,
};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why this process cannot be the plugin that the runtime has started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Some of the variables are there, but not this one.
    #[error("{0} is not set, or is no text: a runtime that starts a plugin sets it")]
    Missing(&'static str),
    /// The name of the file in the plugin folder.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The number of the descriptor.
    #[error("NRI_PLUGIN_SOCKET={0}: not the number of an inherited descriptor")]
    Number(String),
    /// What the number stands for.
    #[error("NRI_PLUGIN_SOCKET={0}: not a connected Unix stream socket")]
    Socket(RawFd),
    /// The descriptor has been taken before.
    #[error("NRI_PLUGIN_SOCKET={0}: already in use")]
    Taken(RawFd),
}

/// What the runtime gave the process that it started.
#[derive(Debug)]
pub struct Launched {
    /// From the name of the file that was started.
    pub identity: Identity,
    /// The connection to the runtime.
    pub stream: UnixStream,
}

/// Whether the inherited descriptor has got an owner.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Launched {
    /// What the environment says; `None` where it says nothing, so that this is no such process.
    ///
    /// # Errors
    /// It says something that cannot be used.
    pub fn from_env() -> Result<Option<Self>, LaunchError> {
        let Some(said) = Said::read(|name| std::env::var_os(name))? else { return Ok(None) };
        let identity = Identity::new(&said.index, &said.name)?;
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(LaunchError::Taken(said.descriptor));
        }
        // SAFETY: the number is above those of the standard streams, and the runtime gave this
        // descriptor to the process for this purpose only. Nothing else here opens or closes
        // descriptors by number, and `TAKEN` lets through once only.
        let stream = unsafe { adopt(said.descriptor) }?;
        Ok(Some(Self { identity, stream }))
    }
}

/// The variables, parsed.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    name: String,
    index: String,
    descriptor: RawFd,
}

impl Said {
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, LaunchError> {
        const NAMES: [&str; 3] = ["NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX", "NRI_PLUGIN_SOCKET"];
        if NAMES.iter().all(|name| variable(name).is_none()) {
            return Ok(None);
        }
        let get = |name: &'static str| {
            variable(name)
                .and_then(|value| value.into_string().ok())
                .ok_or(LaunchError::Missing(name))
        };
        let [name, index, socket] = NAMES;
        let (name, index, socket) = (get(name)?, get(index)?, get(socket)?);
        match socket.parse() {
            Ok(descriptor @ 3..) => Ok(Some(Self { name, index, descriptor })),
            _ => Err(LaunchError::Number(socket)),
        }
    }
}

/// The socket behind `number`, not inherited any further.
///
/// # Safety
/// If `number` is open, then nobody else owns it.
unsafe fn adopt(number: RawFd) -> Result<UnixStream, LaunchError> {
    {
        // SAFETY: used for system calls only, which fail if it is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let stream = getsockopt(&fd, sockopt::SockType) == Ok(SockType::Stream);
        let family = getsockname::<SockaddrStorage>(fd.as_raw_fd()).ok().and_then(|a| a.family());
        if !stream || family != Some(AddressFamily::Unix) {
            return Err(LaunchError::Socket(number));
        }
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
            .map_err(|_| LaunchError::Socket(number))?;
    }
    // SAFETY: it is open, as the calls above show, and it is nobody else's by the caller's word.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(UnixStream::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    fn said(variables: &[(&str, &str)]) -> Result<Option<Said>, LaunchError> {
        Said::read(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn what_the_environment_says() {
        assert_eq!(said(&[]).unwrap(), None);
        assert_eq!(said(&[("NRI", "x")]).unwrap(), None);
        let all =
            [("NRI_PLUGIN_NAME", "rdma-ctk"), ("NRI_PLUGIN_IDX", "10"), ("NRI_PLUGIN_SOCKET", "3")];
        let expected = Said { name: "rdma-ctk".into(), index: "10".into(), descriptor: 3 };
        assert_eq!(said(&all).unwrap(), Some(expected));
        for missing in 0..3 {
            let mut some = all.to_vec();
            let (name, _) = some.remove(missing);
            let error = said(&some).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        for number in ["", "x", "-1", "0", "2", "99999999999"] {
            let mut some = all;
            some[2].1 = number;
            assert!(matches!(said(&some), Err(LaunchError::Number(_))), "{number}");
        }
    }

    #[test]
    fn only_a_unix_stream_socket_is_taken() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let number = ours.into_raw_fd();
        // SAFETY: nobody else owns it.
        let taken = unsafe { adopt(number) }.unwrap();
        theirs.write_all(b"x").unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        let flags = fcntl(&taken, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, FdFlag::FD_CLOEXEC.bits());

        let file = tempfile::tempfile().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        for other in [file.as_raw_fd(), tcp.as_raw_fd(), datagram.as_raw_fd(), 100_000] {
            // SAFETY: it is not taken.
            let refused = unsafe { adopt(other) };
            assert!(matches!(refused, Err(LaunchError::Socket(n)) if n == other), "{refused:?}");
        }
    }
}
