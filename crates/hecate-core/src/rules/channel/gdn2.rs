//! The gated delta rule whose erase and write have gates of each channel.

use super::{ChannelErase, ChannelEraseLogits};
use crate::{
    Dims, NoSlots, Rule, Shape,
    families::{Channel, ChannelForm, ChannelRule, EraseKey, RetentionAxis, RewriteKey, channel_gates},
    rules::Matrix,
};

/// Gated DeltaNet-2: `M̃ = diag(a_t) M_{t−1}`, `M_t = M̃ + k_tᵀ (w_t ∘ v_t − (b_t ∘ k_t) M̃)`.
///
/// The [step](super) with `e = b ∘ k`, `b = −k`, `ω = w`: what is erased is looked up by the channels that `b` lets through, and
/// each value is written by as much as `w` says. With `b = θ` and `w = θ` everywhere it is [`Kda`](super::Kda).
/// Source: arXiv 2605.22791, as flash-linear-attention has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Gdn2 {}

impl Rule for Gdn2 {
    const NAME: &'static str = "gdn2";
    type Family = Channel;
    type Gates = ChannelErase<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> ChannelErase<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Gdn2 {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Channel,
        step: false,
        erase: EraseKey::Gated,
        rewrite: RewriteKey::Key,
        factors: true,
        undecayed: false,
    };
    type Logits = ChannelEraseLogits<()>;
}
