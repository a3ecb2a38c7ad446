//! What core asks of a device.

use crate::{
    Cuda,
    capture::{capture, capture_work},
    device::{Buffer, host_bytes},
    error::{failed, unsupported},
    prepare::prepare,
};
use hecate_core::{
    Capture, CapturedStep, Checked, DType, Device, DeviceId, DeviceMemory, Host, Replay, Result, Step, Tensor, Work,
    check_memory,
};

// Work is queued and returns at once: what a kernel did wrong is told by the next call that waits.
impl Device for Cuda {
    const NAME: &'static str = "cuda";
    type Buffer = Buffer;

    /// Of the device value, not of the GPU: two values of one GPU share no memory.
    fn id(&self) -> &DeviceId {
        self.identity()
    }

    /// The name that the driver gives the GPU.
    fn hardware(&self) -> String {
        self.properties().name.clone()
    }

    /// Refuses memory of another device value, and too little of it.
    /// Lengths are compared in bytes: a buffer may be longer than its tensor, never shorter.
    fn check_buffer(&self, buffer: &Buffer, dtype: DType, count: usize) -> Result<()> {
        check_memory(self, buffer.owner(), buffer.len() as u64, dtype, count)
    }

    /// Over the stream of uploads, so that it need not wait for kernels that were queued before.
    /// Elements are copied before the call returns, so the host may change or free its own.
    fn upload(&self, host: Host) -> Result<Buffer> {
        self.upload_bytes(host_bytes(&host)?)
    }

    /// Waits for all that was queued before, and for the copy.
    fn download(&self, buffer: &Buffer, dtype: DType, count: usize) -> Result<Host> {
        self.check_buffer(buffer, dtype, count)?;
        self.ledger().check("copying to the host")?;
        match dtype {
            DType::F32 => Ok(Host::F32(self.read(buffer, count)?)),
            DType::U32 => Ok(Host::U32(self.read(buffer, count)?)),
            DType::Bf16 => Ok(Host::Bf16(self.read(buffer, count)?)),
            DType::F16 => Ok(Host::F16(self.read(buffer, count)?)),
            other => Err(unsupported("this element type", other.to_string())),
        }
    }

    /// Filled by the driver, on the main stream.
    /// All types of elements have zeros of zero bits. A size that overflows is refused as too much memory.
    fn zeros(&self, dtype: DType, count: usize) -> Result<Buffer> {
        let buffer = self.allocate(count.saturating_mul(dtype.size()))?;
        self.fill(&buffer, 0)?;
        Ok(buffer)
    }

    /// What the driver says of the whole GPU, whichever program uses it. What this program keeps for later is free to it.
    fn memory(&self) -> Result<Option<DeviceMemory>> {
        let (free, total) = self.context().mem_get_info().map_err(|error| failed("asking for free memory", error))?;
        Ok(Some(DeviceMemory { total: total as u64, free: (free + self.pool_spare()?) as u64 }))
    }

    /// As `capture.rs` says.
    fn capture(
        &self,
        _: Checked<Self>,
        state: &[Tensor<Self>],
        input: &Tensor<Self>,
        step: &mut Step<'_, Self>,
    ) -> Result<Capture<Box<dyn CapturedStep<Self>>>> {
        capture(self, state, input, step)
    }

    /// As `capture.rs` says, in memory of the graph's own.
    fn capture_work(
        &self,
        _: Checked<Self>,
        inputs: &[Tensor<Self>],
        work: &mut Work<'_, Self>,
    ) -> Result<Capture<Box<dyn Replay<Self>>>> {
        capture_work(self, inputs, work)
    }

    /// Where memory comes from pools and nobody turned it off.
    fn captures_work(&self) -> bool {
        self.context().has_async_alloc() && !self.call_by_call()
    }

    /// As `prepare.rs` says.
    fn prepare(&self, work: &mut dyn FnMut(), tell: &mut dyn FnMut(usize)) -> Result<()> {
        prepare(self, work, tell);
        Ok(())
    }

    /// Waits until the main stream is empty.
    /// Uploads are waited for too, since the main stream waits for them.
    fn synchronize(&self) -> Result<()> {
        self.ledger().check("waiting for the GPU")?;
        let _turn = self.ledger().turn();
        self.stream().synchronize().map_err(|error| failed("waiting for the GPU", error))
    }

    /// What the GPU's pool counts: streams of one program share it.
    /// None where the driver has no pools.
    fn peak_bytes(&self) -> Result<Option<usize>> {
        self.pool_peak()
    }
}
