//! Products of scratch matrices in tiles of registers, and triangular systems solved on the way.

use super::sheet::{ROWS, Sheet};
use crate::simd::{Panel, dispatch, load, panels, store};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Columns of a triangle that are left out together.
const STEP: usize = 16;

/// Which terms the sums of a row have, by the zeros of the left factor.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Terms {
    All,
    /// The factor is zero right of the diagonal.
    Lower,
    /// The factor is zero left of the diagonal.
    Upper,
}

/// The left factor of a product.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    Rows(&'a Sheet),
    /// The transposed matrix.
    Columns(&'a Sheet),
}

impl Left<'_> {
    fn rows(self) -> usize {
        match self {
            Self::Rows(x) => x.rows(),
            Self::Columns(x) => x.width(),
        }
    }
}

/// `out = left right`, row `t` times `scale[t]` where there is a scale, added to `out` where `add`.
pub(crate) struct Product<'a> {
    left: Left<'a>,
    right: &'a Sheet,
    terms: Terms,
    scale: Option<&'a [f32]>,
    add: bool,
    lower: bool,
}

impl<'a> Product<'a> {
    pub(crate) fn new(left: Left<'a>, right: &'a Sheet) -> Self {
        Self { left, right, terms: Terms::All, scale: None, add: false, lower: false }
    }

    /// Leaves out terms that are zero.
    pub(crate) fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Row `t` of the product times `scale[t]`.
    pub(crate) fn scale(self, scale: &'a [f32]) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Only what is on and left of the diagonal is needed; elsewhere `out` may be anything.
    pub(crate) fn lower(self) -> Self {
        Self { lower: true, ..self }
    }

    /// `out` becomes the product.
    pub(crate) fn set(self, out: &mut Sheet) {
        out.fit(self.left.rows(), self.right.width());
        dispatch(Call { product: self, out });
    }

    /// The product is added to `out`.
    pub(crate) fn add(self, out: &mut Sheet) {
        debug_assert_eq!((out.rows(), out.width()), (self.left.rows(), self.right.width()));
        dispatch(Call { product: Self { add: true, ..self }, out });
    }
}

struct Call<'a> {
    product: Product<'a>,
    out: &'a mut Sheet,
}

impl WithSimd for Call<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (rows, columns) = (self.out.rows(), self.out.width());
        let together = if self.product.lower { STEP } else { rows };
        for first in (0..rows).step_by(together.max(1)) {
            let end = (first + together).min(rows);
            let columns = if self.product.lower { end.min(columns) } else { columns };
            panels::<S, _>(simd, columns, Panels { call: &mut self, rows: first..end });
        }
    }
}

struct Panels<'a, 'b> {
    call: &'a mut Call<'b>,
    rows: Range<usize>,
}

impl<S: Simd> Panel<S> for Panels<'_, '_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let Call { product, out } = &mut *self.call;
        let inner = product.right.rows();
        for row in self.rows.clone().step_by(ROWS) {
            let terms = match product.terms {
                Terms::All => 0..inner,
                Terms::Lower => 0..(row + ROWS).min(inner),
                Terms::Upper => row.min(inner)..inner,
            };
            let mut sums = [[simd.splat_f32s(0.0); N]; ROWS];
            match product.left {
                Left::Rows(left) => add_rows(simd, &mut sums, left, row, terms, product.right, column),
                Left::Columns(left) => add_columns(simd, &mut sums, left, row, terms, product.right, column),
            }
            for (i, mut sums) in sums.into_iter().enumerate() {
                let own = tile_row(out, row + i, column);
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

/// What a tile has of row `t`, from a column on.
#[inline(always)]
fn tile_row(x: &mut Sheet, t: usize, column: usize) -> &mut [f32] {
    let stride = x.stride();
    &mut x.data_mut()[t * stride + column..][..stride]
}

/// As [`tile_row`], to be read.
#[inline(always)]
fn tile_of(x: &Sheet, t: usize, column: usize) -> &[f32] {
    &x.data()[t * x.stride() + column..][..x.stride()]
}

/// `sums += left[row.., terms] right[terms, column..]`.
#[inline(always)]
fn add_rows<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; ROWS],
    left: &Sheet,
    row: usize,
    terms: Range<usize>,
    right: &Sheet,
    column: usize,
) {
    let [a, b, c, d] = std::array::from_fn(|i| &left.data()[(row + i) * left.stride() + terms.start..][..terms.len()]);
    let rows = right.data()[terms.start * right.stride() + column..].chunks_exact(right.stride());
    for ((((x, &a), &b), &c), &d) in rows.zip(a).zip(b).zip(c).zip(d) {
        add_outer(simd, sums, [a, b, c, d], load(simd, x));
    }
}

/// `sums += left[terms, row..]ᵀ right[terms, column..]`.
#[inline(always)]
fn add_columns<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; ROWS],
    left: &Sheet,
    row: usize,
    terms: Range<usize>,
    right: &Sheet,
    column: usize,
) {
    let lefts = left.data()[terms.start * left.stride() + row..].chunks_exact(left.stride());
    let rows = right.data()[terms.start * right.stride() + column..].chunks_exact(right.stride());
    for (x, left) in rows.zip(lefts).take(terms.len()) {
        add_outer(simd, sums, [left[0], left[1], left[2], left[3]], load(simd, x));
    }
}

/// `sums[i] += left[i] x`.
#[inline(always)]
fn add_outer<S: Simd, const N: usize>(simd: S, sums: &mut [[S::f32s; N]; ROWS], left: [f32; ROWS], x: [S::f32s; N]) {
    for (sums, left) in sums.iter_mut().zip(left) {
        let left = simd.splat_f32s(left);
        for n in 0..N {
            sums[n] = simd.mul_add_e_f32s(left, x[n], sums[n]);
        }
    }
}

/// Solves `P = X + L Z`, `Z = w∗V − r∗P` row after row, for a strictly lower triangle `L`; `p` holds `X` before and `P`
/// behind. Equation (19).
pub(crate) struct Writes<'a> {
    pub(crate) triangle: &'a Sheet,
    pub(crate) v: &'a Sheet,
    pub(crate) w: &'a [f32],
    pub(crate) r: &'a [f32],
    pub(crate) p: &'a mut Sheet,
    pub(crate) z: &'a mut Sheet,
}

impl Writes<'_> {
    pub(crate) fn solve(self) {
        self.z.fit(self.v.rows(), self.v.width());
        dispatch(self);
    }
}

impl WithSimd for Writes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.v.width(), &mut self);
    }
}

impl<S: Simd> Panel<S> for &mut Writes<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let n = self.v.rows();
        for row in (0..n).step_by(ROWS) {
            let mut p: [[S::f32s; N]; ROWS] = std::array::from_fn(|i| load(simd, tile_row(self.p, row + i, column)));
            let mut z = [[simd.splat_f32s(0.0); N]; ROWS];
            add_rows(simd, &mut p, self.triangle, row, 0..row, self.z, column);
            for i in 0..ROWS.min(n - row) {
                let own = &self.triangle.row(row + i)[row..];
                for j in 0..i {
                    let l = simd.splat_f32s(own[j]);
                    for n in 0..N {
                        p[i][n] = simd.mul_add_e_f32s(l, z[j][n], p[i][n]);
                    }
                }
                let (w, r) = (simd.splat_f32s(self.w[row + i]), simd.splat_f32s(-self.r[row + i]));
                let v = load::<S, N>(simd, tile_of(self.v, row + i, column));
                for n in 0..N {
                    z[i][n] = simd.mul_add_e_f32s(r, p[i][n], simd.mul_f32s(w, v[n]));
                }
            }
            for i in 0..ROWS {
                store(simd, tile_row(self.p, row + i, column), p[i]);
                store(simd, tile_row(self.z, row + i, column), z[i]);
            }
        }
    }
}

/// Solves `Λ = dZ + Lᵀ dP`, `dP = −r∗Λ` from the last row to the first; `lambda` holds `dZ` before and `Λ` behind.
/// Equations (24), (25).
pub(crate) struct Adjoint<'a> {
    pub(crate) triangle: &'a Sheet,
    pub(crate) r: &'a [f32],
    pub(crate) lambda: &'a mut Sheet,
    pub(crate) dp: &'a mut Sheet,
}

impl Adjoint<'_> {
    pub(crate) fn solve(self) {
        self.dp.fit(self.lambda.rows(), self.lambda.width());
        dispatch(self);
    }
}

impl WithSimd for Adjoint<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        panels(simd, self.lambda.width(), &mut self);
    }
}

impl<S: Simd> Panel<S> for &mut Adjoint<'_> {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        let n = self.lambda.rows();
        for row in (0..n).step_by(ROWS).rev() {
            let mut lambda: [[S::f32s; N]; ROWS] =
                std::array::from_fn(|i| load(simd, tile_row(self.lambda, row + i, column)));
            let mut dp = [[simd.splat_f32s(0.0); N]; ROWS];
            let behind = (row + ROWS).min(n);
            add_columns(simd, &mut lambda, self.triangle, row, behind..n, self.dp, column);
            for i in (0..behind - row).rev() {
                for (j, dp) in dp.iter().enumerate().take(behind - row).skip(i + 1) {
                    let l = simd.splat_f32s(self.triangle.row(row + j)[row + i]);
                    for n in 0..N {
                        lambda[i][n] = simd.mul_add_e_f32s(l, dp[n], lambda[i][n]);
                    }
                }
                let r = simd.splat_f32s(-self.r[row + i]);
                dp[i] = lambda[i].map(|x| simd.mul_f32s(r, x));
            }
            for i in 0..ROWS {
                store(simd, tile_row(self.lambda, row + i, column), lambda[i]);
                store(simd, tile_row(self.dp, row + i, column), dp[i]);
            }
        }
    }
}
