//! Memory of a tensor on the GPU.
#![allow(unsafe_code)]

use super::arena::Arena;
use crate::ledger::GraphLedger;
use cudarc::driver::{CudaSlice, DevicePtr};
use hecate_core::DeviceId;
use std::{
    fmt,
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Memory of a tensor.
pub struct Buffer {
    /// Taken out when the value is dropped.
    memory: ManuallyDrop<Memory>,
    /// The ledger's clock when the memory was asked for.
    born: u64,
    /// The clock when somebody last queued what writes over it, or when it was asked for.
    written: AtomicU64,
    /// Takes the memory then.
    ledger: Arc<GraphLedger>,
    /// The device value that made it.
    owner: DeviceId,
}

/// Where it comes from.
enum Memory {
    /// Of the GPU's pool.
    Pool(CudaSlice<u8>),
    /// Of a graph's, which has it at the same place in every replay.
    /// Constants were copied from the host while the graph was captured.
    Arena { start: u64, bytes: usize, arena: Arc<Arena>, constant: bool },
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Buffer {
    /// Takes memory that `owner` asked for now.
    pub(super) fn new(memory: CudaSlice<u8>, ledger: &Arc<GraphLedger>, owner: &DeviceId) -> Self {
        Self::with(Memory::Pool(memory), ledger, owner)
    }

    /// Takes `bytes` bytes of a graph's memory, which hold the same in every replay where they are `constant`.
    pub(super) fn of_graph(
        (start, bytes): (u64, usize),
        arena: Arc<Arena>,
        constant: bool,
        (ledger, owner): (&Arc<GraphLedger>, &DeviceId),
    ) -> Self {
        Self::with(Memory::Arena { start, bytes, arena, constant }, ledger, owner)
    }

    /// Of memory that the ledger dates from now on: written in this moment, for graphs that ask.
    fn with(memory: Memory, ledger: &Arc<GraphLedger>, owner: &DeviceId) -> Self {
        let (memory, born) = (ManuallyDrop::new(memory), ledger.now());
        Self { memory, born, written: born.into(), ledger: ledger.clone(), owner: owner.clone() }
    }

    /// The device value that made it.
    pub(crate) fn owner(&self) -> &DeviceId {
        &self.owner
    }

    /// Takes note that what is queued next writes it. Whoever writes memory that it did not ask for itself says so.
    pub(crate) fn written_over(&self) {
        self.written.store(self.ledger.now(), Ordering::Relaxed);
    }

    /// Whether this thread captures a step whose kernels, up to here, leave it as it was before. Such memory may be read
    /// while kernels before still run: what comes later in the step waits for them.
    ///
    /// One replay begins when all of the one before it has ended, so what ends a step may write it too.
    pub(crate) fn is_settled(&self) -> bool {
        self.ledger.captures_since(self.written.load(Ordering::Relaxed))
    }

    /// Address on the device, for whoever uses what is there.
    pub(crate) fn pointer(&self) -> u64 {
        if let Memory::Arena { start, arena, constant: false, .. } = &*self.memory {
            arena.meet_for(*start);
        }
        self.start()
    }

    /// Address on the device.
    pub(super) fn start(&self) -> u64 {
        match &*self.memory {
            // Events are off, so the guard that comes with the pointer does nothing.
            Memory::Pool(memory) => memory.device_ptr(memory.stream()).0,
            &Memory::Arena { start, .. } => start,
        }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        match &*self.memory {
            Memory::Pool(memory) => memory.len(),
            &Memory::Arena { bytes, .. } => bytes,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing looks at it afterwards.
        match unsafe { ManuallyDrop::take(&mut self.memory) } {
            Memory::Pool(memory) => self.ledger.free(memory, self.born),
            // Constants stay as long as the arena.
            Memory::Arena { constant: true, .. } => {}
            Memory::Arena { start, bytes, arena, .. } => arena.give_back(start, bytes),
        }
    }
}
