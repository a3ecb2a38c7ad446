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
    ///
    /// ```
    /// # use hecate_ptx::{F16, kernel};
    /// # kernel("example", [32, 1, 1], |k| {
    /// // 16×16 times 16×8 from shared memory, by one warp.
    /// let (a, b) = (k.shared::<F16>("a", 16 * 16), k.shared::<F16>("b", 16 * 16));
    /// # let lane = k.lane();
    /// # let (zero, first) = (k.narrow::<F16>(0f32), k.mul(lane, 8u32));
    /// # for tile in [a, b] {
    /// #     let to = k.at_shared(tile, first);
    /// #     (0..8).for_each(|i| k.store(to.plus(i), zero));
    /// # }
    /// # k.barrier();
    /// // Lane l gives row l % 16, and of it the half l / 16.
    /// let (row, half) = (k.and(lane, 15u32), k.shr(lane, 4u32));
    /// let (row, half) = (k.mul(row, 16u32), k.mul(half, 8u32));
    /// let element = k.add(row, half);
    /// let (a, b) = (k.at_shared(a, element), k.at_shared(b, element));
    /// let (a, b) = (k.load_matrices(a), k.load_transposed(b));
    /// let sums = [0f32; 4].map(|zero| k.variable(zero));
    /// k.multiply(sums, a, [b[0], b[1]]);
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
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
