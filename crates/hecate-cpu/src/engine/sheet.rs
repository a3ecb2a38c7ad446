//! Scratch matrices laid out for vectors.

use crate::{product::Mat, simd::wide};

/// Numbers of a cache line. Rows begin at one, and an odd number of them apart, so that the rows of a narrow block do
/// not share a few sets of the cache.
const LINE: usize = 16;

/// Rows that a tile takes at once.
pub(crate) const ROWS: usize = 4;

/// Numbers from the start of a cache line on.
#[derive(Default)]
pub(crate) struct Lines {
    data: Vec<f32>,
    start: usize,
}

impl Lines {
    /// Becomes `count` zeros.
    pub(crate) fn reset(&mut self, count: usize) {
        self.data.clear();
        self.data.resize(count + LINE, 0.0);
        // Not finding the start of a line costs time, and nothing else.
        self.start = self.data.as_ptr().align_offset(4 * LINE).min(LINE);
    }

    /// Has at least `count` numbers, which may be anything.
    pub(crate) fn fit(&mut self, count: usize) {
        if self.data.len() < count + LINE {
            self.reset(count);
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> &[f32] {
        &self.data[self.start..]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..]
    }
}

/// A matrix of `rows × width` numbers with room for whole tiles: rows up to a multiple of [`ROWS`], columns up to whole
/// lines. What lies in that room may be anything; it is never a term of a sum that is used.
#[derive(Default)]
pub(crate) struct Sheet {
    lines: Lines,
    rows: usize,
    width: usize,
    stride: usize,
}

impl Sheet {
    /// Takes a size; what is in the matrix may be anything.
    pub(crate) fn fit(&mut self, rows: usize, width: usize) {
        if (rows, width) == (self.rows, self.width) {
            return;
        }
        let stride = (width.div_ceil(LINE) | 1) * LINE;
        // One row more, so that a block of columns also ends inside with whole strides.
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

    /// Numbers from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// All rows, [`Sheet::stride`] apart, with the room behind them.
    pub(crate) fn data(&self) -> &[f32] {
        self.lines.get()
    }

    /// As [`Sheet::data`], to be changed.
    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        self.lines.get_mut()
    }

    /// Row `t`.
    #[inline(always)]
    pub(crate) fn row(&self, t: usize) -> &[f32] {
        &self.lines.get()[t * self.stride..][..self.width]
    }

    /// Row `t`, to be changed.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, t: usize) -> &mut [f32] {
        &mut self.lines.get_mut()[t * self.stride..][..self.width]
    }

    /// Every row.
    #[inline(always)]
    pub(crate) fn each(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        let (width, rows) = (self.width, self.rows);
        self.data().chunks_exact(self.stride.max(1)).take(rows).map(move |row| &row[..width])
    }

    /// Every row, to be changed.
    #[inline(always)]
    pub(crate) fn each_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [f32]> {
        let (width, rows, stride) = (self.width, self.rows, self.stride.max(1));
        self.data_mut().chunks_exact_mut(stride).take(rows).map(move |row| &mut row[..width])
    }

    /// Becomes a copy of a row-major matrix.
    pub(crate) fn gather(&mut self, from: &Mat<'_>) {
        self.fit(from.rows, from.columns);
        for (t, own) in self.each_mut().enumerate() {
            own.copy_from_slice(&from.data[t * from.row_stride..][..from.columns]);
        }
    }

    /// Copies all rows to a matrix without gaps.
    pub(crate) fn scatter(&self, to: &mut [f32]) {
        to.chunks_exact_mut(self.width).zip(self.each()).for_each(|(to, own)| to.copy_from_slice(own));
    }

    /// Row `t` becomes `factors[t]` times row `t` of `x`.
    pub(crate) fn set_scaled(&mut self, factors: &[f32], x: &Sheet) {
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

    /// Becomes `xᵀ`.
    pub(crate) fn transpose(&mut self, x: &Sheet) {
        self.fit(x.width, x.rows);
        wide(
            self,
            #[inline(always)]
            |own| {
                for first in (0..x.rows).step_by(ROWS) {
                    for column in (0..x.width).step_by(LINE) {
                        own.block(x, first, column);
                    }
                }
            },
        );
    }

    /// `ROWS × LINE` numbers of [`Sheet::transpose`], or as many as there are.
    #[inline(always)]
    fn block(&mut self, x: &Sheet, first: usize, column: usize) {
        let (rows, columns) = (ROWS.min(x.rows - first), LINE.min(x.width - column));
        let stride = self.stride;
        let to = &mut self.data_mut()[column * stride + first..];
        if (rows, columns) == (ROWS, LINE) {
            let part = |i| x.row(first + i)[column..].first_chunk::<LINE>();
            let [Some(a), Some(b), Some(c), Some(d)] = std::array::from_fn(part) else { return };
            let mut turned = [[0.0; ROWS]; LINE];
            for (j, turned) in turned.iter_mut().enumerate() {
                *turned = [a[j], b[j], c[j], d[j]];
            }
            for (to, turned) in to.chunks_exact_mut(stride).zip(&turned) {
                to[..ROWS].copy_from_slice(turned);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_of_every_size() {
        for (rows, width) in [(1, 1), (3, 17), (16, 16), (33, 48), (64, 5)] {
            let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
            let (mut x, mut y) = (Sheet::default(), Sheet::default());
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
