//! Short causal convolution with a state in front of each sequence.
//!
//! `u_t = Σ_j w_j x_{t−W+1+j}` channel by channel, `y = silu(u)` or `u`, and heads of `y` brought to length 1 where
//! that is asked for. Inputs before a sequence are its state.

use super::sequences::{last_rows, starts, sum_parts};
use crate::{
    Cuda,
    device::Table,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Conv, ConvBackward, ConvDims, ConvInputs, ConvOutputs, L2Norm, LastRows},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("conv", "conv.cu");
pub(crate) const AT_ONCE: KernelSource = kernel_source!("conv_taps", "conv_taps.cu");

/// Arrays and sizes of a call; `struct ConvCall` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ConvCall {
    /// `x [rows, D]`, `weight [D, W]`, `state [N, W-1, D]`, `starts [N + 1]`.
    x: Array,
    weight: Array,
    state: Array,
    starts: Pointer,
    rows: u64,
    channels: u64,
    sequences: u32,
    width: u32,
    silu: u32,
    /// Channels of a head that is brought to length 1; 0: none.
    l2_norm: u32,
    /// The square of what is added to a length.
    square: f32,
    /// Fills the structure to a multiple of 8 bytes, as the compiler of the kernels does.
    unused: u32,
}

kernels! { SOURCE {
    // y, dy, du and dx [rows, D], dfinal and dstate [N, W-1, D], parts [number, D, W].
    "conv_forward" Forward { call: ConvCall, y: Array }
    "conv_through" Through { call: ConvCall, dy: Array, du: Array }
    "conv_dx" InputGrad { call: ConvCall, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dstate" StateGrad { call: ConvCall, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dweight" Weights { call: ConvCall, du: Array, parts: Pointer, length: u64, number: u32 }
} }

kernels! { AT_ONCE {
    // Four taps: the same arrays.
    "conv_forward_taps" TapsForward { call: ConvCall, y: Array }
    "conv_forward_l2_norm" L2NormForward { call: ConvCall, y: Array }
    "conv_gradients" Gradients {
        call: ConvCall, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Pointer, length: u64
    }
    "conv_gradients_l2_norm" L2NormGradients {
        call: ConvCall, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Pointer, length: u64
    }
} }

/// Consecutive rows that a thread takes; `ROWS_PER_THREAD` in the kernels.
const ROWS_PER_THREAD: usize = 8;

/// Taps that `conv_taps.cu` is for, and neighbouring channels of a thread of its gradients.
const TAPS: usize = 4;
const RUN: usize = 4;

/// Fewest rows, and most parts, that the gradient of the weights is first summed over. A part is of a multiple of these
/// rows, `DOWN * SEGMENT` in the kernels.
const PARTS: [usize; 2] = [200, 256];

/// Rows of a part of a short call, a fifth of these: its few parts would leave most of a GPU idle.
const SHORT: usize = 40;

/// Blocks under which a call is short.
const FEW: usize = 64;

/// Runs of channels of a block of `conv_gradients`; `ACROSS` in the kernels.
const ACROSS: usize = 32;

impl ConvCall {
    /// The call on these arrays, with the rows that sequences start at.
    fn new(dims: &ConvDims, inputs: &ConvInputs<&Tensor<Cuda>>, starts: &Table) -> Self {
        Self {
            x: inputs.x.into(),
            weight: inputs.weight.into(),
            state: inputs.state.into(),
            starts: starts.pointer,
            rows: dims.sequences.rows() as u64,
            channels: dims.channels as u64,
            sequences: dims.sequences.count() as u32,
            width: dims.width as u32,
            silu: dims.options.silu.into(),
            l2_norm: dims.options.l2_norm.map_or(0, |norm| norm.width as u32),
            square: dims.options.l2_norm.map_or(0.0, |norm| norm.epsilon * norm.epsilon),
            unused: 0,
        }
    }
}

/// Neighbouring channels that a thread takes where there may be any number of taps.
fn neighbours(dims: &ConvDims) -> usize {
    if dims.channels.is_multiple_of(RUN) { RUN } else { 1 }
}

/// A thread for neighbouring channels of a run of ROWS_PER_THREAD rows.
fn by_rows_per_thread(dims: &ConvDims, neighbours: usize) -> Grid {
    Grid::elements(dims.sequences.rows().div_ceil(ROWS_PER_THREAD) * dims.channels / neighbours)
}

/// Whether gradients come out of one kernel.
fn at_once(dims: &ConvDims) -> bool {
    dims.width == TAPS && dims.channels.is_multiple_of(RUN)
}

impl Conv for Cuda {
    /// Threads of a head are a power of two of a warp's, forward with 16 bytes each, backward with four channels. What is
    /// added to a length has a square in 32 bits.
    fn has_l2_norm(&self, dims: &ConvDims) -> bool {
        // Widths for which lanes of a warp share a head.
        let fits = |unit: &L2Norm| {
            matches!(unit.width, 8 | 16 | 32 | 64 | 128)
                && (unit.epsilon == 0.0 || (unit.epsilon * unit.epsilon).is_normal())
        };
        at_once(dims) && dims.options.l2_norm.as_ref().is_some_and(fits)
    }

    /// A thread has neighbouring channels of some rows.
    fn conv(&self, dims: &ConvDims, inputs: &ConvInputs<&Tensor<Self>>) -> Result<ConvOutputs<Tensor<Self>>> {
        // First rows of the sequences, which stay on the device.
        let (starts, x) = (starts(self, &dims.sequences)?, inputs.x);
        let y = self.empty(x.shape().clone(), x.dtype())?;
        let call = ConvCall::new(dims, inputs, &starts);
        let (wide, y_at) = (call.x.wide(), (&y).into());
        // Four taps by one kernel, any number of taps by another.
        if dims.options.l2_norm.is_some() {
            self.launch(by_rows_per_thread(dims, wide), &L2NormForward { call, y: y_at })?;
        } else if dims.width == TAPS && dims.channels.is_multiple_of(wide) {
            self.launch(by_rows_per_thread(dims, wide), &TapsForward { call, y: y_at })?;
        } else {
            self.launch(by_rows_per_thread(dims, neighbours(dims)), &Forward { call, y: y_at })?;
        }
        // The state after the call.
        let (sequences, before) = (&dims.sequences, Some(inputs.state));
        let state = last_rows(self, &LastRows { sequences, shape: dims.state(), before, x: Some(x) })?;
        Ok(ConvOutputs { y, state })
    }

    /// The weight's gradient is summed in parts over the rows.
    fn conv_backward(&self, dims: &ConvDims, call: &ConvBackward<'_, Self>) -> Result<ConvInputs<Tensor<Self>>> {
        let ConvBackward { inputs, dy, dfinal } = *call;
        let ConvInputs { x, weight, state } = inputs;
        let starts = starts(self, &dims.sequences)?;
        let call = ConvCall::new(dims, &inputs, &starts);
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
        let (x_grad, state_grad) = (like(x)?, like(state)?);
        let (dx, dstate) = (Array::from(&x_grad), Array::from(&state_grad));
        let dfinal = dfinal.map_or(Array::NONE, Array::from);
        let rows = dims.sequences.rows();
        // Rows of a part of `dweight`.
        let length = rows.div_ceil(PARTS[1]).next_multiple_of(PARTS[0]);
        // Blocks that parts of this length would be.
        let blocks = dims.channels.div_ceil(RUN * ACROSS) * rows.div_ceil(length);
        let length = if at_once(dims) && blocks < FEW && rows.div_ceil(SHORT) <= PARTS[1] { SHORT } else { length };
        // Parts of `dweight`.
        let number = rows.div_ceil(length);
        let parts = self.empty([number, dims.channels, dims.width], DType::F32)?;
        let (at, length) = (pointer(&parts), length as u64);
        if at_once(dims) {
            // Block x has channels, block y a part of the rows.
            let across = dims.channels.div_ceil(RUN * ACROSS);
            let grid = Grid { blocks: (across, number, 1), ..Grid::blocks(1, 256) };
            match dims.options.l2_norm {
                Some(_) => {
                    self.launch(grid, &L2NormGradients { call, dy: dy.into(), dfinal, dx, dstate, parts: at, length })?;
                }
                None => self.launch(grid, &Gradients { call, dy: dy.into(), dfinal, dx, dstate, parts: at, length })?,
            }
        } else {
            // Without SiLU du is dy.
            let through = dims.options.silu.then(|| self.through(dims, call, dy)).transpose()?;
            let du = Array::from(through.as_ref().unwrap_or(dy));
            let grid = by_rows_per_thread(dims, neighbours(dims));
            self.launch(grid, &InputGrad { call, du, dfinal, dx, dstate })?;
            self.launch(Grid::elements(state.shape().count()), &StateGrad { call, du, dfinal, dx, dstate })?;
            let grid = Grid::elements(parts.shape().count());
            self.launch(grid, &Weights { call, du, parts: at, length, number: number as u32 })?;
        }
        // Parts are added up in the order of rows: the same bits every time.
        Ok(ConvInputs { x: x_grad, weight: sum_parts(self, &parts, weight)?, state: state_grad })
    }
}

impl Cuda {
    /// The gradient of what is in front of SiLU, in 32 bits.
    fn through(&self, dims: &ConvDims, call: ConvCall, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let through = self.empty(dy.shape().clone(), DType::F32)?;
        let grid = by_rows_per_thread(dims, neighbours(dims));
        self.launch(grid, &Through { call, dy: dy.into(), du: (&through).into() })?;
        Ok(through)
    }
}
