//! Softmax attention over a sliding window.
//!
//! Queries go in blocks of consecutive tokens under one key-value head ([`blocks`]), which are parallel.
//! The keys that a block sees are runs of rows: of the prefix, of the cache, of the tokens in front of it and its own.
//! Scores, outputs and gradients are products of matrices over a run, whose corners outside the window are hidden.
//! Results go over a block's runs one after another ([`forward`]). Gradients of queries and of keys come together where
//! blocks of both meet ([`backward`]).
//!
//! Positions count from the first row of a sequence's cache, which has `P` rows.
//! Token `t` stands at `t + P` and sees `t ..= t + P`.
//!
//! Query heads that share a key-value head stand side by side: `group` of them are rows of one product.
//! The forward keeps `log Σ eˢ` of each query, so that the backward makes the weights without another maximum.

mod backward;
mod blocks;
mod forward;
#[cfg(test)]
mod tests;

use self::{
    backward::Kept,
    blocks::{BLOCK_SCORES, filled_slots},
};
use super::last_rows;
use crate::{
    Cpu,
    device::{floats, tensor},
    product::Mat,
};
use hecate_core::{
    Checked, DType, Result, Tensor, memory,
    primitives::{
        Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOutputs, Cache, LastRows, Prefix,
    },
};
use std::{borrow::Cow, ops::Range};

/// The name in messages.
const WHAT: &str = "attention";

impl Attention for Cpu {
    /// `y [B,T,Hq,V]` and the queries' log-sums `[B,T,Hq]`.
    fn attention(
        &self,
        _: Checked<Self>,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<AttentionOutputs<Tensor<Self>>> {
        let arrays = AttentionArrays::new(dims, inputs)?;
        let (y, lse) = arrays.outputs(self)?;
        let [batch, tokens] = [0, 1].map(|axis| inputs.q.shape().axes()[axis]);
        let y = tensor(self, [batch, tokens, dims.query_heads, dims.value], inputs.q.dtype(), y)?;
        Ok(AttentionOutputs { y, lse: tensor(self, [batch, tokens, dims.query_heads], DType::F32, lse)? })
    }

    /// Gradients of everything that the forward read.
    fn attention_backward(
        &self,
        _: Checked<Self>,
        call: &AttentionBackward<'_, Self>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        let AttentionBackward { dims, inputs, dcache, .. } = *call;
        let arrays = AttentionArrays::new(dims, inputs)?;
        let (lse, dy) = (floats(&call.outputs.lse)?, floats(call.dy)?);
        // `D = dy·y` of a `y` that was rounded to 16 bits would be less exact than all the rest.
        let y = match call.outputs.y.dtype() {
            DType::F32 => floats(&call.outputs.y)?,
            _ => Cow::Owned(arrays.outputs(self)?.0),
        };
        let grads: usize = inputs.iter().map(|x| x.shape().count()).sum();
        // Blocks have gradients, queries and outputs of their own, and every thread meetings under way.
        let blocks = inputs.q.shape().count().saturating_add(dy.len().saturating_mul(2));
        self.room(WHAT, grads.saturating_mul(3).saturating_add(blocks).saturating_add(arrays.scores(self)))?;
        let mut dq = memory::zeros(WHAT, inputs.q.shape().count())?;
        let cached = inputs.cache.is_some();
        let mut dk = KeyValueGrads::new(dims, dims.key, cached, dcache.map(|cache| floats(&cache.k)).transpose()?)?;
        let mut dv = KeyValueGrads::new(dims, dims.value, cached, dcache.map(|cache| floats(&cache.v)).transpose()?)?;
        let kept = Kept { y: &y, lse: &lse, dy: &dy };
        // Sequences add to the same prefix, so the sums are taken here, in order.
        for grads in self.run(|| arrays.backward(&kept)) {
            for query in &grads.queries {
                put(&mut dq, arrays.group * dims.key, query.block.units(dims), &query.dq);
            }
            for side in grads.keys.iter().flatten() {
                let units = || side.run.rows.clone().map(|row| row * dims.heads + grads.head);
                dk.add(side.run.source, units(), &side.dk);
                dv.add(side.run.source, units(), &side.dv);
            }
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
    fn last_rows(&self, _: Checked<Self>, last: &LastRows<'_, Self>) -> Result<Tensor<Self>> {
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
#[derive(Clone, Copy, Debug, PartialEq)]
enum KeySource {
    Prefix,
    Cache,
    Tokens,
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

/// Gradients of keys, or of values, as they come together from the heads.
/// Sequences are added in order: all see the same prefix.
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

    /// Adds rows `[n, width]` at their units of an array.
    fn add(&mut self, source: KeySource, units: impl Iterator<Item = usize>, part: &[f32]) {
        for (unit, part) in units.zip(part.chunks_exact(self.width)) {
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
    /// Slots of each sequence's cache that hold tokens.
    filled: Vec<Vec<Range<usize>>>,
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
            filled: filled_slots(&dims.sequences, dims.kept(), &optional(cache.map(|c| &c.valid))?),
        })
    }

    /// Rows of keys `[n, K]` and of values `[n, V]` of one head, where they lie.
    fn keys_and_values(&self, source: KeySource, rows: Range<usize>, head: usize) -> (Mat<'_>, Mat<'_>) {
        let heads = self.dims.heads;
        let (k, v) = (self.dims.key, self.dims.value);
        (
            Mat::with_stride(&self.k[source as usize][(rows.start * heads + head) * k..], rows.len(), k, heads * k),
            Mat::with_stride(&self.v[source as usize][(rows.start * heads + head) * v..], rows.len(), v, heads * v),
        )
    }

    /// Elements of scores that threads hold at once: two arrays each.
    fn scores(&self, device: &Cpu) -> usize {
        device.threads().saturating_mul(2 * BLOCK_SCORES * self.group)
    }

    /// `y [rows, Hq, V]` and log-sums `[rows, Hq]`.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    fn outputs(&self, device: &Cpu) -> Result<(Vec<f32>, Vec<f32>)> {
        let (dims, group) = (self.dims, self.group);
        let queries = dims.sequences.rows() * dims.query_heads;
        // Blocks have results of their own, which are put together after them.
        device.room(WHAT, queries.saturating_mul(2 * (dims.value + 1)).saturating_add(self.scores(device)))?;
        let mut y = memory::zeros(WHAT, queries * dims.value)?;
        let mut lse = memory::zeros(WHAT, queries)?;
        for (block, (part, sums)) in device.run(|| self.forward()) {
            put(&mut y, group * dims.value, block.units(dims), &part);
            put(&mut lse, group, block.units(dims), &sums);
        }
        Ok((y, lse))
    }
}
