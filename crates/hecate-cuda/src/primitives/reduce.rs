//! Sums in two stages, in an order that sizes alone decide.

use crate::{
    Cuda,
    arguments::{In, Out, Void},
    device::Buffer,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Reduce};

/// `x.sum(0)`, `(x * y).sum(0)` and totals, with sums in 64 bits that do not depend on how the GPU is filled.
pub(crate) const SOURCE: KernelSource = kernel_source!("reduce", "reduce.cu");

kernels! { SOURCE {
    // x [count]; parts [blocks] in 64 bits.
    "total_parts" TotalParts { x: Array, parts: Out<f64>, count: u64, squares: u32 }
    "total" Total { parts: In<f64>, sum: Out<f32>, count: u32 }
    // x and y [rows, width], factor [rows, factors]; parts [blocks y, width] in 64 bits.
    "column_parts" ColumnParts {
        x: Array, y: Array, factor: In<f32>, parts: Out<f64>, rows: u64, width: u64, height: u64, columns: u32,
        terms: u32, factors: u32, wide: u32
    }
    // Of one sum or two, by block y.
    "column_totals" ColumnTotals {
        y: [Array; 2], parts: [In<Void>; 2], width: u64, count: u32, columns: u32, narrow: u32
    }
} }

/// Threads of a block.
const THREADS: usize = 256;

/// Elements that a thread adds up at least, where there are enough.
const RUN: usize = 8;

/// Blocks that fill a large GPU.
const BLOCKS: usize = 1024;

/// Columns of a block, or runs of them: a row of these is read at once.
const COLUMNS: usize = 32;

/// Columns of a block of `column_totals`, which reads few rows.
const TOTALS: usize = 8;

impl Reduce for Cuda {
    /// `[1]` in 32 bits.
    fn sum(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_of(self, x, false)
    }

    /// `[1]` in 32 bits: the sum of squares.
    fn sum_squares(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_of(self, x, true)
    }

    /// `[width]`, of the type of `x [.., width]`.
    fn sum_rows(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_columns(self, width, Terms::Values(x))
    }

    /// `[width]`, of the type of `x [.., width]`: the sum of `x y`.
    fn sum_products(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_columns(self, width, Terms::Products(x, y))
    }
}

/// Sum of all elements or of their squares.
fn sum_of(device: &Cuda, x: &Tensor<Cuda>, squares: bool) -> Result<Tensor<Cuda>> {
    let count = x.shape().count();
    // Enough elements a thread that sums are worth a block.
    let blocks = count.div_ceil(THREADS * RUN).clamp(1, BLOCKS);
    let parts = device.allocate(blocks * size_of::<f64>())?;
    let (x, squares) = (x.into(), u32::from(squares));
    let first = TotalParts { x, parts: parts.pointer(), count: count as u64, squares };
    device.launch(Grid::blocks(blocks, THREADS as u32), &first)?;
    total(device, &parts, blocks)
}

/// The sum of `count` elements of 64 bits, `[1]` in 32.
pub(super) fn total(device: &Cuda, parts: &Buffer, count: usize) -> Result<Tensor<Cuda>> {
    let sum = device.empty([1], DType::F32)?;
    let all = Total { parts: parts.pointer(), sum: pointer(&sum), count: count as u32 };
    device.launch(Grid::blocks(1, THREADS as u32), &all)?;
    Ok(sum)
}

/// What is added up over rows `[rows, width]`.
#[derive(Clone, Copy)]
pub(super) enum Terms<'a> {
    /// `x`.
    Values(&'a Tensor<Cuda>),
    /// `x y`.
    Products(&'a Tensor<Cuda>, &'a Tensor<Cuda>),
    /// `x r y`, a number of `r` for as many columns of a row as share one.
    Scaled(&'a Tensor<Cuda>, &'a Tensor<Cuda>, &'a Tensor<Cuda>),
}

/// `[width]`: sums over rows, of the type of `x`.
pub(super) fn sum_columns(device: &Cuda, width: usize, terms: Terms<'_>) -> Result<Tensor<Cuda>> {
    // Numbers of the enumeration in the kernels.
    let (x, y, factor, terms) = match terms {
        Terms::Values(x) => (x, x, None, 0),
        Terms::Products(x, y) => (x, y, None, 1),
        Terms::Scaled(x, factor, y) => (x, y, Some(factor), 2),
    };
    let rows = x.shape().count() / width;
    // Numbers that a row is times, each for its part of the columns.
    let factors = factor.map_or(1, |factor| factor.shape().count() / rows);
    // Runs of 16 bytes, where rows consist of whole ones.
    let wide = Array::from(x).wide();
    let runs = if (width / factors).is_multiple_of(wide) && x.dtype() == y.dtype() { width / wide } else { width };
    let columns = runs.next_power_of_two().min(COLUMNS);
    let across = runs.div_ceil(columns);
    // Rows of a part.
    let height = rows.div_ceil(BLOCKS / across.min(BLOCKS)).max(RUN * THREADS / columns);
    let count = rows.div_ceil(height);
    let parts = Parts::new(device, count, width)?;
    let first = ColumnParts {
        x: x.into(),
        y: y.into(),
        factor: factor.map_or(0, pointer),
        parts: parts.pointer(),
        rows: rows as u64,
        width: width as u64,
        height: height as u64,
        columns: columns as u32,
        terms,
        factors: factors as u32,
        wide: u32::from(runs < width),
    };
    device.launch(Grid { blocks: (across, count, 1), ..Grid::blocks(1, THREADS as u32) }, &first)?;
    parts.total(device, x.dtype())
}

/// Parts of a sum over rows, `[count, width]`.
pub(super) struct Parts {
    buffer: Buffer,
    count: usize,
    width: usize,
    narrow: bool,
}

impl Parts {
    /// Parts that are about to be written, elements of 64 bits.
    pub(super) fn new(device: &Cuda, count: usize, width: usize) -> Result<Self> {
        Self::of(device, count, width, size_of::<f64>())
    }

    /// The same of 32 bits: sums of a thread, which has no more.
    pub(super) fn narrow(device: &Cuda, count: usize, width: usize) -> Result<Self> {
        Self::of(device, count, width, size_of::<f32>())
    }

    /// Parts whose elements have so many bytes.
    fn of(device: &Cuda, count: usize, width: usize, bytes: usize) -> Result<Self> {
        // What is not written is not read either: blocks leave whole rows.
        Ok(Self { buffer: device.allocate(count * width * bytes)?, count, width, narrow: bytes == size_of::<f32>() })
    }

    /// `[count, width]`.
    pub(super) fn pointer(&self) -> Pointer {
        self.buffer.pointer()
    }

    /// `[width]`: the sum.
    pub(super) fn total(self, device: &Cuda, dtype: DType) -> Result<Tensor<Cuda>> {
        let sum = device.empty([self.width], dtype)?;
        add_up(device, vec![self], &[&sum])?;
        Ok(sum)
    }

    /// The same of two sums of one size, in one launch.
    pub(super) fn totals(both: [Self; 2], device: &Cuda, dtype: DType) -> Result<[Tensor<Cuda>; 2]> {
        let sum = || device.empty([both[0].width], dtype);
        let [first, second] = [sum()?, sum()?];
        add_up(device, both.into(), &[&first, &second])?;
        Ok([first, second])
    }
}

/// Adds up one or two sums of one size.
fn add_up(device: &Cuda, all: Vec<Parts>, sums: &[&Tensor<Cuda>]) -> Result<()> {
    let Some(&Parts { count, width, narrow, .. }) = all.first() else { return Ok(()) };
    debug_assert!(all.iter().all(|parts| (parts.count, parts.width, parts.narrow) == (count, width, narrow)));
    let columns = width.next_power_of_two().min(TOTALS);
    let mut call = ColumnTotals {
        y: [Array::NONE; 2],
        parts: [0; 2],
        width: width as u64,
        count: count as u32,
        columns: columns as u32,
        // Either width is added up in 64 bits, and rounded to the type once, at the end.
        narrow: narrow.into(),
    };
    // The second place stays empty where there is one sum.
    for (i, (parts, sum)) in all.iter().zip(sums).enumerate() {
        (call.y[i], call.parts[i]) = ((*sum).into(), parts.pointer());
    }
    let grid = Grid { blocks: (width.div_ceil(columns), all.len(), 1), ..Grid::blocks(1, THREADS as u32) };
    let bytes = all.iter().map(|parts| parts.buffer.len()).sum();
    device.launch_beside(grid, &call, sums, (all, bytes))
}
