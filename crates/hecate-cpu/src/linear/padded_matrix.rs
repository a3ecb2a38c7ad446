//! Workspace matrices laid out for vectors: rows begin at cache lines, and tiles need no edge cases.

use crate::{product::Mat, simd::wide};
#[cfg(target_arch = "x86_64")]
use {crate::simd::is_scalar, pulp::x86::V3};

/// Elements of a cache line.
///
/// Rows begin at one, and lie an odd number of them apart.
/// With an even number the rows of a narrow block would share a few sets of the cache.
const LINE: usize = 16;

/// Rows that a register tile takes at once. Rows are padded up to a multiple of it.
pub(crate) const ROWS: usize = 4;

/// Elements from the start of a cache line on; its array grows and never shrinks.
#[derive(Default)]
pub(crate) struct AlignedBuf {
    /// Up to a line longer than what is asked for, so that an aligned start fits.
    data: Vec<f32>,
    /// Where the first aligned element lies in `data`.
    start: usize,
}

impl AlignedBuf {
    /// Becomes `count` zeros, in the memory that is there.
    pub(crate) fn reset(&mut self, count: usize) {
        self.data.clear();
        self.data.resize(count + LINE, 0.0);
        // Not finding the start of a line costs time, and nothing else.
        self.start = self.data.as_ptr().align_offset(4 * LINE).min(LINE);
    }

    /// Reserves space for `count` elements with any values; those that are there stay.
    pub(crate) fn fit(&mut self, count: usize) {
        if self.data.len() < count + LINE {
            self.reset(count);
        }
    }

    /// The elements from the aligned one on; at least as many as were asked for.
    #[inline(always)]
    pub(crate) fn get(&self) -> &[f32] {
        &self.data[self.start..]
    }

    /// As [`AlignedBuf::get`], to be changed.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..]
    }
}

/// A matrix `[rows, width]` padded to whole tiles.
///
/// Rows are padded up to a multiple of [`ROWS`], columns up to whole lines.
/// The padding holds any values. Kernels load and store it, but no sum that is used has it as a term.
#[derive(Default)]
pub(crate) struct PaddedMatrix {
    lines: AlignedBuf,
    rows: usize,
    width: usize,
    /// Elements from one row to the next.
    stride: usize,
}

impl PaddedMatrix {
    /// Takes a size; the elements then have any values. Nothing is allocated when the size stays.
    pub(crate) fn fit(&mut self, rows: usize, width: usize) {
        if (rows, width) == (self.rows, self.width) {
            return;
        }
        let stride = (width.div_ceil(LINE) | 1) * LINE;
        // One row more: a block of columns that starts inside the last row still spans whole strides.
        self.lines.reset((rows.next_multiple_of(ROWS) + 1) * stride);
        (self.rows, self.width, self.stride) = (rows, width, stride);
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Elements from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// All rows, [`PaddedMatrix::stride`] apart, with the padding after them.
    pub(crate) fn data(&self) -> &[f32] {
        self.lines.get()
    }

    /// As [`PaddedMatrix::data`], to be changed.
    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        self.lines.get_mut()
    }

    /// Row `t`.
    #[inline(always)]
    pub(crate) fn row(&self, t: usize) -> &[f32] {
        &self.lines.get()[t * self.stride..][..self.width]
    }

    /// Every row without its padding, `[width]`.
    #[inline(always)]
    pub(crate) fn each(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        let (width, rows) = (self.width, self.rows);
        self.data().chunks_exact(self.stride.max(1)).take(rows).map(move |row| &row[..width])
    }

    /// Every row without its padding, to be changed.
    #[inline(always)]
    pub(crate) fn each_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [f32]> {
        let (width, rows, stride) = (self.width, self.rows, self.stride.max(1));
        self.data_mut().chunks_exact_mut(stride).take(rows).map(move |row| &mut row[..width])
    }

    /// Becomes a copy of a row-major matrix, whose rows may lie far apart.
    /// The copy is read many times by products, and its rows share no pages with other heads.
    pub(crate) fn gather(&mut self, from: &Mat<'_>) {
        self.fit(from.rows, from.columns);
        for (t, own) in self.each_mut().enumerate() {
            own.copy_from_slice(&from.data[t * from.row_stride..][..from.columns]);
        }
    }

    /// Row `t` becomes `factors[t]` times row `t` of `x`: `factors∗X` of the equations.
    pub(crate) fn set_scaled(&mut self, factors: &[f32], x: &PaddedMatrix) {
        self.fit(x.rows, x.width);
        wide(
            self,
            #[inline(always)]
            |own| {
                for ((own, x), &factor) in own.each_mut().zip(x.each()).zip(factors) {
                    own.iter_mut().zip(x).for_each(|(own, x)| *own = factor * x);
                }
            },
        );
    }

    /// Becomes `xᵀ`, block by block: a block of 4 rows and one line of columns stays in registers.
    pub(crate) fn transpose(&mut self, x: &PaddedMatrix) {
        self.fit(x.width, x.rows);
        let done = self.transpose_squares(x);
        wide(
            self,
            #[inline(always)]
            |own| {
                // Down a line of columns: the rows that it becomes stay in the first cache until they are whole.
                for column in (0..x.width).step_by(LINE) {
                    for first in (done..x.rows).step_by(ROWS) {
                        own.block(x, first, column);
                    }
                }
            },
        );
    }

    /// Whole squares of [`PaddedMatrix::transpose`], each in eight registers. Returns how many rows of `x` are done.
    #[cfg(target_arch = "x86_64")]
    fn transpose_squares(&mut self, x: &PaddedMatrix) -> usize {
        // What is left of rows goes by blocks, and so does all of an odd width.
        let (rows, stride) = (x.rows / SQUARE * SQUARE, self.stride);
        let Some(v3) = V3::try_new().filter(|_| !is_scalar() && x.width.is_multiple_of(SQUARE)) else { return 0 };
        v3.vectorize(
            #[inline(always)]
            || {
                for column in (0..x.width).step_by(SQUARE) {
                    for first in (0..rows).step_by(SQUARE) {
                        let row = |i| x.row(first + i)[column..].first_chunk().copied().unwrap_or([0.0; SQUARE]);
                        let square = transposed(v3, std::array::from_fn(row));
                        let to = self.data_mut()[column * stride + first..].chunks_exact_mut(stride);
                        to.zip(square).for_each(|(to, row)| to[..SQUARE].copy_from_slice(&row));
                    }
                }
            },
        );
        rows
    }

    /// Other processors have no instructions for it here.
    #[cfg(not(target_arch = "x86_64"))]
    fn transpose_squares(&mut self, _: &PaddedMatrix) -> usize {
        0
    }

    /// `ROWS × LINE` elements of [`PaddedMatrix::transpose`] from `(first, column)` on, or as many as there are.
    #[inline(always)]
    fn block(&mut self, x: &PaddedMatrix, first: usize, column: usize) {
        let (rows, columns) = (ROWS.min(x.rows - first), LINE.min(x.width - column));
        let stride = self.stride;
        let to = &mut self.data_mut()[column * stride + first..];
        if (rows, columns) == (ROWS, LINE) {
            let part = |i| x.row(first + i)[column..].first_chunk::<LINE>();
            let [Some(a), Some(b), Some(c), Some(d)] = std::array::from_fn(part) else { return };
            // Sixteen groups of four neighbours: each becomes one store of a short vector.
            let mut transposed = [[0.0; ROWS]; LINE];
            for (j, transposed) in transposed.iter_mut().enumerate() {
                *transposed = [a[j], b[j], c[j], d[j]];
            }
            for (to, transposed) in to.chunks_exact_mut(stride).zip(&transposed) {
                to[..ROWS].copy_from_slice(transposed);
            }
            return;
        }
        for i in 0..rows {
            for (j, x) in x.row(first + i)[column..][..columns].iter().enumerate() {
                to[j * stride + i] = *x;
            }
        }
    }
}

/// Rows and columns of a square that is transposed in registers: what one of them holds.
#[cfg(target_arch = "x86_64")]
const SQUARE: usize = 8;

/// The transposed square: pairs, then pairs of pairs, then halves of rows change places.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(v3: V3, rows: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
    let (avx, [a, b, c, d, e, f, g, h]) = (v3.avx, rows.map(bytemuck::cast));
    // Elements 0, 1 and 4, 5 of two rows, then 2, 3 and 6, 7.
    let pairs = |a, b| [avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b)];
    let quads = |[low, high]: [_; 2], [low2, high2]: [_; 2]| {
        [
            avx._mm256_shuffle_ps::<0x44>(low, low2),
            avx._mm256_shuffle_ps::<0xee>(low, low2),
            avx._mm256_shuffle_ps::<0x44>(high, high2),
            avx._mm256_shuffle_ps::<0xee>(high, high2),
        ]
    };
    let (upper, lower) = (quads(pairs(a, b), pairs(c, d)), quads(pairs(e, f), pairs(g, h)));
    // Column `i` is half of one quad and half of the one below it.
    std::array::from_fn(|i| {
        let (upper, lower) = (upper[i % 4], lower[i % 4]);
        bytemuck::cast(match i {
            0..4 => avx._mm256_permute2f128_ps::<0x20>(upper, lower),
            _ => avx._mm256_permute2f128_ps::<0x31>(upper, lower),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_of_every_size() {
        for (rows, width) in [(1, 1), (3, 17), (8, 8), (16, 16), (33, 48), (64, 5), (61, 24)] {
            let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
            let (mut x, mut y) = (PaddedMatrix::default(), PaddedMatrix::default());
            x.gather(&Mat::new(&values, rows, width));
            y.transpose(&x);
            for t in 0..rows {
                for j in 0..width {
                    assert_eq!(y.row(j)[t], values[t * width + j], "{rows} x {width} at ({t}, {j})");
                }
            }
        }
    }
}
