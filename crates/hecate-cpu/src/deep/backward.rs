//! One token backward: equations (41)–(46), (56)–(59).

use super::{
    DeepCell, Gates, Record, Scratch,
    activation::curve,
    bias, norm,
    retention::{self, Exposed},
    softmax,
};
use crate::{
    recurrent::{Adjoint, Cell, States, Token, TokenGrads},
    rows::{axpy, dot, scale},
    sweep,
};
use hecate_core::{
    Read,
    rules::{Bias, Retention},
};
use std::ops::Range;

/// One matrix: its state, its weights, and its `ν` where it has one.
#[derive(Clone, Copy)]
struct Layer<'a> {
    state: &'a [f32],
    weights: &'a [f32],
    norm: f64,
}

impl DeepCell {
    #[expect(clippy::too_many_arguments, reason = "those of the cell")]
    #[inline(always)]
    pub(super) fn turn(
        &self,
        token: Token<'_>,
        states: States<'_>,
        record: &Record<&[f32]>,
        dout: &[f32],
        adjoint: Adjoint<'_>,
        scratch: &mut Scratch,
        mut grads: TokenGrads<'_>,
    ) {
        let gates = self.gates(token.gates);
        let (mapped, after) = (self.is_mapped(), self.deep.read == Read::After);
        let Adjoint { state, point } = adjoint;
        if scratch.shared {
            std::mem::swap(&mut scratch.point, &mut scratch.seen);
        }
        if self.pulls() && after {
            self.unread(token, states.new, record, dout, state, scratch, grads.q);
        }
        self.unwrite(token, &gates, states, record, dout, state, scratch, &mut grads);
        let point = if self.merges() { &mut *state } else { point };
        self.unlearn(token, &gates, states.point, record, point, scratch, &mut grads);
        if mapped && !after {
            self.unread(token, states.old, record, dout, state, scratch, grads.q);
        }
        scratch.shared = self.shares();
    }

    /// Back through the norm behind a read, into `out`.
    #[inline(always)]
    fn unnorm(&self, record: &Record<&[f32]>, dout: &[f32], out: &mut [f32], dq: &mut [f32]) {
        if self.deep.structure.residual() {
            axpy(dq, 1.0, dout);
        }
        if self.deep.structure.norm() {
            out.fill(0.0);
            norm::add_jacobian(record.read_normed, record.deviations[1], dout, out);
        } else {
            out.copy_from_slice(dout);
        }
    }

    /// What the read adds to the gradients of the query and of the state that it saw, where that is not the weights.
    #[expect(clippy::too_many_arguments, reason = "arguments, state, results")]
    #[inline(always)]
    fn unread(
        &self,
        token: Token<'_>,
        seen: &[f32],
        record: &Record<&[f32]>,
        dout: &[f32],
        dstate: &mut [f32],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) {
        let (first, all) = self.sizes();
        let Scratch { seen: exposed, shared, hidden, value, answer, .. } = scratch;
        self.exposed(seen, exposed, *shared);
        let out = &mut value[..self.value];
        self.unnorm(record, dout, out, dq);
        let [low, high] = self.layers(seen, exposed);
        if self.hidden.is_some() {
            let dpre = &mut hidden[..self.d()];
            dpre.fill(0.0);
            self.descend(high, &mut dstate[first..all], [(record.read_h, out)], 0.0, dpre, answer);
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
            self.descend(low, &mut dstate[..first], [(token.q, dpre)], 0.0, dq, answer);
        } else {
            self.descend(low, &mut dstate[..first], [(token.q, out)], 0.0, dq, answer);
        }
    }

    /// Both matrices, or the only one.
    #[inline(always)]
    fn layers<'l>(&self, state: &'l [f32], exposed: &'l Exposed) -> [Layer<'l>; 2] {
        let (first, all) = self.sizes();
        let weights = if self.is_mapped() { &exposed.weights } else { state };
        let layer = |part: Range<usize>, norm| Layer { state: &state[part.clone()], weights: &weights[part], norm };
        [layer(0..first, exposed.norms[0]), layer(first..all, exposed.norms[1])]
    }

    /// Adds a gradient `Σ xᵢᵀ yᵢ` of weights to that of the state, and to `x` what the weights answer to the last `y`.
    /// `before` is `Σ xᵢ W yᵢᵀ` of the others.
    #[inline(always)]
    fn descend<const R: usize>(
        &self,
        layer: Layer<'_>,
        d: &mut [f32],
        factors: [(&[f32], &[f32]); R],
        before: f32,
        x: &mut [f32],
        answer: &mut [f32],
    ) {
        let Layer { state, weights, norm } = layer;
        match self.deep.retention {
            Retention::Decay => sweep::Outer { d, factors, m: weights, x }.run(),
            Retention::Kl { .. } => sweep::Outer { d, factors, m: weights, x }.through(),
            Retention::Lq { q, map } => {
                let answer = &mut answer[..x.len()];
                retention::Pull { q, map, state, weights, norm, factors, before, d, x, answer }.run();
            }
        }
    }

    /// Equations (56)–(58) and the first half of (59), and the read where it is on the way: gradients of the gates and the
    /// query, and with `Ḡ` what (41) begins with: in scratch `hidden[0]` `h̄`, `hidden[1]` `δ̄`, `value[0]` `ū_o`, and `dk`.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    fn unwrite(
        &self,
        token: Token<'_>,
        gates: &Gates,
        states: States<'_>,
        record: &Record<&[f32]>,
        dout: &[f32],
        dstate: &mut [f32],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        let Gates { a, eta, theta, .. } = *gates;
        let [da, deta] = match self.deep.retention {
            Retention::Kl { scale } => {
                [self.unwrite_columns(token, a, scale, states, record, dout, dstate, scratch, grads.q), 0.0]
            }
            _ => self.unwrite_plain(token, gates, states, record, dout, dstate, scratch, grads.q),
        };
        let Scratch { hidden, value, key, .. } = scratch;
        let ([du_o], [dh, ddelta]) = (split(value, self.value), split(hidden, self.d()));
        grads.gates[0] = a * da;
        let momentum = usize::from(self.deep.momentum);
        if self.deep.momentum {
            grads.gates[1] = eta * deta;
        }
        grads.gates[1 + momentum] = -dot(token.k, key) - dot(record.h, dh);
        axpy(grads.k, -theta, key);
        [dh, ddelta, du_o].into_iter().for_each(|x| scale(x, -theta));
    }

    /// [`Self::unwrite`] of both matrices where what is written is what is kept, and where it is the weights also of the
    /// read: the gradients of `a` and `η`.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    fn unwrite_plain(
        &self,
        token: Token<'_>,
        gates: &Gates,
        states: States<'_>,
        record: &Record<&[f32]>,
        dout: &[f32],
        dstate: &mut [f32],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) -> [f32; 2] {
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let Scratch { hidden, value, key, zeros, .. } = scratch;
        let (dm, ds) = dstate.split_at_mut(all);
        let (old, old_s) = states.old.split_at(all);
        let [du_o, _, _, _, _, dread] = split(value, v);
        let [dh, ddelta, _, _, dpre] = split(hidden, d);
        let after = self.deep.read == Read::After;
        match self.is_mapped() {
            true => dread.fill(0.0),
            false => self.unnorm(record, dout, dread, dq),
        }
        let queries = |q| self.queries(q, zeros);
        let seen = if after { states.new } else { states.old };
        let (cut, Gates { a, eta, .. }) = (first.min(ds.len()), *gates);
        let ((dm, dm_high), (ds, ds_high)) = (dm.split_at_mut(first), ds.split_at_mut(cut));
        let ((m, m_high), (s, s_high)) = (old.split_at(first), old_s.split_at(cut));
        let mut high = [0.0; 2];
        if self.hidden.is_some() {
            dpre.fill(0.0);
            let (old, seen, q) = ([m_high, s_high], &seen[first..all], queries(record.read_h));
            let (dm, ds, x, y) = (dm_high, ds_high, record.h, record.u_o);
            let call = sweep::Unwrite { a, eta, dm, ds, old, seen, q, dout: dread, dq: dpre, x, y, dx: dh, dy: du_o };
            high = call.run();
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
        }
        let (dout, y, dy) = match self.hidden {
            Some(_) => (&*dpre, record.delta, &mut *ddelta),
            None => (&*dread, record.u_o, &mut *du_o),
        };
        let (k, q, old, dx) = (token.k, queries(token.q), [m, s], &mut *key);
        let low = sweep::Unwrite { a, eta, dm, ds, old, seen, q, dout, dq, x: k, y, dx, dy }.run();
        [low[0] + high[0], low[1] + high[1]]
    }

    /// Queries behind the write and before it, where the state is the weights; where it is not, none.
    #[inline(always)]
    fn queries<'q>(&self, q: &'q [f32], zeros: &'q [f32]) -> [&'q [f32]; 2] {
        match (self.is_mapped(), self.deep.read) {
            (true, _) => [zeros, zeros],
            (false, Read::After) => [q, zeros],
            (false, Read::Before) => [zeros, q],
        }
    }

    /// [`Self::unwrite`] of both matrices where columns go through a log-softmax, and of a read behind it: the gradient of
    /// `a`. The weights of the new state are left where tokens read them.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    fn unwrite_columns(
        &self,
        token: Token<'_>,
        a: f32,
        scale: f32,
        states: States<'_>,
        record: &Record<&[f32]>,
        dout: &[f32],
        dstate: &mut [f32],
        scratch: &mut Scratch,
        dq: &mut [f32],
    ) -> f32 {
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let Scratch { hidden, value, key, zeros, seen: weights, shared, .. } = scratch;
        let weights = self.exposed(states.new, weights, *shared);
        let [du_o, _, _, _, _, dread] = split(value, v);
        let [dh, ddelta, _, _, dpre] = split(hidden, d);
        let after = self.deep.read == Read::After;
        match after {
            true => self.unnorm(record, dout, dread, dq),
            false => dread.fill(0.0),
        }
        let zeros: &[f32] = zeros;
        let query = |q| if after { q } else { zeros };
        let ((dx, dx_high), (w, w_high)) = (dstate.split_at_mut(first), weights.split_at(first));
        let (old, old_high) = states.old.split_at(first);
        let mut high = 0.0;
        if self.hidden.is_some() {
            dpre.fill(0.0);
            let (y, z, dy, dz, q) = (record.h, record.u_o, &mut *dh, &mut *du_o, query(record.read_h));
            let (dx, w, old) = (&mut dx_high[..all - first], w_high, old_high);
            high = softmax::Unwrite { a, scale, dx, w, old, q, dout: dread, dq: dpre, y, z, dy, dz }.run();
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
        }
        let (dout, z, dz) = match self.hidden {
            Some(_) => (&*dpre, record.delta, ddelta),
            None => (&*dread, record.u_o, du_o),
        };
        let q = query(token.q);
        high + softmax::Unwrite { a, scale, dx, w, old, q, dout, dq, y: token.k, z, dy: key, dz }.run()
    }

    /// Equations (42)–(46): what the token taught, back to its key, value and the weights at the gradient point.
    #[expect(clippy::too_many_arguments, reason = "arguments, state, results")]
    #[inline(always)]
    fn unlearn(
        &self,
        token: Token<'_>,
        gates: &Gates,
        point: &[f32],
        record: &Record<&[f32]>,
        dpoint: &mut [f32],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let Scratch { point: exposed, hidden, value, answer, .. } = scratch;
        self.exposed(point, exposed, false);
        let [low, high] = self.layers(point, exposed);
        let [du_o, du, do_, de, spare] = split(value, v);
        let [dh, ddelta, dpre, dback] = split(hidden, d);
        if self.hidden.is_some() {
            // δ = b ∘ σ′(pre), with b = W₁ u_o.
            curve(self.activation(), record.pre, record.back, dpre);
            for ((dpre, ddelta), (dh, slope)) in dpre.iter_mut().zip(&*ddelta).zip(dh.iter().zip(record.slope)) {
                *dpre = *dpre * ddelta + dh * slope;
            }
            for ((dback, ddelta), slope) in dback.iter_mut().zip(&*ddelta).zip(record.slope) {
                *dback = ddelta * slope;
            }
            sweep::add_read(du_o, dback, high.weights);
        }
        if self.deep.structure.norm() {
            du.fill(0.0);
            norm::add_jacobian(record.normed, record.deviations[0], du_o, du);
            norm::bend(record.normed, record.deviations[0], record.u, record.u_o, du_o, spare, do_);
        } else {
            du.copy_from_slice(du_o);
            do_.fill(0.0);
        }
        de.fill(0.0);
        let threshold = bias::teach_back(self.deep.bias, record.error, gates.delta, du, de);
        if let (Bias::Huber(_), Some(last)) = (self.deep.bias, grads.gates.last_mut()) {
            *last = threshold;
        }
        axpy(grads.v, -1.0, de);
        if self.deep.structure.residual() {
            axpy(grads.k, 1.0, de);
        }
        if self.deep.structure.norm() {
            norm::add_jacobian(record.normed, record.deviations[0], de, do_);
        } else {
            axpy(do_, 1.0, de);
        }
        if self.hidden.is_some() {
            dh.fill(0.0);
            let (factors, before) = ([(&*dback, record.u_o), (record.h, &*do_)], dot(dback, record.back));
            self.descend(high, &mut dpoint[first..all], factors, before, dh, answer);
            dpre.iter_mut().zip(&*dh).zip(record.slope).for_each(|((dpre, dh), slope)| *dpre += dh * slope);
            self.descend(low, &mut dpoint[..first], [(token.k, dpre)], 0.0, grads.k, answer);
        } else {
            self.descend(low, &mut dpoint[..first], [(token.k, do_)], 0.0, grads.k, answer);
        }
    }
}

/// The first `N` parts of `width` numbers.
#[inline(always)]
fn split<const N: usize>(mut rest: &mut [f32], width: usize) -> [&mut [f32]; N] {
    std::array::from_fn(|_| {
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(width);
        rest = behind;
        own
    })
}
