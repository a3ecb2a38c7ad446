//! Normalising rows.

use super::reduce::{Terms, sum_columns};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Result, Tensor, primitives::Norm};

pub(crate) const SOURCE: Source = source!("norm", "norm.cu");

/// What forward kernels take; `Normalise` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Call {
    x: Array,
    y: Array,
    weight: Array,
    inverse: Pointer,
    rows: u64,
    width: u64,
    epsilon: f32,
    lanes: u32,
    l2: u32,
}

/// What backward kernels take; `NormaliseBackward` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct CallBackward {
    x: Array,
    dy: Array,
    dx: Array,
    weight: Array,
    inverse: Pointer,
    rows: u64,
    width: u64,
    share: f32,
    lanes: u32,
    l2: u32,
}

kernels! { SOURCE {
    "normalise_short" Short { call: Call }
    "normalise_medium" Medium { call: Call }
    "normalise" Long { call: Call }
    "normalise_short_backward" ShortBackward { call: CallBackward }
    "normalise_medium_backward" MediumBackward { call: CallBackward }
    "normalise_backward" LongBackward { call: CallBackward }
} }

impl Norm for Cuda {
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight))
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let dx = normalise_backward(self, x, Some(weight), inverse, dy)?;
        Ok((dx, sum_columns(self, x.shape().last(), Terms::Scaled(x, inverse, dy))?))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, None)
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}

/// Threads of a block.
const THREADS: usize = 256;

/// How rows are spread over threads.
#[derive(Clone, Copy)]
enum Rows {
    /// Every thread has a run of 16 bytes, of two rows.
    Short,
    /// Every lane of a warp has up to four of these.
    Medium,
    /// Rows are read twice.
    Long,
}

impl Rows {
    fn new(width: usize, wide: usize) -> Self {
        match width.div_ceil(wide) {
            1..=32 if width.is_multiple_of(wide) => Self::Short,
            33..=128 if width.is_multiple_of(wide) => Self::Medium,
            _ => Self::Long,
        }
    }

    /// Threads of a row: of a long one a warp, or a block where it is very long.
    fn lanes(self, width: usize, wide: usize) -> usize {
        match self {
            Self::Short => (width / wide).next_power_of_two(),
            Self::Medium => 32,
            Self::Long if width <= 1024 => 32,
            Self::Long => THREADS,
        }
    }

    /// Kernels of long rows go on in steps of the grid.
    fn grid(self, rows: usize, lanes: usize) -> Grid {
        let blocks = match self {
            Self::Short => rows.div_ceil(2 * THREADS / lanes),
            Self::Medium => rows.div_ceil(THREADS / lanes),
            Self::Long => rows.div_ceil(THREADS / lanes).min(65_535),
        };
        Grid::blocks(blocks, THREADS as u32)
    }
}

/// `(y, r)`; with a weight by the root of the mean square, without by the length.
fn normalise(
    device: &Cuda,
    epsilon: f32,
    x: &Tensor<Cuda>,
    weight: Option<&Tensor<Cuda>>,
) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let (y, inverse) = (device.empty(x.shape().clone(), x.dtype())?, device.empty([rows], DType::F32)?);
    let (x, weight) = (Array::from(x), weight.map(Array::from));
    let spread = Rows::new(width, x.wide());
    let lanes = spread.lanes(width, x.wide());
    let call = Call {
        x,
        y: (&y).into(),
        weight: weight.unwrap_or(Array::NONE),
        inverse: pointer(&inverse),
        rows: rows as u64,
        width: width as u64,
        epsilon,
        lanes: lanes as u32,
        l2: weight.is_none().into(),
    };
    let grid = spread.grid(rows, lanes);
    match spread {
        Rows::Short => device.launch(grid, &Short { call })?,
        Rows::Medium => device.launch(grid, &Medium { call })?,
        Rows::Long => device.launch(grid, &Long { call })?,
    }
    Ok((y, inverse))
}

fn normalise_backward(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weight: Option<&Tensor<Cuda>>,
    inverse: &Tensor<Cuda>,
    dy: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let (x, weight) = (Array::from(x), weight.map(Array::from));
    let spread = Rows::new(width, x.wide());
    let lanes = spread.lanes(width, x.wide());
    let call = CallBackward {
        x,
        dy: dy.into(),
        dx: (&dx).into(),
        weight: weight.unwrap_or(Array::NONE),
        inverse: pointer(inverse),
        rows: rows as u64,
        width: width as u64,
        share: if weight.is_some() { 1.0 / width as f32 } else { 1.0 },
        lanes: lanes as u32,
        l2: weight.is_none().into(),
    };
    let grid = spread.grid(rows, lanes);
    match spread {
        Rows::Short => device.launch(grid, &ShortBackward { call })?,
        Rows::Medium => device.launch(grid, &MediumBackward { call })?,
        Rows::Long => device.launch(grid, &LongBackward { call })?,
    }
    Ok(dx)
}
