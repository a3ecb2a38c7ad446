//! Kernels of one call beside each other: a chain that few blocks go along, and work of many blocks before or after it.

use crate::{
    Cuda,
    error::failed,
    launch::{Grid, KernelArguments},
};
use cudarc::driver::CudaStream;
use hecate_core::Result;

/// The main stream and, where a call has two, the urgent one, on which its chain goes. When this value is dropped, the main
/// stream waits for both.
pub(crate) struct Streams<'a> {
    /// Whose streams they are.
    device: &'a Cuda,
    /// Whether the call has a chain on the urgent stream.
    two: bool,
}

impl<'a> Streams<'a> {
    /// `two`: the call's chain goes on the urgent stream.
    pub(crate) fn new(device: &'a Cuda, two: bool) -> Self {
        Self { device, two }
    }

    /// Queues a link of the chain.
    pub(crate) fn launch_link<A: KernelArguments>(&self, grid: Grid, arguments: &A) -> Result<()> {
        // A call with one stream has its chain on the main one.
        let stream = if self.two { self.device.urgent_stream() } else { self.device.stream() };
        self.device.launch_on(stream, grid, arguments)
    }

    /// The next link waits for what is queued on the main stream.
    pub(crate) fn link_waits(&self) -> Result<()> {
        self.wait(self.device.urgent_stream(), self.device.stream())
    }

    /// What is queued on the main stream next waits for the last link.
    pub(crate) fn wait_for_link(&self) -> Result<()> {
        self.wait(self.device.stream(), self.device.urgent_stream())
    }

    /// Makes `stream` wait for what is queued on `other`.
    fn wait(&self, stream: &CudaStream, other: &CudaStream) -> Result<()> {
        if !self.two {
            return Ok(());
        }
        // Marks on a stream that another thread records would be the capture's.
        let _turn = self.device.ledger().turn();
        stream.join(other).map_err(|error| failed("making a stream wait for another", error))
    }
}

impl Drop for Streams<'_> {
    /// The main stream waits for the chain beside it, also where a call failed halfway.
    fn drop(&mut self) {
        if self.wait_for_link().is_err() {
            // Whoever frees memory next must not do so under the chain; a failure of this shows in the next call.
            let _ = self.device.urgent_stream().synchronize();
        }
    }
}
