//! One token of each text, where the device fuses everything between the projections into one kernel.

use super::{MemoryLayer, NORM_EPSILON};
use crate::{
    Features, Result, Tape, Var,
    layers::{
        Context,
        rule_call::{RuleCall, Surroundings},
    },
};
use hecate_core::{Backend, DType, Sequences};

impl MemoryLayer {
    /// Whether a call is one token of each text that [`MemoryLayer::decode`] can read: no gradient is wanted, and device and
    /// rule know the layer's options.
    pub(super) fn has_fused_decode<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &Context<'_, B>,
    ) -> bool {
        // The kernel reads 32-bit floats, whatever precision training has.
        let one = matches!(*x.axes(), [batch, 1, _] if context.sequences == Sequences::batch(batch, 1));
        let wide = tape.is_inert() && [tape.activations(), x.value().dtype()] == [DType::F32; 2];
        let dims = || self.dims(context.sequences.clone(), 1);
        let known = || rule.has_fused_decode(x.value().device(), &dims(), self.gating.limits());
        let plain = self.features == Features::Identity && self.writes.is_one() && self.gating.is_plain();
        one && wide && plain && !self.anchored && !self.mean && known()
    }

    /// `x [N,1,hidden]` to the same shape. The kernel convolves, normalises, makes the gates, runs the rule, norms and gates
    /// what was read; the cache takes the convolutions' last inputs and the state.
    pub(super) fn decode<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let [q, k, v] = self.qkv.each_ref().map(|map| map.parts(tape, x, context));
        let (weight, epsilon) = self.output.norm.parts(tape)?;
        let surroundings = Surroundings {
            sizes: [self.heads, self.key, self.value],
            qkv: [q?, k?, v?],
            norm_epsilon: NORM_EPSILON,
            retention: self.gating.token_retention(tape, x)?,
            logits: self.gating.token_logits(tape, x)?,
            limits: self.gating.limits(),
            weight: weight.into_value(),
            epsilon,
            gate: self.output.factors(tape, x)?.map(Var::into_value),
        };
        let state = self.start(rule, tape, x.value().device(), context)?.into_iter().map(Var::into_value).collect();
        let decoded = rule.decode(surroundings, state)?;
        for (map, last) in self.qkv.iter().zip(decoded.convs) {
            if let (Some(conv), Some(last)) = (map.conv(), last) {
                context.keep(conv.name(), &last);
            }
        }
        rule.state_names().iter().zip(&decoded.state).for_each(|(name, last)| context.keep(name, last));
        self.output.back.forward(tape, &Var::constant(decoded.out))
    }
}
