//! bpf(2), as far as one program and two maps need it.
#![allow(unsafe_code)] // A system call whose argument is a structure with addresses in it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

use super::program::Instruction;

/// `enum bpf_cmd`
mod command {
    use nix::libc::c_int;

    pub const MAP_CREATE: c_int = 0;
    pub const MAP_LOOKUP: c_int = 1;
    pub const MAP_UPDATE: c_int = 2;
    pub const MAP_DELETE: c_int = 3;
    pub const MAP_NEXT_KEY: c_int = 4;
    pub const PROG_LOAD: c_int = 5;
    pub const OBJ_PIN: c_int = 6;
    pub const OBJ_GET: c_int = 7;
    pub const PROG_BY_ID: c_int = 13;
    pub const OBJ_INFO: c_int = 15;
    pub const RAW_TRACEPOINT_OPEN: c_int = 17;
    pub const BTF_BY_ID: c_int = 19;
    pub const BTF_NEXT_ID: c_int = 23;
}

/// `BPF_MAP_TYPE_HASH`
pub const HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`
pub const ARRAY: u32 = 2;
/// `BPF_F_NO_PREALLOC`: entries take memory only while they are there.
pub const NO_PREALLOC: u32 = 1;
/// `BPF_PROG_TYPE_TRACING`
const TRACING: u32 = 26;
/// `BPF_MODIFY_RETURN`
const MODIFY_RETURN: u32 = 26;
/// Longest name of a program or map, with its NUL.
const NAME: usize = 16;
/// What the verifier may say, in bytes.
const LOG: usize = 64 * 1024;

/// The verifier, or the kernel before it, does not take a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Why.
    pub errno: Errno,
    /// The last lines of what the verifier said; empty where it was not asked.
    pub said: String,
}

/// Calls bpf(2) with an argument of type `T`, which must be laid out as the command wants it.
fn bpf<T>(command: libc::c_int, argument: &mut T) -> nix::Result<libc::c_int> {
    let size = libc::c_uint::try_from(size_of::<T>()).map_err(|_| Errno::E2BIG)?;
    // SAFETY: the pointer is to `size` bytes that are alive and may be written. Addresses that
    // they hold are of values which the callers here keep alive until the call has returned; the
    // kernel keeps none of them.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(argument), size) };
    libc::c_int::try_from(Errno::result(result)?).map_err(|_| Errno::EOVERFLOW)
}

/// Like [`bpf`] for commands that answer with a new descriptor, which is closed on exec.
fn open<T>(command: libc::c_int, argument: &mut T) -> nix::Result<OwnedFd> {
    let descriptor = bpf(command, argument)?;
    // SAFETY: the commands with which this is called return a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().addr() as u64
}

fn address_mut<T: ?Sized>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).cast::<u8>().addr() as u64
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    // An open descriptor is not negative.
    descriptor.as_raw_fd().cast_unsigned()
}

fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    for (to, from) in name[..NAME - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    name
}

/// Makes a map.
pub fn create_map(
    kind: u32,
    (key, value): (u32, u32),
    entries: u32,
    flags: u32,
    called: &str,
) -> nix::Result<OwnedFd> {
    #[repr(C)]
    struct Argument {
        kind: u32,
        key: u32,
        value: u32,
        entries: u32,
        flags: u32,
        inner: u32,
        numa: u32,
        name: [u8; NAME],
    }
    let mut argument =
        Argument { kind, key, value, entries, flags, inner: 0, numa: 0, name: name(called) };
    open(command::MAP_CREATE, &mut argument)
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    /// The value, or the next key.
    value: u64,
    flags: u64,
}

impl Element {
    fn of(map: BorrowedFd<'_>) -> Self {
        Self { map: number(map), padding: 0, key: 0, value: 0, flags: 0 }
    }
}

/// A map whose keys have `K` bytes and whose values have `V`. That they do was looked at when it was
/// opened ([`Map::open`]): the kernel goes by its own idea of the lengths.
#[derive(Debug)]
pub struct Map<const K: usize, const V: usize>(OwnedFd);

impl<const K: usize, const V: usize> Map<K, V> {
    /// Makes one.
    pub fn create(kind: u32, entries: u32, flags: u32, called: &str) -> nix::Result<Self> {
        let sizes = (small(K)?, small(V)?);
        create_map(kind, sizes, entries, flags, called).map(Self)
    }

    /// The map that is pinned there; `None` if it is of another shape.
    pub fn open(path: &Path) -> nix::Result<Option<Self>> {
        #[repr(C)]
        #[derive(Default)]
        struct Info {
            kind: u32,
            id: u32,
            key: u32,
            value: u32,
            entries: u32,
        }
        let map = get(path)?;
        // An object of another kind fills in what it has: then the sizes are of something else, and
        // the calls below would fail, not write too far, since a descriptor of no map is refused.
        let info: Info = info(map.as_fd())?;
        let same = (info.key, info.value) == (small(K)?, small(V)?);
        Ok(same.then_some(Self(map)))
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8; K]) -> nix::Result<Option<[u8; V]>> {
        let mut value = [0; V];
        let mut argument = Element::of(self.as_fd());
        argument.key = address(key);
        argument.value = address_mut(&mut value);
        match bpf(command::MAP_LOOKUP, &mut argument) {
            Ok(_) => Ok(Some(value)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &[u8; K], value: &[u8; V]) -> nix::Result<()> {
        let mut argument = Element::of(self.as_fd());
        argument.key = address(key);
        argument.value = address(value);
        bpf(command::MAP_UPDATE, &mut argument).map(drop)
    }

    /// Takes a key out. True: it was there.
    pub fn remove(&self, key: &[u8; K]) -> nix::Result<bool> {
        let mut argument = Element::of(self.as_fd());
        argument.key = address(key);
        match bpf(command::MAP_DELETE, &mut argument) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The keys, at most `limit` of them.
    pub fn keys(&self, limit: usize) -> nix::Result<Vec<[u8; K]>> {
        let mut keys: Vec<[u8; K]> = Vec::new();
        while keys.len() < limit {
            let mut next = [0; K];
            let mut argument = Element::of(self.as_fd());
            argument.key = keys.last().map_or(0, address);
            argument.value = address_mut(&mut next);
            match bpf(command::MAP_NEXT_KEY, &mut argument) {
                Ok(_) => keys.push(next),
                Err(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(keys)
    }
}

impl<const K: usize, const V: usize> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn small(size: usize) -> nix::Result<u32> {
    u32::try_from(size).map_err(|_| Errno::E2BIG)
}

/// Loads a program that is to stand in front of the kernel's function with that number.
///
/// # Errors
/// It is loaded a second time with the verifier's words asked for, so that they can be told.
pub fn load(program: &[Instruction], called: &str, function: u32) -> Result<OwnedFd, Rejected> {
    #[repr(C)]
    #[derive(Default)]
    struct Argument {
        kind: u32,
        length: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        version: u32,
        flags: u32,
        name: [u8; NAME],
        interface: u32,
        attach: u32,
        btf: u32,
        function_size: u32,
        functions: u64,
        function_count: u32,
        line_size: u32,
        lines: u64,
        line_count: u32,
        attach_function: u32,
        attach_program: u32,
        relocations: u32,
    }
    // Helpers that read the kernel's state are for programs under a licence compatible with its
    // own; Apache-2.0 code may be had under this one by whoever combines it with the kernel.
    let license: &CStr = c"GPL";
    let mut argument = Argument {
        kind: TRACING,
        length: u32::try_from(program.len()).unwrap_or(u32::MAX),
        instructions: address(program),
        license: license.as_ptr().addr() as u64,
        name: name(called),
        attach: MODIFY_RETURN,
        attach_function: function,
        ..Argument::default()
    };
    let errno = match open(command::PROG_LOAD, &mut argument) {
        Ok(descriptor) => return Ok(descriptor),
        Err(errno) => errno,
    };
    let mut log = vec![0_u8; LOG];
    argument.log_level = 1;
    argument.log_size = u32::try_from(log.len()).unwrap_or(0);
    argument.log = address_mut(log.as_mut_slice());
    match open(command::PROG_LOAD, &mut argument) {
        // Out of memory for a moment, say.
        Ok(descriptor) => Ok(descriptor),
        Err(_) => Err(Rejected { errno, said: last_lines(&log) }),
    }
}

/// The end of what the verifier said, on one line.
fn last_lines(log: &[u8]) -> String {
    const LINES: usize = 3;
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    // The last one is statistics.
    let told = lines.len().saturating_sub(1);
    lines[told.saturating_sub(LINES)..told].join("; ")
}

/// Lets a loaded program stand where it was loaded for, until the answer is dropped and unpinned.
pub fn attach(program: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    #[repr(C)]
    struct Argument {
        name: u64,
        program: u32,
        padding: u32,
    }
    let mut argument = Argument { name: 0, program: number(program), padding: 0 };
    open(command::RAW_TRACEPOINT_OPEN, &mut argument)
}

#[repr(C)]
struct Object {
    path: u64,
    descriptor: u32,
    flags: u32,
}

fn c_path(path: &Path) -> nix::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Gives an object a name in a BPF file system, under which it outlives this process.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> nix::Result<()> {
    let path = c_path(path)?;
    let mut argument =
        Object { path: path.as_ptr().addr() as u64, descriptor: number(object), flags: 0 };
    bpf(command::OBJ_PIN, &mut argument).map(drop)
}

/// The object that is pinned there.
pub fn get(path: &Path) -> nix::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut argument = Object { path: path.as_ptr().addr() as u64, descriptor: 0, flags: 0 };
    open(command::OBJ_GET, &mut argument)
}

/// What the kernel says of an object, as far as `T` goes.
fn info<T: Default>(object: BorrowedFd<'_>) -> nix::Result<T> {
    #[repr(C)]
    struct Argument {
        descriptor: u32,
        length: u32,
        info: u64,
    }
    let mut info = T::default();
    let mut argument = Argument {
        descriptor: number(object),
        length: small(size_of::<T>())?,
        info: address_mut(&mut info),
    };
    bpf(command::OBJ_INFO, &mut argument)?;
    Ok(info)
}

/// `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    lengths: [u32; 2],
    pointers: [u64; 2],
    loaded: u64,
    uid: u32,
    maps: u32,
    map_ids: u64,
    name: [u8; NAME],
}

/// The name of the program that an attachment is of.
pub fn name_of_attached(link: BorrowedFd<'_>) -> nix::Result<String> {
    /// `struct bpf_link_info`, up to what all kinds have, padded to the alignment of what follows.
    #[repr(C)]
    #[derive(Default)]
    struct LinkInfo {
        kind: u32,
        id: u32,
        program: u32,
        padding: u32,
    }
    let link: LinkInfo = info(link)?;
    let program = by_id(command::PROG_BY_ID, link.program)?;
    let program: ProgramInfo = info(program.as_fd())?;
    let end = program.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    Ok(String::from_utf8_lossy(&program.name[..end]).into_owned())
}

#[repr(C)]
struct Id {
    id: u32,
    next: u32,
    flags: u32,
}

fn by_id(command: libc::c_int, id: u32) -> nix::Result<OwnedFd> {
    open(command, &mut Id { id, next: 0, flags: 0 })
}

/// The description of a loaded module; `None`: there is none by that name.
pub fn module_btf(module: &str) -> nix::Result<Option<OwnedFd>> {
    #[repr(C)]
    #[derive(Default)]
    struct BtfInfo {
        data: u64,
        size: u32,
        id: u32,
        name: u64,
        name_length: u32,
        of_kernel: u32,
    }
    let mut at = Id { id: 0, next: 0, flags: 0 };
    loop {
        match bpf(command::BTF_NEXT_ID, &mut at) {
            Ok(_) => at.id = at.next,
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        // It may be gone again.
        let Ok(btf) = by_id(command::BTF_BY_ID, at.id) else { continue };
        let mut called = [0_u8; 64];
        let mut info = BtfInfo {
            name: address_mut(&mut called),
            name_length: small(called.len())?,
            ..BtfInfo::default()
        };
        #[repr(C)]
        struct Argument {
            descriptor: u32,
            length: u32,
            info: u64,
        }
        let mut argument = Argument {
            descriptor: number(btf.as_fd()),
            length: small(size_of::<BtfInfo>())?,
            info: address_mut(&mut info),
        };
        // A name that is too long for the space is an error, and no name of ours.
        let read = bpf(command::OBJ_INFO, &mut argument);
        let end = called.iter().position(|byte| *byte == 0).unwrap_or(0);
        if read.is_ok() && info.of_kernel == 1 && called[..end] == *module.as_bytes() {
            return Ok(Some(btf));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_words_are_on_one_line() {
        let log =
            b"func#0 @0\n0: R1=ctx()\n5: (85) call 4095\ninvalid func\n\nprocessed 3 insns\n\0\0";
        assert_eq!(last_lines(log), "0: R1=ctx(); 5: (85) call 4095; invalid func");
        assert_eq!(last_lines(b"\0"), "");
    }

    #[test]
    fn names_are_cut_to_what_the_kernel_takes() {
        assert_eq!(&name("abc")[..4], b"abc\0");
        assert_eq!(name("0123456789abcdefgh")[14..], [b'e', 0]);
    }

    #[test]
    fn arguments_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<Element>(), 32);
        assert_eq!(size_of::<ProgramInfo>(), 80);
        assert_eq!(std::mem::offset_of!(ProgramInfo, name), 64);
    }
}
