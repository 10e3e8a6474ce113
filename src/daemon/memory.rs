//! Giving memory back to the system. A synchronisation or a reading of the inventory needs much for
//! a moment, and glibc keeps what was freed; a daemon that idles on every node must not.
#![allow(unsafe_code)] // glibc's own interface to its allocator.

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
/// would get its own, which stays when the thread ends. To be called before there are threads.
pub fn share_one_pool() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a parameter of the allocator; there is one thread yet.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}
