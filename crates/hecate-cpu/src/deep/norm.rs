//! The layer norm without parameters, and its second derivative: equation (43).

use crate::rows::{axpy, dot};
use hecate_core::rules::NORM_EPSILON;

/// `x̂` in place of `o`; `s` is returned.
#[inline(always)]
pub(super) fn normalise(o: &mut [f32]) -> f32 {
    let mean = mean(o);
    o.iter_mut().for_each(|o| *o -= mean);
    let deviation = (dot(o, o) / o.len() as f32 + NORM_EPSILON).sqrt();
    let inverse = deviation.recip();
    o.iter_mut().for_each(|o| *o *= inverse);
    deviation
}

/// `out += J e`.
#[inline(always)]
pub(super) fn add_jacobian(normed: &[f32], deviation: f32, e: &[f32], out: &mut [f32]) {
    let (mean, along) = (mean(e), dot(normed, e) / e.len() as f32);
    for ((out, x), e) in out.iter_mut().zip(normed).zip(e) {
        *out += (e - mean - x * along) / deviation;
    }
}

/// `out = ∂⟨du_o, J(o) u⟩/∂o`, with `u_o = J u` and `du_o` its gradient; `scratch` is as long.
#[inline(always)]
pub(super) fn bend(
    normed: &[f32],
    deviation: f32,
    u: &[f32],
    u_o: &[f32],
    du_o: &[f32],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let width = u.len() as f32;
    let factor = -1.0 / (deviation * width);
    scratch.fill(0.0);
    axpy(scratch, factor * dot(normed, u), du_o);
    axpy(scratch, factor * dot(normed, du_o), u);
    let ds = -(dot(du_o, u_o) + dot(scratch, normed)) / deviation;
    let mean = mean(scratch);
    for ((out, x), dx) in out.iter_mut().zip(normed).zip(scratch) {
        *out = (*dx - mean) / deviation + ds * x / width;
    }
}

#[inline(always)]
fn mean(x: &[f32]) -> f32 {
    x.iter().sum::<f32>() / x.len() as f32
}
