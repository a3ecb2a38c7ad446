//! Drawing tokens, a block a text.
//!
//! All that decides is a whole number: levels of tokens, their weights, and the random words. So a token does not depend on the
//! order of sums, and is the one that other backends draw from the same scores. Seed and count of draws lie on the device
//! and are moved on there: a graph that holds the draw can be replayed, and draws the next token every time.
//!
//! A text has one block, since a token is known only when all are looked at. Its time is that of one multiprocessor, which is
//! little beside the product that makes the scores.

use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Cut, LANES, Sample, Sampled},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("sample", "sample.cu");

kernels! { SOURCE {
    // scores [B,V]; streams and next [B,3], tokens [B]; the rest is a `Cut`.
    "sample" Call {
        scores: Array,
        streams: Pointer,
        tokens: Pointer,
        next: Pointer,
        vocabulary: u32,
        greedy: u32,
        scale: f32,
        limit: f32,
        top_k: u32,
        top_p: u32,
    }
} }

impl Sample for Cuda {
    /// `[B]` tokens of `scores [B,V]`. A thread has a lane of tokens.
    fn sample(&self, cut: &Cut, scores: &Tensor<Self>, streams: &Tensor<Self>) -> Result<Sampled<Tensor<Self>>> {
        let batch = scores.shape().rows();
        // Both are written by one launch, so that a captured step needs no other for its counters.
        let tokens = self.empty([batch], DType::U32)?;
        let next = self.empty(streams.shape().clone(), DType::U32)?;
        let call = Call {
            scores: scores.into(),
            streams: pointer(streams),
            tokens: pointer(&tokens),
            next: pointer(&next),
            vocabulary: scores.shape().last() as u32,
            greedy: u32::from(cut.greedy),
            scale: cut.scale,
            limit: cut.limit,
            top_k: cut.top_k,
            top_p: cut.top_p,
        };
        // A block of as many threads as there are lanes: which lane a token has is part of the definition.
        self.launch_early(Grid::blocks(batch, LANES as u32), 1, &call)?;
        Ok(Sampled { tokens, streams: next })
    }
}
