//! Memories that forget by key channel.
//!
//! Equations as the papers have them; none of the lowering to (110)–(114) of `hecate-core` is used here. Gates are rows `[1,K]`,
//! and a column `[K,1]` multiplies the rows of a memory.

use super::{Oracle, Token, Var};
use hecate_core::rules::{Comba, Dplr, Gdn2, Gla, Kda, Matrix, Rwkv7};

/// `diag(a) M` of `log a [1,K]`, or of one number for all rows.
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

/// `M_t = diag(a) M_{t−1} + kᵀ (w ∘ v − (b ∘ k) diag(a) M_{t−1})`.
///
/// Gated DeltaNet-2, as flash-linear-attention has it.
impl Oracle for Gdn2 {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let kept = decayed(&gates.log_a, old);
        let written = &gates.write * v - (&gates.erase * k).dot(&kept);
        let m = kept + k.t().dot(&written);
        (q.dot(&m), Matrix { m })
    }
}

/// `M_t = (I − θ c kᵀ k) a M_{t−1} + θ kᵀ v`.
///
/// Hu et al., "Comba: Improving Bilinear RNNs with Closed-loop Control".
impl Oracle for Comba {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let kept = gates.log_a.exp() * &old.m;
        let erased = &gates.share * k.dot(&kept);
        let m = kept + &gates.theta * k.t().dot(&(v - erased));
        (q.dot(&m), Matrix { m })
    }
}

/// `M_t = (diag(a) + bᵀ c) M_{t−1} + kᵀ v`.
///
/// `dplr` of flash-linear-attention.
impl Oracle for Dplr {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    /// Its two directions have nothing to do with each other here, so what is looked up may come back longer.
    fn strength(self) -> f64 {
        0.3
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let rewritten = gates.rewrite.t().dot(&gates.lookup).dot(&old.m);
        let m = decayed(&gates.log_a, old) + rewritten + k.t().dot(v);
        (q.dot(&m), Matrix { m })
    }
}

/// `M_t = (diag(a) − (α ∘ κ)ᵀ κ) M_{t−1} + kᵀ v`.
///
/// Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", eq 15, whose state is the transpose.
impl Oracle for Rwkv7 {
    fn all() -> Vec<Self> {
        vec![Self {}]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let erased = (&gates.rewrite * &gates.lookup).t().dot(&gates.lookup.dot(&old.m));
        let m = decayed(&gates.log_a, old) - erased + k.t().dot(v);
        (q.dot(&m), Matrix { m })
    }
}
