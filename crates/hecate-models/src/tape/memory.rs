//! Memories on a tape: any rule, its forward and its backward.

use super::{Slot, Tape, Var};
use crate::{
    Probe, Result,
    probe::{ProbeSite, first},
};
use hecate_core::{
    Backend, Forward, Inputs, Kernel, Outputs, Rule, Sequences, Slots as _, Tensor, forward, forward_packed, infer,
    infer_packed,
};

impl<B: Backend> Tape<'_, B> {
    /// Runs a rule over `sequences`, a plain batch or packed into one row: what was read
    /// `[B,T,H,V]`, and the states `[N,H,..]` after the last tokens. On a tape that does not record, the rule's inference
    /// kernel runs.
    ///
    /// # Errors
    /// As [`hecate_core::forward_packed`].
    pub fn memory<R: Rule>(
        &self,
        rule: R,
        sequences: &Sequences,
        inputs: Inputs<R, Var<B>>,
    ) -> Result<Outputs<R, Var<B>>>
    where
        B: Kernel<R>,
    {
        self.check()?;
        let device = inputs.q.value.device().clone();
        let lengths = packed(sequences, inputs.q.axes());
        let arguments: Vec<Slot> = inputs.list().iter().map(|(_, var)| var.slot).collect();
        let followed = self.record.is_some() && arguments.iter().any(Option::is_some);
        let inputs = inputs.map(|_, var| var.value);
        self.show_rule::<R>("", inputs.list())?;
        if !followed {
            let outputs = match &lengths {
                Some(lengths) => infer_packed(&device, rule, lengths, &inputs)?,
                None => infer(&device, rule, &inputs)?,
            };
            self.show_rule::<R>("", outputs.list())?;
            return Ok(outputs.map(|_, value| Var::constant(value)));
        }
        let Forward { outputs, pass } = match &lengths {
            Some(lengths) => forward_packed(&device, rule, lengths, inputs)?,
            None => forward(&device, rule, inputs)?,
        };
        self.show_rule::<R>("", outputs.list())?;
        let watching = self.probe.map(|probe| (probe, probe.layer()));
        let outputs = outputs.map(|_, value| self.result(value));
        // Of the results, the backward needs the shapes alone.
        let results = outputs.as_ref().map(|_, x| (x.slot, x.value.shape().clone(), x.value.dtype()));
        self.push(move |slots| {
            if !results.list().iter().any(|(_, (slot, ..))| slots.holds(*slot)) {
                return Ok(());
            }
            let grads = results.try_map(|_, (slot, shape, dtype)| match slots.take(slot) {
                Some(gradient) => Ok(gradient),
                None => Tensor::zeros(&device, shape, dtype),
            })?;
            let sound = watching.is_none() || all_finite(&grads)?;
            let gradients = pass.backward(grads)?;
            if let (Some((probe, layer)), true) = (watching, sound) {
                show_rule::<R, B>(probe, layer, "the gradient of ", gradients.list())?;
            }
            let mut arguments = arguments.into_iter();
            let add = |_, gradient| slots.add(arguments.next().flatten(), gradient);
            gradients.try_map(add)?;
            Ok(())
        });
        Ok(outputs)
    }

    /// As [`Tape::show`] for arguments or results of a rule.
    fn show_rule<R: Rule>(&self, kind: &str, arrays: Vec<(&'static str, &Tensor<B>)>) -> Result<()> {
        self.probe.map_or(Ok(()), |probe| show_rule::<R, B>(probe, probe.layer(), kind, arrays))
    }
}

/// Shows arrays of tokens `[B,T,H,..]`, then those of the state `[N,H,..]`.
fn show_rule<R: Rule, B: Backend>(
    probe: &Probe,
    layer: Option<usize>,
    kind: &str,
    arrays: Vec<(&'static str, &Tensor<B>)>,
) -> Result<()> {
    let tokens = arrays.len() - R::State::NAMES.len();
    for (i, (slot, array)) in arrays.into_iter().enumerate() {
        let heads = Some(if i < tokens { 2 } else { 1 });
        probe.look(ProbeSite { kind, slot, of: R::NAME, layer, heads }, array)?;
    }
    Ok(())
}

/// Whether all gradients are finite: only then is a rule's backward to blame for what it returns.
fn all_finite<R: Rule, B: Backend>(grads: &Outputs<R, Tensor<B>>) -> Result<bool> {
    for (_, array) in grads.list() {
        if first(array, false)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lengths of sequences that are not the plain batch of arrays `[B,T,..]`.
fn packed(sequences: &Sequences, axes: &[usize]) -> Option<Vec<usize>> {
    let plain = matches!(*axes, [batch, tokens, ..] if *sequences == Sequences::batch(batch, tokens));
    (!plain).then(|| sequences.ranges().map(|rows| rows.len()).collect())
}
