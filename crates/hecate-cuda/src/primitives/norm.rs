//! Normalising rows.

use super::reduce::{Parts, Terms, sum_columns};
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
    gate: Array,
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

/// What kernels take that make all gradients; `NormaliseGradients` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct CallGradients {
    x: Array,
    dy: Array,
    dx: Array,
    weight: Array,
    gate: Array,
    dg: Array,
    inverse: Pointer,
    parts: Pointer,
    rows: u64,
    width: u64,
    lanes: u32,
}

kernels! { SOURCE {
    "normalise_short" Short { call: Call }
    "normalise_medium" Medium { call: Call }
    "normalise" Long { call: Call }
    "normalise_short_backward" ShortBackward { call: CallBackward }
    "normalise_medium_backward" MediumBackward { call: CallBackward }
    "normalise_backward" LongBackward { call: CallBackward }
    "normalise_short_gradients" ShortGradients { call: CallGradients }
    "normalise_medium_gradients" MediumGradients { call: CallGradients }
    "open_gate" OpenGate {
        x: Array, dy: Array, gate: Array, dg: Array, through: Array, weight: Array, inverse: Pointer, rows: u64, width: u64
    }
} }

impl Norm for Cuda {
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight), None)
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        gradients(self, x, weight, None, inverse, dy)
    }

    fn rms_norm_gated(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight), Some(g))
    }

    fn rms_norm_gated_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let dg = self.empty(g.shape().clone(), g.dtype())?;
        gradients(self, x, weight, Some((g, &dg)), inverse, dy).map(|(dx, dweight)| (dx, dweight, dg))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, None, None)
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
    gate: Option<&Tensor<Cuda>>,
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
        gate: gate.map_or(Array::NONE, Array::from),
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

/// Blocks that fill a large GPU, and the most that are worth their sums.
const BLOCKS: [usize; 2] = [512, 1 << 14];

/// Rows that a thread adds up in 32 bits, while there are blocks.
const SHORT: usize = 32;

/// `(dx, dweight)`; of a gate there is its gradient too, which is written.
fn gradients(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Tensor<Cuda>,
    gate: Option<(&Tensor<Cuda>, &Tensor<Cuda>)>,
    inverse: &Tensor<Cuda>,
    dy: &Tensor<Cuda>,
) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let wide = Array::from(x).wide();
    let spread = Rows::new(width, wide);
    if matches!(spread, Rows::Long) {
        let through = gate.map(|gate| open_gate(device, x, weight, gate, inverse, dy)).transpose()?;
        let dy = through.as_ref().unwrap_or(dy);
        let dx = normalise_backward(device, x, Some(weight), inverse, dy)?;
        return Ok((dx, sum_columns(device, width, Terms::Scaled(x, inverse, dy))?));
    }
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let lanes = spread.lanes(width, wide);
    let together = THREADS / lanes;
    let most = rows.div_ceil(together);
    let blocks = rows.div_ceil(together * SHORT).clamp(BLOCKS[0], BLOCKS[1]).min(most);
    let parts = Parts::new(device, blocks, width)?;
    let (gate, dg) = gate.map_or((Array::NONE, Array::NONE), |(g, dg)| (g.into(), dg.into()));
    let call = CallGradients {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        weight: weight.into(),
        gate,
        dg,
        inverse: pointer(inverse),
        parts: parts.pointer(),
        rows: rows as u64,
        width: width as u64,
        lanes: lanes as u32,
    };
    let grid = Grid::blocks(blocks, THREADS as u32);
    match spread {
        Rows::Short => device.launch(grid, &ShortGradients { call })?,
        _ => device.launch(grid, &MediumGradients { call })?,
    }
    Ok((dx, parts.total(device, weight.dtype())?))
}

/// What the gate lets through of `dy`, in 32 bits, since `dweight` adds it up; writes its gradient.
fn open_gate(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Tensor<Cuda>,
    (gate, dg): (&Tensor<Cuda>, &Tensor<Cuda>),
    inverse: &Tensor<Cuda>,
    dy: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    let through = device.empty(dy.shape().clone(), DType::F32)?;
    let arguments = OpenGate {
        x: x.into(),
        dy: dy.into(),
        gate: gate.into(),
        dg: dg.into(),
        through: (&through).into(),
        weight: weight.into(),
        inverse: pointer(inverse),
        rows: x.shape().rows() as u64,
        width: x.shape().last() as u64,
    };
    device.launch(Grid::elements(x.shape().count()), &arguments)?;
    Ok(through)
}
