//! `M_t = a M_{t−1} − β kᵀ (k M_{t−1}) − θ grad`, `grad = kᵀ (k M − v)` or `−kᵀ v`.

use super::{Oracle, Token, Var, read, reads_and_groups};
use hecate_core::{
    Read,
    rules::{Dgd, Matrix, Objective},
};

impl Oracle for Dgd {
    fn all() -> Vec<Self> {
        let l2 = reads_and_groups().into_iter().map(|(read, frozen)| (Objective::L2, read, frozen));
        let dot = [Read::After, Read::Before].map(|read| (Objective::Dot, read, None));
        l2.chain(dot).map(|(objective, read, frozen)| Self { objective, read, frozen }).collect()
    }

    fn group(self) -> Option<usize> {
        self.frozen.map(|group| group as usize)
    }

    fn step(
        self,
        Token { q, k, v, gates }: &Token<Self>,
        old: &Matrix<Var>,
        point: &Matrix<Var>,
    ) -> (Var, Matrix<Var>) {
        let gradient = match self.objective {
            Objective::L2 => k.t().dot(&(k.dot(&point.m) - v)),
            Objective::Dot => k.t().dot(v).scale(-1.0),
        };
        let erased = k.t().dot(&k.dot(&old.m));
        let m = gates.log_a.exp() * &old.m - &gates.beta * erased - &gates.theta * gradient;
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}
