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
    /// `[V]`, added to.
    y: &'a mut [f32],
    /// `[K]`.
    x: &'a [f32],
    /// `[K,V]`, row-major.
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
    /// `V`: a panel is a block of columns with all `K` rows.
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
    /// `[K]`, added to.
    x: &'a mut [f32],
    /// `[V]`.
    y: &'a [f32],
    /// `[K,V]`, row-major.
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

    /// `x[i] += (y * M[i]).sum()` over the panel's columns, row by row.
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

/// What becomes of a momentum `S₀`: with the write `W` it is `P = carry S₀ + W`, and after that `S = keep P`.
/// The memory gets `gain P`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Momentum {
    /// Factor of the momentum before the write.
    pub(crate) carry: f32,
    /// Share of `P` that stays in the momentum.
    pub(crate) keep: f32,
    /// Share of `P` that the memory gets; where momentum looks ahead, `1 − keep`.
    pub(crate) gain: f32,
}

impl Momentum {
    /// `S = η S₀ + W`, all of which the memory gets.
    pub(crate) fn heavy_ball(eta: f32) -> Self {
        Self { carry: eta, keep: 1.0, gain: 1.0 }
    }

    /// Parts `η` and `1 − η` of `a S₀ + W`.
    pub(crate) fn look_ahead(a: f32, log_eta: f32) -> Self {
        Self { carry: a, keep: log_eta.exp(), gain: -log_eta.exp_m1() }
    }
}

/// The write of one token and its read, in one pass over `M [K,V]` and `S [K,V]`.
///
/// With momentum `P = carry S₀ + step xᵀ y`, `S = keep P` and `M = a M₀ + gain P`.
/// Where `s` is empty, `M = a M₀ + step xᵀ y`.
/// The read is `out = q M`, or `out = q M₀` where it comes `before` the write.
pub(crate) struct FusedUpdate<'a> {
    /// Retention of the token.
    pub(crate) a: f32,
    /// Not used without `s`.
    pub(crate) momentum: Momentum,
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
    /// `[K,V]`, empty without momentum.
    pub(crate) s: &'a mut [f32],
    /// The query `[K]`; zeros where nothing is read.
    pub(crate) q: &'a [f32],
    /// Whether the read comes before the write, and so sees `M₀`.
    pub(crate) before: bool,
    /// `[V]`, set.
    pub(crate) out: &'a mut [f32],
}

impl ColumnKernel for FusedUpdate<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.y.len()
    }

    /// Both matrices go by once: a row is decayed, written and read while registers hold it.
    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let FusedUpdate { a, momentum, step, x, y, old: [old_m, old_s], m, s, q, before, out } = self;
        let (width, a, Momentum { carry, keep, gain }) = (y.len(), simd.splat_f32s(*a), *momentum);
        let [carry, keep, gain] = [carry, keep, gain].map(|x| simd.splat_f32s(x));
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
                let mut kept = load_part::<S, N>(simd, &old_s[column..]);
                for n in 0..N {
                    let pushed = simd.mul_add_e_f32s(x, y[n], simd.mul_f32s(carry, kept[n]));
                    new[n] = simd.mul_add_e_f32s(a, old[n], simd.mul_f32s(gain, pushed));
                    kept[n] = simd.mul_f32s(keep, pushed);
                }
                store_part(simd, &mut s[column..], kept);
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
    pub(crate) momentum: Momentum,
    /// `[K,V]`: the gradient of `M` when given, of `M₀` when handed back. `ds` likewise, empty without momentum.
    pub(crate) dm: &'a mut [f32],
    /// `[K,V]`: as `dm`, of `S` and `S₀`.
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
    /// `[V]`.
    pub(crate) dy: &'a mut [f32],
}

/// Gradients of a token's factors in an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FactorGrads {
    /// Of `a`.
    pub(crate) a: f32,
    /// Of `carry`; 0 without momentum.
    pub(crate) carry: f32,
    /// Of `keep` less that of `gain`: `⟨dS − dM, P⟩`; 0 unless asked for.
    pub(crate) keep: f32,
}

impl UpdateBackward<'_> {
    /// All columns. `AHEAD` asks for the gradient of `keep`; `step` is then that of the forward, and not used otherwise.
    #[inline(always)]
    pub(crate) fn run<const AHEAD: bool>(self, step: f32) -> FactorGrads {
        self.dx.fill(0.0);
        let carry = self.momentum.carry;
        let [a, of_carry, carried, written] = dispatch(UpdateBackwardCall::<AHEAD>(self));
        FactorGrads { a, carry: of_carry, keep: carry * carried + step * written }
    }
}

/// An [`UpdateBackward`]; `AHEAD` is a constant, so that momentum which does not look ahead pays nothing for it.
struct UpdateBackwardCall<'a, const AHEAD: bool>(UpdateBackward<'a>);

impl<const AHEAD: bool> WithSimd for UpdateBackwardCall<'_, AHEAD> {
    /// Gradients of `a` and `carry`, then `⟨dS − dM, S₀⟩` and `⟨dS − dM, xᵀ y⟩`.
    type Output = [f32; 4];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> [f32; 4] {
        let mut sums = [simd.splat_f32s(0.0); 4];
        let width = self.0.y.len();
        panels(simd, width, UpdateBackwardPanels::<S, AHEAD> { call: &mut self.0, sums: &mut sums });
        sums.map(|x| simd.reduce_sum_f32s(x))
    }
}

/// An [`UpdateBackward`] under way, with its sums over the whole matrix.
/// The sums stay vectors until the last panel: one horizontal sum a call.
struct UpdateBackwardPanels<'b, 'a, S: Simd, const AHEAD: bool> {
    /// Its arguments, of which a panel sees some columns.
    call: &'b mut UpdateBackward<'a>,
    /// In the order of the call's output; every lane has a part of each sum.
    sums: &'b mut [S::f32s; 4],
}

impl<S: Simd, const AHEAD: bool> Panel<S> for UpdateBackwardPanels<'_, '_, S, AHEAD> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        // Per row: dM += qᵀ dout, da += ⟨dM, M₀⟩, dP = keep dS + gain dM, then x and y, then the decay.
        let UpdateBackward { a, momentum, dm, ds, old: [m, s], seen, q, dout, dq, x, y, dx, dy } = &mut *self.call;
        let (width, a, Momentum { carry, keep, gain }) = (y.len(), simd.splat_f32s(*a), *momentum);
        let [carry, keep, gain] = [carry, keep, gain].map(|x| simd.splat_f32s(x));
        let (y, dout) = (load_part::<S, N>(simd, &y[column..]), load_part::<S, N>(simd, &dout[column..]));
        let mut sums = [simd.splat_f32s(0.0); N];
        // Sums over the whole matrix go on from panel to panel.
        let [mut da, mut dcarry, mut carried, mut written] = *self.sums;
        let mut momentum = ds.chunks_exact_mut(width).zip(s.chunks_exact(width));
        let rows = dm.chunks_exact_mut(width).zip(m.chunks_exact(width)).zip(seen.chunks_exact(width));
        // One of the two queries is zero: both reads share one loop without a branch.
        let [after, before] = *q;
        let keys = x.iter().zip(dx.iter_mut()).zip(after.iter().zip(before).zip(dq.iter_mut()));
        for (((dm, m), seen), ((&x, dx), ((&after, &before), dq))) in rows.zip(keys) {
            let [x, after, before] = [x, after, before].map(|x| simd.splat_f32s(x));
            let (mut d, m) = (load_part::<S, N>(simd, &dm[column..]), load_part::<S, N>(simd, &m[column..]));
            let seen = load_part::<S, N>(simd, &seen[column..]);
            let (mut along, mut read) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for n in 0..N {
                d[n] = simd.mul_add_e_f32s(after, dout[n], d[n]);
                da = simd.mul_add_e_f32s(d[n], m[n], da);
                read = simd.mul_add_e_f32s(dout[n], seen[n], read);
            }
            // Without momentum the update reaches `M` itself, so its gradient is that of `M`.
            let mut pushed = d;
            if let Some((ds, s)) = momentum.next() {
                let (mut old, s) = (load_part::<S, N>(simd, &ds[column..]), load_part::<S, N>(simd, &s[column..]));
                let mut apart = simd.splat_f32s(0.0);
                for n in 0..N {
                    pushed[n] = simd.mul_add_e_f32s(keep, old[n], simd.mul_f32s(gain, d[n]));
                    dcarry = simd.mul_add_e_f32s(pushed[n], s[n], dcarry);
                    if AHEAD {
                        let spread = simd.sub_f32s(old[n], d[n]);
                        carried = simd.mul_add_e_f32s(spread, s[n], carried);
                        apart = simd.mul_add_e_f32s(spread, y[n], apart);
                    }
                    old[n] = simd.mul_f32s(carry, pushed[n]);
                }
                if AHEAD {
                    written = simd.mul_add_e_f32s(x, apart, written);
                }
                store_part(simd, &mut ds[column..], old);
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
        *self.sums = [da, dcarry, carried, written];
        store_part(simd, &mut dy[column..], sums);
    }
}

/// Gradients of a matrix product and of what it was given: `D += Σ xᵢᵀ yᵢ`, and `x += y Mᵀ` with the last `y`.
///
/// `R` is the number of pairs `(xᵢ [K], yᵢ [V])`; `D` and `M` are `[K,V]`.
pub(crate) struct Rank1Update<'a, const R: usize> {
    /// `[K,V]`, added to.
    pub(crate) d: &'a mut [f32],
    pub(crate) factors: [(&'a [f32], &'a [f32]); R],
    /// `[K,V]`, only read.
    pub(crate) m: &'a [f32],
    /// `[K]`, added to.
    pub(crate) x: &'a mut [f32],
}

impl<const R: usize> Rank1Update<'_, R> {
    /// `D += sum(x[i].T @ y[i])` and `x += y[-1] @ M.T`, in one pass over both matrices.
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
    /// `[K,V]`, added to.
    pub(crate) d: &'a mut [f32],
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    pub(crate) m: &'a [f32],
    /// `[V]`, added to.
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
