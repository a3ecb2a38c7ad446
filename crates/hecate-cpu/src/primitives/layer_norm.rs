//! Layer norm: rows of mean 0 and variance 1, times a weight, plus a bias.
//!
//! Mean and variance are made in two passes, so that a large mean costs the variance no digits.

use super::{fill, fill_pair};
use crate::{
    Cpu,
    device::{floats, pooled_tensor, tensor},
    rows::{dot, sum},
};
use hecate_core::{
    Checked, DType, Result, Tensor, memory,
    primitives::{LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, Reduce, cast},
};

impl LayerNorm for Cpu {
    /// `y = (x − m) r w + b`, and `m` and `r` of each row.
    /// `x [.., D]`, `w [D]` and `b [D]`: core has checked that they match.
    fn layer_norm(
        &self,
        _: Checked<Self>,
        epsilon: f32,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<LayerNormed<Tensor<Self>>> {
        let LayerNormInputs { x, weight, bias } = *inputs;
        let (values, weight, bias) = (floats(x)?, floats(weight)?, floats(bias)?);
        let (width, rows) = (x.shape().last(), x.shape().rows());
        let mut y = self.take("layer_norm", values.len())?;
        // `m` and `r` of a row side by side.
        let mut kept = memory::zeros("layer_norm", 2 * rows)?;
        fill_pair(
            self,
            width,
            (width, &mut y),
            (2, &mut kept),
            #[inline(always)]
            |first, y, kept| {
                let rows = y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width));
                for ((y, x), kept) in rows.zip(kept.chunks_exact_mut(2)) {
                    let mean = mean(x);
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = x - mean);
                    // The square is a 32-bit sum; its root and quotient are 64-bit, so that `r` rounds once.
                    let variance = f64::from(dot(y, y)) / width as f64;
                    let r = (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32;
                    kept.copy_from_slice(&[mean, r]);
                    let affine = weight.iter().zip(&*bias);
                    y.iter_mut().zip(affine).for_each(|(y, (w, b))| *y = *y * r * w + b);
                }
            },
        );
        let y = pooled_tensor(self, x.shape().clone(), x.dtype(), y)?;
        let column = |place| kept.iter().skip(place).step_by(2).copied().collect();
        let row = |place| tensor(self, [rows], DType::F32, column(place));
        Ok(LayerNormed { y, mean: row(0)?, inverse: row(1)? })
    }

    /// `dx` row by row; `dw` and `db` are sums over rows.
    /// With `h = w dy` and `n = (x − m) r` it is `dx = r (h − mean(h) − n mean(n h))`.
    fn layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        backward(self, checked, call, None)
    }

    /// The same, and the gradient that the sum has besides, in one pass.
    /// `dsum`, like `x`, is added while rows of `dx` are in the cache.
    fn add_layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        backward(self, checked, call, Some(&*floats(dsum)?))
    }
}

/// All gradients; `dsum`, where there is one, is added to that of `x`.
/// Means and factors are `[rows]` in 32 bits, from the forward.
fn backward(
    device: &Cpu,
    checked: Checked<Cpu>,
    call: &LayerNormBackward<'_, Cpu>,
    dsum: Option<&[f32]>,
) -> Result<LayerNormInputs<Tensor<Cpu>>> {
    let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean: means, inverse, dy } = *call;
    let (values, weights, slopes) = (floats(x)?, floats(weight)?, floats(dy)?);
    let (means, inverse, width) = (floats(means)?, floats(inverse)?, x.shape().last());
    // `n = (x − m) r`, made again rather than kept; both gradients need it.
    let mut normed = device.take("layer_norm", values.len())?;
    fill(
        device,
        width,
        &mut normed,
        #[inline(always)]
        |first, normed| {
            let rows = normed.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width));
            for ((n, x), (m, r)) in rows.zip(means[first..].iter().zip(&inverse[first..])) {
                n.iter_mut().zip(x).for_each(|(n, x)| *n = (x - m) * r);
            }
        },
    );
    let mut dx = device.take("layer_norm", values.len())?;
    fill(
        device,
        width,
        &mut dx,
        #[inline(always)]
        |first, dx| {
            let rows = normed[first * width..].chunks_exact(width).zip(slopes[first * width..].chunks_exact(width));
            for ((dx, (n, dy)), r) in dx.chunks_exact_mut(width).zip(rows).zip(&inverse[first..]) {
                // `h`, whose mean and whose part along the row are taken off.
                dx.iter_mut().zip(dy).zip(&*weights).for_each(|((h, dy), w)| *h = w * dy);
                let (level, along) = (mean(dx), dot(n, dx) / width as f32);
                dx.iter_mut().zip(n).for_each(|(dx, n)| *dx = r * (*dx - level - n * along));
            }
            // A chunk of rows is still in the cache.
            let dsum = dsum.map(|dsum| &dsum[first * width..]);
            dsum.into_iter().for_each(|dsum| dx.iter_mut().zip(dsum).for_each(|(dx, dsum)| *dx += dsum));
        },
    );
    let (dtype, shape) = (x.dtype(), x.shape().clone());
    let (x, normed) =
        (pooled_tensor(device, shape.clone(), dtype, dx)?, pooled_tensor(device, shape, DType::F32, normed)?);
    let weight = cast(weight.dtype(), &device.sum_products(checked, width, &normed, dy)?)?;
    Ok(LayerNormInputs { x, weight, bias: device.sum_rows(checked, width, dy)? })
}

/// The mean of a row.
#[inline(always)]
fn mean(x: &[f32]) -> f32 {
    (sum(x) / x.len() as f64) as f32
}
