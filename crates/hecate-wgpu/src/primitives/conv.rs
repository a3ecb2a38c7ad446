//! Short causal convolution with a state in front of each sequence.

use super::{
    sequences::{last_rows, starts},
    sums::sum_parts,
};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Conv, ConvDims},
};

const TEXT: &str = include_str!("conv.wgsl");
const FORWARD: Source = Source { name: "conv_forward", parts: &[PRELUDE, TEXT, include_str!("conv_forward.wgsl")] };
const BACKWARD: Source = Source { name: "conv_backward", parts: &[PRELUDE, TEXT, include_str!("conv_backward.wgsl")] };

const RESULTS: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_forward", constants: &[] };
const THROUGH: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_through", constants: &[] };
const WEIGHTS: Kernel<'static> = Kernel { source: &FORWARD, entry: "conv_dweight", constants: &[] };
const INPUTS: Kernel<'static> = Kernel { source: &BACKWARD, entry: "conv_dx", constants: &[] };
const STATES: Kernel<'static> = Kernel { source: &BACKWARD, entry: "conv_dstate", constants: &[] };

pub(crate) const KERNELS: &[Kernel<'static>] = &[RESULTS, THROUGH, WEIGHTS, INPUTS, STATES];

/// Consecutive rows that an invocation takes; `STRETCH` in the kernels.
const STRETCH: usize = 8;

/// Fewest rows, and most parts, that the gradient of the weights is first summed over.
const PARTS: [usize; 2] = [64, 256];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    rows: u32,
    channels: u32,
    sequences: u32,
    width: u32,
    stretch: u32,
    dfinal: u32,
    count: u32,
    silu: u32,
}

/// Arrays that the kernels of a call have in common, in 32 bits.
struct Call<'a> {
    device: &'a Wgpu,
    dims: &'a ConvDims,
    starts: Tensor<Wgpu>,
    /// Whether the final state has a gradient.
    dfinal: bool,
}

impl<'a> Call<'a> {
    fn new(device: &'a Wgpu, dims: &'a ConvDims, dfinal: bool) -> Result<Self> {
        Ok(Self { device, dims, starts: starts(device, &dims.sequences)?, dfinal })
    }

    /// Runs a kernel with `count` invocations on three arrays, a result and `more`; `stretch` is that of a sum over the rows.
    fn run(
        &self,
        kernel: &Kernel<'_>,
        (count, stretch): (usize, usize),
        [x, y, z]: [&Tensor<Wgpu>; 3],
        out: &Tensor<Wgpu>,
        more: Option<&Tensor<Wgpu>>,
    ) -> Result<()> {
        let args = Args {
            rows: self.dims.sequences.rows() as u32,
            channels: self.dims.channels as u32,
            sequences: self.dims.sequences.count() as u32,
            width: self.dims.width as u32,
            stretch: stretch as u32,
            dfinal: self.dfinal.into(),
            count: count as u32,
            silu: self.dims.options.silu.into(),
        };
        let mut arrays: Vec<_> = [&self.starts, x, y, z].map(Binding::Read).into();
        arrays.push(Binding::Write(out));
        arrays.extend(more.map(Binding::Read));
        self.device.launch(kernel, (count.div_ceil(64), 1, 1), &args, &arrays)
    }

    /// An invocation for each channel of a stretch of rows.
    fn by_stretch(&self) -> (usize, usize) {
        (self.dims.sequences.rows().div_ceil(STRETCH) * self.dims.channels, 0)
    }
}

impl Conv for Wgpu {
    fn conv(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let dtype = x.dtype();
        let (x, weight, state) = (self.widened(x)?, self.widened(weight)?, self.widened(state)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let call = Call::new(self, dims, false)?;
        call.run(&RESULTS, call.by_stretch(), [&x, &weight, &state], &y, None)?;
        let last = last_rows(self, &dims.sequences, dims.state(), Some(&state), Some(&x))?;
        Ok((self.rounded(y, dtype)?, self.rounded(last, dtype)?))
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
        let dtype = x.dtype();
        let (x, weight, state, dy) = (self.widened(x)?, self.widened(weight)?, self.widened(state)?, self.widened(dy)?);
        let call = Call::new(self, dims, dfinal.is_some())?;
        let dy = match dims.options.silu {
            false => dy,
            true => {
                let through = self.empty(dy.shape().clone(), DType::F32)?;
                call.run(&THROUGH, call.by_stretch(), [&x, &weight, &state], &through, Some(&dy))?;
                through
            }
        };
        // Without a gradient of the final state nobody looks at what stands in its place.
        let dfinal = dfinal.map_or(Ok(dy.clone()), |dfinal| self.widened(dfinal))?;
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), DType::F32);
        let (dx, dstate) = (like(&x)?, like(&state)?);
        call.run(&INPUTS, call.by_stretch(), [&weight, &dy, &dfinal], &dx, None)?;
        call.run(&STATES, (state.shape().count(), 0), [&weight, &dy, &dfinal], &dstate, None)?;
        let rows = dims.sequences.rows();
        let length = PARTS[0].max(rows.div_ceil(PARTS[1]));
        let parts = self.empty([rows.div_ceil(length), dims.channels, dims.width], DType::F32)?;
        call.run(&WEIGHTS, (parts.shape().count(), length), [&x, &dy, &state], &parts, None)?;
        let dweight = sum_parts(self, &parts)?;
        Ok((self.rounded(dx, dtype)?, self.rounded(dweight, dtype)?, self.rounded(dstate, dtype)?))
    }
}
