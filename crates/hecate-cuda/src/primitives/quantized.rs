//! Products with quantized matrices: few rows meet weights as they are decoded in registers, tens of them tile by tile, many meet
//! them decoded.

use super::quantized_tiles;
use crate::{
    Cuda,
    arguments::{In, arguments},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Matmul, MatmulDims, MatmulInputs, QuantizedMatmul, Transpose},
    quantized::{BlockFormat, Quantized},
};

/// `x @ decode(w).T` of few rows, with `w [columns, inner]` in blocks of quantized values.
pub(crate) const SOURCE: KernelSource = kernel_source!("quantized", "quantized.cu");
/// The same for `q4_k`, whose blocks of 256 values hold scales and minima of 6 bits.
pub(crate) const Q4_K: KernelSource = kernel_source!("quantized_q4_k", "quantized_q4_k.cu");

arguments! {
    /// `QuantizedProduct` in the kernels.
    pub(super) struct QuantizedProduct {
        /// `[rows, inner]`, and `[rows, columns]`.
        x: Array,
        y: Array,
        /// `[columns, inner]` in blocks.
        weights: In<u8>,
        pub(super) columns: u64,
        inner: u64,
        pub(super) rows: u32,
        format: u32,
    }
}

kernels! { SOURCE {
    "quantized_few_rows" FewRows { product: QuantizedProduct }
    "dequantize" Dequantize { weights: In<u8>, out: Array, parts: u64, format: u32 }
} }

kernels! { Q4_K {
    "q4_k_one_row" OneRow { x: Array, y: Array, weights: In<u8>, columns: u64, inner: u64, rows: u32 }
    "q4_k_four_rows" FourRows { x: Array, y: Array, weights: In<u8>, columns: u64, inner: u64, rows: u32 }
} }

/// Most rows of `x` for which a warp decodes a row of weights in registers: of more, tiles decode each less often.
fn few(format: BlockFormat, dtype: DType) -> usize {
    if (format, dtype) == (BlockFormat::Q4K, DType::F32) { 12 } else { TOGETHER }
}

/// Rows of `x` of a block of threads; `TOGETHER` in the kernels.
const TOGETHER: usize = 4;

/// Rows of weights of a block of threads, where the format is `q4_k`.
const COLUMNS: usize = 16;

/// Values that a thread decodes.
// `PART` in the kernels.
const PART: usize = 16;

impl QuantizedMatmul for Cuda {
    /// `y = x Wᵀ`, `x [n,K]`, `W [N,K]`, with `x` as it is and sums in 32 bits.
    fn quantized_matmul(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        weight: &Quantized<Self>,
    ) -> Result<Tensor<Self>> {
        let (n, inner, columns) = (x.shape().rows(), weight.columns(), weight.rows());
        // The naive products are what tiles are compared with.
        let few = n <= few(weight.format(), x.dtype());
        let by_tiles = !self.has_naive_products() && quantized_tiles::exist(self, n);
        if !few && !by_tiles {
            let b = &self.dequantized(weight, x.dtype())?;
            // All values at once, for the time of the call.
            let transpose = Transpose { a: false, b: true };
            let dims = MatmulDims { batch: 1, rows: n, inner, columns, transpose };
            return self.matmul(checked, dims, MatmulInputs { a: x, b, onto: None });
        }
        // In the type of `x`, rounded once.
        let y = self.empty([n, columns], x.dtype())?;
        // Blocks are read in place.
        let (weights, rows, format) = (pointer(weight.words()), n as u32, weight.format().index() as u32);
        let (dtype, x, out, columns, inner) = (x.dtype(), x.into(), (&y).into(), columns as u64, inner as u64);
        let product = QuantizedProduct { x, y: out, weights, columns, inner, rows, format };
        if !few {
            quantized_tiles::launch(self, dtype, product)?;
            return Ok(y);
        }
        let shared = |grid: Grid| Grid { blocks: (grid.blocks.0, n.div_ceil(TOGETHER), 1), ..grid };
        match weight.format() {
            BlockFormat::Q4K => {
                // They ask for weights while the kernel before them ends.
                let grid = shared(Grid::blocks(weight.rows().div_ceil(COLUMNS), 256));
                // What a generated token takes has a kernel of its own.
                if n == 1 {
                    self.launch_early(grid, 1, &OneRow { x, y: out, weights, columns, inner, rows })?;
                } else {
                    self.launch_early(grid, 1, &FourRows { x, y: out, weights, columns, inner, rows })?;
                }
            }
            // Kernels for any format, told which.
            _ => {
                // A warp a row of weights.
                self.launch(shared(Grid::elements(weight.rows().saturating_mul(32))), &FewRows { product })?;
            }
        }
        Ok(y)
    }
}

impl Cuda {
    /// The values `[N,K]` of a quantized matrix, rounded to `dtype`.
    fn dequantized(&self, weight: &Quantized<Self>, dtype: DType) -> Result<Tensor<Self>> {
        let out = self.empty([weight.rows(), weight.columns()], dtype)?;
        // Rows are whole blocks, so parts are counted through all of them.
        let (weights, parts) = (pointer(weight.words()), weight.rows() * weight.columns() / PART);
        let arguments =
            Dequantize { weights, out: (&out).into(), parts: parts as u64, format: weight.format().index() as u32 };
        self.launch(Grid::elements(parts), &arguments)?;
        Ok(out)
    }
}
