//! What a device must provide before it has any cell.

use crate::{
    Capture, CapturedStep, Checked, DType, DeviceId, DeviceMemory, Error, Host, Replay, Result, Step, Tensor, Work,
};
use std::{fmt::Debug, num::NonZero, thread};

/// A place that holds arrays and runs work in order: a CPU pool, a CUDA stream, a WebGPU queue.
///
/// The value is the device; nothing is global. Clones are the same device.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// Name in messages.
    const NAME: &'static str;

    /// Storage of a tensor's elements.
    type Buffer: Send + Sync + 'static;

    /// Which device value this is: the same for clones, another for each pool, stream or queue that was opened.
    fn id(&self) -> &DeviceId;

    /// What people call the hardware, in a few words: `NVIDIA H200`, `2 threads`. How the value was set up is no part of
    /// it; [`Debug`] says that.
    fn hardware(&self) -> String {
        Self::NAME.to_owned()
    }

    /// Threads that work of the host for this device may take: one a processor, or as many as the device itself has there.
    fn host_threads(&self) -> usize {
        thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// Refuses a buffer that lies in another device's memory, or that does not hold `count` elements of `dtype`. Nothing
    /// else keeps a kernel inside of it: every array passes here once, when it is made.
    ///
    /// # Errors
    /// [`Error::Buffer`](crate::Error::Buffer), [`Error::OtherDevice`](crate::Error::OtherDevice).
    fn check_buffer(&self, buffer: &Self::Buffer, dtype: DType, count: usize) -> Result<()>;

    /// Copies host values to the device.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when out of memory or lost.
    fn upload(&self, host: Host) -> Result<Self::Buffer>;

    /// Copies `count` elements to the host, after all work queued before.
    ///
    /// # Errors
    /// As [`Device::check_buffer`]; [`Error::Device`](crate::Error::Device) when lost.
    fn download(&self, buffer: &Self::Buffer, dtype: DType, count: usize) -> Result<Host>;

    /// `count` zeros.
    ///
    /// # Errors
    /// As [`Device::upload`].
    fn zeros(&self, dtype: DType, count: usize) -> Result<Self::Buffer> {
        self.upload(Host::zeros(dtype, count)?)
    }

    /// Waits until all queued work is done, so that a clock reads execution and not queueing.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) with the first failure of the queued work.
    fn synchronize(&self) -> Result<()>;

    /// The most bytes that arrays of this program took on the device at once, where it keeps count.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when lost.
    fn peak_bytes(&self) -> Result<Option<usize>> {
        Ok(None)
    }

    /// How much memory the device has, and how much of it is free; none where it does not say.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when lost.
    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(None)
    }

    /// Captures a step as a graph for states and inputs shaped like these; the first [`CapturedStep::step`] goes on from
    /// `state`. The step must do the same work whatever the values are, and whatever it was called with before. While it
    /// is captured, other threads that use the device's value wait. Refused where the device gains nothing or cannot do so,
    /// or where the step cannot be repeated so: it copies to or from the host on its way.
    ///
    /// # Errors
    /// The step's own; the device's own failures.
    fn capture(
        &self,
        _: Checked<Self>,
        _state: &[Tensor<Self>],
        _input: &Tensor<Self>,
        _step: &mut Step<'_, Self>,
    ) -> Result<Capture<Box<dyn CapturedStep<Self>>>> {
        Ok(captures_nothing::<Self, _>())
    }

    /// Captures work as a graph, without running it. It must have run once before, so that all that it needs is there. What
    /// it reads stays where it is: the `inputs`, which replays write, the arrays that [`Replay::note`] is told of, and whatever
    /// else it uses.
    /// Values that it copies to the device are the same in every replay. Results belong to the graph: they change with
    /// every replay, and whoever wants to keep one copies it.
    ///
    /// # Errors
    /// The work's own; the device's own failures.
    fn capture_work(
        &self,
        _: Checked<Self>,
        _inputs: &[Tensor<Self>],
        _work: &mut Work<'_, Self>,
    ) -> Result<Capture<Box<dyn Replay<Self>>>> {
        Ok(captures_nothing::<Self, _>())
    }

    /// Whether [`Device::capture_work`] captures anything.
    fn captures_work(&self) -> bool {
        false
    }

    /// Makes at once what `work` would have to wait for bit by bit, such as kernels that are compiled. A device that gains by
    /// it runs the work without computing anything: results are arbitrary then, and errors are not reported. `tell` is
    /// called before a longer wait, with the number of kernels.
    ///
    /// # Errors
    /// The device's own failures.
    fn prepare(&self, _work: &mut dyn FnMut(), _tell: &mut dyn FnMut(usize)) -> Result<()> {
        Ok(())
    }
}

/// The answer of a device without graphs.
fn captures_nothing<D: Device, G>() -> Capture<G> {
    Capture::Refused { why: format!("{} captures nothing", D::NAME) }
}

/// [`Device::check_buffer`] of a device with memory of its own, for a buffer of `bytes` bytes that `owner` made. It may be
/// longer than its elements: pools round sizes up.
///
/// # Errors
/// [`Error::OtherDevice`] naming both devices, [`Error::Buffer`].
pub fn check_memory<D: Device>(device: &D, owner: &DeviceId, bytes: u64, dtype: DType, count: usize) -> Result<()> {
    if owner != device.id() {
        let (expected, found) = (device.id().clone(), owner.clone());
        return Err(Error::OtherDevice { what: "tensor", slot: "buffer", expected, found });
    }
    if count as u128 * dtype.size() as u128 <= u128::from(bytes) {
        return Ok(());
    }
    Err(Error::Buffer { backend: D::NAME, count, dtype, found: format!("{bytes} bytes") })
}
