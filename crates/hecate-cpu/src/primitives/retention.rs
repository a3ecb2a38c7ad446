//! The forgetting gate: `log a = −exp(a_log) softplus(x + dt_bias)`, with one `a_log` and `dt_bias` a head.
//!
//! It is the gate of Mamba and of the gated delta rule.
//! `log a` is at most 0 for every input, so the retention is a factor in [0, 1] without a clamp.

use super::{
    exp::{sigmoids, softplus},
    fill, fill_pair,
    reduce::over_rows,
};
use crate::{
    Cpu,
    device::{floats, pooled_tensor, tensor},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Retention, RetentionBackward, RetentionInputs},
};

impl Retention for Cpu {
    /// `log a [B,T,H]`, at most 0, in 32 bits whatever the type of `x`.
    /// `-a_log.exp() * softplus(x + dt_bias)`, with `a_log` and `dt_bias` `[H]`.
    fn retention(&self, _: Checked<Self>, inputs: &RetentionInputs<&Tensor<Self>>) -> Result<Tensor<Self>> {
        let RetentionInputs { x, a_log, dt_bias } = *inputs;
        let (values, factors, dt_bias, width) = (floats(x)?, factors(a_log)?, floats(dt_bias)?, x.shape().last());
        // One `−exp(a_log)` a head, not one an element.
        let mut y = self.take("retention", values.len())?;
        fill(
            self,
            width,
            &mut y,
            #[inline(always)]
            |first, y| {
                for (y, x) in y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width)) {
                    // A row is one token's heads.
                    for (((y, x), factor), dt_bias) in y.iter_mut().zip(x).zip(&factors).zip(&*dt_bias) {
                        *y = factor * softplus(x + dt_bias);
                    }
                }
            },
        );
        pooled_tensor(self, x.shape().clone(), DType::F32, y)
    }

    /// Gradients of `x [B,T,H]`, `a_log [H]` and `dt_bias [H]`.
    /// `dy [B,T,H]` has 32 bits, like the forward's result.
    fn retention_backward(
        &self,
        _: Checked<Self>,
        call: &RetentionBackward<'_, Self>,
    ) -> Result<RetentionInputs<Tensor<Self>>> {
        let RetentionInputs { x, a_log, dt_bias } = call.inputs;
        let (values, slopes) = (floats(x)?, floats(call.dy)?);
        let (factors, dt_bias, width) = (factors(a_log)?, floats(dt_bias)?, x.shape().last());
        // The gradient of `x`, and `dy log a` for that of `a_log`.
        // The second is 0 where `dy` is, though `log a` may be −∞; unless `exp(a_log)` is infinite itself.
        let (mut dx, mut scaled) = (self.take("retention", values.len())?, self.take("retention", values.len())?);
        fill_pair(
            self,
            width,
            (width, &mut dx),
            (width, &mut scaled),
            #[inline(always)]
            |first, dx, scaled| {
                let inputs = values[first * width..].iter().zip(&slopes[first * width..]);
                // Rows are whole numbers of heads, so the heads' constants repeat along the block.
                let heads = factors.iter().zip(&*dt_bias).cycle();
                for (((dx, scaled), (x, dy)), (factor, dt_bias)) in dx.iter_mut().zip(scaled).zip(inputs).zip(heads) {
                    // The slope of softplus is the sigmoid.
                    *dx = factor * (sigmoids(x + dt_bias).0 * dy);
                    *scaled = factor * (softplus(x + dt_bias) * dy);
                }
            },
        );
        // Sums over all tokens: `dy log a` for `a_log`, and the gradient of `x` for `dt_bias`.
        let [da_log, ddt_bias] = [&*scaled, &*dx].map(|terms| {
            over_rows(
                self,
                terms.len() / width,
                width,
                #[inline(always)]
                |rows, sums| {
                    for row in terms[rows.start * width..rows.end * width].chunks_exact(width) {
                        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    }
                },
            )
        });
        let head = |values| tensor(self, [width], DType::F32, values);
        let x = pooled_tensor(self, x.shape().clone(), x.dtype(), dx)?;
        Ok(RetentionInputs { x, a_log: head(da_log)?, dt_bias: head(ddt_bias)? })
    }
}

/// `−exp(a_log)`, `[H]`.
fn factors(a_log: &Tensor<Cpu>) -> Result<Vec<f32>> {
    Ok(floats(a_log)?.iter().map(|a_log| -a_log.exp()).collect())
}
