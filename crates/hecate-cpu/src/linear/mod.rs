//! The linear engine: one recurrence for every linear rule, token by token or in exact chunks.
//!
//! A forward goes through the memory once for every four tokens ([`fused`]), or two with momentum.
//! A single token goes from one memory into the next ([`decode`]).
//! A backward is products of matrices over chunks of 64 tokens ([`chunk_backward`]).
//! The forward of frozen rules goes in chunks too ([`chunk`]).
//! [`scan`] is the plain recurrence that all others are compared with.
//!
//! Equation numbers are those of [`hecate_core::rules`].
//! A rule's gates become the scalars `w`, `r`, `a`, `η` of the recurrence, as its [`LinearSpec`] says.
//! Gradients of the scalars become gradients of the gates on the way back ([`scalars`]).
//!
//! # Parallelism
//!
//! The unit of work is a [`HeadTile`](head_tile::HeadTile): one sequence, one head, one block of value columns.
//! Columns never interact, so a tile runs by itself.
//! Gradients of `q`, `k` and the gates are sums over the column blocks of a head, taken in order.
//! How many blocks there are depends on the sizes alone, so results do not depend on the number of threads.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state a checkpoint interval, which is `C = 64` tokens.
//! That is `N H ⌈T/C⌉ K V` elements, twice as many with momentum.
//! Frozen rules keep one every `⌊C/G⌋ G` tokens: as many whole groups of `G` as fit.
//! Where a group is longer than `C`, they keep one every `C` tokens of each.
//! States between are computed again ([`recompute`]).
//! [`PeakMemory`](crate::PeakMemory) bounds the peak memory of a backward.

mod call;
mod checkpoints;
pub(crate) mod chunk;
pub(crate) mod chunk_backward;
pub(crate) mod chunk_view;
mod decode;
mod fused;
mod head_tile;
pub(crate) mod layer;
mod padded_matrix;
mod passes;
mod peak_memory;
mod recompute;
mod register_tiles;
mod scalars;
mod scan;
pub(crate) mod solve;
pub(crate) mod tables;
mod tile_inputs;
mod workspace;

use crate::{
    Algorithm, Cpu,
    buffer_pool::PooledBuf,
    device::{floats, pooled_tensor, tensor},
};
use call::{Form, LinearCall, add_blocks};
pub(crate) use checkpoints::{CHUNK, Chunk, cut};
pub(crate) use chunk_view::{ChunkGrads, ChunkStart, ChunkView, Memory, MemoryMut};
use hecate_core::{
    DType, Dims, Result, Tensor,
    families::{LinearEngine, LinearGate, LinearInputs, LinearKernelCall, LinearOutputs, LinearSpec, LinearState},
};
use passes::Upstream;
use peak_memory::backward_elements;
use rayon::prelude::*;
use scalars::Scalars;
use std::{fmt, ops::Range};

/// Sequences of at most this many tokens are scanned where a backward comes.
/// A chunk that short does more arithmetic than the scan, and rounds more.
const SCAN_TOKENS: usize = 8;

/// What a linear rule keeps for its backward: states at the starts of checkpoint intervals.
///
/// Tile by tile `[intervals, K, columns]`, with `S` after each `M` where there is momentum.
pub struct Saved(PooledBuf);

impl fmt::Debug for Saved {
    /// The count of elements, not the elements: they may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saved({} elements)", self.0.len())
    }
}

impl Cpu {
    /// How a forward goes, and the length of its chunks; `keep` says whether a backward comes or came.
    /// A backward asks with the same arguments, and so goes the way its forward went.
    fn plan(&self, spec: LinearSpec, dims: &Dims, keep: bool) -> (Form, usize) {
        match self.algorithm() {
            Algorithm::Auto if keep && dims.sequences.longest() <= SCAN_TOKENS => (Form::Scan, CHUNK),
            Algorithm::Auto if spec.frozen.is_none() => (Form::Fused, CHUNK),
            Algorithm::Auto => (Form::Chunk, CHUNK),
            Algorithm::Scan => (Form::Scan, CHUNK),
            Algorithm::Chunk(tokens) => (Form::Chunk, tokens),
        }
    }

    /// The tiles of each task, with where each of them writes.
    fn tasks<P>(
        &self,
        call: &LinearCall<'_>,
        tiles: usize,
        mut places: impl Iterator<Item = P>,
    ) -> Vec<(Range<usize>, Vec<P>)> {
        let together = call.together(tiles, self.threads()).into_iter();
        together.map(|own| (own.clone(), places.by_ref().take(own.len()).collect())).collect()
    }

    /// A backward over all tiles into `arrays`. Returns gradients of the scalars, `[rows, H]` each.
    fn backward_tiles(
        &self,
        call: &LinearCall<'_>,
        saved: &[f32],
        upstream: Upstream<'_>,
        arrays: &mut GradArrays,
    ) -> Scalars {
        let (tiles, mut rest) = (call.tiles(), saved);
        let sizes = call.saved_sizes(&tiles).into_iter();
        let saved: Vec<_> = sizes.map(|size| rest.split_off(..size).unwrap_or_default()).collect();
        let tasks = self.tasks(call, tiles.len(), arrays.places(call));
        let scalars: Vec<_> = self.run(|| {
            let run = |(own, places): (Range<usize>, _)| {
                let (tiles, saved) = (&tiles[own.clone()], &saved[own]);
                self.buffers().with_workspace(|work| passes::backward(tiles, call, work, saved, upstream, places))
            };
            tasks.into_par_iter().flat_map_iter(run).collect()
        });
        call.join_scalars(&tiles, |i| &scalars[i])
    }

    /// Arrays for `M` and `S` of all sequences and heads, `[N,H,K,V]`; the second empty without momentum.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    fn states(&self, what: &'static str, call: &LinearCall<'_>) -> Result<[PooledBuf; 2]> {
        let size = call.dims.matrices().count();
        Ok([self.take(what, size)?, self.take(what, if call.spec.momentum { size } else { 0 })?])
    }
}

/// The call with its gates as scalars.
///
/// # Errors
/// Gates outside their ranges.
fn linear_call(call: LinearKernelCall<'_, Cpu>, keep: bool) -> Result<LinearCall<'_>> {
    let LinearKernelCall { what, device, spec, dims, inputs, .. } = call;
    LinearCall::new(spec, dims, device.plan(spec, dims, keep), inputs, Scalars::new(what, spec.erase, inputs)?)
}

/// What the tiles of a forward made.
struct ForwardArrays {
    /// `[rows, H, V]`.
    out: PooledBuf,
    /// `M` and `S` after the last tokens, `[N,H,K,V]`.
    states: [PooledBuf; 2],
    /// States at checkpoints, where a backward comes.
    saved: Option<Saved>,
}

/// A forward over all tiles. With `keep`, states at checkpoints are saved; without, none is. `what` is the rule's name.
fn run_forward(device: &Cpu, what: &'static str, call: &LinearCall<'_>, keep: bool) -> Result<ForwardArrays> {
    let tiles = call.tiles();
    let sizes = if keep { call.saved_sizes(&tiles) } else { vec![0; tiles.len()] };
    let kept = sizes.iter().fold(0, |sum: usize, &size| sum.saturating_add(size));
    let states = call.dims.matrices().count().saturating_mul(call.states());
    // Tasks under way copy their own memories; their tables of a chunk are no longer in a longer call.
    let heads = call.dims.sequences.count().saturating_mul(call.dims.heads).max(1);
    let copies = (states / heads).saturating_mul(heads.min(device.threads()));
    device.room(what, kept.saturating_add(states).saturating_add(copies).saturating_add(call.v.len()))?;
    let mut out = device.take(what, call.v.len())?;
    // Every tile gets its own rows of the three arrays, so that tasks write without locks.
    let mut states = device.states(what, call)?;
    let mut saved = device.take(what, kept)?;
    let [m, s] = &mut states;
    let (rows, m, s) = (call.value_rows(&mut out), call.state_rows(m), call.state_rows(s));
    let mut s = s.into_iter();
    let places = (rows.into_iter().zip(m).zip(split(&mut saved, &sizes)))
        .map(|((out, m), saved)| passes::ForwardOutputs { out, states: [m, s.next().unwrap_or_default()], saved });
    let tasks = device.tasks(call, tiles.len(), places);
    device.run(|| {
        tasks.into_par_iter().for_each(|(own, places)| {
            device.buffers().with_workspace(|work| passes::forward(&tiles[own], call, work, keep, places));
        });
    });
    Ok(ForwardArrays { out, states, saved: keep.then_some(Saved(saved)) })
}

/// What the tiles of a backward made.
struct BackwardArrays {
    /// `[rows, H, K]`; `dk` likewise, `dv` `[rows, H, V]`.
    dq: PooledBuf,
    dk: PooledBuf,
    dv: PooledBuf,
    /// Of the initial `M` and `S`, `[N,H,K,V]`.
    states: [PooledBuf; 2],
    /// Of the recurrence's scalars, `[rows, H]` each.
    scalars: Scalars,
}

/// A backward over all tiles, from the states that the forward saved.
fn run_backward(
    device: &Cpu,
    what: &'static str,
    call: &LinearCall<'_>,
    saved: &Saved,
    upstream: Upstream<'_>,
) -> Result<BackwardArrays> {
    let mut arrays = GradArrays::new(device, what, call)?;
    let scalars = device.backward_tiles(call, &saved.0, upstream, &mut arrays);
    let GradArrays { mut dq, mut dk, dv, states } = arrays;
    // The column blocks of a head are added in their order, whatever finished first.
    let (dq, dk) = device.run(|| (add_blocks(&mut dq), add_blocks(&mut dk)));
    let whole = |x: Option<PooledBuf>| x.map_or_else(|| device.take(what, 0), Ok);
    Ok(BackwardArrays { dq: whole(dq)?, dk: whole(dk)?, dv, states, scalars })
}

/// Gradients while the tiles write them.
struct GradArrays {
    /// One array `[rows, H, K]` for each column block: tiles of a head add to the same rows of `dq` and `dk`.
    dq: Vec<PooledBuf>,
    dk: Vec<PooledBuf>,
    /// `[rows, H, V]`.
    dv: PooledBuf,
    /// Of the initial `M` and `S`, `[N,H,K,V]`.
    states: [PooledBuf; 2],
}

impl GradArrays {
    /// Arrays that nobody wrote yet.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    fn new(device: &Cpu, what: &'static str, call: &LinearCall<'_>) -> Result<Self> {
        let keys = || (0..call.blocks()).map(|_| device.take(what, call.q.len())).collect::<Result<_>>();
        Ok(Self { dq: keys()?, dk: keys()?, dv: device.take(what, call.v.len())?, states: device.states(what, call)? })
    }

    /// Where each tile writes, in the order of the tiles.
    fn places<'o>(&'o mut self, call: &LinearCall<'_>) -> impl Iterator<Item = passes::BackwardOutputs<'o>> + use<'o> {
        let [m, s] = &mut self.states;
        let keys = call.key_rows(&mut self.dq).into_iter().zip(call.key_rows(&mut self.dk));
        let values = call.value_rows(&mut self.dv).into_iter().zip(call.state_rows(m));
        let mut s = call.state_rows(s).into_iter();
        keys.zip(values).map(move |((dq, dk), (dv, m))| {
            let dstates = [m, s.next().unwrap_or_default()];
            passes::BackwardOutputs { dq, dk, dv, dstates }
        })
    }
}

/// The results as tensors; `states` are `M` and `S`.
fn outputs(
    LinearKernelCall { device, spec, dims, inputs, .. }: LinearKernelCall<'_, Cpu>,
    out: PooledBuf,
    states: [PooledBuf; 2],
) -> Result<LinearOutputs<Tensor<Cpu>>> {
    let out = pooled_tensor(device, dims.values(), inputs.q.dtype(), out)?;
    Ok(LinearOutputs { out, state: state(device, spec, dims, states)? })
}

/// `M`, and `S` where there is momentum.
fn state(device: &Cpu, spec: LinearSpec, dims: &Dims, [m, s]: [PooledBuf; 2]) -> Result<LinearState<Tensor<Cpu>>> {
    let matrices = |x| pooled_tensor(device, dims.matrices(), DType::F32, x);
    Ok(LinearState { m: matrices(m)?, s: spec.momentum.then(|| matrices(s)).transpose()? })
}

/// Parts of these sizes, one after another.
fn split<'x>(mut x: &'x mut [f32], sizes: &[usize]) -> Vec<&'x mut [f32]> {
    let mut part = |&size: &usize| {
        let (own, rest) = std::mem::take(&mut x).split_at_mut(size);
        x = rest;
        own
    };
    sizes.iter().map(&mut part).collect()
}

/// Linear rules, those of other crates too: the core makes a kernel of each out of this.
/// Momentum that looks ahead is made of two rules there, and is not seen here.
impl LinearEngine for Cpu {
    type Saved = Saved;

    fn check_gates(call: LinearKernelCall<'_, Self>) -> Result<()> {
        Scalars::new(call.what, call.spec.erase, call.inputs).map(drop)
    }

    fn linear_forward(
        call: LinearKernelCall<'_, Self>,
        keep: bool,
    ) -> Result<(LinearOutputs<Tensor<Self>>, Option<Saved>)> {
        // One token a sequence: the memory goes from the old array into the new one, without a copy between.
        if !keep && call.device.algorithm() == Algorithm::Auto && call.dims.sequences.longest() == 1 {
            return Ok((decode::run(call)?, None));
        }
        let made = run_forward(call.device, call.what, &linear_call(call, keep)?, keep)?;
        Ok((outputs(call, made.out, made.states)?, made.saved))
    }

    fn linear_backward(
        call: LinearKernelCall<'_, Self>,
        saved: Saved,
        grads: &LinearOutputs<Tensor<Self>>,
    ) -> Result<LinearInputs<Tensor<Self>>> {
        let LinearKernelCall { what, device, spec, dims, inputs, .. } = call;
        device.room(what, backward_elements(spec, dims, device.threads()))?;
        let call = linear_call(call, true)?;
        let dout = floats(&grads.out)?;
        let dfinal = grads.state.list().map(floats).collect::<Result<Vec<_>>>()?;
        let upstream = Upstream { out: &dout, states: &dfinal };
        let made = run_backward(device, what, &call, &saved, upstream)?;
        let dtype = inputs.q.dtype();
        let gate = |gate| {
            let values = call.scalars().gate_grad(spec.erase, &made.scalars, gate);
            tensor(device, dims.scalars(), DType::F32, values)
        };
        Ok(LinearInputs {
            log_a: gate(LinearGate::LogA)?,
            log_eta: spec.momentum.then(|| gate(LinearGate::LogEta)).transpose()?,
            theta: gate(LinearGate::Theta)?,
            beta: spec.erase.has_beta().then(|| gate(LinearGate::Beta)).transpose()?,
            q: pooled_tensor(device, dims.keys(), dtype, made.dq)?,
            k: pooled_tensor(device, dims.keys(), dtype, made.dk)?,
            v: pooled_tensor(device, dims.values(), dtype, made.dv)?,
            state: state(device, spec, dims, made.states)?,
        })
    }
}
