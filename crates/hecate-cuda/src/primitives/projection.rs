//! Projections of few rows with their norm, gate or residual: one kernel where primitives would be three.
//!
//! A token's kernels are a few microseconds long, and what each waits for before it begins is a good part of that.

use super::{
    matmul::{BY_WARPS, FEW, MATRICES, NARROW},
    matmul_rows::{self, Around},
};
use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    launch::{Array, Grid, kernels, optional, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{MatmulDims, Projection, ProjectionEnd, ProjectionInputs},
};

/// `F.rms_norm(x) @ W.T` of some matrices of few rows; also `p₀ * F.silu(p₁)` or `p₀ + residual`.
pub(crate) const SOURCE: KernelSource = kernel_source!("projection", "projection.cu");

/// Most rows of one launch.
const ROWS: usize = 64;

/// Threads of a block, most runs of matrices that each asks for at once, and bytes that a block may keep rows in.
///
/// The largest block has 100,608 bytes of shared memory: every GPU of capability 8.0 and more allows 101,376.
const THREADS: usize = 256;
const RUNS: usize = 8;
/// Columns of a matrix from which on a warp takes four side by side: a vocabulary. Fewer would leave warps without any.
const MANY: usize = 1 << 13;
const ROW_BYTES: usize = 66 << 10;

arguments! {
    /// A matrix, and where its product goes.
    #[derive(Default)]
    struct Factor {
        /// `[columns, inner]`, of any type.
        b: In<Void>,
        /// `[rows, columns]`.
        out: Out<f32>,
        /// Columns of the matrices up to this one.
        end: u64,
        /// Of `b`.
        dtype: u64,
    }
}

kernels! { SOURCE {
    // x [rows, inner], norm [inner], residual [rows, columns]; `columns` are those of all results.
    "project_row" OneRow {
        // Rows `x` have 32 bits; without a norm or a residual their addresses are null.
        x: In<f32>,
        norm: In<f32>,
        residual: In<f32>,
        columns: u64,
        rows: u32,
        inner: u32,
        epsilon: f32,
        gated: u32,
        // Runs of 16 bytes that a lane asks for before it waits.
        ahead: u32,
        // 1 where no kernel of a captured step writes the matrices before: they are read while the one in front runs.
        settled: u32,
        factors: [Factor; MATRICES],
    }
    // The same of two to eight rows.
    "project_few" FewRows { call: OneRow }
    // The same of one row, with no residual and one matrix of many columns.
    "project_wide" OfManyColumns { call: OneRow }
} }

impl Projection for Cuda {
    /// Matrices of 32 bits and more rows go to cuBLAS, with norms and sums between.
    /// Up to 64 rows of bfloat16 matrices, where kernels can begin before the one in front ends.
    fn fuses_projections(&self, rows: usize, weights: DType) -> bool {
        rows <= FEW || rows <= ROWS && weights == DType::Bf16 && self.begins_early()
    }

    /// One launch where the kernels take these sizes and types, else primitives one after another.
    /// Results are `[1, rows, columns]` in 32 bits, one a matrix, or one in all with a gate or a residual.
    fn project(
        &self,
        checked: Checked<Self>,
        dims: &[MatmulDims],
        inputs: &ProjectionInputs<'_, Self>,
    ) -> Result<Vec<Tensor<Self>>> {
        let around = Around {
            norm: inputs.norm,
            // What a sum with a residual is made of.
            residual: match inputs.end {
                ProjectionEnd::Added(residual) => Some(residual),
                _ => None,
            },
            gated: matches!(inputs.end, ProjectionEnd::Gated),
        };
        let weights: Vec<_> = dims.iter().copied().zip(inputs.weights.iter().copied()).collect();
        // Kernels read 32-bit rows, and no more matrices than a launch has.
        let plain = dims.iter().all(|dims| dims.batch == 1) && inputs.x.dtype() == DType::F32;
        if plain && !weights.is_empty() && weights.len() <= MATRICES {
            let (few, many) = (few_fit(&weights, around), side_by_side_fit(self, &weights, around));
            if many && !(few && dims[0].rows <= BY_WARPS) {
                return side_by_side(self, inputs.x, &weights, around);
            }
            if few {
                return few_rows(self, inputs.x, &weights, around);
            }
        }
        self.project_in_parts(checked, dims, inputs)
    }
}

/// Whether the kernels of up to eight rows take these matrices.
fn few_fit(weights: &[(MatmulDims, &Tensor<Cuda>)], around: Around<'_>) -> bool {
    let MatmulDims { rows, inner, .. } = weights[0].0;
    // Rows are read in runs of 16 bytes, whatever the type; both matrices of a gate in turn.
    let fits = rows <= FEW && inner.is_multiple_of(8) && inner <= ROW_BYTES / 4 / staged_rows(rows);
    fits && !(around.gated && weights[0].1.dtype() != weights[1].1.dtype())
}

/// Rows that the kernel for so many has room for.
fn staged_rows(rows: usize) -> usize {
    if rows == 1 { 1 } else { FEW }
}

/// As [`few_fit`] of up to 64 rows, on tensor cores: matrices of 16 bits, and narrow ones of 32 beside them.
fn side_by_side_fit(device: &Cuda, weights: &[(MatmulDims, &Tensor<Cuda>)], around: Around<'_>) -> bool {
    // What is not divided by its length yet may be out of reach of halves.
    let wanted = weights.iter().map(|(_, b)| b.dtype()).find(|&dtype| dtype != DType::F32);
    let reaches = |dtype| dtype == DType::Bf16 || around.norm.is_none();
    let fits = |(dims, b): &(MatmulDims, &Tensor<Cuda>)| match b.dtype() {
        DType::F32 => !around.gated && around.residual.is_none() && dims.columns <= NARROW,
        dtype => Some(dtype) == wanted && reaches(dtype) && matmul_rows::exists(device, dims, dtype),
    };
    wanted.is_some() && weights.iter().all(fits)
}

/// By tensor cores; results in the order of the matrices.
/// All rows of `x` meet 64 columns of a matrix at a time: matrices are read once for up to 64 rows.
fn side_by_side(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[(MatmulDims, &Tensor<Cuda>)],
    around: Around<'_>,
) -> Result<Vec<Tensor<Cuda>>> {
    // Narrow ones come last there.
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&i| weights[i].1.dtype() == DType::F32);
    // A launch has those on tensor cores first.
    let sorted: Vec<_> = order.iter().map(|&i| weights[i]).collect();
    let made = matmul_rows::launch(device, x, &sorted, around)?;
    let mut products: Vec<_> = order.into_iter().zip(made).collect();
    products.sort_by_key(|&(i, _)| i);
    Ok(products.into_iter().map(|(_, product)| product).collect())
}

/// By a warp a column.
/// Each element of a matrix is read once, for all its rows of `x`: time is that of reading the matrices.
fn few_rows(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[(MatmulDims, &Tensor<Cuda>)],
    around: Around<'_>,
) -> Result<Vec<Tensor<Cuda>>> {
    let MatmulDims { rows, inner, .. } = weights[0].0;
    // Columns of all results are counted together.
    let mut factors = [Factor::default(); MATRICES];
    let (mut columns, mut products) = (0, Vec::new());
    for (i, (factor, &(dims, b))) in factors.iter_mut().zip(weights).enumerate() {
        *factor = Factor { b: b.buffer().pointer(), dtype: u64::from(Array::from(b).dtype), ..Factor::default() };
        // The second of two that make one result has no place of its own.
        if around.gated && i > 0 {
            continue;
        }
        let out = device.empty([1, rows, dims.columns], DType::F32)?;
        columns += dims.columns;
        (factor.out, factor.end) = (out.buffer().pointer(), columns as u64);
        products.push(out);
    }
    // Runs that a lane asks for at once: those of a column of 16 bits, or as many as there is room for.
    let side_by_side = if around.gated { 2 } else { 1 };
    let ahead = inner.div_ceil(8 * 32).min(RUNS / side_by_side);
    let call = OneRow {
        x: pointer(x),
        norm: around.norm.map_or(0, |(weight, _)| pointer(weight)),
        residual: optional(around.residual),
        columns: columns as u64,
        rows: rows as u32,
        inner: inner as u32,
        epsilon: around.norm.map_or(0.0, |(_, epsilon)| epsilon),
        gated: u32::from(around.gated),
        ahead: ahead as u32,
        settled: u32::from(weights.iter().all(|(_, b)| b.buffer().is_settled())),
        factors,
    };
    if rows == 1 && weights.len() == 1 && columns >= MANY && around.residual.is_none() {
        // Two blocks a multiprocessor, whose registers are full of runs.
        let blocks = 2 * device.properties().multiprocessors as usize;
        let shared = 4 * inner + 4 * THREADS / 32;
        let grid = Grid { shared, ..Grid::blocks(blocks, THREADS as u32) };
        device.launch_early(grid, 1, &OfManyColumns { call })?;
        return Ok(products);
    }
    // As many blocks as run at once, each with its rows of `x` for all its columns.
    let most = if rows == 1 { 4 } else { 2 } * device.properties().multiprocessors as usize;
    // A warp a column.
    let blocks = columns.div_ceil(THREADS / 32).min(most);
    // Runs of matrices, rows, and a square for each of these and each warp.
    let staged = staged_rows(rows);
    let shared = 16 * ahead * side_by_side * THREADS + staged * (4 * inner + 4 * THREADS / 32);
    let grid = Grid { shared, ..Grid::blocks(blocks, THREADS as u32) };
    // Each is compiled for its number of rows.
    match staged {
        1 => device.launch_early(grid, 1, &call)?,
        _ => device.launch_early(grid, 1, &FewRows { call })?,
    }
    Ok(products)
}
