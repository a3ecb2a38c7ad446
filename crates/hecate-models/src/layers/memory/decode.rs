//! One token of each text, where the device fuses everything between the projections into one kernel.

use super::{MemoryLayer, NORM_EPSILON};
use crate::{
    Features, Result, Tape, Var,
    layers::{
        Context, Linear, Projection,
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
        // All maps of the stream in one call.
        let (logits, retention) = self.gating.token_maps();
        let maps: Vec<Linear> = self.qkv.iter().map(Projection::linear).chain(logits.iter().copied()).collect();
        let maps = maps.into_iter().chain(retention).chain(self.output.gate).collect::<Vec<_>>();
        let mut made = Linear::each(tape, &maps, x)?.into_iter();
        let mut parts = Vec::new();
        for (map, x) in self.qkv.iter().zip(made.by_ref()) {
            parts.push(map.parts(tape, x, context)?);
        }
        let Ok(qkv) = <[_; 3]>::try_from(parts) else { unreachable!("three projections") };
        let logits = self.gating.token_logits(tape, made.by_ref().take(logits.len()).collect())?;
        let retention = retention.and_then(|_| made.next());
        let (weight, epsilon) = self.output.norm.parts(tape)?;
        let surroundings = Surroundings {
            sizes: [self.heads, self.key, self.value],
            qkv,
            norm_epsilon: NORM_EPSILON,
            retention: self.gating.token_retention(tape, retention)?,
            logits,
            limits: self.gating.limits(),
            weight: weight.into_value(),
            epsilon,
            gate: made.next().map(Var::into_value),
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
