//! One token of each text, where the device fuses everything between the projections into one kernel.

use super::{Memory, NORM_EPSILON};
use crate::{
    Error, Features, Result, Tape, Var,
    layers::{Context, GatedRule},
};
use hecate_core::{Backend, DType, Decode, Kernel, Sequences, Slots, Tensor, decode};

impl<R: GatedRule> Memory<R> {
    /// Whether a call is one token of each text that [`Memory::decode`] can read: no gradient is wanted, and device and rule
    /// know the layer's options.
    pub(super) fn has_fused_decode<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &Context<'_, B>,
    ) -> bool {
        // The kernel reads 32-bit floats, whatever precision training has.
        let one = matches!(*x.axes(), [batch, 1, _] if context.sequences == Sequences::batch(batch, 1));
        let wide = tape.is_inert() && [tape.activations(), x.value().dtype()] == [DType::F32; 2];
        let known = self.features == Features::Identity && self.gating.has_token();
        let dims = || self.dims(context.sequences.clone(), 1);
        one && wide && known && x.value().device().has_fused_decode(self.rule, &dims())
    }

    /// `x [N,1,hidden]` to the same shape. The kernel convolves, normalises, makes the gates, runs the rule, norms and gates
    /// what was read; the cache takes the convolutions' last inputs and the state.
    pub(super) fn decode<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let [q, k, v] = self.qkv.each_ref().map(|map| map.parts(tape, x, context));
        let no_word = || Error::config("rule", R::NAME, "one whose strengths have a name");
        let (weight, epsilon) = self.output.norm.parts(tape)?;
        let inputs = Decode::<R, Tensor<B>> {
            q: q?,
            k: k?,
            v: v?,
            norm_epsilon: NORM_EPSILON,
            gates: self.gating.token(tape, x)?.ok_or_else(no_word)?,
            state: R::State::map(self.start(tape, x.value().device(), context)?, |_, state| state.into_value()),
            weight: weight.into_value(),
            epsilon,
            gate: self.output.factors(tape, x)?.map(Var::into_value),
        };
        let decoded = decode(self.rule, [self.heads, self.key, self.value], &inputs)?;
        for (map, last) in self.qkv.iter().zip(decoded.convs) {
            if let (Some(conv), Some(last)) = (map.conv(), last) {
                context.keep(conv.name(), &last);
            }
        }
        R::State::list(&decoded.state).into_iter().for_each(|(name, last)| context.keep(name, last));
        self.output.back.forward(tape, &Var::constant(decoded.out))
    }
}
