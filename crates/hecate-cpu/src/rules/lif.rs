//! Leaky integrate-and-fire neurons: equations (100)–(107).
//!
//! The state is `K` rows of `V` potentials. A token goes over each row once, forward and back.
//! Potentials before the reset are computed again on the way back: nothing is recorded.

use crate::{
    recurrent::{Cell, Recurrent, StepBackward, StepForward, heads},
    rows::{axpy, dot, set_scaled},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{Lif, Reset, Surrogate},
};
use std::f32::consts::FRAC_PI_2;

/// The rule at a head's sizes.
pub(crate) struct LifCell {
    /// Threshold, reset and surrogate.
    rule: Lif,
    /// Width `V` of a row of neurons.
    value: usize,
}

impl Recurrent<Own> for Lif {
    type Cell = LifCell;

    fn cell(self, dims: &Dims) -> LifCell {
        LifCell { rule: self, value: dims.value }
    }
}

/// Workspace for a row of neurons, each `[V]`.
pub(crate) struct Scratch {
    /// Spikes.
    s: Vec<f32>,
    /// Gradient of the charge.
    dh: Vec<f32>,
}

/// `Θ(h − ϑ)` of (101): NaN stays, so that it is seen.
#[inline(always)]
fn fire(h: f32, threshold: f32) -> f32 {
    let silent = if h < threshold { 0.0 } else { h };
    if h >= threshold { 1.0 } else { silent }
}

/// What a row of neurons goes through on the way back.
struct RowBack<'a> {
    /// Potentials before the token, and currents.
    old: &'a [f32],
    v: &'a [f32],
    /// Gradient of what was read.
    dout: &'a [f32],
    /// Retention, `θ k`, and the query's element.
    a: f32,
    w: f32,
    q: f32,
    /// Gradient of the potentials after the token.
    du: &'a [f32],
}

impl LifCell {
    /// (105) and (106) of a row, with the surrogate as a function of the distance to the threshold.
    #[inline(always)]
    fn charge_vjp(&self, row: &RowBack<'_>, scratch: &mut Scratch, surrogate: impl Fn(f32) -> f32) {
        let &RowBack { old, v, dout, a, w, q, du } = row;
        let (threshold, taken) = (self.rule.threshold, self.rule.taken());
        let (zero, attached) = (self.rule.reset == Reset::Zero, !self.rule.detach_reset);
        let (s, dh) = (&mut scratch.s[..self.value], &mut scratch.dh[..self.value]);
        for j in 0..self.value {
            let h = a * old[j] + w * v[j];
            s[j] = fire(h, threshold);
            // What the reset takes of it, and the gradient that this leaves to the spike.
            let reset = if zero { h } else { taken };
            let through = if attached { reset * du[j] } else { 0.0 };
            let kept = if zero { (1.0 - s[j]) * du[j] } else { du[j] };
            dh[j] = kept + surrogate(h - threshold) * (q * dout[j] - through);
        }
    }

    /// The same with the rule's own surrogate, of (104).
    #[inline(always)]
    fn row_vjp(&self, row: &RowBack<'_>, scratch: &mut Scratch) {
        let slope = self.rule.slope;
        match self.rule.surrogate {
            Surrogate::Arctan => self.charge_vjp(row, scratch, |x| {
                let far = FRAC_PI_2 * slope * x;
                0.5 * slope / (1.0 + far * far)
            }),
            Surrogate::FastSigmoid => self.charge_vjp(row, scratch, |x| {
                let near = 1.0 / (1.0 + slope * x.abs());
                near * near
            }),
            Surrogate::Triangle => self.charge_vjp(row, scratch, |x| {
                let height = slope - slope * slope * x.abs();
                // NaN is not lost in the comparison.
                if height < 0.0 { 0.0 } else { height }
            }),
        }
    }
}

heads!(LifCell);

impl Cell for LifCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch { s: vec![0.0; self.value], dh: vec![0.0; self.value] }
    }

    fn record(&self) -> usize {
        0
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, new, out, .. } = step;
        let (a, theta) = (token.gates[0].exp(), token.gates[1]);
        let (threshold, taken) = (self.rule.threshold, self.rule.taken());
        let zero = self.rule.reset == Reset::Zero;
        let v = &token.v[..self.value];
        out.fill(0.0);
        let rows = old.chunks_exact(self.value).zip(new.chunks_exact_mut(self.value));
        for ((old, new), (k, q)) in rows.zip(token.k.iter().zip(token.q)) {
            let w = theta * k;
            let out = &mut out[..self.value];
            for j in 0..self.value {
                // (100) to (103)
                let h = a * old[j] + w * v[j];
                let s = fire(h, threshold);
                let left = if s == 1.0 { 0.0 } else { h };
                new[j] = if zero { left } else { h - taken * s };
                out[j] += q * s;
            }
        }
    }

    #[inline(always)]
    fn backward(&self, step: StepBackward<'_, Scratch>) {
        let StepBackward { token, states, dout, adjoint, scratch, grads, .. } = step;
        let (a, theta) = (token.gates[0].exp(), token.gates[1]);
        let (mut da, mut dtheta) = (0.0, 0.0);
        let rows = states.old.chunks_exact(self.value).zip(adjoint.state.chunks_exact_mut(self.value));
        for (i, (old, du)) in rows.enumerate() {
            let (k, q) = (token.k[i], token.q[i]);
            self.row_vjp(&RowBack { old, v: token.v, dout, a, w: theta * k, q, du }, scratch);
            // (107)
            let written = dot(&scratch.dh, token.v);
            grads.q[i] = dot(&scratch.s, dout);
            grads.k[i] = theta * written;
            dtheta += k * written;
            da += dot(&scratch.dh, old);
            axpy(grads.v, theta * k, &scratch.dh);
            set_scaled(du, a, &scratch.dh);
        }
        grads.gates[0] = a * da;
        grads.gates[1] = dtheta;
    }

    /// No gradient is taken at another state than the one before the token.
    fn merges_point(&self) -> bool {
        true
    }

    fn scratch_bytes(&self) -> usize {
        4 * 2 * self.value
    }
}
