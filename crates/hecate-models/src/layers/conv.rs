//! Short causal convolutions.

use super::Context;
use crate::{
    Builder, Init, ParameterId, Result, Tape, Var,
    bounds::{SIZE, within},
};
use hecate_core::{
    Backend, Tensor,
    primitives::{ConvInputs, ConvOptions, ConvOutputs, L2Norm, Map},
};

/// Each channel convolved by itself with its last few inputs, then SiLU where there is one.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv {
    /// Name of the parameter and of the array in the cache.
    name: &'static str,
    weight: ParameterId,
    channels: usize,
    taps: usize,
    /// Whether SiLU follows.
    silu: bool,
    /// What is added before SiLU, `[channels]`.
    bias: Option<ParameterId>,
}

impl ShortConv {
    /// `weight [channels, 1, taps]` (the shape of Hugging Face checkpoints; last tap = current token) under
    /// `name.weight`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for fewer than two taps; the device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &'static str,
        channels: usize,
        taps: usize,
    ) -> Result<Self> {
        within("taps", taps, 2..=SIZE)?;
        let weight = build.within(name).parameter("weight", [channels, 1, taps], Init::Taps(taps))?;
        Ok(Self { name, weight, channels, taps, silu: true, bias: None })
    }

    /// As [`ShortConv::new`], and a `bias [channels]` that starts at zero.
    ///
    /// # Errors
    /// As [`ShortConv::new`].
    pub fn with_bias<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &'static str,
        channels: usize,
        taps: usize,
    ) -> Result<Self> {
        let conv = Self::new(build, name, channels, taps)?;
        Ok(Self { bias: Some(build.within(name).parameter("bias", [channels], Init::Constant(0.0))?), ..conv })
    }

    /// As [`ShortConv::new`], without SiLU.
    ///
    /// # Errors
    /// As [`ShortConv::new`].
    pub fn linear<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &'static str,
        channels: usize,
        taps: usize,
    ) -> Result<Self> {
        Ok(Self { silu: false, ..Self::new(build, name, channels, taps)? })
    }

    /// `x [B,T,channels]` to the same shape, after the last inputs in the context's cache, which takes the new ones.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let Some(bias) = self.bias else { return self.forward_to(tape, x, None, context) };
        // The kernel knows no bias, so SiLU comes after it.
        let y = Self { silu: false, ..*self }.forward_to(tape, x, None, context)?;
        tape.map(Map::Silu, &tape.add(&y, &tape.weight(bias)?)?)
    }

    /// As [`ShortConv::forward`], each head divided by its L2 norm after SiLU where asked for.
    pub(super) fn forward_to<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        l2_norm: Option<L2Norm>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let (weight, state) = self.parts(tape, x, context)?;
        let options = ConvOptions { silu: self.silu, l2_norm };
        let inputs = ConvInputs { x, weight: &weight, state: &state };
        let ConvOutputs { y, state } = tape.conv(options, &context.sequences, inputs)?;
        context.carry(self.name, &state);
        Ok(y)
    }

    /// As [`ShortConv::forward_to`] of several convolutions over the same tokens, in one call.
    pub(super) fn forward_each<B: Backend>(
        tape: &Tape<'_, B>,
        each: &[(&Self, &Var<B>, Option<L2Norm>)],
        context: &mut Context<'_, B>,
    ) -> Result<Vec<Var<B>>> {
        let call = |&(conv, x, l2_norm): &(&Self, &Var<B>, Option<L2Norm>)| {
            let (weight, state) = conv.parts(tape, x, context)?;
            Ok((ConvOptions { silu: conv.silu, l2_norm }, ConvInputs { x: x.clone(), weight, state }))
        };
        let calls = each.iter().map(call).collect::<Result<Vec<_>>>()?;
        let outputs = tape.conv_each(&context.sequences, calls)?;
        each.iter().zip(&outputs).for_each(|((conv, ..), out)| context.carry(conv.name, &out.state));
        Ok(outputs.into_iter().map(|out| out.y).collect())
    }

    /// The weight `[channels,taps]`, and the last inputs before `x`, `[N,taps−1,channels]`.
    pub(super) fn parts<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &Context<'_, B>,
    ) -> Result<(Var<B>, Var<B>)> {
        tape.check_width(self.weight, self.channels, x)?;
        let state = context.inputs(tape, self.name, x, self.state(context.sequences.count()))?;
        Ok((tape.reshape(&tape.weight(self.weight)?, [self.channels, self.taps])?, state))
    }

    /// Name of the array of this layer in the cache.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The array of this layer in the cache of `batch` texts that are about to start.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn cache<B: Backend>(&self, device: &B, batch: usize) -> Result<(&'static str, Tensor<B>)> {
        Ok((self.name, Tensor::zeros(device, self.state(batch), hecate_core::DType::F32)?))
    }

    /// Shape of the last inputs.
    fn state(&self, batch: usize) -> [usize; 3] {
        [batch, self.taps - 1, self.channels]
    }
}
