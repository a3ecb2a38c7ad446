//! Element by element: curves, gates, sums and products, with broadcasting of the second operand over rows.
//!
//! Curves are types, not function values: every loop is compiled for its curve and vectorises.
//! A fused pair (a gate's two gradients) goes through its inputs once.
//!
//! Arrays are cut into blocks by their sizes alone, so a result does not depend on the number of threads. Each element
//! is made in 32 bits and rounded once to the type of the result.

use super::{
    exp::{exp, sigmoids, softplus},
    fill, fill_pair, unsupported,
};
use crate::{
    Cpu,
    device::{floats, from_host, pooled_tensor},
};
use hecate_core::{
    Checked, DType, Host, Result, Tensor,
    primitives::{BiasedBackward, Broadcast, Combine, DropMask, Elementwise, GatedBackward, GatedGrads, Map},
};

/// An expression with `$curve` the type of a map: one compiled loop for each of them.
macro_rules! curve {
    ($map:ident, $curve:ident => $result:expr) => {
        curve!($map, $curve => $result, Silu Sigmoid LogSigmoid Softplus Gelu Exp Relu ReluSquared)
    };
    ($map:ident, $curve:ident => $result:expr, $($name:ident)*) => {
        match $map {
            $(Map::$name => {
                type $curve = $name;
                $result
            })*
            // A map that core got and this backend did not: an error of the call, not of the build.
            other => Err(unsupported("map", format!("there is no kernel for {}", other.name()))),
        }
    };
}

impl Elementwise for Cpu {
    /// `C(x)`.
    /// `x` has any shape and a float type; the result is like it.
    fn map(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => values::<C>(self, x))
    }

    /// `C′(x) dy`.
    /// `dy` is like `x`. Slopes are made of `x`, so the forward keeps nothing else.
    fn map_backward(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => slopes::<C>(self, x, dy))
    }

    /// `x C(g)`: a gate.
    /// `x` and `g` have one shape, as core has checked.
    fn gated(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        curve!(map, C => gate_values::<C>(self, x, g))
    }

    /// Gradients of `x` and of `g`, in one pass.
    /// `dx = C(g) dy` and `dg = x C′(g) dy`.
    fn gated_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        call: &GatedBackward<'_, Self>,
    ) -> Result<GatedGrads<Tensor<Self>>> {
        curve!(map, C => gate_slopes::<C>(self, call))
    }

    /// `C(x + b)`.
    /// `b` is `[width]` or like `x`; the sum itself is not written to memory.
    fn biased(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        x: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        curve!(map, C => biased_values::<C>(self, dims, x, b))
    }

    /// `C′(x + b) dy`.
    /// It is the gradient of `x`; that of `b [width]` is its sum over rows.
    fn biased_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        call: &BiasedBackward<'_, Self>,
    ) -> Result<Tensor<Self>> {
        curve!(map, C => biased_slopes::<C>(self, dims, call))
    }

    /// `b` is broadcast over the rows of `a` where it has fewer.
    /// `a` is `[rows, width]`, `b` `[width]` or like `a`; the result is like `a`.
    fn combine(
        &self,
        _: Checked<Self>,
        how: Combine,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        match how {
            Combine::Sum => combine(
                self,
                dims,
                a,
                b,
                #[inline(always)]
                |a, b| a + b,
            ),
            Combine::Product => combine(
                self,
                dims,
                a,
                b,
                #[inline(always)]
                |a, b| a * b,
            ),
            Combine::Difference => combine(
                self,
                dims,
                a,
                b,
                #[inline(always)]
                |a, b| a - b,
            ),
            Combine::Quotient => combine(
                self,
                dims,
                a,
                b,
                #[inline(always)]
                |a, b| a / b,
            ),
        }
    }

    /// `factor x`.
    fn scale(&self, _: Checked<Self>, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        each(
            self,
            x,
            #[inline(always)]
            |x| factor * x,
        )
    }

    /// Zeros, and the others times the mask's factor.
    /// The mask is made from its key and an element's place, so a backward need not keep it.
    fn dropout(&self, _: Checked<Self>, mask: DropMask, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let values = floats(x)?;
        let mut out = self.take("dropout", values.len())?;
        fill(
            self,
            1,
            &mut out,
            #[inline(always)]
            |first, out| {
                for (i, (out, &x)) in out.iter_mut().zip(&values[first..]).enumerate() {
                    *out = mask.factor((first + i) as u64) * x;
                }
            },
        );
        pooled_tensor(self, x.shape().clone(), x.dtype(), out)
    }

    /// The same elements in another type.
    fn cast(&self, _: Checked<Self>, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        // Through 32 bits: 16-bit types round to nearest.
        self.room("cast", x.shape().count())?;
        let host = Host::from_f32(dtype, floats(x)?.into_owned());
        from_host(self, x.shape().clone(), dtype, host)
    }
}

/// `f` of every element, in the shape and type of `x`.
fn each(device: &Cpu, x: &Tensor<Cpu>, f: impl Fn(f32) -> f32 + Sync) -> Result<Tensor<Cpu>> {
    let values = floats(x)?;
    let mut out = device.take("map", values.len())?;
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
    pooled_tensor(device, x.shape().clone(), x.dtype(), out)
}

/// The curve at every element.
fn values<C: Curve>(device: &Cpu, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    each(
        device,
        x,
        #[inline(always)]
        |x| C::value(x),
    )
}

/// The curve's slope at every element of `x`, times `dy`.
fn slopes<C: Curve>(device: &Cpu, x: &Tensor<Cpu>, dy: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
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
fn gate_values<C: Curve>(device: &Cpu, x: &Tensor<Cpu>, g: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
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

/// `dy` times the curve at every element of `g`, and `x dy` times its slope there.
fn gate_slopes<C: Curve>(device: &Cpu, call: &GatedBackward<'_, Cpu>) -> Result<GatedGrads<Tensor<Cpu>>> {
    let GatedBackward { x, g, dy } = *call;
    let (values, gates, slopes) = (floats(x)?, floats(g)?, floats(dy)?);
    // Two results of one pass: inputs are read once, which is what these calls wait for.
    let (mut dx, mut dg) = (device.take("gated", values.len())?, device.take("gated", values.len())?);
    fill_pair(
        device,
        1,
        (1, &mut dx),
        (1, &mut dg),
        #[inline(always)]
        |first, dx, dg| {
            // Both gradients need the gate's value or slope: one evaluation of the exponential serves both.
            let inputs = values[first..].iter().zip(&gates[first..]).zip(&slopes[first..]);
            for ((dx, dg), ((x, &g), dy)) in dx.iter_mut().zip(dg).zip(inputs) {
                *dx = C::value(g) * dy;
                *dg = C::slope(g) * (dy * x);
            }
        },
    );
    let array = |like: &Tensor<Cpu>, values| pooled_tensor(device, like.shape().clone(), like.dtype(), values);
    Ok(GatedGrads { x: array(x, dx)?, g: array(g, dg)? })
}

/// The curve at every element of `x + b`.
fn biased_values<C: Curve>(device: &Cpu, dims: Broadcast, x: &Tensor<Cpu>, b: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    combine(
        device,
        dims,
        x,
        b,
        #[inline(always)]
        |x, b| C::value(x + b),
    )
}

/// The curve's slope at every element of `x + b`, times `dy`.
fn biased_slopes<C: Curve>(device: &Cpu, dims: Broadcast, call: &BiasedBackward<'_, Cpu>) -> Result<Tensor<Cpu>> {
    let (x, b, dy) = (floats(call.x)?, floats(call.b)?, floats(call.dy)?);
    let (mut dx, width) = (device.take("biased", x.len())?, dims.width);
    fill(
        device,
        width,
        &mut dx,
        #[inline(always)]
        |first, dx| {
            let rows = x[first * width..].chunks_exact(width).zip(dy[first * width..].chunks_exact(width));
            for (dx, (x, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                for ((dx, (&x, &dy)), &b) in dx.iter_mut().zip(x.iter().zip(dy)).zip(&*b) {
                    *dx = C::slope(x + b) * dy;
                }
            }
        },
    );
    pooled_tensor(device, call.x.shape().clone(), call.x.dtype(), dx)
}

/// `f(a, b)` for every element of `a`; `b` is of the same shape, or one row of it.
fn combine(
    device: &Cpu,
    dims: Broadcast,
    a: &Tensor<Cpu>,
    b: &Tensor<Cpu>,
    f: impl Fn(f32, f32) -> f32 + Sync,
) -> Result<Tensor<Cpu>> {
    // 16-bit arrays are widened whole; 32-bit ones are borrowed.
    let (x, y) = (floats(a)?, floats(b)?);
    let mut out = device.take("combine", x.len())?;
    // Arrays of equal shape are cut anywhere, others between rows.
    let width = if dims.rows == 1 { 1 } else { dims.width };
    fill(
        device,
        width,
        &mut out,
        #[inline(always)]
        |first, out| {
            let (x, y) = (&x[first * width..], if dims.rows == 1 { &y[first..] } else { &y[..] });
            // Equal shapes go as one long row, others row by row with `y` repeated.
            let step = if dims.rows == 1 { out.len() } else { width };
            for (out, x) in out.chunks_exact_mut(step).zip(x.chunks(step)) {
                for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                    *out = f(x, y);
                }
            }
        },
    );
    pooled_tensor(device, a.shape().clone(), a.dtype(), out)
}

/// A function of one element.
///
/// It is a type, not a function value: calls through those are not always inlined.
/// A loop around a call does not vectorise.
pub(super) trait Curve {
    /// The function.
    fn value(x: f32) -> f32;
    /// Its derivative.
    fn slope(x: f32) -> f32;
}

/// Curves from their formulas.
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
    // `up` is σ(x) and `down` is σ(−x), each made without cancellation.
    Silu(x) => x * sigmoids(x).0, { let (up, down) = sigmoids(x); up * (1.0 + x * down) };
    Sigmoid(x) => sigmoids(x).0, { let (up, down) = sigmoids(x); up * down };
    // `log σ(x) = −softplus(−x)`, which does not underflow to `log 0`.
    LogSigmoid(x) => -softplus(-x), sigmoids(x).1;
    Softplus(x) => softplus(x), sigmoids(x).0;
    // The approximation by a hyperbolic tangent, as `x σ(2u)`.
    Gelu(x) => x * sigmoids(gelu_argument(x)).0, gelu_slope(x);
    Exp(x) => exp(x), exp(x);
    Relu(x) => above_zero(x), relu_slope(x);
    ReluSquared(x) => above_zero(x) * above_zero(x), 2.0 * above_zero(x);
}

/// `max(x, 0)`, and NaN of NaN.
#[inline(always)]
fn above_zero(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// 1 above 0, else 0, and NaN of NaN.
#[inline(always)]
fn relu_slope(x: f32) -> f32 {
    let step = if x > 0.0 { 1.0 } else { 0.0 };
    if x.is_nan() { x } else { step }
}

/// `2 √(2/π)`: `½ (1 + tanh u) = σ(2u)`.
const GELU: f32 = 1.595_769;
/// The constant of GELU's tanh approximation.
const CUBIC: f32 = 0.044_715;

/// What the sigmoid of GELU is taken of.
#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    GELU * x * (1.0 + CUBIC * x * x)
}

/// GELU's derivative by its tanh approximation.
#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let (up, down) = sigmoids(gelu_argument(x));
    // Where x² would overflow, `down` or `up` has long been 0.
    let near = x.clamp(-1e6, 1e6);
    up * (1.0 + near * down * GELU * (1.0 + 3.0 * CUBIC * near * near))
}
