//! Copies between the host's memory and the device's.
#![allow(unsafe_code)]

use super::{Buffer, Cuda, arena::Arena, staging::Outcome};
use crate::error::{failed, unsupported};
use cudarc::driver::result;
use hecate_core::{Host, Result};
use std::sync::Arc;

// Bytes go through pinned blocks of the host, see `staging.rs`: the driver copies those while the host goes on.
impl Cuda {
    /// Over the stream of uploads: the copy, and where the pool can do so asking for memory, do not wait for what was
    /// queued before. The main stream waits for both, and frees the memory.
    /// During a capture they become constants of the graph.
    pub(crate) fn upload_bytes(&self, bytes: &[u8]) -> Result<Buffer> {
        if let Some(arena) = self.ledger().arena() {
            return self.upload_constant(arena, bytes);
        }
        self.ledger().check("copying from the host")?;
        let uploads = self.uploads();
        let uploading = |error| failed(format!("uploading {} bytes", bytes.len()), error);
        if bytes.is_empty() || !self.context().has_async_alloc() {
            let buffer = self.allocate(bytes.len())?;
            self.write(&buffer, bytes).map_err(uploading)?;
            return Ok(buffer);
        }
        self.context().bind_to_thread().map_err(uploading)?;
        let _turn = self.ledger().turn();
        // SAFETY: fresh memory of this length, owned once; the main stream frees it, after the copy that it waits for.
        let (memory, written) = unsafe {
            let pointer = result::malloc_async(uploads.cu_stream(), bytes.len());
            let pointer = pointer.map_err(|error| self.out_of_memory(bytes.len(), error))?;
            let memory = self.stream().upgrade_device_ptr::<u8>(pointer, bytes.len());
            (memory, self.0.staging.write(uploads, pointer, bytes))
        };
        let buffer = Buffer::new(memory, self.ledger(), self.identity());
        // Where the streams cannot be joined, the host waits.
        let joined = self.stream().join(uploads).or_else(|_| uploads.synchronize());
        written.and(joined).map_err(uploading)?;
        Ok(buffer)
    }

    /// Bytes that a graph finds the same in every replay. They are copied now, beside what is captured.
    /// So the graph has no copy from the host, whose memory might be freed before the first replay.
    fn upload_constant(&self, arena: Arc<Arena>, bytes: &[u8]) -> Result<Buffer> {
        let start = arena.take_constant(self, bytes.len())?;
        let uploads = self.uploads();
        // SAFETY: fresh memory that is at least as long, and stays as long as the arena; the stream orders its use.
        unsafe { self.0.staging.write(uploads, start, bytes) }
            .map_err(|error| failed(format!("uploading {} bytes", bytes.len()), error))?;
        Ok(Buffer::of_graph((start, bytes.len().max(1)), arena, true, (self.ledger(), self.identity())))
    }

    /// Host bytes into memory that is there, on the main stream.
    fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Outcome {
        debug_assert!(bytes.len() <= buffer.len());
        let _turn = self.ledger().turn();
        buffer.written_over();
        // SAFETY: the buffer is alive and at least as long; the stream orders its use.
        unsafe { self.0.staging.write(self.stream(), buffer.pointer(), bytes) }
    }

    /// The first elements of a buffer.
    /// It waits for all that was queued before. `count` elements are at most those of the buffer.
    pub(crate) fn read<T: Copy + Default>(&self, buffer: &Buffer, count: usize) -> Result<Vec<T>> {
        hecate_core::memory::check::<T>("download", count)?;
        let mut values = vec![T::default(); count];
        let bytes = bytes_mut(&mut values);
        let length = bytes.len();
        debug_assert!(length <= buffer.len());
        let _turn = self.ledger().turn();
        // SAFETY: the buffer is alive and at least as long; the stream orders its use.
        let read = unsafe { self.0.staging.read(self.stream(), buffer.pointer(), bytes) };
        read.and_then(|()| self.stream().synchronize())
            .map_err(|error| failed(format!("downloading {length} bytes"), error))?;
        Ok(values)
    }

    /// Host values into memory that is there.
    /// There are no more of them than the buffer has bytes: callers see to that.
    pub(crate) fn overwrite(&self, buffer: &Buffer, host: Host) -> Result<()> {
        let bytes = host_bytes(&host)?;
        self.write(buffer, bytes).map_err(|error| failed(format!("uploading {} bytes", bytes.len()), error))
    }
}

/// The elements as the bytes they are.
/// Types without a representation on the host are refused by name.
pub(crate) fn host_bytes(host: &Host) -> Result<&[u8]> {
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
