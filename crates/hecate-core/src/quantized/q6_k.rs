//! `q6_k`: sixteen groups of 16 values, each with a scale of 8 bits.
//!
//! ```text
//! bytes 0..128     lower four bits of values
//! bytes 128..192   upper two bits
//! bytes 192..208   s of the groups, 8 bits with a sign
//! bytes 208, 209   d, a 16-bit float
//! ```
//!
//! A value is `d s (q − 32)`. Of each half of 128 values, value `32 k + i` has its lower bits in byte `32 (k mod 2) + i`, in
//! its lower half for `k < 2` and its upper half else, and its upper bits in bits `2 k` of byte `i`.

use super::{half_at, put_half, ratio};

/// Values of a group.
const GROUP: usize = 16;
const GROUPS: usize = super::SUPER_BLOCK / GROUP;
/// Values of a half.
const HALF: usize = 128;
/// Where the upper bits, the scales and `d` are.
const UPPER: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

pub(super) const BYTES: usize = D + 2;

/// Lowest and highest whole number.
const LOW: f32 = -32.0;
const HIGH: f32 = 31.0;

/// Scales that are tried for a group, to either side of the one that spans it, and how far they are apart, in levels.
const TRIES: i32 = 9;
const APART: f32 = 0.1;

pub(super) fn quantize(x: &[f32], block: &mut [u8]) {
    let mut fits = [0.0f32; GROUPS];
    for (fit, x) in fits.iter_mut().zip(x.chunks_exact(GROUP)) {
        *fit = fit_scale(x);
    }
    // The scale of the largest magnitude becomes −128, which is one further than the other sign reaches.
    let largest = fits.iter().fold(0.0f32, |most, &fit| if fit.abs() > most.abs() { fit } else { most });
    let d = put_half(block, D, largest / -128.0);
    let scales = fits.map(|fit| ratio(fit, d).round().clamp(-128.0, 127.0) as i8);
    block[..SCALES].fill(0);
    for (j, x) in x.chunks_exact(GROUP).enumerate() {
        block[SCALES + j] = scales[j] as u8;
        for (i, x) in x.iter().enumerate() {
            let q = (ratio(*x, d * f32::from(scales[j])).round().clamp(LOW, HIGH) - LOW) as u8;
            let (lower, lower_shift, upper, upper_shift) = place(GROUP * j + i);
            block[lower] |= (q & 15) << lower_shift;
            block[upper] |= q >> 4 << upper_shift;
        }
    }
}

pub(super) fn dequantize(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, D);
    for (i, value) in values.iter_mut().enumerate() {
        let (lower, lower_shift, upper, upper_shift) = place(i);
        let q = block[lower] >> lower_shift & 15 | (block[upper] >> upper_shift & 3) << 4;
        *value = d * f32::from(block[SCALES + i / GROUP] as i8) * (f32::from(q) + LOW);
    }
}

/// Byte and bit of value `i`'s lower four bits, then of its upper two.
fn place(i: usize) -> (usize, usize, usize, usize) {
    let (half, quarter, at) = (i / HALF, i % HALF / 32, i % 32);
    (64 * half + 32 * (quarter % 2) + at, 4 * (quarter / 2), UPPER + 32 * half + at, 2 * quarter)
}

/// The one of several scales with the least sum of squared errors for the values of a group.
fn fit_scale(x: &[f32]) -> f32 {
    let largest = x.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::NEG_INFINITY, 0.0);
    for i in -TRIES..=TRIES {
        let inverse = (LOW + APART * i as f32) / largest;
        // Of given whole numbers the best scale is (Σ x q) / (Σ q²), and what it saves of Σ x² is (Σ x q)² / (Σ q²).
        let [mut xq, mut qq] = [0.0f32; 2];
        for &x in x {
            let q = (inverse * x).round().clamp(LOW, HIGH);
            xq += x * q;
            qq += q * q;
        }
        let gain = ratio(xq * xq, qq);
        if gain > best.0 {
            best = (gain, ratio(xq, qq));
        }
    }
    best.1
}
