//! Memory of a tensor on the GPU.
#![allow(unsafe_code)]

use crate::ledger::GraphLedger;
use cudarc::driver::{CudaSlice, DevicePtr};
use hecate_core::DeviceId;
use std::{fmt, mem::ManuallyDrop, sync::Arc};

/// Memory of a tensor.
pub struct Buffer {
    /// Taken out when the value is dropped.
    memory: ManuallyDrop<CudaSlice<u8>>,
    /// The ledger's clock when the memory was asked for.
    born: u64,
    /// Takes the memory then.
    ledger: Arc<GraphLedger>,
    /// The device value that made it.
    owner: DeviceId,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Buffer {
    /// Takes memory that `owner` asked for now.
    pub(super) fn new(memory: CudaSlice<u8>, ledger: &Arc<GraphLedger>, owner: &DeviceId) -> Self {
        let (memory, born) = (ManuallyDrop::new(memory), ledger.now());
        Self { memory, born, ledger: ledger.clone(), owner: owner.clone() }
    }

    /// The device value that made it.
    pub(crate) fn owner(&self) -> &DeviceId {
        &self.owner
    }

    /// Address on the device.
    pub(crate) fn pointer(&self) -> u64 {
        // Events are off, so the guard that comes with the pointer does nothing.
        self.memory.device_ptr(self.memory.stream()).0
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing looks at it afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        self.ledger.free(memory, self.born);
    }
}
