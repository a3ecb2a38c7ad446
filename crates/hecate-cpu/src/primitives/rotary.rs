//! Rotary positions: pairs `(x[i], x[i + d/2])` of every head turned by angles that grow with the token.
//!
//! Cosines and sines of a call's tokens are made once, in 64 bits, and shared by its sequences and heads.

use super::{fill, fill_pair, places};
use crate::{
    Cpu,
    device::{floats, pooled_tensor},
};
use hecate_core::{
    Checked, Result, Tensor, memory,
    primitives::{Rotary, RotaryDims},
};
use std::collections::BTreeMap;

/// Making an angle takes as long as this many other elements.
const ANGLE: usize = 32;

impl Rotary for Cpu {
    /// The backward is the same call with `sign` turned around.
    /// `x [rows, H, d]` with an even `d`, as core has checked; the result is like it.
    fn rotary(&self, _: Checked<Self>, dims: &RotaryDims, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, half, row) = (floats(x)?, dims.width / 2, dims.heads * dims.width);
        let tables = tables(self, dims)?;
        let mut y = self.take("rotary", values.len())?;
        fill(
            self,
            row,
            &mut y,
            #[inline(always)]
            |first, y| {
                // The rows of this block, with their sequence and token.
                let range = first..first + y.len() / row;
                let rows = y.chunks_exact_mut(row).zip(values[first * row..].chunks_exact(row));
                for ((y, x), (n, t)) in rows.zip(places(&dims.sequences, range)) {
                    // Sequences that start at the same offset share a table.
                    let (cos, sin) = &tables[&dims.offsets[n]];
                    let (cos, sin) = (&cos[t * half..][..half], &sin[t * half..][..half]);
                    for (y, x) in y.chunks_exact_mut(dims.width).zip(x.chunks_exact(dims.width)) {
                        rotate(y, x, cos, sin);
                    }
                }
            },
        );
        pooled_tensor(self, x.shape().clone(), x.dtype(), y)
    }
}

/// One head `[d]`: pairs `(x[i], x[i + d/2])` by the angles given, `[d/2]` each.
#[inline(always)]
fn rotate(y: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    // A pair is an element of the first half and its partner in the second, as in GPT-NeoX.
    let ((y, z), (u, v)) = (y.split_at_mut(half), x.split_at(half));
    for i in 0..half {
        y[i] = u[i] * cos[i] - v[i] * sin[i];
        z[i] = u[i] * sin[i] + v[i] * cos[i];
    }
}

/// For each offset in use, the cosines and the sines of its tokens, `[T, d/2]` both.
///
/// # Errors
/// [`hecate_core::Error::OutOfMemory`].
fn tables(device: &Cpu, dims: &RotaryDims) -> Result<BTreeMap<usize, (Vec<f32>, Vec<f32>)>> {
    // The longest sequence of each offset decides how many angles are made.
    let mut longest = BTreeMap::new();
    for (range, &offset) in dims.sequences.ranges().zip(&dims.offsets) {
        let tokens: &mut usize = longest.entry(offset).or_default();
        *tokens = range.len().max(*tokens);
    }
    let (half, step) = (dims.width / 2, -2.0 / dims.width as f64);
    // Angles are products of whole tokens and 64-bit frequencies, so that late tokens are as exact as early ones.
    let frequency = |i| f64::from(dims.sign) * f64::from(dims.base).powf(step * i as f64);
    let frequencies: Vec<f64> = (0..half).map(frequency).collect();
    // Two arrays a table, filled in parallel over tokens.
    let table = |(offset, tokens): (usize, usize)| {
        let zeros = || memory::zeros("rotary", tokens * half);
        let (mut cos, mut sin) = (zeros()?, zeros()?);
        fill_pair(device, half * ANGLE, (half, &mut cos), (half, &mut sin), |first, cos, sin| {
            for (t, (cos, sin)) in (offset + first..).zip(cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half))) {
                for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&frequencies) {
                    let (s, c) = (t as f64 * frequency).sin_cos();
                    (*cos, *sin) = (c as f32, s as f32);
                }
            }
        });
        Ok((offset, (cos, sin)))
    };
    longest.into_iter().map(table).collect()
}
