//! Normalising rows.

use super::{fill, fill_pair, reduce::over_rows};
use crate::{
    Cpu,
    device::{floats, lent, tensor},
    rows::dot,
};
use hecate_core::{DType, Result, Tensor, primitives::Norm};

impl Norm for Cpu {
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (mean, epsilon) = (1.0 / x.shape().last() as f64, f64::from(epsilon));
        Ok(normalise(
            self,
            x,
            Some(&floats(weight)),
            #[inline(always)]
            |square| square * mean + epsilon,
        ))
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let w = floats(weight);
        let dx = normalise_backward(self, x, Some(&w), inverse, dy, 1.0 / w.len() as f32);
        let (x, inverse, dy, width) = (floats(x), floats(inverse), floats(dy), w.len());
        let dw = over_rows(
            self,
            inverse.len(),
            width,
            #[inline(always)]
            |rows, sums| {
                let range = rows.start * width..rows.end * width;
                let pairs = x[range.clone()].chunks_exact(width).zip(dy[range].chunks_exact(width));
                for ((x, dy), &r) in pairs.zip(&inverse[rows]) {
                    for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                        *sum += x * r * dy;
                    }
                }
            },
        );
        Ok((dx, tensor(self, [width], weight.dtype(), dw)))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let epsilon = f64::from(epsilon) * f64::from(epsilon);
        Ok(normalise(
            self,
            x,
            None,
            #[inline(always)]
            |square| square + epsilon,
        ))
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(normalise_backward(self, x, None, inverse, dy, 1.0))
    }
}

/// `y = x r w` and `r = 1 / √measure(|x|²)` of each row; `w` is 1 where absent.
fn normalise(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: Option<&[f32]>,
    measure: impl Fn(f64) -> f64 + Sync,
) -> (Tensor<Cpu>, Tensor<Cpu>) {
    let (values, width, rows) = (floats(x), x.shape().last(), x.shape().rows());
    let (mut y, mut inverse) = (device.take(values.len()), vec![0.0; rows]);
    fill_pair(
        device,
        width,
        (width, &mut y),
        (1, &mut inverse),
        #[inline(always)]
        |first, y, inverse| {
            let rows = y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width));
            for ((y, x), inverse) in rows.zip(inverse) {
                let r = (1.0 / measure(f64::from(dot(x, x))).sqrt()) as f32;
                *inverse = r;
                set_product(y, r, x, weight);
            }
        },
    );
    (lent(device, x.shape().clone(), x.dtype(), y), tensor(device, [rows], DType::F32, inverse))
}

/// `dx = r g − x r³ (x·g) share`, `g = w dy`.
fn normalise_backward(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: Option<&[f32]>,
    inverse: &Tensor<Cpu>,
    dy: &Tensor<Cpu>,
    share: f32,
) -> Tensor<Cpu> {
    let (values, inverse, slopes, width) = (floats(x), floats(inverse), floats(dy), x.shape().last());
    let mut dx = device.take(values.len());
    fill(
        device,
        width,
        &mut dx,
        #[inline(always)]
        |first, dx| {
            let (values, slopes) = (&values[first * width..], &slopes[first * width..]);
            let rows = values.chunks_exact(width).zip(slopes.chunks_exact(width)).zip(&inverse[first..]);
            for (dx, ((x, dy), &r)) in dx.chunks_exact_mut(width).zip(rows) {
                set_product(dx, r, dy, weight);
                let along = (r * dot(x, dx)) * r * share;
                for (dx, x) in dx.iter_mut().zip(x) {
                    *dx -= along * x;
                }
            }
        },
    );
    lent(device, x.shape().clone(), x.dtype(), dx)
}

/// `out = factor x w`.
#[inline(always)]
fn set_product(out: &mut [f32], factor: f32, x: &[f32], weight: Option<&[f32]>) {
    match weight {
        None => out.iter_mut().zip(x).for_each(|(out, x)| *out = factor * x),
        Some(weight) => out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = factor * x * w),
    }
}
