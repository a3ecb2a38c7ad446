//! All that a step does with one matrix `[K,V]` in one sweep, in blocks of columns that stay in registers.
//!
//! A token of a rule that goes token by token does little with each number of a large memory; most of its time goes into
//! fetching it. What needs the same rows at the same time is therefore done together.

use crate::simd::{Panel, dispatch, load_part, panels, store_part};
use pulp::{Simd, WithSimd};

/// `y += x M`.
struct Read<'a> {
    y: &'a mut [f32],
    x: &'a [f32],
    m: &'a [f32],
}

/// `y = x M`.
#[inline(always)]
pub(crate) fn read(y: &mut [f32], x: &[f32], m: &[f32]) {
    y.fill(0.0);
    dispatch(Read { y, x, m });
}

/// `y += x M`.
#[inline(always)]
pub(crate) fn add_read(y: &mut [f32], x: &[f32], m: &[f32]) {
    dispatch(Read { y, x, m });
}

impl WithSimd for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.y.len(), &mut self);
    }
}

impl<S: Simd> Panel<S> for &mut Read<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let mut sums = load_part::<S, N>(simd, &self.y[column..]);
        for (m, &x) in self.m.chunks_exact(self.y.len()).zip(self.x) {
            let (m, x) = (load_part::<S, N>(simd, &m[column..]), simd.splat_f32s(x));
            (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(x, m[n], sums[n]));
        }
        store_part(simd, &mut self.y[column..], sums);
    }
}

/// `x += y Mᵀ`.
struct Answer<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
    m: &'a [f32],
}

/// `x += y Mᵀ`.
#[inline(always)]
pub(crate) fn add_transposed(x: &mut [f32], y: &[f32], m: &[f32]) {
    dispatch(Answer { x, y, m });
}

impl WithSimd for Answer<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.y.len(), &mut self);
    }
}

impl<S: Simd> Panel<S> for &mut Answer<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let y = load_part::<S, N>(simd, &self.y[column..]);
        for (x, m) in self.x.iter_mut().zip(self.m.chunks_exact(self.y.len())) {
            let m = load_part::<S, N>(simd, &m[column..]);
            let mut sum = simd.splat_f32s(0.0);
            (0..N).for_each(|n| sum = simd.mul_add_e_f32s(y[n], m[n], sum));
            *x += simd.reduce_sum_f32s(sum);
        }
    }
}

/// `S = η S₀ + step xᵀ y`, `M = a M₀ + S`, or `M = a M₀ + step xᵀ y` where `s` is empty; and `out = q M`, or
/// `out = q M₀` where the read comes `before`.
pub(crate) struct Write<'a> {
    pub(crate) a: f32,
    pub(crate) eta: f32,
    pub(crate) step: f32,
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    /// `M₀` and `S₀`.
    pub(crate) old: [&'a [f32]; 2],
    pub(crate) m: &'a mut [f32],
    pub(crate) s: &'a mut [f32],
    pub(crate) q: &'a [f32],
    pub(crate) before: bool,
    pub(crate) out: &'a mut [f32],
}

impl Write<'_> {
    #[inline(always)]
    pub(crate) fn run(&mut self) {
        dispatch(self);
    }
}

impl WithSimd for &mut Write<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        panels(simd, self.y.len(), self);
    }
}

impl<S: Simd> Panel<S> for &mut Write<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Write { a, eta, step, x, y, old: [old_m, old_s], m, s, q, before, out } = &mut **self;
        let (width, a, eta) = (y.len(), simd.splat_f32s(*a), simd.splat_f32s(*eta));
        let y = load_part::<S, N>(simd, &y[column..]);
        let mut sums = [simd.splat_f32s(0.0); N];
        let mut momentum = s.chunks_exact_mut(width).zip(old_s.chunks_exact(width));
        let rows = m.chunks_exact_mut(width).zip(old_m.chunks_exact(width));
        for ((m, old), (&x, &q)) in rows.zip(x.iter().zip(*q)) {
            let (x, q) = (simd.splat_f32s(*step * x), simd.splat_f32s(q));
            let old = load_part::<S, N>(simd, &old[column..]);
            let mut new = [simd.splat_f32s(0.0); N];
            if let Some((s, old_s)) = momentum.next() {
                let mut pushed = load_part::<S, N>(simd, &old_s[column..]);
                for n in 0..N {
                    pushed[n] = simd.mul_add_e_f32s(x, y[n], simd.mul_f32s(eta, pushed[n]));
                    new[n] = simd.mul_add_e_f32s(a, old[n], pushed[n]);
                }
                store_part(simd, &mut s[column..], pushed);
            } else {
                (0..N).for_each(|n| new[n] = simd.mul_add_e_f32s(x, y[n], simd.mul_f32s(a, old[n])));
            }
            store_part(simd, &mut m[column..], new);
            let seen = if *before { old } else { new };
            (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(q, seen[n], sums[n]));
        }
        store_part(simd, &mut out[column..], sums);
    }
}

/// The way back of [`Write`] with `step = 1`: gradients of `M` and `S` become those of `M₀` and `S₀`. `q` are the
/// queries of a read behind the write and of one before it, one of them zero, and `dout` the gradient of what was read.
pub(crate) struct Unwrite<'a> {
    pub(crate) a: f32,
    pub(crate) eta: f32,
    pub(crate) dm: &'a mut [f32],
    pub(crate) ds: &'a mut [f32],
    pub(crate) old: [&'a [f32]; 2],
    /// What was read.
    pub(crate) seen: &'a [f32],
    pub(crate) q: [&'a [f32]; 2],
    pub(crate) dout: &'a [f32],
    /// Added to: the gradient of the query.
    pub(crate) dq: &'a mut [f32],
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    /// Become those of `x` and `y`.
    pub(crate) dx: &'a mut [f32],
    pub(crate) dy: &'a mut [f32],
}

impl Unwrite<'_> {
    /// The gradients of `a` and `η`.
    #[inline(always)]
    pub(crate) fn run(self) -> [f32; 2] {
        self.dx.fill(0.0);
        dispatch(self)
    }
}

impl WithSimd for Unwrite<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> [f32; 2] {
        let mut gates = [simd.splat_f32s(0.0); 2];
        panels(simd, self.y.len(), Back { call: &mut self, gates: &mut gates });
        gates.map(|x| simd.reduce_sum_f32s(x))
    }
}

/// An [`Unwrite`] under way, and its sums for `a` and `η`.
struct Back<'b, 'a, S: Simd> {
    call: &'b mut Unwrite<'a>,
    gates: &'b mut [S::f32s; 2],
}

impl<S: Simd> Panel<S> for Back<'_, '_, S> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Unwrite { a, eta, dm, ds, old: [m, s], seen, q, dout, dq, x, y, dx, dy } = &mut *self.call;
        let (width, a, eta) = (y.len(), simd.splat_f32s(*a), simd.splat_f32s(*eta));
        let part = |x: &[f32]| load_part::<S, N>(simd, &x[column..]);
        let (y, dout, mut sums) = (part(y), part(dout), [simd.splat_f32s(0.0); N]);
        let [mut da, mut deta] = *self.gates;
        let mut momentum = ds.chunks_exact_mut(width).zip(s.chunks_exact(width));
        let rows = dm.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(seen.chunks_exact(width));
        let [after, before] = *q;
        let keys = x.iter().zip(dx.iter_mut()).zip(after.iter().zip(before).zip(dq.iter_mut()));
        for (((dm, m), seen), ((&x, dx), ((&after, &before), dq))) in rows.zip(keys) {
            let [x, after, before] = [x, after, before].map(|x| simd.splat_f32s(x));
            let (mut d, m, seen) = (part(dm), part(m), part(seen));
            let (mut along, mut read) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for n in 0..N {
                d[n] = simd.mul_add_e_f32s(after, dout[n], d[n]);
                da = simd.mul_add_e_f32s(d[n], m[n], da);
                read = simd.mul_add_e_f32s(dout[n], seen[n], read);
            }
            let mut pushed = d;
            if let Some((ds, s)) = momentum.next() {
                let (old, s) = (part(ds), part(s));
                for n in 0..N {
                    pushed[n] = simd.add_f32s(old[n], d[n]);
                    deta = simd.mul_add_e_f32s(pushed[n], s[n], deta);
                }
                store_part(simd, &mut ds[column..], pushed.map(|x| simd.mul_f32s(eta, x)));
            }
            for n in 0..N {
                along = simd.mul_add_e_f32s(pushed[n], y[n], along);
                sums[n] = simd.mul_add_e_f32s(x, pushed[n], sums[n]);
                d[n] = simd.mul_add_e_f32s(before, dout[n], simd.mul_f32s(a, d[n]));
            }
            store_part(simd, &mut dm[column..], d);
            *dx += simd.reduce_sum_f32s(along);
            *dq += simd.reduce_sum_f32s(read);
        }
        *self.gates = [da, deta];
        store_part(simd, &mut dy[column..], sums);
    }
}

/// `D += Σ xᵢᵀ yᵢ`, and `x += y Mᵀ` with the last `y`: gradients of the matrix that gave `x₀ M`, or that and more, and of
/// what it was given.
pub(crate) struct Outer<'a, const R: usize> {
    pub(crate) d: &'a mut [f32],
    pub(crate) factors: [(&'a [f32], &'a [f32]); R],
    pub(crate) m: &'a [f32],
    pub(crate) x: &'a mut [f32],
}

impl<const R: usize> Outer<'_, R> {
    #[inline(always)]
    pub(crate) fn run(self) {
        dispatch(Outwards::<R, false>(self));
    }

    /// The same where `M` is an exponential and `D` the gradient of what is behind it: `D += M ∘ Σ xᵢᵀ yᵢ`.
    #[inline(always)]
    pub(crate) fn through(self) {
        dispatch(Outwards::<R, true>(self));
    }
}

struct Outwards<'a, const R: usize, const THROUGH: bool>(Outer<'a, R>);

impl<const R: usize, const THROUGH: bool> WithSimd for Outwards<'_, R, THROUGH> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.0.factors[0].1.len(), &mut self);
    }
}

impl<S: Simd, const R: usize, const THROUGH: bool> Panel<S> for &mut Outwards<'_, R, THROUGH> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Outer { d, factors, m, x } = &mut self.0;
        let width = factors[0].1.len();
        let y = factors.map(|(_, y)| load_part::<S, N>(simd, &y[column..]));
        let rows = d.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(x.iter_mut());
        for (t, ((d, m), out)) in rows.enumerate() {
            let (mut own, m) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &m[column..]));
            let mut part = if THROUGH { [simd.splat_f32s(0.0); N] } else { own };
            for (y, (x, _)) in y.iter().zip(&*factors) {
                let x = simd.splat_f32s(x[t]);
                (0..N).for_each(|n| part[n] = simd.mul_add_e_f32s(x, y[n], part[n]));
            }
            if THROUGH {
                (0..N).for_each(|n| own[n] = simd.mul_add_e_f32s(m[n], part[n], own[n]));
                part = own;
            }
            store_part(simd, &mut d[column..], part);
            let mut sum = simd.splat_f32s(0.0);
            (0..N).for_each(|n| sum = simd.mul_add_e_f32s(y[R - 1][n], m[n], sum));
            *out += simd.reduce_sum_f32s(sum);
        }
    }
}

/// `D += xᵀ y`, and `z += x M`: gradients of the matrix that gave `M yᵀ`, and of `y`.
pub(crate) struct Inner<'a> {
    pub(crate) d: &'a mut [f32],
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    pub(crate) m: &'a [f32],
    pub(crate) z: &'a mut [f32],
}

impl Inner<'_> {
    #[inline(always)]
    pub(crate) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for Inner<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.y.len(), &mut self);
    }
}

impl<S: Simd> Panel<S> for &mut Inner<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Inner { d, x, y, m, z } = &mut **self;
        let width = y.len();
        let y = load_part::<S, N>(simd, &y[column..]);
        let mut sums = load_part::<S, N>(simd, &z[column..]);
        for ((d, m), x) in d.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(*x) {
            let (mut own, m) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &m[column..]));
            let x = simd.splat_f32s(*x);
            for n in 0..N {
                own[n] = simd.mul_add_e_f32s(x, y[n], own[n]);
                sums[n] = simd.mul_add_e_f32s(x, m[n], sums[n]);
            }
            store_part(simd, &mut d[column..], own);
        }
        store_part(simd, &mut z[column..], sums);
    }
}
