//! The backward of one sequence and head: checkpoint interval after interval, from the last to the first.
//!
//! The states of an interval are computed again from its kept state, then its tokens go back one by one.
//! Grouped cells keep only the states before chunks, and go back chunk by chunk.

use super::{
    Cell, GroupBackward, GroupForward, RecurrentCall, StateGrads, StepBackward, StepForward, TokenGrads, TokenStates,
    anchor::Anchor,
    head::{SequenceHead, rows_of, state_of, step},
};
use crate::{linear::Chunk, simd::wide};
use hecate_core::Dims;
use std::{borrow::Cow, ops::Range};

/// Gradients of a head, in the shapes of its rows; gates slot by slot.
pub(super) struct HeadGrads {
    /// `[T,K]`; `k` likewise, `v` `[T,V]`.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// `[T, width]` of each slot.
    pub(super) gates: Vec<Vec<f32>>,
    /// Of the initial state.
    pub(super) state: Vec<f32>,
    /// Of the anchor; empty where there is none.
    pub(super) anchor: Vec<f32>,
}

/// One checkpoint interval: the chunks from one kept state to the next.
struct Interval<'k> {
    /// At least one; the first has the kept state.
    chunks: &'k [Chunk],
    /// Tokens of all its chunks.
    tokens: Range<usize>,
    /// The kept state at its start.
    start: &'k [f32],
    /// The state at the start of the group that its first token belongs to.
    /// Groups longer than a chunk may begin in an interval before; their starts are kept.
    group_start: &'k [f32],
}

impl Interval<'_> {
    /// Chunk of this interval in which the group of chunk `i` starts, unless that is before the interval.
    fn group_of(&self, i: usize) -> Option<usize> {
        self.chunks[..=i].iter().rposition(|chunk| chunk.starts_group)
    }

    /// The state before chunk `i` and that at its group's start, out of `states` before the second chunk and those after it.
    fn states_of<'s>(&'s self, i: usize, states: &'s [f32], size: usize) -> [&'s [f32]; 2] {
        let state = |i: usize| i.checked_sub(1).map_or(self.start, |i| &states[i * size..][..size]);
        [state(i), self.group_of(i).map_or(self.group_start, state)]
    }
}

/// States that a head's backward computes again, in memory that goes from head to head and from call to call.
#[derive(Default)]
pub(super) struct StateWorkspace {
    /// Before each token and after the last `[n+1, |state|]`, or before each chunk but the first.
    states: Vec<f32>,
    /// What a grouped cell keeps of a chunk's tokens ([`GroupBackward`]).
    tokens: Vec<f32>,
    /// Weights that a grouped cell makes of states.
    weights: Vec<Vec<f32>>,
}

/// What the forward pass over one interval leaves for its backward, and a token's workspace.
struct IntervalScratch<'s, C: Cell> {
    /// Large arrays of states.
    kept: &'s mut StateWorkspace,
    /// What each token leaves, `[n, record]`; empty in grouped form.
    records: Vec<f32>,
    /// The state with which the group at hand starts, where that is not what the group before left.
    opened: Vec<f32>,
    /// What a token finds of the state before it, where there is an anchor.
    found: Vec<f32>,
    /// Where momentum leads, for a cell that takes gradients there.
    led: Vec<f32>,
    /// One for all tokens, which need it one after another.
    scratch: C::Scratch,
}

impl<C: Cell> SequenceHead<'_, C> {
    /// Gradients of the head; `dout [rows, H, V]` and `dfinal` are those of the whole call.
    pub(super) fn backward(
        &self,
        kept: &[f32],
        dout: &[f32],
        dfinal: &[Cow<'_, [f32]>],
        states: &mut StateWorkspace,
    ) -> HeadGrads {
        let mut pass = HeadBackward::new(self, dout, dfinal, states);
        let chunks = self.chunks();
        let mut end = chunks.len();
        while end > 0 {
            // From the last kept state to the end of what is left.
            let start = chunks[..end].iter().rposition(|chunk| chunk.kept).unwrap_or(0);
            // One interval's states at a time: that is what bounds the peak memory.
            let interval = self.interval(&chunks, start..end, kept);
            match self.call.grouped {
                true => pass.by_group(&interval),
                false => pass.by_token(&interval),
            }
            end = start;
        }
        pass.finish()
    }

    /// The interval of these chunks, the first of which has a kept state.
    fn interval<'k>(&self, chunks: &'k [Chunk], own: Range<usize>, kept: &'k [f32]) -> Interval<'k> {
        // Elements of a state, all slots together.
        let size = self.call.size;
        // Kept states come in the order of the chunks that keep them.
        let saved = |count: usize| &kept[count * size..][..size];
        let before = chunks[..own.start].iter().filter(|chunk| chunk.kept);
        let start = saved(before.clone().count());
        let first = chunks[own.start].tokens.start;
        // A group that began before the interval is longer than a chunk, so its start is a kept state.
        let group_start = match self.call.frozen.map(|group| first / group * group) {
            Some(group) if group < first => saved(before.filter(|chunk| chunk.tokens.start < group).count()),
            _ => start,
        };
        let tokens = first..chunks[own.end - 1].tokens.end;
        Interval { chunks: &chunks[own], tokens, start, group_start }
    }

    /// Runs the interval's tokens again: the states around each of them, and what they leave.
    fn token_states(&self, interval: &Interval<'_>, work: &mut IntervalScratch<'_, C>) {
        let (cell, size, tokens) = (&self.call.cell, self.call.size, &interval.tokens);
        let record = cell.record();
        // One state more than tokens: the last is the state after the interval.
        // Grown once to the longest interval, then used again.
        let states = &mut work.kept.states;
        states.resize(states.len().max((tokens.len() + 1) * size), 0.0);
        work.records.resize(tokens.len() * record, 0.0);
        work.kept.states[..size].copy_from_slice(interval.start);
        cell.reset_shared(&mut work.scratch);
        // Outputs are not asked for, but a step makes them.
        let mut out = vec![0.0; self.call.dims.value];
        for (i, t) in tokens.clone().enumerate() {
            // Each token writes the state after it next to the states before.
            let (past, next) = work.kept.states.split_at_mut((i + 1) * size);
            let old = &past[i * size..];
            let (starts, point) = match self.call.frozen {
                None => (false, old),
                Some(group) => match (t / group * group).checked_sub(tokens.start) {
                    Some(start) => (start == i, &past[start * size..][..size]),
                    None => (false, interval.group_start),
                },
            };
            if starts || i == 0 {
                self.open(point, &mut work.opened);
            }
            let [old, point] = self.around(starts, old, point, &work.opened);
            let point = self.point(point, &mut work.led);
            let record = &mut work.records[i * record..][..record];
            let (token, new, scratch, out) = (self.token(t), &mut next[..size], &mut work.scratch, &mut out[..]);
            let old = self.found(t, old, &mut work.found);
            step(cell, StepForward { token, old, point, new, record, scratch, out });
        }
        cell.reset_shared(&mut work.scratch);
    }

    /// Sets `opened` to the state with which a group starts, where that is not what the group before left.
    fn open(&self, left: &[f32], opened: &mut [f32]) {
        if let Some(renorm) = self.renorm() {
            opened.copy_from_slice(left);
            renorm.open(opened);
        }
    }

    /// The state before a token, and that with which its group starts, from `old` and what the group before left. `starts` says
    /// whether the token is the group's first.
    fn around<'s>(&self, starts: bool, old: &'s [f32], left: &'s [f32], opened: &'s [f32]) -> [&'s [f32]; 2] {
        match self.renorm() {
            None => [old, left],
            Some(_) => [if starts { opened } else { old }, opened],
        }
    }

    /// Runs the interval's chunks again in grouped form: the states before each of them but the first.
    fn chunk_states(&self, interval: &Interval<'_>, work: &mut IntervalScratch<'_, C>) {
        let (value, size) = (self.call.dims.value, self.call.size);
        let IntervalScratch { kept: StateWorkspace { states, .. }, scratch, .. } = work;
        let Some(groups) = self.call.cell.groups() else { return };
        // The state after the last chunk is not asked for: its gradient has come in already.
        let chunks = &interval.chunks[..interval.chunks.len() - 1];
        // Grown once to the longest interval, then used again.
        states.resize(states.len().max(chunks.len() * size), 0.0);
        let mut out = Vec::new();
        for (i, chunk) in chunks.iter().enumerate() {
            out.resize(chunk.tokens.len() * value, 0.0);
            let (rows, anchor) = (self.rows(&chunk.tokens), self.group_anchor(&chunk.tokens));
            // Each chunk writes the state after it next to the states before.
            let (past, next) = states.split_at_mut(i * size);
            let [old, point] = interval.states_of(i, past, size);
            let (new, out) = (&mut next[..size], &mut out[..]);
            groups.advance(GroupForward { rows, scratch, old, new, point, anchor, out });
        }
    }
}

/// A head on its way back.
struct HeadBackward<'h, 's, 'a, C: Cell> {
    /// Arguments and sizes, as the forward had them.
    head: &'h SequenceHead<'a, C>,
    /// `[T,V]`.
    dout: Vec<f32>,
    /// Gradient of the state after the tokens that are still to come.
    dstate: Vec<f32>,
    /// Gradient of the gradient point, which joins `dstate` at the group's first token.
    dpoint: Vec<f32>,
    /// Whether grouped chunks have added anything to `dpoint`.
    has_dpoint: bool,
    /// `[T,K]`, `[T,K]`, `[T,V]`, `[T, all gates]`.
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    dgates: Vec<f32>,
    /// Gradient of the anchor, all tokens together.
    danchor: Vec<f32>,
    /// States of the interval at hand; it grows to the longest one.
    work: IntervalScratch<'s, C>,
}

impl<'h, 's, 'a, C: Cell> HeadBackward<'h, 's, 'a, C> {
    /// Gradients of the head's arguments start at zero, that of its state at the final state's.
    fn new(
        head: &'h SequenceHead<'a, C>,
        dout: &[f32],
        dfinal: &[Cow<'_, [f32]>],
        states: &'s mut StateWorkspace,
    ) -> Self {
        let Dims { heads, key, value, .. } = *head.call.dims;
        let zeros = |width: usize| vec![0.0; head.tokens() * width];
        Self {
            head,
            dout: rows_of(dout, &head.index, heads, value),
            dstate: state_of(head.call, &head.index, dfinal),
            dpoint: vec![0.0; head.call.size],
            has_dpoint: false,
            dq: zeros(key),
            dk: zeros(key),
            dv: zeros(value),
            dgates: zeros(head.all_gates()),
            danchor: head.anchor().map_or_else(Vec::new, |Anchor { anchor, .. }| vec![0.0; anchor.len()]),
            work: IntervalScratch {
                kept: states,
                records: Vec::new(),
                opened: vec![0.0; if head.renorm().is_some() { head.call.size } else { 0 }],
                found: vec![0.0; if head.anchor().is_some() { head.call.size } else { 0 }],
                led: vec![0.0; head.call.cell.ahead()],
                scratch: head.call.cell.scratch(),
            },
        }
    }

    /// The interval's tokens, from the last to the first.
    fn by_token(&mut self, interval: &Interval<'_>) {
        // Forward once more through the interval, then back.
        self.head.token_states(interval, &mut self.work);
        for (i, chunk) in interval.chunks.iter().enumerate().rev() {
            let group = interval.group_of(i).map(|i| interval.chunks[i].tokens.start - interval.tokens.start);
            let (size, work) = (self.head.call.size, &mut self.work);
            let left = group.map_or(interval.group_start, |start| &work.kept.states[start * size..][..size]);
            self.head.open(left, &mut work.opened);
            // Each token takes `dstate` from after it to before it.
            for t in chunk.tokens.clone().rev() {
                self.token(interval, group, t);
            }
            if chunk.starts_group {
                self.head.take_point(&mut self.dstate, &mut self.dpoint);
                self.close(chunk.tokens.start - interval.tokens.start);
            }
        }
    }

    /// From the gradient of the state with which a group starts, at token `i` of the interval, to that of what was left before.
    fn close(&mut self, i: usize) {
        if let Some(renorm) = self.head.renorm() {
            let size = self.head.call.size;
            renorm.back(&self.work.kept.states[i * size..][..size], &mut self.dstate, &mut self.danchor);
        }
    }

    /// Token `t`; `group` is the interval's token at which its frozen group starts.
    fn token(&mut self, interval: &Interval<'_>, group: Option<usize>, t: usize) {
        let RecurrentCall { cell, size, frozen, dims, .. } = self.head.call;
        let (i, record, gates) = (t - interval.tokens.start, cell.record(), self.head.all_gates());
        // States and records are read, the workspace is changed: three parts of one struct.
        let IntervalScratch { kept: StateWorkspace { states, .. }, records, opened, found, led, scratch } =
            &mut self.work;
        let state = |i: usize| &states[i * size..][..*size];
        // States around the token, out of those of the interval.
        let old = state(i);
        let left = if frozen.is_none() { old } else { group.map_or(interval.group_start, state) };
        let [old, point] = self.head.around(group == Some(i), old, left, opened);
        let point = self.head.point(point, led);
        let step = StepBackward {
            token: self.head.token(t),
            states: TokenStates { old: self.head.found(t, old, found), point, new: state(i + 1) },
            record: &records[i * record..][..record],
            dout: &self.dout[t * dims.value..][..dims.value],
            adjoint: StateGrads { state: &mut self.dstate, point: &mut self.dpoint },
            scratch,
            grads: TokenGrads {
                q: &mut self.dq[t * dims.key..][..dims.key],
                k: &mut self.dk[t * dims.key..][..dims.key],
                v: &mut self.dv[t * dims.value..][..dims.value],
                gates: &mut self.dgates[t * gates..][..gates],
            },
        };
        step_back(cell, step);
        if let Some(anchor) = self.head.anchor() {
            // The cell was told that nothing is forgotten: its gradient of the gate says nothing.
            self.dgates[t * gates] = anchor.back(t, old, &mut self.dstate, &mut self.danchor);
        }
        // Without groups the point is the state before the token: its gradient joins at once.
        if frozen.is_none() && !cell.merges_point() {
            self.head.take_point(&mut self.dstate, &mut self.dpoint);
        }
    }

    /// The interval's chunks in grouped form, from the last to the first.
    fn by_group(&mut self, interval: &Interval<'_>) {
        let RecurrentCall { cell, size, dims, .. } = self.head.call;
        let Some(groups) = cell.groups() else { return };
        // Forward once more through the interval's chunks, then back.
        self.head.chunk_states(interval, &mut self.work);
        for (i, chunk) in interval.chunks.iter().enumerate().rev() {
            let part = |width: usize| chunk.tokens.start * width..chunk.tokens.end * width;
            let IntervalScratch { kept: StateWorkspace { states, tokens, weights }, scratch, .. } = &mut self.work;
            let ([start, point], opens) = (interval.states_of(i, states, *size), chunk.starts_group);
            // The chunk's forward is computed again inside: only its start is here.
            groups.backward(GroupBackward {
                rows: self.head.rows(&chunk.tokens),
                scratch,
                tokens,
                weights,
                start,
                point,
                opens,
                anchor: self.head.group_anchor(&chunk.tokens),
                dout: &self.dout[part(dims.value)],
                adjoint: StateGrads { state: &mut self.dstate, point: &mut self.dpoint },
                danchor: &mut self.danchor,
                grads: TokenGrads {
                    q: &mut self.dq[part(dims.key)],
                    k: &mut self.dk[part(dims.key)],
                    v: &mut self.dv[part(dims.value)],
                    gates: &mut self.dgates[part(self.head.all_gates())],
                },
            });
            // Chunks that do not open their group leave something for the one that does.
            self.has_dpoint |= !(opens && groups.merges_start());
            if opens && std::mem::take(&mut self.has_dpoint) {
                self.head.take_point(&mut self.dstate, &mut self.dpoint);
            }
        }
    }

    /// The gradients, with those of the gates cut into slots.
    fn finish(self) -> HeadGrads {
        let (widths, tokens) = (&self.head.call.widths, self.head.tokens());
        let mut gates: Vec<Vec<f32>> = widths.iter().map(|width| vec![0.0; tokens * width]).collect();
        // A token's gates lie side by side; tensors want slots side by side.
        for (t, row) in self.dgates.chunks_exact(self.head.all_gates()).enumerate() {
            // The slots' widths cut a token's row of gates.
            let mut rest = row;
            for (slot, &width) in gates.iter_mut().zip(widths) {
                let (own, others) = rest.split_at(width);
                slot[t * width..][..width].copy_from_slice(own);
                rest = others;
            }
        }
        HeadGrads { q: self.dq, k: self.dk, v: self.dv, gates, state: self.dstate, anchor: self.danchor }
    }
}

/// One token backward, compiled for the widest vectors.
fn step_back<C: Cell>(cell: &C, step: StepBackward<'_, C::Scratch>) {
    wide(
        step,
        #[inline(always)]
        |step| cell.backward(step),
    );
}
