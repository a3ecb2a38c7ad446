//! YAAD: an error bounded by a gate.

use super::{AnchorWeights, AttentionalBias, Huber, MatrixMemory, Memory, MlpMemory, MomentumWeights};
use crate::{
    Read,
    families::{DeepForm, DeepGate, DeepLogits, DeepRule, DeepSpec, LowerDeepGates},
    rules::MomentumForm,
    slots,
};

slots! {
    /// Gates of a rule with a bounded error.
    pub struct HuberGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `θ [B,T,H]`, finite: step size of the descent.
        theta: Step,
        /// `δ [B,T,H]`, at least 0: errors beyond it count as this large.
        delta: Threshold,
    }
}

slots! {
    /// Gates of a rule with a bounded error and momentum.
    pub struct HuberMomentumGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `log η [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old momentum.
        log_eta: Momentum,
        /// `θ [B,T,H]`, finite: step size of the descent.
        theta: Step,
        /// `δ [B,T,H]`, at least 0: errors beyond it count as this large.
        delta: Threshold,
    }
}

slots! {
    /// What layers form the gates of rules with a bounded error from.
    pub struct HuberLogits {
        /// Step size.
        b_proj,
        /// Threshold.
        delta_proj,
    }
}

slots! {
    /// What layers form the gates of rules with a bounded error and momentum from.
    pub struct HuberMomentumLogits {
        /// Step size.
        b_proj,
        /// Momentum.
        eta_proj,
        /// Threshold.
        delta_proj,
    }
}

/// A memory that no single token can shake: (33)–(46), (50)–(52), (53).
///
/// Source: Behrouz et al., "It's All Connected" (MIRAS), Yaad. The paper's `δ` depends on the token, as here; it pulls
/// towards the last chunk's weights nowhere, and neither does this.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Yaad<M: Memory = MlpMemory> {
    /// The memory.
    pub memory: M,
    /// Where an error counts as large.
    pub bias: Huber,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
    /// Length that what the memory is taught stays under, over 0 (94); absent: any.
    pub clip: Option<f32>,
    /// Whether columns of the weights are set back to the lengths of the anchor's where a group starts (95); needs groups and an
    /// anchor.
    pub renorm: bool,
}

/// [`Yaad`] with one matrix.
pub type YaadMatrix = Yaad<MatrixMemory>;

impl<M: Memory> Default for Yaad<M> {
    fn default() -> Self {
        Self {
            memory: M::default(),
            bias: Huber::default(),
            read: Read::default(),
            frozen: None,
            clip: None,
            renorm: false,
        }
    }
}

impl<M: Memory> DeepRule for Yaad<M> {
    const NAME: &'static str = if M::MATRIX { "yaad_matrix" } else { "yaad" };
    const FORM: DeepForm = DeepForm::Huber;
    type Gates = HuberGates<()>;
    type State = M::Weights;
    type Anchor = M::Anchor;

    fn spec(self) -> DeepSpec {
        let Self { memory, read, frozen, clip, renorm, .. } = self;
        let bias = AttentionalBias::Huber(self.bias);
        DeepSpec { bias, clip, renorm, ..DeepSpec::new(memory.structure(), read, frozen) }
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.frozen
    }
}

impl LowerDeepGates for HuberGates<()> {
    type Logits = HuberLogits<()>;

    fn try_lower_backward<T, E>(mut gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<HuberGates<T>, E> {
        let (log_a, theta) = (gate(DeepGate::LogA)?, gate(DeepGate::Theta)?);
        Ok(HuberGates { log_a, theta, delta: gate(DeepGate::Delta)? })
    }

    fn logits<T>(logits: HuberLogits<T>) -> DeepLogits<T> {
        DeepLogits { step: logits.b_proj, momentum: None, threshold: Some(logits.delta_proj) }
    }
}

/// [`Yaad`] with momentum: (57) for (58).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct YaadMomentum {
    /// The memory.
    pub memory: MlpMemory,
    /// Where an error counts as large.
    pub bias: Huber,
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

impl DeepRule for YaadMomentum {
    const NAME: &'static str = "yaad_momentum";
    const FORM: DeepForm = DeepForm::HuberMomentum;
    type Gates = HuberMomentumGates<()>;
    type State = MomentumWeights<()>;
    type Anchor = AnchorWeights<()>;

    fn spec(self) -> DeepSpec {
        let Self { memory, bias, read, frozen, momentum, clip, renorm } = self;
        DeepSpec { momentum, ..Yaad { memory, bias, read, frozen, clip, renorm }.spec() }
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.frozen
    }
}

impl LowerDeepGates for HuberMomentumGates<()> {
    type Logits = HuberMomentumLogits<()>;

    fn try_lower_backward<T, E>(mut gate: impl FnMut(DeepGate) -> Result<T, E>) -> Result<HuberMomentumGates<T>, E> {
        let (log_a, log_eta) = (gate(DeepGate::LogA)?, gate(DeepGate::LogEta)?);
        Ok(HuberMomentumGates { log_a, log_eta, theta: gate(DeepGate::Theta)?, delta: gate(DeepGate::Delta)? })
    }

    fn logits<T>(logits: HuberMomentumLogits<T>) -> DeepLogits<T> {
        let HuberMomentumLogits { b_proj, eta_proj, delta_proj } = logits;
        DeepLogits { step: b_proj, momentum: Some(eta_proj), threshold: Some(delta_proj) }
    }
}
