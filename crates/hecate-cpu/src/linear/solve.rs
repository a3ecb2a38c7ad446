//! Unit-lower-triangular systems, in blocks so that most of the work is matrix products.
//!
//! Only Atlas comes here. Its systems have `c n` rows, too many for the register tiles of the linear rules.

use crate::{
    product::{Mat, MatMut, product},
    rows::axpy,
};

/// Rows solved by substitution between two products.
/// Substitution costs `BLOCK²/2` rows of work a block; everything left of the block is one product.
const BLOCK: usize = 16;

/// `x ← (I + L)⁻¹ x` for `x [n, width]`: forward substitution.
/// `lower [n, n]` holds `L` below the diagonal; what lies on and above it is not read.
#[inline(always)]
pub(crate) fn lower(lower: &[f32], n: usize, x: &mut [f32], width: usize) {
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let (done, rest) = x.split_at_mut(start * width);
        let block = &mut rest[..(end - start) * width];
        // Rows already solved, as one product.
        if start > 0 {
            let l = Mat::with_stride(&lower[start * n..], end - start, start, n);
            product(MatMut::new(block, end - start, width), 1.0, -1.0, l, Mat::new(done, start, width));
        }
        // Then row after row inside the block: at most 15 terms each.
        for t in start + 1..end {
            // Rows of the block that are solved, and the row at hand.
            let (above, own) = block.split_at_mut((t - start) * width);
            for (j, above) in (start..t).zip(above.chunks_exact(width)) {
                axpy(&mut own[..width], -lower[t * n + j], above);
            }
        }
    }
}

/// `x ← (I + L)⁻ᵀ x`, from the last block to the first. Arguments are those of [`lower`].
#[inline(always)]
pub(crate) fn lower_transposed(lower: &[f32], n: usize, x: &mut [f32], width: usize) {
    for start in (0..n).step_by(BLOCK).rev() {
        let end = (start + BLOCK).min(n);
        let (block, done) = x[start * width..].split_at_mut((end - start) * width);
        // Rows after the block are solved already; they enter as one product.
        if end < n {
            let l = Mat::with_stride(&lower[end * n + start..], n - end, end - start, n).t();
            product(MatMut::new(block, end - start, width), 1.0, -1.0, l, Mat::new(done, n - end, width));
        }
        // Then row after row inside the block, from the last.
        for t in (start..end - 1).rev() {
            // The row at hand, and those after it that are solved.
            let (own, below) = block[(t - start) * width..].split_at_mut(width);
            for (j, below) in (t + 1..end).zip(below.chunks_exact(width)) {
                axpy(own, -lower[j * n + t], below);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoes_multiplication() {
        for (n, width) in [(1, 1), (2, 3), (16, 5), (17, 4), (50, 7), (64, 16)] {
            // Entries under a quarter keep the system well conditioned at every size.
            let l: Vec<f32> = (0..n * n).map(|i| ((i * 37 % 19) as f32 - 9.0) / 40.0).collect();
            let x: Vec<f32> = (0..n * width).map(|i| ((i * 11 % 23) as f32 - 11.0) / 9.0).collect();
            for transposed in [false, true] {
                let mut y = x.clone();
                // `(I + L) x`, or with the transposed triangle, by the definition.
                for t in 0..n {
                    for j in 0..n {
                        let l = match transposed {
                            false if j < t => l[t * n + j],
                            true if j > t => l[j * n + t],
                            _ => continue,
                        };
                        for i in 0..width {
                            y[t * width + i] += l * x[j * width + i];
                        }
                    }
                }
                if transposed {
                    lower_transposed(&l, n, &mut y, width)
                } else {
                    lower(&l, n, &mut y, width)
                }
                let worst = x.iter().zip(&y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-4, "n {n} width {width} transposed {transposed}: {worst}");
            }
        }
    }
}
