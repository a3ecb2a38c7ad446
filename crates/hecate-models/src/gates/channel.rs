//! Gates of the channel family, once for all its rules.

use super::{GateInputs, GatedRule, present};
use crate::{Result, Var};
use hecate_core::{
    Backend, Of, Slots,
    families::{Channel, ChannelGate, ChannelRule, EraseKey, RewriteKey},
    primitives::Map,
};

/// `log a` is the layer's, a number a channel where the rule forgets so. `θ = step σ(b)`, and all gates of keys and values are
/// `σ` of their logits: with unit keys an erase takes away at most what is there. An erase key of its own is the logit at unit
/// length, and a rewrite key of its own `−σ(r) ∘ e`.
impl<R: ChannelRule> GatedRule<Channel> for R {
    type Logits = <R as ChannelRule>::Logits;

    fn widths(self, [key, value]: [usize; 2]) -> Of<Self::Logits, Option<usize>> {
        let mut widths = R::FORM.gates().skip(1).map(|(_, width)| width.elements(key, value));
        Self::Logits::build(|_| widths.next().flatten())
    }

    fn channels(self, key: usize) -> Option<usize> {
        R::FORM.gates().next().and_then(|(_, width)| width.elements(key, 0))
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, Self::Logits>) -> Result<Of<R::Gates, Var<B>>> {
        let GateInputs { tape, log_a, logits, limits } = from;
        let mut logits = <Self::Logits as Slots>::into_vec(logits).into_iter();
        let mut erase = None;
        let mut gates = Vec::new();
        for (gate, _) in R::FORM.gates() {
            gates.push(match gate {
                ChannelGate::LogA => log_a.clone(),
                ChannelGate::Theta => {
                    let step = tape.map(Map::Sigmoid, present::<R, _>(&logits.next(), "theta")?)?;
                    if limits.step == 1.0 { step } else { tape.scale(limits.step, &step)? }
                }
                ChannelGate::Erase => {
                    let logit = logits.next();
                    let logit = present::<R, _>(&logit, "erase")?;
                    let own = match R::FORM.erase {
                        EraseKey::Own => tape.l2_norm(logit, super::NORM_EPSILON)?,
                        _ => tape.map(Map::Sigmoid, logit)?,
                    };
                    erase = Some(own.clone());
                    own
                }
                ChannelGate::Rewrite => {
                    let share = tape.map(Map::Sigmoid, present::<R, _>(&logits.next(), "rewrite")?)?;
                    match (R::FORM.rewrite, &erase) {
                        (RewriteKey::Own, Some(erase)) => tape.scale(-1.0, &tape.mul(&share, erase)?)?,
                        _ => share,
                    }
                }
                ChannelGate::Factors => tape.map(Map::Sigmoid, present::<R, _>(&logits.next(), "factors")?)?,
            });
        }
        let mut gates = gates.into_iter();
        R::Gates::try_build(|_| Ok(present::<R, _>(&gates.next(), "gates")?.clone()))
    }
}
