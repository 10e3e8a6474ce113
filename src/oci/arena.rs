//! The memory of a program that lives for a millisecond.
//!
//! musl's allocator is thrifty: a document of an engine, read into some thousand small pieces, makes it
//! map and unmap memory a few hundred times, which takes longer than everything else that the wrapper
//! does. So small pieces come out of large ones, sorted by size; what is given back is used again for
//! its own size, and nothing goes back to the system. Large pieces are the system's allocator's.
#![allow(unsafe_code)] // an allocator cannot be written without

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// Sizes are multiples of this up to [`FINE`], and every piece is aligned to it.
const GRAIN: usize = 16;
/// Above this the sizes are powers of two.
const FINE: usize = 1024;
/// What is larger is left to the system.
const LARGEST: usize = 32 << 10;
/// How much is taken from the system at first, which does for a program that has nothing to do. Only
/// what is used becomes memory.
const FIRST: usize = 64 << 10;
/// How much is taken then at once, all of it memory from the beginning: a program that needs more than
/// the first has a document to read, and a page fault for every page costs more than the pages. Not more
/// than is used soon: a page has to be cleared, too.
const CHUNK: usize = 128 << 10;
/// How many sizes there are: those below and at [`FINE`], and 2, 4, 8, 16 and 32 KiB.
const SIZES: usize = FINE / GRAIN + 5;

/// A global allocator for a program that does little and ends soon.
#[derive(Debug)]
pub struct Arena {
    taken: AtomicBool,
    state: UnsafeCell<State>,
}

#[derive(Debug)]
struct State {
    /// What is left of the chunk.
    next: *mut u8,
    left: usize,
    /// Pieces that were given back, by size; each holds the address of the next.
    free: [*mut u8; SIZES],
}

// SAFETY: the state is only touched by whoever has taken it.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena without memory.
    #[expect(clippy::new_without_default, reason = "a static cannot call Default")]
    pub const fn new() -> Self {
        let state = State { next: ptr::null_mut(), left: 0, free: [ptr::null_mut(); SIZES] };
        Self { taken: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    fn with<T>(&self, task: impl FnOnce(&mut State) -> T) -> T {
        while self.taken.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        // SAFETY: we have taken it, and `task` neither panics nor allocates by way of us.
        let result = task(unsafe { &mut *self.state.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

/// Which of the sizes a piece has, and how many bytes that is; `None`: the system's.
const fn place(layout: Layout) -> Option<(usize, usize)> {
    let size = layout.size();
    if layout.align() > GRAIN || size > LARGEST {
        return None;
    }
    if size <= FINE {
        // A piece of no bytes is never asked for, and would be one grain.
        let grains = if size == 0 { 1 } else { size.div_ceil(GRAIN) };
        return Some((grains - 1, grains * GRAIN));
    }
    let size = size.next_power_of_two();
    let above = (size / FINE).trailing_zeros() as usize;
    Some((FINE / GRAIN + above - 1, size))
}

// SAFETY: pieces are distinct parts of chunks that are never given back, at least as long as what was
// asked for, and aligned to `GRAIN`, which the layout's alignment divides; all others are the system's,
// and go back to it, since `place` tells them apart by nothing but the layout.
unsafe impl GlobalAlloc for Arena {
    // None is inlined: it would stand at every place that allocates, half a megabyte of it.

    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((index, size)) = place(layout) else {
            // SAFETY: the caller's promises are ours.
            return unsafe { System.alloc(layout) };
        };
        self.with(|state| state.take(index, size))
    }

    #[inline(never)]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let Some((index, _)) = place(layout) else {
            // SAFETY: it came from there, see `alloc`.
            return unsafe { System.dealloc(piece, layout) };
        };
        self.with(|state| {
            // SAFETY: the piece is ours again, is a grain long at least, and aligned for a pointer.
            unsafe { piece.cast::<*mut u8>().write(state.free[index]) };
            state.free[index] = piece;
        });
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if place(layout).is_none() {
            // The system knows what is zero already.
            // SAFETY: the caller's promises are ours.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as above; what comes back is as long as the layout says.
        unsafe {
            let piece = self.alloc(layout);
            if !piece.is_null() {
                piece.write_bytes(0, layout.size());
            }
            piece
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has made sure that the new size is one for that alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (place(layout), place(wanted)) {
            (Some((before, _)), Some((now, _))) if before == now => piece,
            // SAFETY: both are the system's.
            (None, None) => unsafe { System.realloc(piece, layout, size) },
            // SAFETY: a new piece is another one, and both are as long as what is copied.
            _ => unsafe {
                let new = self.alloc(wanted);
                if !new.is_null() {
                    ptr::copy_nonoverlapping(piece, new, layout.size().min(size));
                    self.dealloc(piece, layout);
                }
                new
            },
        }
    }
}

impl State {
    fn take(&mut self, index: usize, size: usize) -> *mut u8 {
        let freed = self.free[index];
        if !freed.is_null() {
            // SAFETY: it holds the address of the next, written when it was given back.
            self.free[index] = unsafe { freed.cast::<*mut u8>().read() };
            return freed;
        }
        if self.left < size {
            // What is left of the old chunk is lost, less than a piece.
            let (chunk, length) =
                if self.next.is_null() { (first(), FIRST) } else { (further(), CHUNK) };
            if chunk.is_null() {
                return chunk;
            }
            (self.next, self.left) = (chunk, length);
        }
        let piece = self.next;
        self.left -= size;
        // SAFETY: the chunk has at least `size` bytes from there on.
        self.next = unsafe { piece.add(size) };
        piece
    }
}

fn first() -> *mut u8 {
    match Layout::from_size_align(FIRST, GRAIN) {
        // SAFETY: it is not of size 0.
        Ok(layout) => unsafe { System.alloc(layout) },
        Err(_) => ptr::null_mut(),
    }
}

fn further() -> *mut u8 {
    let Some(length) = NonZeroUsize::new(CHUNK) else { return ptr::null_mut() };
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
    // SAFETY: the kernel chooses where, so that nothing that is there is replaced.
    let mapped = unsafe { mmap_anonymous(None, length, access, flags) };
    mapped.map_or(ptr::null_mut(), |piece| piece.as_ptr().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_place_that_holds_it() {
        for size in 0..=LARGEST {
            let (index, bytes) = place(Layout::from_size_align(size, 8).unwrap()).unwrap();
            assert!(index < SIZES && bytes >= size && bytes >= size_of::<usize>(), "{size}");
            assert!(bytes.is_multiple_of(GRAIN), "{size}");
            let next = place(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
            assert_eq!(next, (index, bytes), "{size}");
        }
        assert_eq!(place(Layout::from_size_align(LARGEST + 1, 8).unwrap()), None);
        assert_eq!(place(Layout::from_size_align(64, 64).unwrap()), None);
    }

    #[test]
    fn pieces_are_distinct_keep_what_they_hold_and_are_used_again() {
        let arena = Arena::new();
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let mut held: Vec<(*mut u8, usize, u8)> = Vec::new();
        let mut number = 1_u64;
        for round in 0..20_000_u32 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size = usize::try_from(number >> 33).unwrap() % 5000 + 1;
            let mark = u8::try_from(round % 251).unwrap();
            // SAFETY: every piece is freed once, with the layout that it was asked for with.
            unsafe {
                let piece = arena.alloc(layout(size));
                assert!(!piece.is_null() && piece.cast::<u64>().is_aligned());
                piece.write_bytes(mark, size);
                held.push((piece, size, mark));
                if round % 3 != 0 {
                    let at = usize::try_from(number >> 40).unwrap() % held.len();
                    let (piece, size, mark) = held.swap_remove(at);
                    let grown = arena.realloc(piece, layout(size), size * 3);
                    let bytes = std::slice::from_raw_parts(grown, size);
                    assert!(bytes.iter().all(|byte| *byte == mark));
                    arena.dealloc(grown, layout(size * 3));
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            for (piece, size, mark) in held {
                assert!(std::slice::from_raw_parts(piece, size).iter().all(|b| *b == mark));
                arena.dealloc(piece, layout(size));
            }
            let one = arena.alloc(layout(40));
            arena.dealloc(one, layout(40));
            assert_eq!(arena.alloc(layout(48)), one);
            let zero = arena.alloc_zeroed(layout(48));
            assert!(std::slice::from_raw_parts(zero, 48).iter().all(|byte| *byte == 0));
        }
    }
}
