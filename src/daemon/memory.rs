//! Giving memory back to the system. A synchronisation or a reading of the inventory needs much for
//! a moment, and glibc keeps what was freed; a daemon that idles on every node must not.
#![allow(unsafe_code)] // glibc's own interface to its allocator, and madvise(2).

use std::fs;
use std::path::Path;

/// Gives back what is free. Takes a fraction of a millisecond, so not to be done within a call of
/// the runtime.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) takes a number and touches free memory only; it may be called at any
    // time by any thread.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// One pool of memory for all threads. By default each of the short-lived threads that read files
/// would get its own, which stays when the thread ends. And small pieces that are freed are joined
/// at once: by default they are kept apart until somebody wants a large one, and a decision makes
/// hundreds of them, with a long answer at its end. To be called before there are threads.
pub fn share_one_pool() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a parameter of the allocator; there is one thread yet.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
        nix::libc::mallopt(nix::libc::M_MXFAST, 0);
    }
}

/// Forgets which of the program's own code has been in use: most of it ran at the start and is not
/// needed again. What is needed comes back from the page cache, by a fault for each 64 KiB.
pub fn forget_code() {
    let program = fs::read_link("/proc/self/exe");
    let maps = fs::read_to_string("/proc/self/maps");
    let (Ok(program), Ok(maps)) = (program, maps) else { return };
    for (start, length) in code(&maps, &program) {
        // SAFETY: the kernel says that these addresses map the program's file, to be read and run
        // but not written, so that every page is what the file has there; MADV_DONTNEED makes the
        // next access read it from there again (madvise(2)). Nothing unmaps the program.
        unsafe {
            nix::libc::madvise(start as *mut nix::libc::c_void, length, nix::libc::MADV_DONTNEED);
        }
    }
}

/// Address and length of what maps that file to be run and never to be written.
fn code(maps: &str, program: &Path) -> Vec<(usize, usize)> {
    let mapping = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (range, access) = (words.next()?, words.next()?);
        let path = words.nth(3)?.trim_start();
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let ours = access == "r-xp" && Path::new(path) == program;
        ours.then(|| Some((start, end.checked_sub(start)?)))?
    };
    maps.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_own_code_is_meant() {
        let maps = "\
            557b5d89c000-557b5d98c000 r--p 00000000 fe:00 9977976                    /usr/bin/rdma-ctk\n\
            557b5d98c000-557b5dd44000 r-xp 000ef000 fe:00 9977976                    /usr/bin/rdma-ctk\n\
            557b5dd62000-557b5dd64000 rwxp 004c3000 fe:00 9977976                    /usr/bin/rdma-ctk\n\
            557b5e000000-557b5e021000 rw-p 00000000 00:00 0                          [heap]\n\
            7fafcc9d1000-7fafccb27000 r-xp 00026000 fe:00 326269                     /usr/lib/libc.so.6\n\
            7ffd0f5f2000-7ffd0f5f4000 r-xp 00000000 00:00 0                          [vdso]\n\
            rubbish\n";
        let found = code(maps, Path::new("/usr/bin/rdma-ctk"));
        assert_eq!(found, [(0x557b_5d98_c000, 0x3b_8000)]);
    }

    #[test]
    fn code_that_is_forgotten_runs_on() {
        let resident = || fs::read_to_string("/proc/self/statm").unwrap();
        let before = resident();
        forget_code();
        assert!(!before.is_empty() && !resident().is_empty());
    }
}
