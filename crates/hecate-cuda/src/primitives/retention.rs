//! The forgetting gate.
//!
//! `x [rows, width]` is the projection of tokens, a column a head. Gradients of `a_log` and `dt_bias` are sums over all
//! rows, first by blocks and then over these, in 64 bits.

use super::reduce::Parts;
use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{self, RetentionInputs},
};

/// `-exp(a_log) * F.softplus(x + dt_bias)` and its gradients.
pub(crate) const SOURCE: KernelSource = kernel_source!("retention", "retention.cu");

kernels! { SOURCE {
    // x and y [rows, width], a_log and dt_bias [width].
    "retention" Retention { x: Array, a_log: In<f32>, dt_bias: In<f32>, y: Out<f32>, count: u64, width: u64 }
    // dx and dy as x; parts [blocks y, width] of both gradients in 64 bits.
    "retention_backward" RetentionBackward {
        x: Array, dx: Array, a_log: In<f32>, dt_bias: In<f32>, dy: In<f32>, of_a_log: Out<f64>, of_dt_bias: Out<f64>,
        rows: u64, width: u64, height: u64, columns: u32
    }
} }

/// Threads of a block.
const THREADS: usize = 256;

/// Heads of a block at most, and blocks that fill a large GPU.
const COLUMNS: usize = 32;
const BLOCKS: usize = 512;

// Core has checked that `x` is `[.., width]`, `a_log` and `dt_bias` `[width]` in 32 bits, `dy` as the result.
impl primitives::Retention for Cuda {
    /// `log a = −exp(a_log) softplus(x + dt_bias)`, `[rows, width]` in 32 bits.
    /// The result is at most 0: a retention `a` in `(0, 1]`, whose logarithm is what rules add up over tokens.
    fn retention(&self, _: Checked<Self>, inputs: &RetentionInputs<&Tensor<Self>>) -> Result<Tensor<Self>> {
        let x = inputs.x;
        let (count, width) = (x.shape().count(), x.shape().last() as u64);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let [a_log, dt_bias] = [inputs.a_log, inputs.dt_bias].map(pointer);
        let arguments = Retention { x: x.into(), a_log, dt_bias, y: pointer(&y), count: count as u64, width };
        self.launch(Grid::elements(count), &arguments)?;
        Ok(y)
    }

    /// Sums over rows are made in parts, one a block.
    /// `dx` has the shape and type of `x`; gradients of `a_log` and `dt_bias` are `[width]` in 32 bits.
    fn retention_backward(
        &self,
        _: Checked<Self>,
        call: &primitives::RetentionBackward<'_, Self>,
    ) -> Result<RetentionInputs<Tensor<Self>>> {
        let RetentionInputs { x, a_log, dt_bias } = call.inputs;
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let dx = self.empty(x.shape().clone(), x.dtype())?;
        // A block has `columns` heads and `height` rows.
        let columns = width.next_power_of_two().min(COLUMNS);
        let across = width.div_ceil(columns);
        // Few rows a thread: with few tokens, more blocks are sooner through.
        let height = rows.div_ceil((BLOCKS / across).max(1)).max(THREADS / columns);
        let count = rows.div_ceil(height);
        // A part of both gradients from every block.
        let [of_a_log, of_dt_bias] = [Parts::new(self, count, width)?, Parts::new(self, count, width)?];
        let [a_log, dt_bias, dy] = [a_log, dt_bias, call.dy].map(pointer);
        let arguments = RetentionBackward {
            x: x.into(),
            dx: (&dx).into(),
            a_log,
            dt_bias,
            dy,
            of_a_log: of_a_log.pointer(),
            of_dt_bias: of_dt_bias.pointer(),
            rows: rows as u64,
            width: width as u64,
            height: height as u64,
            columns: columns as u32,
        };
        self.launch(Grid { blocks: (across, count, 1), ..Grid::blocks(1, THREADS as u32) }, &arguments)?;
        let [a_log, dt_bias] = Parts::totals([of_a_log, of_dt_bias], self, DType::F32)?;
        Ok(RetentionInputs { x: dx, a_log, dt_bias })
    }
}
