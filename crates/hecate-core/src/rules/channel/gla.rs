//! Gated linear attention.

use super::ChannelGates;
use crate::{
    Dims, NoSlots, Rule, Shape,
    families::{Channel, ChannelForm, ChannelRule, EraseKey, RetentionAxis, RewriteKey, channel_gates},
    rules::Matrix,
};

/// Gated linear attention: `M_t = diag(a_t) M_{t−1} + k_tᵀ v_t`.
///
/// The [step](super) without an erase. Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient
/// Training", eq 3 and section 4; `log a` there is `log σ(..)/16`. RWKV-6 forgets so too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Gla {}

impl Rule for Gla {
    const NAME: &'static str = "gla";
    type Family = Channel;
    type Gates = ChannelGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> ChannelGates<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Gla {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Channel,
        step: false,
        erase: EraseKey::Nothing,
        rewrite: RewriteKey::Key,
        factors: false,
        undecayed: false,
    };
    type Logits = NoSlots;
}
