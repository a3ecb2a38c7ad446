//! Memories that are written by some tokens and read by all.

use super::{
    Context, GatedRule,
    chunked::copy,
    writes::{Writes, pieces, with_tokens},
};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, Dims, Kernel, Of, Slots, Tensor};

/// A memory that fires every `C` tokens: at positions `0, C, 2C, …` of the text the token writes and reads, as its rule
/// says; all other tokens only read. The memory forgets when it is written and at no other time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse<R> {
    rule: R,
    period: usize,
}

impl<R: GatedRule> Pulse<R> {
    pub(super) fn new(rule: R, period: usize) -> Self {
        Self { rule, period }
    }

    /// What `q [B,T,H,K]` reads `[B,T,H,V]`, in a memory that starts at `state`.
    pub(super) fn forward<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        state: Of<R::State, Var<B>>,
        (dims, context): (&Dims, &mut Context<'_, B>),
    ) -> Result<Var<B>> {
        let (out, state) = if R::MOMENTUM.is_empty() || self.period == 1 {
            self.together(tape, (q, writes), state, (dims, context.position))?
        } else {
            self.one_by_one(tape, (q, writes), state, (dims, context.position))?
        };
        R::State::list(&state).into_iter().for_each(|(name, last)| context.keep(name, last.value()));
        Ok(out)
    }

    /// One call, where a token can pass a memory without a trace: the gates of those that do not fire are idle.
    fn together<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        state: Of<R::State, Var<B>>,
        (dims, position): (&Dims, usize),
    ) -> Result<(Var<B>, Of<R::State, Var<B>>)> {
        let mut inputs = writes.inputs::<R>(Some(q), state)?;
        if self.period > 1 {
            let idle = R::Gates::into_vec(self.rule.idle(q.value().device(), dims)?);
            let mut idle = idle.into_iter();
            inputs.gates = R::Gates::try_map(inputs.gates, |_, gate| match idle.next() {
                Some(idle) => self.fired(tape, &gate, &idle, position),
                None => Ok(gate),
            })?;
        }
        let outputs = tape.memory(self.rule, &dims.sequences, inputs)?;
        Ok((outputs.out, outputs.state))
    }

    /// `gate [B,T,..]` where the level fires, `idle` elsewhere.
    fn fired<B: Backend>(&self, tape: &Tape<'_, B>, gate: &Var<B>, idle: &Var<B>, position: usize) -> Result<Var<B>> {
        let (device, axes) = (gate.value().device(), &gate.axes()[1..]);
        let width: usize = axes[1..].iter().product();
        let fires = |i: usize| (position + i / width).is_multiple_of(self.period);
        let mask = |fire: bool| {
            let values = (0..axes[0] * width).map(|i| f32::from(u8::from(fires(i) == fire))).collect();
            Tensor::from_f32(device, axes.to_vec(), values).map(Var::constant)
        };
        tape.add(&tape.mul(gate, &mask(true)?)?, &tape.mul(idle, &mask(false)?)?)
    }

    /// Two calls for each token that fires: its own, and that of the readers behind it.
    fn one_by_one<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        (q, writes): (&Var<B>, &Writes<B>),
        mut state: Of<R::State, Var<B>>,
        (dims, position): (&Dims, usize),
    ) -> Result<(Var<B>, Of<R::State, Var<B>>)> {
        let (mut lengths, mut at) = (Vec::new(), position);
        for piece in pieces(position, writes.tokens(), self.period) {
            let fires = usize::from(at.is_multiple_of(self.period));
            lengths.extend([fires, piece - fires].into_iter().filter(|&length| length > 0));
            at += piece;
        }
        let (mut out, mut at) = (Vec::new(), position);
        for (q, piece) in tape.split(q, 1, &lengths)?.into_iter().zip(writes.split(tape, &lengths)?) {
            let dims = with_tokens(dims, piece.tokens());
            if at.is_multiple_of(self.period) {
                let outputs = tape.memory(self.rule, &dims.sequences, piece.inputs(Some(&q), state)?)?;
                (state, at) = (outputs.state, at + 1);
                out.push(outputs.out);
            } else {
                at += piece.tokens();
                let inputs = self.rule.reading(&dims, q, copy::<R, B>(&state))?;
                out.push(tape.memory(self.rule, &dims.sequences, inputs)?.out);
            }
        }
        Ok((tape.concat(&out.iter().collect::<Vec<_>>(), 1)?, state))
    }
}
