//! Memories on a tape: any rule, its forward and its backward.

use super::{
    Slot, Tape, Var,
    erased::{ErasedForward, ErasedRule, input_list, outputs_of},
};
use crate::{
    Probe, Result,
    probe::{ProbeSite, first},
};
use hecate_core::{Backend, Inputs, Kernel, Outputs, Rule, Sequences, Tensor};

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
        Ok(outputs_of(self.erased_memory(&rule, sequences, input_list(inputs))?))
    }

    /// [`Tape::memory`] of any rule: from its inputs to its outputs, by position.
    pub(crate) fn erased_memory(
        &self,
        rule: &dyn ErasedRule<B>,
        sequences: &Sequences,
        inputs: Vec<Var<B>>,
    ) -> Result<Vec<Var<B>>> {
        self.check()?;
        let device = inputs[0].value.device().clone();
        let lengths = packed(sequences, inputs[0].axes());
        let (arguments, inputs): (Vec<Slot>, Vec<_>) = inputs.into_iter().map(|var| (var.slot, var.value)).unzip();
        let followed = self.record.is_some() && arguments.iter().any(Option::is_some);
        let watched = self.probe.map(|probe| Watched::new(probe, rule));
        if let Some(watched) = &watched {
            watched.show("", &watched.inputs, &inputs)?;
        }
        if !followed {
            let outputs = rule.infer(&device, lengths.as_deref(), inputs)?;
            if let Some(watched) = &watched {
                watched.show("", &watched.outputs, &outputs)?;
            }
            return Ok(outputs.into_iter().map(Var::constant).collect());
        }
        let ErasedForward { outputs, pass } = rule.forward(&device, lengths.as_deref(), inputs)?;
        if let Some(watched) = &watched {
            watched.show("", &watched.outputs, &outputs)?;
        }
        let outputs: Vec<_> = outputs.into_iter().map(|value| self.result(value)).collect();
        // Of the results, the backward needs the shapes alone.
        let results: Vec<_> = outputs.iter().map(|x| (x.slot, x.value.shape().clone(), x.value.dtype())).collect();
        self.push(move |slots| {
            if !results.iter().any(|(slot, ..)| slots.holds(*slot)) {
                return Ok(());
            }
            let gradient = |(slot, shape, dtype)| match slots.take(slot) {
                Some(gradient) => Ok(gradient),
                None => Tensor::zeros(&device, shape, dtype),
            };
            let grads = results.into_iter().map(gradient).collect::<hecate_core::Result<Vec<_>>>()?;
            // Only where these are finite is the rule to blame for what it returns.
            let sound = watched.is_none() || all_finite(&grads)?;
            let gradients = pass.backward(grads)?;
            if let (Some(watched), true) = (&watched, sound) {
                watched.show("the gradient of ", &watched.inputs, &gradients)?;
            }
            arguments.into_iter().zip(gradients).try_for_each(|(slot, gradient)| slots.add(slot, gradient))
        });
        Ok(outputs)
    }
}

/// A call of a rule that a probe looks at.
struct Watched<'p> {
    probe: &'p Probe,
    /// The block that the call is of.
    layer: Option<usize>,
    /// The rule's name.
    of: &'static str,
    /// Names of the inputs, and of the outputs.
    inputs: Vec<&'static str>,
    outputs: Vec<&'static str>,
    /// How many of the outputs are the state's.
    states: usize,
    /// How many of the inputs are the anchor's, the last ones where they are there.
    anchors: usize,
}

impl<'p> Watched<'p> {
    fn new<B: Backend>(probe: &'p Probe, rule: &dyn ErasedRule<B>) -> Self {
        let (inputs, state) = (rule.input_names(), rule.state_names());
        let outputs = [&["out"], state].concat();
        let anchors = rule.anchor_names().len();
        Self { probe, layer: probe.layer(), of: rule.name(), inputs, outputs, states: state.len(), anchors }
    }

    /// As [`Tape::show`] for inputs or outputs: arrays of tokens `[B,T,H,..]`, then those of the state `[N,H,..]` and of
    /// the anchor `[H,..]`.
    fn show<B: Backend>(&self, kind: &str, names: &[&'static str], arrays: &[Tensor<B>]) -> Result<()> {
        let anchor = if names.len() == self.inputs.len() { names.len() - self.anchors } else { names.len() };
        for (i, (slot, array)) in names.iter().zip(arrays).enumerate() {
            let heads = Some(match i {
                _ if i >= anchor => 0,
                _ if i >= anchor - self.states => 1,
                _ => 2,
            });
            self.probe.look(ProbeSite { kind, slot, of: self.of, layer: self.layer, heads }, array)?;
        }
        Ok(())
    }
}

/// Whether all of these are finite.
fn all_finite<B: Backend>(arrays: &[Tensor<B>]) -> Result<bool> {
    for array in arrays {
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
