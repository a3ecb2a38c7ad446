//! A product by tensor cores. Copies from global memory are under way while they multiply.

use super::{Arguments, check};
use crate::{
    error::Error,
    kernels::Launch,
    types::{Bf16, F16, Half, Packed, Pred, Reg, Uniform},
    writer::{Accumulator, Axis, Converged, Element, Flow, Global, Module, Pointer, Scope, Shared, kernel},
};
use std::array::from_fn;

/// Side of a block's tile of C, and steps of K in a slab.
const SIDE: u32 = 128;
const DEPTH: u32 = 32;
/// Elements of a slab of A or B.
const SLAB: u32 = SIDE * DEPTH;
/// Elements of 16 bytes, which are copied at once.
const CHUNK: u32 = 8;
/// Slabs in shared memory: one is multiplied while two are on their way.
const STAGES: u32 = 3;
/// Threads of a block: 2 rows of 2 warps, each with 64×64 elements of C. Larger parts read less of shared memory for each product.
const THREADS: u32 = 128;
const WARP_ROWS: u32 = 64;
const WARP_COLUMNS: u32 = 64;
/// Chunks of a slab that a thread copies of each operand.
const COPIES: u32 = SLAB / CHUNK / THREADS;

/// Which numbers of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfType {
    /// [`F16`].
    F16,
    /// [`Bf16`].
    Bf16,
}

/// `C = A B` of 16-bit numbers by tensor cores (`mma.sync`): sums are f32, and are rounded once.
///
/// Parameters: `A` (M×K), `B` (K×N), `C` (M×N), `M`, `N`, `K`; arrays begin at multiples of 16 bytes. Where the specification's K and N are
/// multiples of 8, 16 bytes are copied at once (`cp.async`), and the text serves all such sizes. Else it copies element by
/// element, slower, and serves all sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTensorCore {
    half: HalfType,
    m: u32,
    n: u32,
    k: u32,
}

impl GemmTensorCore {
    /// A product of an `m`×`k` matrix with a `k`×`n` matrix.
    ///
    /// # Errors
    /// If a size is 0 or larger than a grid: `m` up to 8,388,480, the others up to 2³¹ − 1.
    ///
    /// ```
    /// use hecate_ptx::{GemmTensorCore, HalfType, Specification};
    ///
    /// let product = Specification::from(GemmTensorCore::new(HalfType::Bf16, 4096, 4096, 4096)?);
    /// assert!(product.write()?.text().contains("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"));
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(half: HalfType, m: u32, n: u32, k: u32) -> Result<Self, Error> {
        check([m, n, k], SIDE, "GemmTensorCore")?;
        Ok(Self { half, m, n, k })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.half {
            HalfType::F16 => "gemm_tensor_core_f16",
            HalfType::Bf16 => "gemm_tensor_core_bf16",
        }
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.n.div_ceil(SIDE), self.m.div_ceil(SIDE), 1], block: [THREADS, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        match self.half {
            HalfType::F16 => self.write_of::<F16>(),
            HalfType::Bf16 => self.write_of::<Bf16>(),
        }
    }

    fn write_of<H: Half + Element<Loaded = H>>(&self) -> Result<Module, Error> {
        let is_aligned = self.k.is_multiple_of(CHUNK) && self.n.is_multiple_of(CHUNK);
        kernel(self.name(), self.launch().block, |k| {
            let sizes = if is_aligned { "N and K are multiples of 8" } else { "sizes are any" };
            k.comment(&format!(
                "C = A B for A of M x K, B of K x N, C of M x N; {sizes}; a block computes 128 x 128 elements"
            ));
            let tile = Tile::<H>::new(k, if is_aligned { STAGES } else { 1 });
            let operands = Operands::new(k, &tile);
            let sums: Sums = from_fn(|_| from_fn(|_| from_fn(|_| k.variable(0f32))));
            let up = k.uniform_add(tile.arguments.depth, DEPTH - 1);
            let slabs = k.uniform_div(up, DEPTH);
            if is_aligned {
                tile.overlapped(k, slabs, &operands, &sums);
            } else {
                tile.one_by_one(k, slabs, &operands, &sums);
            }
            tile.write(k, is_aligned, &sums);
        })
    }
}

/// A warp's sums: 4 times 16 rows, 8 times 8 columns.
type Sums = [[Accumulator; 8]; 4];

/// A block's tile of C.
///
/// Slabs in shared memory are rows of chunks of 8 elements. Chunk `c` of row `r` is at `c ^ (r / 2 % 4)` in A, whose rows have 4 chunks,
/// and at `c ^ (r % 8)` in B, whose rows have 16. So the 8 rows of which tensor cores take one chunk each are in different banks.
struct Tile<H> {
    arguments: Arguments<H, H, H>,
    /// First row and column of the tile.
    row: Uniform<u32>,
    column: Uniform<u32>,
    /// Slabs, one a stage.
    a: Pointer<H, Shared>,
    b: Pointer<H, Shared>,
    copies: [CopyOf<H>; 2],
}

/// Which chunks a thread copies of an operand: some, of rows some distance apart.
struct CopyOf<H> {
    /// Row and chunk of the first in the slab, and rows from one to the next.
    row: Reg<u32>,
    chunk: Reg<u32>,
    apart: u32,
    /// Where the first goes, and elements from there to the next.
    to: Pointer<H, Shared>,
    step: u32,
}

impl<H: Half + Element<Loaded = H>> Tile<H> {
    fn new(k: &mut Scope<'_, Converged>, stages: u32) -> Self {
        let arguments = Arguments::read(k);
        let [a, b] = ["smem_A", "smem_B"].map(|name| k.shared(name, (stages * SLAB) as usize));
        let [row, column] = [Axis::Y, Axis::X].map(|axis| {
            let block = k.block_index(axis);
            k.uniform_mul(block, SIDE)
        });
        k.comment("where a thread copies to: chunks of 16 bytes, whose order in a row differs from row to row");
        let thread = k.thread_index(Axis::X);
        let (a_row, a_chunk) = (k.shr(thread, 2u32), k.and(thread, 3u32));
        let half_row = k.shr(a_row, 1u32);
        let a_bits = k.and(half_row, 3u32);
        let (b_row, b_chunk) = (k.shr(thread, 4u32), k.and(thread, 15u32));
        let b_bits = k.and(b_row, 7u32);
        let mut copy = |array, [row, chunk, bits]: [Reg<u32>; 3], chunks: u32| {
            let swizzled = k.xor(chunk, bits);
            let place = k.mul_add(row, chunks, swizzled);
            let element = k.mul(place, CHUNK);
            let apart = THREADS / chunks;
            CopyOf { row, chunk, apart, to: k.at_shared(array, element), step: THREADS * CHUNK }
        };
        let copies =
            [copy(a, [a_row, a_chunk, a_bits], DEPTH / CHUNK), copy(b, [b_row, b_chunk, b_bits], SIDE / CHUNK)];
        Self { arguments, row, column, a, b, copies }
    }

    /// Chunks of slab `slab` that a thread copies: where from, where to in the first stage, row and column in the matrix, and
    /// the matrix's sizes.
    fn chunks(&self, k: &mut Scope<'_, Converged>, slab: Uniform<u32>) -> Vec<Chunk<H>> {
        let Arguments { a, b, m, n, depth, .. } = self.arguments;
        let first = k.uniform_mul(slab, DEPTH);
        let [of_a, of_b] = &self.copies;
        let mut chunks = Vec::new();
        for (copy, array, [row, column], [rows, columns]) in
            [(of_a, a, [self.row, first], [m, depth]), (of_b, b, [first, self.column], [depth, n])]
        {
            let column = k.mul_add(copy.chunk, CHUNK, column);
            for i in 0..COPIES {
                let further = k.add(copy.row, i * copy.apart);
                let row = k.add(further, row);
                let inside = k.lt(row, rows);
                let from = k.row(array, row, columns);
                let from = k.at(from, column);
                chunks.push(Chunk { from, to: copy.to.plus(i * copy.step), inside, column, columns });
            }
        }
        chunks
    }

    /// Starts to copy a slab into a stage; zeros beyond the matrices.
    fn copy(&self, k: &mut Scope<'_, Converged>, slab: Uniform<u32>) {
        let stage = k.uniform_rem(slab, STAGES);
        let offset = k.mul(stage, SLAB);
        for Chunk { from, to, inside, column, columns } in self.chunks(k, slab) {
            let column_inside = k.lt(column, columns);
            let inside = k.both(inside, column_inside);
            let bytes = k.select(inside, 16u32, 0u32);
            let to = k.at_shared(to, offset);
            k.copy_async(to, from, bytes);
        }
        k.commit_copies();
    }

    /// Multiplies each slab while the next two are copied.
    fn overlapped(&self, k: &mut Scope<'_, Converged>, slabs: Uniform<u32>, operands: &Operands<H>, sums: &Sums) {
        k.comment("the first two slabs are on their way");
        for slab in 0..STAGES - 1 {
            let slab = k.uniform(slab);
            self.copy(k, slab);
        }
        k.for_range(0u32, slabs, 1u32, |k, slab| {
            k.comment("this slab is there, and all have read the one before, whose place the next copy takes");
            k.wait_copies(STAGES - 2);
            k.barrier();
            let next = k.uniform_add(slab, STAGES - 1);
            self.copy(k, next);
            let stage = k.uniform_rem(slab, STAGES);
            let offset = k.mul(stage, SLAB);
            operands.multiply(k, offset, sums);
        });
        k.wait_copies(0);
    }

    /// Copies a slab, element by element, then multiplies it.
    fn one_by_one(&self, k: &mut Scope<'_, Converged>, slabs: Uniform<u32>, operands: &Operands<H>, sums: &Sums) {
        k.for_range(0u32, slabs, 1u32, |k, slab| {
            for Chunk { from, to, inside, column, columns } in self.chunks(k, slab) {
                let elements: [Reg<H>; CHUNK as usize] = from_fn(|i| {
                    let number = k.add(column, i as u32);
                    let column_inside = k.lt(number, columns);
                    let inside = k.both(inside, column_inside);
                    let zero = k.narrow::<H>(0f32);
                    k.load_or(inside, from.plus(i as u32), zero)
                });
                let pairs = from_fn(|i| k.pack(elements[2 * i], elements[2 * i + 1]));
                k.store_vector::<4, Packed<H>, _>(to.cast(), pairs);
            }
            k.barrier();
            let offset = k.variable(0u32);
            operands.multiply(k, offset, sums);
            k.comment("all have read this slab before it is overwritten");
            k.barrier();
        });
    }

    /// Rounds sums and writes those that are inside of C.
    fn write(&self, k: &mut Scope<'_, Converged>, is_aligned: bool, sums: &Sums) {
        let Arguments { c, m, n, .. } = self.arguments;
        k.comment("rows and columns of C beyond its sizes are not written");
        let (warp_row, warp_column) = warp_place(k);
        let lane = k.lane();
        let (quad, pair) = (k.shr(lane, 2u32), k.and(lane, 3u32));
        let (of_warp, of_lane) = (k.mul(warp_column, WARP_COLUMNS), k.mul(pair, 2u32));
        let (in_row, in_column) = (k.mul_add(warp_row, WARP_ROWS, quad), k.add(of_warp, of_lane));
        let (first_row, first_column) = (k.add(in_row, self.row), k.add(in_column, self.column));
        let columns: [[(Reg<u32>, Pred); 2]; 8] = from_fn(|group| {
            from_fn(|i| {
                let column = k.add(first_column, (8 * group + i) as u32);
                (column, k.lt(column, n))
            })
        });
        for (i, half) in (0..4usize).flat_map(|i| [(i, 0), (i, 1)]) {
            let row = k.add(first_row, 16 * i as u32 + 8 * half);
            let inside = k.lt(row, m);
            let c_row = k.row(c, row, n);
            k.if_(inside, |k| {
                for (sums, columns) in sums[i].iter().zip(&columns) {
                    let at = 2 * half as usize;
                    write_pair(k, is_aligned, c_row, [sums[at], sums[at + 1]], columns);
                }
            });
        }
    }
}

/// A chunk that a thread copies.
struct Chunk<H> {
    from: Pointer<H, Global>,
    to: Pointer<H, Shared>,
    /// Whether its row is inside of the matrix.
    inside: Pred,
    /// Column of its first element, and columns of the matrix.
    column: Reg<u32>,
    columns: Uniform<u32>,
}

/// Where a lane reads what tensor cores multiply, in the first stage.
struct Operands<H> {
    /// Of A, for each 16 of a slab's 32 steps: its row of the first 16.
    a: [Pointer<H, Shared>; 2],
    /// Of B, for each 16 columns of a warp's 64: its step of the first 16.
    b: [Pointer<H, Shared>; 4],
}

impl<H: Half + Element<Loaded = H>> Operands<H> {
    /// Lane `l` gives tensor cores row `l % 16`, and of it chunk `l / 16`.
    fn new(k: &mut Scope<'_, Converged>, tile: &Tile<H>) -> Self {
        k.comment("where a lane reads: row lane % 16 of 16, chunk lane / 16 of two");
        let (warp_row, warp_column) = warp_place(k);
        let lane = k.lane();
        let (row, chunk) = (k.and(lane, 15u32), k.shr(lane, 4u32));
        let half_row = k.shr(row, 1u32);
        let (a_bits, b_bits) = (k.and(half_row, 3u32), k.and(row, 7u32));
        let a_row = k.mul_add(warp_row, WARP_ROWS, row);
        let a_chunk = k.xor(chunk, a_bits);
        let b_first = k.mul_add(warp_column, WARP_COLUMNS / CHUNK, chunk);
        let b_chunk = k.xor(b_first, b_bits);
        let mut place = |array, row, chunks: u32, chunk, further: u32| {
            // Chunks two and more further: their bits are the same in the order of every row.
            let chunk = k.xor(chunk, further);
            let place = k.mul_add(row, chunks, chunk);
            let element = k.mul(place, CHUNK);
            k.at_shared(array, element)
        };
        Self {
            a: [0, 2].map(|further| place(tile.a, a_row, DEPTH / CHUNK, a_chunk, further)),
            b: [0, 2, 4, 6].map(|further| place(tile.b, row, SIDE / CHUNK, b_chunk, further)),
        }
    }

    /// Adds a slab's products to a warp's sums; `offset` is that of its stage, in elements.
    fn multiply(&self, k: &mut Scope<'_, Converged>, offset: Reg<u32>, sums: &Sums) {
        let (a, b) = (self.a.map(|first| k.at_shared(first, offset)), self.b.map(|first| k.at_shared(first, offset)));
        for step in 0..2 {
            k.comment(&format!("steps {} to {} of the slab", 16 * step, 16 * step + 15));
            let rows: [_; 4] = from_fn(|i| k.load_matrices(a[step as usize].plus(16 * DEPTH * i as u32)));
            let columns = b.map(|first| k.load_transposed(first.plus(16 * SIDE * step)));
            for (sums, rows) in sums.iter().zip(rows) {
                for (i, sums) in sums.iter().enumerate() {
                    let [x, y, z, w] = columns[i / 2];
                    k.multiply(*sums, rows, if i % 2 == 0 { [x, y] } else { [z, w] });
                }
            }
        }
    }
}

/// Row and column of a warp among 2×2.
fn warp_place(k: &mut Scope<'_, Converged>) -> (Reg<u32>, Reg<u32>) {
    let warp = k.warp();
    (k.shr(warp, 1u32), k.and(warp, 1u32))
}

/// Writes two neighbours of a row of C; where N is even, at once.
fn write_pair<H: Half + Element<Loaded = H>, F: Flow>(
    k: &mut Scope<'_, F>,
    is_aligned: bool,
    row: Pointer<H, Global>,
    sums: [Reg<f32>; 2],
    columns: &[(Reg<u32>, Pred); 2],
) {
    if is_aligned {
        let (column, inside) = columns[0];
        let to = k.at(row, column);
        let pair = k.narrow_pair::<H>(sums[0], sums[1]);
        return k.guarded(inside, |k| k.store(to.cast::<Packed<H>>(), pair));
    }
    for (sum, (column, inside)) in sums.into_iter().zip(columns) {
        let to = k.at(row, *column);
        let value = k.narrow::<H>(sum);
        k.guarded(*inside, |k| k.store(to, value));
    }
}
