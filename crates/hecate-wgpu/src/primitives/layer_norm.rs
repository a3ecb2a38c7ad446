//! Layer norm of rows.

use super::whole_rows::{CONSTANTS, RowArgs, TEXT, WholeRows};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, Reduce, cast},
};

const FORWARD: WgslSource =
    WgslSource { name: "layer_norm_forward", parts: &[PRELUDE, TEXT, include_str!("layer_norm_forward.wgsl")] };
const BACKWARD: WgslSource =
    WgslSource { name: "layer_norm_backward", parts: &[PRELUDE, TEXT, include_str!("layer_norm_backward.wgsl")] };

/// `y`, and the mean and the factor of each row; for rows that are short, or long.
const fn forward(which: usize) -> Kernel<'static> {
    Kernel { source: &FORWARD, entry: "layer_norm", constants: &CONSTANTS[which] }
}

/// `dx`, and the rows before weight and bias.
const fn backward(which: usize) -> Kernel<'static> {
    Kernel { source: &BACKWARD, entry: "layer_norm_backward", constants: &CONSTANTS[which] }
}

/// Every kernel.
pub(crate) const KERNELS: &[Kernel<'static>] = &[forward(0), forward(1), backward(0), backward(1)];

impl LayerNorm for Wgpu {
    /// `y = (x − m) r w + b`, and `m` and `r`, `[rows]` each in 32 bits.
    fn layer_norm(&self, epsilon: f32, inputs: &LayerNormInputs<&Tensor<Self>>) -> Result<LayerNormed<Tensor<Self>>> {
        let LayerNormInputs { x, weight, bias } = *inputs;
        let (spread, dtype, rows) = (WholeRows::new(x), x.dtype(), x.shape().rows());
        let (x, weight, bias) = (self.widened(x)?, self.widened(weight)?, self.widened(bias)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let (mean, inverse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        let [x, weight, bias] = [&x, &weight, &bias].map(Binding::Read);
        let arrays = [x, weight, bias, Binding::Write(&y), Binding::Write(&mean), Binding::Write(&inverse)];
        let args = RowArgs { epsilon, ..spread.args };
        self.launch(&forward(spread.which), (spread.groups, 1, 1), &args, &arrays)?;
        Ok(LayerNormed { y: self.rounded(y, dtype)?, mean, inverse })
    }

    /// `dx` row by row; `dw` and `db` are sums over rows.
    fn layer_norm_backward(&self, call: &LayerNormBackward<'_, Self>) -> Result<LayerNormInputs<Tensor<Self>>> {
        let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean, inverse, dy } = *call;
        let (spread, dtype, width) = (WholeRows::new(x), x.dtype(), x.shape().last());
        let (x, weight, slopes) = (self.widened(x)?, self.widened(weight)?, self.widened(dy)?);
        let dx = self.empty(x.shape().clone(), DType::F32)?;
        let normed = self.empty(x.shape().clone(), DType::F32)?;
        let [x, weight, mean, inverse, slopes] = [&x, &weight, mean, inverse, &slopes].map(Binding::Read);
        let arrays = [x, weight, mean, inverse, slopes, Binding::Write(&dx), Binding::Write(&normed)];
        self.launch(&backward(spread.which), (spread.groups, 1, 1), &spread.args, &arrays)?;
        let dweight = cast(dtype, &self.sum_products(width, &normed, dy)?)?;
        Ok(LayerNormInputs { x: self.rounded(dx, dtype)?, weight: dweight, bias: self.sum_rows(width, dy)? })
    }
}
