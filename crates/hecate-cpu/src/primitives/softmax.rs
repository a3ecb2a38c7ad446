//! Softmax of rows: the largest element is taken off first, so no power overflows.
//!
//! Powers are in 32 bits, and so are sums of a few; the sum of those is in 64.

use super::{exp::exp, fill};
use crate::{
    Cpu,
    device::{floats, pooled_tensor},
    rows::{dot, sum},
};
use hecate_core::{Checked, Result, Tensor, primitives::Softmax};

impl Softmax for Cpu {
    /// `y = e^{x − top} / Σ e^{x − top}`, row by row.
    /// `x.softmax(-1)`, of the shape and type of `x`.
    fn softmax(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, width) = (floats(x)?, x.shape().last());
        let mut y = self.take("softmax", values.len())?;
        fill(
            self,
            width,
            &mut y,
            #[inline(always)]
            |first, y| {
                for (y, x) in y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width)) {
                    let top = largest(x);
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = exp(x - top));
                    let share = (1.0 / sum(y)) as f32;
                    y.iter_mut().for_each(|y| *y *= share);
                }
            },
        );
        pooled_tensor(self, x.shape().clone(), x.dtype(), y)
    }

    /// `dx = y (dy − y·dy)`, row by row.
    /// It is made of the result `y` alone, so the forward keeps nothing else.
    fn softmax_backward(&self, _: Checked<Self>, y: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, slopes, width) = (floats(y)?, floats(dy)?, y.shape().last());
        let mut dx = self.take("softmax", values.len())?;
        fill(
            self,
            width,
            &mut dx,
            #[inline(always)]
            |first, dx| {
                let rows = values[first * width..].chunks_exact(width).zip(slopes[first * width..].chunks_exact(width));
                for (dx, (y, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                    let mean = dot(y, dy);
                    dx.iter_mut().zip(y).zip(dy).for_each(|((dx, y), dy)| *dx = y * (dy - mean));
                }
            },
        );
        pooled_tensor(self, y.shape().clone(), y.dtype(), dx)
    }
}

/// Maxima side by side, which vectors hold.
const LANES: usize = 16;

/// The largest element; of NaN nothing is said, since powers show them.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        tops.iter_mut().zip(x).for_each(|(top, &x)| *top = if x > *top { x } else { *top });
    }
    rest.iter().chain(&tops).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top })
}
