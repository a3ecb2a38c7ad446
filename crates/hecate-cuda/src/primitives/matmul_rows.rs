//! Products of up to 64 rows with one 16-bit matrix or several, on GPUs of capability 9.0 and later.
//!
//! A text that is drawn is a row, and so few of them leave cuBLAS's tiles empty. Here a product is a stream of its matrix. A
//! block has 64 columns, all rows, and a part of the terms. Blocks of a cluster add up their sums, so that small matrices fill
//! the GPU too. The norm before products and what follows them are made on the way: a token's kernels are so short that
//! their number counts.

use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    launch::{Array, Grid, kernels, optional, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Tensor, primitives::MatmulDims};

pub(crate) const SOURCE: KernelSource = kernel_source!("matmul_rows", "matmul_rows.cu");

/// Most matrices of a launch.
pub(super) const MATRICES: usize = 8;

/// Most rows, and columns of a tile: of a cluster's, and of a block's by itself.
const ROWS: usize = 64;
const COLUMNS: usize = 64;
const ALONE: usize = 128;

/// Terms of a step.
const DEEP: usize = 32;

/// Most steps of a block: 64 rows of them take 132 KiB of shared memory.
const STEPS: usize = 32;

/// Bytes of a step's rows in shared memory, in 16 bits.
const STEP_BYTES: usize = 2 * ROWS * DEEP;

/// Steps of a matrix that are on their way; `AHEAD` there.
const AHEAD: usize = 8;

/// Most blocks of a cluster that every GPU with clusters starts.
const CLUSTER: usize = 8;

arguments! {
    /// `struct Matrix` there.
    #[derive(Default)]
    struct Matrix {
        /// `[columns, inner]`.
        b: In<Void>,
        /// `[rows, columns]`.
        out: Out<Void>,
        columns: u64,
        /// Tiles of the matrices up to this one.
        end: u64,
    }
}

kernels! { SOURCE {
    // a [rows, inner], norm [inner], residual [rows, columns]; `dtype` is that of matrices on tensor cores.
    "matmul_rows" RowsProduct {
        a: Array,
        rows: u64,
        inner: u64,
        dtype: u32,
        tiles: u32,
        matrices: [Matrix; MATRICES],
        norm: In<f32>,
        residual: In<f32>,
        epsilon: f32,
        gated: u32,
        clusters: u32,
        first_narrow: u32,
        groups: u32,
        staged: u32,
    }
} }

/// What stands around products, for an `x` of 32 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around<'a> {
    /// A weight `[inner]` and `ε` of a norm of the rows before.
    pub(super) norm: Option<(&'a Tensor<Cuda>, f32)>,
    /// `[rows, columns]`, added to the one product.
    pub(super) residual: Option<&'a Tensor<Cuda>>,
    /// Whether the second of two products makes the gate of the first, for one result.
    pub(super) gated: bool,
}

/// Whether there is a kernel for a product of these sizes with a matrix of this type.
pub(super) fn exists(device: &Cuda, dims: &MatmulDims, dtype: DType) -> bool {
    let MatmulDims { batch, rows, inner, columns, .. } = *dims;
    // Tiles are counted in 32 bits.
    let few = batch == 1 && rows <= ROWS && columns <= 1 << 24;
    // Rows of matrices begin at multiples of 16 bytes.
    let deep = inner.is_multiple_of(DEEP) && (1..=CLUSTER * most_steps(device, CLUSTER)).contains(&(inner / DEEP));
    few && deep && (dtype == DType::Bf16 || dtype == DType::F16) && device.begins_early()
}

/// Bytes of shared memory beside rows, of a block with so many steps in a cluster of so many.
///
/// These are squares of rows, steps of a matrix, and the sums of a block by itself or what blocks send each other.
fn other_bytes(split: usize, steps: usize) -> usize {
    let columns = if split == 1 { ALONE } else { COLUMNS };
    let sums = if split == 1 { columns + 8 } else { columns + 1 };
    4 * ROWS + 16 * AHEAD.min(steps) * 4 * columns + 4 * ROWS * sums
}

/// Bytes for rows of so many steps, an odd number of them; blocks of a cluster put their sums there.
fn row_bytes(split: usize, steps: usize) -> usize {
    let sums = if split == 1 { 0 } else { 4 * ROWS * (COLUMNS + 8) };
    (STEP_BYTES * (steps | 1)).max(sums)
}

/// Most steps of a block on this GPU, of whose rows an odd number fits.
fn most_steps(device: &Cuda, split: usize) -> usize {
    let room = device.properties().shared_memory.saturating_sub(other_bytes(split, AHEAD));
    STEPS.min((room / STEP_BYTES).saturating_sub(1))
}

/// Blocks that share the terms of a sum: a power of two that nearly fills the GPU, and gives nobody too many steps or none. A gate
/// meets what it opens where two blocks or more do.
fn split(device: &Cuda, tiles: usize, steps: usize, gated: bool) -> usize {
    let multiprocessors = device.properties().multiprocessors as usize;
    // An eighth of the GPU may stay idle: twice as many blocks would leave more of it so.
    let enough = |split| 8 * tiles * split >= 7 * multiprocessors && steps.div_ceil(split) <= most_steps(device, split);
    let mut split = 1;
    while !enough(split) && 2 * split <= CLUSTER.min(steps) {
        split *= 2;
    }
    let apart = gated || steps > most_steps(device, 1);
    if apart { split.max(2) } else { split }
}

/// Columns of a narrow matrix that a warp has at once; `TOGETHER` there.
const TOGETHER: usize = 4;

/// `x bᵀ` for each of at most [`MATRICES`] matrices, in one launch: those of one 16-bit type, then narrow ones of 32 bits.
pub(super) fn launch(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[(MatmulDims, &Tensor<Cuda>)],
    around: Around<'_>,
) -> Result<Vec<Tensor<Cuda>>> {
    let MatmulDims { rows, inner, .. } = weights[0].0;
    let first_narrow = weights.partition_point(|(_, b)| b.dtype() != DType::F32);
    // How often 32 terms are taken, and by how many blocks. Two matrices that share tiles have half of each.
    let (steps, halves) = (inner / DEEP, if around.gated { 2 } else { 1 });
    // One result of both.
    let results = if around.gated { 1 } else { first_narrow };
    let tiles_of = |columns: usize| -> usize {
        weights[..results].iter().map(|(dims, _)| dims.columns.div_ceil(columns / halves)).sum()
    };
    let split = split(device, tiles_of(COLUMNS), steps, around.gated);
    // Alone a block has more warps, which share the rows that it keeps.
    let columns = if split == 1 { ALONE } else { COLUMNS };
    let mut matrices = [Matrix::default(); MATRICES];
    let (mut tiles, mut groups, mut products) = (0, 0, Vec::new());
    for (i, (matrix, &(dims, b))) in matrices.iter_mut().zip(weights).enumerate() {
        *matrix = Matrix { b: b.buffer().pointer(), columns: dims.columns as u64, ..Matrix::default() };
        // The gate's matrix has no result of its own.
        if around.gated && i > 0 {
            continue;
        }
        // Tiles of one matrix follow those of another, so that one grid has them all.
        let (end, width) = if i < first_narrow { (&mut tiles, columns / halves) } else { (&mut groups, TOGETHER) };
        *end += dims.columns.div_ceil(width);
        let out = device.empty([1, rows, dims.columns], x.dtype())?;
        (matrix.out, matrix.end) = (out.buffer().pointer(), *end as u64);
        products.push(out);
    }
    // As many blocks as run at once, each with its rows of `x` for all its tiles.
    let most = device.properties().multiprocessors as usize;
    let clusters = if split == 1 { tiles.min(most) } else { tiles };
    // A warp for each row and group of narrow columns, in whole clusters.
    let warps = columns / 8;
    let narrow = (rows * groups).div_ceil(warps).min(2 * most).next_multiple_of(split);
    let each = steps.div_ceil(split);
    let staged = row_bytes(split, each);
    let shared = staged + other_bytes(split, each);
    let product = RowsProduct {
        a: x.into(),
        rows: rows as u64,
        inner: inner as u64,
        // All matrices on tensor cores have the type of the first.
        dtype: Array::from(weights[0].1).dtype,
        tiles: tiles as u32,
        matrices,
        norm: around.norm.map_or(0, |(weight, _)| pointer(weight)),
        residual: optional(around.residual),
        epsilon: around.norm.map_or(0.0, |(_, epsilon)| epsilon),
        gated: u32::from(around.gated),
        clusters: clusters as u32,
        first_narrow: first_narrow as u32,
        groups: groups as u32,
        staged: (staged / 4) as u32,
    };
    let grid = Grid { shared, ..Grid::blocks(clusters * split + narrow, 32 * warps as u32) };
    device.launch_early(grid, split as u32, &product)?;
    Ok(products)
}
