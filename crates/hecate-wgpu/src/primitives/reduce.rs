//! Sums in stages, in an order that sizes alone decide.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source, WORKGROUP},
};
use hecate_core::{DType, Result, Tensor, primitives::Reduce};

const SOURCE: Source = Source { name: "reduce", parts: &[PRELUDE, WORKGROUP, include_str!("reduce.wgsl")] };

type Constants = [(&'static str, u32); 2];

const fn constants(squares: bool, terms: u32) -> Constants {
    [("SQUARES", squares as u32), ("TERMS", terms)]
}

const fn kernel<'a>(entry: &'static str, constants: &'a Constants) -> Kernel<'a> {
    Kernel { source: &SOURCE, entry, constants }
}

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel("total", &CONSTANTS[0]),
    kernel("total", &CONSTANTS[1]),
    kernel("columns", &CONSTANTS[0]),
    kernel("columns", &CONSTANTS[2]),
    kernel("columns", &CONSTANTS[3]),
];

const CONSTANTS: [Constants; 4] = [constants(false, 0), constants(true, 0), constants(false, 1), constants(false, 2)];

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Args {
    count: u32,
    width: u32,
    height: u32,
    unused: u32,
}

/// Elements that a workgroup adds up; `SPAN` in the kernel.
pub(super) const SPAN: usize = 4096;

/// Rows that an invocation adds up.
const HEIGHT: usize = 32;

impl Reduce for Wgpu {
    fn sum(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(self, &self.widened(x)?, false)
    }

    fn sum_squares(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        total(self, &self.widened(x)?, true)
    }

    fn sum_rows(&self, width: usize, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        sum_columns(self, width, Terms::Values(x))
    }
}

/// Sum of all elements or of their squares, `[1]`.
pub(super) fn total(device: &Wgpu, x: &Tensor<Wgpu>, squares: bool) -> Result<Tensor<Wgpu>> {
    let (mut sums, mut squares) = (x.clone(), squares);
    loop {
        let count = sums.shape().count();
        let groups = count.div_ceil(SPAN);
        let parts = device.empty([groups], DType::F32)?;
        let args = Args { count: count as u32, width: 0, height: 0, unused: 0 };
        let bindings = [Binding::Write(&parts), Binding::Read(&sums)];
        device.launch(&kernel("total", &constants(squares, 0)), (groups, 1, 1), &args, &bindings)?;
        if groups == 1 {
            return Ok(parts);
        }
        (sums, squares) = (parts, false);
    }
}

/// What is added up over rows `[rows, width]`.
#[derive(Clone, Copy)]
#[allow(dead_code)]
pub(crate) enum Terms<'a> {
    /// `x`.
    Values(&'a Tensor<Wgpu>),
    /// `x y`.
    Products(&'a Tensor<Wgpu>, &'a Tensor<Wgpu>),
    /// `x r y`, `r [rows]`.
    Scaled(&'a Tensor<Wgpu>, &'a Tensor<Wgpu>, &'a Tensor<Wgpu>),
}

/// `[width]`: sums over rows, of the type of `x`.
pub(crate) fn sum_columns(device: &Wgpu, width: usize, terms: Terms<'_>) -> Result<Tensor<Wgpu>> {
    let (arrays, number) = match terms {
        Terms::Values(x) => (vec![x], 0),
        Terms::Products(x, y) => (vec![x, y], 1),
        Terms::Scaled(x, factor, y) => (vec![x, y, factor], 2),
    };
    let dtype = arrays[0].dtype();
    let mut arrays = arrays.into_iter().map(|x| device.widened(x)).collect::<Result<Vec<_>>>()?;
    let (mut rows, mut number) = (arrays[0].shape().count() / width, number);
    loop {
        let parts = rows.div_ceil(HEIGHT);
        let sums = device.empty([parts, width], DType::F32)?;
        let args = Args { count: rows as u32, width: width as u32, height: HEIGHT as u32, unused: 0 };
        let bindings: Vec<_> = std::iter::once(Binding::Write(&sums)).chain(arrays.iter().map(Binding::Read)).collect();
        let groups = ((parts * width).div_ceil(64), 1, 1);
        device.launch(&kernel("columns", &constants(false, number)), groups, &args, &bindings)?;
        if parts == 1 {
            return device.rounded(sums.reshape([width])?, dtype);
        }
        (arrays, rows, number) = (vec![sums], parts, 0);
    }
}
