//! Work on its way to the device: many dispatches in one submission.
//!
//! Dispatches are recorded into one compute pass, in which each sees what those before it wrote. Their parameters are
//! collected here and go into a uniform buffer in front of the submission, each at its own offset.

use crate::{
    error::{Faults, failed, guarded},
    pool::Pool,
};
use hecate_core::Result;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Most dispatches of a submission: enough that submitting costs little beside them, few enough that the device does
/// not stand idle while they are recorded.
const DISPATCHES: usize = 256;

/// Bytes of parameters of a submission.
const PARAMETERS: usize = 256 * DISPATCHES;

/// Bytes of uploads that wait for a submission at most: the driver keeps a copy of each until then.
const UPLOADS: usize = 64 << 20;

/// The device's queue, with the work that is not yet submitted.
pub(crate) struct Queue {
    /// wgpu's own handle.
    device: wgpu::Device,
    /// wgpu's own queue.
    queue: wgpu::Queue,
    /// Errors that came outside of calls.
    faults: Arc<Faults>,
    /// Told what is under way.
    pool: Arc<Pool>,
    /// Parameters of all dispatches of a submission.
    uniforms: wgpu::Buffer,
    /// Offsets of parameters are multiples of this.
    alignment: usize,
    /// Bytes that were uploaded since the last submission.
    uploaded: AtomicUsize,
    /// Dispatches that wait for a submission.
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// None where nothing is queued.
    recorder: Option<Recorder>,
    /// How many are queued.
    dispatches: usize,
    /// Their parameters, each at a multiple of the alignment.
    parameters: Vec<u8>,
}

/// The pass ends before its encoder does: fields are dropped in this order.
struct Recorder {
    /// Dispatches go here.
    pass: wgpu::ComputePass<'static>,
    /// What becomes of the submission.
    encoder: wgpu::CommandEncoder,
}

/// A dispatch without its parameters.
pub(crate) struct Dispatch<'a> {
    /// The compiled kernel.
    pub(crate) pipeline: &'a wgpu::ComputePipeline,
    /// Its arrays, and a window on the parameters.
    pub(crate) bindings: &'a wgpu::BindGroup,
    /// Workgroups in three dimensions.
    pub(crate) groups: [u32; 3],
}

/// Most bytes of the parameters of one dispatch.
pub(crate) const PARAMETERS_OF_ONE: usize = 256;

impl Queue {
    pub(crate) fn new(
        device: &wgpu::Device,
        queue: wgpu::Queue,
        faults: &Arc<Faults>,
        pool: &Arc<Pool>,
    ) -> Result<Self> {
        let uniforms = wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: (PARAMETERS + PARAMETERS_OF_ONE) as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let uniforms = faults.scoped(device, "making the buffer of parameters", || device.create_buffer(&uniforms))?;
        let alignment = device.limits().min_uniform_buffer_offset_alignment as usize;
        let (device, faults, pool) = (device.clone(), faults.clone(), pool.clone());
        let (uploaded, pending) = Default::default();
        Ok(Self { device, queue, faults, pool, uniforms, alignment, uploaded, pending })
    }

    /// The queued work under its lock.
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a bind group says of the parameters: a window that moves by the dispatch's offset.
    pub(crate) fn parameters(&self) -> wgpu::BufferBinding<'_> {
        let size = wgpu::BufferSize::new(PARAMETERS_OF_ONE as u64);
        wgpu::BufferBinding { buffer: &self.uniforms, offset: 0, size }
    }

    /// Queues a dispatch; true where a submission is due.
    pub(crate) fn dispatch(&self, dispatch: &Dispatch<'_>, parameters: &[u8]) -> bool {
        let mut pending = self.pending();
        // Each dispatch has a window of its own on the buffer of parameters.
        let offset = pending.parameters.len().next_multiple_of(self.alignment);
        pending.parameters.resize(offset, 0);
        pending.parameters.extend_from_slice(parameters);
        pending.dispatches += 1;
        let Recorder { pass, .. } = pending.recorder.get_or_insert_with(|| Recorder::new(&self.device));
        pass.set_pipeline(dispatch.pipeline);
        pass.set_bind_group(0, dispatch.bindings, &[offset as u32]);
        let [x, y, z] = dispatch.groups;
        pass.dispatch_workgroups(x, y, z);
        // What is left for the next dispatch's parameters.
        let room = PARAMETERS.saturating_sub(pending.parameters.len() + self.alignment);
        pending.dispatches >= DISPATCHES || room < PARAMETERS_OF_ONE
    }

    /// Submits what is queued, then `last`, which may copy. Gives the number of the submission.
    pub(crate) fn submit(
        &self,
        context: &str,
        last: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex> {
        let mut pending = self.pending();
        let Pending { recorder, parameters, .. } = std::mem::take(&mut *pending);
        // Held until the end: what another thread queues meanwhile comes after this.
        self.faults.scoped(&self.device, context, || {
            if !parameters.is_empty() {
                let whole = parameters.len().next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT as usize);
                let mut parameters = parameters;
                parameters.resize(whole, 0);
                self.queue.write_buffer(&self.uniforms, 0, &parameters);
            }
            let mut encoder = match recorder {
                Some(recorder) => recorder.end(),
                None => self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()),
            };
            last(&mut encoder);
            let submission = self.queue.submit([encoder.finish()]);
            self.pool.next_batch();
            self.uploaded.store(0, Ordering::Relaxed);
            submission
        })
    }

    /// Copies host bytes into a buffer that no queued dispatch touches, before all that is queued.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, bytes: &[u8]) -> Result<()> {
        let context = format!("uploading {} bytes", bytes.len());
        // Copies are of whole words: the last bytes go in a word of their own.
        let whole = bytes.len() / 4 * 4;
        self.faults.scoped(&self.device, &context, || {
            if whole > 0 {
                self.queue.write_buffer(buffer, 0, &bytes[..whole]);
            }
            if whole < bytes.len() {
                let mut last = [0; 4];
                last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
                self.queue.write_buffer(buffer, whole as u64, &last);
            }
        })?;
        if self.uploaded.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > UPLOADS {
            self.submit(&context, |_| {})?;
        }
        Ok(())
    }

    /// Waits for a submission, or for all that was submitted.
    pub(crate) fn wait(&self, context: &str, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        self.poll(context, wgpu::PollType::Wait { submission_index: submission, timeout: None })
    }

    /// Lets the driver tell what was done, without waiting for more.
    pub(crate) fn turn(&self, context: &str) -> Result<()> {
        self.poll(context, wgpu::PollType::Poll)
    }

    /// Asks the driver, and turns what it reports into an error.
    fn poll(&self, context: &str, poll: wgpu::PollType) -> Result<()> {
        self.faults.check(context)?;
        // Faults are looked at before and after: the wait itself may bring one.
        let polled = guarded(context, || self.device.poll(poll));
        self.faults.check(context)?;
        polled?.map(drop).map_err(|error| failed(context, error))
    }
}

impl Recorder {
    /// A pass that outlives its borrow of the encoder: both lie in this structure.
    fn new(device: &wgpu::Device) -> Self {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
        Self { pass, encoder }
    }

    /// Ends the pass and hands out its encoder.
    fn end(self) -> wgpu::CommandEncoder {
        let Self { pass, encoder } = self;
        drop(pass);
        encoder
    }
}
