//! The linear rules, each by its own equation and not by the recurrence that they have in common.
//!
//! Memories are `[K,V]`, `q` and `k` rows `[1,K]`, `v` a row `[1,V]`, gates `[1,1]`. So `kᵀ v` is `[K,V]` and `k M` is
//! `[1,V]`. Backends lower all of these to (1)–(5) of `hecate-core`; nothing of that lowering is used here.

use super::{Oracle, Token, Var, read, reads_and_groups};
use hecate_core::{
    Read,
    rules::{Delta, Dgd, Erase, Hebbian, Lightning, Matrix, Momentum, MomentumForm, Objective, Titans},
};

/// `M_t = a M_{t−1} + θ kᵀ v`.
///
/// Linear attention with a gate: Katharopoulos et al., "Transformers are RNNs", with retention and step size.
impl Oracle for Hebbian {
    fn all() -> Vec<Self> {
        vec![Self { read: Read::After }, Self { read: Read::Before }]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let m = gates.log_a.exp() * &old.m + &gates.theta * k.t().dot(v);
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}

/// `M_t = a M_{t−1} − θ kᵀ (k M − v)` with `M = M_{t−1}`, `a M_{t−1}`, or the memory at the start of the group.
///
/// The delta rule: Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers"; gated as in Yang et al.,
/// "Gated Delta Networks", where the decayed memory is erased.
impl Oracle for Delta {
    fn all() -> Vec<Self> {
        // Erasing the decayed memory has no frozen form, so groups are tested with the other.
        let undecayed = reads_and_groups().into_iter().map(|(read, frozen)| (Erase::Undecayed, read, frozen));
        let decayed = [Read::After, Read::Before].map(|read| (Erase::Decayed, read, None));
        undecayed.chain(decayed).map(|(erase, read, frozen)| Self { erase, read, frozen }).collect()
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, point: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let kept = gates.log_a.exp() * &old.m;
        // `point` is `old` where no group is frozen.
        let seen = match self.erase {
            Erase::Undecayed => &point.m,
            Erase::Decayed => &kept,
        };
        let gradient = k.t().dot(&(k.dot(seen) - v));
        let m = &kept - &gates.theta * gradient;
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}

/// `S_t = η S_{t−1} − θ kᵀ (k M − v)`, `M_t = a M_{t−1} + S_t`.
///
/// Behrouz et al., "Titans: Learning to Memorize at Test Time", with a matrix as memory.
impl Oracle for Titans {
    fn all() -> Vec<Self> {
        let heavy_ball = reads_and_groups().into_iter().map(|(read, frozen)| Self { read, frozen, ..Self::default() });
        let momentum = MomentumForm::LookAhead;
        let look_ahead = [Read::After, Read::Before].map(|read| Self { read, momentum, ..Self::default() });
        heavy_ball.chain(look_ahead).collect()
    }

    fn step(self, token: &Token<Self>, old: &Momentum<Var>, point: &Momentum<Var>) -> (Var, Momentum<Var>) {
        let Token { q, k, v, gates, .. } = token;
        if self.momentum == MomentumForm::LookAhead {
            // `N = a N − θ kᵀ (k N − v)` with `N = M + S`, and `M` a mean of what `N` was.
            let (a, eta, n) = (gates.log_a.exp(), gates.log_eta.exp(), &old.m + &old.s);
            let n = &a * &n - &gates.theta * k.t().dot(&(k.dot(&n) - v));
            let m = &eta * (&a * &old.m) + (&n - &eta * &n);
            return (read(self.read, q, &old.m, &m), Momentum { s: n - &m, m });
        }
        let gradient = k.t().dot(&(k.dot(&point.m) - v));
        // Momentum is not decayed by `a`: retention acts on the memory alone.
        let s = gates.log_eta.exp() * &old.s - &gates.theta * gradient;
        let m = gates.log_a.exp() * &old.m + &s;
        (read(self.read, q, &old.m, &m), Momentum { m, s })
    }
}

/// `M_t = a M_{t−1} − β kᵀ (k M_{t−1}) − θ grad`, `grad = kᵀ (k M − v)` or `−kᵀ v`.
///
/// Erase strength `β` and write strength `θ` apart. The erase always sees the token's own memory, frozen or not.
impl Oracle for Dgd {
    fn all() -> Vec<Self> {
        let l2 = reads_and_groups().into_iter().map(|(read, frozen)| (Objective::L2, read, frozen));
        let dot = [Read::After, Read::Before].map(|read| (Objective::Dot, read, None));
        l2.chain(dot).map(|(objective, read, frozen)| Self { objective, read, frozen }).collect()
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, point: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let gradient = match self.objective {
            Objective::L2 => k.t().dot(&(k.dot(&point.m) - v)),
            Objective::Dot => k.t().dot(v).scale(-1.0),
        };
        let erased = k.t().dot(&k.dot(&old.m));
        let m = gates.log_a.exp() * &old.m - &gates.beta * erased - &gates.theta * gradient;
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}

/// `M_t = a_h M_{t−1} + θ kᵀ v`, `log a_h = −rate 2^{−8(h+1)/H}`.
///
/// Qin et al., "Lightning Attention-2": retention is a constant of head `h` of `H`, the slopes of ALiBi times `rate`.
impl Oracle for Lightning {
    fn all() -> Vec<Self> {
        // The published rate, a weaker one, and none at all, which is the Hebbian rule without a gate.
        let each = |read| [1.0, 0.25, 0.0].map(|rate| Self { read, rate });
        [Read::After, Read::Before].into_iter().flat_map(each).collect()
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, head } = token;
        let slope = f64::from(self.rate) * (-8.0 * (head.index + 1) as f64 / head.count as f64).exp2();
        let m = old.m.scale((-slope).exp()) + &gates.theta * k.t().dot(v);
        (read(self.read, q, &old.m, &m), Matrix { m })
    }
}
