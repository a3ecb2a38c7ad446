//! `S_t = η S_{t−1} − θ kᵀ (k M − v)`, `M_t = a M_{t−1} + S_t`.

use super::{Oracle, Token, Var, read, reads_and_groups};
use hecate_core::rules::{Momentum, Titans};

impl Oracle for Titans {
    fn all() -> Vec<Self> {
        reads_and_groups().into_iter().map(|(read, frozen)| Self { read, frozen }).collect()
    }

    fn group(self) -> Option<usize> {
        self.frozen.map(|group| group as usize)
    }

    fn step(
        self,
        Token { q, k, v, gates }: &Token<Self>,
        old: &Momentum<Var>,
        point: &Momentum<Var>,
    ) -> (Var, Momentum<Var>) {
        let gradient = k.t().dot(&(k.dot(&point.m) - v));
        let s = gates.log_eta.exp() * &old.s - &gates.theta * gradient;
        let m = gates.log_a.exp() * &old.m + &s;
        (read(self.read, q, &old.m, &m), Momentum { m, s })
    }
}
