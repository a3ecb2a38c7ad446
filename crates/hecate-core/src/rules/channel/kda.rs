//! Kimi delta attention.

use super::ChannelStepGates;
use crate::{
    Dims, NoSlots, Rule, Shape,
    families::{Channel, ChannelForm, ChannelRule, EraseKey, RetentionAxis, RewriteKey, channel_gates},
    rules::{Matrix, WriteLogits},
};

/// Kimi delta attention: `M̃ = diag(a_t) M_{t−1}`, `M_t = M̃ + θ_t k_tᵀ (v_t − k_t M̃)`.
///
/// The [step](super) with `e = k`, `b = −k`: the delta rule that erases the decayed memory, with retention by channel. Where all
/// channels keep the same it is [`Delta`](crate::rules::Delta) with `Erase::Decayed`.
/// Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", eq 1; `θ` is its `β`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Kda {}

impl Rule for Kda {
    const NAME: &'static str = "kda";
    type Family = Channel;
    type Gates = ChannelStepGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> ChannelStepGates<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Kda {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Channel,
        step: true,
        erase: EraseKey::Key,
        rewrite: RewriteKey::Key,
        factors: false,
        undecayed: false,
    };
    type Logits = WriteLogits<()>;
}
