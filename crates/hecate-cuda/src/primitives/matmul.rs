//! Products of matrices: through cuBLAS where it is found, else by kernels of our own.

use crate::{
    Cuda,
    launch::{Array, Grid, Source, kernels, source},
};
use hecate_core::{
    Result, Tensor,
    primitives::{Matmul, MatmulDims, add},
};

pub(crate) const SOURCE: Source = source!("matmul", "matmul.cu");

/// The largest size that cuBLAS takes.
const MOST: usize = i32::MAX as usize;

/// Rows that a kernel of their own takes: those of tokens that are generated.
const FEW: usize = 8;

/// Rows, and products of numbers, that cuBLAS is not opened for: it takes 0.2 s, and a short prompt needs nothing larger.
const SHORT: (usize, usize) = (64, 1 << 22);

/// Blocks that fill a large GPU.
const BLOCKS: usize = 128;

impl Matmul for Cuda {
    fn matmul(
        &self,
        dims: MatmulDims,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        onto: Option<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        let MatmulDims { batch, rows, inner, columns, transpose } = dims;
        let shape = [batch, rows, columns];
        let of_weights = transpose.b && !transpose.a;
        let few = of_weights && rows <= FEW;
        let count = batch.saturating_mul(rows).saturating_mul(inner).saturating_mul(columns);
        let short = of_weights && rows <= SHORT.0 && count <= SHORT.1;
        let fits = [batch, rows, inner, columns].iter().all(|&n| n <= MOST);
        let blas = if few || short || !fits { None } else { self.blas() };
        if let Some(blas) = blas {
            return match onto.map(Tensor::into_buffer) {
                Some(Ok(buffer)) => {
                    let out = Tensor::from_buffer(self, shape, a.dtype(), buffer);
                    blas.matmul(dims, a, b, &out, true).map(|()| out)
                }
                onto => {
                    let out = self.empty(shape, a.dtype())?;
                    blas.matmul(dims, a, b, &out, false)?;
                    sum(out, onto.and_then(|shared| shared.err()))
                }
            };
        }
        let out = self.empty(shape, a.dtype())?;
        if few {
            FewRows::launch(self, dims, a, b, &out)?;
        } else if rows.min(columns) >= 128 && batch * (rows / 128) * (columns / 128) >= BLOCKS {
            Large::launch(self, dims, a, b, &out)?;
        } else {
            Small::launch(self, dims, a, b, &out)?;
        }
        sum(out, onto)
    }
}

fn sum(out: Tensor<Cuda>, onto: Option<Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
    match onto {
        Some(onto) => add(&out, &onto.reshape(out.shape().clone())?),
        None => Ok(out),
    }
}

/// A kernel for each size of tiles: fewer bytes are read for large ones, but more of them must be there to fill a GPU.
macro_rules! products {
    ($($kernel:literal $name:ident $tile:literal)*) => {
        kernels! { SOURCE { $(
            $kernel $name {
                a: Array, rows: u64, a_stride: u64, a_inner: u64, b: Array, columns: u64, b_stride: u64, b_inner: u64,
                out: Array, batch: u64, inner: u64, tiles: u64
            }
        )* } }
        $(impl $name {
            fn launch(
                device: &Cuda,
                dims: MatmulDims,
                a: &Tensor<Cuda>,
                b: &Tensor<Cuda>,
                out: &Tensor<Cuda>,
            ) -> Result<()> {
                let MatmulDims { batch, rows, inner, columns, transpose } = dims;
                let (a_stride, a_inner) = if transpose.a { (1, rows) } else { (inner, 1) };
                let (b_stride, b_inner) = if transpose.b { (inner, 1) } else { (1, columns) };
                let (down, across) = (rows.div_ceil($tile), columns.div_ceil($tile));
                let arguments = Self {
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
        })*
    };
}
products! { "matmul_64" Small 64 "matmul_128" Large 128 }

kernels! { SOURCE {
    "matmul_few_rows" FewRows { a: Array, b: Array, out: Array, batch: u64, rows: u64, columns: u64, inner: u64 }
} }

impl FewRows {
    /// `out[i] = a[i] b[i]ᵀ`.
    fn launch(device: &Cuda, dims: MatmulDims, a: &Tensor<Cuda>, b: &Tensor<Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let MatmulDims { batch, rows, inner, columns, .. } = dims;
        let [batch, rows, inner, columns] = [batch, rows, inner, columns].map(|size| size as u64);
        let arguments = Self { a: a.into(), b: b.into(), out: out.into(), batch, rows, columns, inner };
        // A warp a column.
        device.launch(Grid::elements(dims.columns.saturating_mul(32)), &arguments)
    }
}
