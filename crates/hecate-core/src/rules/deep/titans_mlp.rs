//! Titans: an MLP memory with momentum.

use super::{Bias, Deep, DeepRule, Memory, MlpMemory, Retention, check};
use crate::{Dims, Initial, Read, Result, Rule, Shape, rules::MomentumGates, slots};

/// An MLP taught by its error, with momentum: (33)–(46), (47), (53), (57).
///
/// A write adds up to `θ/(1−η)`: make `θ = (1 − η) θ′`. Frozen with groups of `G` tokens, `G` steps act as one of the
/// sum of their `θ`; scale them by about `1/G`.
/// Source: Behrouz et al., "Titans", eqs 11–14 (their θ is half of ours: no ½ in their loss).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TitansMlp {
    /// The memory.
    pub memory: MlpMemory,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

slots! {
    /// Weights of an MLP memory and their momentum per sequence and head; `D` is the hidden width.
    pub struct MomentumWeights {
        /// `W₀ [N,H,K,D]`.
        w0,
        /// `W₁ [N,H,D,V]`.
        w1,
        /// Momentum of `W₀`.
        s0,
        /// Momentum of `W₁`.
        s1,
    }
}

impl MomentumWeights<()> {
    pub(super) fn shapes(memory: MlpMemory, dims: &Dims) -> MomentumWeights<Shape> {
        let (weights, momentum) = (memory.weights(dims), memory.weights(dims));
        MomentumWeights { w0: weights.w0, w1: weights.w1, s0: momentum.w0, s1: momentum.w1 }
    }

    pub(super) fn fresh(memory: MlpMemory, dims: &Dims) -> MomentumWeights<Initial> {
        let weights = memory.fresh(dims);
        MomentumWeights { w0: weights.w0, w1: weights.w1, s0: Initial::Zeros, s1: Initial::Zeros }
    }
}

impl DeepRule for TitansMlp {
    fn deep(self) -> Deep {
        Deep {
            structure: self.memory.structure(),
            bias: Bias::L2,
            retention: Retention::Decay,
            momentum: true,
            read: self.read,
            frozen: self.frozen,
        }
    }
}

impl Rule for TitansMlp {
    const NAME: &'static str = "titans_mlp";
    type Gates = MomentumGates<()>;
    type State = MomentumWeights<()>;

    fn gates(self, dims: &Dims) -> MomentumGates<Shape> {
        MomentumGates { log_a: dims.scalars(), log_eta: dims.scalars(), theta: dims.scalars() }
    }

    fn state(self, dims: &Dims) -> MomentumWeights<Shape> {
        MomentumWeights::shapes(self.memory, dims)
    }

    fn initial(self, dims: &Dims) -> MomentumWeights<Initial> {
        MomentumWeights::fresh(self.memory, dims)
    }

    fn check(self, dims: &Dims) -> Result<()> {
        check(Self::NAME, self.deep(), dims)
    }
}
