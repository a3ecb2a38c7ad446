//! One token backward: equations (41)–(46), (56)–(59).

use super::{DeepCell, Gates, Record, Scratch, activation::curve, bias, norm, retention, sandwich};
use crate::{
    recurrent::{Adjoint, States, Token, TokenGrads},
    rows::{add_outer, add_transposed, axpy, dot, scale},
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
        let after = self.deep.read == Read::After;
        if after {
            self.unread(token, states.new, record, dout, adjoint.state, scratch, grads.q);
        }
        self.unwrite(token, &gates, states, record, adjoint.state, scratch, &mut grads);
        self.unlearn(token, &gates, states.point, record, adjoint.point, scratch, &mut grads);
        if !after {
            self.unread(token, states.old, record, dout, adjoint.state, scratch, grads.q);
        }
    }

    /// What the read adds to the gradients of the query and of the state that it saw.
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
        let Scratch { seen: weights, dweights, hidden, value, .. } = scratch;
        let weights = self.exposed(seen, weights);
        if self.deep.structure.residual() {
            axpy(dq, 1.0, dout);
        }
        let out = &mut value[..self.value];
        if self.deep.structure.norm() {
            out.fill(0.0);
            norm::add_jacobian(record.read_normed, record.deviations[1], dout, out);
        } else {
            out.copy_from_slice(dout);
        }
        let target = self.target(dstate, dweights);
        if self.hidden.is_some() {
            let dpre = &mut hidden[..self.d()];
            dpre.fill(0.0);
            add_transposed(dpre, out, &weights[first..]);
            dpre.iter_mut().zip(record.read_slope).for_each(|(dpre, slope)| *dpre *= slope);
            add_transposed(dq, dpre, &weights[..first]);
            add_outer(&mut target[..first], 1.0, token.q, dpre);
            add_outer(&mut target[first..all], 1.0, record.read_h, out);
        } else {
            add_transposed(dq, out, weights);
            add_outer(&mut target[..first], 1.0, token.q, out);
        }
        self.pull(seen, dweights, dstate);
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
    fn pull(&self, state: &[f32], dweights: &[f32], dstate: &mut [f32]) {
        let (first, all) = self.sizes();
        if !self.is_mapped() {
            return;
        }
        retention::pull(self.deep.retention, &state[..first], &dweights[..first], &mut dstate[..first]);
        if first < all {
            let high = first..all;
            retention::pull(self.deep.retention, &state[high.clone()], &dweights[high.clone()], &mut dstate[high]);
        }
    }

    /// Equations (56)–(58) and the first half of (59): gradients of the gates, and with `Ḡ` what (41) begins with: in
    /// scratch `hidden[0]` `h̄`, `hidden[1]` `δ̄`, `value[0]` `ū_o`, and `dk`.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    fn unwrite(
        &self,
        token: Token<'_>,
        gates: &Gates,
        states: States<'_>,
        record: &Record<&[f32]>,
        dstate: &mut [f32],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        let (first, all) = self.sizes();
        let (dx, ds) = dstate.split_at_mut(all);
        if let Retention::Kl { .. } = self.deep.retention {
            let columns = &mut scratch.columns;
            let (low, high) = dx.split_at_mut(first);
            retention::normalise_columns_back(&states.new[..first], low, self.hidden.unwrap_or(self.value), columns);
            if self.hidden.is_some() {
                retention::normalise_columns_back(&states.new[first..all], high, self.value, columns);
            }
        }
        grads.gates[0] = gates.a * self.kept(dx, &states.old[..all], &mut scratch.columns);
        let momentum = self.deep.momentum;
        if momentum {
            axpy(ds, 1.0, dx);
            grads.gates[1] = gates.eta * dot(ds, &states.old[all..]);
        }
        let source = if momentum { &*ds } else { &*dx };
        let (width, Scratch { hidden, value, key, .. }) = (self.d(), scratch);
        let (out, theta) = (&mut value[..self.value], gates.theta);
        let along = if self.hidden.is_some() {
            let (dh, ddelta) = hidden[..2 * width].split_at_mut(width);
            let low = sandwich(token.k, &source[..first], record.delta, key, ddelta);
            let high = sandwich(record.h, &source[first..all], record.u_o, dh, out);
            scale(&mut hidden[..2 * width], -theta);
            low + high
        } else {
            sandwich(token.k, &source[..first], record.u_o, key, out)
        };
        scale(out, -theta);
        axpy(grads.k, -theta, key);
        grads.gates[1 + usize::from(momentum)] = -along;
        scale(dx, gates.a);
        if momentum {
            scale(ds, gates.eta);
        }
    }

    /// `⟨dX, X⟩` of (56). Each column of `dX` sums to 0 behind (55): what is common to a column of `X`, nearly all of
    /// it, is taken off first, or it would leave its rounding behind.
    #[inline(always)]
    fn kept(&self, dx: &[f32], old: &[f32], columns: &mut [f32]) -> f32 {
        let Retention::Kl { .. } = self.deep.retention else { return dot(dx, old) };
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
        let weights = self.exposed(point, weights);
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
            crate::rows::add_read(du_o, dback, &weights[first..]);
            add_outer(&mut target[first..all], 1.0, dback, record.u_o);
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
            add_outer(&mut target[first..all], 1.0, record.h, do_);
            dback.fill(0.0);
            add_transposed(dback, do_, &weights[first..]);
            dpre.iter_mut().zip(&*dback).zip(record.slope).for_each(|((dpre, dh), slope)| *dpre += dh * slope);
            add_outer(&mut target[..first], 1.0, token.k, dpre);
            add_transposed(grads.k, dpre, &weights[..first]);
        } else {
            add_outer(&mut target[..first], 1.0, token.k, do_);
            add_transposed(grads.k, do_, weights);
        }
        self.pull(point, dweights, dpoint);
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
