//! MONETA: an `l_p` error and an `L_q` retention.

use super::{AttentionalBias, Map, MatrixMemory, Memory, MlpMemory, Retention};
use crate::{
    Read,
    families::{DeepForm, DeepGate, DeepLogits, DeepRule, DeepSpec, LowerDeepGates},
    rules::{WriteGates, WriteLogits},
};

/// A memory taught by an `l_p` error whose weights are the image of a decaying dual variable: (33)–(46), (48), (54).
///
/// The state is the dual variable. With `p > 2` the error acts more than linearly: about
/// `θ p(p−1)|e|^{p−2}|k|² > 2` makes the memory run away, so keep `θ` small or errors bounded.
/// Source: Behrouz et al., "It's All Connected" (MIRAS), Moneta, `p = 3`, `q = 4`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Moneta<M: Memory = MlpMemory> {
    /// The memory.
    pub memory: M,
    /// Power of the error, at least 1.
    pub p: f32,
    /// Added to squared errors: `10⁻⁶` for `p ≥ 2`, `10⁻⁴` to `10⁻²` under 2, where the slope at 0 is `p ε^{(p−2)/2}`.
    pub epsilon: f32,
    /// Whether the sign of the error is a hyperbolic tangent (49).
    pub tanh: bool,
    /// Norm of the retention, at least 2; at 2 it is plain decay.
    pub q: f32,
    /// How the dual variable becomes weights.
    pub map: Map,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
    /// Length that what the memory is taught stays under, over 0 (94); absent: any.
    pub clip: Option<f32>,
}

/// [`Moneta`] with one matrix.
pub type MonetaMatrix = Moneta<MatrixMemory>;

impl<M: Memory> Default for Moneta<M> {
    fn default() -> Self {
        Self {
            memory: M::default(),
            p: 3.0,
            epsilon: 1e-6,
            tanh: false,
            q: 4.0,
            map: Map::default(),
            read: Read::default(),
            frozen: None,
            clip: None,
        }
    }
}

impl<M: Memory> DeepRule for Moneta<M> {
    const NAME: &'static str = if M::MATRIX { "moneta_matrix" } else { "moneta" };
    const FORM: DeepForm = DeepForm::LpLq;
    type Gates = WriteGates<()>;
    type State = M::Weights;
    type Anchor = M::Anchor;

    fn spec(self) -> DeepSpec {
        let Self { p, epsilon, tanh, q, map, clip, .. } = self;
        let (bias, retention) = (AttentionalBias::Lp { p, epsilon, tanh }, Retention::Lq { q, map });
        DeepSpec { bias, retention, clip, ..DeepSpec::new(self.memory.structure(), self.read, self.frozen) }
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.frozen
    }
}

impl LowerDeepGates for WriteGates<()> {
    type Logits = WriteLogits<()>;

    fn try_lower_backward<T, E>(mut gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<WriteGates<T>, E> {
        Ok(WriteGates { log_a: gate(DeepGate::LogA)?, theta: gate(DeepGate::Theta)? })
    }

    fn logits<T>(logits: WriteLogits<T>) -> DeepLogits<T> {
        DeepLogits { step: logits.b_proj, momentum: None, threshold: None }
    }
}
