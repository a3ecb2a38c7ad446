//! Element by element.

use super::{
    exp::{exp, sigmoids, softplus},
    fill, fill_pair,
    reduce::over_rows,
    unsupported,
};
use crate::{
    Cpu,
    device::{floats, from_host, lent, tensor},
};
use hecate_core::{
    DType, Host, Result, Tensor,
    primitives::{Broadcast, Elementwise, Map},
};

/// An expression with `C` the curve of a map.
macro_rules! curve {
    ($map:ident, $curve:ident => $result:expr) => {
        match $map {
            Map::Silu => Ok({
                type $curve = Silu;
                $result
            }),
            Map::Sigmoid => Ok({
                type $curve = Sigmoid;
                $result
            }),
            Map::LogSigmoid => Ok({
                type $curve = LogSigmoid;
                $result
            }),
            Map::Softplus => Ok({
                type $curve = Softplus;
                $result
            }),
            Map::Gelu => Ok({
                type $curve = Gelu;
                $result
            }),
            Map::Exp => Ok({
                type $curve = Exp;
                $result
            }),
            other => Err(unsupported("map", format!("there is no kernel for {}", other.name()))),
        }
    };
}

impl Elementwise for Cpu {
    fn map(&self, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => values::<C>(self, x))
    }

    fn map_backward(&self, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => slopes::<C>(self, x, dy))
    }

    fn gated(&self, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => let_through::<C>(self, x, g))
    }

    fn gated_backward(
        &self,
        map: Map,
        x: &Tensor<Self>,
        g: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        curve!(map, C => gate_slopes::<C>(self, x, g, dy))
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
        Ok(product(self, dims, a, b))
    }

    fn mul_backward(
        &self,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let da = product(self, dims, dy, b);
        if dims.rows == 1 {
            return Ok((da, product(self, dims, dy, a).reshape(b.shape().clone())?));
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
        Ok(from_host(self, x.shape().clone(), dtype, host))
    }
}

/// `f` of every element.
fn each(device: &Cpu, x: &Tensor<Cpu>, f: impl Fn(f32) -> f32 + Sync) -> Tensor<Cpu> {
    let values = floats(x);
    let mut out = device.take(values.len());
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
    lent(device, x.shape().clone(), x.dtype(), out)
}

/// The curve at every element.
fn values<C: Curve>(device: &Cpu, x: &Tensor<Cpu>) -> Tensor<Cpu> {
    each(
        device,
        x,
        #[inline(always)]
        |x| C::value(x),
    )
}

/// The curve's slope at every element of `x`, times `dy`.
fn slopes<C: Curve>(device: &Cpu, x: &Tensor<Cpu>, dy: &Tensor<Cpu>) -> Tensor<Cpu> {
    let dims = Broadcast { rows: 1, width: x.shape().count() };
    combine(
        device,
        dims,
        x,
        dy,
        #[inline(always)]
        |x, dy| C::slope(x) * dy,
    )
}

/// `x` times the curve at every element of `g`.
fn let_through<C: Curve>(device: &Cpu, x: &Tensor<Cpu>, g: &Tensor<Cpu>) -> Tensor<Cpu> {
    let dims = Broadcast { rows: 1, width: x.shape().count() };
    combine(
        device,
        dims,
        g,
        x,
        #[inline(always)]
        |g, x| C::value(g) * x,
    )
}

/// `dy` times the curve at every element of `g`, and `x dy` times its slope.
fn gate_slopes<C: Curve>(
    device: &Cpu,
    x: &Tensor<Cpu>,
    g: &Tensor<Cpu>,
    dy: &Tensor<Cpu>,
) -> (Tensor<Cpu>, Tensor<Cpu>) {
    let (values, gates, slopes) = (floats(x), floats(g), floats(dy));
    let (mut dx, mut dg) = (device.take(values.len()), device.take(values.len()));
    fill_pair(
        device,
        1,
        (1, &mut dx),
        (1, &mut dg),
        #[inline(always)]
        |first, dx, dg| {
            let inputs = values[first..].iter().zip(&gates[first..]).zip(&slopes[first..]);
            for ((dx, dg), ((x, &g), dy)) in dx.iter_mut().zip(dg).zip(inputs) {
                *dx = C::value(g) * dy;
                *dg = C::slope(g) * (dy * x);
            }
        },
    );
    (lent(device, x.shape().clone(), x.dtype(), dx), lent(device, g.shape().clone(), g.dtype(), dg))
}

/// `a b`.
fn product(device: &Cpu, dims: Broadcast, a: &Tensor<Cpu>, b: &Tensor<Cpu>) -> Tensor<Cpu> {
    combine(
        device,
        dims,
        a,
        b,
        #[inline(always)]
        |a, b| a * b,
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
    let mut out = device.take(x.len());
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
    lent(device, a.shape().clone(), a.dtype(), out)
}

/// A smooth function of one number. A type, not a function value: calls through those are not always inlined, and a
/// loop around a call does not vectorise.
pub(super) trait Curve {
    fn value(x: f32) -> f32;
    fn slope(x: f32) -> f32;
}

macro_rules! curves {
    ($($name:ident($x:ident) => $value:expr, $slope:expr;)*) => {
        $(pub(super) struct $name;
        impl Curve for $name {
            #[inline(always)]
            fn value($x: f32) -> f32 {
                $value
            }
            #[inline(always)]
            fn slope($x: f32) -> f32 {
                $slope
            }
        })*
    };
}

curves! {
    Silu(x) => x * sigmoids(x).0, { let (up, down) = sigmoids(x); up * (1.0 + x * down) };
    Sigmoid(x) => sigmoids(x).0, { let (up, down) = sigmoids(x); up * down };
    LogSigmoid(x) => -softplus(-x), sigmoids(x).1;
    Softplus(x) => softplus(x), sigmoids(x).0;
    Gelu(x) => x * sigmoids(gelu_argument(x)).0, gelu_slope(x);
    Exp(x) => exp(x), exp(x);
}

/// `2 √(2/π)`: `½ (1 + tanh u) = σ(2u)`.
const GELU: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    GELU * x * (1.0 + CUBIC * x * x)
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let (up, down) = sigmoids(gelu_argument(x));
    // Where x² would overflow, `down` or `up` has long been 0.
    let near = x.clamp(-1e6, 1e6);
    up * (1.0 + near * down * GELU * (1.0 + 3.0 * CUBIC * near * near))
}
