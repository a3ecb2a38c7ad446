//! A product with 4-bit weights in llama.cpp's format Q4_K.
//!
//! A row of weights is a sequence of super-blocks of 256 values and 144 bytes:
//!
//! | byte | what |
//! |---|---|
//! | 0, 2 | `d` and `dmin`, two halves (f16) |
//! | 4 to 15 | scales and offsets of 8 sub-blocks of 32 values, 6 bits each |
//! | 16 to 143 | nibbles: byte `32 c + l` has value `64 c + l` below and `64 c + 32 + l` above, `c` in 0..4, `l` in 0..32 |
//!
//! A value is `d scale q − dmin offset`, with its sub-block's scale and offset. With `s` the bytes from 4 on, sub-block `j < 4` has the
//! scale `s[j] & 63` and the offset `s[j + 4] & 63`. The others have `(s[j + 4] & 15) | (s[j − 4] >> 6) << 4` and `(s[j + 4] >> 4) | (s[j] >> 6) << 4`.

use super::{Arguments, check};
use crate::{
    error::Error,
    kernels::{Launch, load_at, reduce},
    types::{F16, Pred, Reg, Uniform},
    writer::{Axis, Comparison, Converged, Global, Module, Pointer, Scope, kernel},
};

/// Values of a super-block, and its bytes.
const VALUES: u32 = 256;
const BYTES: u32 = 144;
/// Warps of a block, each with a column of C.
const WARPS: u32 = 4;
/// Most rows of C that a warp computes at once: it reads weights once for all of them.
const ROWS: u32 = 4;

/// `C = A Bᵀ` where `A` (M×K) and `C` (M×N) are f32 and the N rows of `B` are weights in Q4_K: `K / 256` super-blocks of 144 bytes each.
///
/// Parameters: `A`, `B`, `C`, `M`, `N`, `K`. Where `K` is no multiple of 256, a row has a super-block more, and what is after its value K
/// counts nothing. The text serves all M and N, and all K that are multiples of 256, or not, as the specification's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedGemm {
    m: u32,
    n: u32,
    k: u32,
}

impl QuantizedGemm {
    /// A product of an `m`×`k` matrix with `n` rows of `k` weights.
    ///
    /// # Errors
    /// If a size is 0 or larger than a grid: `m` up to 65535, the others up to 2³¹ − 1.
    ///
    /// ```
    /// use hecate_ptx::{QuantizedGemm, Specification};
    ///
    /// // One row of A: each warp reads the weights of one element of C.
    /// let product = Specification::from(QuantizedGemm::new(1, 4096, 4096)?);
    /// assert_eq!(product.launch().grid, [1024, 1, 1]);
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(m: u32, n: u32, k: u32) -> Result<Self, Error> {
        check([m, n, k], 1, "QuantizedGemm")?;
        Ok(Self { m, n, k })
    }

    pub(crate) fn name(&self) -> &'static str {
        "q4k_gemm_fused"
    }

    /// Rows of C that a warp computes.
    fn rows(&self) -> u32 {
        self.m.min(ROWS)
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.n.div_ceil(WARPS), self.m.div_ceil(self.rows()), 1], block: [32 * WARPS, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        let (rows, is_whole) = (self.rows(), self.k.is_multiple_of(VALUES));
        kernel(self.name(), self.launch().block, |k| {
            let sizes = if is_whole { "a multiple of 256" } else { "any number" };
            k.comment(&format!(
                "C = A B^T for A of M x K, C of M x N and N rows of B in Q4_K; K is {sizes}; a warp computes {rows} rows of a column"
            ));
            let arguments = Arguments::<f32, u8, f32>::read(k);
            let out = Out::new(k, rows);
            let rows_of_a = out.rows_of_a(k, &arguments);
            let sums: Vec<_> = rows_of_a.iter().map(|_| k.variable(0f32)).collect();
            let up = k.uniform_add(arguments.depth, VALUES - 1);
            let super_blocks = k.uniform_div(up, VALUES);
            let weights = out.weights(k, &arguments, super_blocks);
            let part = Part::new(k, out.lane, arguments.depth, is_whole);
            k.for_range(0u32, super_blocks, 1u32, |k, number| {
                let start = k.mul(number, BYTES);
                let start = k.at(weights, start);
                let values = part.weights(k, start);
                part.accumulate(k, number, values, &rows_of_a, &sums);
            });
            out.write(k, &arguments, sums);
        })
    }
}

/// What a warp computes: some rows of a column of C.
struct Out {
    lane: Reg<u32>,
    column: Reg<u32>,
    rows: Vec<Reg<u32>>,
}

impl Out {
    fn new(k: &mut Scope<'_, Converged>, rows: u32) -> Self {
        let (lane, warp) = (k.lane(), k.warp());
        let [block_x, block_y] = [Axis::X, Axis::Y].map(|axis| k.block_index(axis));
        let column = k.mul_add(block_x, WARPS, warp);
        let first = k.mul(block_y, rows);
        Self { lane, column, rows: (0..rows).map(|i| k.add(first, i)).collect() }
    }

    /// Rows of A. After the last row a warp reads the last one again: it computes what it does not write.
    fn rows_of_a(&self, k: &mut Scope<'_, Converged>, of: &Arguments<f32, u8, f32>) -> Vec<Pointer<f32, Global>> {
        k.comment("after the last row or column a warp reads the last one, and does not write");
        let last = k.sub(of.m, 1u32);
        let row = |row: &Reg<u32>| {
            let row = k.min(*row, last);
            k.row(of.a, row, of.depth)
        };
        self.rows.iter().map(row).collect()
    }

    /// The first super-block of the column's weights; after the last column those of the last.
    fn weights(
        &self,
        k: &mut Scope<'_, Converged>,
        of: &Arguments<f32, u8, f32>,
        super_blocks: Uniform<u32>,
    ) -> Pointer<u8, Global> {
        let last = k.sub(of.n, 1u32);
        let column = k.min(self.column, last);
        let before = k.mul_wide(column, super_blocks);
        let bytes = k.mul(before, u64::from(BYTES));
        k.at_wide(of.b, bytes)
    }

    /// Sums what lanes have; the first lane writes where there is such a row and column.
    fn write(&self, k: &mut Scope<'_, Converged>, of: &Arguments<f32, u8, f32>, sums: Vec<Reg<f32>>) {
        let is_first = k.compare(Comparison::Equal, self.lane, 0u32);
        let column_inside = k.lt(self.column, of.n);
        let writes = k.both(is_first, column_inside);
        for (row, sum) in self.rows.iter().zip(sums) {
            reduce::warp(k, sum, |k, a, b| k.add(a, b));
            let row_inside = k.lt(*row, of.m);
            let inside = k.both(writes, row_inside);
            let c_row = k.row(of.c, *row, of.n);
            let to = k.at(c_row, self.column);
            k.guarded(inside, |k| k.store(to, sum));
        }
    }
}

/// A lane's part of each super-block: 4 bytes, which have 4 values of one sub-block and 4 of the next.
struct Part {
    /// Whether K is a multiple of 256, so that vectors are aligned and no value is beyond K.
    is_whole: bool,
    depth: Uniform<u32>,
    /// Number of the lane, of its two sub-blocks' scales within four, and whether they are among the first four.
    lane: Reg<u32>,
    scale: Reg<u32>,
    is_low: Pred,
    /// Number of the first value in the super-block.
    value: Reg<u32>,
}

/// Values of a lane: 4 neighbours, and 4 that are 32 further.
type Values = [[Reg<f32>; 4]; 2];

impl Part {
    fn new(k: &mut Scope<'_, Converged>, lane: Reg<u32>, depth: Uniform<u32>, is_whole: bool) -> Self {
        k.comment("a lane has bytes 4 lane to 4 lane + 3 of the nibbles, which are in chunk lane / 8");
        let chunk = k.shr(lane, 3u32);
        let is_low = k.lt(chunk, 2u32);
        let odd = k.and(chunk, 1u32);
        let scale = k.shl(odd, 1u32);
        let in_chunk = k.and(lane, 7u32);
        let first = k.shl(in_chunk, 2u32);
        let value = k.mul_add(chunk, 64u32, first);
        Self { is_whole, depth, lane, scale, is_low, value }
    }

    /// A lane's values of the super-block that begins at an address.
    fn weights(&self, k: &mut Scope<'_, Converged>, start: Pointer<u8, Global>) -> Values {
        let header = start.cast::<F16>();
        let [d, d_min] = [header, header.plus(1)].map(|half| {
            let half = k.load(half);
            k.widen(half)
        });
        k.comment("6-bit scales and offsets of two neighbouring sub-blocks, each a byte of three words");
        let scales = k.at(start.plus(4), self.scale);
        let words = [0, 4, 8].map(|byte| k.load(scales.plus(byte).cast::<u16>()));
        let nibbles = load_at(k, start.plus(16).cast::<u32>(), self.lane);
        [0, 1].map(|half| {
            let [scale, offset] = self.scale_and_offset(k, words, 8 * half);
            let [scale, offset] = [k.to_f32(scale), k.to_f32(offset)];
            let (step, least) = (k.mul(d, scale), k.mul(d_min, offset));
            let minus_least = k.neg(least);
            [0, 1, 2, 3].map(|byte| {
                let shifted = k.shr(nibbles, 8 * byte + 4 * half);
                let nibble = k.and(shifted, 15u32);
                let q = k.to_f32(nibble);
                k.mul_add(step, q, minus_least)
            })
        })
    }

    /// Scale and offset from byte `shift / 8` of three words: `s[j]`, `s[j + 4]` and `s[j + 8]` with `j` in 0..4.
    fn scale_and_offset(&self, k: &mut Scope<'_, Converged>, words: [Reg<u32>; 3], shift: u32) -> [Reg<u32>; 2] {
        let [first, second, third] = words.map(|word| {
            let byte = k.shr(word, shift);
            k.and(byte, 255u32)
        });
        let low = [first, second].map(|byte| k.and(byte, 63u32));
        let lower_bits = [k.and(third, 15u32), k.shr(third, 4u32)];
        let upper_bits = [first, second].map(|byte| {
            let two = k.shr(byte, 6u32);
            k.shl(two, 4u32)
        });
        [0, 1].map(|i| {
            let high = k.or(lower_bits[i], upper_bits[i]);
            k.select(self.is_low, low[i], high)
        })
    }

    /// Adds products of weights with rows of A to sums, one a row.
    fn accumulate(
        &self,
        k: &mut Scope<'_, Converged>,
        number: Uniform<u32>,
        values: Values,
        rows: &[Pointer<f32, Global>],
        sums: &[Reg<f32>],
    ) {
        let first = k.mul_add(number, VALUES, self.value);
        for (row, sum) in rows.iter().zip(sums) {
            let row = k.at(*row, first);
            for (half, values) in (0..).zip(values) {
                let from = row.plus(32 * half);
                if self.is_whole {
                    let x = k.load_vector::<4, _, _>(from);
                    x.into_iter().zip(values).for_each(|(x, value)| k.accumulate(*sum, x, value));
                } else {
                    self.accumulate_inside(k, (first, 32 * half), from, values, *sum);
                }
            }
        }
    }

    /// Adds the products of those of four values that are before K; the first has the number `first + further`.
    fn accumulate_inside(
        &self,
        k: &mut Scope<'_, Converged>,
        (first, further): (Reg<u32>, u32),
        from: Pointer<f32, Global>,
        values: [Reg<f32>; 4],
        sum: Reg<f32>,
    ) {
        for (i, value) in (0..).zip(values) {
            let number = k.add(first, further + i);
            let inside = k.lt(number, self.depth);
            k.guarded(inside, |k| {
                let x = k.load(from.plus(i));
                k.accumulate(sum, x, value);
            });
        }
    }
}
