//! Gradients: every block of queries meets every block of keys that it sees, once.
//!
//! A meeting adds to the gradient of its queries and to those of its keys, so a block is in one meeting at a time.
//! Tokens go by diagonals: on the `s`-th, block `i` of queries meets block `i − s` of keys. These meetings are parallel.
//! Each block meets the others in the order of the diagonals, so sums have one order whatever the number of threads.
//! Scores are products again, and weights come from the log-sums: no array of all queries and keys is made.

use super::{
    AttentionArrays,
    blocks::{KeyRun, QueryBlock, block_length, common, heads_of, whole_grains},
    take,
};
use crate::{
    primitives::exp::exp,
    product::{Mat, MatMut, product},
    rows::dot,
    simd::wide,
};
use rayon::prelude::*;
use std::ops::Range;

/// Blocks of queries that meet the prefix at once. Each has gradients of the whole prefix, which are added in order.
const PREFIX_BLOCKS: usize = 32;

/// A block of queries, and what comes together for it.
pub(super) struct QuerySide {
    pub(super) block: QueryBlock,
    /// `[m, K]`.
    q: Vec<f32>,
    /// `[m, V]`.
    dy: Vec<f32>,
    /// `[m]`.
    lse: Vec<f32>,
    /// `D = dy·y`, `[m]`.
    along: Vec<f32>,
    /// `[m, K]`.
    pub(super) dq: Vec<f32>,
}

/// Rows of keys and values of one head, and what comes together for them.
pub(super) struct KeySide {
    pub(super) run: KeyRun,
    /// `[n, K]`.
    pub(super) dk: Vec<f32>,
    /// `[n, V]`.
    pub(super) dv: Vec<f32>,
}

/// A sequence under one key-value head.
pub(super) struct HeadGrads {
    /// The key-value head.
    pub(super) head: usize,
    /// Blocks of tokens, as queries.
    pub(super) queries: Vec<QuerySide>,
    /// Of the tokens, of the cache where there is one, of the prefix.
    pub(super) keys: [Vec<KeySide>; 3],
}

/// Outputs that a backward starts from, in 32 bits.
pub(super) struct Kept<'a> {
    /// `[rows, Hq, V]`.
    pub(super) y: &'a [f32],
    /// `[rows, Hq]`.
    pub(super) lse: &'a [f32],
    /// `[rows, Hq, V]`.
    pub(super) dy: &'a [f32],
}

impl AttentionArrays<'_> {
    /// Gradients of all sequences under all heads, in order.
    pub(super) fn backward(&self, kept: &Kept<'_>) -> Vec<HeadGrads> {
        // Heads are parallel, and so are the meetings within one: a single head uses every core too.
        let one = |(sequence, head)| {
            let mut grads = self.head(sequence, head, kept);
            // What a query sees comes from three arrays. Each has an order of its own, and they follow one another.
            self.meet_tokens(&mut grads);
            self.meet_cache(sequence, &mut grads);
            self.meet_prefix(&mut grads);
            grads
        };
        heads_of(self.dims).into_par_iter().with_max_len(1).map(one).collect()
    }

    /// Blocks of one sequence under one head, with gradients of zero.
    fn head(&self, sequence: usize, head: usize, kept: &Kept<'_>) -> HeadGrads {
        let (dims, length) = (self.dims, block_length(self.dims));
        let query = |block: QueryBlock| self.query_side(block, kept);
        let queries: Vec<QuerySide> = QueryBlock::of_head(dims, sequence, head).map(query).collect();
        // Blocks of keys are those of queries, so that a diagonal pairs neither of them twice.
        let tokens = queries.iter().map(|side| KeyRun::of_tokens(dims, sequence, side.block.tokens.clone()));
        // A block of tokens meets no slot of the cache but those from its first token's place on.
        let slots = if self.filled[sequence].is_empty() { 0 } else { dims.kept() };
        let cache = (0..slots).step_by(length).map(|at| at..slots.min(at + length));
        let cache = cache.map(|slots| KeyRun::of_cache(dims, sequence, slots));
        let prefix = KeyRun::of_prefix(dims).pieces();
        let side = |run| self.key_side(run);
        let keys = [tokens.map(side).collect(), cache.map(side).collect(), prefix.map(side).collect()];
        HeadGrads { head, queries, keys }
    }

    fn query_side(&self, block: QueryBlock, kept: &Kept<'_>) -> QuerySide {
        let (dims, units) = (self.dims, || block.units(self.dims));
        let (q, lse) = (take(&self.q, self.group * dims.key, units()), take(kept.lse, self.group, units()));
        // Heads lie between each other in the arrays; a block has its rows without gaps.
        let (y, dy) = (kept.y, kept.dy);
        let [y, dy] = [y, dy].map(|x| take(x, self.group * dims.value, units()));
        let mut along = vec![0.0; lse.len()];
        wide(
            (&mut along, &y, &dy),
            #[inline(always)]
            |(along, y, dy)| {
                let rows = y.chunks_exact(dims.value).zip(dy.chunks_exact(dims.value));
                along.iter_mut().zip(rows).for_each(|(along, (y, dy))| *along = dot(y, dy));
            },
        );
        QuerySide { dq: vec![0.0; q.len()], q, dy, lse, along, block }
    }

    fn key_side(&self, run: KeyRun) -> KeySide {
        let n = run.rows.len();
        KeySide { run, dk: vec![0.0; n * self.dims.key], dv: vec![0.0; n * self.dims.value] }
    }

    /// Diagonal after diagonal, from each block of queries with the keys of its own tokens on.
    fn meet_tokens(&self, grads: &mut HeadGrads) {
        let (kept, HeadGrads { head, queries, keys: [keys, ..] }) = (self.dims.kept(), grads);
        // Further back no key of a block is in a window.
        let diagonals = queries.len().min(1 + kept.div_ceil(block_length(self.dims)));
        for s in 0..diagonals {
            let meetings = queries[s..].par_iter_mut().zip(keys.par_iter_mut());
            meetings.with_max_len(1).for_each(|(query, side)| {
                // In tokens of the sequence: positions less the cache in front.
                let first = side.run.at.unwrap_or(kept) - kept;
                let tokens = first..first + side.run.rows.len();
                // Of a key block only the rows that some query of the block sees, and up to 15 in front.
                let seen = whole_grains(common(&query.block.near(self.dims), &tokens), first);
                self.meet(*head, query, side, seen.start - first..seen.end - first);
            });
        }
    }

    /// Block `i` of queries with block `i + s` of slots: earlier ones have left its window.
    fn meet_cache(&self, sequence: usize, grads: &mut HeadGrads) {
        let HeadGrads { head, queries, keys: [_, keys, _] } = grads;
        for s in 0..keys.len() {
            let meetings = queries.par_iter_mut().zip(keys[s..].par_iter_mut());
            meetings.with_max_len(1).for_each(|(query, side)| {
                let first = side.run.at.unwrap_or_default();
                let slots = common(&(query.block.tokens.start..usize::MAX), &(first..first + side.run.rows.len()));
                // Slots without a token are left out: what lies there may be NaN.
                for filled in &self.filled[sequence] {
                    let seen = common(filled, &slots);
                    self.meet(*head, query, side, seen.start - first..seen.end - first);
                }
            });
        }
    }

    /// All blocks of queries with the whole prefix, whose gradients come together from all of them.
    fn meet_prefix(&self, grads: &mut HeadGrads) {
        let HeadGrads { head, queries, keys: [.., keys] } = grads;
        for side in keys {
            for queries in queries.chunks_mut(PREFIX_BLOCKS) {
                let meet = |query: &mut QuerySide| {
                    let mut part = self.key_side(side.run.clone());
                    self.meet(*head, query, &mut part, 0..side.run.rows.len());
                    part
                };
                // Collected in the order of the blocks, whoever was ready first.
                let parts: Vec<KeySide> = queries.par_iter_mut().with_max_len(1).map(meet).collect();
                for part in parts {
                    side.dk.iter_mut().zip(part.dk).for_each(|(dk, x)| *dk += x);
                    side.dv.iter_mut().zip(part.dv).for_each(|(dv, x)| *dv += x);
                }
            }
        }
    }

    /// What a block of queries and rows `rows` of a block of keys add to each other's gradients.
    fn meet(&self, head: usize, query: &mut QuerySide, side: &mut KeySide, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let (dims, m, n) = (self.dims, query.lse.len(), rows.len());
        // The rows as a run of their own, whose corners are hidden by its positions.
        let start = side.run.rows.start;
        let seen = start + rows.start..start + rows.end;
        let run = KeyRun { source: side.run.source, rows: seen, at: side.run.at.map(|at| at + rows.start) };
        let (k, v) = self.keys_and_values(run.source, run.rows.clone(), head);
        let (q, dy, factor) = (Mat::new(&query.q, m, dims.key), Mat::new(&query.dy, m, dims.value), dims.options.scale);
        let [mut p, mut ds] = [0, 1].map(|_| vec![0.0; m * n]);
        // The scores again: they are never kept.
        product(MatMut::new(&mut p, m, n), 0.0, factor, q, k.t());
        run.hide(&query.block, dims.kept(), self.group, &mut p);
        product(MatMut::new(&mut ds, m, n), 0.0, 1.0, dy, v.t());
        wide(
            (&mut p, &mut ds),
            #[inline(always)]
            |(p, ds)| softmax_backward(p, ds, &query.lse, &query.along),
        );
        // With dS and P the rest are products: dq += dS k, dk += dSᵀ q, dv += Pᵀ dy.
        let (p, ds) = (Mat::new(&p, m, n), Mat::new(&ds, m, n));
        product(MatMut::new(&mut query.dq, m, dims.key), 1.0, factor, ds, k);
        let dk = &mut side.dk[rows.start * dims.key..rows.end * dims.key];
        product(MatMut::new(dk, n, dims.key), 1.0, factor, ds.t(), q);
        let dv = &mut side.dv[rows.start * dims.value..rows.end * dims.value];
        product(MatMut::new(dv, n, dims.value), 1.0, 1.0, p.t(), dy);
    }
}

/// From scores and `dy·v`, the weights `p = e^{s − lse}` and `ds = p (dy·v − D)`, all `[m, n]`.
#[inline(always)]
fn softmax_backward(p: &mut [f32], ds: &mut [f32], lse: &[f32], along: &[f32]) {
    let n = p.len() / lse.len();
    for ((p, ds), (lse, along)) in p.chunks_exact_mut(n).zip(ds.chunks_exact_mut(n)).zip(lse.iter().zip(along)) {
        for (p, ds) in p.iter_mut().zip(ds) {
            *p = exp(*p - lse);
            // The softmax's gradient takes off the mean under its own weights.
            *ds = *p * (*ds - along);
        }
    }
}
