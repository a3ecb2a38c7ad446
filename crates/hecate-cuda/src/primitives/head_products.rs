//! Products of every head's rows with a matrix of that head.
#![allow(unsafe_code)]

use super::matmul::MOST;
use crate::{
    Cuda,
    blas::{Blas, Product, ProductStrides},
};
use hecate_core::{
    Checked, Result, Tensor,
    primitives::{HeadProducts, MatmulDims, Transpose},
};

/// Rows that are worth opening cuBLAS for.
/// It takes 0.2 s to open, which a short prompt would not earn back.
const ROWS: usize = 64;

// Core has checked that `x` is `[rows, heads, inner]` and `m` `[heads, from, to]`, of one float type.
impl HeadProducts for Cuda {
    /// One batched product, whose rows are read where they lie.
    /// `torch.einsum("rhi,hij->rhj", x, m)`, or `"rhj,hij->rhi"` where `m` is transposed: `[rows, heads, columns]`.
    fn head_products(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        m: &Tensor<Self>,
        transposed: bool,
    ) -> Result<Tensor<Self>> {
        let ([rows, heads, inner], [_, from, to]) = (axes(x), axes(m));
        let columns = if transposed { from } else { to };
        // Heads are the products of the batch. A row of one is followed by those of the others.
        let dims = MatmulDims { batch: heads, rows, inner, columns, transpose: Transpose { a: false, b: transposed } };
        let strides =
            ProductStrides { rows: [heads * inner, to, heads * columns], products: [inner, from * to, columns] };
        let Some(blas) = self.blas_for(rows, strides) else { return self.head_by_head(checked, x, m, transposed) };
        let out = self.empty([rows, heads, columns], x.dtype())?;
        multiply(blas, dims, strides, [x, m, &out]).map(|()| out)
    }

    /// Likewise, summed over the rows.
    /// `torch.einsum("rhi,rhj->hij", x, dy)`: the gradient of `m`, `[heads, key, value]` of the type of `x`.
    fn head_products_backward(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let ([rows, heads, key], [.., value]) = (axes(x), axes(dy));
        // `xᵀ dy` of each head: rows of tokens are what is summed over.
        let transpose = Transpose { a: true, b: false };
        let dims = MatmulDims { batch: heads, rows: key, inner: rows, columns: value, transpose };
        let strides = ProductStrides { rows: [heads * key, heads * value, value], products: [key, value, key * value] };
        let Some(blas) = self.blas_for(rows, strides) else { return self.head_by_head_backward(checked, x, dy) };
        let out = self.empty([heads, key, value], x.dtype())?;
        multiply(blas, dims, strides, [x, dy, &out]).map(|()| out)
    }
}

impl Cuda {
    /// cuBLAS where so many rows are worth it, and where it can count them.
    fn blas_for(&self, rows: usize, strides: ProductStrides) -> Option<&Blas> {
        let fits = rows <= MOST && strides.rows.iter().all(|&n| n <= MOST);
        if rows >= ROWS && fits { self.blas() } else { None }
    }
}

/// `out = a b`.
fn multiply(blas: &Blas, dims: MatmulDims, strides: ProductStrides, arrays: [&Tensor<Cuda>; 3]) -> Result<()> {
    let [a, b, out] = arrays.map(|x| x.buffer().pointer());
    let product = Product { dims, strides, dtypes: [arrays[0].dtype(), arrays[2].dtype()], a, b, out, add: false };
    // While another thread captures a step, nothing is queued.
    let _turn = arrays[2].device().ledger().turn();
    // SAFETY: core checked the shapes, of which sizes and strides are made; the tensors live until the stream is through.
    unsafe { blas.matmul(&product) }
}

/// The three axes of an array that core has checked.
fn axes(x: &Tensor<Cuda>) -> [usize; 3] {
    [0, 1, 2].map(|axis| x.shape().axes()[axis])
}
