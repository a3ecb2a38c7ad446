//! MEMORA: weights that are distributions.

use super::{MatrixMemory, Memory, MlpMemory, Retention};
use crate::{
    Initial, Read,
    families::{DeepForm, DeepRule, DeepSpec},
    rules::WriteGates,
};

/// A memory whose columns are distributions over their inputs, kept by relative entropy: (33)–(46), (47), (55).
///
/// The state holds logarithms, so a weight never underflows to the logarithm of zero; each column is normalised after
/// every write and may start with any sum. Weights are never negative. With a layer norm and nearly uniform columns the
/// variance is near 0 and gradients are ill-conditioned.
/// Source: Behrouz et al., "It's All Connected" (MIRAS), Memora.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Memora<M: Memory = MlpMemory> {
    /// The memory.
    pub memory: M,
    /// What a column of weights sums to, over 0.
    pub scale: f32,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
    /// Length that what the memory is taught stays under, over 0 (94); absent: any.
    pub clip: Option<f32>,
}

/// [`Memora`] with one matrix.
pub type MemoraMatrix = Memora<MatrixMemory>;

impl<M: Memory> Default for Memora<M> {
    fn default() -> Self {
        Self { memory: M::default(), scale: 1.0, read: Read::default(), frozen: None, clip: None }
    }
}

impl<M: Memory> DeepRule for Memora<M> {
    const NAME: &'static str = if M::MATRIX { "memora_matrix" } else { "memora" };
    const FORM: DeepForm = DeepForm::L2Kl;
    type Gates = WriteGates<()>;
    type State = M::Weights;
    type Anchor = M::Anchor;

    fn spec(self) -> DeepSpec {
        let retention = Retention::Kl { scale: self.scale };
        DeepSpec { retention, clip: self.clip, ..DeepSpec::new(self.memory.structure(), self.read, self.frozen) }
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.frozen
    }

    fn fresh(self, _: usize) -> Initial {
        Initial::Normal(1.0)
    }
}
