//! Short causal convolution, each channel by itself.

use super::{Norm, check_dtype, check_epsilon, check_float, check_like, check_rank, check_shape};
use crate::{Device, Error, Result, Sequences, Shape, Tensor};

/// What follows the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConvOptions {
    /// SiLU.
    pub silu: bool,
    /// Heads brought to length 1, behind SiLU.
    pub unit: Option<Unit>,
}

/// Heads of length 1, as [`l2_norm`](super::l2_norm) makes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
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
        [self.sequences.count(), self.width - 1, self.channels].into()
    }

    fn without_unit(&self) -> Self {
        Self { options: ConvOptions { unit: None, ..self.options }, ..self.clone() }
    }
}

/// Causal depthwise convolution with a state, so that decoding goes on where a prompt ended.
pub trait Conv: Device {
    /// Whether [`ConvOptions::unit`] is a part of this device's kernels for these sizes. Elsewhere they are not asked for it, and
    /// heads are brought to length 1 behind them.
    fn has_unit(&self, _dims: &ConvDims) -> bool {
        false
    }

    /// With `x` preceded by `state` in each sequence: `u[t,d] = Σ_j weight[d,j] x[t−W+1+j, d]`, `s = u σ(u)` with SiLU, else
    /// `s = u`, and `y = s / √(|s|² + ε²)` head by head with a unit, else `y = s`. Returns `(y, final state)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn conv(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// Returns `(dx, dweight, dstate)`; `dfinal` is the gradient of the final state, absent where nothing used it. `u` is not
    /// kept: it is made again. With a unit `ds = r (dy − s r² (s·dy))`, `r = 1/√(|s|² + ε²)`; with SiLU `du = silu'(u) ds`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn conv_backward(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
        dy: &Tensor<Self>,
        dfinal: Option<&Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)>;
}

/// `x [B,T,D]`, `weight [D,W]` (last tap = current token), `state [N,W−1,D]`: `(y [B,T,D], final state)`, with what
/// `options` say behind the sums. All of one type.
///
/// # Errors
/// Shapes that do not fit, `W < 2`, heads that do not divide the channels, mixed or integer types.
pub fn conv<D: Conv + Norm>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    options: ConvOptions,
) -> Result<(Tensor<D>, Tensor<D>)> {
    let dims = check(x, weight, state, sequences, options)?;
    let device = x.device();
    match options.unit {
        Some(unit) if !device.has_unit(&dims) => {
            let (s, last) = device.conv(&dims.without_unit(), x, weight, state)?;
            let (y, _) = device.l2_norm(unit.epsilon, &heads(&s, unit)?)?;
            Ok((y.reshape(x.shape().clone())?, last))
        }
        _ => device.conv(&dims, x, weight, state),
    }
}

/// Gradients `(dx, dweight, dstate)` of [`conv`].
///
/// # Errors
/// As [`conv`], and gradients unlike what they are gradients of.
pub fn conv_backward<D: Conv + Norm>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    options: ConvOptions,
    dy: &Tensor<D>,
    dfinal: Option<&Tensor<D>>,
) -> Result<(Tensor<D>, Tensor<D>, Tensor<D>)> {
    let dims = check(x, weight, state, sequences, options)?;
    check_like("conv", "dy", dy, x)?;
    if let Some(dfinal) = dfinal {
        check_like("conv", "dfinal", dfinal, state)?;
    }
    let device = x.device();
    match options.unit {
        Some(unit) if !device.has_unit(&dims) => {
            let dims = dims.without_unit();
            let s = heads(&device.conv(&dims, x, weight, state)?.0, unit)?;
            let (_, inverse) = device.l2_norm(unit.epsilon, &s)?;
            let ds = device.l2_norm_backward(&s, &inverse, &heads(dy, unit)?)?.reshape(x.shape().clone())?;
            device.conv_backward(&dims, x, weight, state, &ds, dfinal)
        }
        _ => device.conv_backward(&dims, x, weight, state, dy, dfinal),
    }
}

/// `[.., D]` as rows of heads.
fn heads<D: Device>(x: &Tensor<D>, unit: Unit) -> Result<Tensor<D>> {
    x.reshape([x.shape().count() / unit.width, unit.width])
}

fn check<D: Device>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    options: ConvOptions,
) -> Result<ConvDims> {
    let what = "conv";
    check_float(what, "x", x)?;
    check_rank(what, "x", x, 3, "3 ([B,T,D])")?;
    sequences.check(what, "x", x.shape())?;
    check_rank(what, "weight", weight, 2, "2 ([D,W])")?;
    let (channels, width) = (x.shape().last(), weight.shape().last());
    if width < 2 {
        return Err(Error::Config { what, option: "width", found: width.to_string(), expected: "at least 2 taps" });
    }
    check_shape(what, "weight", weight, &[channels, width].into())?;
    if let Some(Unit { width, epsilon }) = options.unit {
        if width == 0 || !channels.is_multiple_of(width) {
            let (found, expected) = (format!("{width} of {channels} channels"), "heads that divide the channels");
            return Err(Error::Config { what, option: "unit", found, expected });
        }
        check_epsilon(what, epsilon)?;
    }
    let dims = ConvDims { sequences: sequences.clone(), channels, width, options };
    check_shape(what, "state", state, &dims.state())?;
    check_dtype(what, "weight", weight, x.dtype())?;
    check_dtype(what, "state", state, x.dtype())?;
    Ok(dims)
}
