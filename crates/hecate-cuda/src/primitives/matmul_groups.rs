//! Products of 16-bit matrices by groups of four warps (`wgmma`), on GPUs of exactly capability 9.0.

use super::matmul;
use crate::{
    Cuda,
    arguments::arguments,
    bulk::BulkMap,
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Tensor, primitives::MatmulDims};

/// `a @ b.T` of bfloat16 or float16, `a [rows, inner]` and `b [columns, inner]`.
pub(crate) const SOURCE: KernelSource = kernel_source!("matmul_groups", "matmul_groups.cu");

arguments! {
    /// What the kernels take; `GroupProduct` there.
    struct Factors {
        /// `a [rows, inner]`, `b [columns, inner]`, in boxes of a tile's rows.
        rows_of_a: BulkMap,
        rows_of_b: BulkMap,
        /// `[rows, columns]`.
        out: Array,
        rows: u64,
        columns: u64,
        inner: u64,
    }
}

kernels! { SOURCE {
    "matmul_groups_bf16" Bf16 { factors: Factors }
    "matmul_groups_f16" F16 { factors: Factors }
} }

/// Rows, columns and terms of a tile, and tiles that are there at a time.
const TILE: [usize; 3] = [128, 256, 64];
const STAGES: usize = 4;

/// Bytes of shared memory: factors in 16 bits, and barriers.
const SHARED: usize = 2 * STAGES * TILE[2] * (TILE[0] + TILE[1]) + 16 * STAGES;

/// Whether there is a kernel for `a bᵀ` of these sizes and this type.
/// Other architectures have no `wgmma`, not even later ones: they multiply by warps.
pub(super) fn exist(device: &Cuda, dims: &MatmulDims, dtype: DType) -> bool {
    let MatmulDims { batch, columns, inner, transpose, .. } = *dims;
    // Rows of factors begin at multiples of 16 bytes, pairs of results at multiples of four.
    let aligned = inner.is_multiple_of(8) && columns.is_multiple_of(2);
    // Places of copies are counted in 32 bits with a sign.
    let small = [dims.rows, columns, inner].iter().all(|&size| size <= matmul::MOST);
    let sums_along_rows = !transpose.a && transpose.b;
    let narrow = dtype == DType::Bf16 || dtype == DType::F16;
    batch == 1
        && aligned
        && sums_along_rows
        && narrow
        && small
        && device.groups()
        && SHARED <= device.properties().shared_memory
}

/// `out = a bᵀ`.
/// Blocks stay and take tile after tile: while one is written, copies of the next are on their way.
pub(super) fn launch(device: &Cuda, dims: &MatmulDims, [a, b, out]: [&Tensor<Cuda>; 3]) -> Result<()> {
    let MatmulDims { rows, columns, inner, .. } = *dims;
    let tiles = rows.div_ceil(TILE[0]) * columns.div_ceil(TILE[1]);
    // As many blocks as run at once: they stay.
    let blocks = tiles.min(device.properties().multiprocessors as usize);
    let grid = Grid { shared: SHARED, ..Grid::blocks(blocks, 384) };
    // The last boxes of rows and terms reach beyond the factors, where copies are zeros.
    let dtype = a.dtype();
    let rows_of_a = BulkMap::new(a.into(), [rows, 1, inner], [TILE[0], 1])?;
    let rows_of_b = BulkMap::new(b.into(), [columns, 1, inner], [TILE[1], 1])?;
    let [rows, columns, inner] = [rows, columns, inner].map(|n| n as u64);
    let factors = Factors { rows_of_a, rows_of_b, out: out.into(), rows, columns, inner };
    match dtype {
        DType::Bf16 => device.launch(grid, &Bf16 { factors }),
        _ => device.launch(grid, &F16 { factors }),
    }
}
