//! Sums over blocks of columns, and gradients of gates from those of the recurrence's scalars.

use super::{
    layout::{Call, Layout},
    named,
    scan_backward::Parts,
};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{Inputs, Result, Rule, Slots, Tensor};

pub(crate) const SOURCE: Source = source!("sums", "sums.cu");

kernels! { SOURCE {
    "join_keys" JoinKeys { parts: Pointer, sum: Array, count: u64, blocks: u32, unused: u32 }
    "raise_gates" Raise {
        call: Call, parts: Pointer, log_a: Pointer, log_eta: Pointer, theta: Pointer, beta: Pointer, count: u64,
    }
} }

/// Gradients of `q`, `k` and the gates.
pub(super) fn join<R: Rule>(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Cuda>>,
    parts: &Parts,
    dinputs: &Inputs<R, Tensor<Cuda>>,
) -> Result<()> {
    for (parts, sum) in [(&parts.dq, &dinputs.q), (&parts.dk, &dinputs.k)] {
        let (count, blocks) = (sum.shape().count(), layout.blocks() as u32);
        let arguments = JoinKeys { parts: pointer(parts), sum: sum.into(), count: count as u64, blocks, unused: 0 };
        device.launch(Grid::elements(count), &arguments)?;
    }
    let gates = R::Gates::list(&dinputs.gates);
    let arguments = Raise {
        call: layout.call(inputs),
        parts: pointer(&parts.dscalars),
        log_a: named(&gates, "log_a"),
        log_eta: named(&gates, "log_eta"),
        theta: named(&gates, "theta"),
        beta: named(&gates, "beta"),
        count: layout.tokens() as u64,
    };
    device.launch(Grid::elements(layout.tokens()), &arguments)
}
