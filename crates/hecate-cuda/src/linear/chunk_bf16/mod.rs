//! The exact chunk form with `q`, `k` and `v` of bfloat16, on the tensor cores as they come.
//!
//! It computes equations (15)–(32) of [`hecate_core::rules`] 64 tokens at a time. It exists for rules that are not frozen, `K`
//! of at most 256 (with momentum 128), and `K` and `V` that are multiples of 8. Elsewhere [the 32-bit form](super::chunk)
//! takes its place.
//!
//! # Launches
//!
//! Forward: `prepare`, then `forward`. Backward: `reverse`, then `gradients`. Only `forward` and `reverse` go from chunk to
//! chunk; the other two have a block for every chunk of every head.
//!
//! | launch | a block has | reads | writes |
//! |---|---|---|---|
//! | [`prepare`] | a chunk of a head | `q k [64,K]`, gates `[64]` | `T`, `Y ∘ Q Kᵀ [64,64]`, vectors `[8,64]` |
//! | [`forward`] | 32 or 64 value columns of a head | `k q [64,K]`, `v [64,columns]`, what was prepared | `out`, last state; for a backward the state before each chunk `[K,V]` and `Z [64,V]` |
//! | [`reverse`] | 32 to 128 value columns of a head | `k q`, `dout [64,columns]`, what was prepared | first gradients of the state, `dv`; the gradient of the state after each chunk `[K,V]` and `Λ [64,V]` |
//! | [`gradients`] | a chunk of a head | `k q v dout`, both states, `Z`, `Λ` | `dq dk [64,K]`, gradients of the gates `[64]` |
//!
//! `Z` are the chunk's pseudo-values: what its tokens write into the memory, solved for all at once. `T` is the inverse of
//! the UT transform, `(I + r∗(L ∘ K Kᵀ))⁻¹`, by which (19) and (24) become products. `Y ∘ Q Kᵀ` is what the tokens of a chunk read
//! of each other's writes. All three depend on keys, queries and gates alone, or on one chunk's values: the chain from chunk
//! to chunk has products left and no solve.
//!
//! # Why 16-bit factors
//!
//! The tensor cores multiply 16-bit factors and add in 32 bits. Masks, the solve, the memory and all sums have 32 bits; the
//! memory is rounded where it is a factor. bfloat16 has 8 bits of fraction, too few where a chunk's squares meet what is
//! inside it and nearly cancels. There factors are IEEE halves, 11 bits, with a power of two beside them (`halves.cuh`).
//!
//! # Warps and shared memory
//!
//! The same kernels have two kinds of products. Those of one warp (`mma.sync`) run on every GPU from capability 8.0 on.
//! Those of a group of four warps (`wgmma`, `group.cuh`) are there where kernels are compiled for exactly capability 9.0.
//!
//! In a chain a warp holds 16 value columns of the memory in registers, transposed, as sums that are at once left factors. It
//! needs no other column, so that warps exchange nothing. The chains are warp-specialised: other warps of the block take all
//! else from it:
//!
//! - *Producers* read ahead. Four warps copy keys, queries, values and squares of the next chunks to shared memory, which is
//!   double-buffered, or has three buffers where there is space.
//! - *Consumers* follow. Forward, a second warp of each pair makes the outputs of the chunk before and writes down `Z` and
//!   states. Backward, four warps make halves of `dout` and write down `Λ`, `dv` and the gradients of states.
//!
//! The consumers take the memory as left factors `[16,16]`, which the columns' warps leave in shared memory, double-buffered.
//! Kept states lie in global memory in the same tiles, so that on 9.0 one thread stores 16 columns at once. One barrier a chunk
//! lets all go on.
//!
//! Tiles in shared memory have eight elements more a row than columns: eight rows, which are read together, lie in other
//! banks. For groups of warps they are panels of 64 columns in which pieces of 16 bytes change places instead (`in_panel`).
//!
//! # Why segments
//!
//! A chain has as many blocks as there are heads times blocks of columns. Few sequences and heads leave multiprocessors idle.
//! Then long sequences go in [`segments`]: `prepare` of the next segment, or `gradients` of the one before, work beside the
//! chain on a second stream.
//!
//! Rules that never erase have nothing to solve. Where groups multiply, keys and values of 65 to 128 go by [`additive`]: nothing is
//! prepared, and segments of a chain run beside each other.
//!
//! # What it costs
//!
//! Costs are those of a chunk of 64 tokens of a head, `K = V = D`. Products are of `64·64·D` multiply-adds, 1.05 MFLOP
//! at `D = 128`; lower squares count half. Bytes are those beside what every algorithm moves (`q`, `k`, `v`, `out`,
//! their gradients):
//!
//! | launch | products, `D = 128` | reads | writes |
//! |---|---|---|---|
//! | `prepare` | 1 (`K Kᵀ`, `Q Kᵀ`) + the solve | gates | 18 KiB: `T`, `Y ∘ Q Kᵀ`, vectors |
//! | `forward` | 7 (`K M`, `Q M`, `Kᵀ Z`: 2 each; `T`, `Y`: ½ each) | 18 KiB | for a backward `2 D²` (state), `128 D` (`Z`) |
//! | `reverse` | 7 | 18 KiB | `2 D²`, `128 D` (`Λ`) |
//! | `gradients` | 10 | `4 D²`, `256 D` | gates |
//! | `additive`, forward | 6 | in segments `256 D` | for a backward `2 D²` |
//! | `additive`, backward and gradients | 14 | `4 D²`, `384 D`; in segments `256 D` | `2 D²`, gates |
//!
//! Momentum doubles what has `M` in it: 13 instead of 7, 16 instead of 10. So at `(B,T,H,D) = (4,2048,16,128)`, 2,048
//! chunks: the forward is 17 GFLOP (0.022 ms at 790 TFLOP/s) and at least 134 MB (0.031 ms at 4.3 TB/s). With what is
//! prepared it moves 210 MB (0.049 ms). The backward is 36 GFLOP (0.045 ms) and 0.58 GB (0.13 ms), half of it states, `Z`
//! and `Λ`.
//!
//! A chunk of a chain is about 150 (`forward`) to 230 (`reverse`) products one after another (`m16n8k16`, 8 beside each
//! other). It is 20 to 32 of a group (`m64n64k16`). Blocks are as wide as there are enough of them, since what their warps
//! share is read once a block. Those of groups have four warps.
//!
//! `gradients` reads and writes most, 192 KiB a chunk at `D = 128`. Its two blocks a multiprocessor are there to hide that.
//! Keys and queries stay in shared memory. Value columns pass through it twice: first for the squares, then in slabs with
//! the states and their gradients. What comes again comes from the cache.
//!
//! # Masks and the solve
//!
//! Masks are made by recursion within sub-chunks of 16 tokens, and beyond as products, with momentum of transitions `[2,2]`
//! (`decay_mask.cuh`). The solve is forward substitution in blocks of 16 tokens, and products in two parts of 8 bits (that
//! leave out 2^-16 of a factor) for the rest.

pub(crate) mod additive;
pub(crate) mod forward;
pub(crate) mod gradients;
pub(crate) mod prepare;
pub(crate) mod reverse;
mod segments;
mod tiles;

use super::layout::{CHUNK, Layout, LinearCall};
use crate::{
    Cuda,
    error::unsupported,
    launch::{Array, Grid, Pointer, optional, pointer},
    streams::Streams,
};
use additive::Additive;
use forward::ForwardArguments;
use gradients::GradientsArguments;
use hecate_core::{
    DType, Dims, Result, Tensor,
    families::{LinearInputs, LinearOutputs, LinearSpec},
};
use prepare::PrepareArguments;
use reverse::{ReverseArguments, await_blocks};
use segments::{Segment, segments};
use tiles::{ELEMENTS, OWN, Tiles};

/// 32-bit words that are prepared for it: two squares of halves, elements.
const READY: usize = CHUNK * CHUNK + ELEMENTS;

/// Whether this form exists for this call on this GPU.
pub(super) fn exists(device: &Cuda, dims: &Dims, spec: LinearSpec, inputs: &LinearInputs<Tensor<Cuda>>) -> bool {
    let narrow = [&inputs.q, &inputs.k, &inputs.v].iter().all(|x| x.dtype() == DType::Bf16);
    let most = Tiles::new(device, dims, spec.matrices()).shared(spec.matrices()).into_iter().max().unwrap_or(0);
    let whole = dims.key.is_multiple_of(8) && dims.value.is_multiple_of(8);
    let widest = if spec.momentum { 128 } else { 256 };
    let sound = spec.frozen.is_none() && whole && (1..=widest).contains(&dims.key) && dims.value > 0;
    let properties = device.properties();
    narrow && sound && properties.capability.0 >= 8 && most <= properties.shared_memory
}

/// Blocks that go from chunk to chunk.
pub(super) fn chain_blocks(device: &Cuda, dims: &Dims, spec: LinearSpec) -> usize {
    dims.sequences.count() * dims.heads * Tiles::new(device, dims, spec.matrices()).blocks(1, dims)
}

/// What a backward starts from.
#[derive(Debug)]
pub(super) struct SavedChunks {
    /// `[kept,H,1 + S]` matrices, in tiles.
    states: Tensor<Cuda>,
    /// Nothing in the [additive] form.
    solved: Option<SolvedChunks>,
}

/// What is prepared and solved of all chunks.
#[derive(Debug)]
struct SolvedChunks {
    /// What was prepared, `[kept,H,READY]` words of 32 bits.
    ready: Tensor<Cuda>,
    /// `Z [rows,H,V]`.
    pseudo_values: Tensor<Cuda>,
}

/// The address of a tensor of bfloat16.
fn narrow(x: &Tensor<Cuda>) -> Pointer {
    debug_assert_eq!(x.dtype(), DType::Bf16);
    Array::from(x).data
}

/// A call in this form.
pub(super) struct Chunks<'a> {
    /// Where the call runs.
    device: &'a Cuda,
    /// Sizes, and where kept states lie.
    layout: &'a Layout<'a>,
    /// How wide blocks are.
    tiles: Tiles,
    /// With columns in the blocks of the forward and of the backward.
    calls: [LinearCall; 2],
    /// In which the chain from chunk to chunk goes; more than one where something goes beside it.
    segments: Vec<Segment>,
    /// The chain of rules that never erase, where it exists.
    additive: Option<Additive<'a>>,
}

impl<'a> Chunks<'a> {
    /// Chooses tiles and segments for a call.
    pub(super) fn new(device: &'a Cuda, layout: &'a Layout<'a>, inputs: &LinearInputs<Tensor<Cuda>>) -> Self {
        let tiles = Tiles::new(device, layout.dims, layout.spec.matrices());
        // Blocks of columns are as wide as the kernel's pairs or warps.
        let calls = [1, 2].map(|kernel| layout.call_in_blocks(inputs, tiles.blocks(kernel, layout.dims)));
        let states = layout.dims.sequences.count() * layout.dims.heads;
        let multiprocessors = device.properties().multiprocessors as usize;
        // Kernels that go in turn leave nothing to fill: one segment.
        let blocks = if device.in_turn() { multiprocessors } else { states * tiles.blocks(1, layout.dims) };
        let segments = segments(layout.intervals(), blocks, multiprocessors);
        let additive =
            additive::exists(device, layout.dims, layout.spec).then(|| Additive::new(device, layout, inputs));
        Self { device, layout, tiles, calls, segments, additive }
    }

    /// Two streams where there are several segments.
    fn streams(&self) -> Streams<'a> {
        Streams::new(self.device, self.segments.len() > 1)
    }

    /// Blocks of one of the kernels for these keys, by number in [`Tiles::shared`].
    fn grid(&self, kernel: usize, of: Segment) -> Grid {
        let states = self.layout.dims.sequences.count() * self.layout.dims.heads;
        let blocks = match kernel {
            1 | 2 => states * self.tiles.blocks(kernel, self.layout.dims),
            _ => states * of.chunks as usize,
        };
        let (matrices, own) = (self.layout.spec.matrices(), if kernel == 0 { OWN } else { 0 });
        let (shared, threads) = (self.tiles.shared(matrices)[kernel] - own, self.tiles.threads(kernel, matrices));
        Grid { blocks: (blocks, 1, 1), threads, shared }
    }

    /// Equations (15)–(18), of all chunks of a segment.
    fn prepare(&self, ready: &Tensor<Cuda>, of: Segment) -> Result<()> {
        let all = PrepareArguments { p: self.calls[0], ready: pointer(ready), of };
        all.launch(self.device, self.grid(0, of), self.tiles.keys, self.layout.spec.momentum)
    }

    /// A place for the states before, or the gradients after, all chunks.
    fn state_buffer(&self) -> Result<Tensor<Cuda>> {
        let dims = self.layout.dims;
        let matrix = self.tiles.keys * dims.value.next_multiple_of(16) * self.layout.spec.matrices();
        self.device.empty([self.layout.kept_states() * dims.heads * matrix], DType::Bf16)
    }

    /// Equations (15)–(22), and what a backward starts from if it is to be kept. `prepared` has what does not depend on values, or
    /// gets it.
    pub(super) fn forward(
        &self,
        inputs: &LinearInputs<Tensor<Cuda>>,
        outputs: &LinearOutputs<Tensor<Cuda>>,
        keep: bool,
        prepared: &mut Option<Tensor<Cuda>>,
    ) -> Result<Option<SavedChunks>> {
        if let Some(additive) = &self.additive {
            let states = if keep { Some(self.state_buffer()?) } else { None };
            additive.forward(inputs, outputs, states.as_ref())?;
            return Ok(states.map(|states| SavedChunks { states, solved: None }));
        }
        let found = prepared.take();
        let prepares = found.is_none();
        // What `prepare` makes, one place a chunk and head.
        let room = || self.device.empty([self.layout.kept_states() * self.layout.dims.heads * READY], DType::F32);
        let ready = found.map_or_else(room, Ok)?;
        // States in tiles and `Z [rows,H,V]`, for a backward alone.
        let places = match keep {
            true => Some((self.state_buffer()?, self.device.empty(self.layout.dims.values(), DType::Bf16)?)),
            false => None,
        };
        // With all of it there, nothing goes beside the chain.
        let whole = [Segment { first: 0, chunks: self.layout.intervals() as u32 }];
        let segments = if prepares { self.segments.as_slice() } else { &whole };
        let streams = Streams::new(self.device, segments.len() > 1);
        for &of in segments {
            if prepares {
                self.prepare(&ready, of)?;
            }
            // The chain begins when what was queued before is done.
            streams.link_waits()?;
            let all = ForwardArguments {
                p: self.calls[0],
                ready: pointer(&ready),
                m: pointer(&inputs.state.m),
                s: optional(inputs.state.s.as_ref()),
                out: narrow(&outputs.out),
                last_m: pointer(&outputs.state.m),
                last_s: optional(outputs.state.s.as_ref()),
                kept: places.as_ref().map_or(0, |(states, _)| narrow(states)),
                pseudo_values: places.as_ref().map_or(0, |(_, pseudo_values)| narrow(pseudo_values)),
                begin: of.first,
                chunks: of.chunks,
            };
            all.launch(&streams, self.grid(1, of), &self.tiles, self.layout.spec.momentum)?;
        }
        drop(streams);
        *prepared = Some(ready.clone());
        Ok(places
            .map(|(states, pseudo_values)| SavedChunks { states, solved: Some(SolvedChunks { ready, pseudo_values }) }))
    }

    /// Equations (23)–(32), from what was kept.
    pub(super) fn backward(
        &self,
        kept: &SavedChunks,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<()> {
        // Gradients of states, in tiles.
        let state_grads = self.state_buffer()?;
        match (&kept.solved, &self.additive) {
            (Some(made), _) => self.backward_by_solved(kept, made, &state_grads, grads, dinputs),
            (None, Some(additive)) => {
                additive.backward(grads, dinputs, &state_grads)?;
                let all = self.gradients(kept, &state_grads, grads, dinputs);
                let of = Segment { first: 0, chunks: self.layout.intervals() as u32 };
                additive.gradients(GradientsArguments { of, ..all })
            }
            (None, None) => Err(unsupported("this backward", "its forward ran where other kernels are chosen")),
        }
    }

    /// The gradient of the initial state alone; that of `v` is overwritten.
    pub(super) fn reverse_alone(
        &self,
        kept: &SavedChunks,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<()> {
        let Some(made) = &kept.solved else {
            return Err(unsupported("this backward", "its forward ran where other kernels are chosen"));
        };
        let (state_grads, solved) = (self.state_buffer()?, self.device.empty(self.layout.dims.values(), DType::Bf16)?);
        let streams = Streams::new(self.device, false);
        let all = self.reverse(grads, dinputs, &made.ready, &state_grads, &solved, None);
        all.launch(&streams, self.grid(2, self.segments[0]), &self.tiles, self.layout.spec.momentum)
    }

    /// The chain is one launch, which says how far it is: if each segment was one, the gradients of the last would take its
    /// place.
    fn backward_by_solved(
        &self,
        kept: &SavedChunks,
        made: &SolvedChunks,
        state_grads: &Tensor<Cuda>,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<()> {
        // `Λ [rows,H,V]`.
        let solved = self.device.empty(self.layout.dims.values(), DType::Bf16)?;
        // A count a segment, where somebody waits for one.
        let progress = match self.segments.len() {
            1 => None,
            segments => Some(self.device.zeroed([segments], DType::U32)?),
        };
        let streams = self.streams();
        streams.link_waits()?;
        let all = self.reverse(grads, dinputs, &made.ready, state_grads, &solved, progress.as_ref());
        all.launch(&streams, self.grid(2, self.segments[0]), &self.tiles, self.layout.spec.momentum)?;
        let all = GradientsArguments {
            ready: pointer(&made.ready),
            pseudo_values: narrow(&made.pseudo_values),
            solved: narrow(&solved),
            ..self.gradients(kept, state_grads, grads, dinputs)
        };
        // From the last segment to the first, as the chain goes.
        for (i, &of) in self.segments.iter().enumerate().rev() {
            match &progress {
                Some(progress) if i > 0 => self.await_segment(i, progress)?,
                _ => streams.wait_for_link()?,
            }
            let all = GradientsArguments { of, ..all };
            all.launch(self.device, self.grid(3, of), self.tiles.keys, self.layout.spec.momentum)?;
        }
        Ok(())
    }

    /// What the gradients of all chunks start from and write, with nothing prepared or solved and `v` in place of `Z`.
    fn gradients(
        &self,
        kept: &SavedChunks,
        state_grads: &Tensor<Cuda>,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> GradientsArguments {
        GradientsArguments {
            p: self.calls[1],
            ready: 0,
            kept: narrow(&kept.states),
            kept_grads: narrow(state_grads),
            pseudo_values: self.calls[1].v.data,
            solved: 0,
            dout: narrow(&grads.out),
            dq: narrow(&dinputs.q),
            dk: narrow(&dinputs.k),
            log_a: pointer(&dinputs.log_a),
            log_eta: optional(dinputs.log_eta.as_ref()),
            theta: pointer(&dinputs.theta),
            beta: optional(dinputs.beta.as_ref()),
            of: self.segments[0],
        }
    }

    /// Whatever is queued next waits until all blocks of the chain are through a segment.
    fn await_segment(&self, number: usize, progress: &Tensor<Cuda>) -> Result<()> {
        let (counter, count) = (pointer(progress) + 4 * number as u64, self.grid(2, self.segments[0]).blocks.0 as u32);
        await_blocks(self.device, counter, count)
    }

    /// What writes the gradients of the initial state and of `v`, those of the states after each chunk, and `Λ`.
    fn reverse(
        &self,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
        ready: &Tensor<Cuda>,
        state_grads: &Tensor<Cuda>,
        solved: &Tensor<Cuda>,
        progress: Option<&Tensor<Cuda>>,
    ) -> ReverseArguments {
        ReverseArguments {
            p: self.calls[1],
            ready: pointer(ready),
            dout: narrow(&grads.out),
            dm: pointer(&grads.state.m),
            ds: optional(grads.state.s.as_ref()),
            first_dm: pointer(&dinputs.state.m),
            first_ds: optional(dinputs.state.s.as_ref()),
            kept: narrow(state_grads),
            solved: narrow(solved),
            dv: narrow(&dinputs.v),
            progress: progress.map_or(0, pointer),
            stages: self.tiles.stages as u32,
            segment: self.segments[0].chunks,
        }
    }
}
