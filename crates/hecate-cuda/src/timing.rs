//! Times by the GPU's own clock.

use crate::{Cuda, device::guarded, error::failed};
use cudarc::driver::{CudaEvent, sys::CUevent_flags};
use hecate_core::Result;

/// Two marks on a stream, and what ran between them.
#[derive(Debug)]
pub struct Timing {
    start: CudaEvent,
    end: CudaEvent,
}

impl Cuda {
    /// Queues `work` between two marks. Nothing waits, so that several may be queued one behind another; what the host
    /// does between its launches counts where the GPU has to wait for it.
    ///
    /// # Errors
    /// Those of `work`; the driver's own.
    pub fn timed<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Timing)> {
        let mark = || {
            let _turn = self.kept().turn();
            self.stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
        };
        let marking = |error| failed("marking a time", error);
        let start = mark().map_err(marking)?;
        let done = work()?;
        let end = mark().map_err(marking)?;
        Ok((done, Timing { start, end }))
    }
}

impl Timing {
    /// Milliseconds from mark to mark; waits until the second was passed.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] on drivers older than CUDA 12.8; what failed between the marks.
    pub fn milliseconds(&self) -> Result<f32> {
        guarded(|| self.start.elapsed_ms(&self.end).map_err(|error| failed("measuring a time", error)))
    }
}
