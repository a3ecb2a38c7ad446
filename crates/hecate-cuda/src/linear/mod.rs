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
//! factors](chunk_bf16) where `q`, `k` and `v` are bfloat16. Long sequences of few heads are cut into [segments beside each
//! other](passing). One token of a whole layer, with what surrounds the rule, has [a kernel of its own](decode).
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
//!
//! Where sequences are [cut](passing), a segment of a head takes `B = 4 K V m` bytes for what it begins with. For `L` and `P`,
//! which a backward keeps, it takes `E = 4 K (V + K m) m`. To the columns of the table this adds:
//!
//! | forward alone | kept for a backward | both, at most |
//! |---|---|---|
//! | `E + 2 B`, or if more, `2 E` and `v` and `out` with `V + K m` columns, by which `E` is found | `E` | `E + 2 B` |

pub(crate) mod chunk;
pub(crate) mod chunk_bf16;
pub(crate) mod decode;
mod layout;
pub(crate) mod passing;
pub(crate) mod scan;
pub(crate) mod scan_backward;
pub(crate) mod scan_reverse;
pub(crate) mod sums;

use crate::{Cuda, error::unsupported};
use chunk::Chunks;
use hecate_core::{
    Algorithm, DType, Dims, Result, Tensor,
    families::{LinearDecode, LinearDecoded, LinearEngine, LinearInputs, LinearKernelCall, LinearOutputs, LinearSpec},
};
use layout::{CHUNK, Layout};
use passing::Passing;

/// Fewer tokens go one by one.
const CHUNK_TOKENS: usize = 2 * CHUNK;
/// Narrower keys as well: tiles are 64 wide.
const CHUNK_KEY: usize = 32;

/// States that a backward starts from.
#[derive(Debug)]
pub struct Saved(SavedForm, Option<SavedPassing>);

/// How a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Token by token.
    Scan,
    /// 64 tokens at once, of 32 bits.
    Chunk,
    /// The same of bfloat16.
    Bf16,
}

/// By the form that they are of.
#[derive(Debug)]
enum SavedForm {
    Scan(Tensor<Cuda>),
    Chunk(Tensor<Cuda>),
    Bf16(chunk_bf16::SavedChunks),
}

/// What segments beside each other keep.
#[derive(Debug)]
struct SavedPassing {
    passing: Passing,
    /// `L` and `P` of every segment.
    ends: passing::State,
}

impl Cuda {
    /// The form that suits a call: the 16-bit form first, then the 32-bit form, else token by token.
    fn form(&self, layout: &Layout<'_>, inputs: &LinearInputs<Tensor<Self>>) -> Form {
        let (dims, spec) = (layout.dims, layout.spec);
        match self.chunks(dims) {
            true if chunk_bf16::exists(self, dims, spec, inputs) => Form::Bf16,
            true if chunk::exists(self.properties(), dims, spec) => Form::Chunk,
            _ => Form::Scan,
        }
    }

    /// The forward of a lowered rule; what a backward starts from where it is to be kept.
    fn run_lowered(
        &self,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        outputs: &LinearOutputs<Tensor<Self>>,
        keep: bool,
    ) -> Result<Option<Saved>> {
        let form = self.form(layout, inputs);
        let Some(passing) = self.passing(form, layout)? else {
            return Ok(self.run_chain(form, layout, inputs, outputs, keep, &mut None)?.map(|kept| Saved(kept, None)));
        };
        // Both ways through the segments start from the same squares.
        let prepared = &mut None;
        let ends = self.find_ends(form, &passing, layout.spec, inputs, prepared)?;
        let state = passing.join(self, [&ends, &ends, &inputs.state, &outputs.state], false)?;
        let given = LinearInputs { state, ..inputs.clone() };
        // The last states are those of segments, and `join` has left those of sequences.
        let made = LinearOutputs { out: outputs.out.clone(), state: passing.room(self, layout.dims.value)? };
        let layout = Layout::new(self, &passing.dims, layout.spec)?;
        let kept = self.run_chain(form, &layout, &given, &made, keep, prepared)?;
        Ok(kept.map(|kept| Saved(kept, Some(SavedPassing { passing, ends }))))
    }

    /// Computes `L` and `P` of every segment: what it makes of an empty state, and the map of the state before it to that after it.
    /// Temporaries are freed on return.
    fn find_ends(
        &self,
        form: Form,
        passing: &Passing,
        spec: LinearSpec,
        inputs: &LinearInputs<Tensor<Self>>,
        prepared: &mut Option<Tensor<Self>>,
    ) -> Result<passing::State> {
        let wide = passing.wide();
        let (given, ends) = (passing.wide_inputs(self, inputs)?, passing.wide_outputs(self, inputs.v.dtype())?);
        self.run_chain(form, &Layout::new(self, &wide, spec)?, &given, &ends, false, prepared)?;
        Ok(ends.state)
    }

    /// The call in segments beside each other, where they pay. Rules that go by `additive` have segments of their own.
    fn passing(&self, form: Form, layout: &Layout<'_>) -> Result<Option<Passing>> {
        let (dims, spec) = (layout.dims, layout.spec);
        let blocks = |dims: &Dims| match form {
            Form::Bf16 => chunk_bf16::chain_blocks(self, dims, spec),
            _ => chunk::chain_blocks(self.properties(), dims, spec),
        };
        match form {
            Form::Scan => Ok(None),
            Form::Bf16 if chunk_bf16::additive::exists(self, dims, spec) => Ok(None),
            _ => Passing::new(self, dims, spec, blocks),
        }
    }

    /// The forward, a chain for every sequence. `prepared` has what chunks start from, or gets it.
    fn run_chain(
        &self,
        form: Form,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        outputs: &LinearOutputs<Tensor<Self>>,
        keep: bool,
        prepared: &mut Option<Tensor<Self>>,
    ) -> Result<Option<SavedForm>> {
        match form {
            Form::Bf16 => {
                let chunks = chunk_bf16::Chunks::new(self, layout, inputs);
                Ok(chunks.forward(inputs, outputs, keep, prepared)?.map(SavedForm::Bf16))
            }
            Form::Chunk => {
                let chunks = Chunks::new(self, layout, inputs, prepared)?;
                let kept = if keep { Some(chunks.state_buffer()?) } else { None };
                chunks.forward(inputs, outputs, kept.as_ref())?;
                Ok(kept.map(SavedForm::Chunk))
            }
            Form::Scan => {
                let elements = layout.kept_elements(layout.spec.matrices());
                let kept = if keep { Some(self.empty([elements], DType::F32)?) } else { None };
                scan::run(self, layout, inputs, outputs, kept.as_ref())?;
                Ok(kept.map(SavedForm::Scan))
            }
        }
    }

    /// Equations (6)–(14) or (23)–(32), in the form of the forward; `dinputs` takes the gradients.
    fn run_lowered_backward(
        &self,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        Saved(kept, passed): Saved,
        grads: &LinearOutputs<Tensor<Self>>,
        dinputs: &LinearInputs<Tensor<Self>>,
    ) -> Result<()> {
        let Some(SavedPassing { passing, ends }) = passed else {
            return self.run_chain_backward(layout, inputs, kept, grads, dinputs, &mut None);
        };
        let layout = Layout::new(self, &passing.dims, layout.spec)?;
        let prepared = &mut None;
        // Gradients of values are written here and again below.
        let made = LinearInputs { state: passing.room(self, layout.dims.value)?, ..dinputs.clone() };
        let open = LinearOutputs { out: grads.out.clone(), state: passing.open(self, &grads.state, true)? };
        match &kept {
            SavedForm::Bf16(kept) => {
                chunk_bf16::Chunks::new(self, &layout, inputs).reverse_alone(kept, &open, &made)?
            }
            SavedForm::Chunk(_) => drop(Chunks::new(self, &layout, inputs, prepared)?.reverse(&open, &made)?),
            SavedForm::Scan(_) => return Err(unsupported("segments", "its forward went token by token")),
        }
        // `join` gets its place.
        drop(open);
        let state = passing.join(self, [&made.state, &ends, &grads.state, &dinputs.state], true)?;
        let grads = LinearOutputs { out: grads.out.clone(), state };
        self.run_chain_backward(&layout, inputs, kept, &grads, &made, prepared)
    }

    /// The backward, a chain for every sequence. `prepared` as forward.
    fn run_chain_backward(
        &self,
        layout: &Layout<'_>,
        inputs: &LinearInputs<Tensor<Self>>,
        kept: SavedForm,
        grads: &LinearOutputs<Tensor<Self>>,
        dinputs: &LinearInputs<Tensor<Self>>,
        prepared: &mut Option<Tensor<Self>>,
    ) -> Result<()> {
        match kept {
            SavedForm::Bf16(kept) => chunk_bf16::Chunks::new(self, layout, inputs).backward(&kept, grads, dinputs),
            SavedForm::Chunk(kept) => Chunks::new(self, layout, inputs, prepared)?.backward(&kept, grads, dinputs),
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

/// Linear rules, those of other crates too: the core makes a kernel of each out of this.
/// Momentum that looks ahead is made of two rules there, and is not seen here.
impl LinearEngine for Cuda {
    type Saved = Saved;

    fn linear_forward(
        LinearKernelCall { device, spec, dims, inputs, .. }: LinearKernelCall<'_, Self>,
        keep: bool,
    ) -> Result<(LinearOutputs<Tensor<Self>>, Option<Saved>)> {
        let layout = Layout::new(device, dims, spec)?;
        let outputs =
            LinearOutputs::try_build(spec, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
        let kept = device.run_lowered(&layout, inputs, &outputs, keep)?;
        Ok((outputs, kept))
    }

    /// Gradients of all inputs, in the form of the forward.
    fn linear_backward(
        LinearKernelCall { device, spec, dims, inputs, .. }: LinearKernelCall<'_, Self>,
        kept: Saved,
        grads: &LinearOutputs<Tensor<Self>>,
    ) -> Result<LinearInputs<Tensor<Self>>> {
        let layout = Layout::new(device, dims, spec)?;
        let dinputs = LinearInputs::try_build(spec, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
        device.run_lowered_backward(&layout, inputs, kept, grads, &dinputs)?;
        Ok(dinputs)
    }

    /// Whether one token of a whole layer has a kernel.
    fn has_linear_decode(&self, spec: LinearSpec, dims: &Dims) -> bool {
        decode::exists(spec, dims)
    }

    /// One token of a whole layer.
    fn linear_decode(call: LinearDecode<'_, Self>) -> Result<LinearDecoded<Tensor<Self>>> {
        match decode::exists(call.spec, call.dims) {
            true => decode::run(call),
            false => {
                Err(unsupported(call.what, "the kernel for a whole layer takes exact rules and widths up to 1024"))
            }
        }
    }
}
