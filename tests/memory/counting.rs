//! Bytes that this process holds, counted by its allocator.

#![expect(unsafe_code, reason = "a global allocator is unsafe by its nature")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

/// The system's allocator, with a count of what is held and the most that ever was.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request goes to `System` unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn grow(bytes: usize) {
    PEAK.fetch_max(HELD.fetch_add(bytes, SeqCst) + bytes, SeqCst);
}

/// Bytes that `work` held at most, beside what was held before.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = HELD.load(SeqCst);
    PEAK.store(before, SeqCst);
    let result = work();
    let peak = PEAK.load(SeqCst) - before;
    drop(result);
    peak
}
