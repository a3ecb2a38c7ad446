//! Sums in stages, in an order that sizes alone decide.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WORKGROUP, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Reduce};

/// Both kernels.
const TEXT: &str = include_str!("reduce.wgsl");
/// For any adapter, and for one with subgroups.
static SOURCES: [WgslSource; 2] = [
    WgslSource { name: "reduce", parts: &[PRELUDE, WORKGROUP[0], ReduceArgs::WGSL, TEXT] },
    WgslSource { name: "reduce_subgroups", parts: &[PRELUDE, WORKGROUP[1], ReduceArgs::WGSL, TEXT] },
];

/// `SQUARES` and `TERMS`.
type Constants = [(&'static str, u32); 2];

/// Whether values are squared, and what `columns` adds up.
const fn constants(squares: bool, terms: u32) -> Constants {
    [("SQUARES", squares as u32), ("TERMS", terms)]
}

/// Only totals have a variant with subgroups.
const fn kernel<'a>(subgroups: bool, entry: &'static str, constants: &'a Constants) -> Kernel<'a> {
    Kernel { source: &SOURCES[subgroups as usize], entry, constants }
}

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel(false, "total", &CONSTANTS[0]),
    kernel(false, "total", &CONSTANTS[1]),
    kernel(true, "total", &CONSTANTS[0]),
    kernel(true, "total", &CONSTANTS[1]),
    kernel(false, "columns", &CONSTANTS[0]),
    kernel(false, "columns", &CONSTANTS[2]),
    kernel(false, "columns", &CONSTANTS[3]),
];

/// Values, squares, products, scaled products.
const CONSTANTS: [Constants; 4] = [constants(false, 0), constants(true, 0), constants(false, 1), constants(false, 2)];

parameters! {
    /// What sums are told.
    struct ReduceArgs {
        /// Elements, or rows.
        count: u32,
        /// Elements of a row, or number of sums.
        width: u32,
        /// Rows that an invocation adds up.
        height: u32,
        /// Where the sums of `total` begin.
        start: u32,
        /// Columns that share a factor.
        shared_columns: u32,
    }
}

/// Elements that a workgroup adds up; `BLOCK` in the kernel.
const BLOCK: usize = 4096;

/// Rows that an invocation adds up.
const HEIGHT: usize = 32;

impl Reduce for Wgpu {
    /// `Σ x`, `[1]` in 32 bits.
    /// `x` has any shape; each round adds up 4096 elements a workgroup.
    fn sum(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(self, &self.widened(x)?, false)
    }

    /// `Σ x²`, `[1]` in 32 bits.
    /// Elements are squared in the first round alone.
    fn sum_squares(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(self, &self.widened(x)?, true)
    }

    /// `[width]`: sums over all rows.
    /// `x.view(-1, width).sum(0)`, of the type of `x`.
    fn sum_rows(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_columns(self, width, Terms::Values(x))
    }

    /// `(x * y).view(-1, width).sum(0)`, without an array of products.
    fn sum_products(&self, _: Checked<Self>, width: usize, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_columns(self, width, Terms::Products(x, y))
    }
}

/// Sum of all elements or of their squares, `[1]`.
fn total(device: &Wgpu, x: &Tensor<Wgpu>, squares: bool) -> Result<Tensor<Wgpu>> {
    let (mut sums, mut squares) = (x.clone(), squares);
    // Each round leaves one sum for every 4096 elements.
    loop {
        let groups = blocks(&sums);
        let parts = device.empty([groups], DType::F32)?;
        blocks_into(device, &sums, squares, &parts, 0)?;
        if groups == 1 {
            return Ok(parts);
        }
        (sums, squares) = (parts, false);
    }
}

/// Sum of the squares of all elements of all arrays, `[1]`.
pub(super) fn total_squares(device: &Wgpu, arrays: &[&Tensor<Wgpu>]) -> Result<Tensor<Wgpu>> {
    // One sum for each block of each array, then the sum of those.
    let parts = device.empty([arrays.iter().map(|x| blocks(x)).sum::<usize>()], DType::F32)?;
    let mut start = 0;
    for x in arrays {
        blocks_into(device, &device.widened(x)?, true, &parts, start)?;
        start += blocks(x);
    }
    total(device, &parts, false)
}

/// How many workgroups add an array up.
fn blocks(x: &Tensor<Wgpu>) -> usize {
    x.shape().count().div_ceil(BLOCK)
}

/// A sum for every block of `x`, into `parts` from `start`.
fn blocks_into(device: &Wgpu, x: &Tensor<Wgpu>, squares: bool, parts: &Tensor<Wgpu>, start: usize) -> Result<()> {
    let (count, width) = (x.shape().count() as u32, blocks(x) as u32);
    let args = ReduceArgs { count, width, height: 0, start: start as u32, shared_columns: 1 };
    let bindings = [Binding::Write(parts), Binding::Read(x)];
    device.launch(&kernel(device.has_subgroups(), "total", &constants(squares, 0)), (blocks(x), 1, 1), &args, &bindings)
}

/// What is added up over rows `[rows, width]`.
#[derive(Clone, Copy)]
pub(crate) enum Terms<'a> {
    /// `x`.
    Values(&'a Tensor<Wgpu>),
    /// `x y`.
    Products(&'a Tensor<Wgpu>, &'a Tensor<Wgpu>),
    /// `x r y`, a number of `r` for as many columns of a row as share one.
    Scaled(&'a Tensor<Wgpu>, &'a Tensor<Wgpu>, &'a Tensor<Wgpu>),
}

/// `[width]`: sums over rows, of the type of `x`.
pub(crate) fn sum_columns(device: &Wgpu, width: usize, terms: Terms<'_>) -> Result<Tensor<Wgpu>> {
    // A kernel is given all the arrays that it could look at.
    let (arrays, number) = match terms {
        Terms::Values(x) => ([x; 3], 0),
        Terms::Products(x, y) => ([x, y, x], 1),
        Terms::Scaled(x, factor, y) => ([x, y, factor], 2),
    };
    // 1 for terms without a factor.
    let shared_columns = (arrays[0].shape().count() / arrays[2].shape().count()) as u32;
    let dtype = arrays[0].dtype();
    let [x, y, factor] = arrays.map(|x| device.widened(x));
    let mut arrays = [x?, y?, factor?];
    let (mut rows, mut number) = (arrays[0].shape().count() / width, number);
    // Each round leaves one row of sums for every 32 rows.
    loop {
        let parts = rows.div_ceil(HEIGHT);
        let sums = device.empty([parts, width], DType::F32)?;
        let args =
            ReduceArgs { count: rows as u32, width: width as u32, height: HEIGHT as u32, start: 0, shared_columns };
        let bindings: Vec<_> = std::iter::once(Binding::Write(&sums)).chain(arrays.iter().map(Binding::Read)).collect();
        let groups = ((parts * width).div_ceil(64), 1, 1);
        device.launch(&kernel(false, "columns", &constants(false, number)), groups, &args, &bindings)?;
        if parts == 1 {
            return device.rounded(sums.reshape([width])?, dtype);
        }
        (arrays, rows, number) = ([sums.clone(), sums.clone(), sums], parts, 0);
    }
}
