//! Products `a bᵀ` with few rows, in register tiles that read both factors as they lie.
//!
//! `gemm` lays out all of `b` anew, which pays where there are many rows to use it.
//! Here a tile is [`ROWS`] rows of `a` by 2 or 4 rows of `b`, with vectors along the inner axis.
//! `b` is read once from memory; every further use finds it in the first cache.
//! A sum has one order, whatever the other rows and however many threads there are.

use crate::{
    product::{Mat, MatMut},
    simd::dispatch,
};
use pulp::{Simd, WithSimd};

/// Rows of `a` in a tile.
const ROWS: usize = 4;

/// Rows of `b` that go along the inner axis together.
const GROUP: usize = 4;

/// Elements of the inner axis that a group stays at.
/// Its part `[GROUP, STRIP]` and one of [`ROWS`] rows of `a` fill the first cache, also where rows lie `2^n` bytes apart.
const STRIP: usize = 1024;

/// Most rows with which these tiles are faster than `gemm`, for rows of `b` that lie apart by any number of elements,
/// and by a multiple of [`ALIAS`].
const FEW: [usize; 2] = [32, 128];

/// Rows a multiple of this apart meet in few sets of a cache, where laying them out anew takes longest.
const ALIAS: usize = 256;

/// Least sizes for which these tiles are faster: of the inner axis, whose vectors of sums are added up across at last,
/// and rows of `b`.
const LEAST: [usize; 2] = [256, 64];

/// Whether a product of these sizes is faster here than by `gemm`: `b` is transposed, both run along the inner axis.
pub(crate) fn suits(a: &Mat<'_>, b: &Mat<'_>) -> bool {
    let along = a.column_stride == 1 && b.row_stride == 1;
    let few = FEW[usize::from(b.column_stride.is_multiple_of(ALIAS))];
    along && (2..=few).contains(&a.rows) && b.rows >= LEAST[0] && b.columns >= LEAST[1]
}

/// `out = beta out + alpha a b`, with `a [m, l]`, `b [l, n]` transposed, `out [m, n]`.
pub(crate) fn few_rows(out: MatMut<'_>, beta: f32, alpha: f32, a: Mat<'_>, b: Mat<'_>) {
    dispatch(FewRows { out, beta, alpha, a, b: b.t() });
}

/// A product `a bᵀ` and where it goes.
struct FewRows<'a> {
    /// `[m, n]`.
    out: MatMut<'a>,
    /// Factor of what `out` held before.
    beta: f32,
    /// Factor of the product.
    alpha: f32,
    /// `[m, l]`.
    a: Mat<'a>,
    /// `[n, l]`.
    b: Mat<'a>,
}

impl WithSimd for FewRows<'_> {
    type Output = ();

    /// Groups of `b`'s rows one after another, and strips of the inner axis inside of each.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (rows, inner) = (self.a.rows, self.a.columns);
        // A vector for each sum of a group, `[m, GROUP]`: what its lanes add up to is the sum.
        let mut sums = vec![[simd.splat_f32s(0.0); GROUP]; rows];
        for first in (0..self.b.rows).step_by(GROUP) {
            sums.fill([simd.splat_f32s(0.0); GROUP]);
            // Past the last row the last one is read again, and its sums are dropped.
            let group = std::array::from_fn(|j| self.b.row((first + j).min(self.b.rows - 1)));
            for start in (0..inner).step_by(STRIP) {
                let part = start..inner.min(start + STRIP);
                let group: [&[f32]; GROUP] = group.map(|row| &row[part.clone()]);
                for (t, sums) in sums.chunks_mut(ROWS).enumerate() {
                    let row = |i: usize| &self.a.row(t * ROWS + i)[part.clone()];
                    // Each number of rows is a compiled copy, whose sums stay in registers.
                    match sums.len() {
                        1 => strip::<S, 1>(simd, sums, [row(0)], &group),
                        2 => strip::<S, 2>(simd, sums, [row(0), row(1)], &group),
                        3 => strip::<S, 3>(simd, sums, [row(0), row(1), row(2)], &group),
                        _ => strip::<S, ROWS>(simd, sums, [row(0), row(1), row(2), row(3)], &group),
                    }
                }
            }
            self.write(simd, first, &sums);
        }
    }
}

impl FewRows<'_> {
    /// Sums `[m, GROUP]` of rows `first..` of `b` into their columns of the result.
    #[inline(always)]
    fn write<S: Simd>(&mut self, simd: S, first: usize, sums: &[[S::f32s; GROUP]]) {
        let (alpha, beta) = (self.alpha, self.beta);
        for (i, sums) in sums.iter().enumerate() {
            for (out, sum) in self.out.row(i)[first..].iter_mut().zip(sums) {
                let sum = alpha * simd.reduce_sum_f32s(*sum);
                // Old values may be NaN where they do not matter.
                *out = if beta == 0.0 { sum } else { beta * *out + sum };
            }
        }
    }
}

/// Adds a strip's terms to the sums of `M` rows of `a` and a group's rows of `b`.
#[inline(always)]
fn strip<S: Simd, const M: usize>(simd: S, sums: &mut [[S::f32s; GROUP]], a: [&[f32]; M], b: &[&[f32]; GROUP]) {
    // A tile of 4 by 4 sums takes half of 32 registers, one of 4 by 2 half of 16.
    if S::REGISTER_COUNT >= 32 {
        tile::<S, M, GROUP>(simd, sums, a, b, 0);
    } else {
        tile::<S, M, 2>(simd, sums, a, b, 0);
        tile::<S, M, 2>(simd, sums, a, b, 2);
    }
}

/// A tile: `M` rows of `a` by rows `first..first + N` of a group, over all elements of the strip.
/// `sums[:M, first:first+N] += a @ b[first:first+N].T`, lane by lane.
#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; GROUP]],
    a: [&[f32]; M],
    b: &[&[f32]; GROUP],
    first: usize,
) {
    let mut own: [[S::f32s; N]; M] = std::array::from_fn(|i| std::array::from_fn(|j| sums[i][first + j]));
    let b: [&[f32]; N] = std::array::from_fn(|j| b[first + j]);
    let whole = a[0].len() / S::F32_LANES;
    // Slices of one length, which is the loop's: no element is checked.
    let vectors = (a.map(|x| &S::as_simd_f32s(x).0[..whole]), b.map(|x| &S::as_simd_f32s(x).0[..whole]));
    for l in 0..whole {
        add(simd, &mut own, vectors.0.map(|x| x[l]), vectors.1.map(|x| x[l]));
    }
    if a[0].len() > whole * S::F32_LANES {
        // The last elements, with zeros after them on both sides.
        let rest = |x: &[f32]| simd.partial_load_f32s(&x[whole * S::F32_LANES..]);
        add(simd, &mut own, a.map(rest), b.map(rest));
    }
    for (sums, own) in sums.iter_mut().zip(own) {
        sums[first..first + N].copy_from_slice(&own);
    }
}

/// One vector of terms for each sum of a tile.
/// `sums[i][j] += a[i] * b[j]`; lanes are added across only at the end of the inner axis.
#[inline(always)]
fn add<S: Simd, const M: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; M],
    a: [S::f32s; M],
    b: [S::f32s; N],
) {
    for (sums, a) in sums.iter_mut().zip(a) {
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum = simd.mul_add_e_f32s(a, b, *sum);
        }
    }
}
