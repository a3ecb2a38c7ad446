//! Products of every head's rows with a matrix of that head, read and written where they lie.

use super::fill;
use crate::{
    Cpu,
    device::{floats, pooled_tensor},
    product::{Mat, MatMut, product},
};
use hecate_core::{Checked, Result, Tensor, primitives::HeadProducts};
use rayon::prelude::*;

impl HeadProducts for Cpu {
    /// A task has some rows, and all heads of them.
    /// `einsum("rhk,hkv->rhv", x, m)`, with `m` as `[H,V,K]` where it is `transposed`.
    fn head_products(
        &self,
        _: Checked<Self>,
        x: &Tensor<Self>,
        m: &Tensor<Self>,
        transposed: bool,
    ) -> Result<Tensor<Self>> {
        let [rows, heads, inner] = axes(x);
        // `m [H,K,V]`, or `[H,V,K]` where it is transposed.
        let [_, from, to] = axes(m);
        let columns = if transposed { from } else { to };
        let (dtype, x, m) = (x.dtype(), floats(x)?, floats(m)?);
        let mut out = self.take("head_products", rows * heads * columns)?;
        fill(self, heads * columns, &mut out, |first, out| {
            let count = out.len() / (heads * columns);
            for head in 0..heads {
                let x = Mat::with_stride(&x[(first * heads + head) * inner..], count, inner, heads * inner);
                let m = Mat::new(&m[head * from * to..], from, to);
                let out = MatMut::with_stride(&mut out[head * columns..], count, columns, heads * columns);
                product(out, 0.0, 1.0, x, if transposed { m.t() } else { m });
            }
        });
        pooled_tensor(self, [rows, heads, columns], dtype, out)
    }

    /// A task has a head: sums over rows are never cut.
    /// `einsum("rhk,rhv->hkv", x, dy)`, the gradient of `m`.
    fn head_products_backward(&self, _: Checked<Self>, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let ([rows, heads, key], [.., value]) = (axes(x), axes(dy));
        let (dtype, x, dy) = (x.dtype(), floats(x)?, floats(dy)?);
        let mut out = self.take("head_products", heads * key * value)?;
        let one = |(head, out): (usize, &mut [f32])| {
            let x = Mat::with_stride(&x[head * key..], rows, key, heads * key);
            let dy = Mat::with_stride(&dy[head * value..], rows, value, heads * value);
            product(MatMut::new(out, key, value), 0.0, 1.0, x.t(), dy);
        };
        self.run(|| out.par_chunks_mut(key * value).enumerate().for_each(one));
        pooled_tensor(self, [heads, key, value], dtype, out)
    }
}

/// The three axes of an array that core has checked.
fn axes(x: &Tensor<Cpu>) -> [usize; 3] {
    [0, 1, 2].map(|axis| x.shape().axes()[axis])
}
