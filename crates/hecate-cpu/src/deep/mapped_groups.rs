//! Frozen groups of memories whose weights are a map of the state: inner gradients as products, states token by token.
//!
//! `u` and `δ` of a chunk's tokens come from the weights at the group's start, so they are products, and so is their way back.
//! The weights at the start are made once for a chunk, and their gradient is pulled back once.
//! A map of every token's state has no such form: writes and reads go token by token between the products.
//! Where weights are distributions, tokens go by [`late_softmax`](super::late_softmax), and the weights that they read are kept for
//! their way back.
//! What a token finds of a state that goes back to an anchor is made in the pass of its write, and again on the way back.

use super::{
    DeepCell, Gates, Scratch,
    backward::TokenBackward,
    found::Found,
    inner_grads::{InnerGrads, WrittenGrads, fit, scale_rows},
    retention::{self, MappedWeights},
    softmax::KlWrite,
    write::Advance,
};
use crate::{
    product::{Mat, MatMut, product},
    recurrent::{
        Cell as _, Decay, GroupAnchor, GroupBackward, GroupForward, StateGrads, Token, TokenGrads, TokenRows,
        TokenStates,
    },
    rows::axpy,
    simd::wide,
};
use hecate_core::{Read, rules::Retention};

/// A chunk's tokens, and what all of them share.
struct ChunkTokens<'a> {
    /// Queries, keys, values and gates.
    rows: TokenRows<'a>,
    /// Their inner gradients, which come from outside of a token's step.
    inner: InnerGrads,
    /// Empty where memories go back to zero.
    anchor: &'a [f32],
}

/// States around a token, and what it leaves: parts of [`Advance`].
struct TokenStep<'a> {
    old: &'a [f32],
    new: &'a mut [f32],
    record: &'a mut [f32],
    out: &'a mut [f32],
}

impl DeepCell {
    /// 32-bit elements that a chunk takes beside what all groups take: states, what tokens leave, a gradient of weights.
    pub(super) fn mapped_group_elements(&self) -> usize {
        let (tokens, (_, all)) = (crate::linear::CHUNK, self.sizes());
        let weights = if self.goes_late() { tokens * (all + self.d() + self.value) } else { 0 };
        (tokens + 2) * all + (tokens + 1) * self.record() + weights
    }

    /// Whether a chunk's tokens take log-softmaxes off late, and its way back keeps what each of them read: exponentials are dear.
    fn goes_late(&self) -> bool {
        matches!(self.spec.retention, Retention::Kl { .. }) && self.spec.read == Read::After
    }

    /// Arguments of token `t` of a chunk.
    fn token_of<'r>(&self, rows: TokenRows<'r>, t: usize) -> Token<'r> {
        // Gates of all slots lie side by side.
        let gates = rows.gates.len() / rows.tokens;
        Token {
            q: &rows.q[t * self.key..][..self.key],
            k: &rows.k[t * self.key..][..self.key],
            v: &rows.v[t * self.value..][..self.value],
            gates: &rows.gates[t * gates..][..gates],
        }
    }

    /// Arguments of a chunk, and inner gradients at `point`.
    fn chunk_tokens<'a>(
        &self,
        rows: TokenRows<'a>,
        point: &[f32],
        anchor: Option<GroupAnchor<'a>>,
        mut inner: InnerGrads,
    ) -> ChunkTokens<'a> {
        self.inner_grads(rows, point, anchor, &mut inner);
        ChunkTokens { rows, inner, anchor: anchor.map_or(&[], |GroupAnchor { anchor, .. }| anchor) }
    }

    /// Gates of token `t`. The chunk's retention stands for the gate's, which is 1 where there is an anchor.
    fn gates_of(&self, chunk: &ChunkTokens<'_>, t: usize) -> Gates {
        let decay = Decay { a: chunk.inner.a[t], lost: chunk.inner.lost[t] };
        Gates { decay, ..self.gates(self.token_of(chunk.rows, t).gates) }
    }

    /// Token `t` forward.
    fn advance_with(&self, chunk: &ChunkTokens<'_>, t: usize, step: TokenStep<'_>, scratch: &mut Scratch) {
        let (TokenStep { old, new, record, out }, ChunkTokens { rows, inner, anchor }) = (step, chunk);
        let (token, gates) = (self.token_of(*rows, t), self.gates_of(chunk, t));
        let (mut record, d, v) = (self.parts_mut(record), self.d(), self.value);
        // The write needs its factors, and their way back needs them once more.
        record.h.copy_from_slice(&inner.h[t * d..][..d]);
        record.delta.copy_from_slice(&inner.delta[t * d..][..d]);
        record.u_o.copy_from_slice(&inner.u_o[t * v..][..v]);
        wide(
            (old, new, &mut record, scratch, out),
            #[inline(always)]
            |(old, new, record, scratch, out)| {
                self.advance(Advance { token, gates, old, anchor, new, record, out }, scratch);
            },
        );
    }

    /// [`GroupedForm::forward`](crate::recurrent::GroupedForm::forward) of mapped weights.
    pub(super) fn mapped_forward(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, scratch, old, new, point, anchor, out } = chunk;
        let inner = std::mem::take(&mut scratch.inner);
        let chunk = self.chunk_tokens(rows, self.to_weights(point, &mut scratch.point, false).layers, anchor, inner);
        let (mut record, mut spare) = (vec![0.0; self.record()], vec![0.0; old.len()]);
        self.open_late(scratch, false);
        // Two states change places from token to token, so that the last one lies in `new`.
        let mut places = [&mut *new, &mut spare];
        if rows.tokens.is_multiple_of(2) {
            places.reverse();
        }
        for (t, out) in out.chunks_exact_mut(self.value).enumerate() {
            let [new, past] = &mut places;
            let step = TokenStep { old: if t == 0 { old } else { past }, new, record: &mut record, out };
            self.advance_with(&chunk, t, step, scratch);
            places.reverse();
        }
        scratch.inner = chunk.inner;
        self.close_late(scratch, new);
    }

    /// Before a group's chunk whose start has log-softmaxes for columns: tokens take theirs off late. `keeps` as in [`Late`].
    fn open_late(&self, scratch: &mut Scratch, keeps: bool) {
        // The start lacks nothing, so its columns have nothing to take off.
        let (late, columns) = (&mut scratch.late, self.d() + self.value);
        (late.on, late.keeps) = (self.goes_late(), keeps);
        late.shifts.clear();
        late.shifts.resize(columns, 0.0);
        fit(&mut late.factors, columns);
    }

    /// Takes what the last token's log-softmax takes off the state that it left.
    fn close_late(&self, scratch: &mut Scratch, state: &mut [f32]) {
        if !std::mem::take(&mut scratch.late.on) {
            return;
        }
        // One number a column, off all of its rows.
        let (low, high) = state.split_at_mut(self.low());
        let (shift, shift_high) = scratch.late.shifts.split_at(self.d());
        for (layer, shift) in [(low, shift), (high, shift_high)] {
            layer.chunks_exact_mut(shift.len().max(1)).for_each(|row| axpy(row, -1.0, shift));
        }
    }

    /// [`GroupedForm::advance`](crate::recurrent::GroupedForm::advance) of mapped weights, by products.
    ///
    /// A state decays and is written whatever its weights are. A log-softmax takes one number off a column, and so may come last.
    pub(super) fn mapped_advance(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, scratch, old, new: state, point, anchor, .. } = chunk;
        state.copy_from_slice(old);
        let weights = self.to_weights(point, &mut scratch.point, false).layers;
        let inner = &mut scratch.inner;
        self.inner_grads(rows, weights, anchor, inner);
        let (n, (key, d, v), inputs) = (rows.tokens, (self.key, self.d(), self.value), self.inputs());
        // What the tokens after it leave of each write, and all of them of the state, `[n]`.
        let (mut left, mut whole) = (vec![1.0; n], Decay::NONE);
        for (left, (&a, &lost)) in left.iter_mut().zip(inner.a.iter().zip(&inner.lost)).rev() {
            *left = whole.a;
            whole = Decay { a, lost }.then(whole);
        }
        inner.values.iter_mut().for_each(|values| scale_rows(values, left.iter().copied()));
        let ([low_values, high_values], (low, high)) = (&inner.values, state.split_at_mut(self.low()));
        if self.hidden.is_some() {
            let (k, values) = (Mat::new(rows.k, n, key), Mat::new(low_values, n, d));
            product(MatMut::new(low, key, d), whole.a, 1.0, k.t(), values);
        }
        let (h, values) = (Mat::new(self.keys_of(rows, inner), n, inputs), Mat::new(high_values, n, v));
        product(MatMut::new(high, inputs, v), whole.a, 1.0, h.t(), values);
        // Whatever is forgotten of the state goes to the anchor, and so does what is forgotten of the anchor's part.
        if let Some(GroupAnchor { anchor, .. }) = anchor {
            axpy(state, whole.lost, anchor);
        }
        if let Retention::Kl { scale } = self.spec.retention {
            // Its pass is that of a token that writes and reads nothing.
            let Scratch { point, seen, zeros, hidden, value, tiles, .. } = scratch;
            point.weights.copy_from_slice(state);
            let parts = [(0..self.low(), key, &mut hidden[..d]), (self.low()..state.len(), inputs, &mut value[..v])];
            for (part, rows, out) in parts.into_iter().filter(|(part, ..)| !part.is_empty()) {
                let (y, z, q) = (&zeros[..rows], &zeros[..out.len()], &zeros[..rows]);
                let (old, x, w) = (&point.weights[part.clone()], &mut state[part.clone()], &mut seen.weights[part]);
                // Forgetting and writes are in `old` already.
                let found = Found { decay: Decay::NONE, state: old, anchor: &[] };
                KlWrite { found, step: 0.0, y, z, x, w, scale, q, out, tiles }.run();
            }
        }
    }

    /// [`GroupedForm::backward`](crate::recurrent::GroupedForm::backward) of mapped weights.
    pub(super) fn mapped_backward(&self, chunk: GroupBackward<'_, Scratch>) {
        let GroupBackward {
            rows,
            scratch,
            tokens: states,
            weights,
            start,
            point,
            anchor,
            dout,
            adjoint,
            danchor,
            mut grads,
            ..
        } = chunk;
        let StateGrads { state: dstate, point: dpoint } = adjoint;
        let (n, size, width) = (rows.tokens, start.len(), self.record());
        self.to_weights(point, &mut scratch.point, false);
        // The tokens' steps use the other buffer alone, so this one can be taken out meanwhile.
        let (mapped, inner) = (std::mem::take(&mut scratch.point), std::mem::take(&mut scratch.inner));
        let chunk = self.chunk_tokens(rows, &mapped.weights, anchor, inner);
        let mut records = vec![0.0; n * width];
        fit(states, states.len().max((n + 1) * size));
        states[..size].copy_from_slice(start);
        let mut out = vec![0.0; self.value];
        let (keeps, columns) = (self.goes_late(), self.d() + self.value);
        let mut factors = vec![0.0; if keeps { n * columns } else { 0 }];
        self.open_late(scratch, true);
        if keeps {
            weights.resize_with(weights.len().max(n), Vec::new);
            weights[..n].iter_mut().for_each(|weights| fit(weights, size));
        }
        // Forward once more: states around tokens, and what reads and writes leave.
        for (t, record) in records.chunks_exact_mut(width).enumerate() {
            let (old, new) = states[t * size..].split_at_mut(size);
            let step = TokenStep { old, new: &mut new[..size], record, out: &mut out };
            self.advance_with(&chunk, t, step, scratch);
            if keeps {
                // Factors are small, and are copied.
                factors[t * columns..][..columns].copy_from_slice(&scratch.late.factors);
                // The weights that the token read go aside, and the next one's are made in other memory.
                std::mem::swap(&mut scratch.seen.weights, &mut weights[t]);
            }
        }
        // Back through reads and writes; what was written then goes back for all tokens at once.
        let mut written = WrittenGrads::new(n, self.d(), self.value);
        for t in (0..n).rev() {
            let state = |t: usize| &states[t * size..][..size];
            let at = TokenBackward {
                token: self.token_of(rows, t),
                gates: self.gates_of(&chunk, t),
                states: TokenStates { old: state(t), point, new: state(t + 1) },
                anchor: chunk.anchor,
                record: self.parts(&records[t * width..][..width]),
                dout: &dout[t * self.value..][..self.value],
            };
            if keeps {
                std::mem::swap(&mut scratch.seen.weights, &mut weights[t]);
                scratch.late.factors.copy_from_slice(&factors[t * columns..][..columns]);
            }
            // The step finds the weights where a token before it would have left them.
            scratch.shared = keeps;
            self.written_vjp(&at, [dstate, danchor], scratch, self.grads_of(&mut grads, n, t));
            scratch.shared = false;
            written.set(t, n, &scratch.hidden, &scratch.value);
        }
        // States between the tokens lacked their log-softmaxes; nothing else reads them.
        scratch.late.on = false;
        // A gradient of weights becomes one of the state at the group's start once for the chunk.
        let mut dweights = vec![0.0; size];
        // Biases of these retentions have no threshold.
        self.inner_vjp(rows, &chunk.inner, &mapped.weights, written, &mut dweights, &mut grads);
        self.point_vjp(point, &mapped, &dweights, dpoint);
        (scratch.point, scratch.inner) = (mapped, chunk.inner);
    }

    /// Gradients of the arguments of token `t` of `n`.
    fn grads_of<'g>(&self, grads: &'g mut TokenGrads<'_>, n: usize, t: usize) -> TokenGrads<'g> {
        let gates = grads.gates.len() / n;
        TokenGrads {
            q: &mut grads.q[t * self.key..][..self.key],
            k: &mut grads.k[t * self.key..][..self.key],
            v: &mut grads.v[t * self.value..][..self.value],
            gates: &mut grads.gates[t * gates..][..gates],
        }
    }

    /// Back through a token's read and write, compiled for the widest vectors.
    fn written_vjp(
        &self,
        at: &TokenBackward<'_>,
        dstates: [&mut [f32]; 2],
        scratch: &mut Scratch,
        grads: TokenGrads<'_>,
    ) {
        wide(
            (at, dstates, scratch, grads),
            #[inline(always)]
            |(at, dstates, scratch, mut grads)| self.outer_vjp(at, dstates, scratch, &mut grads),
        );
    }

    /// Adds to the gradient of the state at the group's start what its weights have.
    fn point_vjp(&self, point: &[f32], mapped: &MappedWeights, dweights: &[f32], dpoint: &mut [f32]) {
        let (first, all) = self.sizes();
        // One layer after the other: each has a norm of its own.
        for (part, norm) in [(0..first, mapped.norms[0]), (first..all, mapped.norms[1])] {
            if !part.is_empty() {
                let [state, weights, dweights] = [point, &mapped.weights, dweights].map(|x| &x[part.clone()]);
                retention::pullback(self.spec.retention, [state, weights, dweights], norm, &mut dpoint[part]);
            }
        }
    }
}
