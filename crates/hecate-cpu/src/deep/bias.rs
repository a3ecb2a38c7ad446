//! What a memory is taught by an error: equations (47)–(52).

use crate::rows::{axpy, dot};
use hecate_core::rules::{Bias, Huber};

/// `m^power` for `m > 0`, without the library's general power where a root or product does.
#[inline(always)]
pub(super) fn power(m: f32, power: f32) -> f32 {
    match power {
        0.0 => 1.0,
        0.5 => m.sqrt(),
        1.0 => m,
        -0.5 => m.sqrt().recip(),
        _ => m.powf(power),
    }
}

/// `u = ψ(e)`.
#[inline(always)]
pub(super) fn teach(bias: Bias, error: &[f32], delta: f32, u: &mut [f32]) {
    let pairs = u.iter_mut().zip(error);
    match bias {
        Bias::L2 => u.copy_from_slice(error),
        Bias::Lp { p, epsilon, tanh: false } => {
            pairs.for_each(|(u, e)| *u = p * e * power(e * e + epsilon, (p - 2.0) / 2.0));
        }
        Bias::Lp { p, epsilon, tanh: true } => {
            pairs.for_each(|(u, e)| *u = p * (10.0 * e).tanh() * power(e * e + epsilon, (p - 1.0) / 2.0));
        }
        Bias::Huber(Huber::Coordinate) => pairs.for_each(|(u, e)| *u = e.clamp(-delta, delta)),
        Bias::Huber(kind) => {
            let length = dot(error, error).sqrt();
            match kind {
                _ if length <= delta => u.copy_from_slice(error),
                Huber::Norm => pairs.for_each(|(u, e)| *u = delta / length * e),
                _ => pairs.for_each(|(u, e)| *u = delta * sign(*e)),
            }
        }
    }
}

/// `de += ψ′(e)ᵀ du`; the gradient of `δ` is returned.
#[inline(always)]
pub(super) fn teach_back(bias: Bias, error: &[f32], delta: f32, du: &[f32], de: &mut [f32]) -> f32 {
    let triples = de.iter_mut().zip(error).zip(du);
    match bias {
        Bias::L2 => {
            axpy(de, 1.0, du);
            0.0
        }
        Bias::Lp { p, epsilon, tanh: false } => {
            triples.for_each(|((de, e), du)| {
                let m = e * e + epsilon;
                *de += du * p * power(m, (p - 2.0) / 2.0) * (1.0 + (p - 2.0) * (e * e / m));
            });
            0.0
        }
        Bias::Lp { p, epsilon, tanh: true } => {
            triples.for_each(|((de, e), du)| {
                let (m, t) = (e * e + epsilon, (10.0 * e).tanh());
                let steep = 10.0 * (1.0 - t * t) * power(m, (p - 1.0) / 2.0);
                *de += du * p * (steep + t * (p - 1.0) * e * power(m, (p - 3.0) / 2.0));
            });
            0.0
        }
        Bias::Huber(Huber::Coordinate) => {
            let mut ddelta = 0.0;
            triples.for_each(|((de, e), du)| {
                let inside = e.abs() <= delta;
                *de += if inside { *du } else { 0.0 };
                ddelta += if inside { 0.0 } else { du * sign(*e) };
            });
            ddelta
        }
        Bias::Huber(kind) => {
            let length = dot(error, error).sqrt();
            match kind {
                _ if length <= delta => {
                    axpy(de, 1.0, du);
                    0.0
                }
                Huber::Norm => {
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

/// −1, 0 or 1.
#[inline(always)]
fn sign(e: f32) -> f32 {
    if e == 0.0 { 0.0 } else { e.signum() }
}
