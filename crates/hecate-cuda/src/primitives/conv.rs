//! Short causal convolution with a state in front of each sequence.
//!
//! `u_t = Σ_j w_j x_{t−W+1+j}` channel by channel, `y = silu(u)` or `u`, and heads of `y` brought to length 1 where
//! that is asked for. Inputs before a sequence are its state.

use super::sequences::{last_rows, starts, sum_parts};
use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    device::Table,
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Conv, ConvBackward, ConvDims, ConvInputs, ConvOutputs, L2Norm, LastRows},
};

/// `F.conv1d(cat(state, x), weight, groups=channels)`, `F.silu` of it, and gradients, with any number of taps.
pub(crate) const SOURCE: KernelSource = kernel_source!("conv", "conv.cu");
/// The same with four taps, also of several convolutions, and with heads brought to length 1.
pub(crate) const AT_ONCE: KernelSource = kernel_source!("conv_taps", "conv_taps.cu");

arguments! {
    /// Arrays and sizes of a call; `struct ConvCall` in the kernels.
    struct ConvCall {
        /// `x [rows, D]`, `weight [D, W]`, `state [N, W-1, D]`, `starts [N + 1]`.
        x: Array,
        weight: Array,
        state: Array,
        starts: In<u32>,
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
}

kernels! { SOURCE {
    // y, dy, du and dx [rows, D], dfinal and dstate [N, W-1, D], parts [number, D, W].
    "conv_forward" Forward { call: ConvCall, y: Array }
    "conv_through" Through { call: ConvCall, dy: Array, du: Array }
    "conv_dx" InputGrad { call: ConvCall, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dstate" StateGrad { call: ConvCall, du: Array, dfinal: Array, dx: Array, dstate: Array }
    "conv_dweight" Weights { call: ConvCall, du: Array, parts: Out<f32>, length: u64, number: u32 }
} }

kernels! { AT_ONCE {
    // Four taps: the same arrays.
    "conv_forward_taps" TapsForward { call: ConvCall, y: Array }
    "conv_forward_l2_norm" L2NormForward { call: ConvCall, y: Array }
    "conv_gradients" Gradients {
        call: ConvCall, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Out<f32>, length: u64
    }
    "conv_gradients_l2_norm" L2NormGradients {
        call: ConvCall, dy: Array, dfinal: Array, dx: Array, dstate: Array, parts: Out<f32>, length: u64
    }
} }

/// Most convolutions of one launch; `MOST_EACH` in the kernels.
const MOST_EACH: usize = 4;

kernels! { AT_ONCE {
    "conv_forward_each" ForwardEach { each: [TapsForward; MOST_EACH] }
    "conv_gradients_each" GradientsEach { each: [Gradients; MOST_EACH] }
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

// Core has checked that `x` is `[rows, D]`, `weight` `[D, W]` and `state` `[N, W-1, D]`, of one device.
impl Conv for Cuda {
    /// Threads of a head are a power of two of a warp's, forward with 16 bytes each, backward with four channels. What is
    /// added to a length has a square in 32 bits.
    /// Elsewhere core brings heads to length 1 by a kernel of its own.
    fn has_l2_norm(&self, dims: &ConvDims) -> bool {
        // Widths for which lanes of a warp share a head.
        let fits = |unit: &L2Norm| {
            matches!(unit.width, 8 | 16 | 32 | 64 | 128)
                && (unit.epsilon == 0.0 || (unit.epsilon * unit.epsilon).is_normal())
        };
        at_once(dims) && dims.options.l2_norm.as_ref().is_some_and(fits)
    }

    /// A thread has neighbouring channels of some rows.
    /// `y` has the shape and type of `x`; the state after is `[N, W-1, D]`, the last inputs of each sequence.
    fn conv(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        inputs: &ConvInputs<&Tensor<Self>>,
    ) -> Result<ConvOutputs<Tensor<Self>>> {
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
        self.with_state(dims, inputs, y)
    }

    /// The weight's gradient is summed in parts over the rows.
    /// Gradients have the shapes and types of `x`, `weight` and `state`; parts of sums have 32 bits.
    fn conv_backward(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        call: &ConvBackward<'_, Self>,
    ) -> Result<ConvInputs<Tensor<Self>>> {
        let ConvBackward { inputs, dy, dfinal } = *call;
        let ConvInputs { x, weight, state } = inputs;
        let starts = starts(self, &dims.sequences)?;
        let call = ConvCall::new(dims, &inputs, &starts);
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
        let (x_grad, state_grad) = (like(x)?, like(state)?);
        let (dx, dstate) = (Array::from(&x_grad), Array::from(&state_grad));
        let dfinal = dfinal.map_or(Array::NONE, Array::from);
        let [number, length] = parts(dims);
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

    /// One launch of those with four taps, which have as many blocks as a GPU has room for only together.
    fn conv_each(
        &self,
        checked: Checked<Self>,
        calls: &[(ConvDims, ConvInputs<&Tensor<Self>>)],
    ) -> Result<Vec<ConvOutputs<Tensor<Self>>>> {
        // Channels of 16 bytes, which a thread takes.
        let wide = calls.first().map_or(1, |(_, inputs)| Array::from(inputs.x).wide());
        if !together(calls.iter().map(|(dims, inputs)| (dims, inputs.x)), wide) {
            return calls.iter().map(|(dims, inputs)| self.conv(checked, dims, inputs)).collect();
        }
        // Arguments, the result, and a table that has to live until the launch.
        let mut made = Vec::new();
        for (dims, inputs) in calls {
            let (starts, y) = (starts(self, &dims.sequences)?, self.empty(inputs.x.shape().clone(), inputs.x.dtype())?);
            made.push((TapsForward { call: ConvCall::new(dims, inputs, &starts), y: (&y).into() }, y, starts));
        }
        // Places that no block has are like the first.
        let each = std::array::from_fn(|i| made.get(i).unwrap_or(&made[0]).0);
        // Threads of narrower ones find nothing to do.
        let blocks = calls.iter().map(|(dims, _)| by_rows_per_thread(dims, wide).blocks.0).max().unwrap_or(1);
        self.launch(Grid { blocks: (blocks, calls.len(), 1), ..Grid::blocks(1, 256) }, &ForwardEach { each })?;
        // States come after, beside the main line of a graph.
        calls.iter().zip(made).map(|((dims, inputs), (_, y, _))| self.with_state(dims, inputs, y)).collect()
    }

    /// Likewise; each weight's gradient is summed in parts over the rows.
    fn conv_each_backward(
        &self,
        checked: Checked<Self>,
        calls: &[(ConvDims, ConvBackward<'_, Self>)],
    ) -> Result<Vec<ConvInputs<Tensor<Self>>>> {
        if !together(calls.iter().map(|(dims, call)| (dims, call.dy)), RUN) {
            return calls.iter().map(|(dims, call)| self.conv_backward(checked, dims, call)).collect();
        }
        let mut made = Vec::new();
        for (dims, ConvBackward { inputs, dy, dfinal }) in calls {
            let starts = starts(self, &dims.sequences)?;
            let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
            let (dx, dstate, [number, length]) = (like(inputs.x)?, like(inputs.state)?, parts(dims));
            // A part of the rows has sums of its own.
            let sums = self.empty([number, dims.channels, dims.width], DType::F32)?;
            let gradients = Gradients {
                call: ConvCall::new(dims, inputs, &starts),
                dy: (*dy).into(),
                dfinal: dfinal.map_or(Array::NONE, Array::from),
                dx: (&dx).into(),
                dstate: (&dstate).into(),
                parts: pointer(&sums),
                length: length as u64,
            };
            made.push((gradients, [dx, dstate, sums], starts));
        }
        let each = std::array::from_fn(|i| made.get(i).unwrap_or(&made[0]).0);
        let across = calls.iter().map(|(dims, _)| dims.channels.div_ceil(RUN * ACROSS)).max().unwrap_or(1);
        // Block z is of one of them.
        let number = parts(&calls[0].0)[0];
        self.launch(Grid { blocks: (across, number, calls.len()), ..Grid::blocks(1, 256) }, &GradientsEach { each })?;
        // Parts are added up in the order of rows: the same bits every time.
        let gradients = calls.iter().zip(made).map(|((_, call), (_, [x, state, sums], _))| {
            Ok(ConvInputs { x, weight: sum_parts(self, &sums, call.inputs.weight)?, state })
        });
        gradients.collect()
    }
}

/// Whether these go into one launch: several, of one type over the same rows, with as many parts.
///
/// One alone of width 128 and 2,048 rows has 16 blocks forward, where an H100 has 132 multiprocessors.
/// Blocks of one launch share its grid, so calls must agree on rows and parts; channels may differ.
fn together<'a>(calls: impl Iterator<Item = (&'a ConvDims, &'a Tensor<Cuda>)> + Clone, wide: usize) -> bool {
    let Some((first, x)) = calls.clone().next() else { return false };
    let like = |(dims, other): (&ConvDims, &Tensor<Cuda>)| {
        // What the kernels of four taps ask for.
        let taps = dims.width == TAPS && dims.channels.is_multiple_of(wide);
        taps && other.dtype() == x.dtype() && dims.sequences == first.sequences && parts(dims) == parts(first)
    };
    // Nothing is started for no rows.
    (2..=MOST_EACH).contains(&calls.clone().count()) && first.sequences.rows() > 0 && calls.clone().all(like)
}

/// Parts over the rows that the gradient of a weight is first summed in, and the rows of each.
fn parts(dims: &ConvDims) -> [usize; 2] {
    let rows = dims.sequences.rows();
    // Few parts of many rows each.
    let length = rows.div_ceil(PARTS[1]).next_multiple_of(PARTS[0]).max(PARTS[0]);
    // Blocks that parts of this length would be.
    let blocks = dims.channels.div_ceil(RUN * ACROSS) * rows.div_ceil(length);
    let length = if at_once(dims) && blocks < FEW && rows.div_ceil(SHORT) <= PARTS[1] { SHORT } else { length };
    [rows.div_ceil(length), length]
}

impl Cuda {
    /// `y`, and the state after the call.
    fn with_state(
        &self,
        dims: &ConvDims,
        inputs: &ConvInputs<&Tensor<Self>>,
        y: Tensor<Self>,
    ) -> Result<ConvOutputs<Tensor<Self>>> {
        let (sequences, before) = (&dims.sequences, Some(inputs.state));
        let state = last_rows(self, &LastRows { sequences, shape: dims.state(), before, x: Some(inputs.x) })?;
        Ok(ConvOutputs { y, state })
    }

    /// The gradient of what is in front of SiLU, in 32 bits.
    /// Taps read it at `W` places, so it is made once instead of at each of them.
    fn through(&self, dims: &ConvDims, call: ConvCall, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let through = self.empty(dy.shape().clone(), DType::F32)?;
        let grid = by_rows_per_thread(dims, neighbours(dims));
        self.launch(grid, &Through { call, dy: dy.into(), du: (&through).into() })?;
        Ok(through)
    }
}
