//! Measuring a device: times by its own clock, and how fast it copies.

use crate::{Cuda, device::guarded, error::failed};
use cudarc::driver::{CudaEvent, sys::CUevent_flags};
use hecate_core::{Device, Result};
use std::time::Instant;

/// Two marks on a stream, and what ran between them.
#[derive(Debug)]
pub struct Timing {
    /// Passed before the work.
    start: CudaEvent,
    /// Passed after it.
    end: CudaEvent,
}

impl Cuda {
    /// Queues `work` between two marks. Nothing waits, so that several may be queued one after another; what the host
    /// does between its launches counts where the GPU has to wait for it.
    ///
    /// # Errors
    /// Those of `work`; the driver's own.
    pub fn timed<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Timing)> {
        // A mark is recorded where the stream is now, not when this runs.
        let mark = || {
            let _turn = self.ledger().turn();
            self.stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
        };
        let marking = |error| failed("marking a time", error);
        let start = mark().map_err(marking)?;
        let done = work()?;
        let end = mark().map_err(marking)?;
        Ok((done, Timing { start, end }))
    }

    /// Bytes read and bytes written a second by copies within the memory, measured now (about a tenth of a second).
    ///
    /// # Errors
    /// The driver's own.
    pub fn copy_rate(&self) -> Result<f64> {
        // Enough that starting the copies takes nothing beside them.
        const TIMES: u32 = 20;
        let bytes = (self.properties().memory / 8).min(1 << 29);
        let (from, to) = (self.allocate(bytes)?, self.allocate(bytes)?);
        let mut start = Instant::now();
        // The first is for waking up.
        for i in 0..=TIMES {
            self.copy_bytes(&from, &to, bytes)?;
            if i == 0 {
                self.synchronize()?;
                start = Instant::now();
            }
        }
        self.synchronize()?;
        Ok(2.0 * bytes as f64 * f64::from(TIMES) / start.elapsed().as_secs_f64())
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
