//! The inner gradient of one token backward: equations (42)–(46).
//!
//! Its derivative goes to the token's key, to its value and to the weights at the gradient point.
//! Vectors of the write's way back come in where it left them; those of the forward are in the record.

use super::{
    DeepCell, Record, Scratch,
    activation::second_derivative,
    backward::{Layer, TokenBackward, split},
    bias,
    lq::{LqMap, LqRead},
    norm,
};
use crate::{
    fused_gemv,
    recurrent::TokenGrads,
    rows::{axpy, dot},
};
use hecate_core::rules::{AttentionalBias, Retention};

impl DeepCell {
    /// Equations (42)–(46): the inner gradient's own derivative.
    /// It goes to the token's key, its value and the weights at the gradient point.
    #[inline(always)]
    pub(super) fn inner_grad_vjp(
        &self,
        at: &TokenBackward<'_>,
        dpoint: &mut [f32],
        scratch: &mut Scratch,
        grads: &mut TokenGrads<'_>,
    ) {
        let ((first, all), TokenBackward { token, states, record, .. }) = (self.sizes(), at);
        let Scratch { point: mapped, hidden, value, .. } = scratch;
        let mut norms = [1.0; 2];
        match self.spec.retention {
            // Powers are made of the state as passes go by.
            Retention::Lq { .. } => norms.copy_from_slice(&record.norms[..2]),
            _ => drop(self.to_weights(states.point, mapped, false)),
        }
        let [low, high] = self.layers(states.point, mapped, norms);
        let [du_o, du, do_, de, spare] = split(value, self.value);
        let [dh, ddelta, dpre, dback] = split(hidden, self.d());
        if self.hidden.is_some() {
            self.slopes_vjp(record, [dh, ddelta], [dpre, dback]);
            // The gradient of `b = W₁ u_o` by `u_o`: (42).
            match self.spec.retention {
                Retention::Lq { q, map } => {
                    let Layer { state, norm, .. } = high;
                    LqRead { map: LqMap { q, map }, state, norm, x: dback, out: du_o }.run();
                }
                _ => fused_gemv::add_read(du_o, dback, high.weights),
            }
        }
        // The error is prediction minus value: its gradient reaches the value with a minus.
        let threshold = self.error_vjp(at, du_o, [du, do_, de, spare]);
        // `delta` is the last gate of the rules that have it.
        if let (AttentionalBias::Huber(_), Some(last)) = (self.spec.bias, grads.gates.last_mut()) {
            *last = threshold;
        }
        axpy(grads.v, -1.0, de);
        if self.spec.structure.residual() {
            axpy(grads.k, 1.0, de);
        }
        if self.hidden.is_some() {
            dh.fill(0.0);
            // Two terms reach the second layer's weights: through b = W₁ u_o, and through the output itself.
            let factors = [(&*dback, record.u_o), (record.h, &*do_)];
            let along = dot(dback, record.back) + self.along(record.output, do_);
            self.pullback(high, &mut dpoint[first..all], factors, along, dh);
            dpre.iter_mut().zip(&*dh).zip(record.slope).for_each(|((dpre, dh), slope)| *dpre += dh * slope);
            // (45), from the output back to the key.
            self.pullback(low, &mut dpoint[..first], [(token.k, dpre)], self.along(record.pre, dpre), grads.k);
        } else {
            self.pullback(low, &mut dpoint[..first], [(token.k, do_)], self.along(record.output, do_), grads.k);
        }
    }

    /// `⟨W, dW⟩` of what a layer gave and its gradient; 0 where no pullback needs it.
    #[inline(always)]
    fn along(&self, output: &[f32], doutput: &[f32]) -> f32 {
        if self.has_shared_norm() { dot(output, doutput) } else { 0.0 }
    }

    /// Back through `δ = b ∘ σ′(pre)` with `b = W₁ u_o`, all `[D]`: sets the gradients of `pre` and `b`.
    #[inline(always)]
    fn slopes_vjp(&self, record: &Record<&[f32]>, [dh, ddelta]: [&[f32]; 2], [dpre, dback]: [&mut [f32]; 2]) {
        // `δ` depends on `pre` through `σ′`: the curvature times `b`.
        second_derivative(self.activation(), record.pre, record.back, dpre);
        for ((dpre, ddelta), (dh, slope)) in dpre.iter_mut().zip(ddelta).zip(dh.iter().zip(record.slope)) {
            // The second term is that of `h = σ(pre)`, whose gradient the write left.
            *dpre = *dpre * ddelta + dh * slope;
        }
        for ((dback, ddelta), slope) in dback.iter_mut().zip(ddelta).zip(record.slope) {
            *dback = ddelta * slope;
        }
    }

    /// Back from `u_o` through the norm and the bias, all `[V]`: sets the gradients of the output and of the error.
    /// Returns that of the threshold `δ`.
    #[inline(always)]
    fn error_vjp(&self, at: &TokenBackward<'_>, du_o: &[f32], [du, do_, de, spare]: [&mut [f32]; 4]) -> f32 {
        let (record, normed) = (&at.record, self.spec.structure.norm());
        // Of the write; the second one is the read's.
        let deviation = record.deviations[0];
        // Two ways from the output to `u_o`: through the error, and through the norm's own Jacobian.
        if normed {
            du.fill(0.0);
            norm::add_jacobian(record.normed, deviation, du_o, du);
            norm::second_derivative(record.normed, deviation, record.u, record.u_o, du_o, spare, do_);
        } else {
            du.copy_from_slice(du_o);
            do_.fill(0.0);
        }
        bias::clip_vjp(self.spec.clip, record.u, record.shrink[0], du);
        de.fill(0.0);
        let threshold = bias::inner_grad_vjp(self.spec.bias, record.error, at.gates.delta, du, de);
        match normed {
            true => norm::add_jacobian(record.normed, deviation, de, do_),
            false => axpy(do_, 1.0, de),
        }
        threshold
    }
}
