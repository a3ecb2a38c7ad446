//! Who keeps memory alive for captured graphs, and who may queue work.
//!
//! What a graph's kernels point to must stay where it is as long as the graph is there. Memory asked for while a step is
//! captured belongs to the graph, which has it at the same place every time. All other memory was there before; where it
//! is let go of, the ledger keeps it until the last graph is gone.

use crate::{device::arena::Arena, error::unsupported};
use cudarc::driver::CudaSlice;
use hecate_core::Result;
use std::{
    cell::Cell,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::{self, ThreadId},
};

/// Shared by those that ask the driver for what may wait for a whole GPU; a capture holds it alone.
static DRIVER: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread holds [`DRIVER`] alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Held while something is asked of the driver that may wait for all streams of a GPU: loading code, opening libraries,
/// page-locked memory, and letting go of these. It would break a capture on another stream, or fail because of it. Comes
/// after [`GraphLedger::turn`] and before every other lock.
pub(crate) fn driver_turn() -> Option<RwLockReadGuard<'static, ()>> {
    if ALONE.get() { None } else { Some(DRIVER.read().unwrap_or_else(PoisonError::into_inner)) }
}

/// Memory that captured graphs may point to, and who may queue work.
#[derive(Default)]
pub(crate) struct GraphLedger {
    entries: Mutex<Entries>,
    /// Shared by those that queue work; a capture holds it alone.
    turn: RwLock<()>,
}

/// What the ledger knows, under one lock.
#[derive(Default)]
struct Entries {
    /// Counts starts and ends of captures: memory is known by the count at which it was asked for.
    clock: u64,
    /// Graphs that are there, from the start of each one's capture on.
    graphs: usize,
    /// The thread that captures a step.
    capturing: Option<ThreadId>,
    /// What the step that is being captured asked for and cannot have.
    refused: Option<&'static str>,
    /// Memory of the graph that is being captured, where it has some of its own.
    arena: Option<Arc<Arena>>,
    /// Memory that nobody but a graph may still use.
    freed: Vec<CudaSlice<u8>>,
}

impl GraphLedger {
    /// The entries, for one thread alone; a panic elsewhere leaves them whole.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while work is queued: a graph takes whatever is queued on its stream, so that while one thread captures a step,
    /// others wait. One turn at a time: who holds it takes no second.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.captures() { None } else { Some(self.turn.read().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Whether this thread captures a step.
    fn captures(&self) -> bool {
        self.entries().capturing == Some(thread::current().id())
    }

    /// Whether this thread captures a step, and the clock stood at `clock` before that began.
    pub(crate) fn captures_since(&self, clock: u64) -> bool {
        let entries = self.entries();
        entries.capturing == Some(thread::current().id()) && clock < entries.clock
    }

    /// The clock when memory is asked for.
    pub(crate) fn now(&self) -> u64 {
        self.entries().clock
    }

    /// Takes memory asked for at `born` that nobody holds any more.
    pub(crate) fn free(&self, memory: CudaSlice<u8>, born: u64) {
        let mut entries = self.entries();
        if entries.graphs > 0 && born < entries.clock {
            entries.freed.push(memory);
        }
    }

    /// Refuses what a graph cannot repeat.
    ///
    /// # Errors
    /// While this thread captures a step.
    pub(crate) fn check(&self, what: &'static str) -> Result<()> {
        if !self.captures() {
            return Ok(());
        }
        self.entries().refused.get_or_insert(what);
        Err(unsupported(what, "a step is being captured, which has to do without the host"))
    }

    /// The memory of the graph that this thread captures, where it has some of its own.
    pub(crate) fn arena(&self) -> Option<Arc<Arena>> {
        let entries = self.entries();
        entries.arena.clone().filter(|_| entries.capturing == Some(thread::current().id()))
    }

    /// From here on, until the result is dropped, this thread captures a step. With an arena its arrays lie there, and
    /// what it copies from the host is the same in every replay.
    pub(crate) fn begin_capture(&self, arena: Option<Arc<Arena>>) -> Capturing<'_> {
        // Waits until nobody queues work.
        let alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        let driver = DRIVER.write().unwrap_or_else(PoisonError::into_inner);
        // This thread may load code while it captures.
        ALONE.set(true);
        let mut entries = self.entries();
        (entries.clock, entries.refused, entries.arena) = (entries.clock + 1, None, arena);
        entries.capturing = Some(thread::current().id());
        Capturing { ledger: self, _driver: driver, _alone: alone }
    }

    /// A graph is gone; the memory kept for it goes with the last one.
    fn forget(&self) {
        // Dropped after the lock is let go of: freeing memory asks the driver.
        let freed = {
            let mut entries = self.entries();
            entries.graphs -= 1;
            if entries.graphs == 0 { std::mem::take(&mut entries.freed) } else { Vec::new() }
        };
        drop(freed);
    }
}

/// A step is being captured.
pub(crate) struct Capturing<'a> {
    ledger: &'a GraphLedger,
    _driver: RwLockWriteGuard<'static, ()>,
    _alone: RwLockWriteGuard<'a, ()>,
}

impl Capturing<'_> {
    /// What the step asked for and could not have.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        self.ledger.entries().refused
    }
}

impl Drop for Capturing<'_> {
    /// The capture is over: what is written from now on is no part of it.
    fn drop(&mut self) {
        let arena = {
            let mut entries = self.ledger.entries();
            (entries.clock, entries.capturing) = (entries.clock + 1, None);
            entries.arena.take()
        };
        // Its memory, if nobody else has it, asks for the lock.
        drop(arena);
        ALONE.set(false);
    }
}

/// Counts as a graph from the start of its capture on.
pub(crate) struct GraphToken(Arc<GraphLedger>);

impl GraphToken {
    /// One graph more.
    pub(crate) fn new(ledger: &Arc<GraphLedger>) -> Self {
        ledger.entries().graphs += 1;
        Self(ledger.clone())
    }
}

impl Drop for GraphToken {
    fn drop(&mut self) {
        self.0.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of memory written before a capture, in it, and between two.
    #[test]
    fn what_was_written_before_a_capture_is_told_apart() {
        let ledger = GraphLedger::default();
        let before = ledger.now();
        assert!(!ledger.captures_since(before), "nothing is captured");
        // Neither memory of its own nor a GPU is needed for this.
        let capture = ledger.begin_capture(None);
        let within = ledger.now();
        assert!(ledger.captures_since(before) && !ledger.captures_since(within));
        // Another thread captures nothing.
        thread::scope(|scope| scope.spawn(|| assert!(!ledger.captures_since(before))).join()).expect("no panic");
        drop(capture);
        let between = ledger.now();
        assert!([before, within, between].iter().all(|&clock| !ledger.captures_since(clock)), "it has ended");
        // For the next one all of that is past.
        let capture = ledger.begin_capture(None);
        assert!([before, within, between].iter().all(|&clock| ledger.captures_since(clock)));
        assert!(!ledger.captures_since(ledger.now()));
        drop(capture);
    }
}
