//! Short causal convolution with a state in front of each sequence.

use super::{
    sequences::{last_rows, starts},
    sums::sum_parts,
};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Conv, ConvBackward, ConvDims, ConvInputs, ConvOutputs, LastRows},
};

/// What both files of kernels share.
const TEXT: &str = include_str!("conv.wgsl");
/// What reads rows of tokens before the one at hand.
const FORWARD: WgslSource =
    WgslSource { name: "conv_forward", parts: &[PRELUDE, ConvArgs::WGSL, TEXT, include_str!("conv_forward.wgsl")] };
/// What reads gradients of rows after it.
const BACKWARD: WgslSource =
    WgslSource { name: "conv_backward", parts: &[PRELUDE, ConvArgs::WGSL, TEXT, include_str!("conv_backward.wgsl")] };

/// `y [rows,D]`: an invocation makes a channel of 8 rows.
const RESULTS: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_forward", constants: &[] };
/// The gradient in front of SiLU `[rows,D]`, of the same shape of work.
const THROUGH: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_through", constants: &[] };
/// Parts of the weights' gradient `[parts,D,W]`: an invocation sums one tap of one channel over a part's rows.
const WEIGHTS: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_dweight", constants: &[] };
/// `dx [rows,D]`: an invocation makes a channel of 8 rows.
const INPUTS: Kernel<'static> = Kernel { source: &BACKWARD, entry: "conv_dx", constants: &[] };
/// `dstate [N,W−1,D]`: an invocation makes one element.
const STATES: Kernel<'static> = Kernel { source: &BACKWARD, entry: "conv_dstate", constants: &[] };

/// Every kernel of both files.
pub(crate) const KERNELS: &[Kernel<'static>] = &[RESULTS, THROUGH, WEIGHTS, INPUTS, STATES];

/// Consecutive rows that an invocation takes; `ROWS_PER_INVOCATION` in the kernels.
const ROWS_PER_INVOCATION: usize = 8;

/// Fewest rows, and most parts, that the gradient of the weights is first summed over.
const PARTS: [usize; 2] = [64, 256];

parameters! {
    /// What the kernels of a convolution are told.
    struct ConvArgs {
        /// Rows of tokens of all sequences.
        rows: u32,
        /// `D`.
        channels: u32,
        /// `N`.
        sequences: u32,
        /// `W`, the taps.
        width: u32,
        /// Rows of a part of the weights' gradient.
        part_rows: u32,
        /// 1 where the final state has a gradient.
        dfinal: u32,
        /// Invocations that have work.
        count: u32,
        /// 1 where SiLU follows the sums.
        silu: u32,
    }
}

/// Arrays that the kernels of a call have in common, in 32 bits.
struct ConvCall<'a> {
    /// Where it runs.
    device: &'a Wgpu,
    /// Sequences, channels, taps and options.
    dims: &'a ConvDims,
    /// First row of each sequence, and the end `[N + 1]`.
    starts: Tensor<Wgpu>,
    /// Whether the final state has a gradient.
    dfinal: bool,
}

/// How a kernel is shared out.
#[derive(Clone, Copy)]
struct ConvGrid {
    /// Invocations.
    count: usize,
    /// Rows of a part of a sum over the rows; 0 where there is none.
    part_rows: usize,
}

impl<'a> ConvCall<'a> {
    /// The table of edges is uploaded once for all kernels of the call.
    fn new(device: &'a Wgpu, dims: &'a ConvDims, dfinal: bool) -> Result<Self> {
        Ok(Self { device, dims, starts: starts(device, &dims.sequences)?, dfinal })
    }

    /// Runs a kernel on three arrays, a result and `more`.
    fn run(
        &self,
        kernel: &Kernel<'_>,
        ConvGrid { count, part_rows }: ConvGrid,
        [x, y, z]: [&Tensor<Wgpu>; 3],
        out: &Tensor<Wgpu>,
        more: Option<&Tensor<Wgpu>>,
    ) -> Result<()> {
        let args = ConvArgs {
            rows: self.dims.sequences.rows() as u32,
            channels: self.dims.channels as u32,
            sequences: self.dims.sequences.count() as u32,
            width: self.dims.width as u32,
            part_rows: part_rows as u32,
            dfinal: self.dfinal.into(),
            count: count as u32,
            silu: self.dims.options.silu.into(),
        };
        // Bindings from 1: the edges, three arrays, the result, and dy where SiLU is passed through.
        let mut arrays: Vec<_> = [&self.starts, x, y, z].map(Binding::Read).into();
        arrays.push(Binding::Write(out));
        arrays.extend(more.map(Binding::Read));
        self.device.launch(kernel, (count.div_ceil(64), 1, 1), &args, &arrays)
    }

    /// An invocation for each channel of a run of rows.
    fn by_run(&self) -> ConvGrid {
        let runs = self.dims.sequences.rows().div_ceil(ROWS_PER_INVOCATION);
        ConvGrid { count: runs * self.dims.channels, part_rows: 0 }
    }
}

impl Conv for Wgpu {
    /// All in 32 bits; results are rounded once.
    /// `x [rows,D]`, `weight [D,W]`, `state [N,W−1,D]`; `y` is like `x`.
    fn conv(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        inputs: &ConvInputs<&Tensor<Self>>,
    ) -> Result<ConvOutputs<Tensor<Self>>> {
        let (dtype, ConvInputs { x, weight, state }) = (inputs.x.dtype(), self.widened_conv(inputs)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let call = ConvCall::new(self, dims, false)?;
        call.run(&RESULTS, call.by_run(), [&x, &weight, &state], &y, None)?;
        // The state for the call that goes on: the last W - 1 rows of each sequence.
        let (sequences, shape) = (&dims.sequences, dims.state());
        let last = last_rows(self, &LastRows { sequences, shape, before: Some(&state), x: Some(&x) })?;
        Ok(ConvOutputs { y: self.rounded(y, dtype)?, state: self.rounded(last, dtype)? })
    }

    /// The gradient in front of SiLU first; three kernels then read it.
    /// `dfinal [N,W−1,D]` is there where a later call went on from the final state.
    fn conv_backward(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        call: &ConvBackward<'_, Self>,
    ) -> Result<ConvInputs<Tensor<Self>>> {
        let ConvBackward { inputs, dy, dfinal } = call;
        let (dtype, dy) = (inputs.x.dtype(), self.widened(dy)?);
        let ConvInputs { x, weight, state } = self.widened_conv(inputs)?;
        let call = ConvCall::new(self, dims, dfinal.is_some())?;
        let dy = match dims.options.silu {
            false => dy,
            true => {
                let through = self.empty(dy.shape().clone(), DType::F32)?;
                call.run(&THROUGH, call.by_run(), [&x, &weight, &state], &through, Some(&dy))?;
                through
            }
        };
        // Without a gradient of the final state nobody looks at what stands in its place.
        let dfinal = dfinal.map_or(Ok(dy.clone()), |dfinal| self.widened(dfinal))?;
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), DType::F32);
        let (dx, dstate) = (like(&x)?, like(&state)?);
        call.run(&INPUTS, call.by_run(), [&weight, &dy, &dfinal], &dx, None)?;
        let grid = ConvGrid { count: state.shape().count(), part_rows: 0 };
        call.run(&STATES, grid, [&weight, &dy, &dfinal], &dstate, None)?;
        let rows = dims.sequences.rows();
        // Long texts take longer parts, so that the second sum stays short.
        let length = PARTS[0].max(rows.div_ceil(PARTS[1]));
        let parts = self.empty([rows.div_ceil(length), dims.channels, dims.width], DType::F32)?;
        let grid = ConvGrid { count: parts.shape().count(), part_rows: length };
        call.run(&WEIGHTS, grid, [&x, &dy, &state], &parts, None)?;
        let dweight = sum_parts(self, &parts)?;
        let [x, weight, state] = [dx, dweight, dstate].map(|grad| self.rounded(grad, dtype));
        Ok(ConvInputs { x: x?, weight: weight?, state: state? })
    }
}

impl Wgpu {
    /// The arguments in 32 bits.
    fn widened_conv(&self, inputs: &ConvInputs<&Tensor<Self>>) -> Result<ConvInputs<Tensor<Self>>> {
        let [x, weight, state] = [inputs.x, inputs.weight, inputs.state].map(|x| self.widened(x));
        Ok(ConvInputs { x: x?, weight: weight?, state: state? })
    }
}
