//! Copies between the host's memory and the device's, through page-locked memory.
//!
//! The GPU reads and writes page-locked memory by itself; with any other the host would stand and wait. A ring of such
//! blocks lies between: while the GPU copies one, the host fills or empties the next. Uploads have a stream of their own,
//! so that they need not wait for kernels that were queued before them; the main stream waits for them.
#![allow(unsafe_code)]

use super::{Buffer, Cuda};
use crate::error::{failed, unsupported};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};
use hecate_core::{Host, Result};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What the driver says.
type Outcome<T = ()> = std::result::Result<T, DriverError>;

/// Bytes of a block: enough that a copy takes many times as long as its start.
pub(crate) const BLOCK: usize = 2 << 20;
/// Blocks of a ring, each made when it is first needed.
pub(crate) const BLOCKS: usize = 4;

/// The ring, and the stream of uploads.
pub(crate) struct Transfers {
    stream: Arc<CudaStream>,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    blocks: Vec<Block>,
    /// Number of the block that is used next; where it is not there yet, the number of blocks.
    next: usize,
}

struct Block {
    memory: PinnedHostSlice<u8>,
    /// Passed when the GPU is through with the block.
    done: CudaEvent,
}

impl Transfers {
    /// An empty ring.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Outcome<Self> {
        Ok(Self { stream: context.new_stream()?, ring: Mutex::default() })
    }

    /// The stream of uploads.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy to the device over `stream`. The bytes are read when this returns.
    ///
    /// # Safety
    /// As many bytes are at `to`, and stay until the copy was made; `stream` orders their use.
    pub(crate) unsafe fn write(&self, stream: &CudaStream, to: u64, bytes: &[u8]) -> Outcome {
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
    pub(crate) unsafe fn read(&self, stream: &CudaStream, from: u64, bytes: &mut [u8]) -> Outcome {
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

impl Block {
    fn new(context: &Arc<CudaContext>) -> Outcome<Self> {
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

impl Cuda {
    /// Over the stream of uploads: the copy, and where the pool can do so asking for memory, do not wait for what was
    /// queued before. The main stream waits for both, and frees the memory.
    pub(super) fn upload_bytes(&self, bytes: &[u8]) -> Result<Buffer> {
        self.0.kept.check("copying from the host")?;
        let uploads = self.0.transfers.stream();
        let uploading = |error| failed(format!("uploading {} bytes", bytes.len()), error);
        if bytes.is_empty() || !self.context().has_async_alloc() {
            let buffer = self.allocate(bytes.len())?;
            self.write(&buffer, bytes).map_err(uploading)?;
            return Ok(buffer);
        }
        self.context().bind_to_thread().map_err(uploading)?;
        let _turn = self.0.kept.turn();
        // SAFETY: fresh memory of this length, owned once; the main stream frees it, behind the copy that it waits for.
        let (memory, written) = unsafe {
            let pointer = result::malloc_async(uploads.cu_stream(), bytes.len());
            let pointer = pointer.map_err(|error| self.out_of_memory(bytes.len(), error))?;
            let memory = self.stream().upgrade_device_ptr::<u8>(pointer, bytes.len());
            (memory, self.0.transfers.write(uploads, pointer, bytes))
        };
        let buffer = self.buffer(memory);
        let joined = self.stream().join(uploads).or_else(|_| uploads.synchronize());
        written.and(joined).map_err(uploading)?;
        Ok(buffer)
    }

    /// Host bytes into memory that is there, on the main stream.
    fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Outcome {
        debug_assert!(bytes.len() <= buffer.len());
        let _turn = self.0.kept.turn();
        // SAFETY: the buffer is alive and at least as long; the stream orders its use.
        unsafe { self.0.transfers.write(self.stream(), buffer.pointer(), bytes) }
    }

    /// The first elements of a buffer.
    pub(super) fn read<T: Copy + Default>(&self, buffer: &Buffer, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); count];
        let bytes = bytes_mut(&mut values);
        let length = bytes.len();
        debug_assert!(length <= buffer.len());
        let _turn = self.0.kept.turn();
        // SAFETY: the buffer is alive and at least as long; the stream orders its use.
        let read = unsafe { self.0.transfers.read(self.stream(), buffer.pointer(), bytes) };
        read.and_then(|()| self.stream().synchronize())
            .map_err(|error| failed(format!("downloading {length} bytes"), error))?;
        Ok(values)
    }

    /// Host values into memory that is there.
    pub(crate) fn overwrite(&self, buffer: &Buffer, host: Host) -> Result<()> {
        let bytes = host_bytes(&host)?;
        self.write(buffer, bytes).map_err(|error| failed(format!("uploading {} bytes", bytes.len()), error))
    }
}

/// The elements as the bytes they are.
pub(super) fn host_bytes(host: &Host) -> Result<&[u8]> {
    match host {
        Host::F32(x) => Ok(bytes(x)),
        Host::Bf16(x) => Ok(bytes(x)),
        Host::F16(x) => Ok(bytes(x)),
        Host::U32(x) => Ok(bytes(x)),
        other => Err(unsupported("this element type", other.dtype().to_string())),
    }
}

/// Plain numbers as the bytes they are.
fn bytes<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: called with integers and floats only, which have no padding; a byte may have any value.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The same, to be written.
fn bytes_mut<T: Copy>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes make such a number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
