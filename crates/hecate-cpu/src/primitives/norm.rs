//! Norms of rows: root mean square, with and without a gate after it, and length.
//!
//! All are `y = x r` with one factor `r = 1/√(measure of |x|²)` a row, times a weight or a gate where there is one.
//! The forward keeps `r`, so the backward needs one dot product a row.
//! `r` is computed in 64 bits, elements in 32.
//!
//! | norm | measure | weight | gate |
//! |---|---|---|---|
//! | `rms_norm` | mean of squares plus `ε` | yes | no |
//! | `rms_norm` with a gate | mean of squares plus `ε` | yes | `silu(g)` |
//! | `l2_norm` | sum of squares plus `ε²` | no | no |

use super::{
    elementwise::{Curve as _, Silu},
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
    DType, Result, Tensor, memory,
    primitives::{Norm, Normed, RmsNormBackward, RmsNormInputs},
};

impl Norm for Cpu {
    /// `y = x r w silu(g)` with `r = 1/√(mean x² + ε)`, and `r` of each row.
    fn rms_norm(&self, epsilon: f32, inputs: &RmsNormInputs<&Tensor<Self>>) -> Result<Normed<Tensor<Self>>> {
        let RmsNormInputs { x, weight, g } = *inputs;
        let (mean, epsilon) = (1.0 / x.shape().last() as f64, f64::from(epsilon));
        normalise(
            self,
            x,
            Some(&floats(weight)?),
            g.map(floats).transpose()?.as_deref(),
            #[inline(always)]
            |square| square * mean + epsilon,
        )
    }

    /// Gradients of `x`, `w` and `g`: first the gate's, then those of the norm under it.
    fn rms_norm_backward(&self, call: &RmsNormBackward<'_, Self>) -> Result<RmsNormInputs<Tensor<Self>>> {
        let RmsNormBackward { inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
        let dy = floats(dy)?;
        // What a gate lets through is the gradient of the norm's output.
        let gate = g.map(|g| gate_backward(self, x, weight, g, inverse, &dy)).transpose()?;
        let slopes = gate.as_ref().map_or(&*dy, |gate| &gate.through);
        // A mean's share of the square is one over the width.
        let share = 1.0 / x.shape().last() as f32;
        let dx = normalise_backward(self, x, Some(&floats(weight)?), inverse, slopes, share)?;
        let dweight = weight_grad(self, x, weight, inverse, slopes)?;
        Ok(RmsNormInputs { x: dx, weight: dweight, g: gate.map(|gate| gate.dg) })
    }

    /// `y = x r` with `r = 1/√(Σ x² + ε²)`, and `r` of each row.
    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>> {
        // The length's `ε` is a length: it is squared under the root.
        let epsilon = f64::from(epsilon) * f64::from(epsilon);
        normalise(
            self,
            x,
            None,
            None,
            #[inline(always)]
            |square| square + epsilon,
        )
    }

    /// `dx = r (dy − x r² (x·dy))`.
    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, &floats(dy)?, 1.0)
    }
}

/// `y = x r w silu(g)` and `r = 1 / √measure(|x|²)` of each row `[width]`; `w`, and SiLU, are 1 where absent.
fn normalise(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: Option<&[f32]>,
    gate: Option<&[f32]>,
    measure: impl Fn(f64) -> f64 + Sync,
) -> Result<Normed<Tensor<Cpu>>> {
    let (values, width, rows) = (floats(x)?, x.shape().last(), x.shape().rows());
    // One factor a row goes out beside the rows.
    let (mut y, mut inverse) = (device.take("norm", values.len())?, memory::zeros("norm", rows)?);
    fill_pair(
        device,
        width,
        (width, &mut y),
        (1, &mut inverse),
        #[inline(always)]
        |first, y, inverse| {
            // A row is read twice, the second time from the near cache.
            let rows = y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width));
            for ((y, x), inverse) in rows.zip(inverse) {
                // The square is a 32-bit sum; its root and quotient are 64-bit, so that `r` rounds once.
                let r = (1.0 / measure(f64::from(dot(x, x))).sqrt()) as f32;
                *inverse = r;
                set_product(y, r, x, weight);
            }
            // The gate's curve goes over the whole block at once: its elements do not depend on the rows.
            if let Some(gate) = gate {
                y.iter_mut().zip(&gate[first * width..]).for_each(|(y, &g)| *y *= Silu::value(g));
            }
        },
    );
    let y = pooled_tensor(device, x.shape().clone(), x.dtype(), y)?;
    Ok(Normed { y, inverse: tensor(device, [rows], DType::F32, inverse)? })
}

/// `dx = r g − x r³ (x·g) share`, `g = w dy`: `share` is 1 over the width for a mean, 1 for a sum.
fn normalise_backward(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: Option<&[f32]>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
    share: f32,
) -> Result<Tensor<Cpu>> {
    let (values, inverse, width) = (floats(x)?, floats(inverse)?, x.shape().last());
    // Every row is written, so the buffer may hold anything before.
    let mut dx = device.take("norm", values.len())?;
    fill(
        device,
        width,
        &mut dx,
        #[inline(always)]
        |first, dx| {
            let (values, slopes) = (&values[first * width..], &slopes[first * width..]);
            let rows = values.chunks_exact(width).zip(slopes.chunks_exact(width)).zip(&inverse[first..]);
            for (dx, ((x, dy), &r)) in dx.chunks_exact_mut(width).zip(rows) {
                // `dx` holds `r g` first, whose dot product with `x` is the part along the row.
                set_product(dx, r, dy, weight);
                // That part is taken off: a longer row has the same norm.
                let along = (r * dot(x, dx)) * r * share;
                for (dx, x) in dx.iter_mut().zip(x) {
                    *dx -= along * x;
                }
            }
        },
    );
    pooled_tensor(device, x.shape().clone(), x.dtype(), dx)
}

/// `Σ x r dy` over rows, `[width]`.
fn weight_grad(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> Result<Tensor<Cpu>> {
    // Elements and factors of the forward.
    let (x, inverse, width) = (floats(x)?, floats(inverse)?, weight.shape().count());
    // The weight is shared by all rows: its gradient is a sum over them.
    let dw = over_rows(
        device,
        inverse.len(),
        width,
        #[inline(always)]
        |rows, sums| {
            let range = rows.start * width..rows.end * width;
            let pairs = x[range.clone()].chunks_exact(width).zip(slopes[range].chunks_exact(width));
            // One term a row: 32-bit sums of a few rows, which `over_rows` adds in 64 bits.
            for ((x, dy), &r) in pairs.zip(&inverse[rows]) {
                for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                    *sum += x * r * dy;
                }
            }
        },
    );
    tensor(device, [width], weight.dtype(), dw)
}

/// What a gate's backward gives, `[rows, width]` each.
struct GateGrads {
    /// `silu(g) dy`: the gradient of what the gate lets through.
    through: PooledBuf,
    /// `silu'(g) x r w dy`.
    dg: Tensor<Cpu>,
}

/// Both gradients in one pass.
fn gate_backward(
    device: &Cpu,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    g: &Tensor<Cpu>,
    inverse: &Tensor<Cpu>,
    slopes: &[f32],
) -> Result<GateGrads> {
    let (values, weight, gates, inverse) = (floats(x)?, floats(weight)?, floats(g)?, floats(inverse)?);
    // Rows are as wide as the weight.
    let width = weight.len();
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
            let rows = through.chunks_exact_mut(width).zip(dg.chunks_exact_mut(width)).zip(&inverse[first..]);
            for (i, ((through, dg), &r)) in rows.enumerate() {
                let at = (first + i) * width..(first + i + 1) * width;
                // What the gate lets through, `x r w`, is computed again rather than kept.
                set_product(dg, r, &values[at.clone()], Some(&weight));
                let given = gates[at.clone()].iter().zip(&slopes[at]);
                for ((through, dg), (&g, dy)) in through.iter_mut().zip(dg).zip(given) {
                    *through = Silu::value(g) * dy;
                    // `dg` held `x r w`.
                    *dg *= Silu::slope(g) * dy;
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
