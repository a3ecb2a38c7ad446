//! Tensor cores: products of small matrices that a warp holds in its registers.

use super::{Converged, Pointer, Scope, Shared, memory::list};
use crate::types::{Half, Packed, Reg};

/// Registers of one thread that hold its part of 8×8 matrices of 16 bits: thread `4 r + c` has columns `2 c` and `2 c + 1` of row `r`.
pub type Matrices<H, const N: usize> = [Reg<Packed<H>>; N];

/// A thread's part of a 16×8 matrix of sums: rows `lane / 4` and `lane / 4 + 8`, columns `2 (lane % 4)` and the next, row by row.
pub type Accumulator = [Reg<f32>; 4];

impl Scope<'_, Converged> {
    /// Loads four 8×8 matrices of 16 bits. Lane `8 i + r` gives the address of row `r` of matrix `i`, a multiple of 16 bytes.
    pub fn load_matrices<H: Half>(&mut self, row: Pointer<H, Shared>) -> Matrices<H, 4> {
        self.matrices("", row)
    }

    /// As [`Scope::load_matrices`], each matrix transposed.
    pub fn load_transposed<H: Half>(&mut self, row: Pointer<H, Shared>) -> Matrices<H, 4> {
        self.matrices(".trans", row)
    }

    fn matrices<H: Half>(&mut self, transposed: &str, row: Pointer<H, Shared>) -> Matrices<H, 4> {
        self.writer.whole_warps();
        self.writer.needs((6, 5), 75);
        let d = std::array::from_fn(|_| self.writer.register::<Packed<H>>());
        self.writer.line(format_args!("ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {}, {row}", list(&d)));
        d
    }

    /// `sums += a · b` with `a` 16×16, its four 8×8 matrices in the order upper left, lower left, upper right, lower right, and
    /// `b` 16×8, its upper and its lower matrix, each transposed.
    pub fn multiply<H: Half>(&mut self, sums: Accumulator, a: Matrices<H, 4>, b: Matrices<H, 2>) {
        self.writer.whole_warps();
        self.writer.needs((7, 0), 80);
        let (name, d) = (H::NAME, list(&sums));
        self.writer.line(format_args!(
            "mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 {d}, {}, {}, {d}",
            list(&a),
            list(&b)
        ));
    }
}
