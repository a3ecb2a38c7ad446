//! From the state to the weights, and back: equations (53)–(55).
//!
//! With decay the state is the weights. With L_q and KL the state `X` lives in a dual space.
//! Tokens read `W(X)`, and gradients of `W` come back through the pullback of that map.
//!
//! The L_q map divides by a norm `ν` of the whole matrix.
//! Its pullback therefore adds a multiple of `X` to every element, with one factor for the matrix.

use super::softmax;
use crate::{
    fused_gemv::add_transposed,
    rows::{axpy, dot},
    simd::{Panel, dispatch, load_part, panels, store_part},
};
use hecate_core::rules::{LQ_EPSILON, Map, Retention};
use pulp::{Simd, WithSimd};

/// Weights that are not the state itself.
#[derive(Default)]
pub(super) struct MappedWeights {
    /// Both matrices after each other, as in a state; empty where the state is the weights.
    pub(super) weights: Vec<f32>,
    /// `ν` of each matrix, where it has one.
    pub(super) norms: [f64; 2],
}

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
                let $root = move |square: f32| square.powf((q - 2.0) / 2.0);
                $body
            }
        }
    };
}

/// Weights of one matrix from its state, of the same length; returns its `ν`.
/// Not called for [`Retention::Decay`], where they are the same.
#[inline(always)]
pub(super) fn to_weights(retention: Retention, x: &[f32], w: &mut [f32]) -> f64 {
    match retention {
        Retention::Decay => w.copy_from_slice(x),
        Retention::Kl { scale } => softmax::to_weights(scale, x, w),
        Retention::Lq { q, map } => {
            let norm = norm(x, q);
            // Both maps divide by the same power of the norm.
            let factor = norm.powf(2.0 - f64::from(q)) as f32;
            let pairs = w.iter_mut().zip(x);
            match map {
                Map::Literal => pairs.for_each(|(w, x)| *w = factor * x),
                Map::Mirror => by_power!(q, |root| pairs.for_each(|(w, x)| *w = factor * x * root(x * x))),
            }
            return norm;
        }
    }
    1.0
}

/// `ν = (Σ |x|^q + ε)^(1/q)`, in 64 bits where 32 may not hold the powers.
#[inline(always)]
fn norm(x: &[f32], q: f32) -> f64 {
    // 32-bit powers overflow early; a sum near that range is taken again in 64.
    let wide = f64::from(q);
    // Powers that are too small for 32 bits are by far less than what is added to the sum.
    let narrow = if [2.0, 3.0, 4.0].contains(&q) { dispatch(Sum { q, x }) } else { f64::NAN };
    let sum = if narrow < 1e30 { narrow } else { x.iter().map(|&x| f64::from(x).abs().powf(wide)).sum() };
    (sum + f64::from(LQ_EPSILON)).powf(wide.recip())
}

/// `Σ |x|^q` for `q` 2, 3 or 4.
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
            _ => self.of(simd, |x| simd.mul_f32s(x, x)),
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

/// A gradient `Σ xᵢᵀ yᵢ` of a matrix's weights on its way to the state: (54).
pub(super) struct Pullback<'a, const R: usize> {
    pub(super) q: f32,
    /// Literal or mirror map of the rule.
    pub(super) map: Map,
    /// `X`.
    pub(super) state: &'a [f32],
    /// `W(X)`.
    pub(super) weights: &'a [f32],
    /// `ν`.
    pub(super) norm: f64,
    /// `(xᵢ, yᵢ)`: one of each length of the matrix.
    pub(super) factors: [(&'a [f32], &'a [f32]); R],
    /// `Σ xᵢ W yᵢᵀ` of all pairs but the last, which the caller has as a dot product.
    pub(super) before: f32,
    /// Added to: the gradient of the state.
    pub(super) d: &'a mut [f32],
    /// Added to: `y Wᵀ` with the last `y`.
    pub(super) x: &'a mut [f32],
    /// As long as `x`: holds `y Wᵀ`.
    pub(super) answer: &'a mut [f32],
}

impl<const R: usize> Pullback<'_, R> {
    /// First the product with the last pair, which completes the sum over the matrix; then one pass over `X` and `D`.
    #[inline(always)]
    pub(super) fn run(self) {
        let Self { q, map, state, weights, norm, factors, before, d, x, answer } = self;
        // The product with the last pair serves twice: as the gradient of `x`, and in the sum over the matrix.
        let (last_x, last_y) = factors[R - 1];
        answer.fill(0.0);
        add_transposed(answer, last_y, weights);
        axpy(x, 1.0, answer);
        // `⟨X, dW⟩` or `⟨B, dW⟩`, times the factor, is `⟨W, dW⟩`.
        let (wide, along) = (f64::from(q), f64::from(before + dot(last_x, answer)));
        // What reaches every element through `ν`.
        let shared = ((2.0 - wide) * norm.powf(-wide) * along) as f32;
        let factor = norm.powf(2.0 - wide) as f32;
        // What reaches an element through itself: a constant for the literal map, a power for the mirror map.
        let slopes = match map {
            Map::Literal => [factor, 0.0],
            Map::Mirror => [0.0, (q - 1.0) * factor],
        };
        dispatch(PullbackKernel { q, slopes, shared, state, factors, d });
    }
}

/// `D += (slope₀ + slope₁ |X|^(q−2)) ∘ Σ xᵢᵀ yᵢ + shared |X|^(q−2) X`, in one pass.
struct PullbackKernel<'a, const R: usize> {
    q: f32,
    /// The first for the literal map, the second for the mirror map.
    slopes: [f32; 2],
    /// What every element gets through `ν`.
    shared: f32,
    state: &'a [f32],
    factors: [(&'a [f32], &'a [f32]); R],
    d: &'a mut [f32],
}

impl<const R: usize> WithSimd for PullbackKernel<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let columns = self.factors[0].1.len();
        match self.q {
            2.0 => panels(simd, columns, Powers(self, |_: S::f32s| simd.splat_f32s(1.0))),
            3.0 => panels(simd, columns, Powers(self, |x| simd.abs_f32s(x))),
            4.0 => panels(simd, columns, Powers(self, |x| simd.mul_f32s(x, x))),
            q => panels(simd, columns, Powers(self, |x| powers(simd, x, q - 2.0))),
        }
    }
}

/// `|x|^power`, element by element through memory: there is no vector instruction for it.
#[inline(always)]
fn powers<S: Simd>(simd: S, x: S::f32s, power: f32) -> S::f32s {
    let mut lanes = [0.0_f32; softmax::LANES];
    simd.partial_store_f32s(&mut lanes[..S::F32_LANES], x);
    lanes[..S::F32_LANES].iter_mut().for_each(|x| *x = x.abs().powf(power));
    simd.partial_load_f32s(&lanes[..S::F32_LANES])
}

/// A [`PullbackKernel`], and `|x|^(q − 2)` as a function that its loop is compiled for.
struct Powers<'a, const R: usize, F>(PullbackKernel<'a, R>, F);

impl<S: Simd, const R: usize, F: Fn(S::f32s) -> S::f32s> Panel<S> for Powers<'_, R, F> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Self(PullbackKernel { slopes, shared, state, factors, d, .. }, power) = self;
        // The block's part of every `yᵢ` stays in registers while the rows go by.
        let (width, shared) = (factors[0].1.len(), simd.splat_f32s(*shared));
        let slopes = slopes.map(|slope| simd.splat_f32s(slope));
        let y = factors.map(|(_, y)| load_part::<S, N>(simd, &y[column..]));
        for (t, (d, x)) in d.chunks_exact_mut(width).zip(state.chunks_exact(width)).enumerate() {
            let (mut own, x) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &x[column..]));
            // One row of the gradient of the weights, never stored.
            let mut part = [simd.splat_f32s(0.0); N];
            for (y, (x, _)) in y.iter().zip(&*factors) {
                let x = simd.splat_f32s(x[t]);
                (0..N).for_each(|n| part[n] = simd.mul_add_e_f32s(x, y[n], part[n]));
            }
            for n in 0..N {
                let power = power(x[n]);
                let slope = simd.mul_add_e_f32s(slopes[1], power, slopes[0]);
                let sum = simd.mul_add_e_f32s(simd.mul_f32s(shared, power), x[n], own[n]);
                own[n] = simd.mul_add_e_f32s(slope, part[n], sum);
            }
            store_part(simd, &mut d[column..], own);
        }
    }
}
