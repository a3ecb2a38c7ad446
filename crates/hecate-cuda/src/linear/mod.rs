//! The linear engine: one recurrence for every linear rule.
//!
//! Equation numbers are those of [`hecate_core::rules`]. A rule comes lowered ([`LinearRule`]): gates become the
//! scalars of the recurrence, and gradients of those gradients of gates, inside the kernels.
//!
//! # Parallelism
//!
//! A block of threads runs one *head tile*: one sequence, one head, one block of value columns. Columns never interact;
//! gradients of `q`, `k` and the gates are sums over the column blocks of a head, put together in order by a kernel of
//! their own. Backward, only the gradient of the memory is taken from the last token to the first. With it kept beside
//! the states, the intervals between them are gone through backward all at once.
//!
//! Few tokens go one by one. Many go 64 at once, in the [exact chunk form](chunk), where it exists. It has [16-bit
//! factors](chunk_bf16) where `q`, `k` and `v` are bfloat16. One token of a whole layer, with what surrounds the rule,
//! has [a kernel of its own](decode).
//!
//! # Memory
//!
//! Token by token, a call keeps one state every 64 tokens between forward and backward, columns rounded up to whole blocks.
//! Frozen rules keep one every `⌊64/G⌋ G` tokens, as many whole groups as fit. Where a group is longer than 64 tokens, they
//! keep one every 64 tokens of each. States between are computed again.
//!
//! The chunk forms take the following beside arguments and results, in bytes for each 64 tokens of a head. `m` is 2 with
//! momentum, else 1. `cargo bench -p hecate-tests --bench memory` finds it on a GPU:
//!
//! | form | forward alone | kept for a backward | both, at most |
//! |---|---|---|---|
//! | [`chunk_bf16`] | 18,464 | 18,464 + `2 K V m` + `128 V` | 18,464 + twice `2 K V m + 128 V` |
//! | [`chunk`] | 33,856 | `4 K V m` | 33,856 + twice `4 K V m` |
//!
//! In the first `K` counts as 64, 128 or 256, and in `2 K V m` `V` as a multiple of 16; `128 V` is `2 V` a token. The
//! constants are what is prepared of a chunk, which the first form keeps and the second makes again. `2 K V m` and
//! `4 K V m` are the state before it, and for the backward its gradient after it. `128 V` are `Z`, and for the backward
//! `Λ`. Rules that never erase, where they go by [`chunk_bf16::additive`], have the states alone, and 64 KiB for each segment of a
//! head.

pub(crate) mod chunk;
pub(crate) mod chunk_bf16;
pub(crate) mod decode;
mod layout;
pub(crate) mod scan;
pub(crate) mod scan_backward;
pub(crate) mod scan_reverse;
pub(crate) mod sums;

use crate::{Cuda, error::unsupported};
use chunk::Chunks;
use hecate_core::{
    Algorithm, DType, Decode, Decoded, Device, Dims, Inputs, InputsOn, Kernel, KernelCall, Outputs, OutputsOn, Result,
    Tensor,
    families::{
        Linear, LinearInputs, LinearOutputs, LinearRule, constant_log_a,
        look_ahead::{self, LinearSaved},
    },
};
use layout::{CHUNK, Layout};

/// Fewer tokens go one by one.
const CHUNK_TOKENS: usize = 2 * CHUNK;
/// Narrower keys as well: tiles are 64 wide.
const CHUNK_KEY: usize = 32;

/// States that a backward starts from.
#[derive(Debug)]
pub struct Saved(SavedForm);

/// By the form that they are of.
#[derive(Debug)]
enum SavedForm {
    Scan(Tensor<Cuda>),
    Chunk(Tensor<Cuda>),
    Bf16(chunk_bf16::SavedChunks),
}

impl Cuda {
    /// The forward of a lowered rule, in the form that suits the call.
    fn run_lowered(
        &self,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        outputs: &LinearOutputs<Tensor<Self>>,
        keep: bool,
    ) -> Result<Option<SavedForm>> {
        let dims = layout.dims;
        // The 16-bit form first, then the 32-bit form, else token by token.
        let chunked = self.chunks(dims);
        if chunked && chunk_bf16::exists(self, dims, layout.spec, inputs) {
            Ok(chunk_bf16::Chunks::new(self, layout, inputs).forward(inputs, outputs, keep)?.map(SavedForm::Bf16))
        } else if chunked && chunk::exists(self.properties(), dims, layout.spec) {
            let chunks = Chunks::new(self, layout, inputs)?;
            let kept = if keep { Some(chunks.state_buffer()?) } else { None };
            chunks.forward(inputs, outputs, kept.as_ref())?;
            Ok(kept.map(SavedForm::Chunk))
        } else {
            let elements = layout.kept_elements(layout.spec.matrices());
            let kept = if keep { Some(self.empty([elements], DType::F32)?) } else { None };
            scan::run(self, layout, inputs, outputs, kept.as_ref())?;
            Ok(kept.map(SavedForm::Scan))
        }
    }

    /// Equations (6)–(14) or (23)–(32), in the form of the forward; `dinputs` takes the gradients.
    fn run_lowered_backward(
        &self,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        kept: SavedForm,
        grads: &LinearOutputs<Tensor<Self>>,
        dinputs: &LinearInputs<Tensor<Self>>,
    ) -> Result<()> {
        match kept {
            SavedForm::Bf16(kept) => chunk_bf16::Chunks::new(self, layout, inputs).backward(&kept, grads, dinputs),
            SavedForm::Chunk(kept) => Chunks::new(self, layout, inputs)?.backward(&kept, grads, dinputs),
            SavedForm::Scan(kept) => {
                let kept_grads = scan_reverse::run(self, layout, inputs, grads, dinputs)?;
                let parts = scan_backward::run(self, layout, inputs, &kept, &kept_grads, &grads.out, &dinputs.v)?;
                sums::join(self, layout, inputs, &parts, dinputs)
            }
        }
    }

    /// Whether a call goes 64 tokens at once, where that form exists.
    fn chunks(&self, dims: &Dims) -> bool {
        match self.algorithm() {
            Algorithm::Auto => dims.sequences.longest() >= CHUNK_TOKENS && dims.key >= CHUNK_KEY,
            Algorithm::Scan => false,
            Algorithm::Chunk(_) => true,
        }
    }
}

impl<R: LinearRule> Kernel<R, Linear> for Cuda {
    type Saved = LinearSaved<Saved, Self>;

    fn forward(call: KernelCall<'_, R, Self>, keep: bool) -> Result<(OutputsOn<R, Self>, Option<Self::Saved>)> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        if rule.spec().look_ahead {
            let (outputs, saved) = look_ahead::forward(call, keep)?;
            return Ok((outputs, saved.map(LinearSaved::LookAhead)));
        }
        let layout = Layout::new(device, dims, rule.spec().runnable(Self::NAME, R::NAME)?)?;
        let outputs =
            Outputs::<R, _>::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
        let inputs = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
        let kept = device.run_lowered(&layout, &inputs, &LinearOutputs::new(&outputs), keep)?;
        Ok((outputs, kept.map(|kept| LinearSaved::Engine(Saved(kept)))))
    }

    /// Whether one token of a whole layer has a kernel.
    fn has_fused_decode(&self, rule: R, dims: &Dims) -> bool {
        decode::exists(rule, dims)
    }

    /// One token of a whole layer.
    fn decode(&self, rule: R, dims: &Dims, inputs: &Decode<R, Tensor<Self>>) -> Result<Decoded<R, Tensor<Self>>> {
        match decode::exists(rule, dims) {
            true => decode::run(self, rule, dims, inputs),
            false => Err(unsupported(R::NAME, "the kernel for a whole layer takes exact rules and widths up to 1024")),
        }
    }

    /// Gradients of all inputs, in the form of the forward.
    fn backward(
        call: KernelCall<'_, R, Self>,
        saved: Self::Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        let kept = match saved {
            LinearSaved::Engine(Saved(kept)) => kept,
            LinearSaved::LookAhead(saved) => return look_ahead::backward(call, *saved, grads),
        };
        let layout = Layout::new(device, dims, rule.spec())?;
        let dinputs =
            Inputs::<R, _>::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
        let inputs = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
        // Kernels write the gradient of every retention, also of one that is no gate.
        let lowered = LinearInputs::new(&dinputs, || device.empty(dims.scalars(), DType::F32))?;
        device.run_lowered_backward(&layout, &inputs, kept, &LinearOutputs::new(grads), &lowered)?;
        Ok(dinputs)
    }
}
