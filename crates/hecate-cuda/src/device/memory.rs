//! Memory: asking for it, filling it, copies within it.
#![allow(unsafe_code)]

use super::{Buffer, Cuda};
use crate::error::failed;
use cudarc::driver::{DriverError, result, sys::CUresult};
use hecate_core::{Bytes, DType, Error, Result, Shape, Tensor};

impl Cuda {
    /// Memory of `bytes` bytes, not written yet.
    /// While this thread captures, it comes out of the graph's arena, which lives as long as the graph. Buffers have a
    /// byte at least, so that arrays without elements have an address too.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(1);
        let buffer = if let Some(arena) = self.ledger().arena() {
            let start = arena.take(self, bytes)?;
            Buffer::of_graph((start, bytes), arena, false, (self.ledger(), self.identity()))
        } else {
            // A capture on another thread would take this along.
            let _turn = self.ledger().turn();
            // SAFETY: bytes are valid whatever they hold; kernels write before they read.
            let memory = unsafe { self.stream().alloc::<u8>(bytes) };
            Buffer::new(memory.map_err(|error| self.out_of_memory(bytes, error))?, self.ledger(), self.identity())
        };
        if self.0.options.poisoned {
            self.fill(&buffer, 0xff)?;
        }
        Ok(buffer)
    }

    /// Memory of `bytes` bytes, asked for on the stream of uploads: whatever is captured on the main one does not see it.
    /// The main stream has to wait for that stream before the memory is used.
    pub(super) fn allocate_beside(&self, bytes: usize) -> Result<Buffer> {
        self.context().bind_to_thread().map_err(|error| failed("asking for memory", error))?;
        // SAFETY: fresh memory of this length, owned once; the main stream frees it.
        let memory = unsafe {
            let pointer = result::malloc_async(self.uploads().cu_stream(), bytes);
            self.stream().upgrade_device_ptr::<u8>(pointer.map_err(|error| self.out_of_memory(bytes, error))?, bytes)
        };
        Ok(Buffer::new(memory, self.ledger(), self.identity()))
    }

    /// A tensor whose elements a kernel is about to write.
    /// Kernels write every element of a result before anyone reads it; zeros would cost another pass over the memory.
    pub(crate) fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        let buffer = self.allocate(bytes.unwrap_or(usize::MAX))?;
        Tensor::from_buffer(self, shape, dtype, buffer)
    }

    /// As [`Cuda::empty`], filled with zeros.
    pub(crate) fn zeroed(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let tensor = self.empty(shape, dtype)?;
        self.fill(tensor.buffer(), 0)?;
        Ok(tensor)
    }

    /// Writes `byte` everywhere.
    /// On the main stream, after all that is queued there.
    pub(crate) fn fill(&self, buffer: &Buffer, byte: u8) -> Result<()> {
        self.context().bind_to_thread().map_err(|error| failed("filling memory", error))?;
        let _turn = self.ledger().turn();
        buffer.written_over();
        // SAFETY: the buffer is alive, and as long as its length says; the stream orders its use.
        unsafe { result::memset_d8_async(buffer.pointer(), byte, buffer.len(), self.stream().cu_stream()) }
            .map_err(|error| failed(format!("filling {} bytes", buffer.len()), error))
    }

    /// The first `bytes` bytes of one into the other.
    /// Both lie on this device and do not overlap.
    pub(crate) fn copy_bytes(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<()> {
        let copying = |error| failed(format!("copying {bytes} bytes"), error);
        debug_assert!(bytes <= from.len() && bytes <= to.len());
        self.context().bind_to_thread().map_err(copying)?;
        let _turn = self.ledger().turn();
        to.written_over();
        // SAFETY: both are alive and at least as long; the stream orders their use.
        unsafe { result::memcpy_dtod_async(to.pointer(), from.pointer(), bytes, self.stream().cu_stream()) }
            .map_err(copying)
    }

    /// The elements of one tensor into the memory of another like it.
    pub(crate) fn copy(&self, from: &Tensor<Self>, to: &Tensor<Self>) -> Result<()> {
        self.copy_bytes(from.buffer(), to.buffer(), from.shape().count() * from.dtype().size())
    }

    /// The same elements in memory of their own.
    /// For those who write in place what somebody else still reads.
    pub(crate) fn copied(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty(x.shape().clone(), x.dtype())?;
        self.copy(x, &y)?;
        Ok(y)
    }

    /// The error of a request that failed, with what is free.
    /// Other failures of the driver keep its own words.
    pub(super) fn out_of_memory(&self, bytes: usize, error: DriverError) -> Error {
        if error.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return failed(format!("allocating {bytes} bytes"), error);
        }
        let free = self.context().mem_get_info().ok().map(|(free, _)| Bytes(free as u128));
        Error::OutOfMemory { what: "an array on the GPU", bytes: Bytes(bytes as u128), free }
    }
}
