//! `u ← h − r ∘ Θ(h − ϑ)` of `h = a u + θ kᵀ v`.
//!
//! (100)–(104) of `hecate-core`. A spike is a constant by value; its gradient is that of a straight line through the
//! threshold whose slope is the surrogate's there.

use super::{Oracle, Token, Var};
use crate::{Array, Case};
use hecate_core::rules::{Lif, Matrix, Reset, Surrogate};
use std::f64::consts::FRAC_PI_2;

impl Oracle for Lif {
    fn all() -> Vec<Self> {
        use {Reset::*, Surrogate::*};
        // Thresholds under the default, or currents of unit keys would hardly reach them.
        [
            (Arctan, 2.0, Zero, None, false),
            (FastSigmoid, 5.0, Subtract, None, false),
            (Triangle, 3.0, Zero, None, true),
            (Arctan, 4.0, Subtract, Some(0.3), true),
        ]
        .map(|(surrogate, slope, reset, drop, detach_reset)| Self {
            surrogate,
            slope,
            threshold: 0.2,
            reset,
            drop,
            detach_reset,
        })
        .into()
    }

    /// Θ has no derivative but zero.
    fn differentiable(self) -> bool {
        false
    }

    fn distance(case: &Case<Self>) -> f64 {
        let mut least = f64::INFINITY;
        for (n, rows) in case.dims.sequences.ranges().enumerate() {
            for head in 0..case.dims.heads {
                let count = case.dims.key * case.dims.value;
                let mut u = case.inputs.state.m.values[(n * case.dims.heads + head) * count..][..count].to_vec();
                for row in rows.clone() {
                    least = least.min(advance(case, row * case.dims.heads + head, &mut u));
                }
            }
        }
        least
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let h = gates.log_a.exp() * &old.m + k.t().dot(&(&gates.theta * v));
        let s = self.fire(&h);
        // A detached reset is made of the spikes' values.
        let (rows, columns) = s.shape();
        let reset = if self.detach_reset { s.constant(rows, columns, s.values()) } else { s.clone() };
        let m = match self.reset {
            Reset::Zero => &h - reset * &h,
            Reset::Subtract => &h - reset.scale(f64::from(self.taken())),
        };
        (q.dot(&s), Matrix { m })
    }
}

/// (101), with (104) on the way back.
trait Fire {
    fn fire(self, h: &Var) -> Var;
    fn surrogate(self, x: f64) -> f64;
}

impl Fire for Lif {
    fn fire(self, h: &Var) -> Var {
        let ((rows, columns), threshold) = (h.shape(), f64::from(self.threshold));
        let like = |f: &dyn Fn(f64) -> f64| h.constant(rows, columns, h.values().into_iter().map(f).collect());
        let slopes = like(&|h| self.surrogate(h - threshold));
        // `h` less its own value is zero, and has a gradient.
        like(&|h| f64::from(h >= threshold)) + slopes * (h - like(&|h| h))
    }

    fn surrogate(self, x: f64) -> f64 {
        let slope = f64::from(self.slope);
        match self.surrogate {
            Surrogate::Arctan => slope / 2.0 / (1.0 + (FRAC_PI_2 * slope * x).powi(2)),
            Surrogate::FastSigmoid => (1.0 + slope * x.abs()).powi(-2),
            Surrogate::Triangle => (slope - slope * slope * x.abs()).max(0.0),
        }
    }
}

/// One token of potentials `u [K,V]` in plain numbers, row `row` of the call's; the least distance from the threshold.
fn advance(case: &Case<Lif>, row: usize, u: &mut [f64]) -> f64 {
    let (rule, width) = (case.rule, case.dims.value);
    let part = |x: &Array, count| x.values[row * count..][..count].to_vec();
    let inputs = &case.inputs;
    let (k, v) = (part(&inputs.k, case.dims.key), part(&inputs.v, width));
    let (a, theta) = (inputs.gates.log_a.values[row].exp(), inputs.gates.theta.values[row]);
    let mut least = f64::INFINITY;
    for (i, u) in u.iter_mut().enumerate() {
        let h = a * *u + theta * k[i / width] * v[i % width];
        let past = h - f64::from(rule.threshold);
        least = least.min(past.abs());
        let taken = if rule.reset == Reset::Zero { h } else { f64::from(rule.taken()) };
        *u = if past >= 0.0 { h - taken } else { h };
    }
    least
}
