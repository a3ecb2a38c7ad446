//! Element by element.

use super::{
    exp::{exp, sigmoids, softplus},
    fill,
    reduce::over_rows,
    unsupported,
};
use crate::{
    Cpu,
    device::{floats, tensor},
};
use hecate_core::{
    DType, Host, Result, Tensor,
    primitives::{Broadcast, Elementwise, Map},
};

impl Elementwise for Cpu {
    fn map(&self, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(match map {
            Map::Silu => each(self, x, silu),
            Map::Sigmoid => each(self, x, sigmoid),
            Map::LogSigmoid => each(self, x, log_sigmoid),
            Map::Softplus => each(self, x, softplus),
            Map::Gelu => each(self, x, gelu),
            Map::Exp => each(self, x, exp),
            other => return Err(unsupported("map", format!("there is no kernel for {}", other.name()))),
        })
    }

    fn map_backward(&self, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(match map {
            Map::Silu => with_slope(self, x, dy, silu_slope),
            Map::Sigmoid => with_slope(self, x, dy, sigmoid_slope),
            Map::LogSigmoid => with_slope(self, x, dy, log_sigmoid_slope),
            Map::Softplus => with_slope(self, x, dy, sigmoid),
            Map::Gelu => with_slope(self, x, dy, gelu_slope),
            Map::Exp => with_slope(self, x, dy, exp),
            other => return Err(unsupported("map", format!("there is no kernel for {}", other.name()))),
        })
    }

    fn add(&self, dims: Broadcast, a: &Tensor<Self>, b: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(combine(
            self,
            dims,
            a,
            b,
            #[inline(always)]
            |a, b| a + b,
        ))
    }

    fn mul(&self, dims: Broadcast, a: &Tensor<Self>, b: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(combine(self, dims, a, b, times))
    }

    fn mul_backward(
        &self,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let da = combine(self, dims, dy, b, times);
        if dims.rows == 1 {
            return Ok((da, combine(self, dims, dy, a, times).reshape(b.shape().clone())?));
        }
        let (a, dy) = (floats(a), floats(dy));
        let width = dims.width;
        let db = over_rows(
            self,
            dims.rows,
            width,
            #[inline(always)]
            |rows, sums| {
                let range = rows.start * width..rows.end * width;
                for (a, dy) in a[range.clone()].chunks_exact(width).zip(dy[range].chunks_exact(width)) {
                    for ((sum, a), dy) in sums.iter_mut().zip(a).zip(dy) {
                        *sum += a * dy;
                    }
                }
            },
        );
        Ok((da, tensor(self, b.shape().clone(), b.dtype(), db)))
    }

    fn scale(&self, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(each(
            self,
            x,
            #[inline(always)]
            |x| factor * x,
        ))
    }

    fn cast(&self, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let host = Host::from_f32(dtype, floats(x).into_owned());
        Ok(Tensor::from_buffer(self, x.shape().clone(), dtype, host))
    }
}

/// `f` of every element.
fn each(device: &Cpu, x: &Tensor<Cpu>, f: impl Fn(f32) -> f32 + Sync) -> Tensor<Cpu> {
    let values = floats(x);
    let mut out = vec![0.0; values.len()];
    fill(
        device,
        1,
        &mut out,
        #[inline(always)]
        |first, out| {
            for (out, &x) in out.iter_mut().zip(&values[first..]) {
                *out = f(x);
            }
        },
    );
    tensor(device, x.shape().clone(), x.dtype(), out)
}

/// `slope(x) dy` for every element.
fn with_slope(device: &Cpu, x: &Tensor<Cpu>, dy: &Tensor<Cpu>, slope: impl Fn(f32) -> f32 + Sync) -> Tensor<Cpu> {
    let dims = Broadcast { rows: 1, width: x.shape().count() };
    combine(
        device,
        dims,
        x,
        dy,
        #[inline(always)]
        |x, dy| slope(x) * dy,
    )
}

/// `f(a, b)` for every element of `a`.
fn combine(
    device: &Cpu,
    dims: Broadcast,
    a: &Tensor<Cpu>,
    b: &Tensor<Cpu>,
    f: impl Fn(f32, f32) -> f32 + Sync,
) -> Tensor<Cpu> {
    let (x, y) = (floats(a), floats(b));
    let mut out = vec![0.0; x.len()];
    // Arrays of equal shape are cut anywhere, others between rows.
    let width = if dims.rows == 1 { 1 } else { dims.width };
    fill(
        device,
        width,
        &mut out,
        #[inline(always)]
        |first, out| {
            let (x, y) = (&x[first * width..], if dims.rows == 1 { &y[first..] } else { &y[..] });
            let step = if dims.rows == 1 { out.len() } else { width };
            for (out, x) in out.chunks_exact_mut(step).zip(x.chunks(step)) {
                for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                    *out = f(x, y);
                }
            }
        },
    );
    tensor(device, a.shape().clone(), a.dtype(), out)
}

#[inline(always)]
fn times(a: f32, b: f32) -> f32 {
    a * b
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    sigmoids(x).0
}

#[inline(always)]
fn sigmoid_slope(x: f32) -> f32 {
    let (up, down) = sigmoids(x);
    up * down
}

#[inline(always)]
fn log_sigmoid(x: f32) -> f32 {
    -softplus(-x)
}

#[inline(always)]
fn log_sigmoid_slope(x: f32) -> f32 {
    sigmoids(x).1
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
fn silu_slope(x: f32) -> f32 {
    let (up, down) = sigmoids(x);
    up * (1.0 + x * down)
}

/// `2 √(2/π)`: `½ (1 + tanh u) = σ(2u)`.
const GELU: f32 = 1.595_769_1;
const CUBIC: f32 = 0.044_715;

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * sigmoid(GELU * x * (1.0 + CUBIC * x * x))
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let (up, down) = sigmoids(GELU * x * (1.0 + CUBIC * x * x));
    // Where x² would overflow, `down` or `up` has long been 0.
    let near = x.clamp(-1e6, 1e6);
    up * (1.0 + near * down * GELU * (1.0 + 3.0 * CUBIC * near * near))
}
