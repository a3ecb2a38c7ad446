//! Memories that are written by some tokens and read by all.

use super::{
    Context, GatedRule,
    rule_call::{CallOutputs, RuleCall, State, TextCall, keep_state, run},
    write_inputs::{lengths_between_multiples, with_tokens},
};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, Kernel, Tensor, memory};

/// A memory that fires every `C` tokens: at positions `0, C, 2C, …` of the text the token writes and reads, as its rule
/// says. All other tokens only read. The memory forgets when it is written and at no other time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeriodicUpdate<R> {
    rule: R,
    /// Tokens between two writes, `C`.
    period: usize,
}

impl<R: GatedRule> PeriodicUpdate<R> {
    pub(super) fn new(rule: R, period: usize) -> Self {
        Self { rule, period }
    }

    /// The same, of any rule.
    pub(super) fn updates<B: Backend + Kernel<R>>(&self) -> Updates<'_, B> {
        Updates { rule: &self.rule, period: self.period }
    }
}

/// [`PeriodicUpdate`] of any rule.
pub(super) struct Updates<'a, B: Backend> {
    rule: &'a dyn RuleCall<B>,
    period: usize,
}

impl<B: Backend> Updates<'_, B> {
    /// What the queries read `[B,T,H,V]`, in a memory that starts at `state [B,H,..]`; the context keeps the last state.
    pub(super) fn forward(
        &self,
        tape: &Tape<'_, B>,
        call: TextCall<'_, B>,
        state: State<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let Self { rule, period } = *self;
        let update = UpdateCall { rule, period, position: context.position % period };
        let CallOutputs { out, state } = match !rule.has_momentum() || period == 1 {
            true => update.together(tape, call, state)?,
            false => update.one_by_one(tape, call, state)?,
        };
        keep_state(rule, &state, context);
        Ok(out)
    }
}

/// One call of any rule, whose first token is at `position` of a period.
struct UpdateCall<'a, B: Backend> {
    rule: &'a dyn RuleCall<B>,
    period: usize,
    position: usize,
}

impl<B: Backend> UpdateCall<'_, B> {
    /// One call for all tokens, where idle gates leave the memory as it is. Tokens that do not fire get idle gates.
    fn together(
        &self,
        tape: &Tape<'_, B>,
        TextCall { q, writes, dims, anchor }: TextCall<'_, B>,
        state: State<B>,
    ) -> Result<CallOutputs<B>> {
        if self.period == 1 {
            return run(self.rule, tape, &dims.sequences, Some(q), writes, (state, anchor));
        }
        let idle = self.rule.idle(q.value().device(), dims)?;
        let writes = writes.with_gates(|slot, gate| self.fired(tape, gate, &idle[slot]))?;
        run(self.rule, tape, &dims.sequences, Some(q), &writes, (state, anchor))
    }

    /// `gate [B,T,..]` at tokens that fire, `idle [B,T,..]` elsewhere: both times a mask of zeros and ones.
    fn fired(&self, tape: &Tape<'_, B>, gate: &Var<B>, idle: &Var<B>) -> Result<Var<B>> {
        let (device, axes) = (gate.value().device(), &gate.axes()[1..]);
        let width: usize = axes[1..].iter().product();
        let fires = |i: usize| (self.position + i / width).is_multiple_of(self.period);
        let mask = |fire: bool| {
            let values = (0..axes[0] * width).map(|i| f32::from(u8::from(fires(i) == fire)));
            let values = memory::collect("mask", values)?;
            Tensor::from_f32(device, axes.to_vec(), values).map(Var::constant)
        };
        tape.add(&tape.mul(gate, &mask(true)?)?, &tape.mul(idle, &mask(false)?)?)
    }

    /// Two calls for each token that fires: its own, then one of the tokens after it, which only read. Momentum moves the
    /// memory even where the gates are idle, so [`UpdateCall::together`] would change it.
    fn one_by_one(
        &self,
        tape: &Tape<'_, B>,
        TextCall { q, writes, dims, anchor }: TextCall<'_, B>,
        mut state: State<B>,
    ) -> Result<CallOutputs<B>> {
        // A token that fires alone, then the others of its period.
        let (mut lengths, mut at) = (Vec::new(), self.position);
        for length in lengths_between_multiples(self.position, writes.tokens(), self.period) {
            let fires = usize::from(at.is_multiple_of(self.period));
            lengths.extend([fires, length - fires].into_iter().filter(|&length| length > 0));
            at += length;
        }
        let (mut out, mut at) = (Vec::new(), self.position);
        for (q, part) in tape.split(q, 1, &lengths)?.into_iter().zip(writes.split(tape, &lengths)?) {
            let dims = with_tokens(dims, part.tokens());
            if at.is_multiple_of(self.period) {
                let outputs = run(self.rule, tape, &dims.sequences, Some(&q), &part, (state, anchor))?;
                (state, at) = (outputs.state, at + 1);
                out.push(outputs.out);
            } else {
                at += part.tokens();
                out.push(self.rule.read(tape, &dims, q, state.clone())?);
            }
        }
        Ok(CallOutputs { out: tape.concat(&out.iter().collect::<Vec<_>>(), 1)?, state })
    }
}
