//! One token backward: equations (41), (56)–(59).
//!
//! The order is that of the forward turned around: the read, the write, then the inner gradient that was written
//! ([`inner_backward`](super::inner_backward)).
//! The write's gradient is an outer product again, so it reaches the inner gradient as vectors `δ̄` and `ū_o`.
//! Buffers of the workspace are split once a function; the names of the parts are those of the equations.

use super::{
    DeepCell, Gates, Record, Scratch,
    found::Found,
    lq::{LqMap, LqPullback, LqReadBackward, LqWriteBackward},
    norm,
    retention::MappedWeights,
    softmax,
};
use crate::{
    fused_gemv::{self, FactorGrads, UpdateBackward},
    recurrent::{Cell, StateGrads, StepBackward, Token, TokenGrads, TokenStates},
    rows::{axpy, dot, scale},
};
use hecate_core::{Read, rules::Retention};
use std::ops::Range;

/// One matrix `[rows, columns]` of a memory.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    /// Its part of the state.
    pub(super) state: &'a [f32],
    /// The same slice where the state is the weights, or where powers of it are.
    pub(super) weights: &'a [f32],
    /// `ν` where the retention has one.
    pub(super) norm: f32,
}

/// One token on its way back: what its forward was given and left, and the gradient that comes in.
pub(super) struct TokenBackward<'a> {
    /// `q`, `k`, `v` and gates.
    pub(super) token: Token<'a>,
    pub(super) gates: Gates,
    /// Before it, after it, and its gradient point.
    pub(super) states: TokenStates<'a>,
    /// As in [`Advance`](super::Advance).
    pub(super) anchor: &'a [f32],
    /// Vectors of the forward.
    pub(super) record: Record<&'a [f32]>,
    /// Gradient of what the query read, `[V]`.
    pub(super) dout: &'a [f32],
}

impl<'a> TokenBackward<'a> {
    /// What the token found.
    #[inline(always)]
    fn found(&self) -> Found<'a> {
        Found { decay: self.gates.decay, state: self.states.old, anchor: self.anchor }
    }
}

impl DeepCell {
    /// Gradients of a token's arguments and of the state before it: equations (41)–(46), (56)–(59).
    #[inline(always)]
    pub(super) fn token_vjp(&self, step: StepBackward<'_, Scratch>) {
        let StepBackward { token, states, record, dout, adjoint, scratch, mut grads } = step;
        // What all parts of the backward read.
        let (gates, record) = (self.gates(token.gates), self.parts(record));
        let at = TokenBackward { token, gates, states, anchor: &[], record, dout };
        let StateGrads { state, point } = adjoint;
        // The token after this one, handled before, read the weights that are this one's new state.
        if scratch.shared {
            std::mem::swap(&mut scratch.point, &mut scratch.seen);
        }
        // From here `state` is the gradient of the state before the token.
        self.write_vjp(&at, [state, &mut []], scratch, &mut grads);
        // Where no group is frozen, the point is the state before the token: one array takes both gradients.
        let point = if self.merges_point() { &mut *state } else { point };
        self.inner_grad_vjp(&at, point, scratch, &mut grads);
        // All other reads are part of the pass of the write.
        if self.reads_apart() {
            self.read_vjp(&at, states.old, state, scratch, grads.q);
        }
        // The weights at this token's point are those that the token before read.
        scratch.shared = self.shares();
    }

    /// Back through a token's read and write, but not the inner gradient. Leaves what [`Self::write_vjp`] leaves.
    /// `state` goes from the gradient of the state after the token to that of the one before it; that of the anchor is added to.
    #[inline(always)]
    pub(super) fn outer_vjp(
        &self,
        at: &TokenBackward<'_>,
        [state, danchor]: [&mut [f32]; 2],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        self.write_vjp(at, [state, danchor], scratch, grads);
        if self.reads_apart() {
            let Scratch { hidden, value, .. } = &mut *scratch;
            // The read takes the places of what the write left.
            let (kept, width) = ([hidden[..self.d()].to_vec(), value[..self.value].to_vec()], self.d());
            self.read_vjp(at, at.states.old, state, scratch, grads.q);
            scratch.hidden[..width].copy_from_slice(&kept[0]);
            scratch.value[..self.value].copy_from_slice(&kept[1]);
        }
    }

    /// Whether a token's read is in no pass of the write: one before it, of columns that are distributions.
    #[inline(always)]
    fn reads_apart(&self) -> bool {
        matches!((self.spec.retention, self.spec.read), (Retention::Kl { .. }, Read::Before))
    }

    /// Back through the norm after a read: the gradient of what was normed into `out [V]`, the residual's into `dq`.
    #[inline(always)]
    fn read_norm_vjp(&self, at: &TokenBackward<'_>, out: &mut [f32], dq: &mut [f32]) {
        if self.spec.structure.residual() {
            axpy(dq, 1.0, at.dout);
        }
        if self.spec.structure.norm() {
            out.fill(0.0);
            norm::add_jacobian(at.record.read_normed, at.record.deviations[1], at.dout, out);
        } else {
            out.copy_from_slice(at.dout);
        }
    }

    /// What a read before the write adds to the gradients of the query and of the state `seen`, where columns are distributions.
    #[inline(always)]
    fn read_vjp(
        &self,
        at: &TokenBackward<'_>,
        seen: &[f32],
        dstate: &mut [f32],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) {
        let (first, all) = self.sizes();
        let Scratch { seen: mapped, shared, hidden, value, .. } = scratch;
        self.to_weights(seen, mapped, *shared);
        // What was read goes back through the norm, then through the layers from the last to the first.
        let out = &mut value[..self.value];
        self.read_norm_vjp(at, out, dq);
        // `[K,D]` and `[D,V]`, or `[K,V]` alone.
        let [low, high] = self.layers(seen, mapped, [1.0; 2]);
        if self.hidden.is_some() {
            let dpre = &mut hidden[..self.d()];
            // The read's gradient at the hidden layer, through the slope that the read left.
            dpre.fill(0.0);
            self.pullback(high, &mut dstate[first..all], [(at.record.read_h, out)], 0.0, dpre);
            dpre.iter_mut().zip(at.record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
            self.pullback(low, &mut dstate[..first], [(at.token.q, dpre)], 0.0, dq);
        } else {
            self.pullback(low, &mut dstate[..first], [(at.token.q, out)], 0.0, dq);
        }
    }

    /// Both matrices, or the only one; the second is then empty.
    #[inline(always)]
    pub(super) fn layers<'l>(&self, state: &'l [f32], mapped: &'l MappedWeights, norms: [f32; 2]) -> [Layer<'l>; 2] {
        let (first, all) = self.sizes();
        let weights = if let Retention::Kl { .. } = self.spec.retention { &mapped.weights } else { state };
        let layer = |part: Range<usize>, norm| Layer { state: &state[part.clone()], weights: &weights[part], norm };
        [layer(0..first, norms[0]), layer(first..all, norms[1])]
    }

    /// Adds a gradient `Σ xᵢᵀ yᵢ` of a layer's weights to that of its state `d`.
    /// `x` gets `y Wᵀ` with the last `y`; `along` is `Σ xᵢ W yᵢᵀ`, which L_q alone needs.
    #[inline(always)]
    pub(super) fn pullback<const R: usize>(
        &self,
        layer: Layer<'_>,
        d: &mut [f32],
        factors: [(&[f32], &[f32]); R],
        along: f32,
        x: &mut [f32],
    ) {
        // With decay the weights are the state; with KL their gradient carries the weight itself as a factor.
        let Layer { state, weights, norm } = layer;
        match self.spec.retention {
            Retention::Decay => fused_gemv::Rank1Update { d, factors, m: weights, x }.run(),
            Retention::Kl { .. } => fused_gemv::Rank1Update { d, factors, m: weights, x }.run_exponential(),
            Retention::Lq { q, map } => LqPullback { map: LqMap { q, map }, state, norm, factors, along, d, x }.run(),
        }
    }

    /// Back through the write: equations (56)–(58), the first half of (59), and the read where it is on the way.
    ///
    /// Gradients of the gates and the query are set.
    /// Of (41), `h̄` is left in `hidden[0]`, `δ̄` in `hidden[1]`, `ū_o` in `value[0]`, each `[D]` or `[V]`.
    #[inline(always)]
    fn write_vjp(
        &self,
        at: &TokenBackward<'_>,
        [dstate, danchor]: [&mut [f32]; 2],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        let dstates = [dstate, danchor];
        let Gates { decay, eta, theta, .. } = at.gates;
        // Mapped states have no momentum.
        let [da, deta] = match self.spec.retention {
            Retention::Kl { scale } => [self.write_vjp_columns(at, scale, dstates, scratch, grads.q), 0.0],
            Retention::Lq { q, map } => [self.write_vjp_powers(at, LqMap { q, map }, dstates, scratch, grads.q), 0.0],
            Retention::Decay => self.write_vjp_plain(at, dstates[0], scratch, grads.q),
        };
        let Scratch { hidden, value, key, .. } = scratch;
        let ([du_o], [dh, ddelta]) = (split(value, self.value), split(hidden, self.d()));
        // The gates are logarithms: their gradients carry the gate itself as a factor.
        grads.gates[0] = decay.a * da;
        // Gates come in the order `log_a`, `log_eta`, `theta`, `delta`, without those that the rule does not have.
        let momentum = usize::from(self.form.momentum());
        if self.form.momentum() {
            grads.gates[1] = eta * deta;
        }
        // What was written is −θ times the outer products.
        grads.gates[1 + momentum] = -dot(at.token.k, key) - dot(at.record.h, dh);
        axpy(grads.k, -theta, key);
        [dh, ddelta, du_o].into_iter().for_each(|x| scale(x, -theta));
    }

    /// [`Self::write_vjp`] of both matrices where the state is the weights. The read is part of the same pass.
    /// Returns the gradients of `a` and `η`.
    #[inline(always)]
    fn write_vjp_plain(
        &self,
        at: &TokenBackward<'_>,
        dstate: &mut [f32],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) -> [f32; 2] {
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let TokenBackward { token, states, record, .. } = at;
        let Scratch { hidden, value, key, zeros, .. } = scratch;
        // A state is all weights, then all momentum; the gradient has the same layout.
        let (dm, ds) = dstate.split_at_mut(all);
        let (old, old_s) = states.old.split_at(all);
        let [du_o, _, _, _, _, dread] = split(value, v);
        let [dh, ddelta, _, _, dpre] = split(hidden, d);
        self.read_norm_vjp(at, dread, dq);
        let queries = |q| self.queries(q, zeros);
        // The memory that the token read: after its write, or before.
        let seen = if self.spec.read == Read::After { states.new } else { states.old };
        // Without momentum `ds` is empty, and so are both its parts.
        let (cut, Gates { decay, momentum, theta, .. }) = (first.min(ds.len()), at.gates);
        let a = decay.a;
        let ((dm, dm_high), (ds, ds_high)) = (dm.split_at_mut(first), ds.split_at_mut(cut));
        let ((m, m_high), (s, s_high)) = (old.split_at(first), old_s.split_at(cut));
        // The last layer comes first: its read's gradient goes on to the hidden layer.
        let mut high = [0.0; 2];
        let ahead = self.spec.looks_ahead();
        let gates = |call: UpdateBackward<'_>| {
            // Where momentum looks ahead, `a` is what is carried of it too, and `η` what is kept.
            if ahead {
                let FactorGrads { a, carry, keep } = call.run::<true>(-theta);
                return [a + carry, keep];
            }
            let FactorGrads { a, carry, .. } = call.run::<false>(0.0);
            [a, carry]
        };
        if self.hidden.is_some() {
            // The update's kernel adds to its query's gradient.
            dpre.fill(0.0);
            let (old, seen, q) = ([m_high, s_high], &seen[first..all], queries(record.read_h));
            let (dm, ds, dout, dq, x, y) = (dm_high, ds_high, &*dread, &mut *dpre, record.h, record.u_o);
            let (dx, dy) = (dh, &mut *du_o);
            high = gates(UpdateBackward { a, momentum, dm, ds, old, seen, q, dout, dq, x, y, dx, dy });
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
        }
        let (dout, y, dy) = match self.hidden {
            Some(_) => (&*dpre, record.delta, &mut *ddelta),
            None => (&*dread, record.u_o, &mut *du_o),
        };
        let (x, q, old, dx) = (token.k, queries(token.q), [m, s], &mut *key);
        // Then the first layer, or the only one.
        let low = gates(UpdateBackward { a, momentum, dm, ds, old, seen, q, dout, dq, x, y, dx, dy });
        // One retention and one momentum gate serve both layers: their gradients add up.
        [low[0] + high[0], low[1] + high[1]]
    }

    /// Queries after the write and before it.
    #[inline(always)]
    fn queries<'q>(&self, q: &'q [f32], zeros: &'q [f32]) -> [&'q [f32]; 2] {
        match self.spec.read {
            Read::After => [q, zeros],
            Read::Before => [zeros, q],
        }
    }

    /// [`Self::write_vjp`] of both matrices where weights are powers of the state. Returns the gradient of `a`.
    #[inline(always)]
    fn write_vjp_powers(
        &self,
        at: &TokenBackward<'_>,
        map: LqMap,
        [dstate, danchor]: [&mut [f32]; 2],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) -> f32 {
        let ((first, _), TokenBackward { token, record, .. }) = (self.sizes(), at);
        let Scratch { hidden, value, key, .. } = scratch;
        let [du_o, _, _, _, _, dread] = split(value, self.value);
        let [dh, ddelta, _, _, dpre] = split(hidden, self.d());
        self.read_norm_vjp(at, dread, dq);
        let (step, before) = (-at.gates.theta, self.spec.read == Read::Before);
        let (d, d_high) = dstate.split_at_mut(first);
        let (danchor, danchor_high) = danchor.split_at_mut(first.min(danchor.len()));
        let [found, found_high] = at.found().layers(first);
        let (norm, norm_high) = (record.norms[2], record.norms[3]);
        let [read_pre, read_output] = [record.read_pre, record.read_output];
        // The last layer comes first: its read's gradient goes on to the hidden layer.
        let mut high = 0.0;
        if self.hidden.is_some() {
            dpre.fill(0.0);
            let (query, x, y, along) = (record.read_h, record.h, record.u_o, dot(dread, read_output));
            let (found, d, danchor, norm) = (found_high, d_high, danchor_high, norm_high);
            let (dout, dquery, dx, dy) = (&*dread, &mut *dpre, &mut *dh, &mut *du_o);
            let read = LqReadBackward { before, norm, along, query, dout, dquery };
            let call = LqWriteBackward { map, found, step, d, danchor, read, x, y, dx, dy };
            high = call.run();
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
        }
        let (dout, y, dy, along) = match self.hidden {
            Some(_) => (&*dpre, record.delta, ddelta, dot(dpre, read_pre)),
            None => (&*dread, record.u_o, du_o, dot(dread, read_output)),
        };
        let (query, x, dquery, dx) = (token.q, token.k, dq, &mut *key);
        let read = LqReadBackward { before, norm, along, query, dout, dquery };
        high + LqWriteBackward { map, found, step, d, danchor, read, x, y, dx, dy }.run()
    }

    /// [`Self::write_vjp`] of both matrices where columns go through a log-softmax, and of a read after it.
    /// Returns the gradient of `a`. The weights of the new state are left where tokens read them.
    #[inline(always)]
    fn write_vjp_columns(
        &self,
        at: &TokenBackward<'_>,
        scale: f32,
        [dstate, danchor]: [&mut [f32]; 2],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) -> f32 {
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let TokenBackward { token, states, record, .. } = at;
        let Scratch { hidden, value, key, zeros, seen: weights, shared, late, query: centred, .. } = scratch;
        let weights = self.to_weights(states.new, weights, *shared);
        // Powers that come without their columns' factors get them on the way.
        let (factors, factors_high) = if late.on { late.factors.split_at(d) } else { Default::default() };
        let [du_o, _, _, _, _, dread] = split(value, v);
        let [dh, ddelta, _, _, dpre] = split(hidden, d);
        let after = self.spec.read == Read::After;
        match after {
            true => self.read_norm_vjp(at, dread, dq),
            false => dread.fill(0.0),
        }
        // A read before the write saw other weights: it is done apart, and reads nothing here.
        let zeros: &[f32] = zeros;
        // A query of zeros adds nothing to a gradient, and saves a second kind of pass.
        let query = |q| if after { q } else { zeros };
        let norms = self.spec.structure.norm();
        let ((dx, dx_high), (w, w_high)) = (dstate.split_at_mut(first), weights.layers.split_at(first));
        let (danchor, danchor_high) = danchor.split_at_mut(first.min(danchor.len()));
        let [found, found_high] = at.found().layers(first);
        // The last layer comes first here too.
        let mut high = 0.0;
        if self.hidden.is_some() {
            dpre.fill(0.0);
            let read_h = query(record.read_h);
            let q = if norms { softmax::centred(read_h, centred) } else { read_h };
            let (y, z, dy, dz) = (record.h, record.u_o, &mut *dh, &mut *du_o);
            let (found, dx, danchor, w) = (found_high, &mut dx_high[..all - first], danchor_high, w_high);
            let (dout, dq, factors) = (&*dread, &mut *dpre, factors_high);
            high = softmax::KlWriteBackward { found, scale, dx, danchor, w, factors, q, dout, dq, y, z, dy, dz }.run();
            if norms {
                softmax::centre(dpre);
            }
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
        }
        let (dout, z, dz, factors) = match self.hidden {
            Some(_) => (&*dpre, record.delta, ddelta, factors),
            None => (&*dread, record.u_o, du_o, factors_high),
        };
        let (y, dy, q) = (token.k, key, query(token.q));
        high + softmax::KlWriteBackward { found, scale, dx, danchor, w, factors, q, dout, dq, y, z, dy, dz }.run()
    }
}

/// The first `N` parts of `width` elements.
#[inline(always)]
pub(super) fn split<const N: usize>(mut rest: &mut [f32], width: usize) -> [&mut [f32]; N] {
    std::array::from_fn(|_| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(width);
        rest = others;
        own
    })
}
