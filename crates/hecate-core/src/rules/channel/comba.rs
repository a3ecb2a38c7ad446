//! Comba: the gated delta rule that erases by a share of its key.

use super::{ScaledErase, ScaledEraseLogits};
use crate::{
    Dims, NoSlots, Rule, Shape,
    families::{Channel, ChannelForm, ChannelRule, EraseKey, RetentionAxis, RewriteKey, channel_gates},
    rules::Matrix,
};

/// Comba: `M̃ = a_t M_{t−1}`, `M_t = M̃ + θ_t k_tᵀ (v_t − c_t k_t M̃)`, with one `a` for all channels.
///
/// The [step](super) with `e = c k`, `b = −k`. In released layers `c` is `σ` of one learned number a head, and the query is
/// `q − D k` with another. Source: Hu et al., "Comba: Improving Bilinear RNNs with Closed-loop Control".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Comba {}

impl Rule for Comba {
    const NAME: &'static str = "comba";
    type Family = Channel;
    type Gates = ScaledErase<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> ScaledErase<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Comba {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Head,
        step: true,
        erase: EraseKey::Scaled,
        rewrite: RewriteKey::Key,
        factors: false,
        undecayed: false,
    };
    type Logits = ScaledEraseLogits<()>;
}
