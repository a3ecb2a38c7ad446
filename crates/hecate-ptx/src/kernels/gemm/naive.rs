//! The product against which others are measured.

use super::{Arguments, check};
use crate::{
    error::Error,
    kernels::{Launch, load_at},
    writer::{Axis, Module, kernel},
};

/// Threads of a block along each side.
const SIDE: u32 = 16;

/// `C = A B` in f32, where each thread computes one element and reads a row and a column for it.
///
/// Parameters: `A` (M×K), `B` (K×N), `C` (M×N), `M`, `N`, `K`. The text serves all sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmNaive {
    m: u32,
    n: u32,
    k: u32,
}

impl GemmNaive {
    /// A product of an `m`×`k` matrix with a `k`×`n` matrix.
    ///
    /// # Errors
    /// If a size is 0 or larger than a grid: `m` up to 1,048,560, the others up to 2³¹ − 1.
    ///
    /// ```
    /// use hecate_ptx::{GemmNaive, Specification};
    ///
    /// let product = Specification::from(GemmNaive::new(100, 200, 300)?);
    /// assert_eq!(product.launch().grid, [13, 7, 1]); // blocks of 16×16 elements, columns first
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(m: u32, n: u32, k: u32) -> Result<Self, Error> {
        check([m, n, k], SIDE, "GemmNaive")?;
        Ok(Self { m, n, k })
    }

    pub(crate) fn name(&self) -> &'static str {
        "gemm_naive"
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.n.div_ceil(SIDE), self.m.div_ceil(SIDE), 1], block: [SIDE, SIDE, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        kernel(self.name(), self.launch().block, |k| {
            k.comment("C = A B for A of M x K, B of K x N, C of M x N: a thread computes C[row, column]");
            let Arguments { a, b, c, m, n, depth } = Arguments::<f32, f32, f32>::read(k);
            let [row, column] = [Axis::Y, Axis::X].map(|axis| {
                let (block, thread) = (k.block_index(axis), k.thread_index(axis));
                k.mul_add(block, SIDE, thread)
            });
            let (row_inside, column_inside) = (k.lt(row, m), k.lt(column, n));
            let inside = k.both(row_inside, column_inside);
            k.if_(inside, |k| {
                let (a_row, b_column) = (k.row(a, row, depth), k.at(b, column));
                let sum = k.variable(0f32);
                k.for_each(0u32, depth, 1u32, |k, i| {
                    k.comment("sum += A[row, i] B[i, column]");
                    let x = load_at(k, a_row, i);
                    let b_element = k.row(b_column, i, n);
                    let y = k.load(b_element);
                    k.accumulate(sum, x, y);
                });
                let c_row = k.row(c, row, n);
                let to = k.at(c_row, column);
                k.store(to, sum);
            });
        })
    }
}
