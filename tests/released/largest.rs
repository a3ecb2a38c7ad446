//! The largest piece of memory that a thread asks for.

#![expect(unsafe_code, reason = "a global allocator is unsafe by its nature")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes of the largest request since it was set to zero. It has nothing to drop, so that it can be used at any time.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which remembers the largest request.
struct Watching;

// SAFETY: every request goes to `System` unchanged; the cell allocates nothing.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // At the end of a thread there is no cell any more.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// What `work` gives, and the bytes of the largest piece of memory that it asked for on this thread.
pub(crate) fn largest<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.set(0);
    let result = work();
    (result, LARGEST.get())
}
