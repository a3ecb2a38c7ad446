//! A lane: one sequence, one head, token after token.

use super::{Adjoint, Arrays, CHUNK, Call, Cell, Rows, States, Token, TokenGrads};
use crate::{engine::cut, simd::wide};
use hecate_core::Dims;
use std::{borrow::Cow, ops::Range};

/// One sequence and head of a call, its rows gathered.
pub(super) struct Lane<'a, C> {
    call: &'a Call<'a, C>,
    tokens: usize,
    first: usize,
    head: usize,
    /// `[T,K]`.
    q: Vec<f32>,
    /// `[T,K]`.
    k: Vec<f32>,
    /// `[T,V]`.
    v: Vec<f32>,
    /// `[T, all gates]`.
    gates: Vec<f32>,
    /// The state before the first token.
    initial: Vec<f32>,
    index: usize,
}

/// What a lane made.
pub(super) struct Done {
    /// `[T,V]`.
    pub(super) out: Vec<f32>,
    pub(super) state: Vec<f32>,
    /// Kept states, one behind another.
    pub(super) kept: Vec<f32>,
}

/// Gradients of a lane, in the shapes of its rows; gates slot by slot.
pub(super) struct Grads {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) gates: Vec<Vec<f32>>,
    pub(super) state: Vec<f32>,
}

/// A lane's scratch while it goes back: the states of one span, and what its tokens left.
struct Span<C: Cell> {
    states: Vec<f32>,
    records: Vec<f32>,
    scratch: C::Scratch,
}

impl<'a, C: Cell> Lane<'a, C> {
    pub(super) fn new(call: &'a Call<'a, C>, arrays: &Arrays<'_>, lane: &(usize, Range<usize>, usize)) -> Self {
        let (sequence, rows, head) = lane.clone();
        let Dims { heads, key, value, .. } = *call.dims;
        let rows_of = |x: &[f32], width: usize| rows_of(x, &rows, heads, head, width);
        let mut gates = Vec::with_capacity(rows.len() * call.widths.iter().sum::<usize>());
        for row in rows.clone() {
            for (gate, &width) in arrays.gates.iter().zip(&call.widths) {
                gates.extend_from_slice(&gate[(row * heads + head) * width..][..width]);
            }
        }
        let index = sequence * heads + head;
        Self {
            call,
            tokens: rows.len(),
            first: rows.start,
            head,
            q: rows_of(&arrays.q, key),
            k: rows_of(&arrays.k, key),
            v: rows_of(&arrays.v, value),
            gates,
            initial: state_of(call, index, &arrays.states),
            index,
        }
    }

    fn all_gates(&self) -> usize {
        self.call.widths.iter().sum()
    }

    fn token(&self, t: usize) -> Token<'_> {
        let Dims { key, value, .. } = *self.call.dims;
        let gates = self.all_gates();
        Token {
            q: &self.q[t * key..][..key],
            k: &self.k[t * key..][..key],
            v: &self.v[t * value..][..value],
            gates: &self.gates[t * gates..][..gates],
        }
    }

    fn rows(&self, tokens: &Range<usize>) -> Rows<'_> {
        let Dims { key, value, .. } = *self.call.dims;
        let part = |x: &'_ [f32], width: usize| {
            tokens.start * width..(tokens.start * width + tokens.len() * width).min(x.len())
        };
        let gates = self.all_gates();
        Rows {
            tokens: tokens.len(),
            q: &self.q[part(&self.q, key)],
            k: &self.k[part(&self.k, key)],
            v: &self.v[part(&self.v, value)],
            gates: &self.gates[part(&self.gates, gates)],
        }
    }

    /// Where states are kept, and stretches that are gone through at once.
    fn chunks(&self) -> Vec<crate::engine::Chunk> {
        cut(self.tokens, self.call.frozen, CHUNK)
    }

    /// Runs the lane.
    pub(super) fn forward(&self, keep: bool) -> Done {
        let Call { cell, size, grouped, .. } = self.call;
        let (size, value) = (*size, self.call.dims.value);
        let mut out = vec![0.0; self.tokens * value];
        let (mut state, mut next) = (self.initial.clone(), vec![0.0; size]);
        let mut point = if self.call.frozen.is_some() { state.clone() } else { Vec::new() };
        let mut record = vec![0.0; cell.record()];
        let (mut kept, mut scratch) = (Vec::new(), cell.scratch());
        for chunk in self.chunks() {
            if chunk.starts_group && !point.is_empty() {
                point.copy_from_slice(&state);
            }
            if keep && chunk.kept {
                kept.extend_from_slice(&state);
            }
            let out = &mut out[chunk.tokens.start * value..chunk.tokens.end * value];
            if let (true, Some(groups)) = (*grouped, cell.groups()) {
                let point = if point.is_empty() { &self.initial } else { &point };
                groups.forward(self.rows(&chunk.tokens), &mut scratch, &mut state, point, out);
                continue;
            }
            for (t, out) in chunk.tokens.clone().zip(out.chunks_exact_mut(value)) {
                let point = if point.is_empty() { &state } else { &point };
                step(cell, self.token(t), &state, point, &mut next, &mut record, &mut scratch, out);
                std::mem::swap(&mut state, &mut next);
            }
        }
        Done { out, state, kept }
    }

    /// Turns the lane around; `dout [rows, H, V]` and `dfinal` are those of the whole call.
    pub(super) fn backward(&self, kept: &[f32], dout: &[f32], dfinal: &[Cow<'_, [f32]>]) -> Grads {
        let Call { cell, size, grouped, frozen, .. } = self.call;
        let (size, &Dims { heads, key, value, .. }) = (*size, self.call.dims);
        let gates = self.all_gates();
        let dout = rows_of(dout, &(self.first..self.first + self.tokens), heads, self.head, value);
        let zeros = |width: usize| vec![0.0; self.tokens * width];
        let mut grads = (zeros(key), zeros(key), zeros(value), zeros(gates));
        let mut dstate = state_of(self.call, self.index, dfinal);
        let mut dpoint = vec![0.0; size];
        let mut span = Span::<C> { states: Vec::new(), records: Vec::new(), scratch: cell.scratch() };
        let chunks = self.chunks();
        let mut end = chunks.len();
        let mut left = kept.len() / size;
        while end > 0 {
            let start = chunks[..end].iter().rposition(|chunk| chunk.kept).unwrap_or(0);
            left -= 1;
            let own = &chunks[start..end];
            let tokens = own[0].tokens.start..own[own.len() - 1].tokens.end;
            let from = &kept[left * size..][..size];
            // Only groups longer than a chunk begin before their span; their starts are kept.
            let far = frozen.map(|group| tokens.start / group * group).filter(|&group| group < tokens.start);
            let far = far.map(|group| {
                let back = chunks[..start].iter().filter(|chunk| chunk.kept && chunk.tokens.start >= group).count();
                &kept[(left - back) * size..][..size]
            });
            if *grouped {
                self.chunk_states(own, from, far, &mut span);
            } else {
                self.token_states(&tokens, from, far, &mut span);
            }
            for (i, chunk) in own.iter().enumerate().rev() {
                let group = own[..=i].iter().rposition(|chunk| chunk.starts_group);
                if let (true, Some(groups)) = (*grouped, cell.groups()) {
                    let state = |i: usize| &span.states[i * size..][..size];
                    let point = group.map_or(far.unwrap_or(from), state);
                    let part = |width: usize| chunk.tokens.start * width..chunk.tokens.end * width;
                    let own = TokenGrads {
                        q: &mut grads.0[part(key)],
                        k: &mut grads.1[part(key)],
                        v: &mut grads.2[part(value)],
                        gates: &mut grads.3[part(gates)],
                    };
                    let adjoint = Adjoint { state: &mut dstate, point: &mut dpoint };
                    let (rows, dout) = (self.rows(&chunk.tokens), &dout[part(value)]);
                    groups.backward(rows, &mut span.scratch, state(i), point, dout, adjoint, own);
                } else {
                    for t in chunk.tokens.clone().rev() {
                        let state = |t: usize| &span.states[(t - tokens.start) * size..][..size];
                        let old = state(t);
                        let point = match frozen {
                            None => old,
                            Some(_) => group.map_or(far.unwrap_or(from), |i| state(own[i].tokens.start)),
                        };
                        let record = &span.records[(t - tokens.start) * cell.record()..][..cell.record()];
                        let own = TokenGrads {
                            q: &mut grads.0[t * key..][..key],
                            k: &mut grads.1[t * key..][..key],
                            v: &mut grads.2[t * value..][..value],
                            gates: &mut grads.3[t * gates..][..gates],
                        };
                        let adjoint = Adjoint { state: &mut dstate, point: &mut dpoint };
                        let states = States { old, point, new: state(t + 1) };
                        let dout = &dout[t * value..][..value];
                        step_back(cell, self.token(t), states, record, dout, adjoint, &mut span.scratch, own);
                        if frozen.is_none() && !cell.merges() {
                            take(&mut dstate, &mut dpoint);
                        }
                    }
                }
                if chunk.starts_group {
                    take(&mut dstate, &mut dpoint);
                }
            }
            end = start;
        }
        let mut by_slot: Vec<Vec<f32>> = self.call.widths.iter().map(|width| zeros(*width)).collect();
        for (t, row) in grads.3.chunks_exact(gates).enumerate() {
            let mut rest = row;
            for (slot, &width) in by_slot.iter_mut().zip(&self.call.widths) {
                let (own, behind) = rest.split_at(width);
                slot[t * width..][..width].copy_from_slice(own);
                rest = behind;
            }
        }
        Grads { q: grads.0, k: grads.1, v: grads.2, gates: by_slot, state: dstate }
    }

    /// States before each token of a span and behind its last, and what the tokens leave.
    fn token_states(&self, tokens: &Range<usize>, from: &[f32], far: Option<&[f32]>, span: &mut Span<C>) {
        let (cell, size) = (&self.call.cell, self.call.size);
        let record = cell.record();
        span.states.resize((tokens.len() + 1) * size, 0.0);
        span.records.resize(tokens.len() * record, 0.0);
        span.states[..size].copy_from_slice(from);
        cell.forget(&mut span.scratch);
        let mut out = vec![0.0; self.call.dims.value];
        for (i, t) in tokens.clone().enumerate() {
            let (past, next) = span.states.split_at_mut((i + 1) * size);
            let old = &past[i * size..];
            let point = match self.call.frozen {
                None => old,
                Some(group) => match (t / group * group).checked_sub(tokens.start) {
                    Some(start) => &past[start * size..][..size],
                    None => far.unwrap_or(from),
                },
            };
            let record = &mut span.records[i * record..][..record];
            step(cell, self.token(t), old, point, &mut next[..size], record, &mut span.scratch, &mut out);
        }
        cell.forget(&mut span.scratch);
    }

    /// States before each of a span's chunks.
    fn chunk_states(&self, chunks: &[crate::engine::Chunk], from: &[f32], far: Option<&[f32]>, span: &mut Span<C>) {
        let (size, Span { states, scratch, .. }) = (self.call.size, span);
        states.clear();
        states.extend_from_slice(from);
        let Some(groups) = self.call.cell.groups() else { return };
        let mut point = far.unwrap_or(from).to_vec();
        let mut state = from.to_vec();
        let mut out = Vec::new();
        for chunk in &chunks[..chunks.len() - 1] {
            if chunk.starts_group {
                point.copy_from_slice(&state);
            }
            out.resize(chunk.tokens.len() * self.call.dims.value, 0.0);
            groups.forward(self.rows(&chunk.tokens), scratch, &mut state, &point, &mut out);
            states.extend_from_slice(&state);
        }
        debug_assert_eq!(states.len(), chunks.len() * size);
    }
}

/// `dstate += dpoint`, `dpoint = 0`.
fn take(dstate: &mut [f32], dpoint: &mut [f32]) {
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

#[expect(clippy::too_many_arguments, reason = "those of the cell")]
fn step<C: Cell>(
    cell: &C,
    token: Token<'_>,
    old: &[f32],
    point: &[f32],
    new: &mut [f32],
    record: &mut [f32],
    scratch: &mut C::Scratch,
    out: &mut [f32],
) {
    wide(
        (new, record, scratch, out),
        #[inline(always)]
        |(new, record, scratch, out)| cell.forward(token, old, point, new, record, scratch, out),
    );
}

#[expect(clippy::too_many_arguments, reason = "those of the cell")]
fn step_back<C: Cell>(
    cell: &C,
    token: Token<'_>,
    states: States<'_>,
    record: &[f32],
    dout: &[f32],
    adjoint: Adjoint<'_>,
    scratch: &mut C::Scratch,
    grads: TokenGrads<'_>,
) {
    wide(
        (adjoint, scratch, grads),
        #[inline(always)]
        |(adjoint, scratch, grads)| cell.backward(token, states, record, dout, adjoint, scratch, grads),
    );
}

/// Sequence and head `index` of states `[N,H,..]`, one slot behind another.
fn state_of<C>(call: &Call<'_, C>, index: usize, states: &[Cow<'_, [f32]>]) -> Vec<f32> {
    let lanes = call.dims.sequences.count() * call.dims.heads;
    let own = |x: &Cow<'_, [f32]>| x.len() / lanes;
    let mut state = Vec::with_capacity(states.iter().map(own).sum());
    states.iter().for_each(|x| state.extend_from_slice(&x[index * own(x)..][..own(x)]));
    state
}

/// Rows `[T, width]` of one head out of `[rows, H, width]`.
fn rows_of(x: &[f32], rows: &Range<usize>, heads: usize, head: usize, width: usize) -> Vec<f32> {
    let mut own = Vec::with_capacity(rows.len() * width);
    rows.clone().for_each(|row| own.extend_from_slice(&x[(row * heads + head) * width..][..width]));
    own
}

/// Lanes' rows `[T, width]` as one array `[rows, H, width]`.
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
