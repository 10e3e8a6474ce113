//! What is taken of the C library: a handful of functions that every one of them has.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::fmt::{self, Write as _};

/// `struct timespec` on 64-bit machines.
#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

/// `Dl_info`.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    fn _exit(status: c_int) -> !;
    fn __errno_location() -> *mut c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn mmap(
        at: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn sched_yield() -> c_int;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// A line that is put together before it is written, since the process may end at the next call.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // Room for the line feed is kept; what is longer is cut.
            if self.length + 1 < self.bytes.len() {
                // A line feed inside, as loaders' messages may have, would make two lines of it.
                self.bytes[self.length] = if byte == b'\n' { b' ' } else { byte };
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Prints one line.
pub fn say(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    // Writing to a `Line` does not fail.
    let _ = line.write_fmt(text);
    line.bytes[line.length] = b'\n';
    // SAFETY: the bytes are there and initialised, one more than `length` of them. Nobody is left
    // to be told that nobody reads.
    unsafe { write(1, line.bytes.as_ptr().cast(), line.length + 1) };
}

/// Ends the process.
#[cfg_attr(test, allow(dead_code))] // only main.rs uses it, which tests leave out
pub fn exit(status: c_int) -> ! {
    // SAFETY: takes no memory and does not return.
    unsafe { _exit(status) }
}

/// The error number of the last call that failed.
pub fn errno() -> c_int {
    // SAFETY: the function answers with a valid address of this thread, always.
    unsafe { *__errno_location() }
}

/// Nanoseconds of a clock that only goes forward.
pub fn now() -> u64 {
    const CLOCK_MONOTONIC: c_int = 1;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the structure is the C library's own, see above; this clock exists everywhere.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time.seconds.wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds).cast_unsigned()
}

/// Lets others have this processor.
pub fn give_way() {
    // SAFETY: takes nothing, and does not fail on Linux.
    unsafe { sched_yield() };
}

/// Fresh memory, zeroed and page-aligned.
#[derive(Debug)]
pub struct Memory {
    /// Where.
    pub start: *mut u8,
    /// How many bytes.
    pub length: usize,
}

impl Memory {
    /// # Errors
    /// The error number of mmap(2).
    pub fn map(length: usize) -> Result<Self, c_int> {
        const READ_WRITE: c_int = 3;
        const PRIVATE_ANONYMOUS: c_int = 0x22;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start =
            unsafe { mmap(core::ptr::null_mut(), length, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) };
        if start as isize == -1 { Err(errno()) } else { Ok(Self { start: start.cast(), length }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, and nothing points into it any more.
        unsafe { munmap(self.start.cast(), self.length) };
    }
}

/// A loaded library.
#[derive(Debug)]
pub struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a library with all that it needs.
    pub fn open(name: &CStr) -> Option<Self> {
        const RTLD_NOW: c_int = 2;
        // SAFETY: a terminated string; the constructors that run are those of the image's library,
        // which is what this process is for.
        let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Address of a symbol; null where there is none.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is of dlopen(3) and never closed, the string is terminated.
        unsafe { dlsym(self.0, name.as_ptr()) }
    }
}

/// Why the last call of the loader failed.
pub fn loader_error() -> &'static str {
    // SAFETY: dlerror(3) answers with null or with a terminated string, which stays until the next
    // call of the loader; there is none before it is printed.
    let text = unsafe {
        let text = dlerror();
        if text.is_null() { c"" } else { CStr::from_ptr(text) }
    };
    text.to_str().unwrap_or("a message that is not UTF-8")
}

/// The file that the code at that address came from.
pub fn file_of(address: *const c_void) -> &'static str {
    let null = core::ptr::null_mut::<c_void>();
    let mut info = DlInfo { file: null.cast(), base: null, symbol: null.cast(), address: null };
    // SAFETY: the structure is the loader's own, see above; it only looks the address up.
    let found = unsafe { dladdr(address, &raw mut info) } != 0;
    if !found || info.file.is_null() {
        return "";
    }
    // SAFETY: the name is a terminated string that lives as long as the library is loaded.
    unsafe { CStr::from_ptr(info.file) }.to_str().unwrap_or("")
}
