//! `M_t = a M_{t−1} − θ kᵀ (k M − v)` with `M = M_{t−1}`, `a M_{t−1}`, or the memory at the start of the group.

use super::{Oracle, Token, Var, read, reads_and_groups};
use hecate_core::{
    Read,
    rules::{Delta, Erase, Matrix},
};

impl Oracle for Delta {
    fn all() -> Vec<Self> {
        let undecayed = reads_and_groups().into_iter().map(|(read, frozen)| (Erase::Undecayed, read, frozen));
        let decayed = [Read::After, Read::Before].map(|read| (Erase::Decayed, read, None));
        undecayed.chain(decayed).map(|(erase, read, frozen)| Self { erase, read, frozen }).collect()
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
        let kept = gates.log_a.exp() * &old.m;
        let seen = match self.erase {
            Erase::Undecayed => &point.m,
            Erase::Decayed => &kept,
        };
        let gradient = k.t().dot(&(k.dot(seen) - v));
        let m = &kept - &gates.theta * gradient;
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}
