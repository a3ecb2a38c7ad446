//! Short convolutions on a tape, alone or several over the same tokens.

use super::{Tape, Var};
use crate::{Error, Result};
use hecate_core::{
    Backend, Sequences, Tensor,
    primitives::{self as p, ConvInputs, ConvOptions, ConvOutputs},
};

impl<B: Backend> Tape<'_, B> {
    /// [`primitives::conv`](p::conv): the result, and the state after the call.
    ///
    /// # Errors
    /// As the primitive.
    pub fn conv(
        &self,
        options: ConvOptions,
        sequences: &Sequences,
        inputs: ConvInputs<&Var<B>>,
    ) -> Result<ConvOutputs<Var<B>>> {
        let ConvInputs { x, weight, state } = inputs;
        let inputs = ConvInputs { x: x.clone(), weight: weight.clone(), state: state.clone() };
        // One result for one call.
        Ok(self.conv_each(sequences, vec![(options, inputs)])?.swap_remove(0))
    }

    /// [`primitives::conv_each`](p::conv_each()): as [`Tape::conv`] of each; what is recorded takes all their gradients at once.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn conv_each(
        &self,
        sequences: &Sequences,
        calls: Vec<(ConvOptions, ConvInputs<Var<B>>)>,
    ) -> Result<Vec<ConvOutputs<Var<B>>>> {
        self.check()?;
        let values: Vec<_> = calls.iter().map(|(options, inputs)| (*options, values_of(inputs))).collect();
        let outputs = p::conv_each(sequences, &values)?;
        let arguments: Vec<_> = calls.iter().flat_map(|(_, c)| [&c.x, &c.weight, &c.state]).collect();
        if !self.follows(&arguments) {
            let constant =
                |out: ConvOutputs<_>| ConvOutputs { y: Var::constant(out.y), state: Var::constant(out.state) };
            return Ok(outputs.into_iter().map(constant).collect());
        }
        let result = |out: ConvOutputs<_>| ConvOutputs { y: self.result(out.y), state: self.result(out.state) };
        let outputs: Vec<_> = outputs.into_iter().map(result).collect();
        let places: Vec<_> = outputs.iter().map(|out| (out.y.slot, out.state.slot)).collect();
        let sequences = sequences.clone();
        self.push(move |slots| {
            let arrived: Vec<_> = places.iter().map(|&(y, last)| (slots.take(y), slots.take(last))).collect();
            if arrived.iter().all(|(dy, dlast)| dy.is_none() && dlast.is_none()) {
                return Ok(());
            }
            let whole = |((dy, dlast), (_, inputs)): ((Option<Tensor<B>>, _), &(_, ConvInputs<Var<B>>))| {
                let x = &inputs.x.value;
                let zeros = || Tensor::zeros(x.device(), x.shape().clone(), x.dtype());
                Ok::<_, Error>((dy.map_or_else(zeros, Ok)?, dlast))
            };
            let gradients =
                arrived.into_iter().zip(&calls).map(whole).collect::<Result<Vec<(_, Option<Tensor<B>>)>>>()?;
            let back = calls.iter().zip(&gradients).map(|((options, inputs), (dy, dlast))| {
                (*options, p::ConvBackward { inputs: values_of(inputs), dy, dfinal: dlast.as_ref() })
            });
            let made = p::conv_each_backward(&sequences, &back.collect::<Vec<_>>())?;
            for ((_, inputs), grads) in calls.iter().zip(made) {
                slots.add(inputs.x.slot, grads.x)?;
                slots.add(inputs.weight.slot, grads.weight)?;
                slots.add(inputs.state.slot, grads.state)?;
            }
            Ok(())
        });
        Ok(outputs)
    }
}

/// The values of a convolution's arguments.
fn values_of<B: Backend>(inputs: &ConvInputs<Var<B>>) -> ConvInputs<&Tensor<B>> {
    ConvInputs { x: &inputs.x.value, weight: &inputs.weight.value, state: &inputs.state.value }
}
