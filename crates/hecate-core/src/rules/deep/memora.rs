//! MEMORA: weights that are distributions.

use super::{Bias, Deep, DeepRule, MatrixMemory, Memory, MlpMemory, Retention, check};
use crate::{Dims, Initial, Of, Read, Result, Rule, Shape, Slots, rules::WriteGates};

/// A memory whose columns are distributions over their inputs, kept by relative entropy: (33)–(46), (47), (55).
///
/// The state holds logarithms, so a weight never underflows to the logarithm of zero; each column is normalised after
/// every write and may start with any sum. Weights are never negative. With a layer norm and nearly uniform columns the
/// variance is near 0 and gradients are ill-conditioned.
/// Source: Behrouz et al., "It's All Connected" (MIRAS), Memora.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memora<M: Memory = MlpMemory> {
    /// The memory.
    pub memory: M,
    /// What a column of weights sums to, over 0.
    pub scale: f32,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

/// [`Memora`] with one matrix.
pub type MemoraMatrix = Memora<MatrixMemory>;

impl<M: Memory> Default for Memora<M> {
    fn default() -> Self {
        Self { memory: M::default(), scale: 1.0, read: Read::default(), frozen: None }
    }
}

impl<M: Memory> DeepRule for Memora<M> {
    fn deep(self) -> Deep {
        Deep {
            structure: self.memory.structure(),
            bias: Bias::L2,
            retention: Retention::Kl { scale: self.scale },
            momentum: false,
            read: self.read,
            frozen: self.frozen,
        }
    }
}

impl<M: Memory> Rule for Memora<M> {
    const NAME: &'static str = if M::MATRIX { "memora_matrix" } else { "memora" };
    type Gates = WriteGates<()>;
    type State = M::Weights;

    fn gates(self, dims: &Dims) -> WriteGates<Shape> {
        WriteGates { log_a: dims.scalars(), theta: dims.scalars() }
    }

    fn state(self, dims: &Dims) -> Of<M::Weights, Shape> {
        self.memory.weights(dims)
    }

    fn initial(self, _: &Dims) -> Of<M::Weights, Initial> {
        M::Weights::build(|_| Initial::Normal(1.0))
    }

    fn check(self, dims: &Dims) -> Result<()> {
        check(Self::NAME, self.deep(), dims)
    }
}
