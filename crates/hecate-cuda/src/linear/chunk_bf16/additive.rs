//! Rules that never erase, without momentum: one kernel from chunk to chunk, forward and backward, with nothing prepared.
//!
//! `M = A M + Kᵀ (c ∘ w ∘ V)` waits for sums alone. So the memory after a stretch of chunks is a scalar times the memory before
//! it, and what the stretch makes of an empty one. Long sequences of few heads go in segments beside each other: one launch
//! makes those ends, and in another each segment begins with what the ends before it add up to, in 32 bits. Backward it is the
//! same with the gradient of the memory, from the last chunk to the first.
//!
//! Segments are of one sequence: packed ones are cut up each by itself, and one that is shorter has fewer.

use super::{
    super::layout::{CHUNK, Layout, LinearCall},
    gradients::GradientsArguments,
    narrow,
};
use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims, Result, Tensor,
    families::{EraseStrength, LinearInputs, LinearOutputs, LinearSpec},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_additive", "additive.cu");
pub(crate) const GRADIENTS: KernelSource = kernel_source!("chunk_bf16_additive_gradients", "additive_gradients.cu");

/// Columns of tiles of keys and of values.
const SIDE: usize = 128;
/// Threads of a block: two groups that hold the memory, one that makes what they need, one that reads ahead.
const THREADS: u32 = 512;
/// Threads of a block of the gradients, and bytes of shared memory, with which two blocks share a multiprocessor.
const GRADIENTS_THREADS: u32 = 256;
const GRADIENTS_SHARED: usize = 113 << 10;
/// Chunks that lie in shared memory.
const STAGES: usize = 4;
/// Elements of what a segment leaves, `Additive::END` of `additive.cuh`.
const END: usize = SIDE * SIDE + 64;
/// A segment has at least so many chunks, beside which one more launch takes little.
const SHORTEST: usize = 16;

arguments! {
    /// `struct Bf16Additive` of `additive.cuh`.
    struct AdditiveArguments {
        /// Inputs and sizes.
        p: LinearCall,
        /// `v`, or the gradient of the outputs, `[rows,H,V]` of bfloat16.
        values: In<u16>,
        /// The memory, or its gradient, that the chain begins with, and that it ends with: `[N,H,K,V]` in 32 bits.
        first: In<f32>,
        last: Out<f32>,
        /// The outputs, or the gradient of `v`, `[rows,H,V]` of bfloat16.
        out: Out<u16>,
        /// States before each chunk, or gradients of those after, `[kept,H]` in tiles; null: none.
        kept: Out<u16>,
        /// `[N,H,segments - 1,END]` in 32 bits; null with one segment.
        ends: Out<f32>,
        /// Segments of the longest sequence; chunks of a segment.
        segments: u32,
        each: u32,
    }
}

kernels! { SOURCE {
    "bf16_additive" Forward { all: AdditiveArguments }
    "bf16_additive_ends" ForwardEnds { all: AdditiveArguments }
    "bf16_additive_back" Backward { all: AdditiveArguments }
    "bf16_additive_back_ends" BackwardEnds { all: AdditiveArguments }
} }
kernels! { GRADIENTS {
    "bf16_additive_gradients" Gradients { all: GradientsArguments }
} }

/// Bytes of shared memory of a kernel with so many tiles a chunk, as `additive.cuh` lays it out.
fn shared(tiles: usize) -> usize {
    // Squares of two chunks, where queries are read too; vectors of two chunks.
    let squares = if tiles == 3 { 2 * 2 * CHUNK * CHUNK } else { 0 };
    STAGES * tiles * 2 * CHUNK * SIDE + squares + 2 * 4 * (5 * CHUNK + 8)
}

/// Whether these kernels are for this call. Narrower keys and values would leave half of their tiles empty.
pub(in crate::linear) fn exists(device: &Cuda, dims: &Dims, spec: LinearSpec) -> bool {
    let adds = spec.erase == EraseStrength::Nothing && !spec.momentum;
    let fits = |width: usize| (SIDE / 2 + 1..=SIDE).contains(&width);
    device.groups() && adds && fits(dims.key) && fits(dims.value) && shared(3) <= device.properties().shared_memory
}

/// Segments of sequences of up to `chunks` chunks, and chunks of each, for `blocks` blocks of one: as many as run at once.
fn split(chunks: usize, blocks: usize, multiprocessors: usize) -> (usize, usize) {
    let most = (multiprocessors / blocks.max(1)).min(chunks / SHORTEST).max(1);
    let each = chunks.div_ceil(most).max(1);
    (chunks.div_ceil(each).max(1), each)
}

/// A call in this form.
pub(super) struct Additive<'a> {
    /// Where the call runs.
    device: &'a Cuda,
    /// Inputs and sizes.
    call: LinearCall,
    /// Blocks of one segment: sequences times heads.
    blocks: usize,
    /// Chunks of the longest sequence.
    chunks: usize,
    /// Segments of the longest sequence, and chunks of each. They follow from the call's sizes and the device alone.
    segments: usize,
    each: usize,
}

impl<'a> Additive<'a> {
    /// Chooses segments for a call.
    pub(super) fn new(device: &'a Cuda, layout: &Layout<'_>, inputs: &LinearInputs<Tensor<Cuda>>) -> Self {
        let (blocks, chunks) = (layout.dims.sequences.count() * layout.dims.heads, layout.intervals());
        let (segments, each) = split(chunks, blocks, device.properties().multiprocessors as usize);
        Self { device, call: layout.call_in_blocks(inputs, 1), blocks, chunks, segments, each }
    }

    /// Blocks of so many segments, with so many tiles a chunk.
    fn grid(&self, segments: usize, tiles: usize) -> Grid {
        Grid { blocks: (self.blocks * segments, 1, 1), threads: THREADS, shared: shared(tiles) }
    }

    /// Room for the ends of all segments but the last.
    fn ends(&self) -> Result<Option<Tensor<Cuda>>> {
        let ends = self.blocks * (self.segments - 1);
        if ends > 0 { self.device.empty([ends * END], DType::F32).map(Some) } else { Ok(None) }
    }

    /// The arguments both ways have in common.
    fn arguments(&self, ends: Option<&Tensor<Cuda>>, kept: Option<&Tensor<Cuda>>) -> AdditiveArguments {
        AdditiveArguments {
            p: self.call,
            values: 0,
            first: 0,
            last: 0,
            out: 0,
            kept: kept.map_or(0, narrow),
            ends: ends.map_or(0, pointer),
            segments: self.segments as u32,
            each: self.each as u32,
        }
    }

    /// Equations (15)–(22); `kept` takes the states before all chunks.
    pub(super) fn forward(
        &self,
        inputs: &LinearInputs<Tensor<Cuda>>,
        outputs: &LinearOutputs<Tensor<Cuda>>,
        kept: Option<&Tensor<Cuda>>,
    ) -> Result<()> {
        let ends = self.ends()?;
        let all = AdditiveArguments {
            values: narrow(&inputs.v),
            first: pointer(&inputs.state.m),
            last: pointer(&outputs.state.m),
            out: narrow(&outputs.out),
            ..self.arguments(ends.as_ref(), kept)
        };
        if ends.is_some() {
            self.device.launch(self.grid(self.segments - 1, 2), &ForwardEnds { all })?;
        }
        self.device.launch(self.grid(self.segments, 3), &Forward { all })
    }

    /// Equations (23), (24), (30): gradients of `v` and of the initial state, and in `kept` those of the states after all chunks.
    pub(super) fn backward(
        &self,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
        kept: &Tensor<Cuda>,
    ) -> Result<()> {
        let ends = self.ends()?;
        let all = AdditiveArguments {
            values: narrow(&grads.out),
            first: pointer(&grads.state.m),
            last: pointer(&dinputs.state.m),
            out: narrow(&dinputs.v),
            ..self.arguments(ends.as_ref(), Some(kept))
        };
        if ends.is_some() {
            self.device.launch(self.grid(self.segments - 1, 2), &BackwardEnds { all })?;
        }
        self.device.launch(self.grid(self.segments, 3), &Backward { all })
    }

    /// Equations (25)–(32), of all chunks at once.
    pub(super) fn gradients(&self, all: GradientsArguments) -> Result<()> {
        let blocks = (self.blocks * self.chunks, 1, 1);
        self.device.launch(Grid { blocks, threads: GRADIENTS_THREADS, shared: GRADIENTS_SHARED }, &Gradients { all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_all_chunks() {
        for chunks in [0, 1, 15, 31, 32, 33, 100, 256, 257, 5000] {
            for blocks in [1, 3, 32, 66, 67, 132, 512] {
                let (segments, each) = split(chunks, blocks, 132);
                assert!(segments * each >= chunks && (segments - 1) * each <= chunks, "{chunks} {blocks}");
                // All run at once, and none is short.
                assert!(segments == 1 || segments * blocks <= 132 && each >= SHORTEST, "{chunks} {blocks}");
            }
        }
        assert_eq!(split(256, 32, 132), (4, 64));
        assert_eq!(split(256, 67, 132), (1, 256));
        assert_eq!(split(31, 1, 132), (1, 31));
    }
}
