//! Short causal convolution, each channel by itself.

use super::{check_dtype, check_float, check_like, check_rank, check_shape};
use crate::{Device, Error, Result, Sequences, Shape, Tensor};

/// Sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvDims {
    /// How the rows split into sequences.
    pub sequences: Sequences,
    /// `D`.
    pub channels: usize,
    /// `W`: taps, the current token included; at least 2.
    pub width: usize,
    /// Whether SiLU follows.
    pub silu: bool,
}

impl ConvDims {
    /// Shape of the state, the last `W − 1` inputs of each sequence, oldest first: `[N, W−1, D]`.
    pub fn state(&self) -> Shape {
        [self.sequences.count(), self.width - 1, self.channels].into()
    }
}

/// Causal depthwise convolution with a state, so that decoding goes on where a prompt ended.
pub trait Conv: Device {
    /// With `x` preceded by `state` in each sequence: `u[t,d] = Σ_j weight[d,j] x[t−W+1+j, d]`, and `y = u σ(u)` where SiLU
    /// follows, else `y = u`. Returns `(y, final state)`.
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
    /// kept: it is made again.
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

/// `x [B,T,D]`, `weight [D,W]` (last tap = current token), `state [N,W−1,D]`: `(y [B,T,D], final state)`, with SiLU behind
/// the convolution where `silu` says so. All of one type.
///
/// # Errors
/// Shapes that do not fit, `W < 2`, mixed or integer types.
pub fn conv<D: Conv>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    silu: bool,
) -> Result<(Tensor<D>, Tensor<D>)> {
    let dims = check(x, weight, state, sequences, silu)?;
    x.device().conv(&dims, x, weight, state)
}

/// Gradients `(dx, dweight, dstate)` of [`conv`].
///
/// # Errors
/// As [`conv`], and gradients unlike what they are gradients of.
pub fn conv_backward<D: Conv>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    silu: bool,
    dy: &Tensor<D>,
    dfinal: Option<&Tensor<D>>,
) -> Result<(Tensor<D>, Tensor<D>, Tensor<D>)> {
    let dims = check(x, weight, state, sequences, silu)?;
    check_like("conv", "dy", dy, x)?;
    if let Some(dfinal) = dfinal {
        check_like("conv", "dfinal", dfinal, state)?;
    }
    x.device().conv_backward(&dims, x, weight, state, dy, dfinal)
}

fn check<D: Device>(
    x: &Tensor<D>,
    weight: &Tensor<D>,
    state: &Tensor<D>,
    sequences: &Sequences,
    silu: bool,
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
    let dims = ConvDims { sequences: sequences.clone(), channels, width, silu };
    check_shape(what, "state", state, &dims.state())?;
    check_dtype(what, "weight", weight, x.dtype())?;
    check_dtype(what, "state", state, x.dtype())?;
    Ok(dims)
}
