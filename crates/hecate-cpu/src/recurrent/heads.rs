//! All heads of a call, a task each, put together in their order.
//!
//! What is generic over rules is compiled again in every crate that names one. The loops over tokens are long and take
//! most of a build, so they are compiled here: once for each cell ([`Heads`]).

use super::{
    Cell, RecurrentCall,
    head::{HeadIndex, SequenceHead, gather},
};
use crate::{Cpu, buffer_pool::PooledBuf};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// The arrays that heads are cut out of, as 32-bit floats.
pub(crate) struct InputArrays<'a> {
    /// `[rows, H, K]`; `k` likewise, `v` `[rows, H, V]`.
    pub(super) q: Cow<'a, [f32]>,
    pub(super) k: Cow<'a, [f32]>,
    pub(super) v: Cow<'a, [f32]>,
    /// `[rows, H, width]`, in the order of the slots.
    pub(super) gates: Vec<Cow<'a, [f32]>>,
    /// `[N, H, ..]`, in the order of the slots.
    pub(super) states: Vec<Cow<'a, [f32]>>,
    /// `[H, ..]`, in the order of the slots; none where memories forget to zero.
    pub(super) anchors: Vec<Cow<'a, [f32]>>,
}

/// What all heads made.
pub(crate) struct CallOutputs {
    /// `[rows, H, V]`.
    pub(super) out: Vec<f32>,
    /// After the last tokens, slot by slot `[N, H, ..]`.
    pub(super) states: Vec<Vec<f32>>,
    /// States at checkpoints, head by head.
    pub(super) kept: Vec<PooledBuf>,
}

/// Gradients of a call's outputs.
pub(crate) struct OutputGrads<'a> {
    /// `[rows, H, V]`.
    pub(super) out: Cow<'a, [f32]>,
    /// Of the final states, slot by slot `[N, H, ..]`.
    pub(super) states: Vec<Cow<'a, [f32]>>,
}

/// A cell whose heads are compiled in this crate. [`heads!`] writes it.
pub(crate) trait Heads: Cell + Sized {
    /// All heads forward; `kept` are arrays for each head's states at checkpoints, empty where no backward will come.
    fn forward_heads(
        call: &RecurrentCall<'_, Self>,
        device: &Cpu,
        arrays: &InputArrays<'_>,
        kept: Vec<PooledBuf>,
    ) -> CallOutputs;

    /// Gradients of all inputs in the order q, k, v, gates, state, from the states that the forward kept.
    fn backward_heads(
        call: &RecurrentCall<'_, Self>,
        device: &Cpu,
        arrays: &InputArrays<'_>,
        kept: Vec<PooledBuf>,
        grads: &OutputGrads<'_>,
    ) -> Vec<Vec<f32>>;
}

/// [`Heads`] of a cell: functions that are generic no more.
macro_rules! heads {
    ($cell:ty) => {
        impl $crate::recurrent::Heads for $cell {
            fn forward_heads(
                call: &$crate::recurrent::RecurrentCall<'_, Self>,
                device: &$crate::Cpu,
                arrays: &$crate::recurrent::InputArrays<'_>,
                kept: Vec<$crate::buffer_pool::PooledBuf>,
            ) -> $crate::recurrent::CallOutputs {
                call.forward(device, arrays, kept)
            }

            fn backward_heads(
                call: &$crate::recurrent::RecurrentCall<'_, Self>,
                device: &$crate::Cpu,
                arrays: &$crate::recurrent::InputArrays<'_>,
                kept: Vec<$crate::buffer_pool::PooledBuf>,
                grads: &$crate::recurrent::OutputGrads<'_>,
            ) -> Vec<Vec<f32>> {
                call.backward(device, arrays, kept, grads)
            }
        }
    };
}
pub(crate) use heads;

impl<C: Cell> RecurrentCall<'_, C> {
    /// [`Heads::forward_heads`].
    pub(crate) fn forward(&self, device: &Cpu, arrays: &InputArrays<'_>, mut kept: Vec<PooledBuf>) -> CallOutputs {
        device.run(|| {
            let heads = self.sequence_heads();
            let forward =
                |(head, kept): (&HeadIndex, &mut PooledBuf)| SequenceHead::new(self, arrays, head).forward(kept);
            let done: Vec<_> = heads.par_iter().zip(&mut kept).map(forward).collect();
            let out = gather(self.dims, self.dims.value, |i| &done[i].out);
            let states = self.split(done.iter().map(|head| head.state.as_slice()));
            CallOutputs { out, states, kept }
        })
    }

    /// [`Heads::backward_heads`].
    pub(crate) fn backward(
        &self,
        device: &Cpu,
        arrays: &InputArrays<'_>,
        kept: Vec<PooledBuf>,
        grads: &OutputGrads<'_>,
    ) -> Vec<Vec<f32>> {
        device.run(|| {
            let heads = self.sequence_heads();
            // A head's kept states go as soon as it is done.
            let back = |(head, kept): (&HeadIndex, PooledBuf)| {
                let head = SequenceHead::new(self, arrays, head);
                device.buffers().with_workspace(|states| head.backward(&kept, &grads.out, &grads.states, states))
            };
            let done: Vec<_> = heads.par_iter().zip(kept).map(back).collect();
            let dims = self.dims;
            let mut dinputs = vec![
                gather(dims, dims.key, |i| &done[i].q),
                gather(dims, dims.key, |i| &done[i].k),
                gather(dims, dims.value, |i| &done[i].v),
            ];
            dinputs.extend(self.widths.iter().enumerate().map(|(s, &w)| gather(dims, w, |i| &done[i].gates[s])));
            dinputs.extend(self.split(done.iter().map(|head| head.state.as_slice())));
            dinputs.extend(self.anchors(arrays, |i| &done[i].anchor));
            dinputs
        })
    }

    /// Sequences and heads, the heads of a sequence together: the order of all results.
    pub(super) fn sequence_heads(&self) -> Vec<HeadIndex> {
        let heads = self.dims.heads;
        let sequences = self.dims.sequences.ranges().enumerate();
        let index =
            |sequence, rows: Range<usize>| (0..heads).map(move |head| HeadIndex { sequence, rows: rows.clone(), head });
        sequences.flat_map(|(sequence, rows)| index(sequence, rows)).collect()
    }

    /// Gradients of anchors `[H, ..]`, slot by slot: sums over sequences, in their order. `part(i)` is that of sequence and
    /// head `i`.
    fn anchors<'l>(&self, arrays: &InputArrays<'_>, part: impl Fn(usize) -> &'l Vec<f32>) -> Vec<Vec<f32>> {
        let (heads, mut first) = (self.dims.heads, 0);
        let slots = arrays.anchors.iter().map(|anchor| {
            let own = anchor.len() / heads;
            let mut sum = vec![0.0; anchor.len()];
            for i in 0..self.dims.sequences.count() * heads {
                let slot = &mut sum[i % heads * own..][..own];
                slot.iter_mut().zip(&part(i)[first..]).for_each(|(sum, x)| *sum += x);
            }
            first += own;
            sum
        });
        slots.collect()
    }

    /// Heads' states, cut into the rule's slots `[N, H, ..]`.
    fn split<'l>(&self, heads: impl ExactSizeIterator<Item = &'l [f32]>) -> Vec<Vec<f32>> {
        let number = heads.len();
        let mut slots: Vec<Vec<f32>> = self.states.iter().map(|&count| Vec::with_capacity(count)).collect();
        for head in heads {
            let mut rest = head;
            for (slot, count) in slots.iter_mut().zip(&self.states) {
                let (own, others) = rest.split_at(count / number);
                slot.extend_from_slice(own);
                rest = others;
            }
        }
        slots
    }
}
