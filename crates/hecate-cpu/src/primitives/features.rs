//! Polynomial features of rows.

use super::fill;
use crate::{
    Cpu,
    device::{floats, tensor},
    rows::{axpy, dot},
};
use hecate_core::{
    Result, Tensor,
    primitives::{Features, poly2_width},
};

impl Features for Cpu {
    fn poly2(&self, coefficients: [f32; 3], x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, width, [zeroth, first, second]) = (floats(x), x.shape().last(), coefficients.map(f32::sqrt));
        let features = poly2_width(width);
        let mut y = vec![0.0; x.shape().rows() * features];
        fill(
            self,
            features,
            &mut y,
            #[inline(always)]
            |start, y| {
                let rows = values[start * width..].chunks_exact(width);
                for (y, x) in y.chunks_exact_mut(features).zip(rows) {
                    let (linear, mut pairs) = y[1..].split_at_mut(width);
                    linear.iter_mut().zip(x).for_each(|(y, x)| *y = first * x);
                    for i in 0..width {
                        let (own, rest) = pairs.split_at_mut(width - i);
                        let factor = second * std::f32::consts::SQRT_2 * x[i];
                        own.iter_mut().zip(&x[i..]).for_each(|(y, x)| *y = factor * x);
                        own[0] = second * x[i] * x[i];
                        pairs = rest;
                    }
                    y[0] = zeroth;
                }
            },
        );
        let axes = x.shape().axes();
        let outer = &axes[..axes.len().saturating_sub(1)];
        Ok(tensor(self, [outer, &[features][..]].concat(), x.dtype(), y))
    }

    fn poly2_backward(&self, coefficients: [f32; 3], x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, slopes, width) = (floats(x), floats(dy), x.shape().last());
        let ([_, first, second], features) = (coefficients.map(f32::sqrt), poly2_width(width));
        let mut dx = vec![0.0; values.len()];
        fill(
            self,
            width,
            &mut dx,
            #[inline(always)]
            |start, dx| {
                let rows =
                    values[start * width..].chunks_exact(width).zip(slopes[start * features..].chunks_exact(features));
                for (dx, (x, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                    let (linear, mut pairs) = dy[1..].split_at(width);
                    dx.iter_mut().zip(linear).for_each(|(dx, dy)| *dx = first * dy);
                    for i in 0..width {
                        let (own, rest) = pairs.split_at(width - i);
                        let factor = second * std::f32::consts::SQRT_2;
                        dx[i] += 2.0 * second * x[i] * own[0] + factor * dot(&x[i + 1..], &own[1..]);
                        axpy(&mut dx[i + 1..], factor * x[i], &own[1..]);
                        pairs = rest;
                    }
                }
            },
        );
        Ok(tensor(self, x.shape().clone(), x.dtype(), dx))
    }
}
