//! Titans: an MLP memory with momentum.

use super::{AnchorWeights, Memory, MlpMemory};
use crate::{
    Read,
    families::{DeepForm, DeepGate, DeepLogits, DeepMatrix, DeepRule, DeepSpec, LowerDeepGates, LowerWeights},
    rules::{MomentumForm, MomentumGates, MomentumLogits},
    slots,
};

/// An MLP taught by its error, with momentum: (33)–(46), (47), (53), (57).
///
/// A write adds up to `θ/(1−η)`: make `θ = (1 − η) θ′`. Frozen with groups of `G` tokens, `G` steps act as one of the
/// sum of their `θ`; scale them by about `1/G`.
/// Source: Behrouz et al., "Titans", eqs 11–14 (their θ is half of ours: no ½ in their loss).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct TitansMlp {
    /// The memory.
    pub memory: MlpMemory,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
    /// Which momentum.
    pub momentum: MomentumForm,
    /// Length that what the memory is taught stays under, over 0 (94); absent: any.
    pub clip: Option<f32>,
    /// Whether columns of the weights are set back to the lengths of the anchor's where a group starts (95); needs groups and an
    /// anchor.
    pub renorm: bool,
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

impl DeepRule for TitansMlp {
    const NAME: &'static str = "titans_mlp";
    const FORM: DeepForm = DeepForm::L2Momentum;
    type Gates = MomentumGates<()>;
    type State = MomentumWeights<()>;
    type Anchor = AnchorWeights<()>;

    fn spec(self) -> DeepSpec {
        let Self { memory, read, frozen, momentum, clip, renorm } = self;
        DeepSpec { momentum, clip, renorm, ..DeepSpec::new(memory.structure(), read, frozen) }
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.frozen
    }
}

impl LowerDeepGates for MomentumGates<()> {
    type Logits = MomentumLogits<()>;

    fn try_lower_backward<T, E>(mut gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<MomentumGates<T>, E> {
        let (log_a, log_eta) = (gate(DeepGate::LogA)?, gate(DeepGate::LogEta)?);
        Ok(MomentumGates { log_a, log_eta, theta: gate(DeepGate::Theta)? })
    }

    fn logits<T>(logits: MomentumLogits<T>) -> DeepLogits<T> {
        DeepLogits { step: logits.b_proj, momentum: Some(logits.eta_proj), threshold: None }
    }
}

impl LowerWeights for MomentumWeights<()> {
    const MOMENTUM: &'static [&'static str] = &["s0", "s1"];

    fn lower_backward<T>(matrix: impl FnMut(DeepMatrix) -> T) -> MomentumWeights<T> {
        use DeepMatrix::{S0, S1, W0, W1};
        let [w0, w1, s0, s1] = [W0, W1, S0, S1].map(matrix);
        MomentumWeights { w0, w1, s0, s1 }
    }
}
