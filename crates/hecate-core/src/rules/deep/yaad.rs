//! YAAD: an error bounded by a gate.

use super::{Bias, Deep, DeepRule, MatrixMemory, Memory, MlpMemory, MomentumWeights, Retention, check};
use crate::{Dims, Initial, Of, Read, Result, Rule, Shape, slots};

/// Where an error counts as large: (50)–(52).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Huber {
    /// Each coordinate by itself.
    #[default]
    Coordinate,
    /// By its length, which is cut.
    Norm,
    /// By its length, and then every coordinate becomes `δ` times its sign, as printed in the paper: what is taught
    /// jumps where the length passes `δ`.
    Mix,
}

slots! {
    /// Gates of a rule with a bounded error.
    pub struct HuberGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a,
        /// `θ [B,T,H]`, finite: step size of the descent.
        theta,
        /// `δ [B,T,H]`, at least 0: errors beyond it count as this large.
        delta,
    }
}

slots! {
    /// Gates of a rule with a bounded error and momentum.
    pub struct HuberMomentumGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a,
        /// `log η [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old momentum.
        log_eta,
        /// `θ [B,T,H]`, finite: step size of the descent.
        theta,
        /// `δ [B,T,H]`, at least 0: errors beyond it count as this large.
        delta,
    }
}

/// A memory that no single token can shake: (33)–(46), (50)–(52), (53).
///
/// Source: Behrouz et al., "It's All Connected" (MIRAS), Yaad. The paper's `δ` depends on the token, as here; it pulls
/// towards the last chunk's weights nowhere, and neither does this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yaad<M: Memory = MlpMemory> {
    /// The memory.
    pub memory: M,
    /// Where an error counts as large.
    pub bias: Huber,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

/// [`Yaad`] with one matrix.
pub type YaadMatrix = Yaad<MatrixMemory>;

impl<M: Memory> Default for Yaad<M> {
    fn default() -> Self {
        Self { memory: M::default(), bias: Huber::default(), read: Read::default(), frozen: None }
    }
}

impl<M: Memory> DeepRule for Yaad<M> {
    fn deep(self) -> Deep {
        Deep {
            structure: self.memory.structure(),
            bias: Bias::Huber(self.bias),
            retention: Retention::Decay,
            momentum: false,
            read: self.read,
            frozen: self.frozen,
        }
    }
}

impl<M: Memory> Rule for Yaad<M> {
    const NAME: &'static str = if M::MATRIX { "yaad_matrix" } else { "yaad" };
    type Gates = HuberGates<()>;
    type State = M::Weights;

    fn gates(self, dims: &Dims) -> HuberGates<Shape> {
        HuberGates { log_a: dims.scalars(), theta: dims.scalars(), delta: dims.scalars() }
    }

    fn state(self, dims: &Dims) -> Of<M::Weights, Shape> {
        self.memory.weights(dims)
    }

    fn initial(self, dims: &Dims) -> Of<M::Weights, Initial> {
        self.memory.fresh(dims)
    }

    fn check(self, dims: &Dims) -> Result<()> {
        check(Self::NAME, self.deep(), dims)
    }
}

/// [`Yaad`] with momentum: (57) for (58).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct YaadMomentum {
    /// The memory.
    pub memory: MlpMemory,
    /// Where an error counts as large.
    pub bias: Huber,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

impl DeepRule for YaadMomentum {
    fn deep(self) -> Deep {
        Deep {
            structure: self.memory.structure(),
            bias: Bias::Huber(self.bias),
            retention: Retention::Decay,
            momentum: true,
            read: self.read,
            frozen: self.frozen,
        }
    }
}

impl Rule for YaadMomentum {
    const NAME: &'static str = "yaad_momentum";
    type Gates = HuberMomentumGates<()>;
    type State = MomentumWeights<()>;

    fn gates(self, dims: &Dims) -> HuberMomentumGates<Shape> {
        let [log_a, log_eta, theta, delta] = [(); 4].map(|()| dims.scalars());
        HuberMomentumGates { log_a, log_eta, theta, delta }
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
