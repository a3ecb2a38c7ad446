//! A product by tiles: what a block reads from global memory is used many times.

use super::{Arguments, check};
use crate::{
    error::Error,
    kernels::Launch,
    types::{Pred, Reg, Uniform, UniformValue},
    writer::{Axis, Converged, Global, Module, Pointer, Scope, Shared, kernel},
};

/// Threads of a block: 16 rows of 16.
const THREADS: u32 = 256;
/// Elements of each operand that a block has in shared memory: a tile's side times the depth of a slab.
const SLAB: u32 = 1024;
/// Elements of a slab that each thread copies.
const COPIES: usize = (SLAB / THREADS) as usize;

/// `C = A B` in f32, where a block computes a square tile and each thread a square part of it, in registers.
///
/// Parameters: `A` (M×K), `B` (K×N), `C` (M×N), `M`, `N`, `K`. The text serves all sizes; it has the side of the tile in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTiled {
    m: u32,
    n: u32,
    k: u32,
    tile: u32,
}

impl GemmTiled {
    /// A product of an `m`×`k` matrix with a `k`×`n` matrix, by tiles of `tile`×`tile` elements.
    ///
    /// # Errors
    /// If `tile` is not 32, 64 or 128, or if a size is 0 or larger than a grid: `m` up to 65535 tiles, the others up to 2³¹ − 1.
    ///
    /// ```
    /// use hecate_ptx::{GemmTiled, Specification};
    ///
    /// let product = Specification::from(GemmTiled::new(1000, 2000, 300, 128)?);
    /// assert_eq!(product.launch().grid, [16, 8, 1]);
    /// assert!(GemmTiled::new(1000, 2000, 300, 48).unwrap_err().to_string().ends_with("give it 32, 64 or 128"));
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(m: u32, n: u32, k: u32, tile: u32) -> Result<Self, Error> {
        if ![32, 64, 128].contains(&tile) {
            let (found, expected) = (tile.to_string(), "32, 64 or 128".to_owned());
            return Err(Error::Size { specification: "GemmTiled", size: "tile", found, expected });
        }
        check([m, n, k], tile, "GemmTiled")?;
        Ok(Self { m, n, k, tile })
    }

    pub(crate) fn name(&self) -> &'static str {
        "gemm_tiled"
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.n.div_ceil(self.tile), self.m.div_ceil(self.tile), 1], block: [THREADS, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        let (tile, depth) = (self.tile, SLAB / self.tile);
        kernel(self.name(), self.launch().block, |k| {
            k.comment(&format!(
                "C = A B for A of M x K, B of K x N, C of M x N: a block computes {tile} x {tile} elements of C, {depth} steps of K at a time"
            ));
            let arguments = Arguments::<f32, f32, f32>::read(k);
            let block = Tile::new(k, tile, arguments);
            let sums = block.sums(k);
            k.comment("the first slabs come into registers; later ones do while this one is multiplied");
            let copies = block.registers(k);
            block.load(k, 0u32, copies);
            k.for_range(0u32, block.arguments.depth, depth, |k, first| {
                block.store(k, copies);
                k.barrier();
                let next = k.uniform_add(first, depth);
                block.load(k, next, copies);
                block.multiply(k, &sums);
                k.comment("all have read these slabs before they are overwritten");
                k.barrier();
            });
            block.write(k, &sums);
        })
    }
}

/// A block's tile of C.
struct Tile {
    /// Its side, and steps of K in a slab.
    side: u32,
    depth: u32,
    arguments: Arguments<f32, f32, f32>,
    /// First row and column of the tile.
    row: Uniform<u32>,
    column: Uniform<u32>,
    thread: Reg<u32>,
    /// A slab of A, step after step (the transposed of what is in A), and one of B.
    a: Pointer<f32, Shared>,
    b: Pointer<f32, Shared>,
}

/// Elements of A and of B that a thread copies.
type Copies = [[Reg<f32>; COPIES]; 2];

impl Tile {
    fn new(k: &mut Scope<'_, Converged>, side: u32, arguments: Arguments<f32, f32, f32>) -> Self {
        let a = k.shared("smem_A", (row_of_a(side) * (SLAB / side)) as usize);
        let b = k.shared("smem_B", SLAB as usize);
        let [row, column] = [Axis::Y, Axis::X].map(|axis| {
            let block = k.block_index(axis);
            k.uniform_mul(block, side)
        });
        let thread = k.thread_index(Axis::X);
        Self { side, depth: SLAB / side, arguments, row, column, thread, a, b }
    }

    /// Rows and columns of C that a thread has, as groups of neighbours: the first of each, from the tile's begin.
    ///
    /// Threads of one row read neighbouring vectors of B, so their loads have no bank conflicts.
    fn groups(&self) -> (u32, Vec<u32>) {
        let (each, width) = (self.side / 16, (self.side / 16).min(4));
        (width, (0..each / width).map(|group| 16 * width * group).collect())
    }

    fn registers(&self, k: &mut Scope<'_, Converged>) -> Copies {
        [(); 2].map(|()| [0f32; COPIES].map(|zero| k.variable(zero)))
    }

    /// One sum for each of a thread's elements of C, row by row.
    fn sums(&self, k: &mut Scope<'_, Converged>) -> Vec<Vec<Reg<f32>>> {
        let each = self.side / 16;
        (0..each).map(|_| (0..each).map(|_| k.variable(0f32)).collect()).collect()
    }

    /// Loads a thread's elements of the slabs from step `first` on; zeros beyond the matrices.
    fn load(&self, k: &mut Scope<'_, Converged>, first: impl UniformValue<Type = u32>, [to_a, to_b]: Copies) {
        let Arguments { a, b, m, n, depth, .. } = self.arguments;
        for (i, (to_a, to_b)) in to_a.into_iter().zip(to_b).enumerate() {
            let element = k.add(self.thread, i as u32 * THREADS);
            k.comment("A[row, step], neighbouring threads at neighbouring steps");
            let (in_row, in_step) = (k.div(element, self.depth), k.rem(element, self.depth));
            let (row, step) = (k.add(in_row, self.row), k.add(in_step, first));
            let from = k.row(a, row, depth);
            self.load_inside(k, [(row, m), (step, depth)], from, step, to_a);
            k.comment("B[step, column]");
            let (in_step, in_column) = (k.div(element, self.side), k.rem(element, self.side));
            let (step, column) = (k.add(in_step, first), k.add(in_column, self.column));
            let from = k.row(b, step, n);
            self.load_inside(k, [(step, depth), (column, n)], from, column, to_b);
        }
    }

    /// Loads element `index` of a row where both indices are inside of their sizes, else zero.
    fn load_inside(
        &self,
        k: &mut Scope<'_, Converged>,
        [first, second]: [(Reg<u32>, Uniform<u32>); 2],
        row: Pointer<f32, Global>,
        index: Reg<u32>,
        to: Reg<f32>,
    ) {
        let (first, second) = (k.lt(first.0, first.1), k.lt(second.0, second.1));
        let inside = k.both(first, second);
        let from = k.at(row, index);
        let element = k.load_or(inside, from, 0f32);
        k.assign(to, element);
    }

    /// Puts a thread's elements into shared memory.
    fn store(&self, k: &mut Scope<'_, Converged>, [from_a, from_b]: Copies) {
        for (i, (from_a, from_b)) in from_a.into_iter().zip(from_b).enumerate() {
            let element = k.add(self.thread, i as u32 * THREADS);
            let (row, step) = (k.div(element, self.depth), k.rem(element, self.depth));
            let transposed = k.mul_add(step, row_of_a(self.side), row);
            let (to_a, to_b) = (k.at_shared(self.a, transposed), k.at_shared(self.b, element));
            k.store(to_a, from_a);
            k.store(to_b, from_b);
        }
    }

    /// Adds a slab's products to a thread's sums.
    fn multiply(&self, k: &mut Scope<'_, Converged>, sums: &[Vec<Reg<f32>>]) {
        let (width, groups) = self.groups();
        let (thread_row, thread_column) = (k.shr(self.thread, 4u32), k.and(self.thread, 15u32));
        let (first_row, first_column) = (k.mul(thread_row, width), k.mul(thread_column, width));
        let (a, b) = (k.at_shared(self.a, first_row), k.at_shared(self.b, first_column));
        for step in 0..self.depth {
            k.comment(&format!("step {step} of the slab: sums += a column of A times a row of B"));
            let [rows, columns] = [(a, row_of_a(self.side)), (b, self.side)].map(|(operand, apart)| {
                let first = operand.plus(step * apart);
                groups.iter().flat_map(|group| vector(k, first.plus(*group), width)).collect::<Vec<_>>()
            });
            for (x, sums) in rows.iter().zip(sums) {
                columns.iter().zip(sums).for_each(|(y, sum)| k.accumulate(*sum, *x, *y));
            }
        }
    }

    /// Writes those of a thread's elements that are inside of C.
    fn write(&self, k: &mut Scope<'_, Converged>, sums: &[Vec<Reg<f32>>]) {
        let Arguments { c, m, n, .. } = self.arguments;
        let (thread_row, thread_column) = (k.shr(self.thread, 4u32), k.and(self.thread, 15u32));
        k.comment("rows and columns of C beyond its sizes are not written");
        let rows = self.indices(k, thread_row, self.row);
        let columns: Vec<(Reg<u32>, Pred)> =
            self.indices(k, thread_column, self.column).into_iter().map(|column| (column, k.lt(column, n))).collect();
        for (row, sums) in rows.into_iter().zip(sums) {
            let inside = k.lt(row, m);
            let c_row = k.row(c, row, n);
            k.if_(inside, |k| {
                for ((column, inside), sum) in columns.iter().zip(sums) {
                    let to = k.at(c_row, *column);
                    k.guarded(*inside, |k| k.store(to, *sum));
                }
            });
        }
    }

    /// A thread's rows or columns of C, whose first in the tile is `width` times its own.
    fn indices(&self, k: &mut Scope<'_, Converged>, thread: Reg<u32>, tile: Uniform<u32>) -> Vec<Reg<u32>> {
        let (width, groups) = self.groups();
        let first = k.mul_add(thread, width, tile);
        groups.iter().flat_map(|group| (0..width).map(move |i| group + i)).map(|i| k.add(first, i)).collect()
    }
}

/// Elements from one step of A's slab to the next. Those of larger tiles are padded: neighbouring threads store a column, in
/// different banks then. Callers know the slab of the smallest tile, which is 32 by 32.
fn row_of_a(side: u32) -> u32 {
    if side > 32 { side + 4 } else { side }
}

/// Two or four neighbours in shared memory.
fn vector(k: &mut Scope<'_, Converged>, from: Pointer<f32, Shared>, width: u32) -> Vec<Reg<f32>> {
    match width {
        2 => k.load_vector::<2, _, _>(from).to_vec(),
        _ => k.load_vector::<4, _, _>(from).to_vec(),
    }
}
