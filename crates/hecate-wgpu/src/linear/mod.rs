//! The linear engine: one recurrence for every linear rule.
//!
//! Equation numbers are those of [`hecate_core::rules`]. A rule comes lowered ([`LinearRule`]): gates become the
//! scalars of the recurrence, and gradients of those gradients of gates, inside the kernels.
//!
//! # How it runs
//!
//! Forward goes token by token. Columns never interact; the rows of one stay in the registers of a few invocations.
//! Backward there are two more such scans. One finds what every token wrote, from the kept states on, for all segments
//! between them at once. The other finds what that is worth, from the last token to the first. With both known, no system of
//! equations is left to be solved. The gradients of queries, keys and gates are products of the
//! [chunk form](gradients), for all chunks at once, and of [another](chunk) for frozen rules.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every 64 tokens. Frozen rules keep one every `⌊64/G⌋ G` tokens,
//! as many whole groups as fit. Where a group is longer than 64 tokens, they keep one every 64 tokens of each. While
//! the backward runs it holds as many gradients of states, and up to four arrays like `v`. Beside these it holds the
//! elements of as many chunks as [fit into 64 MiB](gradients), or 16 MiB where the memory is not the GPU's own. Frozen
//! rules have [four times as much](chunk).

pub(crate) mod chunk;
pub(crate) mod gradients;
mod layout;
pub(crate) mod scan;
mod shape;

use crate::{Wgpu, error::unsupported};
use hecate_core::{
    DType, Result, Tensor,
    families::{LinearEngine, LinearInputs, LinearKernelCall, LinearOutputs, LinearSpec},
};
use layout::Layout;

/// States that a backward starts from.
#[derive(Debug)]
pub struct Saved {
    /// `[kept,H,M and S,K,V]`: the state before each segment.
    kept: Tensor<Wgpu>,
}

/// The spec, if the kernels can run it.
///
/// # Errors
/// [`hecate_core::Error::Unsupported`] for momentum beside an erase strength of its own: kernels have one place for both.
fn runnable(what: &'static str, spec: LinearSpec) -> Result<LinearSpec> {
    match spec.momentum && spec.erase.has_beta() {
        true => Err(unsupported(what, "the kernels take `log_eta` or `beta`, not both")),
        false => Ok(spec),
    }
}

/// Linear rules, those of other crates too: the core makes a kernel of each out of this.
/// Momentum that looks ahead is made of two rules there, and is not seen here.
impl LinearEngine for Wgpu {
    type Saved = Saved;

    /// Queries, keys and values are read in the type that they have; states and gates have 32 bits.
    fn linear_forward(
        LinearKernelCall { what, device, spec, dims, inputs, .. }: LinearKernelCall<'_, Self>,
        keep: bool,
    ) -> Result<(LinearOutputs<Tensor<Self>>, Option<Saved>)> {
        let (layout, dtype) = (Layout::new(device, dims, runnable(what, spec)?)?, inputs.q.dtype());
        let kept = if keep { Some(layout.scratch(layout.kept_elements())?) } else { None };
        let stored = |x| device.stored(x, scan::wide(dims.key));
        let tokens = [stored(&inputs.q)?, stored(&inputs.k)?, stored(&inputs.v)?];
        let made = LinearOutputs::try_build(spec, dims, tokens[0].output, |shape, dtype| device.empty(shape, dtype))?;
        scan::forward(&layout, inputs, &tokens, &made, kept.as_ref())?;
        let LinearOutputs { out, state } = made;
        Ok((LinearOutputs { out: device.rounded(out, dtype)?, state }, kept.map(|kept| Saved { kept })))
    }

    /// All in 32 bits: arrays are read by several kernels, so widening them once is cheaper.
    fn linear_backward(
        LinearKernelCall { what, device, spec, dims, inputs, .. }: LinearKernelCall<'_, Self>,
        Saved { kept }: Saved,
        grads: &LinearOutputs<Tensor<Self>>,
    ) -> Result<LinearInputs<Tensor<Self>>> {
        let layout = Layout::new(device, dims, runnable(what, spec)?)?;
        let mut wide = inputs.clone();
        for tokens in [&mut wide.q, &mut wide.k, &mut wide.v] {
            *tokens = device.widened(tokens)?;
        }
        let dout = device.widened(&grads.out)?;
        let dinputs = LinearInputs::try_build(spec, dims, DType::F32, |shape, dtype| device.empty(shape, dtype))?;
        let scans = scan::backward(&layout, &wide, kept, &dout, grads, &dinputs)?;
        if layout.spec.frozen.is_some() {
            chunk::run(&layout, &wide, &dout, &scans, &dinputs)?;
        } else {
            gradients::run(&layout, &wide, &dout, &scans, &dinputs)?;
        }
        let rounded = |x| device.rounded(x, inputs.q.dtype());
        Ok(LinearInputs { q: rounded(dinputs.q)?, k: rounded(dinputs.k)?, v: rounded(dinputs.v)?, ..dinputs })
    }
}
