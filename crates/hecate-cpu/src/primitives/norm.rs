//! Normalising rows.

use super::{
    elementwise::{Curve as _, Silu},
    fill, fill_pair,
    reduce::over_rows,
};
use crate::{
    Cpu,
    device::{floats, lent, tensor},
    kept::Lent,
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
            None,
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
        let dy = floats(dy);
        let share = 1.0 / x.shape().last() as f32;
        let dx = normalise_backward(self, x, Some(&floats(weight)), inverse, &dy, share);
        Ok((dx, weight_grad(self, x, weight, inverse, &dy)))
    }

    fn rms_norm_gated(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (mean, epsilon) = (1.0 / x.shape().last() as f64, f64::from(epsilon));
        Ok(normalise(
            self,
            x,
            Some(&floats(weight)),
            Some(&floats(g)),
            #[inline(always)]
            |square| square * mean + epsilon,
        ))
    }

    fn rms_norm_gated_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (let_through, dg) = gate_backward(self, x, weight, g, inverse, &floats(dy));
        let share = 1.0 / x.shape().last() as f32;
        let dx = normalise_backward(self, x, Some(&floats(weight)), inverse, &let_through, share);
        Ok((dx, weight_grad(self, x, weight, inverse, &let_through), dg))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let epsilon = f64::from(epsilon) * f64::from(epsilon);
        Ok(normalise(
            self,
            x,
            None,
            None,
            #[inline(always)]
            |square| square + epsilon,
        ))
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(normalise_backward(self, x, None, inverse, &floats(dy), 1.0))
    }
}

/// `y = x r w silu(g)` and `r = 1 / √measure(|x|²)` of each row; `w`, and SiLU, are 1 where absent.
fn normalise(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: Option<&[f32]>,
    gate: Option<&[f32]>,
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
            if let Some(gate) = gate {
                y.iter_mut().zip(&gate[first * width..]).for_each(|(y, &g)| *y *= Silu::value(g));
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
    slopes: &[f32],
    share: f32,
) -> Tensor<Cpu> {
    let (values, inverse, width) = (floats(x), floats(inverse), x.shape().last());
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

/// `Σ x r dy` over rows.
fn weight_grad(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> Tensor<Cpu> {
    let (x, inverse, width) = (floats(x), floats(inverse), weight.shape().count());
    let dw = over_rows(
        device,
        inverse.len(),
        width,
        #[inline(always)]
        |rows, sums| {
            let range = rows.start * width..rows.end * width;
            let pairs = x[range.clone()].chunks_exact(width).zip(slopes[range].chunks_exact(width));
            for ((x, dy), &r) in pairs.zip(&inverse[rows]) {
                for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                    *sum += x * r * dy;
                }
            }
        },
    );
    tensor(device, [width], weight.dtype(), dw)
}

/// `silu(g) dy`, the gradient of what is let through, and `dg = silu'(g) x r w dy`.
fn gate_backward(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    g: &Tensor<Cpu>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> (Lent, Tensor<Cpu>) {
    let (values, weight, gates, inverse) = (floats(x), floats(weight), floats(g), floats(inverse));
    let width = weight.len();
    let (mut through, mut dg) = (device.take(slopes.len()), device.take(slopes.len()));
    fill_pair(
        device,
        width,
        (width, &mut through),
        (width, &mut dg),
        #[inline(always)]
        |first, through, dg| {
            let rows = through.chunks_exact_mut(width).zip(dg.chunks_exact_mut(width)).zip(&inverse[first..]);
            for (i, ((through, dg), &r)) in rows.enumerate() {
                let at = (first + i) * width..(first + i + 1) * width;
                set_product(dg, r, &values[at.clone()], Some(&weight));
                let given = gates[at.clone()].iter().zip(&slopes[at]);
                for ((through, dg), (&g, dy)) in through.iter_mut().zip(dg).zip(given) {
                    *through = Silu::value(g) * dy;
                    *dg *= Silu::slope(g) * dy;
                }
            }
        },
    );
    (through, lent(device, g.shape().clone(), g.dtype(), dg))
}

/// `out = factor x w`.
#[inline(always)]
fn set_product(out: &mut [f32], factor: f32, x: &[f32], weight: Option<&[f32]>) {
    match weight {
        None => out.iter_mut().zip(x).for_each(|(out, x)| *out = factor * x),
        Some(weight) => out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = factor * x * w),
    }
}
