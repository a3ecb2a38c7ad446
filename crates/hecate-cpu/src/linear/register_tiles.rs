//! Products of workspace matrices in register tiles, and triangular systems solved on the way.
//!
//! A tile is [`ROWS`] rows by 2 or 4 vectors of columns: 8 or 16 sums, half of the processor's registers.
//! A term loads the right factor's vectors once and uses them for all four rows.
//! Chunks are too small for `gemm` to pay: it would lay both factors out anew for 64 tokens.

use super::padded_matrix::{PaddedMatrix, ROWS};
use crate::simd::{ColumnKernel, Panel, dispatch, load, panels, store, store_part};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Rows of a triangle for which the same columns are left out.
///
/// A multiple of [`ROWS`]. Wider strips compute more of what nobody reads, narrower ones load the right factor more
/// often.
const STEP: usize = 16;

/// Which terms a row's sums have, by the zeros of the left factor. Terms that are zero cost time and nothing else.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Terms {
    All,
    /// The factor is zero right of the diagonal: row `t` sums over `0..=t`.
    Lower,
    /// The factor is zero left of the diagonal: row `t` sums over `t..`.
    Upper,
}

/// The left factor of a product.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// The matrix as it lies.
    Rows(&'a PaddedMatrix),
    /// The transposed matrix; its rows are read as columns of the factor.
    Columns(&'a PaddedMatrix),
}

impl Left<'_> {
    /// Rows of the factor, which is as many rows of the result.
    fn rows(self) -> usize {
        match self {
            Self::Rows(x) => x.rows(),
            Self::Columns(x) => x.width(),
        }
    }
}

/// `out = left right`, or `out += left right`, with row `t` times `scale[t]` where there is a scale.
pub(crate) struct Product<'a> {
    left: Left<'a>,
    right: &'a PaddedMatrix,
    terms: Terms,
    scale: Option<&'a [f32]>,
    add: bool,
    /// Whether only the lower triangle of the result is needed.
    lower: bool,
}

impl<'a> Product<'a> {
    /// All terms, no scale; [`set`](Self::set) or [`add`](Self::add) runs it.
    pub(crate) fn new(left: Left<'a>, right: &'a PaddedMatrix) -> Self {
        Self { left, right, terms: Terms::All, scale: None, add: false, lower: false }
    }

    /// Leaves out terms of a triangular left factor that are zero.
    pub(crate) fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Row `t` of the product times `scale[t]`.
    pub(crate) fn scale(self, scale: &'a [f32]) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Only elements on and left of the diagonal are needed; elsewhere `out` takes any values.
    pub(crate) fn lower(self) -> Self {
        Self { lower: true, ..self }
    }

    /// `out` takes the size of the product and becomes it.
    pub(crate) fn set(self, out: &mut PaddedMatrix) {
        out.fit(self.left.rows(), self.right.width());
        dispatch(ProductKernel { product: self, out });
    }

    /// The product is added to `out`, which has its size.
    pub(crate) fn add(self, out: &mut PaddedMatrix) {
        // Adding to a matrix of another size would be a mistake of the caller.
        debug_assert_eq!((out.rows(), out.width()), (self.left.rows(), self.right.width()));
        dispatch(ProductKernel { product: Self { add: true, ..self }, out });
    }
}

/// A [`Product`] and where it goes, for the SIMD dispatch.
struct ProductKernel<'a> {
    product: Product<'a>,
    out: &'a mut PaddedMatrix,
}

impl WithSimd for ProductKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (rows, columns) = (self.out.rows(), self.out.width());
        // A lower triangle goes in strips of `STEP` rows: each strip computes the columns up to its last row.
        let together = if self.product.lower { STEP } else { rows };
        for first in (0..rows).step_by(together.max(1)) {
            let end = (first + together).min(rows);
            let columns = if self.product.lower { end.min(columns) } else { columns };
            panels::<S, _>(simd, columns, ProductPanels { call: &mut self, rows: first..end });
        }
    }
}

/// The rows of one strip, all panels of columns.
struct ProductPanels<'a, 'b> {
    call: &'a mut ProductKernel<'b>,
    rows: Range<usize>,
}

impl<S: Simd> Panel<S> for ProductPanels<'_, '_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let ProductKernel { product, out } = &mut *self.call;
        // Terms of each sum.
        let inner = product.right.rows();
        // A tile: four rows by one panel of columns, summed over all its terms in registers.
        for row in self.rows.clone().step_by(ROWS) {
            // Whole tiles of terms: inside the diagonal tile the left factor has its zeros.
            let terms = match product.terms {
                Terms::All => 0..inner,
                Terms::Lower => 0..(row + ROWS).min(inner),
                Terms::Upper => row.min(inner)..inner,
            };
            // The last tile may hold padding rows. Their sums are stored into padding.
            let mut sums = [[simd.splat_f32s(0.0); N]; ROWS];
            match product.left {
                Left::Rows(left) => add_rows(simd, &mut sums, left, row, terms, product.right, column),
                Left::Columns(left) => add_columns(simd, &mut sums, left, row, terms, product.right, column),
            }
            for (i, mut sums) in sums.into_iter().enumerate() {
                let own = tile_row(out, row + i, column);
                // Padding rows have no scale.
                if let Some(scale) = product.scale {
                    let scale = simd.splat_f32s(scale.get(row + i).copied().unwrap_or(0.0));
                    sums = sums.map(|x| simd.mul_f32s(scale, x));
                }
                if product.add {
                    let old = load::<S, N>(simd, own);
                    (0..N).for_each(|n| sums[n] = simd.add_f32s(sums[n], old[n]));
                }
                store(simd, own, sums);
            }
        }
    }
}

/// What a tile has of row `t`, from `column` on: one stride, so that a whole panel fits.
#[inline(always)]
fn tile_row(x: &mut PaddedMatrix, t: usize, column: usize) -> &mut [f32] {
    let stride = x.stride();
    &mut x.data_mut()[t * stride + column..][..stride]
}

/// As [`tile_row`], to be read.
#[inline(always)]
fn tile_of(x: &PaddedMatrix, t: usize, column: usize) -> &[f32] {
    &x.data()[t * x.stride() + column..][..x.stride()]
}

/// Writes a tile.
#[inline(always)]
fn store_rows<S: Simd, const N: usize>(
    simd: S,
    x: &mut PaddedMatrix,
    row: usize,
    column: usize,
    tile: [[S::f32s; N]; ROWS],
) {
    for (i, own) in tile.into_iter().enumerate() {
        store(simd, tile_row(x, row + i, column), own);
    }
}

/// `sums += left[row.., terms] right[terms, column..]`: rows of the left factor are read along.
#[inline(always)]
fn add_rows<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; ROWS],
    left: &PaddedMatrix,
    row: usize,
    terms: Range<usize>,
    right: &PaddedMatrix,
    column: usize,
) {
    // Four rows of the left factor go in step with the rows of the right one.
    // `ROWS` is 4: the pattern says so, and another number would not compile.
    let [a, b, c, d] = std::array::from_fn(|i| &left.data()[(row + i) * left.stride() + terms.start..][..terms.len()]);
    let rows = right.data()[terms.start * right.stride() + column..].chunks_exact(right.stride());
    for ((((x, &a), &b), &c), &d) in rows.zip(a).zip(b).zip(c).zip(d) {
        add_outer(simd, sums, [a, b, c, d], load(simd, x));
    }
}

/// `sums += left[terms, row..]ᵀ right[terms, column..]`: four neighbours of a left row are one term's factors.
#[inline(always)]
fn add_columns<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; ROWS],
    left: &PaddedMatrix,
    row: usize,
    terms: Range<usize>,
    right: &PaddedMatrix,
    column: usize,
) {
    // One row of the left factor has the four columns of the tile side by side.
    let lefts = left.data()[terms.start * left.stride() + row..].chunks_exact(left.stride());
    let rows = right.data()[terms.start * right.stride() + column..].chunks_exact(right.stride());
    for (x, left) in rows.zip(lefts).take(terms.len()) {
        add_outer(simd, sums, [left[0], left[1], left[2], left[3]], load(simd, x));
    }
}

/// `sums[i] += left[i] x`: one term of a tile, `ROWS × N` multiply-adds.
#[inline(always)]
fn add_outer<S: Simd, const N: usize>(simd: S, sums: &mut [[S::f32s; N]; ROWS], left: [f32; ROWS], x: [S::f32s; N]) {
    for (sums, left) in sums.iter_mut().zip(left) {
        let left = simd.splat_f32s(left);
        for n in 0..N {
            // Fused where the processor has it; then a product is not rounded.
            sums[n] = simd.mul_add_e_f32s(left, x[n], sums[n]);
        }
    }
}

/// A memory `[K,V]` past a chunk, in one pass: `out = Σ factor X + Σ Lᵀ R`, whose rows have no gaps between them.
pub(crate) struct Carry<'a> {
    /// Factors, and `X [K,V]`.
    pub(crate) olds: &'a [(f32, &'a PaddedMatrix)],
    /// `L [n,K]` and `R [n,V]`; at least one pair.
    pub(crate) products: &'a [[&'a PaddedMatrix; 2]],
    /// `[K,V]`, set.
    pub(crate) out: &'a mut [f32],
}

impl Carry<'_> {
    /// Every element of `out` is written, padding is not.
    pub(crate) fn set(self) {
        self.run();
    }
}

impl ColumnKernel for Carry<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.products[0][1].width()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let [first, right] = self.products[0];
        for row in (0..first.width()).step_by(ROWS) {
            let mut sums = [[simd.splat_f32s(0.0); N]; ROWS];
            for [left, right] in self.products {
                add_columns(simd, &mut sums, left, row, 0..left.rows(), right, column);
            }
            // Rows of padding are computed, and stored nowhere.
            let rows = self.out[row * right.width()..].chunks_exact_mut(right.width());
            for (i, (mut sums, out)) in sums.into_iter().zip(rows).enumerate() {
                for (factor, old) in self.olds {
                    let (factor, old) = (simd.splat_f32s(*factor), load::<S, N>(simd, tile_of(old, row + i, column)));
                    (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(factor, old[n], sums[n]));
                }
                store_part(simd, &mut out[column..], sums);
            }
        }
    }
}

/// The WY form's triangular system, equation (19): pseudo-values `Z [n,V]` from the last state's prediction.
///
/// Solves `P = X + L Z`, `Z = w∗V − r∗P` row after row, for a strictly lower triangle `L`.
/// No inverse is formed: the rows before a tile enter by one product, those inside it by substitution.
pub(crate) struct PseudoValueSolve<'a> {
    pub(crate) triangle: &'a PaddedMatrix,
    /// Targets `[n,V]`.
    pub(crate) v: &'a PaddedMatrix,
    /// Write strengths `[n]`; `r` are the erase strengths.
    pub(crate) w: &'a [f32],
    pub(crate) r: &'a [f32],
    /// `X [n,V]` before, `P` after.
    pub(crate) p: &'a mut PaddedMatrix,
    /// `[n,V]`, set.
    pub(crate) z: &'a mut PaddedMatrix,
}

impl PseudoValueSolve<'_> {
    pub(crate) fn solve(self) {
        self.z.fit(self.v.rows(), self.v.width());
        self.run();
    }
}

impl ColumnKernel for PseudoValueSolve<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.v.width()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let n = self.v.rows();
        for row in (0..n).step_by(ROWS) {
            let mut p: [[S::f32s; N]; ROWS] = std::array::from_fn(|i| load(simd, tile_row(self.p, row + i, column)));
            let mut z = [[simd.splat_f32s(0.0); N]; ROWS];
            // Rows before the tile enter as a product.
            add_rows(simd, &mut p, self.triangle, row, 0..row, self.z, column);
            // Rows inside the tile one after another: each needs those above it.
            for i in 0..ROWS.min(n - row) {
                // The triangle inside the tile: entries left of the diagonal.
                let own = &self.triangle.row(row + i)[row..];
                for j in 0..i {
                    let l = simd.splat_f32s(own[j]);
                    for n in 0..N {
                        p[i][n] = simd.mul_add_e_f32s(l, z[j][n], p[i][n]);
                    }
                }
                // With the row's prediction complete, its pseudo-value is at hand.
                let (w, r) = (simd.splat_f32s(self.w[row + i]), simd.splat_f32s(-self.r[row + i]));
                let v = load::<S, N>(simd, tile_of(self.v, row + i, column));
                for n in 0..N {
                    z[i][n] = simd.mul_add_e_f32s(r, p[i][n], simd.mul_f32s(w, v[n]));
                }
            }
            store_rows(simd, self.p, row, column, p);
            store_rows(simd, self.z, row, column, z);
        }
    }
}

/// The transposed system, equations (24) and (25): gradients of the pseudo-values.
///
/// Solves `Λ = dZ + Lᵀ dP`, `dP = −r∗Λ` from the last row to the first.
pub(crate) struct PseudoValueAdjoint<'a> {
    pub(crate) triangle: &'a PaddedMatrix,
    pub(crate) r: &'a [f32],
    /// `dZ [n,V]` before, `Λ` after.
    pub(crate) lambda: &'a mut PaddedMatrix,
    /// `[n,V]`, set.
    pub(crate) dp: &'a mut PaddedMatrix,
}

impl PseudoValueAdjoint<'_> {
    pub(crate) fn solve(self) {
        self.dp.fit(self.lambda.rows(), self.lambda.width());
        self.run();
    }
}

impl ColumnKernel for PseudoValueAdjoint<'_> {
    #[inline(always)]
    fn columns(&self) -> usize {
        self.lambda.width()
    }

    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let n = self.lambda.rows();
        for row in (0..n).step_by(ROWS).rev() {
            let mut lambda: [[S::f32s; N]; ROWS] =
                std::array::from_fn(|i| load(simd, tile_row(self.lambda, row + i, column)));
            let mut dp = [[simd.splat_f32s(0.0); N]; ROWS];
            let after = (row + ROWS).min(n);
            // Rows after the tile enter as a product with the transposed triangle.
            add_columns(simd, &mut lambda, self.triangle, row, after..n, self.dp, column);
            // Rows inside the tile from the last to the first.
            for i in (0..after - row).rev() {
                for (j, dp) in dp.iter().enumerate().take(after - row).skip(i + 1) {
                    let l = simd.splat_f32s(self.triangle.row(row + j)[row + i]);
                    for n in 0..N {
                        lambda[i][n] = simd.mul_add_e_f32s(l, dp[n], lambda[i][n]);
                    }
                }
                let r = simd.splat_f32s(-self.r[row + i]);
                dp[i] = lambda[i].map(|x| simd.mul_f32s(r, x));
            }
            store_rows(simd, self.lambda, row, column, lambda);
            store_rows(simd, self.dp, row, column, dp);
        }
    }
}
