//! What only the running node can tell, behind a trait so that the checks can be tested with nodes
//! that behave badly.

#![allow(unsafe_code)] // mlock, and the mapping that it needs: see `Machine::lock`.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};

/// The running node.
pub trait Live {
    /// Soft and hard `RLIMIT_MEMLOCK` of this process in bytes; `u64::MAX` is no limit.
    ///
    /// # Errors
    /// As getrlimit(2).
    fn memlock(&self) -> Result<(u64, u64), Errno>;

    /// Locks that many bytes of fresh memory, and frees them again.
    ///
    /// # Errors
    /// As mmap(2) and mlock(2): `ENOMEM` beyond the limit, `EPERM` where it is 0.
    fn lock(&self, bytes: NonZeroUsize) -> Result<(), Errno>;

    /// Opens a device file for reading and writing, as a verbs program does, and closes it.
    ///
    /// # Errors
    /// As open(2): `EPERM` is the device cgroup or the RDMA namespace, `EACCES` the file's mode,
    /// `ENXIO` a number that no driver serves.
    fn open(&self, path: &Path) -> Result<(), Errno>;

    /// What `PROGRAM --version` prints; `None` where it is not installed or fails. The program is
    /// looked for where the person who runs us has it, never where a process says it comes from.
    fn version(&self, program: &str) -> Option<String>;

    /// What the daemon serves at `/metrics` of that address; `None` where nobody answers in time.
    fn metrics(&self, address: SocketAddr) -> Option<String>;
}

/// The node that this program runs on.
#[derive(Debug, Clone, Copy)]
pub struct Machine;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest answer that is read of it.
const LONGEST_ANSWER: u64 = 8 << 20;

impl Live for Machine {
    fn memlock(&self) -> Result<(u64, u64), Errno> {
        getrlimit(Resource::RLIMIT_MEMLOCK)
    }

    fn lock(&self, bytes: NonZeroUsize) -> Result<(), Errno> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            mmap_anonymous(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        // SAFETY: the range is the mapping just made; locking changes no contents.
        let locked = unsafe { mlock(address, bytes.get()) };
        // SAFETY: the range is that mapping, nothing points into it, and it is used no more.
        let unmapped = unsafe { munmap(address, bytes.get()) };
        locked.and(unmapped)
    }

    fn open(&self, path: &Path) -> Result<(), Errno> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        }
    }

    fn version(&self, program: &str) -> Option<String> {
        let output = std::process::Command::new(program).arg("--version").output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn metrics(&self, address: SocketAddr) -> Option<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.take(LONGEST_ANSWER).read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.").then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_can_be_locked_and_a_missing_file_says_so() {
        let (soft, hard) = Machine.memlock().unwrap();
        assert!(soft <= hard);
        if soft >= 4096 {
            Machine.lock(NonZeroUsize::new(4096).unwrap()).unwrap();
        }
        assert_eq!(Machine.open(Path::new("/dev/infiniband/none")), Err(Errno::ENOENT));
        assert_eq!(Machine.version("a-program-that-nobody-has"), None);
    }
}
