//! Short causal convolution, each channel by itself.

use super::{Norm, check_device, check_dtype, check_epsilon, check_float, check_like, check_rank, check_shape};
use crate::{Checked, Device, Error, Result, Sequences, Shape, Tensor};

/// What follows the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConvOptions {
    /// SiLU.
    pub silu: bool,
    /// Heads brought to length 1, after SiLU.
    pub l2_norm: Option<L2Norm>,
}

/// Heads of length 1, as [`l2_norm`](super::l2_norm) makes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Channels of a head; they divide all channels.
    pub width: usize,
    /// Added to the length.
    pub epsilon: f32,
}

/// Sizes and options of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvDims {
    /// How the rows split into sequences.
    pub sequences: Sequences,
    /// `D`.
    pub channels: usize,
    /// `W`: taps, the current token included; at least 2.
    pub width: usize,
    /// What follows the sums.
    pub options: ConvOptions,
}

impl ConvDims {
    /// Shape of the state, the last `W − 1` inputs of each sequence, oldest first: `[N, W−1, D]`.
    pub fn state(&self) -> Shape {
        [self.sequences.count(), self.width.saturating_sub(1), self.channels].into()
    }

    fn without_l2_norm(&self) -> Self {
        Self { options: ConvOptions { l2_norm: None, ..self.options }, ..self.clone() }
    }
}

/// Arguments of [`conv`], all of one type, and, filled with gradients, what [`conv_backward`] returns.
#[derive(Clone, Copy, Debug)]
pub struct ConvInputs<T> {
    /// `[B,T,D]`.
    pub x: T,
    /// `[D,W]`, the last tap that of the current token.
    pub weight: T,
    /// `[N,W−1,D]`: what stands in front of each sequence.
    pub state: T,
}

/// Results of [`conv`], of the type of `x`.
#[derive(Clone, Copy, Debug)]
pub struct ConvOutputs<T> {
    /// `[B,T,D]`.
    pub y: T,
    /// `[N,W−1,D]`: the state that the next call starts from.
    pub state: T,
}

/// What the gradients of [`conv`] are made from.
#[derive(Clone, Debug)]
pub struct ConvBackward<'a, D: Device> {
    /// Those of the forward.
    pub inputs: ConvInputs<&'a Tensor<D>>,
    /// Gradient of `y`, and like it.
    pub dy: &'a Tensor<D>,
    /// Gradient of the state after the call `[N,W−1,D]`, absent where nothing used that state.
    pub dfinal: Option<&'a Tensor<D>>,
}

/// Causal depthwise convolution with a state, so that decoding goes on where a prompt ended.
pub trait Conv: Device {
    /// Whether [`ConvOptions::l2_norm`] is a part of this device's kernels for these sizes. Elsewhere kernels of their own
    /// follow the convolution and bring heads to length 1.
    fn has_l2_norm(&self, _dims: &ConvDims) -> bool {
        false
    }

    /// With `x` preceded by `state` in each sequence: `u[t,d] = Σ_j weight[d,j] x[t−W+1+j, d]`, `s = u σ(u)` with SiLU, else
    /// `s = u`, and `y = s / √(|s|² + ε²)` head by head with `l2_norm`, else `y = s`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn conv(
        &self,
        checked: Checked<Self>,
        dims: &ConvDims,
        inputs: &ConvInputs<&Tensor<Self>>,
    ) -> Result<ConvOutputs<Tensor<Self>>>;

    /// `u` is not kept: it is made again. With `l2_norm` `ds = r (dy − s r² (s·dy))`, `r = 1/√(|s|² + ε²)`; with SiLU
    /// `du = silu'(u) ds`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn conv_backward(
        &self,
        checked: Checked<Self>,
        dims: &ConvDims,
        call: &ConvBackward<'_, Self>,
    ) -> Result<ConvInputs<Tensor<Self>>>;

    /// [`Conv::conv`] of each of these, over the same sequences. A device that starts them together gains by it where they are
    /// small.
    ///
    /// # Errors
    /// As [`Conv::conv`].
    fn conv_each(
        &self,
        checked: Checked<Self>,
        calls: &[(ConvDims, ConvInputs<&Tensor<Self>>)],
    ) -> Result<Vec<ConvOutputs<Tensor<Self>>>> {
        calls.iter().map(|(dims, inputs)| self.conv(checked, dims, inputs)).collect()
    }

    /// [`Conv::conv_backward`] of each of these.
    ///
    /// # Errors
    /// As [`Conv::conv_backward`].
    fn conv_each_backward(
        &self,
        checked: Checked<Self>,
        calls: &[(ConvDims, ConvBackward<'_, Self>)],
    ) -> Result<Vec<ConvInputs<Tensor<Self>>>> {
        calls.iter().map(|(dims, call)| self.conv_backward(checked, dims, call)).collect()
    }
}

/// Short causal convolution of `x [B,T,D]`, with what `options` say after the sums.
///
/// # Errors
/// Shapes that do not fit, `W < 2`, heads that do not divide the channels, mixed or integer types.
pub fn conv<D: Conv + Norm>(
    options: ConvOptions,
    sequences: &Sequences,
    inputs: &ConvInputs<&Tensor<D>>,
) -> Result<ConvOutputs<Tensor<D>>> {
    let (dims, x) = (check(options, sequences, inputs)?, inputs.x);
    let device = x.device();
    match options.l2_norm {
        Some(l2_norm) if !device.has_l2_norm(&dims) => {
            let ConvOutputs { y: s, state } = device.conv(Checked::new(), &dims.without_l2_norm(), inputs)?;
            let y = device.l2_norm(Checked::new(), l2_norm.epsilon, &heads(&s, l2_norm)?)?.y;
            Ok(ConvOutputs { y: y.reshape(x.shape().clone())?, state })
        }
        _ => device.conv(Checked::new(), &dims, inputs),
    }
}

/// [`conv`] of each of these, over the same sequences.
///
/// # Errors
/// As [`conv`].
pub fn conv_each<D: Conv + Norm>(
    sequences: &Sequences,
    calls: &[(ConvOptions, ConvInputs<&Tensor<D>>)],
) -> Result<Vec<ConvOutputs<Tensor<D>>>> {
    let dims = calls.iter().map(|(options, inputs)| check(*options, sequences, inputs)).collect::<Result<Vec<_>>>()?;
    check_together(calls.iter().map(|(_, inputs)| inputs.x))?;
    match calls.first() {
        Some((_, ConvInputs { x, .. })) if whole(&dims, x.device()) => x.device().conv_each(
            Checked::new(),
            &dims.into_iter().zip(calls.iter().map(|(_, inputs)| *inputs)).collect::<Vec<_>>(),
        ),
        _ => calls.iter().map(|(options, inputs)| conv(*options, sequences, inputs)).collect(),
    }
}

/// Gradients of [`conv_each`].
///
/// # Errors
/// As [`conv_backward`].
pub fn conv_each_backward<D: Conv + Norm>(
    sequences: &Sequences,
    calls: &[(ConvOptions, ConvBackward<'_, D>)],
) -> Result<Vec<ConvInputs<Tensor<D>>>> {
    let mut dims = Vec::new();
    for (options, ConvBackward { inputs, dy, dfinal }) in calls {
        dims.push(check(*options, sequences, inputs)?);
        check_like("conv", "dy", dy, inputs.x)?;
        dfinal.map_or(Ok(()), |dfinal| check_like("conv", "dfinal", dfinal, inputs.state))?;
    }
    check_together(calls.iter().map(|(_, call)| call.inputs.x))?;
    match calls.first() {
        Some((_, ConvBackward { dy, .. })) if whole(&dims, dy.device()) => {
            let calls = calls.iter().map(|(_, call)| call.clone());
            dy.device().conv_each_backward(Checked::new(), &dims.into_iter().zip(calls).collect::<Vec<_>>())
        }
        _ => calls.iter().map(|(options, call)| conv_backward(*options, sequences, call)).collect(),
    }
}

/// Calls of one device.
fn check_together<'a, D: Device>(mut inputs: impl Iterator<Item = &'a Tensor<D>>) -> Result<()> {
    let Some(first) = inputs.next() else { return Ok(()) };
    inputs.try_for_each(|x| check_device("conv", first, &[("x", x)]))
}

/// Whether all that is asked for is a part of the device's kernels.
fn whole<D: Conv>(dims: &[ConvDims], device: &D) -> bool {
    dims.iter().all(|dims| dims.options.l2_norm.is_none() || device.has_l2_norm(dims))
}

/// Gradients of [`conv`].
///
/// # Errors
/// As [`conv`], and gradients unlike what they are gradients of.
pub fn conv_backward<D: Conv + Norm>(
    options: ConvOptions,
    sequences: &Sequences,
    call: &ConvBackward<'_, D>,
) -> Result<ConvInputs<Tensor<D>>> {
    let ConvBackward { inputs, dy, dfinal } = call;
    let (dims, x) = (check(options, sequences, inputs)?, inputs.x);
    check_like("conv", "dy", dy, x)?;
    dfinal.map_or(Ok(()), |dfinal| check_like("conv", "dfinal", dfinal, inputs.state))?;
    let device = x.device();
    match options.l2_norm {
        Some(l2_norm) if !device.has_l2_norm(&dims) => {
            let dims = dims.without_l2_norm();
            let s = heads(&device.conv(Checked::new(), &dims, inputs)?.y, l2_norm)?;
            let inverse = device.l2_norm(Checked::new(), l2_norm.epsilon, &s)?.inverse;
            let ds = device
                .l2_norm_backward(Checked::new(), &s, &inverse, &heads(dy, l2_norm)?)?
                .reshape(x.shape().clone())?;
            device.conv_backward(Checked::new(), &dims, &ConvBackward { dy: &ds, ..call.clone() })
        }
        _ => device.conv_backward(Checked::new(), &dims, call),
    }
}

/// `[.., D]` as rows of heads.
fn heads<D: Device>(x: &Tensor<D>, l2_norm: L2Norm) -> Result<Tensor<D>> {
    x.reshape([x.shape().count() / l2_norm.width, l2_norm.width])
}

fn check<D: Device>(options: ConvOptions, sequences: &Sequences, inputs: &ConvInputs<&Tensor<D>>) -> Result<ConvDims> {
    let (what, ConvInputs { x, weight, state }) = ("conv", *inputs);
    check_device(what, x, &[("weight", weight), ("state", state)])?;
    check_float(what, "x", x)?;
    check_rank(what, "x", x, 3, "3 ([B,T,D])")?;
    sequences.check(what, "x", x.shape())?;
    check_rank(what, "weight", weight, 2, "2 ([D,W])")?;
    let (channels, width) = (x.shape().last(), weight.shape().last());
    if width < 2 {
        return Err(Error::Config { what, option: "width", found: width.to_string(), expected: "at least 2 taps" });
    }
    check_shape(what, "weight", weight, &[channels, width].into())?;
    if let Some(L2Norm { width, epsilon }) = options.l2_norm {
        if width == 0 || !channels.is_multiple_of(width) {
            let (found, expected) = (format!("{width} of {channels} channels"), "heads that divide the channels");
            return Err(Error::Config { what, option: "l2_norm", found, expected });
        }
        check_epsilon(what, epsilon)?;
    }
    let dims = ConvDims { sequences: sequences.clone(), channels, width, options };
    check_shape(what, "state", state, &dims.state())?;
    check_dtype(what, "weight", weight, x.dtype())?;
    check_dtype(what, "state", state, x.dtype())?;
    Ok(dims)
}
