//! Memories that go back to what they start from, as differences from it.
//!
//! Where a memory `M` goes back to `B`, the difference `D = M − B` goes back to zero. Of a rule whose step is linear in the
//! memory, `D` changes by such a step too, so no kernel hears of `B`. Layers remember and read `M`; around a call of the rule
//! stand the two small products `k B` and `q B`.

use super::{
    rule_call::{CallOutputs, RuleCall, State},
    write_inputs::WriteInputs,
};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, Sequences};

/// As [`run`](super::rule_call::run), of a rule without an anchor of its own: the first slot of the state goes back to
/// `anchor [H,K,V]`.
pub(super) fn run_difference<B: Backend>(
    rule: &dyn RuleCall<B>,
    tape: &Tape<'_, B>,
    sequences: &Sequences,
    q: Option<&Var<B>>,
    writes: &WriteInputs<B>,
    (mut state, anchor): (State<B>, &Var<B>),
) -> Result<CallOutputs<B>> {
    let (rule, writes) = rule.difference(tape, writes, anchor)?;
    state[0] = tape.add(&state[0], &tape.scale(-1.0, anchor)?)?;
    let mut outputs = tape.erased_memory(&*rule, sequences, writes.inputs(q, state))?.into_iter();
    // The first is what was read.
    let mut out = outputs.next().expect("an output of every rule");
    if let Some(q) = q {
        out = tape.add(&out, &head_products(tape, q, anchor)?)?;
    }
    let mut state: State<B> = outputs.collect();
    state[0] = tape.add(&state[0], anchor)?;
    Ok(CallOutputs { out, state })
}

/// Rows `x [B,T,H,K]` times the matrix of their head, of `m [H,K,V]` in 32 bits: `[B,T,H,V]` in the type of `x`.
pub(super) fn head_products<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>, m: &Var<B>) -> Result<Var<B>> {
    tape.head_products(x, &tape.cast(x.value().dtype(), m)?)
}
