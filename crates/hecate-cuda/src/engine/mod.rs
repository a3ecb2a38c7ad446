//! The linear engine: one recurrence for every linear rule.
//!
//! Equation numbers are those of [`hecate_core::rules`]. A rule says only what its options mean to the engine
//! ([`Linear`]); its gates become the scalars of the recurrence, and their gradients gradients of its gates, inside the
//! kernels.
//!
//! # Parallelism
//!
//! A block of threads runs one *lane*: one sequence, one head, one block of value columns. Columns never interact;
//! gradients of `q`, `k` and the gates are sums over the column blocks of a head, put together in order by a kernel of
//! their own. Backward, only the gradient of the memory is taken from the last token to the first; with it kept beside
//! the states, the spans between them are turned around all at once.
//!
//! Few tokens go one by one; many go 64 at once, in the [exact chunk form](chunk), where it exists; with
//! [16-bit factors](bf16) where `q`, `k` and `v` are bfloat16. One token of a whole layer, with what surrounds the rule, has
//! [a kernel of its own](decode).
//!
//! # Memory
//!
//! Token by token, a call keeps one state every 64 tokens between forward and backward, columns rounded up to whole blocks.
//! Frozen rules keep one every `⌊64/G⌋ G` tokens, as many whole groups as fit, or, where a group is longer than 64 tokens, one
//! every 64 tokens of each; states between are computed again.
//!
//! What the chunk forms take beside arguments and results, in bytes for each 64 tokens of a head (`m` is 2 with momentum,
//! else 1), as `cargo bench -p hecate-tests --bench memory` finds it on a GPU:
//!
//! | form | forward alone | kept for a backward | both, at most |
//! |---|---|---|---|
//! | [`bf16`] | 18,464 | 18,464 + `2 K V m` + `128 V` | 18,464 + twice `2 K V m + 128 V` |
//! | [`chunk`] | 33,856 | `4 K V m` | 33,856 + twice `4 K V m` |
//!
//! In the first `K` counts as 64, 128 or 256, and in `2 K V m` `V` as a multiple of 16; `128 V` is `2 V` a token. The
//! constants are what is prepared of a chunk, which the first form keeps and the second makes again; `2 K V m` and `4 K V m` are
//! the state before it, and for the backward its gradient behind it; `128 V` are `Z`, and for the backward `Λ`.

pub(crate) mod bf16;
mod bf16_segments;
mod bf16_tiles;
pub(crate) mod chunk;
pub(crate) mod decode;
mod layout;
pub(crate) mod scan;
pub(crate) mod scan_backward;
pub(crate) mod scan_reverse;
pub(crate) mod sums;

use crate::{Cuda, error::unsupported, launch::pointer};
use chunk::Chunks;
use hecate_core::{
    DType, Decode, Decoded, Dims, Inputs, Kernel, Of, Outputs, Read, Result, Rule, Shape, Slots, Tensor,
};
use layout::Layout;

/// Tokens between kept states.
const CHUNK: usize = 64;

/// What the engine must know of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// When a token reads.
    pub(crate) read: Read,
    /// `f = 1`, with groups of this many tokens.
    pub(crate) frozen: Option<u32>,
    /// Whether there is an `S`; without, `η = 0`.
    pub(crate) momentum: bool,
    /// What `r` is; `w` is always `θ`.
    pub(crate) erase: Strength,
}

/// How the erase strength `r` follows from the gates, as numbered in `linear.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    /// `r = 0`.
    Nothing,
    /// `r = θ`.
    Theta,
    /// `r = θ a`.
    Decayed,
    /// `r = β`.
    Beta,
    /// `r = θ + β`.
    Both,
}

/// A rule that the linear engine runs: a cell of this column is one implementation. Its gates are among `log_a`,
/// `log_eta`, `theta` and `beta`, its states among `m` and `s`.
pub(crate) trait Linear: Rule {
    /// What its options mean to the engine.
    fn spec(self) -> Spec;
}

/// How the linear rules are computed. Results are the same but for rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// [`Algorithm::Scan`] for few tokens, [`Algorithm::Chunk`] for many.
    #[default]
    Auto,
    /// Token by token.
    Scan,
    /// 64 tokens at once, where that form exists: rules that are not frozen, keys of at most 128 numbers (with 16-bit
    /// arguments and no momentum 256), tensor cores (compute capability 8.0), and as much shared memory as the tiles need.
    /// Elsewhere token by token.
    Chunk,
}

/// Fewer tokens go one by one.
const CHUNK_TOKENS: usize = 2 * CHUNK;
/// Narrower keys as well: tiles are 64 wide.
const CHUNK_KEY: usize = 32;

/// States that a backward starts from.
pub struct Saved(Kept);

/// By the form that they are of.
enum Kept {
    Scan(Tensor<Cuda>),
    Chunk(Tensor<Cuda>),
    Bf16(bf16::Kept),
}

/// The slot of this name, null where there is none.
fn named(slots: &[(&'static str, &Tensor<Cuda>)], name: &str) -> u64 {
    slots.iter().find(|(slot, _)| *slot == name).map_or(0, |(_, x)| pointer(x))
}

/// Tensors of 32-bit floats for every slot, about to be written.
fn fresh<S: Slots>(device: &Cuda, shapes: Of<S, Shape>) -> Result<Of<S, Tensor<Cuda>>> {
    S::try_map(shapes, |_, shape| device.empty(shape, DType::F32))
}

impl Cuda {
    fn run_linear<R: Linear>(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        keep: bool,
    ) -> Result<(Outputs<R, Tensor<Self>>, Option<Saved>)> {
        let layout = Layout::new(self, dims, rule.spec())?;
        let outputs = Outputs::<R, _> {
            out: self.empty(dims.values(), inputs.q.dtype())?,
            state: fresh::<R::State>(self, rule.state(dims))?,
        };
        let chunked = self.chunks(dims);
        let kept = if chunked && bf16::exists(self, dims, layout.spec, inputs) {
            bf16::Chunks::new(self, &layout, inputs).forward(inputs, &outputs, keep)?.map(Kept::Bf16)
        } else if chunked && chunk::exists(self.properties(), dims, layout.spec) {
            let chunks = Chunks::new(self, &layout, inputs)?;
            let kept = if keep { Some(chunks.room()?) } else { None };
            chunks.forward(inputs, &outputs, kept.as_ref())?;
            kept.map(Kept::Chunk)
        } else {
            let numbers = layout.kept_elements(layout.spec.matrices());
            let kept = if keep { Some(self.empty([numbers], DType::F32)?) } else { None };
            scan::run(self, &layout, inputs, &outputs, kept.as_ref())?;
            kept.map(Kept::Scan)
        };
        Ok((outputs, kept.map(Saved)))
    }

    /// Whether a call goes 64 tokens at once, where that form exists.
    fn chunks(&self, dims: &Dims) -> bool {
        match self.algorithm() {
            Algorithm::Auto => dims.sequences.longest() >= CHUNK_TOKENS && dims.key >= CHUNK_KEY,
            Algorithm::Scan => false,
            Algorithm::Chunk => true,
        }
    }
}

impl<R: Linear> Kernel<R> for Cuda {
    type Saved = Saved;

    fn forward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
    ) -> Result<(Outputs<R, Tensor<Self>>, Saved)> {
        match self.run_linear(rule, dims, inputs, true)? {
            (outputs, Some(saved)) => Ok((outputs, saved)),
            (outputs, None) => Ok((outputs, Saved(Kept::Scan(self.empty([0], DType::F32)?)))),
        }
    }

    fn infer(&self, rule: R, dims: &Dims, inputs: &Inputs<R, Tensor<Self>>) -> Result<Outputs<R, Tensor<Self>>> {
        Ok(self.run_linear(rule, dims, inputs, false)?.0)
    }

    fn decodes(&self, rule: R, dims: &Dims) -> bool {
        decode::exists(rule.spec(), dims)
    }

    fn decode(&self, rule: R, dims: &Dims, inputs: &Decode<R, Tensor<Self>>) -> Result<Decoded<R, Tensor<Self>>> {
        match decode::exists(rule.spec(), dims) {
            true => decode::run(self, (rule, rule.spec()), dims, inputs),
            false => Err(unsupported(R::NAME, "the kernel for a whole layer takes exact rules and widths up to 1024")),
        }
    }

    fn backward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        saved: Saved,
        grads: &Outputs<R, Tensor<Self>>,
    ) -> Result<Inputs<R, Tensor<Self>>> {
        let layout = Layout::new(self, dims, rule.spec())?;
        let dtype = inputs.q.dtype();
        let dinputs = Inputs::<R, _> {
            q: self.empty(dims.keys(), dtype)?,
            k: self.empty(dims.keys(), dtype)?,
            v: self.empty(dims.values(), dtype)?,
            gates: fresh::<R::Gates>(self, rule.gates(dims))?,
            state: fresh::<R::State>(self, rule.state(dims))?,
        };
        let kept = match saved.0 {
            Kept::Bf16(kept) => {
                bf16::Chunks::new(self, &layout, inputs).backward(&kept, grads, &dinputs)?;
                return Ok(dinputs);
            }
            Kept::Chunk(kept) => {
                Chunks::new(self, &layout, inputs)?.backward(&kept, grads, &dinputs)?;
                return Ok(dinputs);
            }
            Kept::Scan(kept) => kept,
        };
        let kept_grads = scan_reverse::run(self, &layout, inputs, grads, &dinputs)?;
        let parts = scan_backward::run(self, &layout, inputs, [&kept, &kept_grads], &grads.out, &dinputs.v)?;
        sums::join(self, &layout, inputs, &parts, &dinputs)?;
        Ok(dinputs)
    }
}
