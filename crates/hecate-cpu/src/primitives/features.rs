//! Polynomial features of rows: constant, linear and quadratic terms, each with its coefficient's root.
//!
//! A row `[d]` becomes `[1 + d + d (d + 1)/2]`, with each pair once.
//! Off-diagonal pairs carry `√2`, so that the dot product of two features is a polynomial of the rows' dot product.

use super::fill;
use crate::{
    Cpu,
    device::{floats, tensor},
    rows::{axpy, dot},
};
use hecate_core::{
    Checked, Result, Tensor, memory,
    primitives::{Features, poly2_width},
};

impl Features for Cpu {
    /// Features of every row, in the order constant, linear, pairs `(i, i..)`.
    /// `x [.., d]` becomes `[.., 1 + d + d (d + 1)/2]`.
    fn poly2(&self, _: Checked<Self>, coefficients: [f32; 3], x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, width, [zeroth, first, second]) = (floats(x)?, x.shape().last(), coefficients.map(f32::sqrt));
        let features = poly2_width(width);
        let mut y = memory::zeros("poly2", x.shape().rows().saturating_mul(features))?;
        fill(
            self,
            features,
            &mut y,
            #[inline(always)]
            |start, y| {
                let rows = values[start * width..].chunks_exact(width);
                for (y, x) in y.chunks_exact_mut(features).zip(rows) {
                    // A row of features: the constant, `d` linear ones, then the triangle of pairs.
                    let (linear, mut pairs) = y[1..].split_at_mut(width);
                    linear.iter_mut().zip(x).for_each(|(y, x)| *y = first * x);
                    // Row `i` of the pairs' triangle: `x_i` against itself and all after it.
                    for i in 0..width {
                        let (own, rest) = pairs.split_at_mut(width - i);
                        let factor = second * std::f32::consts::SQRT_2 * x[i];
                        own.iter_mut().zip(&x[i..]).for_each(|(y, x)| *y = factor * x);
                        // The square stands once in the polynomial, the other pairs twice.
                        own[0] = second * x[i] * x[i];
                        pairs = rest;
                    }
                    y[0] = zeroth;
                }
            },
        );
        // Only the last axis changes.
        let axes = x.shape().axes();
        let outer = &axes[..axes.len().saturating_sub(1)];
        tensor(self, [outer, &[features][..]].concat(), x.dtype(), y)
    }

    /// Back to the rows: a pair `(i,j)` sends its gradient to both of its elements.
    /// `x [.., d]`, `dy [.., features]`; the result is like `x`.
    fn poly2_backward(
        &self,
        _: Checked<Self>,
        coefficients: [f32; 3],
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (values, slopes, width) = (floats(x)?, floats(dy)?, x.shape().last());
        let ([_, first, second], features) = (coefficients.map(f32::sqrt), poly2_width(width));
        let mut dx = memory::zeros("poly2", values.len())?;
        fill(
            self,
            width,
            &mut dx,
            #[inline(always)]
            |start, dx| {
                let rows =
                    values[start * width..].chunks_exact(width).zip(slopes[start * features..].chunks_exact(features));
                for (dx, (x, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                    // The constant has no gradient.
                    let (linear, mut pairs) = dy[1..].split_at(width);
                    dx.iter_mut().zip(linear).for_each(|(dx, dy)| *dx = first * dy);
                    // Row `i` of the triangle: the square, then the pairs, which also reach the later elements.
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
        tensor(self, x.shape().clone(), x.dtype(), dx)
    }
}
