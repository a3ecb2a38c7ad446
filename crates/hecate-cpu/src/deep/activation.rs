//! The functions inside MLP memories, with their first and second derivatives.
//!
//! A memory's write is a gradient, so its backward needs `σ″` (equations (42) and (45)).
//! All three values come from one evaluation of the exponential or of the error function.
//! Loops are compiled once for each function: a match inside them would keep them from vectorising.

use crate::primitives::exp::sigmoids;
use hecate_core::rules::Activation;
use std::f32::consts::{FRAC_1_SQRT_2, PI};

/// Beyond it the functions are `x` or 0 to the last bit, and their formulas would overflow first.
const FAR: f32 = 14.0;

/// `$body` with `σ`, `σ′` and `σ″` as a function that loops are compiled for.
macro_rules! by_activation {
    ($activation:expr, |$at:ident| $body:expr) => {
        match $activation {
            Activation::Silu => {
                let $at = silu;
                $body
            }
            Activation::GeluTanh => {
                let $at = |x| bounded(x, gelu_tanh(x));
                $body
            }
            Activation::Gelu => {
                let $at = |x| bounded(x, gelu(x));
                $body
            }
        }
    };
}

/// A function where it curves; beyond that a straight line, which it is there to the last bit.
#[inline(always)]
fn bounded(x: f32, near: (f32, f32, f32)) -> (f32, f32, f32) {
    match x {
        _ if x > FAR => (x, 1.0, 0.0),
        _ if x < -FAR => (0.0, 0.0, 0.0),
        _ => near,
    }
}

/// `silu`, `silu′` and `silu″` at `x`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> (f32, f32, f32) {
    // Both sigmoids are exact relative to themselves, so no slope loses its small values.
    let (up, down) = sigmoids(x);
    // The slope tends to 0 or 1 faster than any power of x grows.
    let near = x.clamp(-80.0, 80.0);
    (x * up, up * (1.0 + near * down), up * down * (2.0 + near * (down - up)))
}

/// GELU by its tanh formula. With `t = tanh u`, `1 − t² = 4 σ(2u) σ(−2u)`, which does not cancel.
#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32, f32) {
    // The constant of the published approximation (Hendrycks and Gimpel, 2016).
    const CUBIC: f32 = 0.044_715;
    let c = (2.0 / PI).sqrt();
    // `u` and its two derivatives by `x`.
    let (u, u1, u2) = (c * (x + CUBIC * x * x * x), c * (1.0 + 3.0 * CUBIC * x * x), 6.0 * c * CUBIC * x);
    let (up, down) = sigmoids(2.0 * u);
    let (t, h) = (up - down, 4.0 * up * down);
    (x * up, up + 0.5 * x * h * u1, h * u1 + 0.5 * x * (h * u2 - 2.0 * t * h * u1 * u1))
}

/// GELU by the error function: `x Φ(x)`, with the normal density as the slope of `Φ`.
#[inline(always)]
fn gelu(x: f32) -> (f32, f32, f32) {
    let below = 0.5 * libm::erfcf(-x * FRAC_1_SQRT_2);
    // The slope of Φ.
    let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
    (x * below, below + x * density, density * (2.0 - x * x))
}

/// `h = σ(pre)` and `slope = σ′(pre)`, all of the same length.
#[inline(always)]
pub(super) fn activate(activation: Activation, pre: &[f32], h: &mut [f32], slope: &mut [f32]) {
    let triples = pre.iter().zip(h).zip(slope);
    by_activation!(activation, |at| triples.for_each(|((&x, h), slope)| (*h, *slope, _) = at(x)));
}

/// `out = factor ∘ σ″(pre)`, all of the same length.
#[inline(always)]
pub(super) fn second_derivative(activation: Activation, pre: &[f32], factor: &[f32], out: &mut [f32]) {
    let triples = pre.iter().zip(factor).zip(out);
    by_activation!(activation, |at| triples.for_each(|((&x, factor), out)| *out = factor * at(x).2));
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    /// `σ`, `σ′` and `σ″` of one of the functions.
    fn at(activation: Activation, x: f32) -> (f32, f32, f32) {
        by_activation!(activation, |at| at(x))
    }

    const ALL: [Activation; 3] = [Activation::Silu, Activation::GeluTanh, Activation::Gelu];

    #[test]
    fn slopes_are_those_of_differences() {
        for activation in ALL {
            for i in -60..=60 {
                let (x, step) = (i as f32 / 10.0, 1e-2);
                // Central differences of the function and of its slope.
                let (up, here, down) = (at(activation, x + step), at(activation, x), at(activation, x - step));
                assert_abs_diff_eq!((up.0 - down.0) / (2.0 * step), here.1, epsilon = 2e-4);
                assert_abs_diff_eq!((up.1 - down.1) / (2.0 * step), here.2, epsilon = 2e-4);
            }
        }
    }

    #[test]
    fn far_out_they_are_straight() {
        for activation in ALL {
            for x in [20.0, 1e4, 1e20, f32::MAX] {
                let (y, slope, second_derivative) = at(activation, x);
                assert!(
                    (y / x - 1.0).abs() < 1e-6 && (slope - 1.0).abs() < 1e-4 && second_derivative.abs() < 1e-4,
                    "{activation:?} at {x}"
                );
                let (y, slope, second_derivative) = at(activation, -x);
                assert!(
                    y.abs() < 1e-4 && slope.abs() < 1e-4 && second_derivative.abs() < 1e-4,
                    "{activation:?} at −{x}"
                );
            }
        }
    }
}
