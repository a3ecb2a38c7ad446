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
    DType, Device, Inputs, InputsOn, KernelCall, Outputs, OutputsOn, Result, Tensor,
    families::{EraseStrength, LinearEngine, LinearInputs, LinearOutputs, LinearRule, LinearSpec, constant_log_a},
};
use layout::Layout;

/// States that a backward starts from.
#[derive(Debug)]
pub struct Saved {
    /// `[kept,H,M and S,K,V]`: the state before each segment.
    kept: Tensor<Wgpu>,
}

/// What the kernels must know of a rule.
///
/// # Errors
/// [`hecate_core::Error::Unsupported`] for momentum beside an erase strength of its own: kernels have one place for both.
fn spec_of<R: LinearRule>(rule: R) -> Result<LinearSpec> {
    let spec = rule.spec().runnable(Wgpu::NAME, R::NAME)?;
    match (spec.momentum, spec.erase) {
        (true, EraseStrength::Beta | EraseStrength::ThetaAndBeta) => {
            Err(unsupported(R::NAME, "the kernels take `log_eta` or `beta`, not both"))
        }
        _ => Ok(spec),
    }
}

impl LinearEngine for Wgpu {
    type Saved = Saved;

    fn linear_forward<R: LinearRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<Saved>)> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        let (layout, dtype) = (Layout::new(device, dims, spec_of(rule)?)?, inputs.q.dtype());
        let inputs = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
        let kept = if keep { Some(layout.scratch(layout.kept_elements())?) } else { None };
        let stored = |x| device.stored(x, scan::wide(dims.key));
        let tokens = [stored(&inputs.q)?, stored(&inputs.k)?, stored(&inputs.v)?];
        let outputs =
            Outputs::<R, _>::try_build(rule, dims, tokens[0].output, |shape, dtype| device.empty(shape, dtype))?;
        scan::forward(&layout, &inputs, &tokens, &LinearOutputs::new(&outputs), kept.as_ref())?;
        let Outputs { out, state } = outputs;
        Ok((Outputs { out: device.rounded(out, dtype)?, state }, kept.map(|kept| Saved { kept })))
    }

    fn linear_backward<R: LinearRule>(
        call: KernelCall<'_, R, Self>,
        Saved { kept }: Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        let layout = Layout::new(device, dims, spec_of(rule)?)?;
        let mut wide = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
        for tokens in [&mut wide.q, &mut wide.k, &mut wide.v] {
            *tokens = device.widened(tokens)?;
        }
        let dout = device.widened(&grads.out)?;
        let dinputs = Inputs::<R, _>::try_build(rule, dims, DType::F32, |shape, dtype| device.empty(shape, dtype))?;
        // Kernels write the gradient of every retention, also of one that is no gate.
        let lowered = LinearInputs::new(&dinputs, || device.empty(dims.scalars(), DType::F32))?;
        let scans = scan::backward(&layout, &wide, kept, &dout, &LinearOutputs::new(grads), &lowered)?;
        if layout.spec.frozen.is_some() {
            chunk::run(&layout, &wide, &dout, &scans, &lowered)?;
        } else {
            gradients::run(&layout, &wide, &dout, &scans, &lowered)?;
        }
        let dtype = inputs.q.dtype();
        let rounded = |x| device.rounded(x, dtype);
        Ok(Inputs { q: rounded(dinputs.q)?, k: rounded(dinputs.k)?, v: rounded(dinputs.v)?, ..dinputs })
    }
}
