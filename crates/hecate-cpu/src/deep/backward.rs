//! One token backward: equations (41)–(46), (56)–(59).

use super::{DeepCell, Gates, Record, Scratch, activation::curve, bias, norm, retention};
use crate::{
    recurrent::{Adjoint, Cell, States, Token, TokenGrads},
    rows::{axpy, dot, scale},
    sweep,
};
use hecate_core::{
    Read,
    rules::{Bias, Retention},
};

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
        if mapped && after {
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
        let Scratch { seen: weights, shared, dweights, hidden, value, .. } = scratch;
        let weights = self.exposed(seen, weights, *shared);
        let out = &mut value[..self.value];
        self.unnorm(record, dout, out, dq);
        let target = self.target(dstate, dweights);
        if self.hidden.is_some() {
            let dpre = &mut hidden[..self.d()];
            dpre.fill(0.0);
            let (low, high) = target.split_at_mut(first);
            sweep::Outer { d: high, factors: [(record.read_h, out)], m: &weights[first..all], x: dpre }.run();
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
            sweep::Outer { d: low, factors: [(token.q, dpre)], m: &weights[..first], x: dq }.run();
        } else {
            sweep::Outer { d: target, factors: [(token.q, out)], m: weights, x: dq }.run();
        }
        self.pull(seen, weights, dweights, dstate);
    }

    /// Where gradients of weights go: to the state itself, or first to a place of their own.
    #[inline(always)]
    fn target<'t>(&self, dstate: &'t mut [f32], dweights: &'t mut [f32]) -> &'t mut [f32] {
        if !self.is_mapped() {
            return dstate;
        }
        dweights.fill(0.0);
        dweights
    }

    /// Gradients of weights to those of the state, where the two differ.
    #[inline(always)]
    fn pull(&self, state: &[f32], weights: &[f32], dweights: &[f32], dstate: &mut [f32]) {
        let (first, all) = self.sizes();
        if !self.is_mapped() {
            return;
        }
        for part in [0..first, first..all].into_iter().filter(|part| !part.is_empty()) {
            let (state, weights, dweights) = (&state[part.clone()], &weights[part.clone()], &dweights[part.clone()]);
            retention::pull(self.deep.retention, state, weights, dweights, &mut dstate[part]);
        }
    }

    /// Equations (56)–(58) and the first half of (59), and where the state is the weights also the read: gradients of the
    /// gates and the query, and with `Ḡ` what (41) begins with: in scratch `hidden[0]` `h̄`, `hidden[1]` `δ̄`, `value[0]`
    /// `ū_o`, and `dk`.
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
        let ((first, all), (d, v)) = (self.sizes(), (self.d(), self.value));
        let Scratch { hidden, value, key, columns, zeros, seen: weights, .. } = scratch;
        let (dm, ds) = dstate.split_at_mut(all);
        let (old, old_s) = states.old.split_at(all);
        let kept = self.unsoftmax(states.new, weights, old, dm, columns);
        let [du_o, _, _, _, _, dread] = split(value, v);
        let [dh, ddelta, _, _, dpre] = split(hidden, d);
        let after = self.deep.read == Read::After;
        match self.is_mapped() {
            true => dread.fill(0.0),
            false => self.unnorm(record, dout, dread, grads.q),
        }
        let queries = |q| self.queries(q, zeros);
        let seen = if after { states.new } else { states.old };
        let (cut, Gates { a, eta, theta, .. }) = (first.min(ds.len()), *gates);
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
        let (k, q, dq, old, dx) = (token.k, queries(token.q), &mut *grads.q, [m, s], &mut *key);
        let low = sweep::Unwrite { a, eta, dm, ds, old, seen, q, dout, dq, x: k, y, dx, dy }.run();
        grads.gates[0] = a * kept.unwrap_or(low[0] + high[0]);
        let momentum = usize::from(self.deep.momentum);
        if self.deep.momentum {
            grads.gates[1] = eta * (low[1] + high[1]);
        }
        grads.gates[1 + momentum] = -dot(k, key) - dot(record.h, dh);
        axpy(grads.k, -theta, key);
        [dh, ddelta, du_o].into_iter().for_each(|x| scale(x, -theta));
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

    /// Back through the log-softmax of (55), where there is one; then also what (56) makes of it. `weights` are those of
    /// the new state where tokens read behind the write, and else become them.
    #[inline(always)]
    fn unsoftmax(
        &self,
        new: &[f32],
        weights: &mut [f32],
        old: &[f32],
        dm: &mut [f32],
        columns: &mut [f32],
    ) -> Option<f32> {
        let Retention::Kl { scale } = self.deep.retention else { return None };
        let weights = self.exposed(new, weights, self.deep.read == Read::After);
        let (first, all) = self.sizes();
        let (low, high) = dm.split_at_mut(first);
        retention::normalise_columns_back(scale, &weights[..first], low, self.hidden.unwrap_or(self.value), columns);
        if self.hidden.is_some() {
            retention::normalise_columns_back(scale, &weights[first..all], high, self.value, columns);
        }
        Some(self.kept(dm, old, columns))
    }

    /// `⟨dX, X⟩` of (56) behind a log-softmax. Each column of `dX` sums to 0 there: what is common to a column of `X`,
    /// nearly all of it, is taken off first, or it would leave its rounding behind.
    #[inline(always)]
    fn kept(&self, dx: &[f32], old: &[f32], columns: &mut [f32]) -> f32 {
        let (first, all) = self.sizes();
        let low = retention::centred_dot(&dx[..first], &old[..first], self.hidden.unwrap_or(self.value), columns);
        if first == all {
            return low;
        }
        low + retention::centred_dot(&dx[first..], &old[first..], self.value, columns)
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
        let Scratch { point: weights, dweights, hidden, value, .. } = scratch;
        let weights = self.exposed(point, weights, false);
        let target = self.target(dpoint, dweights);
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
            sweep::add_read(du_o, dback, &weights[first..all]);
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
            let (low, high) = target.split_at_mut(first);
            dh.fill(0.0);
            let factors = [(&*dback, record.u_o), (record.h, &*do_)];
            sweep::Outer { d: &mut high[..all - first], factors, m: &weights[first..all], x: dh }.run();
            dpre.iter_mut().zip(&*dh).zip(record.slope).for_each(|((dpre, dh), slope)| *dpre += dh * slope);
            sweep::Outer { d: low, factors: [(token.k, dpre)], m: &weights[..first], x: grads.k }.run();
        } else {
            sweep::Outer { d: &mut target[..first], factors: [(token.k, do_)], m: weights, x: grads.k }.run();
        }
        self.pull(point, weights, dweights, dpoint);
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
