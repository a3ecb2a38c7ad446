//! Normalising rows.
//!
//! A row of up to 128 runs of 16 bytes stays in registers between its sum and its result, so arrays are read once.
//! Longer rows are read twice. Sums are in 32 bits and in an order that depends on width and type alone.

use super::reduce::{Parts, Terms, sum_columns};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Norm, Normed, RmsNormBackward, RmsNormInputs},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("norm", "norm.cu");

/// What forward kernels take; `Normalise` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct NormCall {
    /// `x`, `y` and `gate` are `[rows, width]`, `weight` is `[width]`, `inverse` is `[rows]` in 32 bits.
    x: Array,
    y: Array,
    weight: Array,
    gate: Array,
    inverse: Pointer,
    rows: u64,
    width: u64,
    /// Under the root; for lengths its square is.
    epsilon: f32,
    /// Threads of a row.
    lanes: u32,
    /// 1 for lengths, without a weight.
    l2: u32,
}

/// What backward kernels take; `NormaliseBackward` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct NormBackwardCall {
    /// `x`, `dy` and `dx` are `[rows, width]`, `weight` is `[width]`, `inverse` is `[rows]`.
    x: Array,
    dy: Array,
    dx: Array,
    weight: Array,
    inverse: Pointer,
    rows: u64,
    width: u64,
    /// `1 / width`, or 1 for lengths.
    share: f32,
    /// Threads of a row.
    lanes: u32,
    /// 1 for lengths, without a weight.
    l2: u32,
}

/// What kernels take that make all gradients; `NormaliseGradients` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct NormGradientsCall {
    /// As above, and `gate` and `dg` are `[rows, width]` or not looked at.
    x: Array,
    dy: Array,
    dx: Array,
    weight: Array,
    gate: Array,
    dg: Array,
    inverse: Pointer,
    /// Of `dweight`: `[blocks, width]` in 64 bits.
    parts: Pointer,
    rows: u64,
    width: u64,
    lanes: u32,
}

kernels! { SOURCE {
    // By the length of rows, see [`Rows`]: y, then dx alone, then all gradients.
    "normalise_short" Short { call: NormCall }
    "normalise_medium" Medium { call: NormCall }
    "normalise" Long { call: NormCall }
    // x, dy and dx [rows, width].
    "normalise_short_backward" ShortBackward { call: NormBackwardCall }
    "normalise_medium_backward" MediumBackward { call: NormBackwardCall }
    "normalise_backward" LongBackward { call: NormBackwardCall }
    // The same with dweight, and with a gate dg.
    "normalise_short_gradients" ShortGradients { call: NormGradientsCall }
    "normalise_medium_gradients" MediumGradients { call: NormGradientsCall }
    // Arrays [rows, width], of long rows with a gate.
    "open_gate" OpenGate {
        x: Array, dy: Array, gate: Array, dg: Array, through: Array, weight: Array, inverse: Pointer, rows: u64, width: u64
    }
} }

impl Norm for Cuda {
    /// `y = w x / √(mean x² + ε)`, times `silu(g)` where there is a gate, and one over the root, `[rows]`.
    fn rms_norm(&self, epsilon: f32, inputs: &RmsNormInputs<&Tensor<Self>>) -> Result<Normed<Tensor<Self>>> {
        normalise(self, epsilon, inputs.x, Some(inputs.weight), inputs.g)
    }

    /// The gradient of the gate is written beside the others.
    fn rms_norm_backward(&self, call: &RmsNormBackward<'_, Self>) -> Result<RmsNormInputs<Tensor<Self>>> {
        let dg = call.inputs.g.map(|g| self.empty(g.shape().clone(), g.dtype())).transpose()?;
        gradients(self, call, dg)
    }

    /// `y = x / √(|x|² + ε²)` row by row, and one over the root, `[rows]`.
    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>> {
        normalise(self, epsilon, x, None, None)
    }

    /// `dx`, from what the forward left of each row.
    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}

/// Threads of a block.
const THREADS: usize = 256;

/// Rows that fill no GPU, even with a block each: those of tokens that are generated.
const FEW: usize = 64;

/// How rows are spread over threads.
#[derive(Clone, Copy)]
enum Rows {
    /// Every thread has a run of 16 bytes, of two rows.
    /// Rows of up to 32 runs.
    Short,
    /// Every lane of a warp has up to four of these.
    Medium,
    /// Rows are read twice.
    Long,
}

impl Rows {
    /// For rows of `width` elements, `wide` of them in 16 bytes.
    fn new(width: usize, wide: usize) -> Self {
        match width.div_ceil(wide) {
            // Rows that runs do not fill begin where no run may begin.
            1..=32 if width.is_multiple_of(wide) => Self::Short,
            33..=128 if width.is_multiple_of(wide) => Self::Medium,
            _ => Self::Long,
        }
    }

    /// Threads of a row: of a long one a warp, or a block where it is very long.
    fn lanes(self, width: usize, wide: usize) -> usize {
        match self {
            // A power of two, so that sums go by shuffles among neighbouring lanes.
            Self::Short => (width / wide).next_power_of_two(),
            Self::Medium => 32,
            Self::Long if width <= 1024 => 32,
            Self::Long => THREADS,
        }
    }

    /// Kernels of long rows go on in steps of the grid.
    /// Blocks of [`THREADS`] threads for `rows` rows.
    fn grid(self, rows: usize, lanes: usize) -> Grid {
        let blocks = match self {
            Self::Short => rows.div_ceil(2 * THREADS / lanes),
            Self::Medium => rows.div_ceil(THREADS / lanes),
            // More rows than blocks are taken in turn.
            Self::Long => rows.div_ceil(THREADS / lanes).min(65_535),
        };
        Grid::blocks(blocks, THREADS as u32)
    }
}

/// `y` and `r`; with a weight by the root of the mean square, without by the length.
fn normalise(
    device: &Cuda,
    epsilon: f32,
    x: &Tensor<Cuda>,
    weight: Option<&Tensor<Cuda>>,
    gate: Option<&Tensor<Cuda>>,
) -> Result<Normed<Tensor<Cuda>>> {
    // Rows are all axes but the last.
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let (y, inverse) = (device.empty(x.shape().clone(), x.dtype())?, device.empty([rows], DType::F32)?);
    let (x, weight) = (Array::from(x), weight.map(Array::from));
    // Which kernel, and how many threads a row has.
    let spread = Rows::new(width, x.wide());
    let lanes = match spread {
        // A block each of a few: a warp would go over the row six times or more, and wait as often.
        Rows::Long if rows <= FEW => THREADS,
        _ => spread.lanes(width, x.wide()),
    };
    let call = NormCall {
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
    Ok(Normed { y, inverse })
}

/// `dx` of the shape of `x`; with a weight by the root of the mean square, without by the length.
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
    // `inverse` is what the forward left of each row.
    let call = NormBackwardCall {
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
///
/// Each block leaves a row of `dweight` to be summed, 8 bytes an element.
const BLOCKS: [usize; 2] = [512, 1 << 14];

/// Rows that a thread adds up in 32 bits, while there are blocks.
///
/// A longer sum in 32 bits would lose digits that the sum over blocks, in 64, could not bring back.
const SHORT: usize = 32;

/// All gradients; that of the gate, where there is one, is written to `dg`.
fn gradients(
    device: &Cuda,
    call: &RmsNormBackward<'_, Cuda>,
    dg: Option<Tensor<Cuda>>,
) -> Result<RmsNormInputs<Tensor<Cuda>>> {
    let RmsNormBackward { inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let wide = Array::from(x).wide();
    let spread = Rows::new(width, wide);
    // Long rows are read twice: the gate first, then dx, then sums over rows.
    if matches!(spread, Rows::Long) {
        let through = g.zip(dg.as_ref()).map(|(g, dg)| open_gate(device, call, g, dg)).transpose()?;
        let dy = through.as_ref().unwrap_or(dy);
        let dx = normalise_backward(device, x, Some(weight), inverse, dy)?;
        return Ok(RmsNormInputs { x: dx, weight: sum_columns(device, width, Terms::Scaled(x, inverse, dy))?, g: dg });
    }
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let lanes = spread.lanes(width, wide);
    // A block has `together` rows at a time; each leaves a part of `dweight`.
    let together = THREADS / lanes;
    // No more blocks than there are rows, and no more parts of `dweight` than pay.
    let most = rows.div_ceil(together);
    let blocks = rows.div_ceil(together * SHORT).clamp(BLOCKS[0], BLOCKS[1]).min(most);
    // `[blocks, width]` in 64 bits.
    let parts = Parts::new(device, blocks, width)?;
    let call = NormGradientsCall {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        weight: weight.into(),
        gate: g.map_or(Array::NONE, Array::from),
        dg: dg.as_ref().map_or(Array::NONE, Array::from),
        inverse: pointer(inverse),
        parts: parts.pointer(),
        rows: rows as u64,
        width: width as u64,
        lanes: lanes as u32,
    };
    // Blocks go through rows in turn.
    let grid = Grid::blocks(blocks, THREADS as u32);
    match spread {
        Rows::Short => device.launch(grid, &ShortGradients { call })?,
        _ => device.launch(grid, &MediumGradients { call })?,
    }
    Ok(RmsNormInputs { x: dx, weight: parts.total(device, weight.dtype())?, g: dg })
}

/// What the gate lets through of `dy`, in 32 bits, since `dweight` adds it up; writes its gradient.
fn open_gate(
    device: &Cuda,
    call: &RmsNormBackward<'_, Cuda>,
    gate: &Tensor<Cuda>,
    dg: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    let RmsNormBackward { inputs: RmsNormInputs { x, weight, .. }, inverse, dy } = *call;
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
