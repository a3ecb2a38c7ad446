//! `S_t = η S_{t−1} + Σ_j γ_j k_{t−j}ᵀ (v_{t−j} − k_{t−j} M)`, `M_t = a M_{t−1} + θ NS(S_t)`.
//!
//! Behrouz et al., "Atlas: Learning to Optimally Memorize the Context at Test Time"; (80)–(84) and (88)–(90) of
//! `hecate-core`. A window of `c` tokens keeps the last `c − 1` keys `[c−1,K]` and values `[c−1,V]` in the state.
//! Rows are joined and dropped by products with matrices of 0 and 1.

use super::{Oracle, Token, Var, read};
use crate::{BACKWARD, FORWARD};
use hecate_core::{
    Read,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON, Window},
};

impl Oracle for Atlas {
    fn all() -> Vec<Self> {
        let atlas = |window, newton_schulz, read, frozen| Self { window, newton_schulz, read, frozen };
        // Windows shorter and longer than a group, none and some steps, each time of reading.
        vec![
            Self::default(),
            atlas(1, 0, Read::Before, None),
            atlas(3, 0, Read::After, Some(16)),
            atlas(10, 0, Read::Before, None),
            atlas(1, 5, Read::After, None),
            atlas(4, 3, Read::Before, Some(5)),
            atlas(3, 5, Read::After, Some(70)),
        ]
    }

    /// Each step of Newton-Schulz multiplies rounding by the first coefficient, in directions that the momentum hardly
    /// has. It is worst at rank one: the first token of an empty memory, a window of one without momentum. A few roundings
    /// of 2⁻²⁴ meet it.
    fn limits(self) -> (f64, f64) {
        let rounding = f64::from(NEWTON_SCHULZ[0]).powi(self.newton_schulz as i32) / f64::from(1 << 24);
        (FORWARD.max(4.0 * rounding), BACKWARD.max(4.0 * rounding))
    }

    /// Newton-Schulz forgets the size of what it is given, so the gradient loses what points along the momentum. Where that
    /// is one token of weight γ, it is all of dγ, and rounding is left.
    fn conditioning(self, slot: &str) -> f64 {
        if self.newton_schulz > 0 && self.window == 1 && slot == "gamma" { 100.0 } else { 1.0 }
    }

    fn step(self, token: &Token<Self>, old: &Window<Var>, point: &Window<Var>) -> (Var, Window<Var>) {
        let Token { q, k, v, gates, .. } = token;
        // `[c,K]` and `[c,V]`, oldest first. Empty places of a fresh memory are zeros and write nothing.
        let (keys, values) = (window(&old.kbuf, k), window(&old.vbuf, v));
        // All tokens of the window are predicted from the same memory: (80).
        let errors = &values - keys.dot(&point.m);
        let gradient = keys.t().dot(&(oldest_first(&gates.gamma) * errors));
        let s = gates.log_eta.exp() * &old.s + gradient;
        // The step size scales what Newton-Schulz gives, not the momentum: (83).
        let m = gates.log_a.exp() * &old.m + &gates.theta * newton_schulz(self.newton_schulz, &s);
        (read(self.read, q, &old.m, &m), Window { m, s, kbuf: tail(&old.kbuf, &keys), vbuf: tail(&old.vbuf, &values) })
    }
}

/// The matrix `[rows, columns]` with 1 where `at` says so.
fn ones(like: &Var, rows: usize, columns: usize, at: impl Fn(usize, usize) -> bool) -> Var {
    let values = (0..rows * columns).map(|i| f64::from(u8::from(at(i / columns, i % columns))));
    like.constant(rows, columns, values.collect())
}

/// Rows of a buffer, and one more.
fn window(buffer: &Var, own: &Var) -> Var {
    let (rows, _) = buffer.shape();
    if rows == 0 {
        return own.clone();
    }
    let kept = ones(own, rows + 1, rows, |i, j| i == j).dot(buffer);
    kept + ones(own, rows + 1, 1, |i, _| i == rows).dot(own)
}

/// All rows of a window but the oldest.
fn tail(buffer: &Var, window: &Var) -> Var {
    match buffer.shape().0 {
        0 => buffer.clone(),
        rows => ones(window, rows, rows + 1, |i, j| j == i + 1).dot(window),
    }
}

/// Weights `[1,c]`, newest first, as a column, oldest first.
///
/// The gate counts back from the token, the buffers count forward to it.
fn oldest_first(gamma: &Var) -> Var {
    let (_, window) = gamma.shape();
    ones(gamma, window, window, |i, j| i + j + 1 == window).dot(&gamma.t())
}

/// (88)–(90) on `S [K,V]`: singular values are brought near 1, directions stay. `steps` of 0 is the identity (82).
fn newton_schulz(steps: u32, s: &Var) -> Var {
    if steps == 0 {
        return s.clone();
    }
    let [alpha, beta, kappa] = NEWTON_SCHULZ.map(f64::from);
    let epsilon = f64::from(NEWTON_SCHULZ_EPSILON);
    // Over the Frobenius norm, so that no singular value is over 1: (88).
    let x = s * s.square().sum().shift(epsilon * epsilon).sqrt().recip();
    (0..steps).fold(x, |x, _| {
        // `A = X Xᵀ [K,K]`: the polynomial is odd, so `X` stands once on the right.
        let a = x.dot(&x.t());
        let b = a.scale(beta) + a.dot(&a).scale(kappa);
        x.scale(alpha) + b.dot(&x)
    })
}
