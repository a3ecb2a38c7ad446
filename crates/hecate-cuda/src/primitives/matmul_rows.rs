//! Products of up to 64 rows with several 16-bit matrices, on GPUs of capability 9.0 and later.
//!
//! A text that is drawn is a row, and so few of them leave cuBLAS's tiles empty. Here a product is a stream of its matrix. A
//! block has 64 columns, all rows, and a part of the terms. Blocks of a cluster add up their sums, so that small matrices fill
//! the GPU too.

use crate::{
    Cuda,
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Tensor, primitives::MatmulDims};

pub(crate) const SOURCE: KernelSource = kernel_source!("matmul_rows", "matmul_rows.cu");

/// Most matrices of a launch.
pub(super) const MATRICES: usize = 8;

/// Most rows, and columns of a tile.
const ROWS: usize = 64;
const COLUMNS: usize = 64;

/// Terms of a step.
const DEEP: usize = 32;

/// Most steps of a block: 64 rows of them take 132 KiB of shared memory.
const STEPS: usize = 32;

/// Bytes of a step's rows in shared memory, in 16 bits.
const STEP_BYTES: usize = 2 * ROWS * DEEP;

/// Most blocks of a cluster that every GPU with clusters starts.
const CLUSTER: usize = 8;

/// `struct Matrix` there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Matrix {
    /// `[columns, inner]`.
    b: u64,
    /// `[rows, columns]`.
    out: u64,
    columns: u64,
    /// Tiles of the matrices up to this one.
    end: u64,
}

kernels! { SOURCE {
    // a [rows, inner]; `dtype` is that of matrices.
    "matmul_rows" RowsProduct {
        a: Array, rows: u64, inner: u64, dtype: u32, tiles: u32, matrices: [Matrix; MATRICES]
    }
} }

/// Whether there is a kernel for a product of these sizes with a matrix of this type.
pub(super) fn exists(device: &Cuda, dims: &MatmulDims, dtype: DType) -> bool {
    let MatmulDims { batch, rows, inner, columns, .. } = *dims;
    // Tiles are counted in 32 bits.
    let few = batch == 1 && rows <= ROWS && columns <= 1 << 24;
    // Rows of matrices begin at multiples of 16 bytes.
    let deep = inner.is_multiple_of(DEEP) && (1..=CLUSTER * most_steps(device)).contains(&(inner / DEEP));
    few && deep && (dtype == DType::Bf16 || dtype == DType::F16) && device.begins_early()
}

/// Most steps of a block on this GPU, of whose rows an odd number fits.
fn most_steps(device: &Cuda) -> usize {
    STEPS.min((device.properties().shared_memory / STEP_BYTES).saturating_sub(1))
}

/// Blocks that share the terms of a sum: a power of two that nearly fills the GPU, and gives nobody too many steps or none.
fn split(device: &Cuda, tiles: usize, steps: usize) -> usize {
    let multiprocessors = device.properties().multiprocessors as usize;
    // An eighth of the GPU may stay idle: twice as many blocks would leave more of it so.
    let enough = |split: usize| 8 * tiles * split >= 7 * multiprocessors && steps.div_ceil(split) <= most_steps(device);
    let mut split = 1;
    while !enough(split) && 2 * split <= CLUSTER.min(steps) {
        split *= 2;
    }
    split
}

/// `x bᵀ` for each of at most [`MATRICES`] matrices of one type, in one launch.
pub(super) fn launch(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[(MatmulDims, &Tensor<Cuda>)],
) -> Result<Vec<Tensor<Cuda>>> {
    let MatmulDims { rows, inner, .. } = weights[0].0;
    let mut matrices = [Matrix::default(); MATRICES];
    let (mut tiles, mut products) = (0, Vec::new());
    // Tiles of one matrix follow those of another, so that one grid has them all.
    for (matrix, (dims, b)) in matrices.iter_mut().zip(weights) {
        let out = device.empty([1, rows, dims.columns], x.dtype())?;
        tiles += dims.columns.div_ceil(COLUMNS);
        let (b, out_pointer) = (b.buffer().pointer(), out.buffer().pointer());
        *matrix = Matrix { b, out: out_pointer, columns: dims.columns as u64, end: tiles as u64 };
        products.push(out);
    }
    // How often 32 terms are taken.
    let steps = inner / DEEP;
    let split = split(device, tiles, steps);
    // As many blocks as run at once, each with its rows of `x` for all its tiles.
    let blocks = if split == 1 { tiles.min(2 * device.properties().multiprocessors as usize) } else { tiles * split };
    // In 16 bits, an odd number of steps a row; and sums of a tile in 32.
    let shared = (STEP_BYTES * (steps.div_ceil(split) | 1)).max(4 * ROWS * COLUMNS);
    // All matrices have the type of the first.
    let dtype = Array::from(weights[0].1).dtype;
    let (rows, inner, tiles) = (rows as u64, inner as u64, tiles as u32);
    let product = RowsProduct { a: x.into(), rows, inner, dtype, tiles, matrices };
    device.launch_early(Grid { shared, ..Grid::blocks(blocks, 256) }, split as u32, &product)?;
    Ok(products)
}
