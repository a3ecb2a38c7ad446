//! Attentional biases: what a memory writes for an error, and its derivative. Equations (47)–(52), and (94) after them.
//!
//! `e [V]` is the prediction minus the value, and `u = ψ(e)` the gradient of the bias at it.
//! L2 and L_p act element by element; Huber's norms look at the whole row.
//! Where a bias has a kink, the derivative of the side that holds there is taken.

use crate::{
    primitives::exp::{exp, ln},
    rows::{axpy, dot, scale},
};
use hecate_core::rules::{AttentionalBias, Huber};

/// `m^power` for normal `m > 0`.
/// The usual exponents take a root or a product; the others are made of functions that vectorise, as the library's is not.
#[inline(always)]
pub(super) fn power(m: f32, power: f32) -> f32 {
    match power {
        0.0 => 1.0,
        0.5 => m.sqrt(),
        1.0 => m,
        -0.5 => m.sqrt().recip(),
        _ => exp(power * ln(m)),
    }
}

/// `u = ψ(e)`, `[V]` each. `delta` is Huber's threshold, which the other biases do not read.
#[inline(always)]
pub(super) fn inner_grad(bias: AttentionalBias, error: &[f32], delta: f32, u: &mut [f32]) {
    let pairs = u.iter_mut().zip(error);
    match bias {
        // The gradient of ½|e|².
        AttentionalBias::L2 => u.copy_from_slice(error),
        // |e|^p, with `ε` under the power: smooth at 0.
        AttentionalBias::Lp { p, epsilon, tanh: false } => {
            pairs.for_each(|(u, e)| *u = p * e * power(e * e + epsilon, (p - 2.0) / 2.0));
        }
        // The sign of `e` as a steep tanh, times a power of its size.
        AttentionalBias::Lp { p, epsilon, tanh: true } => {
            pairs.for_each(|(u, e)| *u = p * (10.0 * e).tanh() * power(e * e + epsilon, (p - 1.0) / 2.0));
        }
        // Each element is clamped by itself.
        AttentionalBias::Huber(Huber::Coordinate) => pairs.for_each(|(u, e)| *u = e.clamp(-delta, delta)),
        AttentionalBias::Huber(kind) => {
            // The row as a whole: within the threshold it is L2, outside it is bounded.
            let length = dot(error, error).sqrt();
            match kind {
                _ if length <= delta => u.copy_from_slice(error),
                Huber::Norm => pairs.for_each(|(u, e)| *u = delta / length * e),
                _ => pairs.for_each(|(u, e)| *u = delta * sign(*e)),
            }
        }
    }
}

/// `de += ψ′(e)ᵀ du`, `[V]` each. Returns the gradient of the threshold, 0 where there is none.
#[inline(always)]
pub(super) fn inner_grad_vjp(bias: AttentionalBias, error: &[f32], delta: f32, du: &[f32], de: &mut [f32]) -> f32 {
    let triples = de.iter_mut().zip(error).zip(du);
    match bias {
        AttentionalBias::L2 => {
            axpy(de, 1.0, du);
            0.0
        }
        AttentionalBias::Lp { p, epsilon, tanh: false } => {
            triples.for_each(|((de, e), du)| {
                // The derivative of p e m^((p−2)/2), with `m = e² + ε` held away from 0.
                let m = e * e + epsilon;
                *de += du * p * power(m, (p - 2.0) / 2.0) * (1.0 + (p - 2.0) * (e * e / m));
            });
            0.0
        }
        AttentionalBias::Lp { p, epsilon, tanh: true } => {
            triples.for_each(|((de, e), du)| {
                let (m, t) = (e * e + epsilon, (10.0 * e).tanh());
                // The derivative of tanh(10 e) and that of the power, by the product rule.
                let steep = 10.0 * (1.0 - t * t) * power(m, (p - 1.0) / 2.0);
                *de += du * p * (steep + t * (p - 1.0) * e * power(m, (p - 3.0) / 2.0));
            });
            0.0
        }
        AttentionalBias::Huber(Huber::Coordinate) => {
            // Sixteen sums side by side, as in `dot`.
            let mut ddelta = [0.0; 16];
            let ((de, last), (error, last_error), (du, last_du)) =
                (de.as_chunks_mut::<16>(), error.as_chunks::<16>(), du.as_chunks::<16>());
            let whole = de.iter_mut().zip(error).zip(du);
            whole.for_each(|((de, error), du)| clamp_vjp(error, delta, du, de, &mut ddelta));
            clamp_vjp(last_error, delta, last_du, last, &mut ddelta);
            ddelta.iter().sum()
        }
        // The same cases as in the forward, on the same side of the threshold.
        AttentionalBias::Huber(kind) => {
            let length = dot(error, error).sqrt();
            match kind {
                _ if length <= delta => {
                    axpy(de, 1.0, du);
                    0.0
                }
                Huber::Norm => {
                    // δ e/|e| turns with the error, but does not grow with it.
                    let along = dot(error, du) / length;
                    axpy(de, delta / length, du);
                    axpy(de, -delta / (length * length) * along, error);
                    along
                }
                _ => error.iter().zip(du).map(|(e, du)| sign(*e) * du).sum(),
            }
        }
    }
}

/// Back through clamps of up to sixteen elements: `de` is added to, and sums for the threshold, one an element.
#[inline(always)]
fn clamp_vjp(error: &[f32], delta: f32, du: &[f32], de: &mut [f32], ddelta: &mut [f32; 16]) {
    for ((ddelta, de), (e, du)) in ddelta.iter_mut().zip(de).zip(error.iter().zip(du)) {
        // Outside the threshold an element is ±δ: its gradient goes to δ alone.
        let inside = e.abs() <= delta;
        *de += if inside { *du } else { 0.0 };
        *ddelta += if inside { 0.0 } else { du * sign(*e) };
    }
}

/// `u ← s u` of (94) for `u [V]`, or with no `c` nothing. Returns `s`, 1 then.
#[inline(always)]
pub(super) fn clip(clip: Option<f32>, u: &mut [f32]) -> f32 {
    let Some(c) = clip else { return 1.0 };
    // The ratio first: lengths and `c` may be of any size, their squares may not.
    let ratio = dot(u, u).sqrt() / c;
    let shrink = (1.0 + ratio * ratio).sqrt().recip();
    scale(u, shrink);
    shrink
}

/// From the gradient `du [V]` of [`clip`]'s result `u` to that of its argument, in place; `shrink` is what it returned.
#[inline(always)]
pub(super) fn clip_vjp(clip: Option<f32>, u: &[f32], shrink: f32, du: &mut [f32]) {
    let Some(c) = clip else { return };
    // What shortens an error grows with it: part of the gradient along it goes.
    axpy(du, -dot(u, du) / c / c, u);
    scale(du, shrink);
}

/// −1, 0 or 1. `signum` alone would call +0 positive.
#[inline(always)]
fn sign(e: f32) -> f32 {
    if e == 0.0 { 0.0 } else { e.signum() }
}
