//! Copies between the host's memory and the device's.

use crate::{
    Buffer, Wgpu,
    error::{captured, failed, unsupported},
};
use half::{slice::HalfFloatSliceExt, vec::HalfBitsVecExt};
use hecate_core::{DType, Host, Result};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// The elements as the bytes they are.
pub(crate) fn bytes(host: &Host) -> Result<&[u8]> {
    match host {
        Host::F32(x) => Ok(bytemuck::cast_slice(x)),
        Host::Bf16(x) => Ok(bytemuck::cast_slice(x.reinterpret_cast())),
        Host::F16(x) => Ok(bytemuck::cast_slice(x.reinterpret_cast())),
        Host::U32(x) => Ok(bytemuck::cast_slice(x)),
        other => Err(unsupported("this element type", other.dtype().to_string())),
    }
}

/// The elements that these bytes are.
fn host(dtype: DType, bytes: &[u8]) -> Result<Host> {
    match dtype {
        DType::F32 => Ok(Host::F32(bytemuck::pod_collect_to_vec(bytes))),
        DType::U32 => Ok(Host::U32(bytemuck::pod_collect_to_vec(bytes))),
        DType::Bf16 => Ok(Host::Bf16(bytemuck::pod_collect_to_vec::<u8, u16>(bytes).reinterpret_into())),
        DType::F16 => Ok(Host::F16(bytemuck::pod_collect_to_vec::<u8, u16>(bytes).reinterpret_into())),
        other => Err(unsupported("this element type", other.to_string())),
    }
}

/// How often the driver is asked for the result of work that is done.
const ASKED: usize = 100;

/// Elements on their way to the host: a future that any executor can wait for.
///
/// In a browser the page's loop brings it about. Elsewhere somebody must ask the driver. Whoever polls the future does,
/// and is woken at once to ask again. So a program with nothing else to do better calls [`Readback::wait`].
#[must_use = "a copy that nobody waits for was made for nothing"]
pub struct Readback {
    /// Whom to ask.
    device: Wgpu,
    /// Memory that the host can map.
    staging: wgpu::Buffer,
    /// The copy's.
    submission: wgpu::SubmissionIndex,
    /// Type of the elements.
    dtype: DType,
    /// Bytes of the elements.
    bytes: usize,
    /// What the driver says.
    mapped: Arc<Mapped>,
}

impl fmt::Debug for Readback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readback").field("dtype", &self.dtype).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// What mapping the staging memory came to.
type Outcome = std::result::Result<(), wgpu::BufferAsyncError>;

/// What the driver says of the staging memory.
#[derive(Default)]
struct Mapped {
    /// Where the mapping stands.
    progress: Mutex<Progress>,
    /// Told when there is an outcome.
    settled: Condvar,
}

#[derive(Default)]
struct Progress {
    /// None until the driver has called back.
    outcome: Option<Outcome>,
    /// Who polls the future.
    waker: Option<Waker>,
}

impl Mapped {
    /// The state under its lock; a poisoned lock is used on, since the state is always whole.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome, waited for a little: where several threads ask the driver, one may be told what another waits for.
    fn outcome(&self) -> Option<Outcome> {
        let waiting = |progress: &mut Progress| progress.outcome.is_none();
        let waited = self.settled.wait_timeout_while(self.progress(), Duration::from_millis(100), waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.outcome.take()
    }

    /// Called by the driver: stores the outcome, then wakes all who wait.
    fn settle(&self, outcome: Outcome) {
        let waker = {
            let mut progress = self.progress();
            progress.outcome = Some(outcome);
            progress.waker.take()
        };
        self.settled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Readback {
    /// Queues the copy after all that was queued before.
    pub(crate) fn start(device: &Wgpu, buffer: &Buffer, dtype: DType, count: usize) -> Result<Self> {
        let bytes = count * dtype.size();
        let context = format!("downloading {bytes} bytes");
        // Copies are of whole words.
        let size = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT as usize).max(4) as u64;
        let staging = wgpu::BufferDescriptor {
            label: Some("read-back"),
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        device.faults().check(&context)?;
        let staging = device.faults().scoped(device.raw(), &context, || device.raw().create_buffer(&staging))?;
        // The copy goes to the end of what is queued, and is submitted with it.
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            encoder.copy_buffer_to_buffer(buffer.memory(), 0, &staging, 0, size);
        };
        let submission = device.queue().submit(&context, copy)?;
        let mapped = Arc::new(Mapped::default());
        let settled = mapped.clone();
        let map = || staging.map_async(wgpu::MapMode::Read, .., move |outcome| settled.settle(outcome));
        let ((), error) = captured(device.raw(), map);
        device.faults().judge(device.raw(), &context, error)?;
        Ok(Self { device: device.clone(), staging, submission, dtype, bytes, mapped })
    }

    /// Waits for the elements.
    ///
    /// # Errors
    /// [`hecate_core::Error::Device`] when lost.
    pub fn wait(self) -> Result<Host> {
        let mut outcome = None;
        // Waiting for the submission comes back before the callback where another thread polls.
        for _ in 0..ASKED {
            self.device.queue().wait(&self.context(), Some(self.submission.clone()))?;
            outcome = self.mapped.outcome();
            if outcome.is_some() {
                break;
            }
        }
        self.finish(outcome)
    }

    /// What error messages say was being done.
    fn context(&self) -> String {
        format!("downloading {} bytes", self.bytes)
    }

    /// The elements, or what went wrong.
    fn finish(&self, outcome: Option<Outcome>) -> Result<Host> {
        let context = self.context();
        self.device.faults().check(&context)?;
        match outcome {
            None => Err(failed(context, "the work is done, but its result is not there")),
            Some(Err(error)) => Err(failed(context, error)),
            Some(Ok(())) => {
                let view = self.staging.get_mapped_range(..).map_err(|error| failed(context, error))?;
                host(self.dtype, &view[..self.bytes])
            }
        }
    }
}

impl Future for Readback {
    type Output = Result<Host>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.device.queue().turn(&self.context()) {
            return Poll::Ready(Err(error));
        }
        let outcome = {
            let mut progress = self.mapped.progress();
            progress.waker = Some(context.waker().clone());
            progress.outcome.take()
        };
        if outcome.is_none() {
            if cfg!(not(target_family = "wasm")) {
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        Poll::Ready(self.finish(outcome))
    }
}
