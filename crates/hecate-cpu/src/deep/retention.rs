//! From the state to the weights, and back: equations (53)–(55).

use super::softmax;
use crate::{
    rows::{axpy, dot},
    simd::{Panel, dispatch, load_part, panels, store_part},
    sweep::add_transposed,
};
use hecate_core::rules::{LQ_EPSILON, Map, Retention};
use pulp::{Simd, WithSimd};

/// Weights that are not the state itself.
#[derive(Default)]
pub(super) struct Exposed {
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

/// Weights of one matrix from its state, and its `ν`; not called for [`Retention::Decay`], where they are the same.
#[inline(always)]
pub(super) fn expose(retention: Retention, x: &[f32], w: &mut [f32]) -> f64 {
    match retention {
        Retention::Decay => w.copy_from_slice(x),
        Retention::Kl { scale } => softmax::expose(scale, x, w),
        Retention::Lq { q, map } => {
            let norm = norm(x, q);
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

/// `ν`, in 64 bits where 32 may not hold the powers.
#[inline(always)]
fn norm(x: &[f32], q: f32) -> f64 {
    let wide = f64::from(q);
    // Powers that are too small for 32 bits are by far less than what is added to the sum.
    let narrow = if [2.0, 3.0, 4.0].contains(&q) { dispatch(Sum { q, x }) } else { f64::NAN };
    let sum = if narrow < 1e30 { narrow } else { x.iter().map(|&x| f64::from(x).abs().powf(wide)).sum() };
    (sum + f64::from(LQ_EPSILON)).powf(wide.recip())
}

/// `Σ |x|^q`, `q` 2, 3 or 4: in 64 bits but for 64 vectors at a time.
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
    /// `power` is `|x|^(q − 2)`.
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, power: impl Fn(S::f32s) -> S::f32s) -> f64 {
        let (vectors, tail) = S::as_simd_f32s(self.x);
        let add = |sum, x| simd.mul_add_e_f32s(simd.mul_f32s(x, x), power(x), sum);
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

/// The gradient `Σ xᵢᵀ yᵢ` of a matrix's weights `W` on its way to the state: (54).
pub(super) struct Pull<'a, const R: usize> {
    pub(super) q: f32,
    pub(super) map: Map,
    pub(super) state: &'a [f32],
    pub(super) weights: &'a [f32],
    pub(super) norm: f64,
    pub(super) factors: [(&'a [f32], &'a [f32]); R],
    /// `Σ xᵢ W yᵢᵀ` of all but the last.
    pub(super) before: f32,
    /// Added to: the gradient of the state.
    pub(super) d: &'a mut [f32],
    /// Added to: `y Wᵀ` with the last `y`.
    pub(super) x: &'a mut [f32],
    /// As long as `x`.
    pub(super) answer: &'a mut [f32],
}

impl<const R: usize> Pull<'_, R> {
    #[inline(always)]
    pub(super) fn run(self) {
        let Self { q, map, state, weights, norm, factors, before, d, x, answer } = self;
        let (last_x, last_y) = factors[R - 1];
        answer.fill(0.0);
        add_transposed(answer, last_y, weights);
        axpy(x, 1.0, answer);
        // `⟨X, dW⟩` or `⟨B, dW⟩`, times the factor, is `⟨W, dW⟩`.
        let (wide, along) = (f64::from(q), f64::from(before + dot(last_x, answer)));
        let shared = ((2.0 - wide) * norm.powf(-wide) * along) as f32;
        let factor = norm.powf(2.0 - wide) as f32;
        let slopes = match map {
            Map::Literal => [factor, 0.0],
            Map::Mirror => [0.0, (q - 1.0) * factor],
        };
        dispatch(Descent { q, slopes, shared, state, factors, d });
    }
}

/// `D += (slope₀ + slope₁ |X|^(q−2)) ∘ Σ xᵢᵀ yᵢ + shared |X|^(q−2) X`.
struct Descent<'a, const R: usize> {
    q: f32,
    slopes: [f32; 2],
    shared: f32,
    state: &'a [f32],
    factors: [(&'a [f32], &'a [f32]); R],
    d: &'a mut [f32],
}

impl<const R: usize> WithSimd for Descent<'_, R> {
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

/// `|x|^power`.
#[inline(always)]
fn powers<S: Simd>(simd: S, x: S::f32s, power: f32) -> S::f32s {
    let mut lanes = [0.0_f32; softmax::LANES];
    simd.partial_store_f32s(&mut lanes[..S::F32_LANES], x);
    lanes[..S::F32_LANES].iter_mut().for_each(|x| *x = x.abs().powf(power));
    simd.partial_load_f32s(&lanes[..S::F32_LANES])
}

/// A [`Descent`], and `|x|^(q − 2)`.
struct Powers<'a, const R: usize, F>(Descent<'a, R>, F);

impl<S: Simd, const R: usize, F: Fn(S::f32s) -> S::f32s> Panel<S> for Powers<'_, R, F> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Self(Descent { slopes, shared, state, factors, d, .. }, power) = self;
        let (width, shared) = (factors[0].1.len(), simd.splat_f32s(*shared));
        let slopes = slopes.map(|slope| simd.splat_f32s(slope));
        let y = factors.map(|(_, y)| load_part::<S, N>(simd, &y[column..]));
        for (t, (d, x)) in d.chunks_exact_mut(width).zip(state.chunks_exact(width)).enumerate() {
            let (mut own, x) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &x[column..]));
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
