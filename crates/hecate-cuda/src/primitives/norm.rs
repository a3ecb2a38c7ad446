//! Normalising rows.

use super::reduce::{Terms, sum_columns};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Result, Tensor, primitives::Norm};

pub(crate) const SOURCE: Source = source!("norm", "norm.cu");

kernels! { SOURCE {
    "normalise" Normalise {
        x: Array, y: Array, weight: Array, inverse: Pointer, rows: u64, width: u64, epsilon: f32, lanes: u32, l2: u32
    }
    "normalise_backward" NormaliseBackward {
        x: Array, dy: Array, dx: Array, weight: Array, inverse: Pointer, rows: u64, width: u64, share: f32, lanes: u32,
        l2: u32
    }
} }

impl Norm for Cuda {
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight))
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let dx = normalise_backward(self, x, Some(weight), inverse, dy)?;
        Ok((dx, sum_columns(self, x.shape().last(), Terms::Scaled(x, inverse, dy))?))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, None)
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}

/// Threads of a row: a warp, or a block where rows are long.
fn lanes(width: usize) -> u32 {
    if width <= 1024 { 32 } else { 256 }
}

fn grid(rows: usize, lanes: u32) -> Grid {
    Grid::blocks(rows.div_ceil(256 / lanes as usize).min(65_535), 256)
}

/// `(y, r)`; with a weight by the root of the mean square, without by the length.
fn normalise(
    device: &Cuda,
    epsilon: f32,
    x: &Tensor<Cuda>,
    weight: Option<&Tensor<Cuda>>,
) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let (y, inverse) = (device.empty(x.shape().clone(), x.dtype())?, device.empty([rows], DType::F32)?);
    let lanes = lanes(width);
    let arguments = Normalise {
        x: x.into(),
        y: (&y).into(),
        weight: weight.unwrap_or(x).into(),
        inverse: pointer(&inverse),
        rows: rows as u64,
        width: width as u64,
        epsilon,
        lanes,
        l2: weight.is_none().into(),
    };
    device.launch(grid(rows, lanes), &arguments)?;
    Ok((y, inverse))
}

fn normalise_backward(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weight: Option<&Tensor<Cuda>>,
    inverse: &Tensor<Cuda>,
    dy: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let lanes = lanes(width);
    let arguments = NormaliseBackward {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        weight: weight.unwrap_or(x).into(),
        inverse: pointer(inverse),
        rows: rows as u64,
        width: width as u64,
        share: if weight.is_some() { 1.0 / width as f32 } else { 1.0 },
        lanes,
        l2: weight.is_none().into(),
    };
    device.launch(grid(rows, lanes), &arguments)?;
    Ok(dx)
}
