//! Products with quantized matrices. Weights are decoded where they are multiplied, and nowhere written down: for few rows in
//! registers, for many in the tiles of workgroup memory that products of matrices have.

use super::matmul::{MatmulArgs, MatmulTiling, SHAPES, TILES};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WORKGROUP, WgslSource},
    parameters::{Parameters, parameters},
    stored::{BITS, IEEE, STORE_F32},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{MatmulDims, QuantizedMatmul, Transpose},
    quantized::Quantized,
};

/// How blocks are decoded.
const TEXT: &str = include_str!("quantized.wgsl");
/// Decoded in registers, for as many rows as fit there.
const FEW_ROWS: WgslSource = WgslSource {
    name: "quantized_few_rows",
    parts: &[IEEE, BITS, PRELUDE, WORKGROUP[0], TEXT, FewRowsArgs::WGSL, include_str!("quantized_few_rows.wgsl")],
};
/// Decoded into workgroup memory, where all rows of a tile use them.
const MANY_ROWS: WgslSource = WgslSource {
    name: "quantized_tiles",
    parts: &[STORE_F32, IEEE, BITS, PRELUDE, TEXT, include_str!("quantized_tiles.wgsl"), MatmulArgs::WGSL, TILES],
};

/// Kernels are compiled for every format.
static FORMATS: [[(&str, u32); 1]; 4] = [[("FORMAT", 0)], [("FORMAT", 1)], [("FORMAT", 2)], [("FORMAT", 3)]];

/// Those of many rows for every shape of tiles too. Both operands have their terms one after another.
static SHAPED: [[(&str, u32); 5]; 12] = {
    let mut all = [[("A_DEEP", 1), ("B_DEEP", 1), ("FORMAT", 0), ("SIDE", 0), ("REACH", 0)]; 12];
    let mut i = 0;
    while i < all.len() {
        all[i][2].1 = i as u32 / 3;
        [all[i][3].1, all[i][4].1] = SHAPES[i % 3];
        i += 1;
    }
    all
};

/// The kernel of few rows, a workgroup a row of weights.
const fn few_rows(format: usize) -> Kernel<'static> {
    Kernel { source: &FEW_ROWS, entry: "few_rows", constants: &FORMATS[format] }
}

/// The kernel of many rows, a workgroup a tile of the result.
const fn many_rows(format: usize, shape: usize) -> Kernel<'static> {
    Kernel { source: &MANY_ROWS, entry: "matmul", constants: &SHAPED[3 * format + shape] }
}

/// Every kernel of both files: for each format one of few rows, then three shapes of tiles.
pub(crate) const KERNELS: &[Kernel<'static>] = &{
    let mut all = [few_rows(0); 16];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i % 4 == 3 { few_rows(i / 4) } else { many_rows(i / 4, i % 4) };
        i += 1;
    }
    all
};

/// Most rows of `x` of which an invocation keeps sums. Up to here both kernels decode a weight once, and the smallest
/// tile, of 32 rows, would be three quarters empty. For more rows this one would decode again.
const FEW: usize = 8;

parameters! {
    /// What products of few rows are told.
    struct FewRowsArgs {
        /// Rows of `x`.
        rows: u32,
        /// Rows of weights.
        columns: u32,
        /// `K`.
        inner: u32,
    }
}

impl QuantizedMatmul for Wgpu {
    /// `y = x Wᵀ`, `x [n,K]`, `W [N,K]`, with `x` as it is and sums in 32 bits.
    fn quantized_matmul(&self, _: Checked<Self>, x: &Tensor<Self>, weight: &Quantized<Self>) -> Result<Tensor<Self>> {
        let (n, inner, columns, dtype) = (x.shape().rows(), weight.columns(), weight.rows(), x.dtype());
        // Bytes and values are counted in 32 bits.
        if [columns * inner, n * inner, n * columns].iter().any(|&count| count > u32::MAX as usize / 2) {
            let why = format!("{n} rows of {inner} by {columns} rows of weights; use a smaller batch or vocabulary");
            return Err(unsupported("products of this size", why));
        }
        let x = self.widened(x)?;
        let format = weight.format().index();
        if n > FEW {
            let transpose = Transpose { a: false, b: true };
            let dims = MatmulDims { batch: 1, rows: n, inner, columns, transpose };
            let tiling = MatmulTiling::new(&dims);
            let kernel = many_rows(format, tiling.shape);
            let y = self.tiles(&kernel, (&tiling, &dims), [&x, weight.words()], DType::F32)?;
            return self.rounded(y.reshape([n, columns])?, dtype);
        }
        let y = self.empty([n, columns], DType::F32)?;
        let args = FewRowsArgs { rows: n as u32, columns: columns as u32, inner: inner as u32 };
        let arrays = [Binding::Read(&x), Binding::Read(weight.words()), Binding::Write(&y)];
        self.launch(&few_rows(format), (columns, 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }
}
