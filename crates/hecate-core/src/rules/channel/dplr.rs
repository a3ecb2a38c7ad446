//! Memories whose transition is a diagonal matrix and one of rank 1.

use super::{LookupGates, LookupLogits};
use crate::{
    Dims, NoSlots, Rule, Shape,
    families::{Channel, ChannelForm, ChannelRule, EraseKey, RetentionAxis, RewriteKey, channel_gates},
    rules::Matrix,
};

/// Diagonal plus low rank: `M_t = diag(a_t) M_{t−1} + b_tᵀ (c_t M_{t−1}) + k_tᵀ v_t`, with directions `c` and `b` of their own.
///
/// The [step](super) with `e = c`, of the memory before its decay. Nothing bounds it: with `b = −g ∘ c` for a unit `c` and
/// `g ≤ 1`, as in [`Rwkv7`], a token without decay makes no direction longer. Source: `dplr` of flash-linear-attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Dplr {}

impl Rule for Dplr {
    const NAME: &'static str = "dplr";
    type Family = Channel;
    type Gates = LookupGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> LookupGates<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Dplr {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Channel,
        step: false,
        erase: EraseKey::Own,
        rewrite: RewriteKey::Own,
        factors: false,
        undecayed: true,
    };
    type Logits = LookupLogits<()>;
}

/// The recurrence of RWKV-7: `M_t = diag(a_t) M_{t−1} − (α_t ∘ κ_t)ᵀ (κ_t M_{t−1}) + k_tᵀ v_t`.
///
/// The [step](super) with `e = κ`, `b = −α ∘ κ`, of the memory before its decay: [`Dplr`] with `c = κ`. In released models `κ` is
/// of unit length and `log a = −e^{−1/2} σ(w)`. Source: Peng et al., "RWKV-7 Goose", eq 15; its state is the transpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Rwkv7 {}

impl Rule for Rwkv7 {
    const NAME: &'static str = "rwkv7";
    type Family = Channel;
    type Gates = LookupGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> LookupGates<Shape> {
        channel_gates::<Self>(dims)
    }
}

impl ChannelRule for Rwkv7 {
    const FORM: ChannelForm = ChannelForm {
        retention: RetentionAxis::Channel,
        step: false,
        erase: EraseKey::Own,
        rewrite: RewriteKey::Erased,
        factors: false,
        undecayed: true,
    };
    type Logits = LookupLogits<()>;
}
