//! Weights that are powers of the state: the L_q map of (54), and what a token does around it.
//!
//! `W = ν^(2−q) B` with `B = |X|^(q−2) X`, or `X` for the literal map. The factor is one number of a matrix, so passes keep `B` and
//! multiply what was read. The write, the sum for `ν` and the read are then one pass.
//! The way back has `ν` from the forward and makes powers as it goes by. No weights are stored for it.
//!
//! A state after its write is made again from the one before it, which is what the pass has at hand.
//! So the read, the write and both of their ways back touch the state once and its gradient once.
//!
//! The pullback adds a multiple of `|X|^(q−2) X` to every element. Its factor is `⟨W, dW⟩`, a product of vectors that
//! the forward left.

use super::{
    found::{Found, add_given, load_found},
    retention,
};
use crate::{
    primitives::exp::power_vector,
    simd::{Panel, dispatch, load_part, panels, store_part},
};
use hecate_core::rules::{LQ_EPSILON, Map};
use pulp::{Simd, WithSimd};

/// The map at one matrix: `q`, and which of (54).
#[derive(Clone, Copy)]
pub(super) struct LqMap {
    /// At least 2.
    pub(super) q: f32,
    /// Mirror or literal.
    pub(super) map: Map,
}

/// Powers of elements; `Q` is `q` where that is 2, 3 or 4, which loops are compiled for, else 0.
#[derive(Clone, Copy)]
struct Powers<S: Simd, const Q: u32> {
    simd: S,
    q: f32,
    /// All elements or none: a branch would be taken element by element.
    literal: S::m32s,
}

impl<S: Simd, const Q: u32> Powers<S, Q> {
    /// What `x` is multiplied by to be a part of `B`, and `|x|^(q−2)`.
    #[inline(always)]
    fn of(self, x: S::f32s) -> [S::f32s; 2] {
        let Self { simd, q, literal } = self;
        let power = match Q {
            2 => simd.splat_f32s(1.0),
            3 => simd.abs_f32s(x),
            4 => simd.mul_f32s(x, x),
            _ => power_vector(simd, simd.abs_f32s(x), q - 2.0),
        };
        [simd.select_f32s(literal, simd.splat_f32s(1.0), power), power]
    }
}

/// `$body` with [`Powers`] that loops are compiled for.
macro_rules! by_power {
    ($simd:expr, $map:expr, |$power:ident| $body:expr) => {
        by_power!($simd, $map, $power, $body, 2.0 => 2, 3.0 => 3, 4.0 => 4, _ => 0)
    };
    ($simd:expr, $map:expr, $power:ident, $body:expr, $($q:pat => $known:literal),*) => {{
        let (simd, q, chosen) = ($simd, $map.q, if $map.map == Map::Literal { 1.0 } else { -1.0 });
        let literal = simd.less_than_f32s(simd.splat_f32s(0.0), simd.splat_f32s(chosen));
        match q {
            $($q => {
                let $power = Powers::<S, $known> { simd, q, literal };
                $body
            })*
        }
    }};
}

/// Numbers of the map at one state.
pub(super) struct AtState {
    /// `ν^(2−q)`.
    factor: f32,
    /// What a gradient of an element's weight is multiplied by: a constant, and a factor of the power.
    pub(super) slopes: [f32; 2],
    /// `(2−q) ν^(−q) ⟨W, dW⟩`: what every `|x|^(q−2) x` is multiplied by in the pullback.
    pub(super) shared: f32,
}

impl LqMap {
    /// `ν^(2−q)`.
    #[inline(always)]
    pub(super) fn factor(self, norm: f32) -> f32 {
        f64::from(norm).powf(2.0 - f64::from(self.q)) as f32
    }

    /// All numbers, from `ν` and `⟨W, dW⟩`.
    #[inline(always)]
    pub(super) fn at(self, norm: f32, along: f32) -> AtState {
        let (factor, q) = (self.factor(norm), f64::from(self.q));
        let slopes = match self.map {
            Map::Literal => [factor, 0.0],
            Map::Mirror => [0.0, (self.q - 1.0) * factor],
        };
        AtState { factor, slopes, shared: ((2.0 - q) * f64::from(norm).powf(-q) * f64::from(along)) as f32 }
    }
}

/// `X = X₀ + step xᵀ y` of what was found, its `B`, and the read `out = query B`, in one pass.
pub(super) struct LqWrite<'a> {
    pub(super) map: LqMap,
    /// `X₀ [K,V]`.
    pub(super) found: Found<'a>,
    /// Minus the step size.
    pub(super) step: f32,
    /// `[K]` and `[V]`.
    pub(super) x: &'a [f32],
    pub(super) y: &'a [f32],
    /// `X [K,V]`, set.
    pub(super) new: &'a mut [f32],
    /// `B [K,V]`, set; empty where nobody asks for it.
    pub(super) weights: &'a mut [f32],
    /// `[K]`.
    pub(super) query: &'a [f32],
    /// `[V]`, set.
    pub(super) out: &'a mut [f32],
}

impl LqWrite<'_> {
    /// `ν`; none where 32 bits may not hold its powers, and `B` and what was read say nothing.
    #[inline(always)]
    pub(super) fn run(self) -> Option<f32> {
        let q = f64::from(self.map.q);
        let sum = dispatch(self);
        // NaN and infinity are not less than anything: they take the slow way, by the largest element.
        (sum < retention::WIDE).then(|| (sum + f64::from(LQ_EPSILON)).powf(q.recip()) as f32)
    }
}

// The number of columns is that of `y`, as everywhere here.
impl WithSimd for LqWrite<'_> {
    /// `Σ |X|^q`.
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> f64 {
        let (columns, mut sum, call) = (self.y.len(), 0.0, &mut self);
        by_power!(simd, call.map, |power| panels(simd, columns, WritePanels { call, power, sum: &mut sum }));
        sum
    }
}

/// An [`LqWrite`] under way.
struct WritePanels<'b, 'a, P> {
    call: &'b mut LqWrite<'a>,
    /// [`Powers`] of a known `q`.
    power: P,
    /// `Σ |X|^q` of all panels.
    sum: &'b mut f64,
}

impl<S: Simd, const Q: u32> Panel<S> for WritePanels<'_, '_, Powers<S, Q>> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let LqWrite { found, step, x, y, new, weights, query, out, .. } = &mut *self.call;
        let (width, a, y) = (y.len(), simd.splat_f32s(found.decay.a), load_part::<S, N>(simd, &y[column..]));
        let [mut read, mut norms] = [[simd.splat_f32s(0.0); N]; 2];
        let ([olds, mut anchors], mut weights) = (found.rows(width), weights.chunks_exact_mut(width));
        let rows = new.chunks_exact_mut(width).zip(olds);
        for ((new, old), (x, query)) in rows.zip(x.iter().zip(*query)) {
            let (x, query) = (simd.splat_f32s(*step * x), simd.splat_f32s(*query));
            let [mut next, anchor] = load_found::<S, N>(simd, old, anchors.next(), column);
            let mut made = next;
            // The new state, its power, and what both give, while they are in registers.
            for n in 0..N {
                next[n] = simd.mul_add_e_f32s(x, y[n], simd.mul_add_e_f32s(a, next[n], anchor[n]));
                let [own, power] = self.power.of(next[n]);
                made[n] = simd.mul_f32s(own, next[n]);
                read[n] = simd.mul_add_e_f32s(query, made[n], read[n]);
                norms[n] = simd.mul_add_e_f32s(simd.mul_f32s(power, next[n]), next[n], norms[n]);
            }
            store_part(simd, &mut new[column..], next);
            if let Some(weights) = weights.next() {
                store_part(simd, &mut weights[column..], made);
            }
        }
        store_part(simd, &mut out[column..], read);
        // Sums down the rows have 32 bits, sums of panels 64.
        let mut norm = simd.splat_f32s(0.0);
        for other in norms {
            norm = simd.add_f32s(norm, other);
        }
        *self.sum += f64::from(simd.reduce_sum_f32s(norm));
    }
}

/// A token's read on the way back of its write.
pub(super) struct LqReadBackward<'a> {
    /// Whether the token read before its write.
    pub(super) before: bool,
    /// `ν` where the token read.
    pub(super) norm: f32,
    /// `⟨W, dW⟩` of the read.
    pub(super) along: f32,
    /// `[K]`.
    pub(super) query: &'a [f32],
    /// Gradient of what was read, `[V]`.
    pub(super) dout: &'a [f32],
    /// Added to: the gradient of the query.
    pub(super) dquery: &'a mut [f32],
}

/// The way back of [`LqWrite`] with `step = 1`, and of its token's read.
pub(super) struct LqWriteBackward<'a> {
    pub(super) map: LqMap,
    /// `X₀`.
    pub(super) found: Found<'a>,
    /// Minus the step size: states after the write are made again from those before it.
    pub(super) step: f32,
    /// `[K,V]`: gradient of the new state, becomes that of the old one.
    pub(super) d: &'a mut [f32],
    /// Added to: the gradient of the anchor, as long as that.
    pub(super) danchor: &'a mut [f32],
    pub(super) read: LqReadBackward<'a>,
    /// `[K]` and `[V]`.
    pub(super) x: &'a [f32],
    pub(super) y: &'a [f32],
    /// Set to the gradients of `x` and `y`.
    pub(super) dx: &'a mut [f32],
    pub(super) dy: &'a mut [f32],
}

impl LqWriteBackward<'_> {
    /// The gradient of `a`.
    #[inline(always)]
    pub(super) fn run(self) -> f32 {
        self.dx.fill(0.0);
        dispatch(self)
    }
}

impl WithSimd for LqWriteBackward<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> f32 {
        // The sum for `a` stays a vector until the last panel.
        let (columns, mut da, call) = (self.y.len(), simd.splat_f32s(0.0), &mut self);
        let at = call.map.at(call.read.norm, call.read.along);
        by_power!(simd, call.map, |power| panels(simd, columns, BackwardPanels { call, power, at, da: &mut da }));
        simd.reduce_sum_f32s(da)
    }
}

/// An [`LqWriteBackward`] under way, and its sum for `a`.
struct BackwardPanels<'b, 'a, S: Simd, P> {
    call: &'b mut LqWriteBackward<'a>,
    power: P,
    at: AtState,
    da: &'b mut S::f32s,
}

impl<S: Simd, const Q: u32> Panel<S> for BackwardPanels<'_, '_, S, Powers<S, Q>> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let LqWriteBackward { found, step, d, danchor, read, x, y, dx, dy, .. } = &mut *self.call;
        let LqReadBackward { before, query, dout, dquery, .. } = read;
        let AtState { factor, slopes: [own, through], shared } = self.at;
        let [factor, own, through, shared] = [factor, own, through, shared].map(|x| simd.splat_f32s(x));
        // What is kept of a state's distance from its anchor, and what the anchor gets.
        let [a, lost] = [found.decay.a, found.decay.lost].map(|x| simd.splat_f32s(x));
        let (width, y) = (y.len(), load_part::<S, N>(simd, &y[column..]));
        let dout = load_part::<S, N>(simd, &dout[column..]);
        let (mut da, mut sums) = (*self.da, [simd.splat_f32s(0.0); N]);
        let ([olds, mut anchors], mut danchors) = (found.rows(width), danchor.chunks_exact_mut(width));
        let rows = d.chunks_exact_mut(width).zip(olds);
        let keys = x.iter().zip(dx.iter_mut()).zip(query.iter().zip(dquery.iter_mut()));
        for ((d, old), ((x, dx), (query, dquery))) in rows.zip(keys) {
            let mut dnew = load_part::<S, N>(simd, &d[column..]);
            let [lag, anchor] = load_found::<S, N>(simd, old, anchors.next(), column);
            let mut given = anchor;
            let [step, x, query] = [*step * x, *x, *query].map(|x| simd.splat_f32s(x));
            // Two sums along the row: for the query, and for `x`.
            let [mut read, mut write] = [simd.splat_f32s(0.0); 2];
            for n in 0..N {
                // The state that was read, and what the read leaves for it.
                let new = simd.mul_add_e_f32s(step, y[n], simd.mul_add_e_f32s(a, lag[n], anchor[n]));
                // No token with an anchor reads before its write.
                let seen = if *before { lag[n] } else { new };
                let [weight, power] = self.power.of(seen);
                read = simd.mul_add_e_f32s(simd.mul_f32s(weight, seen), dout[n], read);
                let slope = simd.mul_add_e_f32s(through, power, own);
                let all = simd.mul_f32s(simd.mul_f32s(shared, power), seen);
                let pulled = simd.mul_add_e_f32s(slope, simd.mul_f32s(query, dout[n]), all);
                let after = if *before { dnew[n] } else { simd.add_f32s(dnew[n], pulled) };
                // Then the write.
                da = simd.mul_add_e_f32s(after, lag[n], da);
                write = simd.mul_add_e_f32s(after, y[n], write);
                sums[n] = simd.mul_add_e_f32s(x, after, sums[n]);
                given[n] = simd.mul_f32s(lost, after);
                dnew[n] = simd.mul_f32s(a, after);
                // What a read before the write leaves is of the old state itself.
                if *before {
                    dnew[n] = simd.add_f32s(dnew[n], pulled);
                }
            }
            store_part(simd, &mut d[column..], dnew);
            add_given(simd, danchors.next(), column, given);
            *dx += simd.reduce_sum_f32s(write);
            *dquery += simd.reduce_sum_f32s(simd.mul_f32s(factor, read));
        }
        *self.da = da;
        store_part(simd, &mut dy[column..], sums);
    }
}

/// A gradient `Σ xᵢᵀ yᵢ` of a matrix's weights on its way to the state: (54), in one pass over `X` and `D`.
pub(super) struct LqPullback<'a, const R: usize> {
    pub(super) map: LqMap,
    /// `X [K,V]`.
    pub(super) state: &'a [f32],
    /// `ν`.
    pub(super) norm: f32,
    /// `(xᵢ [K], yᵢ [V])`.
    pub(super) factors: [(&'a [f32], &'a [f32]); R],
    /// `⟨W, dW⟩`, that is `Σ xᵢ W yᵢᵀ`.
    pub(super) along: f32,
    /// Added to: the gradient of the state.
    pub(super) d: &'a mut [f32],
    /// Added to: `y Wᵀ` with the last `y`.
    pub(super) x: &'a mut [f32],
}

impl<const R: usize> LqPullback<'_, R> {
    #[inline(always)]
    pub(super) fn run(self) {
        dispatch(self);
    }
}

impl<const R: usize> WithSimd for LqPullback<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, at, call) = (self.factors[0].1.len(), self.map.at(self.norm, self.along), &mut self);
        by_power!(simd, call.map, |power| panels(simd, columns, PullbackPanels { call, power, at }));
    }
}

/// An [`LqPullback`] under way.
struct PullbackPanels<'b, 'a, const R: usize, P> {
    call: &'b mut LqPullback<'a, R>,
    power: P,
    at: AtState,
}

impl<S: Simd, const R: usize, const Q: u32> Panel<S> for PullbackPanels<'_, '_, R, Powers<S, Q>> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let LqPullback { state, factors, d, x, .. } = &mut *self.call;
        let AtState { factor, slopes: [own, through], shared } = self.at;
        let [factor, own, through, shared] = [factor, own, through, shared].map(|x| simd.splat_f32s(x));
        // Rows of the state and of its gradient are loaded once, and one of them is stored.
        // The block's part of every `yᵢ` stays in registers while the rows go by.
        let (width, y) = (factors[0].1.len(), factors.map(|(_, y)| load_part::<S, N>(simd, &y[column..])));
        let rows = d.chunks_exact_mut(width).zip(state.chunks_exact(width)).zip(x.iter_mut());
        for (t, ((d, state), out)) in rows.enumerate() {
            let (mut own_d, state) = (load_part::<S, N>(simd, &d[column..]), load_part::<S, N>(simd, &state[column..]));
            // One row of the gradient of the weights, never stored.
            let (mut part, mut read) = ([simd.splat_f32s(0.0); N], simd.splat_f32s(0.0));
            for (y, (x, _)) in y.iter().zip(&*factors) {
                let x = simd.splat_f32s(x[t]);
                (0..N).for_each(|n| part[n] = simd.mul_add_e_f32s(x, y[n], part[n]));
            }
            // The same power serves the product with `y` and both terms of the pullback.
            for n in 0..N {
                let [weight, power] = self.power.of(state[n]);
                read = simd.mul_add_e_f32s(simd.mul_f32s(weight, state[n]), y[R - 1][n], read);
                let slope = simd.mul_add_e_f32s(through, power, own);
                let sum = simd.mul_add_e_f32s(simd.mul_f32s(shared, power), state[n], own_d[n]);
                own_d[n] = simd.mul_add_e_f32s(slope, part[n], sum);
            }
            store_part(simd, &mut d[column..], own_d);
            *out += simd.reduce_sum_f32s(simd.mul_f32s(factor, read));
        }
    }
}

/// `out += x W` with `x [K]`, `out [V]`.
pub(super) struct LqRead<'a> {
    pub(super) map: LqMap,
    /// `X [K,V]`.
    pub(super) state: &'a [f32],
    /// `ν`.
    pub(super) norm: f32,
    /// `[K]`.
    pub(super) x: &'a [f32],
    /// `[V]`, added to.
    pub(super) out: &'a mut [f32],
}

impl LqRead<'_> {
    #[inline(always)]
    pub(super) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for LqRead<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, factor, call) = (self.out.len(), self.map.factor(self.norm), &mut self);
        by_power!(simd, call.map, |power| panels(simd, columns, ReadPanels { call, power, factor }));
    }
}

/// An [`LqRead`] under way.
struct ReadPanels<'b, 'a, P> {
    call: &'b mut LqRead<'a>,
    power: P,
    factor: f32,
}

impl<S: Simd, const Q: u32> Panel<S> for ReadPanels<'_, '_, Powers<S, Q>> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let LqRead { state, x, out, .. } = &mut *self.call;
        let (width, factor) = (out.len(), simd.splat_f32s(self.factor));
        let mut sums = [simd.splat_f32s(0.0); N];
        for (state, x) in state.chunks_exact(width).zip(*x) {
            let (state, x) = (load_part::<S, N>(simd, &state[column..]), simd.splat_f32s(*x));
            for n in 0..N {
                let [weight, _] = self.power.of(state[n]);
                sums[n] = simd.mul_add_e_f32s(x, simd.mul_f32s(weight, state[n]), sums[n]);
            }
        }
        // The factor is taken in once a column.
        let mut all = load_part::<S, N>(simd, &out[column..]);
        (0..N).for_each(|n| all[n] = simd.mul_add_e_f32s(factor, sums[n], all[n]));
        store_part(simd, &mut out[column..], all);
    }
}
