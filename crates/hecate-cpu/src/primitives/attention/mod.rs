//! Softmax attention over a sliding window.
//!
//! A sequence is cut into segments; one segment under one key-value head is one task. A task lays the keys and values
//! it sees one behind another: the prefix, then the window in front of its first token, then its own tokens. It takes
//! its queries in blocks: the keys that the tokens of a block see are one stretch of rows (and the prefix), so
//! scores, outputs and gradients are products of matrices, of which the corners outside the window go unused.
//!
//! Positions count from the first row of a sequence's cache: token `t` stands at `t + P` and sees `t ..= t + P`.

mod seen;

use self::seen::{Seen, rows_of, softmax, softmax_backward};
use super::last_rows;
use crate::{
    Cpu,
    device::{floats, tensor},
    product::Mat,
    rows::scale,
    simd::wide,
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Attention, AttentionDims, AttentionInputs, Cache, Prefix},
};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Tokens in a segment, unless the window is longer.
const SEGMENT: usize = 256;

impl Attention for Cpu {
    fn attention(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let arrays = Arrays::new(dims, inputs);
        let mut y = vec![0.0; dims.sequences.rows() * dims.query_heads * dims.value];
        let mut lse = vec![0.0; dims.sequences.rows() * dims.query_heads];
        for (segment, (part, sums)) in each(self, dims, |segment| arrays.forward(segment)) {
            put(&mut y, arrays.group * dims.value, segment.units(dims), &part);
            put(&mut lse, arrays.group, segment.units(dims), &sums);
        }
        let [batch, tokens] = [0, 1].map(|axis| inputs.q.shape().axes()[axis]);
        let y = tensor(self, [batch, tokens, dims.query_heads, dims.value], inputs.q.dtype(), y);
        Ok((y, tensor(self, [batch, tokens, dims.query_heads], DType::F32, lse)))
    }

    fn attention_backward(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
        _y: &Tensor<Self>,
        lse: &Tensor<Self>,
        dy: &Tensor<Self>,
        dcache: Option<&Cache<Tensor<Self>>>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        let arrays = Arrays::new(dims, inputs);
        let (lse, dy) = (floats(lse), floats(dy));
        let mut dq = vec![0.0; inputs.q.shape().count()];
        let cached = inputs.cache.is_some();
        let mut dk = Grads::new(dims, dims.key, cached, dcache.map(|cache| floats(&cache.k)));
        let mut dv = Grads::new(dims, dims.value, cached, dcache.map(|cache| floats(&cache.v)));
        for (segment, part) in each(self, dims, |segment| arrays.backward(segment, &lse, &dy)) {
            put(&mut dq, arrays.group * dims.key, segment.units(dims), &part.dq);
            dk.add(segment.places(dims, part.first), &part.dk);
            dv.add(segment.places(dims, part.first), &part.dv);
        }
        let array = |like: &Tensor<Self>, values| tensor(self, like.shape().clone(), like.dtype(), values);
        let ([prefix_k, cache_k, k], [prefix_v, cache_v, v]) = (dk.values, dv.values);
        let cache = inputs.cache.as_ref().map(|cache| {
            let valid = vec![0.0; cache.valid.shape().count()];
            Cache { k: array(&cache.k, cache_k), v: array(&cache.v, cache_v), valid: array(&cache.valid, valid) }
        });
        let prefix = inputs.prefix.as_ref();
        let prefix = prefix.map(|prefix| Prefix { k: array(&prefix.k, prefix_k), v: array(&prefix.v, prefix_v) });
        let (q, k, v) = (array(&inputs.q, dq), array(&inputs.k, k), array(&inputs.v, v));
        Ok(AttentionInputs { q, k, v, cache, prefix })
    }

    fn attention_cache(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<Cache<Tensor<Self>>> {
        let (sequences, kept, cache) = (&dims.sequences, dims.kept(), inputs.cache.as_ref());
        let last = |before: Option<&Tensor<Self>>, x: &Tensor<Self>, width| {
            let values = last_rows(sequences, [kept, dims.heads * width], before.map(floats).as_deref(), &floats(x));
            tensor(self, [sequences.count(), kept, dims.heads, width], x.dtype(), values)
        };
        let k = last(cache.map(|cache| &cache.k), &inputs.k, dims.key);
        let v = last(cache.map(|cache| &cache.v), &inputs.v, dims.value);
        let before = cache.map(|cache| floats(&cache.valid));
        let valid = last_rows(sequences, [kept, 1], before.as_deref(), &vec![1.0; sequences.rows()]);
        Ok(Cache { k, v, valid: tensor(self, [sequences.count(), kept], DType::F32, valid) })
    }
}

/// Where keys and values come from.
#[derive(Clone, Copy)]
enum Source {
    Prefix,
    Cache,
    Tokens,
}

/// Tokens of one sequence under one key-value head.
struct Segment {
    sequence: usize,
    /// Counted from the sequence's first.
    tokens: Range<usize>,
    head: usize,
}

impl Segment {
    /// Where its queries, outputs and their like stand, counted in groups of query heads that share keys.
    fn units(&self, dims: &AttentionDims) -> impl Iterator<Item = usize> + use<> {
        let (start, heads, head) = (dims.sequences.range(self.sequence).start, dims.heads, self.head);
        self.tokens.clone().map(move |t| (start + t) * heads + head)
    }

    /// Where its keys stand, from position `first` on: array, and row of one head in it.
    fn places<'a>(&'a self, dims: &'a AttentionDims, first: usize) -> impl Iterator<Item = (Source, usize)> + 'a {
        let (kept, start) = (dims.kept(), dims.sequences.range(self.sequence).start);
        let prefix = (0..dims.prefix).map(|i| (Source::Prefix, i));
        let window = (first..self.tokens.end + kept).map(move |at| match at.checked_sub(kept) {
            None => (Source::Cache, self.sequence * kept + at),
            Some(t) => (Source::Tokens, start + t),
        });
        prefix.chain(window).map(|(source, row)| (source, row * dims.heads + self.head))
    }
}

/// Runs `work` on every segment, in parallel; results come in order.
fn each<T: Send>(device: &Cpu, dims: &AttentionDims, work: impl Fn(&Segment) -> T + Sync) -> Vec<(Segment, T)> {
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

/// Writes rows of `width` numbers to the units given.
fn put(out: &mut [f32], width: usize, units: impl Iterator<Item = usize>, rows: &[f32]) {
    for (unit, row) in units.zip(rows.chunks_exact(width)) {
        out[unit * width..][..width].copy_from_slice(row);
    }
}

/// The rows of `width` numbers at the units given.
fn take(x: &[f32], width: usize, units: impl Iterator<Item = usize>) -> Vec<f32> {
    let mut rows = Vec::with_capacity(units.size_hint().0 * width);
    units.for_each(|unit| rows.extend_from_slice(&x[unit * width..][..width]));
    rows
}

/// Gradients of keys, or of values, as they come together from the segments.
struct Grads {
    width: usize,
    /// By [`Source`]; empty where nobody asks.
    values: [Vec<f32>; 3],
}

impl Grads {
    /// Starts from the gradient of the last rows, `[N, P, Hkv, width]`.
    fn new(dims: &AttentionDims, width: usize, cached: bool, last: Option<Cow<'_, [f32]>>) -> Self {
        let (row, kept, count) = (dims.heads * width, dims.kept(), dims.sequences.count());
        let cache = if cached { count * kept } else { 0 };
        let mut values = [dims.prefix, cache, dims.sequences.rows()].map(|rows| vec![0.0; rows * row]);
        let Some(last) = last else { return Self { width, values } };
        for (n, rows) in dims.sequences.ranges().enumerate() {
            let (new, old) = (rows.len().min(kept), kept.saturating_sub(rows.len()));
            let last = &last[n * kept * row..][..kept * row];
            values[Source::Tokens as usize][(rows.end - new) * row..rows.end * row].copy_from_slice(&last[old * row..]);
            if cached {
                values[Source::Cache as usize][(n * kept + new) * row..][..old * row]
                    .copy_from_slice(&last[..old * row]);
            }
        }
        Self { width, values }
    }

    fn add(&mut self, places: impl Iterator<Item = (Source, usize)>, part: &[f32]) {
        for ((source, unit), part) in places.zip(part.chunks_exact(self.width)) {
            let out = &mut self.values[source as usize][unit * self.width..][..self.width];
            out.iter_mut().zip(part).for_each(|(out, x)| *out += x);
        }
    }
}

/// Inputs as 32-bit floats.
struct Arrays<'a> {
    dims: &'a AttentionDims,
    /// Query heads that share keys and values.
    group: usize,
    q: Cow<'a, [f32]>,
    /// By [`Source`].
    k: [Cow<'a, [f32]>; 3],
    /// By [`Source`].
    v: [Cow<'a, [f32]>; 3],
    valid: Cow<'a, [f32]>,
}

/// Gradients from one segment: `dq` of its queries, `dk` and `dv` of its keys, whose positions begin at `first`.
struct Part {
    first: usize,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl<'a> Arrays<'a> {
    fn new(dims: &'a AttentionDims, inputs: &'a AttentionInputs<Tensor<Cpu>>) -> Self {
        let (prefix, cache) = (inputs.prefix.as_ref(), inputs.cache.as_ref());
        let optional = |x: Option<&'a Tensor<Cpu>>| x.map_or(Cow::Borrowed(&[][..]), floats);
        Self {
            dims,
            group: dims.query_heads / dims.heads,
            q: floats(&inputs.q),
            k: [optional(prefix.map(|p| &p.k)), optional(cache.map(|c| &c.k)), floats(&inputs.k)],
            v: [optional(prefix.map(|p| &p.v)), optional(cache.map(|c| &c.v)), floats(&inputs.v)],
            valid: optional(cache.map(|c| &c.valid)),
        }
    }

    /// Keys, values, and which of them count.
    fn seen(&self, segment: &Segment) -> Seen {
        let (dims, kept) = (self.dims, self.dims.kept());
        let valid = self.valid.get(segment.sequence * kept..(segment.sequence + 1) * kept).unwrap_or(&[]);
        let first = segment.tokens.start.max(valid.iter().position(|&x| x > 0.5).unwrap_or(kept));
        let hidden = (first..valid.len()).filter(|&at| valid[at] <= 0.5).map(|at| dims.prefix + at - first);
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
        Seen { first, prefix: dims.prefix, kept, group: self.group, hidden: hidden.collect(), keys, values }
    }

    /// Outputs `[tokens, group, dv]` and log-sums `[tokens, group]`.
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
            seen.weigh(&block, Mat::new(&scores, m, block.columns), &seen.values, 1.0, y);
            for (y, sum) in y.chunks_exact_mut(dims.value).zip(sums) {
                scale(y, 1.0 / sum);
            }
        }
        (y, lse)
    }

    fn backward(&self, segment: &Segment, lse: &[f32], dy: &[f32]) -> Part {
        let (dims, seen, factor) = (self.dims, self.seen(segment), self.dims.options.scale);
        let take = |x: &[f32], width: usize| take(x, self.group * width, segment.units(dims));
        let (q, dy, lse) = (take(&self.q, dims.key), take(dy, dims.value), take(lse, 1));
        let (mut dq, mut dk) = (vec![0.0; q.len()], vec![0.0; seen.keys.len()]);
        let mut dv = vec![0.0; seen.values.len()];
        for block in seen.blocks(segment, dims.options.window) {
            let (m, queries) = (block.queries.len(), &block.queries);
            let (q, dy) = (rows_of(&q, dims.key, queries), rows_of(&dy, dims.value, queries));
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
            seen.spread(&block, ds, q, factor, &mut dk);
            seen.spread(&block, p, dy, 1.0, &mut dv);
        }
        Part { first: seen.first, dq, dk, dv }
    }
}
