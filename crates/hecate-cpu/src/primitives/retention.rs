//! The forgetting gate.

use super::{
    exp::{sigmoids, softplus},
    fill, fill_pair,
    reduce::over_rows,
};
use crate::{
    Cpu,
    device::{floats, lent, tensor},
};
use hecate_core::{DType, Result, Tensor, primitives::Retention};

impl Retention for Cpu {
    fn retention(&self, x: &Tensor<Self>, slope: &Tensor<Self>, offset: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (values, factors, offset, width) = (floats(x), factors(slope), floats(offset), x.shape().last());
        let mut y = self.take(values.len());
        fill(
            self,
            width,
            &mut y,
            #[inline(always)]
            |first, y| {
                for (y, x) in y.chunks_exact_mut(width).zip(values[first * width..].chunks_exact(width)) {
                    for (((y, x), factor), offset) in y.iter_mut().zip(x).zip(&factors).zip(&*offset) {
                        *y = factor * softplus(x + offset);
                    }
                }
            },
        );
        Ok(lent(self, x.shape().clone(), DType::F32, y))
    }

    fn retention_backward(
        &self,
        x: &Tensor<Self>,
        slope: &Tensor<Self>,
        offset: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (values, slopes) = (floats(x), floats(dy));
        let (factors, offset, width) = (factors(slope), floats(offset), x.shape().last());
        // The gradient of `x`, and `dy log a`, which is zero where `dy` is, though `log a` may be −∞; unless `exp(slope)` is
        // infinite itself.
        let (mut dx, mut scaled) = (self.take(values.len()), self.take(values.len()));
        fill_pair(
            self,
            width,
            (width, &mut dx),
            (width, &mut scaled),
            #[inline(always)]
            |first, dx, scaled| {
                let inputs = values[first * width..].iter().zip(&slopes[first * width..]);
                let heads = factors.iter().zip(&*offset).cycle();
                for (((dx, scaled), (x, dy)), (factor, offset)) in dx.iter_mut().zip(scaled).zip(inputs).zip(heads) {
                    *dx = factor * (sigmoids(x + offset).0 * dy);
                    *scaled = factor * (softplus(x + offset) * dy);
                }
            },
        );
        let [dslope, doffset] = [&*scaled, &*dx].map(|terms| {
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
        Ok((lent(self, x.shape().clone(), x.dtype(), dx), head(dslope), head(doffset)))
    }
}

/// `−exp(slope)`.
fn factors(slope: &Tensor<Cpu>) -> Vec<f32> {
    floats(slope).iter().map(|slope| -slope.exp()).collect()
}
