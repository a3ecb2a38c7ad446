//! Products of matrices on one thread: the safe door to the `gemm` crate.
//!
//! Engines and primitives are parallel over heads, sequences and blocks of rows.
//! A product therefore stays on the thread that asks for it, and its sums have one order.
//! Few rows by a transposed matrix go by [`few_rows`], all else by `gemm`.
//! `gemm` takes raw pointers. This file is the only one that calls it, after it has checked every bound.

use crate::few_rows::{few_rows, suits};
use gemm::Parallelism;
use std::ops::Range;

/// A strided view of a matrix in a slice.
/// Element `(i, j)` lies at `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    /// From the view's first element on; between its rows may lie elements of other heads.
    pub(crate) data: &'a [f32],
    /// Sizes and strides are in elements.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// From a row to the next; 1 where the matrix is transposed.
    pub(crate) row_stride: usize,
    /// From a column to the next; 1 unless the matrix is transposed.
    pub(crate) column_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix `[rows, columns]` without gaps.
    #[inline]
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::with_stride(data, rows, columns, columns)
    }

    /// A row-major matrix whose rows begin `row_stride` elements apart.
    /// Rows of one head in an array `[rows, H, width]` are such a matrix, with stride `H width`.
    #[inline]
    pub(crate) fn with_stride(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Row `i` of a row-major matrix.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.row_stride..][..self.columns]
    }

    /// The transposed matrix, over the same elements: only the strides change places.
    #[inline]
    pub(crate) fn t(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self { data, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// The part of these rows and columns, which must lie inside.
    #[inline]
    pub(crate) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "block outside its matrix");
        let data = &self.data[rows.start * self.row_stride + columns.start * self.column_stride..];
        Self { data, rows: rows.len(), columns: columns.len(), ..self }
    }

    /// Panics unless every element lies in the slice.
    fn check(&self, name: &str) {
        let Self { data, rows, columns, row_stride, column_stride } = *self;
        assert!(
            covers(data.len(), [(rows, row_stride), (columns, column_stride)]),
            "{name}: {rows} x {columns} by strides ({row_stride}, {column_stride}) outside {} elements",
            data.len()
        );
    }
}

/// A row-major matrix to be written: element `(i, j)` lies at `data[i * row_stride + j]`.
pub(crate) struct MatMut<'a> {
    /// From the view's first element on.
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    /// From a row to the next; at least `columns`, so that rows do not overlap.
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// A matrix without gaps.
    #[inline]
    pub(crate) fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::with_stride(data, rows, columns, columns)
    }

    /// A matrix whose rows begin `row_stride` elements apart, at least `columns`.
    #[inline]
    pub(crate) fn with_stride(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { data, rows, columns, row_stride }
    }

    /// Row `i`, to be written.
    #[inline(always)]
    pub(crate) fn row(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.row_stride..][..self.columns]
    }

    /// Panics unless every element lies in the slice, and no two in one place.
    fn check(&self) {
        let Self { ref data, rows, columns, row_stride } = *self;
        assert!(row_stride >= columns || rows < 2, "out: rows of {columns} overlap at stride {row_stride}");
        assert!(
            covers(data.len(), [(rows, row_stride), (columns, 1)]),
            "out: {rows} x {columns} by stride {row_stride} outside {} elements",
            data.len()
        );
    }
}

/// Whether a slice of `length` holds all elements of axes given as (count, stride).
/// Where it does, every offset also fits an `isize`, which `gemm` counts in.
fn covers(length: usize, axes: [(usize, usize); 2]) -> bool {
    // An empty matrix has no element that could lie outside.
    if axes.iter().any(|&(count, _)| count == 0) {
        return true;
    }
    let fits = |stride: usize| isize::try_from(stride).is_ok();
    // The offset of the last element, unless it overflows.
    let last =
        axes.iter().try_fold(0usize, |last, &(count, stride)| last.checked_add((count - 1).checked_mul(stride)?));
    axes.iter().all(|&(_, stride)| fits(stride)) && last.is_some_and(|last| last < length)
}

/// `out = beta out + alpha a b` on the calling thread, with `a [m,l]`, `b [l,n]`, `out [m,n]`.
///
/// With `beta` 0 the old values do not matter, NaN or not.
/// Sizes may be zero; without terms (`a` has no columns) `out` becomes `beta out`.
///
/// # Panics
/// Sizes that do not fit each other, and views that reach outside their slices.
#[inline]
#[expect(unsafe_code, reason = "`gemm` takes pointers")]
pub(crate) fn product(out: MatMut<'_>, beta: f32, alpha: f32, a: Mat<'_>, b: Mat<'_>) {
    // Sizes first: a mismatch is a bug of the caller, and names both sides.
    let (rows, inner, columns) = (out.rows, a.columns, out.columns);
    assert!(
        a.rows == rows && b.rows == inner && b.columns == columns,
        "product {} x {} by {} x {} into {rows} x {columns}",
        a.rows,
        a.columns,
        b.rows,
        b.columns
    );
    out.check();
    a.check("a");
    b.check("b");
    // `gemm` has vector instructions of its own, which the variable forbids too.
    if crate::simd::is_scalar() {
        return plain(out, beta, alpha, a, b);
    }
    if suits(&a, &b) {
        return few_rows(out, beta, alpha, a, b);
    }
    // SAFETY: the checks above hold every element that `gemm` touches inside its slice, and every stride inside an
    // `isize`. It touches only elements (i, j) of each matrix, none where a size is zero. `out` is borrowed
    // exclusively, so it aliases neither operand, and its rows do not overlap. In `gemm` the first factor is that of
    // the old values, which are not read unless `read_dst`.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.data.as_mut_ptr(),
            1,
            out.row_stride as isize,
            beta != 0.0,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// [`product`] by its definition, for machines and tests without vector instructions.
fn plain(out: MatMut<'_>, beta: f32, alpha: f32, a: Mat<'_>, b: Mat<'_>) {
    if out.rows == 0 || out.columns == 0 {
        return;
    }
    for (i, row) in out.data.chunks_mut(out.row_stride.max(1)).take(out.rows).enumerate() {
        for (j, out) in row[..out.columns].iter_mut().enumerate() {
            // Element by element through the strides.
            let term =
                |l| a.data[i * a.row_stride + l * a.column_stride] * b.data[l * b.row_stride + j * b.column_stride];
            // In 32 bits and from the first term to the last: other bits than `gemm`'s, within the same bounds.
            let sum: f32 = (0..a.columns).map(term).sum();
            *out = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *out };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random elements in `[-1, 1)`; each seed has its own sequence.
    fn elements(count: usize, seed: u32) -> Vec<f32> {
        // A linear congruence (Numerical Recipes): good enough for factors of products.
        let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Element `(i, j)` in 64 bits.
    fn at(m: &Mat<'_>, i: usize, j: usize) -> f64 {
        f64::from(m.data[i * m.row_stride + j * m.column_stride])
    }

    /// One product of the given sizes against the sum of its definition in 64 bits.
    /// `gap` elements lie between rows, and must not be overwritten.
    fn check([rows, inner, columns]: [usize; 3], [ta, tb]: [bool; 2], gap: usize, [beta, alpha]: [f32; 2]) {
        // Transposed operands are laid out by columns, so that the same product is asked for.
        let (sa, sb) = (if ta { rows } else { inner } + gap, if tb { inner } else { columns } + gap);
        let (da, db) = (elements(rows.max(inner) * sa, 1), elements(inner.max(columns) * sb, 2));
        let a = if ta { Mat::with_stride(&da, inner, rows, sa).t() } else { Mat::with_stride(&da, rows, inner, sa) };
        let b =
            if tb { Mat::with_stride(&db, columns, inner, sb).t() } else { Mat::with_stride(&db, inner, columns, sb) };
        let stride = columns + gap;
        let old = elements(rows * stride, 3);
        // With `beta` 0 the old values are NaN: reading one of them would show.
        let mut out = if beta == 0.0 { vec![f32::NAN; rows * stride] } else { old.clone() };
        let before = out.clone();
        product(MatMut::with_stride(&mut out, rows, columns, stride), beta, alpha, a, b);
        for (i, found) in out.iter().enumerate() {
            let (i, j, before) = (i / stride, i % stride, before[i]);
            if j >= columns {
                assert_eq!(found.to_bits(), before.to_bits(), "gap overwritten at ({i}, {j})");
                continue;
            }
            let sum: f64 = (0..inner).map(|l| at(&a, i, l) * at(&b, l, j)).sum();
            let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(before) };
            let error = (old + f64::from(alpha) * sum - f64::from(*found)).abs();
            // A sum of `inner` terms of at most 1 in 32 bits.
            assert!(error <= 1e-6 * (inner as f64 + 2.0), "{rows} x {inner} x {columns} at ({i}, {j}): {error}");
        }
    }

    #[test]
    fn every_size_and_order_agrees_with_the_definition() {
        // Around the edges of vectors and of `gemm`'s tiles, and empty ones.
        let sizes = [0, 1, 2, 3, 7, 16, 17, 33, 65];
        for rows in sizes {
            for inner in sizes {
                for columns in sizes {
                    for order in 0..4 {
                        let order = [order & 1 == 1, order & 2 == 2];
                        check([rows, inner, columns], order, 0, [0.0, 1.0]);
                        check([rows, inner, columns], order, 3, [1.0, -0.5]);
                    }
                }
            }
        }
    }

    #[test]
    fn long_sums_and_old_values() {
        for order in [[false, false], [true, false], [false, true], [true, true]] {
            check([1, 1100, 130], order, 1, [0.0, 2.0]);
            check([130, 1100, 1], order, 1, [0.5, 2.0]);
            check([127, 600, 129], order, 5, [0.5, -1.0]);
        }
    }

    #[test]
    fn few_rows_by_a_transposed_matrix() {
        // Every number of rows up to two tiles, and the most of either kind of stride and one more.
        for rows in (1..=9).chain([32, 33, 128, 129]) {
            // Inner axes of whole vectors and not, of more than a strip, and of rows apart by a power of two.
            for (inner, gap) in [(256, 0), (301, 3), (1024, 0), (1061, 1), (1020, 4)] {
                check([rows, inner, 67], [false, true], gap, [0.0, 1.0]);
                check([rows, inner, 64], [false, true], gap, [0.5, -2.0]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside 11 elements")]
    fn a_view_past_the_end_is_refused() {
        let mut out = [0.0; 9];
        product(MatMut::new(&mut out, 3, 3), 0.0, 1.0, Mat::new(&[0.0; 11], 3, 4), Mat::new(&[0.0; 12], 4, 3));
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn rows_that_overlap_are_refused() {
        let mut out = [0.0; 9];
        product(MatMut::with_stride(&mut out, 3, 3, 2), 0.0, 1.0, Mat::new(&[], 3, 0), Mat::new(&[], 0, 3));
    }
}
