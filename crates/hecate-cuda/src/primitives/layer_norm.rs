//! Layer norm of rows.
//!
//! Rows of up to 1,024 runs of 16 bytes stay in registers, so arrays are read once.

use super::{
    reduce::Parts,
    whole_rows::{RowBlocks, WholeRows},
};
use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{AddedLayerNorm, LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, Reduce, cast},
};

/// `F.layer_norm(x, [width], weight, bias, epsilon)`, also of `x + residual`, and its gradients.
pub(crate) const SOURCE: KernelSource = kernel_source!("layer_norm", "layer_norm.cu");

arguments! {
    /// What forward kernels take; `LayerNorm` in the kernels.
    struct ForwardCall {
        /// `x` and `y` are `[rows, width]`, `weight` and `bias` `[width]`, `mean` and `inverse` `[rows]` in 32 bits.
        x: Array,
        y: Array,
        /// As `x`, of the kernel that adds first.
        /// `sum = x + residual`, rounded to the type of `x` as two calls would; both are none where nothing is added.
        residual: Array,
        sum: Array,
        weight: Array,
        bias: Array,
        mean: Out<f32>,
        inverse: Out<f32>,
        rows: u64,
        width: u64,
        epsilon: f32,
        /// Threads of a row.
        lanes: u32,
    }
}

arguments! {
    /// What the backward of long rows takes; `LayerNormBackward` in the kernels.
    struct BackwardCall {
        /// As above; `normed [rows, width]` has 32 bits.
        x: Array,
        dy: Array,
        dx: Array,
        normed: Array,
        weight: Array,
        mean: In<f32>,
        inverse: In<f32>,
        rows: u64,
        width: u64,
        lanes: u32,
    }
}

arguments! {
    /// What the backward of kept rows takes; `LayerNormGradients` in the kernels.
    struct GradientsCall {
        /// As above.
        x: Array,
        dy: Array,
        dx: Array,
        /// As `dx`, or none.
        dsum: Array,
        weight: Array,
        mean: In<f32>,
        inverse: In<f32>,
        /// `[blocks, width]` each.
        weight_parts: Out<Void>,
        bias_parts: Out<Void>,
        rows: u64,
        width: u64,
        lanes: u32,
    }
}

kernels! { SOURCE {
    // y, and mean and inverse of each row.
    "layer_norm_kept" Kept { call: ForwardCall }
    "add_layer_norm_kept" AddKept { call: ForwardCall }
    "layer_norm" Long { call: ForwardCall }
    // dx, and the rows before weight and bias.
    "layer_norm_backward" LongBackward { call: BackwardCall }
    // All gradients of kept rows, of which a warp or a block has one.
    "layer_norm_gradients" Gradients { call: GradientsCall }
    "layer_norm_large_gradients" LargeGradients { call: GradientsCall }
    "layer_norm_larger_gradients" LargerGradients { call: GradientsCall }
} }

// Core has checked that arrays are `[.., width]`, `weight` and `bias` `[width]`, and all of one device.
impl LayerNorm for Cuda {
    /// `y = (x − m) r w + b`, and `m` and `r`, `[rows]` each.
    fn layer_norm(
        &self,
        _: Checked<Self>,
        epsilon: f32,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<LayerNormed<Tensor<Self>>> {
        forward(self, epsilon, inputs, spread(inputs.x), None)
    }

    /// `dx` row by row; `dw` and `db` are sums over rows.
    /// `n = (x − m) r`, `g = dy w`. So `dx = r (g − mean(g) − n mean(g n))`, `dw = Σ dy n`, `db = Σ dy`.
    fn layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        let spread = spread(call.inputs.x);
        if spread.kept { kept_backward(self, call, spread, None) } else { long_backward(self, checked, call, spread) }
    }

    /// One pass where rows are kept.
    /// `sum = x + residual` and `F.layer_norm(sum)`, each of the shape `[.., width]` and type of `x`.
    fn add_layer_norm(
        &self,
        checked: Checked<Self>,
        epsilon: f32,
        residual: &Tensor<Self>,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<AddedLayerNorm<Tensor<Self>>> {
        let (x, spread) = (inputs.x, spread(inputs.x));
        if !spread.kept {
            return self.add_layer_norm_by_parts(checked, epsilon, residual, inputs);
        }
        // Mean and variance are of the sum as it is rounded.
        let sum = self.empty(x.shape().clone(), x.dtype())?;
        let normed = forward(self, epsilon, inputs, spread, Some([residual, &sum]))?;
        Ok(AddedLayerNorm { sum, normed })
    }

    /// In one pass where the gradients are.
    /// `dx + dsum`: the gradient of the sum, which goes on to `x` and to the residual alike.
    fn add_layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        let spread = spread(call.inputs.x);
        if !spread.kept {
            return self.add_layer_norm_backward_by_parts(checked, call, dsum);
        }
        kept_backward(self, call, spread, Some(dsum))
    }
}

/// Which rows are kept depends on the width and the type alone.
fn spread(x: &Tensor<Cuda>) -> WholeRows {
    // Rows are all axes but the last.
    WholeRows::new(x.shape().rows(), x.shape().last(), Array::from(x).wide())
}

/// `y`, `m` and `r`; with `added`, a residual and the place of its sum with `x`, of that sum, of rows that are kept.
fn forward(
    device: &Cuda,
    epsilon: f32,
    inputs: &LayerNormInputs<&Tensor<Cuda>>,
    spread: WholeRows,
    added: Option<[&Tensor<Cuda>; 2]>,
) -> Result<LayerNormed<Tensor<Cuda>>> {
    let LayerNormInputs { x, weight, bias } = *inputs;
    // All are like `x`, but for two numbers a row.
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let y = device.empty(x.shape().clone(), x.dtype())?;
    let (mean, inverse) = (device.empty([rows], DType::F32)?, device.empty([rows], DType::F32)?);
    let call = ForwardCall {
        x: x.into(),
        y: (&y).into(),
        residual: added.map_or(Array::NONE, |added| added[0].into()),
        sum: added.map_or(Array::NONE, |added| added[1].into()),
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
        true if added.is_some() => device.launch(spread.grid, &AddKept { call })?,
        true => device.launch(spread.grid, &Kept { call })?,
        false => device.launch(spread.grid, &Long { call })?,
    }
    Ok(LayerNormed { y, mean, inverse })
}

/// Rows of a block that has a warp for each.
const WARPS: usize = 8;

/// Arrays are read once; blocks go through rows in turn and leave parts of `dw` and `db`. `dsum` is added to `dx`.
fn kept_backward(
    device: &Cuda,
    call: &LayerNormBackward<'_, Cuda>,
    spread: WholeRows,
    dsum: Option<&Tensor<Cuda>>,
) -> Result<LayerNormInputs<Tensor<Cuda>>> {
    let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean, inverse, dy } = *call;
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let large = (spread.lanes > 32).then(|| RowBlocks::new(rows, width / Array::from(x).wide()));
    // Of short rows as many blocks as fill a large GPU, more where a thread would add up over 32 rows.
    let few = rows.div_ceil(WARPS * 32).clamp(256, 1 << 14).min(rows.div_ceil(WARPS));
    let (blocks, threads) = large.map_or((few, 32 * WARPS), |large| (large.blocks, large.threads));
    let parts = || match large {
        Some(_) => Parts::narrow(device, blocks, width),
        None => Parts::new(device, blocks, width),
    };
    // Two sums over rows, made side by side.
    let (weight_parts, bias_parts) = (parts()?, parts()?);
    let call = GradientsCall {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        dsum: dsum.map_or(Array::NONE, Array::from),
        weight: weight.into(),
        mean: pointer(mean),
        inverse: pointer(inverse),
        weight_parts: weight_parts.pointer(),
        bias_parts: bias_parts.pointer(),
        rows: rows as u64,
        width: width as u64,
        lanes: large.map_or(32, |large| large.threads) as u32,
    };
    let grid = Grid::blocks(blocks, threads as u32);
    match large {
        None => device.launch(grid, &Gradients { call })?,
        Some(RowBlocks { larger: false, .. }) => device.launch(grid, &LargeGradients { call })?,
        Some(_) => device.launch(grid, &LargerGradients { call })?,
    }
    // Rounded once, from sums over blocks in 64 bits.
    let [weight, bias] = Parts::totals([weight_parts, bias_parts], device, weight.dtype())?;
    Ok(LayerNormInputs { x: dx, weight, bias })
}

/// Arrays are read twice, and `n` goes through memory for the sum over rows.
fn long_backward(
    device: &Cuda,
    checked: Checked<Cuda>,
    call: &LayerNormBackward<'_, Cuda>,
    spread: WholeRows,
) -> Result<LayerNormInputs<Tensor<Cuda>>> {
    let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean, inverse, dy } = *call;
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    // In 32 bits: it is a factor of a sum over all rows.
    let normed = device.empty(x.shape().clone(), DType::F32)?;
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
    device.launch(spread.grid, &LongBackward { call })?;
    // Rounded once, after the sum.
    let dweight = cast(weight.dtype(), &device.sum_products(checked, width, &normed, dy)?)?;
    Ok(LayerNormInputs { x: dx, weight: dweight, bias: device.sum_rows(checked, width, dy)? })
}
