//! Drawing tokens, some blocks a text.
//!
//! All that decides is a whole number: levels of tokens, their weights, and the random words. So a token does not depend on the
//! order of sums, and is the one that other backends draw from the same scores. Seed and count of draws lie on the device
//! and are moved on there: a graph that holds the draw can be replayed, and draws the next token every time.
//!
//! A token is known only when all are looked at, several times over. So the blocks of a text are a cluster, which keeps what it
//! made of the scores in shared memory. There are as many blocks as the GPU has multiprocessors for, and at most one for every
//! 1,024 tokens.

use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Cut, LANES, Sample, Sampled},
};

/// `torch.multinomial` of softmax of scores, cut to the `top_k` likeliest and to a share `top_p`, or `argmax`.
pub(crate) const SOURCE: KernelSource = kernel_source!("sample", "sample.cu");

/// Bytes of shared memory before levels: the kernel's `Board`.
const BOARD: usize = 11_528;

kernels! { SOURCE {
    // scores [B,V]; streams and next [B,3], tokens [B]; the rest is a `Cut`.
    "sample" Call {
        scores: Array,
        streams: In<u32>,
        tokens: Out<u32>,
        next: Out<u32>,
        vocabulary: u32,
        greedy: u32,
        scale: f32,
        limit: f32,
        top_k: u32,
        top_p: u32,
        held: u32,
    }
} }

impl Sample for Cuda {
    /// `[B]` tokens of `scores [B,V]`. As many threads as a text has blocks share a lane of tokens.
    fn sample(
        &self,
        _: Checked<Self>,
        cut: &Cut,
        scores: &Tensor<Self>,
        streams: &Tensor<Self>,
    ) -> Result<Sampled<Tensor<Self>>> {
        let batch = scores.shape().rows();
        // Both are written by one launch, so that a captured step needs no other for its counters.
        let tokens = self.empty([batch], DType::U32)?;
        let next = self.empty(streams.shape().clone(), DType::U32)?;
        let vocabulary = scores.shape().last();
        let blocks = self.blocks_of_a_text(batch, vocabulary);
        let bytes = 4 * vocabulary.div_ceil(LANES) * LANES / blocks;
        let held = BOARD + bytes <= self.properties().shared_memory;
        let call = Call {
            scores: scores.into(),
            streams: pointer(streams),
            tokens: pointer(&tokens),
            next: pointer(&next),
            vocabulary: vocabulary as u32,
            greedy: u32::from(cut.greedy),
            scale: cut.scale,
            limit: cut.limit,
            top_k: cut.top_k,
            top_p: cut.top_p,
            held: u32::from(held),
        };
        // Blocks share out the lanes, not the threads: each has as many as there are lanes of all.
        let grid = Grid { shared: BOARD + if held { bytes } else { 0 }, ..Grid::blocks(batch * blocks, LANES as u32) };
        self.launch_early(grid, blocks as u32, &call)?;
        Ok(Sampled { tokens, streams: next })
    }
}

impl Cuda {
    /// As many blocks as there are multiprocessors for, up to one for every 1,024 tokens. Without clusters a text has one.
    /// The number is a power of two up to 8, the most blocks of a cluster that every GPU with clusters starts.
    fn blocks_of_a_text(&self, batch: usize, vocabulary: usize) -> usize {
        let multiprocessors = self.properties().multiprocessors as usize;
        if !self.begins_early() {
            return 1;
        }
        // With a part of the lanes a block has little to do, and still waits for the others at every sum.
        let most = (multiprocessors / batch.max(1)).min(vocabulary / LANES);
        [8, 4, 2].into_iter().find(|&blocks| blocks <= most).unwrap_or(1)
    }
}
