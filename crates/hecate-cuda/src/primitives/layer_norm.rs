//! Layer norm of rows.
//!
//! Rows of up to 1,024 runs of 16 bytes stay in registers, so arrays are read once.

use super::whole_rows::WholeRows;
use crate::{
    Cuda,
    launch::{Array, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, Reduce, cast},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("layer_norm", "layer_norm.cu");

/// What forward kernels take; `LayerNorm` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ForwardCall {
    /// `x` and `y` are `[rows, width]`, `weight` and `bias` `[width]`, `mean` and `inverse` `[rows]` in 32 bits.
    x: Array,
    y: Array,
    weight: Array,
    bias: Array,
    mean: Pointer,
    inverse: Pointer,
    rows: u64,
    width: u64,
    epsilon: f32,
    /// Threads of a row.
    lanes: u32,
}

/// What backward kernels take; `LayerNormBackward` in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct BackwardCall {
    /// As above; `normed [rows, width]` has 32 bits.
    x: Array,
    dy: Array,
    dx: Array,
    normed: Array,
    weight: Array,
    mean: Pointer,
    inverse: Pointer,
    rows: u64,
    width: u64,
    lanes: u32,
}

kernels! { SOURCE {
    // y, and mean and inverse of each row.
    "layer_norm_kept" Kept { call: ForwardCall }
    "layer_norm" Long { call: ForwardCall }
    // dx, and the rows before weight and bias.
    "layer_norm_kept_backward" KeptBackward { call: BackwardCall }
    "layer_norm_backward" LongBackward { call: BackwardCall }
} }

impl LayerNorm for Cuda {
    /// `y = (x − m) r w + b`, and `m` and `r`, `[rows]` each.
    fn layer_norm(&self, epsilon: f32, inputs: &LayerNormInputs<&Tensor<Self>>) -> Result<LayerNormed<Tensor<Self>>> {
        let LayerNormInputs { x, weight, bias } = *inputs;
        // Rows are all axes but the last.
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let y = self.empty(x.shape().clone(), x.dtype())?;
        let (mean, inverse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        let spread = WholeRows::new(rows, width, Array::from(x).wide());
        let call = ForwardCall {
            x: x.into(),
            y: (&y).into(),
            weight: weight.into(),
            bias: bias.into(),
            mean: pointer(&mean),
            inverse: pointer(&inverse),
            rows: rows as u64,
            width: width as u64,
            epsilon,
            lanes: spread.lanes as u32,
        };
        match spread.kept {
            true => self.launch(spread.grid, &Kept { call })?,
            false => self.launch(spread.grid, &Long { call })?,
        }
        Ok(LayerNormed { y, mean, inverse })
    }

    /// `dx` row by row; `dw` and `db` are sums over rows.
    fn layer_norm_backward(&self, call: &LayerNormBackward<'_, Self>) -> Result<LayerNormInputs<Tensor<Self>>> {
        let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean, inverse, dy } = *call;
        let (rows, width) = (x.shape().rows(), x.shape().last());
        // `n` goes through memory once more; its sum over rows is one for all norms.
        let dx = self.empty(x.shape().clone(), x.dtype())?;
        let normed = self.empty(x.shape().clone(), DType::F32)?;
        let spread = WholeRows::new(rows, width, Array::from(x).wide());
        let call = BackwardCall {
            x: x.into(),
            dy: dy.into(),
            dx: (&dx).into(),
            normed: (&normed).into(),
            weight: weight.into(),
            mean: pointer(mean),
            inverse: pointer(inverse),
            rows: rows as u64,
            width: width as u64,
            lanes: spread.lanes as u32,
        };
        match spread.kept {
            true => self.launch(spread.grid, &KeptBackward { call })?,
            false => self.launch(spread.grid, &LongBackward { call })?,
        }
        // Rounded once, after the sum.
        let dweight = cast(weight.dtype(), &self.sum_products(width, &normed, dy)?)?;
        Ok(LayerNormInputs { x: dx, weight: dweight, bias: self.sum_rows(width, dy)? })
    }
}
