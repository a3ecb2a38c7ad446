//! Attention on a tape, and the rotary positions of its queries and keys.

use super::{Slot, Tape, Var};
use crate::{Result, probe::ProbeSite};
use hecate_core::{
    Backend, Sequences, Tensor, memory,
    primitives::{self as p, AttentionInputs, AttentionOptions},
};

impl<B: Backend> Tape<'_, B> {
    /// Rotary positions of `x [B,T,H,D]`, `D` even; the first token of every sequence stands at `position`.
    ///
    /// # Errors
    /// As [`primitives::rotary`](p::rotary).
    pub fn rotary(&self, x: &Var<B>, sequences: &Sequences, position: usize, base: f32) -> Result<Var<B>> {
        let offsets = memory::filled("rotary", sequences.count(), position)?;
        let value = p::rotary(&x.value, sequences, &offsets, base)?;
        let sequences = sequences.clone();
        Ok(self.push_map(x, value, move |dy| p::rotary_backward(&dy, &sequences, &offsets, base)))
    }

    /// As [`Tape::rotary`], where the device counts: `positions [N]`. Nothing is recorded: captured steps only infer.
    ///
    /// # Errors
    /// As [`primitives::rotary_from`](p::rotary_from).
    pub fn rotary_from(&self, x: &Var<B>, sequences: &Sequences, positions: &Tensor<B>, base: f32) -> Result<Var<B>> {
        Ok(Var::constant(p::rotary_from(&x.value, sequences, positions, base)?))
    }

    /// Sliding-window softmax attention, `[B,T,H,D]`. The backward recomputes the weights from the log-sum-exp.
    ///
    /// # Errors
    /// As [`primitives::attention`](p::attention()).
    pub fn attention(
        &self,
        options: AttentionOptions,
        sequences: &Sequences,
        inputs: AttentionInputs<Var<B>>,
    ) -> Result<Var<B>> {
        self.check()?;
        let followed = self.record.is_some() && inputs.iter().any(|var| var.slot.is_some());
        let arguments: Vec<Slot> = inputs.iter().map(|var| var.slot).collect();
        let inputs = inputs.map(|var| var.value);
        self.show("attention", [("q", &inputs.q), ("k", &inputs.k), ("v", &inputs.v)], 2)?;
        let p::Attended { y, pass } = p::attention(options, sequences, inputs)?;
        self.show("attention", [("out", &y)], 2)?;
        if !followed {
            return Ok(Var::constant(y));
        }
        Ok(self.push_one(y, move |dy, slots| {
            let grads = pass.backward(&dy, None)?;
            arguments.into_iter().zip(grads.iter()).try_for_each(|(slot, grad)| slots.add(slot, grad.clone()))
        }))
    }

    /// Shows arrays of an operation with heads along axis `heads` to the probe, if there is one.
    fn show<const N: usize>(&self, of: &str, arrays: [(&str, &Tensor<B>); N], heads: usize) -> Result<()> {
        let Some(probe) = self.probe else { return Ok(()) };
        let site = |slot| ProbeSite { kind: "", slot, of, layer: probe.layer(), heads: Some(heads) };
        arrays.into_iter().try_for_each(|(slot, array)| probe.look(site(slot), array))
    }
}
