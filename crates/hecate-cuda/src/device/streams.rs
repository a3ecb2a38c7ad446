//! Kernels of one call beside each other: a chain that few blocks go along, and work of many blocks before or behind it.

use crate::{
    Cuda,
    error::failed,
    launch::{Arguments, Grid},
};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use hecate_core::Result;
use std::sync::Arc;

/// A stream whose blocks come before those of others.
pub(super) fn urgent(context: &Arc<CudaContext>) -> std::result::Result<Arc<CudaStream>, DriverError> {
    context.bind_to_thread()?;
    let (_, first) = result::stream::get_priority_range()?;
    context.new_stream_with_priority(first)
}

/// The main stream and, where a call has two, the urgent one, on which its chain goes. Behind this value, the main stream has
/// waited for both.
pub(crate) struct Streams<'a> {
    device: &'a Cuda,
    two: bool,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(device: &'a Cuda, two: bool) -> Self {
        Self { device, two }
    }

    /// Queues a link of the chain.
    pub(crate) fn launch_link<A: Arguments>(&self, grid: Grid, arguments: &A) -> Result<()> {
        let stream = if self.two { &self.device.0.urgent } else { self.device.stream() };
        self.device.launch_on(stream, grid, arguments)
    }

    /// The next link waits for what is queued on the main stream.
    pub(crate) fn link_waits(&self) -> Result<()> {
        self.wait(&self.device.0.urgent, self.device.stream())
    }

    /// What is queued on the main stream next waits for the last link.
    pub(crate) fn wait_for_link(&self) -> Result<()> {
        self.wait(self.device.stream(), &self.device.0.urgent)
    }

    fn wait(&self, stream: &CudaStream, other: &CudaStream) -> Result<()> {
        if !self.two {
            return Ok(());
        }
        // Marks on a stream that another thread records would be the recording's.
        let _turn = self.device.kept().turn();
        stream.join(other).map_err(|error| failed("making a stream wait for another", error))
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        if self.wait_for_link().is_err() {
            // Whoever frees memory next must not do so under the chain; a failure of this shows in the next call.
            let _ = self.device.0.urgent.synchronize();
        }
    }
}
