//! Results: every block of queries goes over the keys that it sees, run by run.
//!
//! A block keeps the largest score so far of each query, and the sum of powers and of weighted values under it.
//! A larger score in a later run scales both down.
//! Few blocks with many keys share these out: parts go over different runs, and are put together in order.

use super::{
    AttentionArrays,
    blocks::{KeyRun, QueryBlock, heads_of, seen},
    take,
};
use crate::{
    primitives::{
        exp::exp,
        loss::{largest, sum_of},
    },
    product::{Mat, MatMut, product},
    rows::{axpy, scale},
    simd::wide,
};
use rayon::prelude::*;

/// Tasks that a call is cut into, where it has as much work. By sizes alone, so that no sum depends on threads.
const TASKS: usize = 64;

/// Fewest runs of a part: combining parts must cost little beside making them.
const PART: usize = 2;

/// Outputs `[m, V]` of a block, and log-sums `[m]`.
pub(super) type BlockOutputs = (Vec<f32>, Vec<f32>);

/// What a block's queries have read from some of the keys.
struct Reading {
    /// The largest score `[m]`: −∞ before the first.
    tops: Vec<f32>,
    /// `Σ e^{s − top}`, `[m]`.
    sums: Vec<f32>,
    /// `Σ e^{s − top} v`, `[m, V]`.
    out: Vec<f32>,
}

impl Reading {
    fn new(m: usize, width: usize) -> Self {
        Self { tops: vec![f32::NEG_INFINITY; m], sums: vec![0.0; m], out: vec![0.0; m * width] }
    }

    /// Turns scores `[m, n]` into weights under the largest score so far, and takes their sums in.
    fn weigh(&mut self, scores: &mut [f32]) {
        let n = scores.len() / self.tops.len();
        wide(
            (self, scores),
            #[inline(always)]
            |(this, scores)| {
                // A row of `out` is a query's values, of any width.
                let width = this.out.len() / this.tops.len();
                let state = this.tops.iter_mut().zip(&mut this.sums).zip(this.out.chunks_exact_mut(width));
                for (((top, sum), out), row) in state.zip(scores.chunks_exact_mut(n)) {
                    // The maximum of this run may be −∞, where a query sees none of it.
                    let factor = raise(top, largest(row));
                    let base = base(*top);
                    row.iter_mut().for_each(|x| *x = exp(*x - base));
                    // Sixteen partial sums, whose order the length alone decides.
                    let new = sum_of(
                        row,
                        #[inline(always)]
                        |x| x,
                    );
                    *sum = *sum * factor + new;
                    // Mostly the maximum stays, and nothing has to be scaled.
                    if factor != 1.0 {
                        scale(out, factor);
                    }
                }
            },
        );
    }

    /// Takes in what the same queries have read from other keys.
    fn join(&mut self, other: &Self) {
        let width = self.out.len() / self.tops.len();
        let state = self.tops.iter_mut().zip(&mut self.sums).zip(self.out.chunks_exact_mut(width));
        let others = other.tops.iter().zip(&other.sums).zip(other.out.chunks_exact(width));
        for (((top, sum), out), ((other_top, other_sum), other_out)) in state.zip(others) {
            // Both sides are brought under the larger maximum.
            // A side that saw nothing has a share of 0.
            let factor = raise(top, *other_top);
            let share = exp(other_top - base(*top));
            *sum = *sum * factor + other_sum * share;
            // A factor of 0 does not hide a NaN.
            scale(out, factor);
            axpy(out, share, other_out);
        }
    }

    /// Outputs are divided by their sums at last: a row of them is shorter than one of scores.
    fn outputs(self) -> BlockOutputs {
        let Self { mut tops, sums, mut out } = self;
        let width = out.len() / tops.len();
        for ((top, sum), out) in tops.iter_mut().zip(&sums).zip(out.chunks_exact_mut(width)) {
            scale(out, 1.0 / sum);
            // Every query sees at least itself, so the maximum is a score.
            *top += sum.ln();
        }
        (out, tops)
    }
}

/// Raises `top` to `other` where that is larger; what was summed under the old one has to be multiplied by the result.
#[inline(always)]
fn raise(top: &mut f32, other: f32) -> f32 {
    let old = *top;
    *top = if other > old { other } else { old };
    exp(old - base(*top))
}

/// What powers are taken relative to: the largest score, or 0 where none was seen yet.
#[inline(always)]
fn base(top: f32) -> f32 {
    if top == f32::NEG_INFINITY { 0.0 } else { top }
}

impl AttentionArrays<'_> {
    /// All blocks with their results, in order.
    pub(super) fn forward(&self) -> Vec<(QueryBlock, BlockOutputs)> {
        let heads = heads_of(self.dims);
        let of_head = |&(sequence, head): &(usize, usize)| QueryBlock::of_head(self.dims, sequence, head);
        let blocks: Vec<QueryBlock> = heads.iter().flat_map(of_head).collect();
        // Parts of each block's keys.
        let parts = TASKS / blocks.len().max(1);
        let one = |block: QueryBlock| {
            let outputs = self.block(&block, parts.max(1));
            (block, outputs)
        };
        // The last blocks of a text see most: none may wait for others in one task.
        blocks.into_par_iter().with_max_len(1).map(one).collect()
    }

    /// Results of one block, whose keys are shared out to at most `parts` tasks.
    fn block(&self, block: &QueryBlock, parts: usize) -> BlockOutputs {
        let dims = self.dims;
        // Runs in the order of positions; queries of the block side by side, `[m, K]`.
        let runs = seen(dims, block, &self.filled[block.sequence]);
        let q = take(&self.q, self.group * dims.key, block.units(dims));
        let length = runs.len().div_ceil(parts).max(PART);
        // Too few keys for parts: one pass over all of them.
        if length >= runs.len() {
            return self.read(block, &q, &runs).outputs();
        }
        let readings: Vec<Reading> =
            runs.par_chunks(length).with_max_len(1).map(|runs| self.read(block, &q, runs)).collect();
        // From the first to the last, whoever was ready first.
        let mut whole = Reading::new(block.tokens.len() * self.group, dims.value);
        readings.iter().for_each(|reading| whole.join(reading));
        whole.outputs()
    }

    /// What queries `q [m, K]` read from some runs.
    fn read(&self, block: &QueryBlock, q: &[f32], runs: &[KeyRun]) -> Reading {
        let (dims, m) = (self.dims, block.tokens.len() * self.group);
        let mut reading = Reading::new(m, dims.value);
        // One array of scores serves all runs; the last of them is often shorter.
        let longest = runs.iter().map(|run| run.rows.len()).max().unwrap_or(0);
        let mut scores = vec![0.0; m * longest];
        for run in runs {
            let n = run.rows.len();
            let (k, v) = self.keys_and_values(run.source, run.rows.clone(), block.head);
            let scores = &mut scores[..m * n];
            // Scores `[m, n]`: keys are read where they lie, a head's rows apart.
            product(MatMut::new(scores, m, n), 0.0, dims.options.scale, Mat::new(q, m, dims.key), k.t());
            run.hide(block, dims.kept(), self.group, scores);
            reading.weigh(scores);
            // The weighted values are added to those of the runs before.
            product(MatMut::new(&mut reading.out, m, dims.value), 1.0, 1.0, Mat::new(scores, m, n), v);
        }
        reading
    }
}
