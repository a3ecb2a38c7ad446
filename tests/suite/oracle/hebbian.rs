//! `M_t = a M_{t−1} + θ kᵀ v`.

use super::{Oracle, Token, Var, read};
use hecate_core::{
    Read,
    rules::{Hebbian, Matrix},
};

impl Oracle for Hebbian {
    fn all() -> Vec<Self> {
        vec![Self { read: Read::After }, Self { read: Read::Before }]
    }

    fn group(self) -> Option<usize> {
        None
    }

    fn step(self, Token { q, k, v, gates }: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let m = gates.log_a.exp() * &old.m + &gates.theta * k.t().dot(v);
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}
