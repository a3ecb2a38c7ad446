//! Memories that forget by key channel.
//!
//! Equations as the papers have them; none of the lowering to (110)–(114) of `hecate-core` is used here. Gates are rows `[1,K]`,
//! and a column `[K,1]` multiplies the rows of a memory.

use super::{Oracle, Token, Var};
use hecate_core::rules::{Gla, Kda, Matrix};

/// `diag(a) M` of `log a [1,K]`, or of one number.
fn decayed(log_a: &Var, old: &Matrix<Var>) -> Var {
    log_a.t().exp() * &old.m
}

/// `M_t = diag(a) M_{t−1} + kᵀ v`.
///
/// Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training".
impl Oracle for Gla {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let m = decayed(&gates.log_a, old) + k.t().dot(v);
        (q.dot(&m), Matrix { m })
    }
}

/// `M_t = (I − θ kᵀ k) diag(a) M_{t−1} + θ kᵀ v`.
///
/// Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", eq 1.
impl Oracle for Kda {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let kept = decayed(&gates.log_a, old);
        let error = v - k.dot(&kept);
        let m = kept + &gates.theta * k.t().dot(&error);
        (q.dot(&m), Matrix { m })
    }
}
