//! `q8_0`: a 16-bit scale `d`, then 32 whole numbers of 8 bits with a sign; a value is `d q`.

use super::{half_at, put_half};

pub(super) const VALUES: usize = 32;
pub(super) const BYTES: usize = 2 + VALUES;

/// Largest whole number: −128 is not used, so that both signs reach as far.
const LEVELS: f32 = 127.0;

pub(super) fn quantize(x: &[f32], block: &mut [u8]) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let d = most / LEVELS;
    // By the scale before it was rounded, as ggml does.
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_half(block, 0, d);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
}

pub(super) fn dequantize(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &q) in values.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q as i8);
    }
}
