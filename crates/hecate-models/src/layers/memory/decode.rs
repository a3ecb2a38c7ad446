//! One token of each text, where the device fuses everything between the projections into one kernel.

use super::MemoryLayer;
use crate::{
    Features, Result, Tape, Var,
    layers::{
        Context, Linear, Projection, RmsNorm,
        rule_call::{RuleCall, Surroundings},
    },
};
use hecate_core::{Backend, DType, Sequences, primitives::ProjectionEnd};

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
        let formed = self.sharing == 1 && self.gating.is_plain() && self.output.is_plain();
        let plain = self.features == Features::Identity && self.writes.is_one() && formed;
        one && wide && plain && !self.anchored && !self.mean && known()
    }

    /// [`Mixer::forward_onto`](crate::layers::Mixer::forward_onto): one token of each text in three calls of the device.
    pub(super) fn forward_onto<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        norm: &RmsNorm,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Option<Var<B>>> {
        context.check(x)?;
        let maps: Vec<_> = self.stream_maps().into_iter().chain([self.output.back]).collect();
        let fused = Linear::projects(tape, &maps, x) && self.has_fused_decode(rule, tape, x, context);
        if fused { self.decode(rule, tape, (x, Some(norm)), context).map(Some) } else { Ok(None) }
    }

    /// All maps of the stream: those of queries, keys and values, of logits, of retention and of the output's gate.
    fn stream_maps(&self) -> Vec<Linear> {
        let (logits, retention) = self.gating.token_maps();
        self.qkv.iter().map(Projection::linear).chain(logits).chain(retention).chain(self.output.gate).collect()
    }

    /// `x [N,1,hidden]` to the same shape; with a norm to `x + mixer(norm x)`. The kernel convolves, normalises, makes the
    /// gates, runs the rule, norms and gates what was read; the cache takes the convolutions' last inputs and the state.
    pub(super) fn decode<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        (x, norm): (&Var<B>, Option<&RmsNorm>),
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        // All maps of the stream in one call.
        let (logits, retention) = self.gating.token_maps();
        let made = match norm {
            Some(_) => Linear::projected(tape, &self.stream_maps(), (x, norm), ProjectionEnd::Each)?,
            None => Linear::each(tape, &self.stream_maps(), x)?,
        };
        let mut made = made.into_iter();
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
            norm_epsilon: self.norm_epsilon,
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
        let (read, back) = (Var::constant(decoded.out), self.output.back);
        match norm {
            Some(_) => Ok(Linear::projected(tape, &[back], (&read, None), ProjectionEnd::Added(x.value()))?.remove(0)),
            None => back.forward(tape, &read),
        }
    }
}
