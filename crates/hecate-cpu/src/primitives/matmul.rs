//! Products of matrices: blocks of the result, each one product on one thread, never cut along the sums.
//!
//! How a result is cut depends on the sizes alone, so its bits do not depend on the number of threads.
//! Results with many rows are cut into row blocks, which are written in place.
//! Results with few rows are cut into column blocks, which are made apart and copied.

use super::fill;
use crate::{
    Cpu,
    buffer_pool::{Array, PooledBuf},
    device::{floats, pooled_tensor},
    product::{Mat, MatMut, product},
    simd::wide,
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Matmul, MatmulDims, MatmulInputs, Projection, Transpose},
};
use rayon::prelude::*;
use std::ops::Range;

/// Multiply-adds that are worth a task of their own.
const WORK: usize = 1 << 22;

/// Reading an operand's element takes as long as this many multiply-adds: products with few rows only read.
const READ: usize = 8;

/// Most blocks of one result.
const BLOCKS: usize = 16;

/// Rows or columns of a block, at least: every block lays out its operands anew.
const BLOCK: usize = 64;

/// Columns of a block where there are too few rows to use anything twice.
/// The order of reading decides there, and long runs are read fastest.
const WIDE: usize = 1024;

/// Row blocks from which on it pays to transpose `b` once instead of laying it out so in every block.
const TRANSPOSE_BLOCKS: usize = 3;

/// In parts, which cost a CPU no more.
impl Projection for Cpu {
    fn fuses_projections(&self, rows: usize, _weights: DType) -> bool {
        // Longer texts have their sums and norms by layers (`add_rms_norm`).
        rows <= 64
    }
}

impl Matmul for Cpu {
    /// `a b`, or `onto + a b`; `[batch, rows, columns]`.
    /// `a [batch, m, k]` and `b [batch, k, n]`, either stored transposed: `torch.baddbmm(onto, a, b)`.
    fn matmul(&self, _: Checked<Self>, dims: MatmulDims, inputs: MatmulInputs<'_, Self>) -> Result<Tensor<Self>> {
        let dtype = inputs.dtype();
        let MatmulInputs { a, b, onto } = inputs;
        let MatmulDims { batch, rows, columns, .. } = dims;
        let (x, y) = (floats(a)?, floats(b)?);
        // Products are added to what is there.
        let kept = if onto.is_some() { 1.0 } else { 0.0 };
        let mut out = match onto {
            Some(onto) => own(self, onto)?,
            None => self.take("matmul", batch * rows * columns)?,
        };
        let blocking = Blocking::new(dims);
        if blocking.columns < columns {
            // Blocks of columns are made apart.
            self.room("matmul", out.len())?;
            by_columns(self, dims, blocking.columns, [&x, &y], kept, &mut out);
        } else if dims.transpose.b && batch == 1 && rows >= TRANSPOSE_BLOCKS * blocking.rows {
            let y = transposed(self, &y, columns, dims.inner)?;
            let dims = MatmulDims { transpose: Transpose { b: false, ..dims.transpose }, ..dims };
            by_rows(self, dims, &blocking, [&x, &y], kept, &mut out);
        } else {
            by_rows(self, dims, &blocking, [&x, &y], kept, &mut out);
        }
        pooled_tensor(self, [batch, rows, columns], dtype, out)
    }
}

/// The elements in 32 bits, to be added to: without a copy where nobody else holds them.
pub(super) fn own(device: &Cpu, onto: Tensor<Cpu>) -> Result<PooledBuf> {
    let shape = onto.shape().clone();
    let shared = match onto.into_buffer().map(Array::into_pooled) {
        Ok(Ok(values)) => return Ok(values),
        Ok(Err(array)) => Tensor::from_buffer(device, shape, array.dtype(), array)?,
        Err(shared) => shared,
    };
    let values = floats(&shared)?;
    let mut out = device.take("matmul", values.len())?;
    fill(device, 1, &mut out, |first, out| out.copy_from_slice(&values[first..][..out.len()]));
    Ok(out)
}

/// Rows and columns that are transposed at once.
const TILE: usize = 16;

/// `x [rows, columns]` as `[columns, rows]`, in strips of [`TILE`] rows of the result, one task each.
///
/// # Errors
/// [`hecate_core::Error::OutOfMemory`].
fn transposed(device: &Cpu, x: &[f32], rows: usize, columns: usize) -> Result<PooledBuf> {
    let mut out = device.take("matmul", x.len())?;
    let strip = |(i, out): (usize, &mut [f32])| {
        wide(
            out,
            #[inline(always)]
            |out| transpose_strip(&x[i * TILE..], columns, out, rows),
        );
    };
    device.run(|| out.par_chunks_mut(TILE * rows).enumerate().for_each(strip));
    Ok(out)
}

/// The first columns of `x [rows, columns]` as rows of `out`.
#[inline(always)]
fn transpose_strip(x: &[f32], columns: usize, out: &mut [f32], rows: usize) {
    // Whole tiles go through a small array; the edges element by element.
    let whole = if out.len() == TILE * rows { rows / TILE * TILE } else { 0 };
    for first in (0..whole).step_by(TILE) {
        // The tile is transposed in the first cache, where columns do not meet in the same lines.
        let mut tile = [[0.0; TILE]; TILE];
        for (i, x) in x[first * columns..].chunks(columns).take(TILE).enumerate() {
            tile.iter_mut().zip(&x[..TILE]).for_each(|(tile, x)| tile[i] = *x);
        }
        for (out, tile) in out.chunks_exact_mut(rows).zip(&tile) {
            out[first..first + TILE].copy_from_slice(tile);
        }
    }
    for (j, out) in out.chunks_exact_mut(rows).enumerate() {
        out.iter_mut().enumerate().skip(whole).for_each(|(i, out)| *out = x[i * columns + j]);
    }
}

/// How a result is cut: a function of the sizes alone.
struct Blocking {
    /// Rows of a block.
    rows: usize,
    /// Columns of a block; all, unless the result has few rows.
    columns: usize,
    /// Blocks that make a task.
    together: usize,
}

impl Blocking {
    /// As many blocks as there is work for, at most [`BLOCKS`] over the whole batch.
    fn new(dims: MatmulDims) -> Self {
        let MatmulDims { batch, rows, inner, columns, transpose } = dims;
        let work = inner * (rows * columns + READ * (rows + columns));
        let blocks = (work / WORK).clamp(1, BLOCKS).min(BLOCKS.div_ceil(batch));
        // Blocks are multiples of `least`, and of about equal size.
        let cut = |length: usize, least| length.div_ceil(blocks).next_multiple_of(least).min(length);
        // Wide results: column blocks, so that each task reads its own columns of `b`.
        if blocks > 1 && columns > rows {
            // Columns of a transposed `b` are rows in memory: long runs as they are.
            let least = if rows < READ && !transpose.b { WIDE } else { BLOCK };
            return Self { rows, columns: cut(columns, least), together: 1 };
        }
        Self { rows: cut(rows, BLOCK), columns, together: (WORK / work).max(1) }
    }
}

/// Operands of product `i` of the batch, as they lie or transposed.
fn operands<'a>(dims: MatmulDims, [a, b]: [&'a [f32]; 2], i: usize) -> (Mat<'a>, Mat<'a>) {
    let MatmulDims { rows, inner, columns, transpose, .. } = dims;
    let (a, b) = (&a[i * rows * inner..][..rows * inner], &b[i * inner * columns..][..inner * columns]);
    (
        if transpose.a { Mat::new(a, inner, rows).t() } else { Mat::new(a, rows, inner) },
        if transpose.b { Mat::new(b, columns, inner).t() } else { Mat::new(b, inner, columns) },
    )
}

/// `out = kept out + products`, one task for some row blocks.
fn by_rows(device: &Cpu, dims: MatmulDims, blocking: &Blocking, operand: [&[f32]; 2], kept: f32, out: &mut [f32]) {
    let MatmulDims { rows, inner, columns, .. } = dims;
    let one = |(i, first, out): (usize, usize, &mut [f32])| {
        let (a, b) = operands(dims, operand, i);
        let block = first..first + out.len() / columns;
        let a = a.block(block.clone(), 0..inner);
        product(MatMut::new(out, block.len(), columns), kept, 1.0, a, b);
    };
    let mut tasks = Vec::new();
    for (i, out) in out.chunks_mut(rows * columns).enumerate() {
        tasks.extend(out.chunks_mut(blocking.rows * columns).enumerate().map(|(j, out)| (i, j * blocking.rows, out)));
    }
    // Too little work for two tasks.
    if tasks.len() <= blocking.together {
        return tasks.into_iter().for_each(one);
    }
    device.run(|| tasks.into_par_iter().with_min_len(blocking.together).for_each(one));
}

/// The same for results with few rows: blocks are made apart and then put together, in order.
fn by_columns(device: &Cpu, dims: MatmulDims, width: usize, operand: [&[f32]; 2], kept: f32, out: &mut [f32]) {
    let MatmulDims { batch, rows, inner, columns, .. } = dims;
    let one = |(i, block): (usize, Range<usize>)| {
        let (a, b) = operands(dims, operand, i);
        let mut out = vec![0.0; rows * block.len()];
        let b = b.block(0..inner, block.clone());
        product(MatMut::new(&mut out, rows, block.len()), 0.0, 1.0, a, b);
        (i, block, out)
    };
    let blocks = |i| (0..columns).step_by(width).map(move |first| (i, first..columns.min(first + width)));
    let tasks: Vec<_> = (0..batch).flat_map(blocks).collect();
    // Columns of several rows do not lie in one run, so a block has an array of its own.
    let parts: Vec<_> = device.run(|| tasks.into_par_iter().map(one).collect());
    for (i, block, part) in parts {
        for (row, part) in part.chunks_exact(block.len()).enumerate() {
            let out = &mut out[(i * rows + row) * columns..][block.clone()];
            if kept == 0.0 {
                out.copy_from_slice(part);
            } else {
                out.iter_mut().zip(part).for_each(|(out, part)| *out += part);
            }
        }
    }
}
