//! Work of a captured graph beside its main line: what nobody needs before the end, such as gradients of weights.
//!
//! Small kernels leave most of a large GPU idle. In a graph some go on a second stream, which starts where the main one
//! stands. Whoever asks for the address of what they write makes the main stream wait for them first. Until then what they
//! read stays as it is, and what they write is nobody else's.

use super::{Cuda, arena::Arena};
use crate::{
    error::failed,
    launch::{Grid, KernelArguments},
};
use cudarc::driver::CudaStream;
use hecate_core::{Result, Tensor};
use std::{any::Any, mem, sync::Arc};

/// Most bytes that are kept for work beside the main line; where steps take more, a GPU is busy anyway.
const MOST_KEPT: usize = 256 << 20;

/// What was queued beside the main line since the main stream waited for it last.
#[derive(Default)]
pub(super) struct Beside {
    /// Where results begin.
    pub(super) pending: Vec<u64>,
    /// What is read there, and its bytes.
    kept: Vec<Box<dyn Any + Send>>,
    bytes: usize,
    /// Results that nobody looked at, to be given back.
    late: Vec<(u64, usize)>,
}

/// A graph has one stream beside its main line; what goes there is in order too.
impl Arena {
    /// Makes the main stream wait for what was queued beside it, if `start` is a result of that.
    pub(super) fn meet_for(&self, start: u64) {
        if self.beside().pending.contains(&start) {
            self.meet();
        }
    }

    /// Makes the main stream wait for all that was queued beside it.
    pub(crate) fn meet(&self) {
        // Without results that are waited for, the stream is not part of the capture.
        if !self.beside().pending.is_empty() {
            // Where it cannot, the capture does not end well either, which is told.
            let _ = self.main.join(&self.side);
        }
        self.forget_beside();
    }

    /// Lets go of what was kept.
    pub(crate) fn forget_beside(&self) {
        let Beside { kept, late, .. } = mem::take(&mut *self.beside());
        // They give back memory themselves.
        drop(kept);
        late.into_iter().for_each(|(start, bytes)| self.give_back(start, bytes));
    }

    /// Whether a result that is given back is still being written; then it is given back later.
    pub(super) fn is_late(&self, start: u64, bytes: usize) -> bool {
        let mut beside = self.beside();
        let late = beside.pending.contains(&start);
        if late {
            beside.late.push((start, bytes));
        }
        late
    }
}

impl Cuda {
    /// Queues what writes `results` through `queue`: beside the main line where a graph is captured, which keeps `read` as
    /// it is until then, else on the main stream.
    pub(crate) fn beside<T: Any + Send>(
        &self,
        results: &[&Tensor<Self>],
        (read, bytes): (T, usize),
        queue: impl FnOnce(&Arc<CudaStream>) -> Result<()>,
    ) -> Result<()> {
        // Outside of a capture memory goes back in the order of the main stream, which knows nothing of another.
        let room = |arena: &Arc<Arena>| arena.beside().bytes.saturating_add(bytes) <= MOST_KEPT;
        let Some(arena) = self.ledger().arena().filter(room) else { return queue(self.stream()) };
        // It may read all that was queued before.
        arena.side.join(&arena.main).map_err(|error| failed("queueing work beside the main line", error))?;
        queue(&arena.side)?;
        // From here on, whoever asks for the address waits.
        let mut beside = arena.beside();
        beside.pending.extend(results.iter().map(|result| result.buffer().start()));
        beside.kept.push(Box::new(read));
        beside.bytes += bytes;
        Ok(())
    }

    /// As [`Cuda::launch`], for a kernel that writes `results` out of `read` and nothing else.
    pub(crate) fn launch_beside<A: KernelArguments, T: Any + Send>(
        &self,
        grid: Grid,
        arguments: &A,
        results: &[&Tensor<Self>],
        read: (T, usize),
    ) -> Result<()> {
        self.beside(results, read, |stream| self.launch_on(stream, grid, arguments))
    }
}
