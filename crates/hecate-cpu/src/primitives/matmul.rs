//! Products of matrices: blocks of the result, each one product on one thread, never cut along the sums.

use super::fill;
use crate::{
    Cpu,
    device::{floats, lent},
    kept::Lent,
    product::{Mat, MatMut, product},
    simd::wide,
};
use hecate_core::{
    Result, Tensor,
    primitives::{Matmul, MatmulDims, Transpose},
};
use rayon::prelude::*;
use std::ops::Range;

/// Multiply-adds that are worth a task of their own.
const WORK: usize = 1 << 22;

/// Reading an operand's element takes as long as so many multiply-adds: products with few rows only read.
const READ: usize = 8;

/// Most blocks of one result.
const BLOCKS: usize = 16;

/// Rows or columns of a block, at least: every block lays out its operands anew.
const BLOCK: usize = 64;

/// Columns of a block where there are too few rows to use anything twice, and the order of reading decides.
const WIDE: usize = 1024;

/// Row blocks for which it pays to turn a transposed `b` around once instead of in every block.
const TURN: usize = 3;

impl Matmul for Cpu {
    fn matmul(
        &self,
        dims: MatmulDims,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        onto: Option<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        let MatmulDims { batch, rows, columns, .. } = dims;
        let (x, y) = (floats(a), floats(b));
        let mut out = self.take(batch * rows * columns);
        let kept = if onto.is_some() { 1.0 } else { 0.0 };
        if let Some(onto) = &onto {
            let onto = floats(onto);
            fill(self, 1, &mut out, |first, out| out.copy_from_slice(&onto[first..][..out.len()]));
        }
        let plan = Plan::new(dims);
        if plan.columns < columns {
            by_columns(self, dims, plan.columns, [&x, &y], kept, &mut out);
        } else if dims.transpose.b && batch == 1 && rows >= TURN * plan.rows {
            let y = transposed(self, &y, columns, dims.inner);
            let dims = MatmulDims { transpose: Transpose { b: false, ..dims.transpose }, ..dims };
            by_rows(self, dims, &plan, [&x, &y], kept, &mut out);
        } else {
            by_rows(self, dims, &plan, [&x, &y], kept, &mut out);
        }
        Ok(lent(self, [batch, rows, columns], a.dtype(), out))
    }
}

/// Rows and columns that are turned at once.
const TILE: usize = 16;

/// `x [rows, columns]` as `[columns, rows]`, tile by tile.
fn transposed(device: &Cpu, x: &[f32], rows: usize, columns: usize) -> Lent {
    let mut out = device.take(x.len());
    let strip = |(i, out): (usize, &mut [f32])| {
        wide(
            out,
            #[inline(always)]
            |out| turn(&x[i * TILE..], columns, out, rows),
        );
    };
    device.run(|| out.par_chunks_mut(TILE * rows).enumerate().for_each(strip));
    out
}

/// The first columns of `x [rows, columns]` as rows of `out`.
#[inline(always)]
fn turn(x: &[f32], columns: usize, out: &mut [f32], rows: usize) {
    let whole = if out.len() == TILE * rows { rows / TILE * TILE } else { 0 };
    for first in (0..whole).step_by(TILE) {
        // The tile is turned in the first cache, where columns do not meet in the same lines.
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
struct Plan {
    /// Rows of a block.
    rows: usize,
    /// Columns of a block; all, unless the result has few rows.
    columns: usize,
    /// Blocks that make a task.
    together: usize,
}

impl Plan {
    fn new(dims: MatmulDims) -> Self {
        let MatmulDims { batch, rows, inner, columns, .. } = dims;
        let work = inner * (rows * columns + READ * (rows + columns));
        let blocks = (work / WORK).clamp(1, BLOCKS).min(BLOCKS.div_ceil(batch));
        let cut = |length: usize, least| length.div_ceil(blocks).next_multiple_of(least).min(length);
        if blocks > 1 && columns > rows {
            let least = if rows < READ { WIDE } else { BLOCK };
            return Self { rows, columns: cut(columns, least), together: 1 };
        }
        Self { rows: cut(rows, BLOCK), columns, together: (WORK / work).max(1) }
    }
}

/// Operands of product `i`.
fn operands<'a>(dims: MatmulDims, [a, b]: [&'a [f32]; 2], i: usize) -> (Mat<'a>, Mat<'a>) {
    let MatmulDims { rows, inner, columns, transpose, .. } = dims;
    let (a, b) = (&a[i * rows * inner..][..rows * inner], &b[i * inner * columns..][..inner * columns]);
    (
        if transpose.a { Mat::new(a, inner, rows).t() } else { Mat::new(a, rows, inner) },
        if transpose.b { Mat::new(b, columns, inner).t() } else { Mat::new(b, inner, columns) },
    )
}

/// `out = kept out + products`.
fn by_rows(device: &Cpu, dims: MatmulDims, plan: &Plan, operand: [&[f32]; 2], kept: f32, out: &mut [f32]) {
    let MatmulDims { rows, inner, columns, .. } = dims;
    let one = |(i, first, out): (usize, usize, &mut [f32])| {
        let (a, b) = operands(dims, operand, i);
        let block = first..first + out.len() / columns;
        let a = a.block(block.clone(), 0..inner);
        product(MatMut::new(out, block.len(), columns), kept, 1.0, a, b);
    };
    let mut tasks = Vec::new();
    for (i, out) in out.chunks_mut(rows * columns).enumerate() {
        tasks.extend(out.chunks_mut(plan.rows * columns).enumerate().map(|(j, out)| (i, j * plan.rows, out)));
    }
    if tasks.len() <= plan.together {
        return tasks.into_iter().for_each(one);
    }
    device.run(|| tasks.into_par_iter().with_min_len(plan.together).for_each(one));
}

/// The same for results with few rows: blocks are made apart and then put together.
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
