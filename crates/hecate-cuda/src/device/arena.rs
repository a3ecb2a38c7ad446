//! Memory of one captured graph, handed out and taken back by the host alone.
//!
//! A graph has its arrays at the same places every time, so that the places are chosen once, while it is captured. Nodes that
//! ask the driver for memory would be half of a graph, and each takes the GPU's time.

use super::{Buffer, Cuda, beside::Beside};
use cudarc::driver::CudaStream;
use hecate_core::{Bytes, Error, Result};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Places begin at multiples of this many bytes, as those of the driver do.
const ALIGNED: usize = 512;

/// Bytes of the first chunk; each one more is twice as long, up to [`LONGEST`].
///
/// A small model's step fits in a few.
const FIRST: usize = 32 << 20;

/// Most bytes of a chunk that holds several arrays.
const LONGEST: usize = 1 << 30;

/// Memory of one graph.
pub(crate) struct Arena {
    /// Bytes that it may take.
    most: usize,
    places: Mutex<Places>,
    /// The stream that is captured, and one beside it.
    pub(super) main: Arc<CudaStream>,
    pub(super) side: Arc<CudaStream>,
    beside: Mutex<Beside>,
}

/// What an arena has, under one lock.
#[derive(Default)]
struct Places {
    /// In the order in which they were taken of the pool.
    chunks: Vec<Chunk>,
    /// Of values that the host wrote while the graph was captured.
    constants: Vec<Buffer>,
    /// Of all chunks and constants.
    bytes: usize,
}

/// Memory of the pool, cut into places.
struct Chunk {
    /// It goes back to the pool with the arena.
    memory: Buffer,
    free: FreeRuns,
}

impl Arena {
    /// Nothing taken yet, and at most so many bytes, for work on these streams.
    pub(crate) fn new(most: usize, main: &Arc<CudaStream>, side: &Arc<CudaStream>) -> Arc<Self> {
        let (main, side) = (main.clone(), side.clone());
        Arc::new(Self { most, places: Mutex::default(), main, side, beside: Mutex::default() })
    }

    /// What goes on beside the main line, for one thread alone.
    pub(super) fn beside(&self) -> MutexGuard<'_, Beside> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has, for one thread alone.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that it took of the pool.
    pub(crate) fn bytes(&self) -> usize {
        self.places().bytes
    }

    /// The address of `bytes` bytes that nobody has.
    /// A place is given again as soon as nobody has it: kernels of a graph run in order, so the next may write there.
    pub(super) fn take(&self, device: &Cuda, bytes: usize) -> Result<u64> {
        let length = rounded(bytes);
        let mut places = self.places();
        for Chunk { memory, free } in &mut places.chunks {
            if let Some(start) = free.take(length) {
                return Ok(memory.pointer() + start as u64);
            }
        }
        // A long array has a chunk of its own. The more a graph has taken, the more it takes at once.
        let next = FIRST.saturating_mul(1 << places.chunks.len().min(16)).min(LONGEST);
        let memory = self.grow(&mut places, device, next.max(length))?;
        let (start, mut free) = (memory.pointer(), FreeRuns::whole(memory.len()));
        free.take(length);
        places.chunks.push(Chunk { memory, free });
        Ok(start)
    }

    /// The address of `bytes` bytes that hold the same in every replay.
    pub(super) fn take_constant(&self, device: &Cuda, bytes: usize) -> Result<u64> {
        let mut places = self.places();
        // Not in a chunk: earlier kernels of the graph would write over it in the next replay.
        let memory = self.grow(&mut places, device, rounded(bytes))?;
        let start = memory.pointer();
        places.constants.push(memory);
        Ok(start)
    }

    /// Takes back what [`Arena::take`] gave.
    /// Results that kernels beside the main line still write wait until both lines have met.
    pub(super) fn give_back(&self, start: u64, bytes: usize) {
        if self.is_late(start, bytes) {
            return;
        }
        for Chunk { memory, free } in &mut self.places().chunks {
            let first = memory.pointer();
            if (first..first + memory.len() as u64).contains(&start) {
                return free.give_back((start - first) as usize, rounded(bytes));
            }
        }
    }

    /// More of the pool.
    fn grow(&self, places: &mut Places, device: &Cuda, bytes: usize) -> Result<Buffer> {
        // Refused as the driver would, so that the work goes call by call.
        let whole = places.bytes.saturating_add(bytes);
        if whole > self.most {
            let free = Some(Bytes(self.most as u128));
            return Err(Error::OutOfMemory { what: "the arrays of a graph", bytes: Bytes(whole as u128), free });
        }
        let memory = device.allocate_beside(bytes)?;
        places.bytes = whole;
        Ok(memory)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes)", self.bytes())
    }
}

/// Bytes with those up to the next place.
/// The most there is where they overflow, which no arena grants.
fn rounded(bytes: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(ALIGNED).unwrap_or(usize::MAX)
}

/// The free bytes of a chunk: lengths by where they start; no two of them touch.
struct FreeRuns(BTreeMap<usize, usize>);

impl FreeRuns {
    /// All of `length` bytes.
    fn whole(length: usize) -> Self {
        Self(BTreeMap::from([(0, length)]))
    }

    /// Where `length` bytes begin that are free no more: the shortest run that holds them, and of these the first.
    fn take(&mut self, length: usize) -> Option<usize> {
        // Few runs are free at a time, so that looking at all of them takes little.
        let fitting = self.0.iter().filter(|&(_, &free)| free >= length);
        let (&start, &free) = fitting.min_by_key(|&(_, &free)| free)?;
        self.0.remove(&start);
        if free > length {
            self.0.insert(start + length, free - length);
        }
        Some(start)
    }

    /// Joins `length` bytes with the free ones beside them.
    fn give_back(&mut self, mut start: usize, mut length: usize) {
        // The run in front, which then begins the whole.
        if let Some((&before, &free)) = self.0.range(..start).next_back().filter(|&(&at, &free)| at + free == start) {
            self.0.remove(&before);
            (start, length) = (before, length + free);
        }
        // The run behind.
        if let Some(free) = self.0.remove(&(start + length)) {
            length += free;
        }
        self.0.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places do not overlap, and a full chunk gives nothing.
    #[test]
    fn what_is_taken_is_nobody_elses() {
        let mut free = FreeRuns::whole(1000);
        let taken = [100, 300, 200, 400].map(|length| (free.take(length).expect("room"), length));
        let mut ends: Vec<_> = taken.iter().map(|&(start, length)| (start, start + length)).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ends:?}");
        assert_eq!(free.take(1), None);
    }

    /// In whatever order: nothing gets lost, and neighbours become one.
    #[test]
    fn what_is_given_back_is_whole_again() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut free = FreeRuns::whole(1000);
            let taken = [100, 300, 200, 400].map(|length| (free.take(length).expect("room"), length));
            order.iter().for_each(|&i| free.give_back(taken[i].0, taken[i].1));
            assert_eq!(free.0, BTreeMap::from([(0, 1000)]), "{order:?}");
        }
    }

    /// Long runs are kept for long arrays.
    #[test]
    fn the_shortest_run_that_fits_is_taken() {
        let mut free = FreeRuns::whole(1000);
        let taken = [500, 10, 100, 390].map(|length| (free.take(length).expect("room"), length));
        free.give_back(taken[0].0, 500);
        free.give_back(taken[2].0, 100);
        assert_eq!(free.take(100), Some(taken[2].0));
        assert_eq!(free.take(101), Some(taken[0].0));
    }

    /// 512 bytes, as the driver's own memory; a length that overflows stays one that is refused.
    #[test]
    fn places_begin_where_kernels_read_wide() {
        assert_eq!([0, 1, 512, 513].map(rounded), [512, 512, 512, 1024]);
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }
}
