//! Products of matrices: through cuBLAS where it is found, else by a kernel of our own.

use crate::{
    Cuda,
    launch::{Array, Grid, Source, kernels, source},
};
use hecate_core::{
    Result, Tensor,
    primitives::{Matmul, MatmulDims},
};

pub(crate) const SOURCE: Source = source!("matmul", "matmul.cu");

kernels! { SOURCE {
    "matmul" Product {
        a: Array, rows: u64, a_stride: u64, a_inner: u64, b: Array, columns: u64, b_stride: u64, b_inner: u64,
        out: Array, batch: u64, inner: u64, tiles: u64
    }
} }

/// Rows and columns of a block.
const TILE: usize = 64;

/// The largest size that cuBLAS takes.
const MOST: usize = i32::MAX as usize;

impl Matmul for Cuda {
    fn matmul(&self, dims: MatmulDims, a: &Tensor<Self>, b: &Tensor<Self>) -> Result<Tensor<Self>> {
        let MatmulDims { batch, rows, inner, columns, .. } = dims;
        let out = self.empty([batch, rows, columns], a.dtype())?;
        match self.blas() {
            Some(blas) if [batch, rows, inner, columns].iter().all(|&n| n <= MOST) => blas.matmul(dims, a, b, &out)?,
            _ => product(self, dims, a, b, &out)?,
        }
        Ok(out)
    }
}

fn product(device: &Cuda, dims: MatmulDims, a: &Tensor<Cuda>, b: &Tensor<Cuda>, out: &Tensor<Cuda>) -> Result<()> {
    let MatmulDims { batch, rows, inner, columns, transpose } = dims;
    let (a_stride, a_inner) = if transpose.a { (1, rows) } else { (inner, 1) };
    let (b_stride, b_inner) = if transpose.b { (inner, 1) } else { (1, columns) };
    let (down, across) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    let arguments = Product {
        a: a.into(),
        rows: rows as u64,
        a_stride: a_stride as u64,
        a_inner: a_inner as u64,
        b: b.into(),
        columns: columns as u64,
        b_stride: b_stride as u64,
        b_inner: b_inner as u64,
        out: out.into(),
        batch: batch as u64,
        inner: inner as u64,
        tiles: across as u64,
    };
    let blocks = (down * across, batch.min(65_535), 1);
    device.launch(Grid { blocks, ..Grid::blocks(1, 256) }, &arguments)
}
