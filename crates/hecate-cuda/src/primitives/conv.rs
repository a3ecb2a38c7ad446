//! Short causal convolution with a state in front of each sequence.

use super::sequences::{last_rows, starts, sum_parts};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
    recording::Table,
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Conv, ConvDims, Unit},
};

pub(crate) const SOURCE: Source = source!("conv", "conv.cu");
pub(crate) const AT_ONCE: Source = source!("conv_taps", "conv_taps.cu");

/// Arrays and sizes of a call; `struct Call` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Call {
    x: Array,
    weight: Array,
    state: Array,
    starts: Pointer,
    rows: u64,
    channels: u64,
    sequences: u32,
    width: u32,
    silu: u32,
    unit: u32,
    square: f32,
    unused: u32,
}

kernels! { SOURCE {
    "conv_forward" Forward { call: Call, y: Array }
    "conv_through" Through { call: Call, dy: Array, du: Array }
    "conv_dx" InputGrad { call: Call, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dstate" StateGrad { call: Call, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dweight" Weights { call: Call, du: Array, parts: Pointer, length: u64, number: u32 }
} }

kernels! { AT_ONCE {
    "conv_forward_taps" TapsForward { call: Call, y: Array }
    "conv_forward_unit" UnitForward { call: Call, y: Array }
    "conv_gradients" Gradients {
        call: Call, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Pointer, length: u64
    }
    "conv_gradients_unit" UnitGradients {
        call: Call, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Pointer, length: u64
    }
} }

/// Consecutive rows that a thread takes; `STRETCH` in the kernels.
const STRETCH: usize = 8;

/// Taps that `conv_taps.cu` is for, and neighbouring channels of a thread of its gradients.
const TAPS: usize = 4;
const RUN: usize = 4;

/// Fewest rows, and most parts, that the gradient of the weights is first summed over. A part is of a multiple of these
/// rows, `DOWN * SEGMENT` in the kernels.
const PARTS: [usize; 2] = [200, 256];

/// Runs of channels of a block of `conv_gradients`; `ACROSS` in the kernels.
const ACROSS: usize = 32;

impl Call {
    fn new(dims: &ConvDims, [x, weight, state]: [&Tensor<Cuda>; 3], starts: &Table) -> Self {
        Self {
            x: x.into(),
            weight: weight.into(),
            state: state.into(),
            starts: starts.pointer,
            rows: dims.sequences.rows() as u64,
            channels: dims.channels as u64,
            sequences: dims.sequences.count() as u32,
            width: dims.width as u32,
            silu: dims.options.silu.into(),
            unit: dims.options.unit.map_or(0, |unit| unit.width as u32),
            square: dims.options.unit.map_or(0.0, |unit| unit.epsilon * unit.epsilon),
            unused: 0,
        }
    }
}

/// Neighbouring channels that a thread takes where there may be any number of taps.
fn neighbours(dims: &ConvDims) -> usize {
    if dims.channels.is_multiple_of(RUN) { RUN } else { 1 }
}

/// A thread for neighbouring channels of a stretch of rows.
fn by_stretch(dims: &ConvDims, neighbours: usize) -> Grid {
    Grid::elements(dims.sequences.rows().div_ceil(STRETCH) * dims.channels / neighbours)
}

/// Whether gradients come out of one kernel.
fn at_once(dims: &ConvDims) -> bool {
    dims.width == TAPS && dims.channels.is_multiple_of(RUN)
}

impl Conv for Cuda {
    /// Threads of a head are a power of two of a warp's, forward with 16 bytes each, backward with four channels. What is
    /// added to a length has a square in 32 bits.
    fn has_unit(&self, dims: &ConvDims) -> bool {
        let fits = |unit: &Unit| {
            matches!(unit.width, 8 | 16 | 32 | 64 | 128)
                && (unit.epsilon == 0.0 || (unit.epsilon * unit.epsilon).is_normal())
        };
        at_once(dims) && dims.options.unit.as_ref().is_some_and(fits)
    }

    fn conv(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let starts = starts(self, &dims.sequences)?;
        let y = self.empty(x.shape().clone(), x.dtype())?;
        let call = Call::new(dims, [x, weight, state], &starts);
        let (wide, y_at) = (call.x.wide(), (&y).into());
        if dims.options.unit.is_some() {
            self.launch(by_stretch(dims, wide), &UnitForward { call, y: y_at })?;
        } else if dims.width == TAPS && dims.channels.is_multiple_of(wide) {
            self.launch(by_stretch(dims, wide), &TapsForward { call, y: y_at })?;
        } else {
            self.launch(by_stretch(dims, neighbours(dims)), &Forward { call, y: y_at })?;
        }
        let last = last_rows(self, &dims.sequences, (dims.state(), x.dtype()), Some(state), Some(x))?;
        Ok((y, last))
    }

    fn conv_backward(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
        dy: &Tensor<Self>,
        dfinal: Option<&Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let starts = starts(self, &dims.sequences)?;
        let call = Call::new(dims, [x, weight, state], &starts);
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
        let (x_grad, state_grad) = (like(x)?, like(state)?);
        let (dx, dstate) = (Array::from(&x_grad), Array::from(&state_grad));
        let dfinal = dfinal.map_or(Array::NONE, Array::from);
        let rows = dims.sequences.rows();
        let length = rows.div_ceil(PARTS[1]).next_multiple_of(PARTS[0]);
        let number = rows.div_ceil(length);
        let parts = self.empty([number, dims.channels, dims.width], DType::F32)?;
        let (at, length) = (pointer(&parts), length as u64);
        if at_once(dims) {
            let across = dims.channels.div_ceil(RUN * ACROSS);
            let grid = Grid { blocks: (across, number, 1), ..Grid::blocks(1, 256) };
            match dims.options.unit {
                Some(_) => {
                    self.launch(grid, &UnitGradients { call, dy: dy.into(), dfinal, dx, dstate, parts: at, length })?;
                }
                None => self.launch(grid, &Gradients { call, dy: dy.into(), dfinal, dx, dstate, parts: at, length })?,
            }
        } else {
            let through = dims.options.silu.then(|| self.through(dims, call, dy)).transpose()?;
            let du = Array::from(through.as_ref().unwrap_or(dy));
            let grid = by_stretch(dims, neighbours(dims));
            self.launch(grid, &InputGrad { call, du, dfinal, dx, dstate })?;
            self.launch(Grid::elements(state.shape().count()), &StateGrad { call, du, dfinal, dx, dstate })?;
            let grid = Grid::elements(parts.shape().count());
            self.launch(grid, &Weights { call, du, parts: at, length, number: number as u32 })?;
        }
        Ok((x_grad, sum_parts(self, &parts, weight)?, state_grad))
    }
}

impl Cuda {
    /// The gradient of what is in front of SiLU, in 32 bits.
    fn through(&self, dims: &ConvDims, call: Call, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let through = self.empty(dy.shape().clone(), DType::F32)?;
        let grid = by_stretch(dims, neighbours(dims));
        self.launch(grid, &Through { call, dy: dy.into(), du: (&through).into() })?;
        Ok(through)
    }
}
