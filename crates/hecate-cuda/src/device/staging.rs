//! A ring of page-locked blocks between the host's memory and the device's.
//!
//! The GPU reads and writes page-locked memory by itself; with any other the host would stand and wait. A ring of such
//! blocks lies between: while the GPU copies one, the host fills or empties the next. Uploads have a stream of their own,
//! so that they need not wait for kernels that were queued before them; the main stream waits for them.
#![allow(unsafe_code)]

use crate::ledger::driver_turn;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What the driver says.
pub(super) type Outcome<T = ()> = std::result::Result<T, DriverError>;

/// Bytes of a block: enough that a copy takes many times as long as its start.
pub(crate) const BLOCK: usize = 2 << 20;
/// Blocks of a ring, each made when it is first needed.
pub(crate) const BLOCKS: usize = 4;

/// The ring, and the stream of uploads.
pub(super) struct StagingRing {
    /// Of uploads.
    stream: Arc<CudaStream>,
    /// One thread uses the blocks at a time.
    ring: Mutex<Ring>,
}

/// Blocks in turn.
#[derive(Default)]
struct Ring {
    /// Up to [`BLOCKS`] of them.
    blocks: Vec<Block>,
    /// Number of the block that is used next; where it is not there yet, the number of blocks.
    next: usize,
}

/// One page-locked block.
struct Block {
    /// [`BLOCK`] bytes.
    memory: PinnedHostSlice<u8>,
    /// Passed when the GPU is through with the block.
    done: CudaEvent,
}

impl StagingRing {
    /// An empty ring.
    pub(super) fn new(context: &Arc<CudaContext>) -> Outcome<Self> {
        Ok(Self { stream: context.new_stream()?, ring: Mutex::default() })
    }

    /// The stream of uploads.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The blocks, for one thread alone.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy to the device over `stream`. The bytes are read when this returns.
    ///
    /// # Safety
    /// As many bytes are at `to`, and stay until the copy was made; `stream` orders their use.
    pub(super) unsafe fn write(&self, stream: &CudaStream, to: u64, bytes: &[u8]) -> Outcome {
        let mut ring = self.ring();
        for (i, part) in bytes.chunks(BLOCK).enumerate() {
            let number = ring.free(&self.stream)?;
            let block = &mut ring.blocks[number];
            let staged = &mut block.memory.as_mut_slice()?[..part.len()];
            staged.copy_from_slice(part);
            // SAFETY: the caller's for the device; the block is not touched before `done` was passed.
            unsafe { result::memcpy_htod_async(to + (i * BLOCK) as u64, staged, stream.cu_stream()) }?;
            block.done.record(stream)?;
        }
        Ok(())
    }

    /// Copies from the device over `stream`, and waits for it.
    ///
    /// # Safety
    /// As many bytes are at `from`; `stream` orders their use.
    pub(super) unsafe fn read(&self, stream: &CudaStream, from: u64, bytes: &mut [u8]) -> Outcome {
        let mut ring = self.ring();
        let mut queued: VecDeque<(usize, &mut [u8])> = VecDeque::with_capacity(BLOCKS);
        for (i, part) in bytes.chunks_mut(BLOCK).enumerate() {
            if queued.len() == BLOCKS
                && let Some((number, part)) = queued.pop_front()
            {
                ring.blocks[number].take(part)?;
            }
            let number = ring.free(&self.stream)?;
            let block = &mut ring.blocks[number];
            let staged = &mut block.memory.as_mut_slice()?[..part.len()];
            // SAFETY: the caller's for the device; the block is not touched before `done` was passed.
            unsafe { result::memcpy_dtoh_async(staged, from + (i * BLOCK) as u64, stream.cu_stream()) }?;
            block.done.record(stream)?;
            queued.push_back((number, part));
        }
        queued.into_iter().try_for_each(|(number, part)| ring.blocks[number].take(part))
    }
}

impl Ring {
    /// The number of the next block, which the GPU is through with.
    fn free(&mut self, stream: &CudaStream) -> Outcome<usize> {
        let number = self.next;
        if number == self.blocks.len() {
            self.blocks.push(Block::new(stream.context())?);
        }
        self.next = (number + 1) % BLOCKS;
        self.blocks[number].done.synchronize()?;
        Ok(number)
    }
}

impl Drop for Ring {
    /// Frees all blocks under the lock that calls which may wait for the GPU take.
    fn drop(&mut self) {
        // Memory of the host that is let go of may wait for the whole GPU.
        let _driver = driver_turn();
        self.blocks.clear();
    }
}

impl Block {
    /// Page-locked memory, and an event that was not recorded yet.
    fn new(context: &Arc<CudaContext>) -> Outcome<Self> {
        let _driver = driver_turn();
        // SAFETY: bytes are valid whatever they hold. Not write-combined: reading that back takes a hundred times as long.
        let memory = unsafe { context.alloc_pinned_with_flags(BLOCK, 0) }?;
        Ok(Self { memory, done: context.new_event(None)? })
    }

    /// What the GPU wrote, once it did.
    fn take(&self, bytes: &mut [u8]) -> Outcome {
        self.done.synchronize()?;
        bytes.copy_from_slice(&self.memory.as_slice()?[..bytes.len()]);
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The memory goes next; nobody can be told of a failure here, and where waiting fails the GPU does nothing more.
        let _ = self.done.synchronize();
    }
}
