//! RMS norm of what a gate lets through, of rows that are too long for registers or have no whole runs; `norm` has the others.
//!
//! Rows are read twice, the second time from the caches. Numbers have 32 bits between the arrays that are read and written.

use super::{
    norm::{FEW, Gate, Scale, THREADS},
    reduce::{Terms, sum_columns},
};
use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Normed, RmsNormBackward, RmsNormInputs, RmsNormOptions, cast},
};

/// `F.rms_norm(x * act(g), [width], weight, epsilon)` and its gradients, of rows of any length.
pub(crate) const SOURCE: KernelSource = kernel_source!("gated_norm", "gated_norm.cu");

kernels! { SOURCE {
    // x, y and the gate [rows, width], inverse [rows] in 32 bits; groups of a row are rows.
    "gated_norm" GatedNorm {
        x: Array, y: Array, scale: Scale, gate: Gate, inverse: Out<f32>, rows: u64, width: u64, epsilon: f32, lanes: u32
    }
    // x, dy, dx and dg [rows, width]; terms of dweight, as many in 32 bits.
    "gated_norm_backward" GatedNormBackward {
        x: Array, dy: Array, dx: Array, dg: Array, scale: Scale, gate: Gate, inverse: In<f32>, terms: Out<f32>, rows: u64,
        width: u64, lanes: u32
    }
} }

/// Rows, their length, and the threads of each: a warp, or a block of long rows and of few.
/// A row here is a group: `x` has `rows · groups` of them, each of `last / groups` elements.
fn spread(x: &Tensor<Cuda>, options: RmsNormOptions) -> (usize, usize, usize) {
    let (rows, width) = (x.shape().rows() * options.groups, x.shape().last() / options.groups);
    (rows, width, if width <= 1024 && rows > FEW { 32 } else { THREADS })
}

/// A block has as many rows as it has threads for; further rows are taken in turn.
fn grid(rows: usize, lanes: usize) -> Grid {
    Grid::blocks(rows.div_ceil(THREADS / lanes).min(65_535), THREADS as u32)
}

/// `y = u r w`, `u = x act(g)`, and `r`, `[rows · groups]`.
/// `y` has the shape and type of `x`; `r` has 32 bits, since the backward multiplies by it.
pub(super) fn forward(
    device: &Cuda,
    options: RmsNormOptions,
    inputs: &RmsNormInputs<&Tensor<Cuda>>,
    g: &Tensor<Cuda>,
) -> Result<Normed<Tensor<Cuda>>> {
    let x = inputs.x;
    let (rows, width, lanes) = spread(x, options);
    // Like `x`, and a number a group.
    let (y, inverse) = (device.empty(x.shape().clone(), x.dtype())?, device.empty([rows], DType::F32)?);
    let call = GatedNorm {
        x: x.into(),
        y: (&y).into(),
        scale: Scale::new(inputs.weight, options),
        gate: Gate::new(g, options),
        inverse: pointer(&inverse),
        rows: rows as u64,
        width: width as u64,
        epsilon: options.epsilon,
        lanes: lanes as u32,
    };
    device.launch(grid(rows, lanes), &call)?;
    Ok(Normed { y, inverse })
}

/// `dx` and `dg` in one pass, and `dweight`, a sum over rows.
/// `dx` and `dg` have the shape and type of `x`, `dweight` the shape and type of the weight.
pub(super) fn backward(
    device: &Cuda,
    call: &RmsNormBackward<'_, Cuda>,
    g: &Tensor<Cuda>,
) -> Result<RmsNormInputs<Tensor<Cuda>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, .. }, inverse, dy } = *call;
    // Spread as the forward was.
    let (rows, width, lanes) = spread(x, options);
    let like = |dtype| device.empty(x.shape().clone(), dtype);
    // Terms of `dweight` in 32 bits: it is rounded once, after the sum.
    let (dx, dg, terms) = (like(x.dtype())?, like(x.dtype())?, like(DType::F32)?);
    let arguments = GatedNormBackward {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        dg: (&dg).into(),
        scale: Scale::new(weight, options),
        gate: Gate::new(g, options),
        inverse: pointer(inverse),
        terms: pointer(&terms),
        rows: rows as u64,
        width: width as u64,
        lanes: lanes as u32,
    };
    device.launch(grid(rows, lanes), &arguments)?;
    let dweight = sum_columns(device, x.shape().last(), Terms::Values(&terms))?;
    Ok(RmsNormInputs { x: dx, weight: cast(weight.dtype(), &dweight)?, g: Some(dg) })
}
