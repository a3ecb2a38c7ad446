//! The layer norm without parameters, and its second derivative: equation (43).
//!
//! For `o [V]` with mean `μ` and deviation `s`, the norm is `x̂ = (o − μ)/s`.
//! Its Jacobian is symmetric, so the forward's gradient and the backward use the same product `J e`.
//! `s` has `ε` under its root, so rows of equal elements have a finite gradient.

use crate::rows::{axpy, dot, sum};
use hecate_core::rules::NORM_EPSILON;

/// `x̂ [V]` in place of `o [V]`; the deviation `s` is returned.
#[inline(always)]
pub(super) fn normalise(o: &mut [f32]) -> f32 {
    let mean = mean(o);
    o.iter_mut().for_each(|o| *o -= mean);
    let deviation = (dot(o, o) / o.len() as f32 + NORM_EPSILON).sqrt();
    let inverse = deviation.recip();
    o.iter_mut().for_each(|o| *o *= inverse);
    deviation
}

/// `out += J e`, all `[V]`: `J e = (e − mean(e) − x̂ mean(x̂∘e))/s`.
#[inline(always)]
pub(super) fn add_jacobian(normed: &[f32], deviation: f32, e: &[f32], out: &mut [f32]) {
    let (mean, along) = (mean(e), dot(normed, e) / e.len() as f32);
    for ((out, x), e) in out.iter_mut().zip(normed).zip(e) {
        *out += (e - mean - x * along) / deviation;
    }
}

/// `out = ∂⟨du_o, J(o) u⟩/∂o`, all `[V]`, with `u_o = J u` and `du_o` its gradient.
///
/// `J` depends on `o` through `x̂` and through `s`: the two sums below are those two ways.
/// `scratch [V]` holds the first of them.
#[inline(always)]
pub(super) fn second_derivative(
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

/// `Σ x / V`.
#[inline(always)]
fn mean(x: &[f32]) -> f32 {
    (sum(x) / x.len() as f64) as f32
}
