//! Norms of rows: root mean square, with and without a gate after it, and length.
//!
//! All are `y = x r` with one factor `r = 1/√(measure of |x|²)` a row, times a weight or a gate where there is one.
//! The forward keeps `r`, so the backward needs one dot product a row.
//! `r` is computed in 64 bits, elements in 32.
//!
//! | norm | measure | weight | gate |
//! |---|---|---|---|
//! | `rms_norm` | mean of squares plus `ε` | yes | no |
//! | `rms_norm` with a gate | mean of squares plus `ε` | yes | `act(g)` |
//! | `l2_norm` | sum of squares plus `ε²` | no | no |
//!
//! A group of a row is a row of its own here, with its own part of the weight.

use super::{
    elementwise::{Curve, Sigmoid, Silu},
    fill, fill_pair,
    reduce::over_rows,
};
use crate::{
    Cpu,
    buffer_pool::PooledBuf,
    device::{floats, pooled_tensor, tensor},
    rows::dot,
};
use hecate_core::{
    Checked, DType, Result, Tensor, memory,
    primitives::{GateFunction, Norm, Normed, RmsNormBackward, RmsNormInputs, RmsNormOptions},
};
use std::borrow::Cow;

impl Norm for Cpu {
    /// `y = x r w act(g)` with `r = 1/√(mean x² + ε)`, and `r` of each group.
    /// `x [.., D]`, `w [D]`, `g` like `x`, and groups that divide `D`: core has checked them.
    fn rms_norm(
        &self,
        _: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<Normed<Tensor<Self>>> {
        let RmsNormInputs { x, weight, g } = *inputs;
        let rows = Rows::of(x, weight, options)?;
        let (mean, epsilon) = (1.0 / rows.width as f64, f64::from(options.epsilon));
        normalise(
            self,
            x,
            &rows,
            g.map(floats).transpose()?.as_deref().map(|g| (options.function, g)),
            #[inline(always)]
            |square| square * mean + epsilon,
        )
    }

    /// Gradients of `x`, `w` and `g`: first the gate's, then those of the norm under it.
    /// `inverse` is the forward's `r`, one a group of a row; `dy` is like `x`.
    fn rms_norm_backward(
        &self,
        _: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        backward(self, call, None)
    }

    /// The same, and the gradient that the sum has besides, in one pass.
    /// A residual stream goes on beside its norm: `dsum`, like `x`, is what comes back along it.
    fn add_rms_norm_backward(
        &self,
        _: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        backward(self, call, Some(&*floats(dsum)?))
    }

    /// `y = x r` with `r = 1/√(Σ x² + ε²)`, and `r` of each row.
    /// `x [.., D]`; `y` is like it, and `r [rows]` has 32 bits.
    fn l2_norm(&self, _: Checked<Self>, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>> {
        // The length's `ε` is a length: it is squared under the root.
        let epsilon = f64::from(epsilon) * f64::from(epsilon);
        normalise(
            self,
            x,
            &Rows::unweighted(x),
            None,
            #[inline(always)]
            |square| square + epsilon,
        )
    }

    /// `dx = r (dy − x r² (x·dy))`.
    /// `dy` is like `x`, `inverse [rows]` is the forward's `r`.
    fn l2_norm_backward(
        &self,
        _: Checked<Self>,
        x: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        normalise_backward(self, x, &Rows::unweighted(x), inverse, [&floats(dy)?, &[]], 1.0)
    }
}

/// Gradients of `x`, `w` and `g`; `dsum`, where there is one, is added to that of `x`.
fn backward(device: &Cpu, call: &RmsNormBackward<'_, Cpu>, dsum: Option<&[f32]>) -> Result<RmsNormInputs<Tensor<Cpu>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
    let (rows, dy) = (Rows::of(x, weight, options)?, floats(dy)?);
    // What a gate lets through is the gradient of the norm's output.
    let gate = g.map(|g| match options.function {
        GateFunction::Silu => gate_backward::<Silu>(device, x, &rows, g, inverse, &dy),
        GateFunction::Sigmoid => gate_backward::<Sigmoid>(device, x, &rows, g, inverse, &dy),
    });
    let gate = gate.transpose()?;
    let slopes = gate.as_ref().map_or(&*dy, |gate| &gate.through);
    // A mean's share of the square is one over the width.
    let dx = normalise_backward(device, x, &rows, inverse, [slopes, dsum.unwrap_or(&[])], 1.0 / rows.width as f32)?;
    let dweight = weight_grad(device, x, weight, rows.width, inverse, slopes)?;
    Ok(RmsNormInputs { x: dx, weight: dweight, g: gate.map(|gate| gate.dg) })
}

/// How an array is cut into rows that are normalised, and what they are times.
struct Rows<'a> {
    /// Elements of a row: of a group, where there are several.
    width: usize,
    /// `[groups · width]`, or nothing.
    weight: Option<Cow<'a, [f32]>>,
}

impl<'a> Rows<'a> {
    /// Groups of the rows of `x`, each with its part of the weight.
    fn of(x: &Tensor<Cpu>, weight: &'a Tensor<Cpu>, options: RmsNormOptions) -> Result<Self> {
        let mut weight = floats(weight)?;
        if options.one_plus {
            weight = Cow::Owned(memory::collect("norm", weight.iter().map(|w| 1.0 + w))?);
        }
        Ok(Self { width: x.shape().last() / options.groups, weight: Some(weight) })
    }

    /// Whole rows as they are.
    fn unweighted(x: &Tensor<Cpu>) -> Self {
        Self { width: x.shape().last(), weight: None }
    }

    /// Weights of one row, by its number.
    #[inline(always)]
    fn weight(&self, row: usize) -> Option<&[f32]> {
        let weight = self.weight.as_deref()?;
        let first = row * self.width % weight.len();
        Some(&weight[first..first + self.width])
    }
}

/// `y = x r w act(g)` and `r = 1 / √measure(|x|²)` of each row `[width]`; `w`, and the gate, are 1 where absent.
/// `y` has the type of `x`; `r` has 32 bits, whatever type that is.
fn normalise(
    device: &Cpu,
    x: &Tensor<Cpu>,
    rows: &Rows<'_>,
    gate: Option<(GateFunction, &[f32])>,
    measure: impl Fn(f64) -> f64 + Sync,
) -> Result<Normed<Tensor<Cpu>>> {
    let (values, width) = (floats(x)?, rows.width);
    let count = values.len() / width;
    // One factor a row goes out beside the rows.
    let (mut y, mut inverse) = (device.take("norm", values.len())?, memory::zeros("norm", count)?);
    fill_pair(
        device,
        width,
        (width, &mut y),
        (1, &mut inverse),
        #[inline(always)]
        |first, y, inverse| {
            // A row is read twice, the second time from the near cache.
            let pairs = y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width));
            for ((row, (y, x)), inverse) in (first..).zip(pairs).zip(inverse) {
                // The square is a 32-bit sum; its root and quotient are 64-bit, so that `r` rounds once.
                let r = (1.0 / measure(f64::from(dot(x, x))).sqrt()) as f32;
                *inverse = r;
                set_product(y, r, x, rows.weight(row));
            }
            // The gate's curve goes over the whole block at once: its elements do not depend on the rows.
            match gate {
                None => {}
                Some((GateFunction::Silu, g)) => let_through::<Silu>(y, &g[first * width..]),
                Some((GateFunction::Sigmoid, g)) => let_through::<Sigmoid>(y, &g[first * width..]),
            }
        },
    );
    let y = pooled_tensor(device, x.shape().clone(), x.dtype(), y)?;
    Ok(Normed { y, inverse: tensor(device, [count], DType::F32, inverse)? })
}

/// `y` times the gate's curve, element by element.
#[inline(always)]
fn let_through<C: Curve>(y: &mut [f32], gate: &[f32]) {
    y.iter_mut().zip(gate).for_each(|(y, &g)| *y *= C::value(g));
}

/// `dx = r g − x r³ (x·g) share`, `g = w dy`: `share` is 1 over the width for a mean, 1 for a sum. Of `slopes` the first is
/// `dy`, the second is added to `dx` and may be empty.
fn normalise_backward(
    device: &Cpu,
    x: &Tensor<Cpu>,
    rows: &Rows<'_>,
    inverse: &Tensor<Cpu>,
    slopes: [&[f32]; 2],
    share: f32,
) -> Result<Tensor<Cpu>> {
    let (values, inverse, width, [dy, more]) = (floats(x)?, floats(inverse)?, rows.width, slopes);
    // Every row is written, so the buffer may hold anything before.
    let mut dx = device.take("norm", values.len())?;
    fill(
        device,
        width,
        &mut dx,
        #[inline(always)]
        |first, dx| {
            let (values, slopes, more) = (&values[first * width..], &dy[first * width..], more.get(first * width..));
            let given = values.chunks_exact(width).zip(slopes.chunks_exact(width)).zip(&inverse[first..]);
            for ((row, dx), ((x, dy), &r)) in (first..).zip(dx.chunks_exact_mut(width)).zip(given) {
                // `dx` holds `r g` first, whose dot product with `x` is the part along the row.
                set_product(dx, r, dy, rows.weight(row));
                // That part is taken off: a longer row has the same norm.
                let along = (r * dot(x, dx)) * r * share;
                for (dx, x) in dx.iter_mut().zip(x) {
                    *dx -= along * x;
                }
            }
            // The block is still in the near cache.
            dx.iter_mut().zip(more.unwrap_or_default()).for_each(|(dx, more)| *dx += more);
        },
    );
    pooled_tensor(device, x.shape().clone(), x.dtype(), dx)
}

/// `Σ x r dy` over rows, like the weight; `r` is that of a group of `group` columns.
fn weight_grad(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    group: usize,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> Result<Tensor<Cpu>> {
    // Elements and factors of the forward.
    let (x, inverse, width) = (floats(x)?, floats(inverse)?, weight.shape().count());
    // The weight is shared by all rows: its gradient is a sum over them.
    let dw = over_rows(
        device,
        x.len() / width,
        width,
        #[inline(always)]
        |rows, sums| {
            // One term a row: 32-bit sums of a few rows, which `over_rows` adds in 64 bits.
            for row in rows {
                for (first, sums) in (row * width..).step_by(group).zip(sums.chunks_exact_mut(group)) {
                    let (r, at) = (inverse[first / group], first..first + group);
                    for ((sum, x), dy) in sums.iter_mut().zip(&x[at.clone()]).zip(&slopes[at]) {
                        *sum += x * r * dy;
                    }
                }
            }
        },
    );
    tensor(device, [width], weight.dtype(), dw)
}

/// What a gate's backward gives, `[rows, width]` each.
struct GateGrads {
    /// `act(g) dy`: the gradient of what the gate lets through.
    through: PooledBuf,
    /// `act'(g) x r w dy`.
    dg: Tensor<Cpu>,
}

/// Both gradients in one pass.
/// `x`, `g` and `slopes` are `[rows, width]`, `inverse` is `[rows]`.
fn gate_backward<C: Curve>(
    device: &Cpu,
    x: &Tensor<Cpu>,
    rows: &Rows<'_>,
    g: &Tensor<Cpu>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> Result<GateGrads> {
    let (values, gates, inverse, width) = (floats(x)?, floats(g)?, floats(inverse)?, rows.width);
    // `through` is the norm's `dy`; it lives until `dx` and `dw` are made.
    let (mut through, mut dg) = (device.take("norm", slopes.len())?, device.take("norm", slopes.len())?);
    fill_pair(
        device,
        width,
        (width, &mut through),
        (width, &mut dg),
        #[inline(always)]
        |first, through, dg| {
            // Both results have the rows of the input.
            let results = through.chunks_exact_mut(width).zip(dg.chunks_exact_mut(width)).zip(&inverse[first..]);
            for (row, ((through, dg), &r)) in (first..).zip(results) {
                let at = row * width..(row + 1) * width;
                // What the gate lets through, `x r w`, is computed again rather than kept.
                set_product(dg, r, &values[at.clone()], rows.weight(row));
                let given = gates[at.clone()].iter().zip(&slopes[at]);
                for ((through, dg), (&g, dy)) in through.iter_mut().zip(dg).zip(given) {
                    *through = C::value(g) * dy;
                    // `dg` held `x r w`.
                    *dg *= C::slope(g) * dy;
                }
            }
        },
    );
    Ok(GateGrads { through, dg: pooled_tensor(device, g.shape().clone(), g.dtype(), dg)? })
}

/// `out = factor x w`, one row.
#[inline(always)]
fn set_product(out: &mut [f32], factor: f32, x: &[f32], weight: Option<&[f32]>) {
    // Without a weight one product less: the length norm has none.
    match weight {
        None => out.iter_mut().zip(x).for_each(|(out, x)| *out = factor * x),
        Some(weight) => out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = factor * x * w),
    }
}
