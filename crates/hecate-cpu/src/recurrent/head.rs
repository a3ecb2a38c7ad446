//! One sequence and head of a call, and its forward: token after token, or chunk after chunk.
//!
//! Heads never interact, so each is one task on one thread.
//! A head gathers its rows once: in the call's arrays, rows of one head lie `H` rows apart.

use super::{
    CHUNK, Cell, GroupAnchor, GroupForward, InputArrays, RecurrentCall, StepForward, Token, TokenRows,
    anchor::{Anchor, Decay},
    renorm::Renorm,
};
use crate::{
    linear::{Chunk, cut},
    simd::wide,
};
use hecate_core::Dims;
use std::{borrow::Cow, ops::Range};

/// Which sequence and head of a call.
#[derive(Clone, Debug)]
pub(super) struct HeadIndex {
    /// One of `N`.
    pub(super) sequence: usize,
    /// The sequence's rows in arrays `[rows, H, width]`.
    pub(super) rows: Range<usize>,
    /// One of `H`.
    pub(super) head: usize,
}

/// One sequence and head of a call, its rows gathered.
pub(super) struct SequenceHead<'a, C> {
    /// Sizes and options, which all heads of a call share.
    pub(super) call: &'a RecurrentCall<'a, C>,
    /// Which of the call's heads this is.
    pub(super) index: HeadIndex,
    /// `[T,K]`.
    q: Vec<f32>,
    /// `[T,K]`.
    k: Vec<f32>,
    /// `[T,V]`.
    v: Vec<f32>,
    /// `[T, all gates]`: a token's gates after each other, in the order of their slots.
    gates: Vec<f32>,
    /// The state before the first token.
    initial: Vec<f32>,
    /// What the state's first slots go back to as they forget; empty where that is zero.
    anchor: Vec<f32>,
    /// Of every token where there is an anchor; the gate itself is 1 then.
    decays: Vec<Decay>,
}

/// What a head made.
pub(super) struct HeadOutputs {
    /// `[T,V]`.
    pub(super) out: Vec<f32>,
    /// The state after the last token.
    pub(super) state: Vec<f32>,
}

impl<'a, C: Cell> SequenceHead<'a, C> {
    /// Gathers the rows of one head out of the call's arrays.
    pub(super) fn new(call: &'a RecurrentCall<'a, C>, arrays: &InputArrays<'_>, index: &HeadIndex) -> Self {
        let Dims { heads, key, value, .. } = *call.dims;
        let rows_of = |x: &[f32], width: usize| rows_of(x, index, heads, width);
        // All slots of a token side by side: a token's gates are then one slice.
        let mut gates = Vec::with_capacity(index.rows.len() * call.widths.iter().sum::<usize>());
        for row in index.rows.clone() {
            for (gate, &width) in arrays.gates.iter().zip(&call.widths) {
                gates.extend_from_slice(&gate[(row * heads + index.head) * width..][..width]);
            }
        }
        let (mut anchor, mut initial) =
            (anchor_of(call.dims.heads, index.head, &arrays.anchors), state_of(call, index, &arrays.states));
        call.cell.shift(&mut initial, 1.0);
        if !anchor.is_empty() {
            call.cell.shift(&mut anchor, 1.0);
        }
        let decays = if anchor.is_empty() { Vec::new() } else { take_decays(&mut gates, call.widths.iter().sum()) };
        Self {
            call,
            index: index.clone(),
            q: rows_of(&arrays.q, key),
            k: rows_of(&arrays.k, key),
            v: rows_of(&arrays.v, value),
            gates,
            initial,
            anchor,
            decays,
        }
    }

    /// Where memories go back to, unless that is zero.
    pub(super) fn anchor(&self) -> Option<Anchor<'_>> {
        let all = self.call.cell.ahead() > 0;
        (!self.anchor.is_empty()).then_some(Anchor { anchor: &self.anchor, decays: &self.decays, all })
    }

    /// The same for these tokens together.
    pub(super) fn group_anchor(&self, tokens: &Range<usize>) -> Option<GroupAnchor<'_>> {
        let Anchor { anchor, decays, .. } = self.anchor()?;
        Some(GroupAnchor { anchor, decays: &decays[tokens.clone()] })
    }

    /// What goes back to the anchor's lengths as groups start, if anything does.
    pub(super) fn renorm(&self) -> Option<Renorm<'_>> {
        let shapes = self.call.cell.renormed();
        (!shapes.is_empty()).then_some(Renorm { anchor: &self.anchor, shapes })
    }

    /// Where gradients are taken: a state, or in `led` where its momentum leads.
    pub(super) fn point<'s>(&self, state: &'s [f32], led: &'s mut [f32]) -> &'s [f32] {
        let all = self.call.cell.ahead();
        if all == 0 {
            return state;
        }
        let (weights, momentum) = state.split_at(all);
        led.iter_mut().zip(weights.iter().zip(momentum)).for_each(|(led, (w, s))| *led = w + s);
        led
    }

    /// From the gradient of the point to that of the state that it was made of; nothing is left.
    pub(super) fn take_point(&self, dstate: &mut [f32], dpoint: &mut [f32]) {
        let all = self.call.cell.ahead();
        if all > 0 {
            // The point was a sum: both parts get its gradient.
            dpoint.copy_within(..all, all);
        }
        take_point(dstate, dpoint);
    }

    /// What token `t` finds of a state: the state itself, or with an anchor what is left of it, in `found`.
    pub(super) fn found<'s>(&self, t: usize, state: &'s [f32], found: &'s mut [f32]) -> &'s [f32] {
        let Some(anchor) = self.anchor() else { return state };
        anchor.find(t, state, found);
        found
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.index.rows.len()
    }

    /// Gates of one token, all slots together.
    pub(super) fn all_gates(&self) -> usize {
        self.call.widths.iter().sum()
    }

    /// Arguments of token `t`.
    pub(super) fn token(&self, t: usize) -> Token<'_> {
        let TokenRows { q, k, v, gates, .. } = self.rows(&(t..t + 1));
        Token { q, k, v, gates }
    }

    /// Arguments of several tokens.
    pub(super) fn rows(&self, tokens: &Range<usize>) -> TokenRows<'_> {
        let Dims { key, value, .. } = *self.call.dims;
        // Rows are gathered, so several tokens are one slice.
        let part = |width: usize| tokens.start * width..tokens.end * width;
        TokenRows {
            tokens: tokens.len(),
            q: &self.q[part(key)],
            k: &self.k[part(key)],
            v: &self.v[part(value)],
            gates: &self.gates[part(self.all_gates())],
        }
    }

    /// Where states are kept, and which tokens go together in grouped form.
    pub(super) fn chunks(&self) -> Vec<Chunk> {
        cut(self.tokens(), self.call.frozen, CHUNK)
    }

    /// All tokens in order. `kept` is set to the states at the starts of checkpoint intervals, one after another, unless it is
    /// empty.
    pub(super) fn forward(&self, kept: &mut [f32]) -> HeadOutputs {
        let RecurrentCall { cell, size, grouped, .. } = self.call;
        let value = self.call.dims.value;
        let mut out = vec![0.0; self.tokens() * value];
        let (mut state, mut next) = (self.initial.clone(), vec![0.0; *size]);
        // The state at the start of the frozen group; without groups each token's own state is its point.
        let mut point = if self.call.frozen.is_some() { state.clone() } else { Vec::new() };
        let chunks = self.chunks();
        let mut record = vec![0.0; cell.record()];
        let mut found = if self.anchor.is_empty() { Vec::new() } else { state.clone() };
        let mut led = vec![0.0; cell.ahead()];
        // Two state buffers change places every token; nothing else is allocated in the loop.
        let (mut kept, mut scratch) = (kept.chunks_exact_mut((*size).max(1)), cell.scratch());
        for (i, chunk) in chunks.iter().enumerate() {
            // A checkpoint interval starts here.
            if chunk.kept
                && let Some(kept) = kept.next()
            {
                kept.copy_from_slice(&state);
            }
            if chunk.starts_group && !point.is_empty() {
                if let Some(renorm) = self.renorm() {
                    renorm.open(&mut state);
                }
                // A group of one chunk that goes by products has its point in `state`.
                if !*grouped || chunks.get(i + 1).is_some_and(|next| !next.starts_group) {
                    point.copy_from_slice(&state);
                }
            }
            let out = &mut out[chunk.tokens.start * value..chunk.tokens.end * value];
            if let (true, Some(groups)) = (*grouped, cell.groups()) {
                // Without groups no cell reads it.
                let point = match point.is_empty() {
                    true => &self.initial,
                    false if chunk.starts_group => &state,
                    false => &point,
                };
                let (rows, anchor, scratch) =
                    (self.rows(&chunk.tokens), self.group_anchor(&chunk.tokens), &mut scratch);
                groups.forward(GroupForward { rows, scratch, old: &state, new: &mut next, point, anchor, out });
                std::mem::swap(&mut state, &mut next);
                continue;
            }
            for (t, out) in chunk.tokens.clone().zip(out.chunks_exact_mut(value)) {
                let point = self.point(if point.is_empty() { &state } else { &point }, &mut led);
                let (record, scratch) = (&mut record, &mut scratch);
                let old = self.found(t, &state, &mut found);
                step(cell, StepForward { token: self.token(t), old, point, new: &mut next, record, scratch, out });
                std::mem::swap(&mut state, &mut next);
            }
        }
        cell.shift(&mut state, -1.0);
        HeadOutputs { out, state }
    }
}

/// `dstate += dpoint`, `dpoint = 0`.
fn take_point(dstate: &mut [f32], dpoint: &mut [f32]) {
    wide(
        (dstate, dpoint),
        #[inline(always)]
        |(dstate, dpoint)| {
            for (dstate, dpoint) in dstate.iter_mut().zip(dpoint) {
                *dstate += *dpoint;
                *dpoint = 0.0;
            }
        },
    );
}

/// Decays of every token out of rows of gates, of which `log a` is the first; there it becomes 0.
fn take_decays(gates: &mut [f32], width: usize) -> Vec<Decay> {
    gates.chunks_exact_mut(width).map(|row| Decay::of(std::mem::take(&mut row[0]))).collect()
}

/// A head's part of anchors `[H, ..]`: one slot after another.
fn anchor_of(heads: usize, head: usize, anchors: &[Cow<'_, [f32]>]) -> Vec<f32> {
    let mut own = Vec::new();
    anchors.iter().for_each(|x| own.extend_from_slice(&x[head * (x.len() / heads)..][..x.len() / heads]));
    own
}

/// One token forward, compiled for the widest vectors.
pub(super) fn step<C: Cell>(cell: &C, step: StepForward<'_, C::Scratch>) {
    wide(
        step,
        #[inline(always)]
        |step| cell.forward(step),
    );
}

/// A head's part of states `[N, H, ..]`: one slot after another, each row-major.
pub(super) fn state_of<C>(call: &RecurrentCall<'_, C>, index: &HeadIndex, states: &[Cow<'_, [f32]>]) -> Vec<f32> {
    let count = call.dims.sequences.count() * call.dims.heads;
    let (own, index) = (|x: &Cow<'_, [f32]>| x.len() / count, index.sequence * call.dims.heads + index.head);
    let mut state = Vec::with_capacity(states.iter().map(own).sum());
    states.iter().for_each(|x| state.extend_from_slice(&x[index * own(x)..][..own(x)]));
    state
}

/// Rows `[T, width]` of one head out of `[rows, H, width]`.
pub(super) fn rows_of(x: &[f32], index: &HeadIndex, heads: usize, width: usize) -> Vec<f32> {
    let mut own = Vec::with_capacity(index.rows.len() * width);
    let rows = index.rows.clone();
    rows.for_each(|row| own.extend_from_slice(&x[(row * heads + index.head) * width..][..width]));
    own
}

/// Heads' rows `[T, width]` as one array `[rows, H, width]`; `part(i)` are those of head `i`, sequence by sequence.
pub(super) fn gather<'l>(dims: &Dims, width: usize, part: impl Fn(usize) -> &'l Vec<f32>) -> Vec<f32> {
    let heads = dims.heads;
    let mut all = vec![0.0; dims.sequences.rows() * heads * width];
    for (sequence, rows) in dims.sequences.ranges().enumerate() {
        for head in 0..heads {
            for (row, own) in rows.clone().zip(part(sequence * heads + head).chunks_exact(width)) {
                all[(row * heads + head) * width..][..width].copy_from_slice(own);
            }
        }
    }
    all
}
