//! Sums over blocks of columns, and gradients of gates from those of the recurrence's scalars.
//!
//! A block of the scan has some value columns of one head. So what it gives to `q`, `k` and gates is a part, and parts
//! are added up here in the order of the blocks.

use super::{
    layout::{Layout, LinearCall},
    scan_backward::Parts,
};
use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, kernels, optional, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Result, Tensor, families::LinearInputs};

/// `parts.sum(0)` of keys and queries, and gradients of the gates' logarithms from those of their values.
pub(crate) const SOURCE: KernelSource = kernel_source!("sums", "sums.cu");

kernels! { SOURCE {
    // parts [blocks,count] in 32 bits, sum [count].
    "join_keys" JoinKeys { parts: In<f32>, sum: Array, count: u64, blocks: u32, unused: u32 }
    // parts [blocks,count,4], gates [count]; count is rows times H.
    "lower_gates_backward" LowerGatesBackward {
        p: LinearCall, parts: In<f32>, log_a: Out<f32>, log_eta: Out<f32>, theta: Out<f32>, beta: Out<f32>, count: u64,
    }
} }

/// Gradients of `q`, `k` and the gates.
/// `dq` and `dk` are `[rows, H, K]` of the type of `q`, those of gates `[rows, H]` in 32 bits.
pub(super) fn join(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Cuda>>,
    parts: &Parts,
    dinputs: &LinearInputs<Tensor<Cuda>>,
) -> Result<()> {
    for (parts, sum) in [(&parts.dq, &dinputs.q), (&parts.dk, &dinputs.k)] {
        // `[blocks, rows, H, K]` in 32 bits, rounded to the type of `q` once, at the end.
        let (count, blocks) = (sum.shape().count(), layout.blocks() as u32);
        let arguments = JoinKeys { parts: pointer(parts), sum: sum.into(), count: count as u64, blocks, unused: 0 };
        device.launch(Grid::elements(count), &arguments)?;
    }
    let arguments = LowerGatesBackward {
        p: layout.call(inputs),
        parts: pointer(&parts.dscalars),
        log_a: pointer(&dinputs.log_a),
        log_eta: optional(dinputs.log_eta.as_ref()),
        theta: pointer(&dinputs.theta),
        beta: optional(dinputs.beta.as_ref()),
        // Rows times heads.
        count: layout.tokens() as u64,
    };
    device.launch(Grid::elements(layout.tokens()), &arguments)
}
