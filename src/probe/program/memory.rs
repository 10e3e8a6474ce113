//! Memory, registered step by step.

use core::ffi::c_int;

use super::abi::{ACCESS_WRITE, Mr, Pd};
use super::library::Library;
use super::system::{Memory, errno, say};

/// The first step: a page on most machines.
const FIRST: u64 = 4096;

/// Registers the whole of it for local and remote writing.
pub fn register(
    library: &Library,
    pd: *mut Pd,
    memory: &Memory,
    length: usize,
) -> Result<*mut Mr, c_int> {
    // SAFETY: the range is of a mapping that outlives the registration, and the domain is of this
    // library.
    let mr = unsafe {
        (library.reg_mr)(pd, memory.start.cast(), length.min(memory.length), ACCESS_WRITE)
    };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

/// Registers twice as much each time, `most` at the end, until one fails, and says what came of
/// each; the most that worked.
pub fn steps(library: &Library, pd: *mut Pd, most: u64) -> Result<u64, c_int> {
    let memory = Memory::map(usize::try_from(most).unwrap_or(0))?;
    let mut good = 0;
    let mut step = FIRST.min(most);
    while step > 0 {
        match register(library, pd, &memory, usize::try_from(step).unwrap_or(0)) {
            Ok(mr) => {
                // SAFETY: registered just now, used by nothing.
                unsafe { (library.dereg_mr)(mr) };
                say(format_args!("memory {step} 0"));
                good = step;
            }
            Err(errno) => {
                say(format_args!("memory {step} {errno}"));
                break;
            }
        }
        step = if step == most { 0 } else { step.saturating_mul(2).min(most) };
    }
    Ok(good)
}
