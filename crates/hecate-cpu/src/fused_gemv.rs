//! What a token does with one matrix `[K,V]`, fused into one pass over it.
//!
//! A token of a rule that goes token by token does little with each element of a large memory.
//! Most of its time goes into fetching the elements.
//! What needs the same rows at the same time is therefore done in one pass: products, update and read.
//!
//! Every kernel here goes through blocks of columns ([`panels`]).
//! The block's part of the vectors `[V]` stays in registers while all `K` rows go by.
//! One thread runs a kernel: the engines are parallel over sequences and heads.

use crate::simd::{ColumnKernel, Panel, dispatch, load_part, panels, store_part};
use pulp::{Simd, WithSimd};

/// `y += x M` with `x [K]`, `M [K,V]`, `y [V]`.
struct VecMat<'a> {
    y: &'a mut [f32],
    x: &'a [f32],
    m: &'a [f32],
}

/// `y = x M`: what a query `x [K]` reads from a memory `M [K,V]`.
#[inline(always)]
pub(crate) fn read(y: &mut [f32], x: &[f32], m: &[f32]) {
    y.fill(0.0);
    VecMat { y, x, m }.run();
}

/// `y += x M`, shapes as in [`read`].
#[inline(always)]
pub(crate) fn add_read(y: &mut [f32], x: &[f32], m: &[f32]) {
    VecMat { y, x, m }.run();
}

impl ColumnKernel for VecMat<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.y.len()
    }

    #[inline(always)]
    // The sums of a block of columns stay in registers; each element of `M` is loaded once.
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let mut sums = load_part::<S, N>(simd, &self.y[column..]);
        for (m, &x) in self.m.chunks_exact(self.y.len()).zip(self.x) {
            let (m, x) = (load_part::<S, N>(simd, &m[column..]), simd.splat_f32s(x));
            (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(x, m[n], sums[n]));
        }
        store_part(simd, &mut self.y[column..], sums);
    }
}

/// `x += y Mᵀ` with `x [K]`, `y [V]`, `M [K,V]`.
struct MatVecT<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
    m: &'a [f32],
}

/// `x += y Mᵀ`, the transposed product: `x [K]`, `y [V]`, `M [K,V]`.
#[inline(always)]
pub(crate) fn add_transposed(x: &mut [f32], y: &[f32], m: &[f32]) {
    MatVecT { x, y, m }.run();
}

impl ColumnKernel for MatVecT<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.y.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let y = load_part::<S, N>(simd, &self.y[column..]);
        for (x, m) in self.x.iter_mut().zip(self.m.chunks_exact(self.y.len())) {
            let m = load_part::<S, N>(simd, &m[column..]);
            // One horizontal sum a row and block, so blocks are as wide as registers allow.
            let mut sum = simd.splat_f32s(0.0);
            (0..N).for_each(|n| sum = simd.mul_add_e_f32s(y[n], m[n], sum));
            *x += simd.reduce_sum_f32s(sum);
        }
    }
}

/// The write of one token and its read, in one pass over `M [K,V]` and `S [K,V]`.
///
/// With momentum `S = η S₀ + step xᵀ y` and `M = a M₀ + S`. Where `s` is empty, `M = a M₀ + step xᵀ y`.
/// The read is `out = q M`, or `out = q M₀` where it comes `before` the write.
pub(crate) struct FusedUpdate<'a> {
    /// Retention of the token.
    pub(crate) a: f32,
    /// Momentum of the token; not used without `s`.
    pub(crate) eta: f32,
    /// Factor of the update: minus the step size of a gradient step.
    pub(crate) step: f32,
    /// The key's side of the rank-1 update, `[K]`.
    pub(crate) x: &'a [f32],
    /// The value's side, `[V]`.
    pub(crate) y: &'a [f32],
    /// `M₀` and `S₀`, `[K,V]` each; the second is empty without momentum.
    pub(crate) old: [&'a [f32]; 2],
    /// Set: the state after the token.
    pub(crate) m: &'a mut [f32],
    pub(crate) s: &'a mut [f32],
    /// The query `[K]`; zeros where nothing is read.
    pub(crate) q: &'a [f32],
    pub(crate) before: bool,
    /// `[V]`, set.
    pub(crate) out: &'a mut [f32],
}

impl ColumnKernel for FusedUpdate<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.y.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let FusedUpdate { a, eta, step, x, y, old: [old_m, old_s], m, s, q, before, out } = self;
        let (width, a, eta) = (y.len(), simd.splat_f32s(*a), simd.splat_f32s(*eta));
        let y = load_part::<S, N>(simd, &y[column..]);
        let mut sums = [simd.splat_f32s(0.0); N];
        // Without momentum this iterator is empty, and the branch inside the loop is always the same.
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

/// The way back of [`FusedUpdate`] with `step = 1`: its gradients, in one pass over both matrices.
///
/// Gradients of `M` and `S` become those of `M₀` and `S₀`. The read of the same token is part of it.
pub(crate) struct UpdateBackward<'a> {
    /// As in the forward.
    pub(crate) a: f32,
    pub(crate) eta: f32,
    /// `[K,V]`: the gradient of `M` when given, of `M₀` when handed back. `ds` likewise, empty without momentum.
    pub(crate) dm: &'a mut [f32],
    pub(crate) ds: &'a mut [f32],
    /// `M₀` and `S₀`.
    pub(crate) old: [&'a [f32]; 2],
    /// The memory that the query read, `[K,V]`: the new or the old one.
    pub(crate) seen: &'a [f32],
    /// Queries `[K]` of a read after the write, and of one before it. One of them is zero.
    pub(crate) q: [&'a [f32]; 2],
    /// Gradient of what was read, `[V]`.
    pub(crate) dout: &'a [f32],
    /// Added to: the gradient of the query.
    pub(crate) dq: &'a mut [f32],
    /// As in the forward: `[K]` and `[V]`.
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    /// Set to the gradients of `x` and `y`.
    pub(crate) dx: &'a mut [f32],
    pub(crate) dy: &'a mut [f32],
}

impl UpdateBackward<'_> {
    /// All columns; returns the gradients of `a` and `η`.
    #[inline(always)]
    pub(crate) fn run(self) -> [f32; 2] {
        self.dx.fill(0.0);
        dispatch(self)
    }
}

impl WithSimd for UpdateBackward<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> [f32; 2] {
        let mut gates = [simd.splat_f32s(0.0); 2];
        panels(simd, self.y.len(), UpdateBackwardPanels { call: &mut self, gates: &mut gates });
        gates.map(|x| simd.reduce_sum_f32s(x))
    }
}

/// An [`UpdateBackward`] under way, with its sums for `a` and `η`.
/// The sums stay vectors until the last panel: one horizontal sum a call.
struct UpdateBackwardPanels<'b, 'a, S: Simd> {
    call: &'b mut UpdateBackward<'a>,
    gates: &'b mut [S::f32s; 2],
}

impl<S: Simd> Panel<S> for UpdateBackwardPanels<'_, '_, S> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        // Per row: dM += qᵀ dout, da += ⟨dM, M₀⟩, dS += dM, dη += ⟨dS, S₀⟩, then x and y, then the decay.
        let UpdateBackward { a, eta, dm, ds, old: [m, s], seen, q, dout, dq, x, y, dx, dy } = &mut *self.call;
        let (width, a, eta) = (y.len(), simd.splat_f32s(*a), simd.splat_f32s(*eta));
        let part = |x: &[f32]| load_part::<S, N>(simd, &x[column..]);
        let (y, dout, mut sums) = (part(y), part(dout), [simd.splat_f32s(0.0); N]);
        // Sums over the whole matrix go on from panel to panel.
        let [mut da, mut deta] = *self.gates;
        let mut momentum = ds.chunks_exact_mut(width).zip(s.chunks_exact(width));
        let rows = dm.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(seen.chunks_exact(width));
        // One of the two queries is zero: both reads share one loop without a branch.
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
            // Without momentum the update reaches `M` itself, so its gradient is that of `M`.
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

/// Gradients of a matrix product and of what it was given: `D += Σ xᵢᵀ yᵢ`, and `x += y Mᵀ` with the last `y`.
///
/// `R` is the number of pairs `(xᵢ [K], yᵢ [V])`; `D` and `M` are `[K,V]`.
pub(crate) struct Rank1Update<'a, const R: usize> {
    pub(crate) d: &'a mut [f32],
    pub(crate) factors: [(&'a [f32], &'a [f32]); R],
    pub(crate) m: &'a [f32],
    pub(crate) x: &'a mut [f32],
}

impl<const R: usize> Rank1Update<'_, R> {
    #[inline(always)]
    pub(crate) fn run(self) {
        Rank1UpdateKernel::<R, false>(self).run();
    }

    /// The same where `M` is an exponential and `D` the gradient of its argument: `D += M ∘ Σ xᵢᵀ yᵢ`.
    #[inline(always)]
    pub(crate) fn run_exponential(self) {
        Rank1UpdateKernel::<R, true>(self).run();
    }
}

/// The loops of [`Rank1Update`]. `EXPONENTIAL` is a constant, so that the plain form pays nothing for the other.
struct Rank1UpdateKernel<'a, const R: usize, const EXPONENTIAL: bool>(Rank1Update<'a, R>);

impl<const R: usize, const EXPONENTIAL: bool> ColumnKernel for Rank1UpdateKernel<'_, R, EXPONENTIAL> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.0.factors[0].1.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let Rank1Update { d, factors, m, x } = &mut self.0;
        let width = factors[0].1.len();
        let y = factors.map(|(_, y)| load_part::<S, N>(simd, &y[column..]));
        let rows = d.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(x.iter_mut());
        for (t, ((d, m), out)) in rows.enumerate() {
            let (mut own, m) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &m[column..]));
            // The plain form adds into `D` directly; the other scales the sum by `M` first.
            let mut part = if EXPONENTIAL { [simd.splat_f32s(0.0); N] } else { own };
            for (y, (x, _)) in y.iter().zip(&*factors) {
                let x = simd.splat_f32s(x[t]);
                (0..N).for_each(|n| part[n] = simd.mul_add_e_f32s(x, y[n], part[n]));
            }
            if EXPONENTIAL {
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

/// Gradients of `M yᵀ` and of `y`: `D += xᵀ y`, and `z += x M`.
///
/// `x [K]` is the gradient of `M yᵀ`; `y` and `z` are `[V]`, `D` and `M` `[K,V]`.
pub(crate) struct Rank1VecMat<'a> {
    pub(crate) d: &'a mut [f32],
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    pub(crate) m: &'a [f32],
    pub(crate) z: &'a mut [f32],
}

impl ColumnKernel for Rank1VecMat<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.y.len()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let Rank1VecMat { d, x, y, m, z } = self;
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
