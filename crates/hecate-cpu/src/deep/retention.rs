//! From the state to the weights: equations (53)–(55).
//!
//! With decay the state is the weights. With L_q and KL the state `X` lives in a dual space, and tokens read `W(X)`.
//! Here weights are made of a state by itself; [`lq`](super::lq) and [`softmax`] make them as a token writes.

use super::{
    lq::{AtState, LqMap},
    softmax,
};
use crate::{
    primitives::exp::{exp, ln, power_vector},
    rows::dot,
    simd::{dispatch, wide},
};
use hecate_core::rules::{LQ_EPSILON, Map, Retention};
use pulp::{Simd, WithSimd};

/// Weights that are not the state itself.
#[derive(Default)]
pub(super) struct MappedWeights {
    /// Both matrices after each other, as in a state; empty where the state is the weights.
    pub(super) weights: Vec<f32>,
    /// `ν` of each matrix, where it has one.
    pub(super) norms: [f32; 2],
    /// What each matrix is to be multiplied by.
    pub(super) factors: [f32; 2],
}

/// Weights of both layers, or of the only one.
#[derive(Clone, Copy)]
pub(super) struct Weights<'w> {
    /// After each other, as in a state.
    pub(super) layers: &'w [f32],
    /// What each layer is to be multiplied by.
    pub(super) factors: [f32; 2],
}

/// A sum of 32-bit powers from here on may have lost some to infinity.
pub(super) const WIDE: f64 = 1e30;

/// `$body` with `|x|^(q − 2)` of a square `x²` as a function that loops are compiled for.
macro_rules! by_power {
    ($q:expr, |$root:ident| $body:expr) => {
        match $q {
            2.0 => {
                let $root = |_: f32| 1.0;
                $body
            }
            3.0 => {
                let $root = f32::sqrt;
                $body
            }
            4.0 => {
                let $root = |square: f32| square;
                $body
            }
            q => {
                // Functions that vectorise; the logarithm is one of normal numbers.
                let $root = move |square: f32| {
                    let power = exp((q - 2.0) / 2.0 * ln(square));
                    // Beyond normal numbers the logarithm says nothing. NaN is neither.
                    if square < f32::MIN_POSITIVE {
                        0.0
                    } else if square > f32::MAX {
                        square
                    } else {
                        power
                    }
                };
                $body
            }
        }
    };
}

/// Weights of one matrix of so many rows from its state, of the same length; returns its `ν`.
/// Not called for [`Retention::Decay`], where they are the same.
#[inline(always)]
pub(super) fn to_weights(retention: Retention, rows: usize, x: &[f32], w: &mut [f32]) -> f32 {
    match retention {
        Retention::Decay => w.copy_from_slice(x),
        Retention::Kl { scale } => softmax::to_weights(scale / rows as f32, x, w),
        Retention::Lq { q, map } => {
            let norm = norm(x, q);
            // Both maps divide by the same power of the norm.
            let factor = norm.powf(2.0 - f64::from(q)) as f32;
            let pairs = w.iter_mut().zip(x);
            match map {
                Map::Literal => pairs.for_each(|(w, x)| *w = factor * x),
                Map::Mirror => by_power!(q, |root| pairs.for_each(|(w, x)| *w = factor * x * root(x * x))),
            }
            return norm as f32;
        }
    }
    1.0
}

/// Adds to the gradient `d` of a matrix's state what a gradient of its weights has: equations (54), (55).
/// All of the state, the weights and their gradient are `[K,V]`.
pub(super) fn pullback(retention: Retention, [x, w, dw]: [&[f32]; 3], norm: f32, d: &mut [f32]) {
    wide(
        d,
        #[inline(always)]
        |d: &mut [f32]| match retention {
            Retention::Decay => d.iter_mut().zip(dw).for_each(|(d, dw)| *d += dw),
            Retention::Kl { .. } => d.iter_mut().zip(w.iter().zip(dw)).for_each(|(d, (w, dw))| *d += w * dw),
            Retention::Lq { q, map } => {
                let AtState { slopes: [own, through], shared, .. } = LqMap { q, map }.at(norm, dot(w, dw));
                // A slope of the element's own, and what comes by the norm.
                let rows = d.iter_mut().zip(x.iter().zip(dw));
                by_power!(q, |root| rows.for_each(|(d, (x, dw))| {
                    let power = root(x * x);
                    *d += (own + through * power) * dw + shared * power * x;
                }));
            }
        },
    );
}

/// `ν = (Σ |x|^q + ε)^(1/q)`, in 64 bits where 32 may not hold the powers.
#[inline(always)]
fn norm(x: &[f32], q: f32) -> f64 {
    // 32-bit powers overflow early; a sum near that range is taken again in 64.
    let wide = f64::from(q);
    // Powers that are too small for 32 bits are by far less than what is added to the sum.
    // A product in place of a power where `q` is known.
    let narrow = dispatch(Sum { q, x });
    let sum = if narrow < WIDE { narrow } else { x.iter().map(|&x| f64::from(x).abs().powf(wide)).sum() };
    (sum + f64::from(LQ_EPSILON)).powf(wide.recip())
}

/// `Σ |x|^q`.
/// Four vectors of sums run in 32 bits over 64 vectors; those are then added up in 64.
struct Sum<'a> {
    q: f32,
    x: &'a [f32],
}

impl WithSimd for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        match self.q {
            2.0 => self.of(simd, |_| simd.splat_f32s(1.0)),
            3.0 => self.of(simd, |x| simd.abs_f32s(x)),
            4.0 => self.of(simd, |x| simd.mul_f32s(x, x)),
            q => self.of(
                simd,
                #[inline(always)]
                |x| power_vector(simd, simd.abs_f32s(x), q - 2.0),
            ),
        }
    }
}

impl Sum<'_> {
    /// The sum; `power` is `|x|^(q − 2)`.
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, power: impl Fn(S::f32s) -> S::f32s) -> f64 {
        let (vectors, tail) = S::as_simd_f32s(self.x);
        let add = |sum, x| simd.mul_add_e_f32s(simd.mul_f32s(x, x), power(x), sum);
        // The tail goes first, as one partial vector whose missing elements are 0.
        let mut total = simd.reduce_sum_f32s(add(simd.splat_f32s(0.0), simd.partial_load_f32s(tail))).into();
        for block in vectors.chunks(64) {
            let [mut a, mut b, mut c, mut d] = [simd.splat_f32s(0.0); 4];
            let mut quads = block.chunks_exact(4);
            for quad in &mut quads {
                (a, b, c, d) = (add(a, quad[0]), add(b, quad[1]), add(c, quad[2]), add(d, quad[3]));
            }
            quads.remainder().iter().for_each(|x| a = add(a, *x));
            let sum = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
            total += f64::from(simd.reduce_sum_f32s(sum));
        }
        total
    }
}
