//! Linear maps.

use crate::{Builder, Init, ParameterId, Result, Tape, Var};
use hecate_core::{Backend, DType, Signal, Tensor, primitives::Transpose};

/// `y = x Wᵀ + b`.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    weight: ParameterId,
    bias: Option<ParameterId>,
}

impl Linear {
    /// `weight [outputs, inputs]` under `name.weight`, without bias.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
    ) -> Result<Self> {
        Ok(Self { weight: build.within(name).parameter("weight", [outputs, inputs], init)?, bias: None })
    }

    /// As [`Linear::new`], and a `bias [outputs]` that starts at zero.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn with_bias<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
    ) -> Result<Self> {
        let Self { weight, .. } = Self::new(build, name, inputs, outputs, init)?;
        Ok(Self { weight, bias: Some(build.within(name).parameter("bias", [outputs], Init::Constant(0.0))?) })
    }

    /// A map with a weight that belongs to another layer.
    pub fn tied(weight: ParameterId) -> Self {
        Self { weight, bias: None }
    }

    /// `x [.., inputs]` to `[.., outputs]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let y = self.product(tape, x)?;
        match self.bias {
            Some(bias) => tape.add(&y, &tape.weight(bias)?),
            None => Ok(y),
        }
    }

    /// As [`Linear::forward`], the result in 32 bits whatever `x` has: what gates are made of.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_wide<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let y = tape.cast(DType::F32, &self.product(tape, x)?)?;
        match self.bias {
            Some(bias) => tape.add(&y, &tape.parameter(bias)),
            None => Ok(y),
        }
    }

    /// As [`Linear::forward`] without a bias, with outputs behind the map's own, all zeros, until `multiple` divides their
    /// number, so that matrix units find every row where they want it.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_padded<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, multiple: usize) -> Result<Var<B>> {
        let weight = tape.weight(self.weight)?;
        let (outputs, inputs) = (weight.axes()[0], weight.axes()[1]);
        let more = outputs.next_multiple_of(multiple) - outputs;
        if more == 0 {
            return self.product(tape, x);
        }
        let zeros = Var::constant(Tensor::zeros(x.value().device(), [more, inputs], x.value().dtype())?);
        let weight = tape.concat(&[&weight, &zeros], 0)?;
        tape.matmul(x, &weight, Transpose { a: false, b: true })
    }

    /// `x [N,1,inputs]` to a number an output, its bias beside it; none of a map without bias.
    pub(super) fn signal<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Option<Signal<Tensor<B>>>> {
        let Some(bias) = self.bias else { return Ok(None) };
        Ok(Some(Signal { x: self.product(tape, x)?.into_value(), bias: tape.parameter(bias).into_value() }))
    }

    fn product<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        tape.matmul(x, &tape.weight(self.weight)?, Transpose { a: false, b: true })
    }
}
