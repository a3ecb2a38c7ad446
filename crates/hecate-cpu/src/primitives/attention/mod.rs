//! Softmax attention over a sliding window.
//!
//! A sequence is cut into segments; one segment under one key-value head is one task.
//! A task lays the keys and values that it sees after each other.
//! They are the prefix, the window in front of its first token, and its own tokens.
//! It takes its queries in blocks: the keys that the tokens of a block see are one run of rows, and the prefix.
//! Scores, outputs and gradients are then products of matrices, whose corners outside the window are hidden.
//!
//! Positions count from the first row of a sequence's cache, which has `P` rows.
//! Token `t` stands at `t + P` and sees `t ..= t + P`.
//!
//! Query heads that share a key-value head stand side by side: `group` of them are rows of one product.
//! The forward keeps `log Σ eˢ` of each query, so that the backward makes the weights without another maximum.

mod visible_keys;

use self::visible_keys::{VisibleKeys, rows_of, softmax, softmax_backward};
use super::last_rows;
use crate::{
    Cpu,
    device::{floats, tensor},
    product::Mat,
    rows::scale,
    simd::wide,
};
use hecate_core::{
    DType, Result, Tensor, memory,
    primitives::{
        Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOutputs, Cache, LastRows, Prefix,
    },
};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// The name in messages.
const WHAT: &str = "attention";

/// Tokens in a segment, unless the window is longer.
/// A segment gathers its window once, so segments shorter than the window would copy more than they use.
const SEGMENT: usize = 256;

impl Attention for Cpu {
    /// `y [B,T,Hq,V]` and the queries' log-sums `[B,T,Hq]`.
    fn attention(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<AttentionOutputs<Tensor<Self>>> {
        let arrays = AttentionArrays::new(dims, inputs)?;
        let queries = dims.sequences.rows() * dims.query_heads;
        // Segments have results of their own, which are put together after them.
        self.room(WHAT, queries.saturating_mul(2 * (dims.value + 1)).saturating_add(gathered(self, dims, 1)))?;
        let mut y = memory::zeros(WHAT, queries * dims.value)?;
        let mut lse = memory::zeros(WHAT, queries)?;
        // Segments write different rows: their results are put together here, in order.
        for (segment, (part, sums)) in each(self, dims, |segment| arrays.forward(segment)) {
            put(&mut y, arrays.group * dims.value, segment.units(dims), &part);
            put(&mut lse, arrays.group, segment.units(dims), &sums);
        }
        let [batch, tokens] = [0, 1].map(|axis| inputs.q.shape().axes()[axis]);
        let y = tensor(self, [batch, tokens, dims.query_heads, dims.value], inputs.q.dtype(), y)?;
        Ok(AttentionOutputs { y, lse: tensor(self, [batch, tokens, dims.query_heads], DType::F32, lse)? })
    }

    /// Gradients of everything that the forward read. `y` is not needed: see `softmax_backward`.
    fn attention_backward(&self, call: &AttentionBackward<'_, Self>) -> Result<AttentionInputs<Tensor<Self>>> {
        let AttentionBackward { dims, inputs, dcache, .. } = *call;
        let arrays = AttentionArrays::new(dims, inputs)?;
        let (lse, dy) = (floats(&call.outputs.lse)?, floats(call.dy)?);
        let grads: usize = inputs.iter().map(|x| x.shape().count()).sum();
        self.room(WHAT, grads.saturating_mul(3).saturating_add(gathered(self, dims, 2)))?;
        let mut dq = memory::zeros(WHAT, inputs.q.shape().count())?;
        let cached = inputs.cache.is_some();
        let mut dk = KeyValueGrads::new(dims, dims.key, cached, dcache.map(|cache| floats(&cache.k)).transpose()?)?;
        let mut dv = KeyValueGrads::new(dims, dims.value, cached, dcache.map(|cache| floats(&cache.v)).transpose()?)?;
        // Neighbours add to the same keys, so the sums are taken here, in order.
        for (segment, part) in each(self, dims, |segment| arrays.backward(segment, &lse, &dy)) {
            put(&mut dq, arrays.group * dims.key, segment.units(dims), &part.dq);
            dk.add(segment.places(dims, part.first), &part.dk);
            dv.add(segment.places(dims, part.first), &part.dv);
        }
        let array = |like: &Tensor<Self>, values| tensor(self, like.shape().clone(), like.dtype(), values);
        let ([prefix_k, cache_k, k], [prefix_v, cache_v, v]) = (dk.values, dv.values);
        let cache = |cache: &Cache<Tensor<Self>>| {
            // Which slots count is no function of anything: its gradient is 0.
            let valid = array(&cache.valid, memory::zeros(WHAT, cache.valid.shape().count())?)?;
            Ok::<_, hecate_core::Error>(Cache { k: array(&cache.k, cache_k)?, v: array(&cache.v, cache_v)?, valid })
        };
        let cache = inputs.cache.as_ref().map(cache).transpose()?;
        let prefix = |prefix: &Prefix<Tensor<Self>>| {
            Ok::<_, hecate_core::Error>(Prefix { k: array(&prefix.k, prefix_k)?, v: array(&prefix.v, prefix_v)? })
        };
        let prefix = inputs.prefix.as_ref().map(prefix).transpose()?;
        let (q, k, v) = (array(&inputs.q, dq)?, array(&inputs.k, k)?, array(&inputs.v, v)?);
        Ok(AttentionInputs { q, k, v, cache, prefix })
    }

    /// Copies alone: rows of `x`, or ones, after those that stood in front.
    fn last_rows(&self, last: &LastRows<'_, Self>) -> Result<Tensor<Self>> {
        let axes = last.shape.axes();
        let width: usize = axes[2..].iter().product();
        let ones = || memory::filled("last_rows", last.sequences.rows() * width, 1.0).map(Cow::Owned);
        let (before, x) = (last.before.map(floats).transpose()?, last.x.map_or_else(ones, floats)?);
        let values = last_rows(last.sequences, [axes[1], width], before.as_deref(), &x)?;
        let dtype = last.x.map_or(DType::F32, Tensor::dtype);
        tensor(self, last.shape.clone(), dtype, values)
    }
}

/// Where keys and values come from.
#[derive(Clone, Copy)]
enum KeySource {
    Prefix,
    Cache,
    Tokens,
}

/// Tokens of one sequence under one key-value head.
struct Segment {
    sequence: usize,
    /// Counted from the sequence's first.
    tokens: Range<usize>,
    /// The key-value head.
    head: usize,
}

impl Segment {
    /// Where its queries, outputs and their like stand: one unit is the rows of all query heads of a group.
    fn units(&self, dims: &AttentionDims) -> impl Iterator<Item = usize> + use<> {
        let (start, heads, head) = (dims.sequences.range(self.sequence).start, dims.heads, self.head);
        self.tokens.clone().map(move |t| (start + t) * heads + head)
    }

    /// Where its keys stand, from position `first` on: the array, and the row of one head in it.
    fn places<'a>(&'a self, dims: &'a AttentionDims, first: usize) -> impl Iterator<Item = (KeySource, usize)> + 'a {
        let (kept, start) = (dims.kept(), dims.sequences.range(self.sequence).start);
        let prefix = (0..dims.prefix).map(|i| (KeySource::Prefix, i));
        let window = (first..self.tokens.end + kept).map(move |at| match at.checked_sub(kept) {
            None => (KeySource::Cache, self.sequence * kept + at),
            Some(t) => (KeySource::Tokens, start + t),
        });
        prefix.chain(window).map(|(source, row)| (source, row * dims.heads + self.head))
    }
}

/// Elements that segments under way gather: `copies` of the keys and values that each sees.
fn gathered(device: &Cpu, dims: &AttentionDims, copies: usize) -> usize {
    let window = dims.options.window.min(dims.kept().saturating_add(dims.sequences.longest()));
    let rows = SEGMENT.max(window).saturating_add(window).min(2 * dims.sequences.longest() + dims.kept());
    let tasks = device.threads().min(dims.sequences.count().saturating_mul(dims.heads));
    copies.saturating_mul(tasks).saturating_mul(dims.prefix.saturating_add(rows)).saturating_mul(dims.key + dims.value)
}

/// Runs `work` on every segment, in parallel; results come in order.
fn each<T: Send>(device: &Cpu, dims: &AttentionDims, work: impl Fn(&Segment) -> T + Sync) -> Vec<(Segment, T)> {
    // Shorter segments would gather more rows than they use.
    let length = SEGMENT.max(dims.options.window);
    let mut segments = Vec::new();
    for (sequence, rows) in dims.sequences.ranges().enumerate() {
        for first in (0..rows.len()).step_by(length) {
            let tokens = first..rows.len().min(first.saturating_add(length));
            segments.extend((0..dims.heads).map(|head| Segment { sequence, tokens: tokens.clone(), head }));
        }
    }
    let one = |segment: Segment| {
        let result = work(&segment);
        (segment, result)
    };
    device.run(|| segments.into_par_iter().map(one).collect())
}

/// Writes rows of `width` elements to the units given.
fn put(out: &mut [f32], width: usize, units: impl Iterator<Item = usize>, rows: &[f32]) {
    for (unit, row) in units.zip(rows.chunks_exact(width)) {
        out[unit * width..][..width].copy_from_slice(row);
    }
}

/// The rows of `width` elements at the units given, without gaps.
fn take(x: &[f32], width: usize, units: impl Iterator<Item = usize>) -> Vec<f32> {
    let mut rows = Vec::with_capacity(units.size_hint().0 * width);
    units.for_each(|unit| rows.extend_from_slice(&x[unit * width..][..width]));
    rows
}

/// Gradients of keys, or of values, as they come together from the segments.
/// Segments are added in order: neighbours see the same window.
struct KeyValueGrads {
    /// Elements of one head's row.
    width: usize,
    /// By [`KeySource`]; empty where nobody asks.
    values: [Vec<f32>; 3],
}

impl KeyValueGrads {
    /// Starts from the gradient of the last rows, `[N, P, Hkv, width]`.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    fn new(dims: &AttentionDims, width: usize, cached: bool, last: Option<Cow<'_, [f32]>>) -> Result<Self> {
        let (row, kept, count) = (dims.heads * width, dims.kept(), dims.sequences.count());
        let cache = if cached { count * kept } else { 0 };
        let zeros = |rows: usize| memory::zeros(WHAT, rows * row);
        let mut values = [zeros(dims.prefix)?, zeros(cache)?, zeros(dims.sequences.rows())?];
        let Some(last) = last else { return Ok(Self { width, values }) };
        for (n, rows) in dims.sequences.ranges().enumerate() {
            // The last rows of a sequence are its tokens, and before them rows of its cache.
            let (new, old) = (rows.len().min(kept), kept.saturating_sub(rows.len()));
            let last = &last[n * kept * row..][..kept * row];
            values[KeySource::Tokens as usize][(rows.end - new) * row..rows.end * row]
                .copy_from_slice(&last[old * row..]);
            if cached {
                values[KeySource::Cache as usize][(n * kept + new) * row..][..old * row]
                    .copy_from_slice(&last[..old * row]);
            }
        }
        Ok(Self { width, values })
    }

    /// Adds rows `[n, width]` of one segment at their places.
    fn add(&mut self, places: impl Iterator<Item = (KeySource, usize)>, part: &[f32]) {
        for ((source, unit), part) in places.zip(part.chunks_exact(self.width)) {
            let out = &mut self.values[source as usize][unit * self.width..][..self.width];
            out.iter_mut().zip(part).for_each(|(out, x)| *out += x);
        }
    }
}

/// Inputs as 32-bit floats.
struct AttentionArrays<'a> {
    dims: &'a AttentionDims,
    /// Query heads that share keys and values.
    group: usize,
    /// `[rows, Hq, K]`.
    q: Cow<'a, [f32]>,
    /// By [`KeySource`].
    k: [Cow<'a, [f32]>; 3],
    /// By [`KeySource`].
    v: [Cow<'a, [f32]>; 3],
    /// `[N,P]`: 1 where a slot of the cache holds a token; empty without a cache.
    valid: Cow<'a, [f32]>,
}

/// Gradients from one segment: of its queries, and of the keys and values that it sees.
struct AttentionSegmentGrads {
    /// Position of the first row of `dk` and `dv` after the prefix.
    first: usize,
    /// `[tokens, group, K]`.
    dq: Vec<f32>,
    /// `[prefix + window, K]`.
    dk: Vec<f32>,
    /// `[prefix + window, V]`.
    dv: Vec<f32>,
}

impl<'a> AttentionArrays<'a> {
    /// Borrows f32 arrays and widens 16-bit ones; what is absent is empty.
    ///
    /// # Errors
    /// Those of [`floats`].
    fn new(dims: &'a AttentionDims, inputs: &'a AttentionInputs<Tensor<Cpu>>) -> Result<Self> {
        let (prefix, cache) = (inputs.prefix.as_ref(), inputs.cache.as_ref());
        // What is absent takes no rows.
        let optional = |x: Option<&'a Tensor<Cpu>>| x.map_or(Ok(Cow::Borrowed(&[][..])), floats);
        Ok(Self {
            dims,
            group: dims.query_heads / dims.heads,
            q: floats(&inputs.q)?,
            k: [optional(prefix.map(|p| &p.k))?, optional(cache.map(|c| &c.k))?, floats(&inputs.k)?],
            v: [optional(prefix.map(|p| &p.v))?, optional(cache.map(|c| &c.v))?, floats(&inputs.v)?],
            valid: optional(cache.map(|c| &c.valid))?,
        })
    }

    /// Keys and values that a segment sees, gathered, and which rows of them do not count.
    fn seen(&self, segment: &Segment) -> VisibleKeys {
        let (dims, kept) = (self.dims, self.dims.kept());
        let valid = self.valid.get(segment.sequence * kept..(segment.sequence + 1) * kept).unwrap_or(&[]);
        // Slots before the first that counts are not gathered at all.
        let first = segment.tokens.start.max(valid.iter().position(|&x| x > 0.5).unwrap_or(kept));
        let hidden = (first..valid.len()).filter(|&at| valid[at] <= 0.5).map(|at| dims.prefix + at - first);
        // Prefix, cache and tokens into one array, in the order of positions.
        let gather = |arrays: &[Cow<'_, [f32]>; 3], width: usize| -> Vec<f32> {
            let mut rows = Vec::with_capacity((dims.prefix + segment.tokens.end + kept - first) * width);
            for (source, unit) in segment.places(dims, first) {
                rows.extend_from_slice(&arrays[source as usize][unit * width..][..width]);
            }
            // Whatever lies in slots that do not count must not meet a weight of 0: it may be NaN.
            hidden.clone().for_each(|row| rows[row * width..][..width].fill(0.0));
            rows
        };
        let (keys, values) = (gather(&self.k, dims.key), gather(&self.v, dims.value));
        VisibleKeys { first, prefix: dims.prefix, kept, group: self.group, hidden: hidden.collect(), keys, values }
    }

    /// Outputs `[tokens, group, V]` and log-sums `[tokens, group]`.
    fn forward(&self, segment: &Segment) -> (Vec<f32>, Vec<f32>) {
        let (dims, seen) = (self.dims, self.seen(segment));
        let q = take(&self.q, self.group * dims.key, segment.units(dims));
        let mut lse = vec![0.0; segment.tokens.len() * self.group];
        let mut y = vec![0.0; lse.len() * dims.value];
        for block in seen.blocks(segment, dims.options.window) {
            let (m, queries) = (block.queries.len(), block.queries.clone());
            let mut scores = seen.scores(&block, rows_of(&q, dims.key, &queries), &seen.keys, dims.options.scale);
            seen.hide(&block, &mut scores);
            let y = &mut y[queries.start * dims.value..queries.end * dims.value];
            let sums = wide(
                (&mut scores, &mut lse[queries]),
                #[inline(always)]
                |(scores, lse)| softmax(scores, block.columns, lse),
            );
            // The weights are divided by their sums afterwards: a row of outputs is shorter than one of scores.
            seen.weigh(&block, Mat::new(&scores, m, block.columns), &seen.values, 1.0, y);
            for (y, sum) in y.chunks_exact_mut(dims.value).zip(sums) {
                scale(y, 1.0 / sum);
            }
        }
        (y, lse)
    }

    /// The weights again from scores and log-sums, then the products of the chain rule, block by block.
    fn backward(&self, segment: &Segment, lse: &[f32], dy: &[f32]) -> AttentionSegmentGrads {
        let (dims, seen, factor) = (self.dims, self.seen(segment), self.dims.options.scale);
        let take = |x: &[f32], width: usize| take(x, self.group * width, segment.units(dims));
        let (q, dy, lse) = (take(&self.q, dims.key), take(dy, dims.value), take(lse, 1));
        let (mut dq, mut dk) = (vec![0.0; q.len()], vec![0.0; seen.keys.len()]);
        let mut dv = vec![0.0; seen.values.len()];
        for block in seen.blocks(segment, dims.options.window) {
            let (m, queries) = (block.queries.len(), &block.queries);
            let (q, dy) = (rows_of(&q, dims.key, queries), rows_of(&dy, dims.value, queries));
            // The scores again, and with them the weights: they are never kept.
            let mut p = seen.scores(&block, q, &seen.keys, factor);
            seen.hide(&block, &mut p);
            let mut ds = seen.scores(&block, dy, &seen.values, 1.0);
            wide(
                (&mut p, &mut ds),
                #[inline(always)]
                |(p, ds)| softmax_backward(p, ds, block.columns, &lse[queries.clone()]),
            );
            let (p, ds) = (Mat::new(&p, m, block.columns), Mat::new(&ds, m, block.columns));
            let dq = &mut dq[queries.start * dims.key..queries.end * dims.key];
            seen.weigh(&block, ds, &seen.keys, factor, dq);
            // Rows of several blocks overlap: these products add.
            seen.spread(&block, ds, q, factor, &mut dk);
            seen.spread(&block, p, dy, 1.0, &mut dv);
        }
        AttentionSegmentGrads { first: seen.first, dq, dk, dv }
    }
}
