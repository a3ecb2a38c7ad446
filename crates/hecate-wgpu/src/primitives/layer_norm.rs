//! Layer norm of rows.

use super::whole_rows::{BESIDE, CONSTANTS, ROWS, RowArgs, TEXT, WholeRows};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::Parameters,
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{AddedLayerNorm, LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, Reduce, cast},
};

/// `y`, mean and factor of a row, which one workgroup reads whole.
const FORWARD: &str = include_str!("layer_norm_forward.wgsl");
/// `dx`, and normalised rows for the gradient of the weight.
const BACKWARD: &str = include_str!("layer_norm_backward.wgsl");
/// Of rows as they are, and of sums with a residual.
static FORWARDS: [WgslSource; 2] = [
    WgslSource { name: "layer_norm_forward", parts: &[PRELUDE, RowArgs::WGSL, TEXT, ROWS[0], FORWARD] },
    WgslSource {
        name: "add_layer_norm_forward",
        parts: &[PRELUDE, RowArgs::WGSL, TEXT, "const ADDED = 7u;", ROWS[1], FORWARD],
    },
];
/// Without and with the gradient of a sum, which is added to `dx`.
static BACKWARDS: [WgslSource; 2] = [
    WgslSource { name: "layer_norm_backward", parts: &[PRELUDE, RowArgs::WGSL, TEXT, BESIDE[0], BACKWARD] },
    WgslSource {
        name: "add_layer_norm_backward",
        parts: &[PRELUDE, RowArgs::WGSL, TEXT, "const ADDED = 8u;", BESIDE[1], BACKWARD],
    },
];

/// `y`, and the mean and the factor of each row; for rows that are short, or long.
const fn forward(which: usize, added: bool) -> Kernel<'static> {
    Kernel { source: &FORWARDS[added as usize], entry: "layer_norm", constants: &CONSTANTS[which] }
}

/// `dx`, and the rows before weight and bias.
const fn backward(which: usize, added: bool) -> Kernel<'static> {
    Kernel { source: &BACKWARDS[added as usize], entry: "layer_norm_backward", constants: &CONSTANTS[which] }
}

/// Every kernel.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    forward(0, false),
    forward(1, false),
    backward(0, false),
    backward(1, false),
    forward(0, true),
    forward(1, true),
    backward(0, true),
    backward(1, true),
];

impl LayerNorm for Wgpu {
    /// `y = (x − m) r w + b`, and `m` and `r`, `[rows]` each in 32 bits.
    /// `x [.., D]`, `w [D]` and `b [D]`: core has checked that they match.
    fn layer_norm(
        &self,
        _: Checked<Self>,
        epsilon: f32,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<LayerNormed<Tensor<Self>>> {
        normalise(self, epsilon, inputs, None)
    }

    /// `dx` row by row; `dw` and `db` are sums over rows.
    /// With `h = w dy` and `n = (x − m) r` it is `dx = r (h − mean(h) − n mean(n h))`.
    fn layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        gradients(self, checked, call, None)
    }

    /// In one pass where numbers have 32 bits: a sum of 16 bits is rounded before its norm.
    /// `residual`, `x` and their sum have one shape; later layers go on from the sum.
    fn add_layer_norm(
        &self,
        checked: Checked<Self>,
        epsilon: f32,
        residual: &Tensor<Self>,
        inputs: &LayerNormInputs<&Tensor<Self>>,
    ) -> Result<AddedLayerNorm<Tensor<Self>>> {
        if inputs.x.dtype() != DType::F32 {
            return self.add_layer_norm_by_parts(checked, epsilon, residual, inputs);
        }
        let sum = self.empty(inputs.x.shape().clone(), DType::F32)?;
        let normed = normalise(self, epsilon, inputs, Some([residual, &sum]))?;
        Ok(AddedLayerNorm { sum, normed })
    }

    /// In one pass; gradients of 16 bits are widened before and rounded after it.
    fn add_layer_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &LayerNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<LayerNormInputs<Tensor<Self>>> {
        gradients(self, checked, call, Some(dsum))
    }
}

/// `y`, `m` and `r`; with `added`, a residual and the place of its sum with `x`, of that sum, of arrays of 32 bits.
fn normalise(
    device: &Wgpu,
    epsilon: f32,
    inputs: &LayerNormInputs<&Tensor<Wgpu>>,
    added: Option<[&Tensor<Wgpu>; 2]>,
) -> Result<LayerNormed<Tensor<Wgpu>>> {
    let LayerNormInputs { x, weight, bias } = *inputs;
    let (spread, dtype, rows) = (WholeRows::new(x)?, x.dtype(), x.shape().rows());
    let (x, weight, bias) = (device.widened(x)?, device.widened(weight)?, device.widened(bias)?);
    let y = device.empty(x.shape().clone(), DType::F32)?;
    let (mean, inverse) = (device.empty([rows], DType::F32)?, device.empty([rows], DType::F32)?);
    let [x, weight, bias] = [&x, &weight, &bias].map(Binding::Read);
    // In the order of the kernel's bindings; those of a sum come last.
    let mut arrays = vec![x, weight, bias, Binding::Write(&y), Binding::Write(&mean), Binding::Write(&inverse)];
    arrays.extend(added.into_iter().flat_map(|[residual, sum]| [Binding::Read(residual), Binding::Write(sum)]));
    let args = RowArgs { epsilon, ..spread.args };
    device.launch(&forward(spread.which, added.is_some()), (spread.groups, 1, 1), &args, &arrays)?;
    Ok(LayerNormed { y: device.rounded(y, dtype)?, mean, inverse })
}

/// All gradients; `dsum`, where there is one, is added to that of `x`.
fn gradients(
    device: &Wgpu,
    checked: Checked<Wgpu>,
    call: &LayerNormBackward<'_, Wgpu>,
    dsum: Option<&Tensor<Wgpu>>,
) -> Result<LayerNormInputs<Tensor<Wgpu>>> {
    let LayerNormBackward { inputs: LayerNormInputs { x, weight, .. }, mean, inverse, dy } = *call;
    let (spread, dtype, width) = (WholeRows::new(x)?, x.dtype(), x.shape().last());
    let (x, weight, slopes) = (device.widened(x)?, device.widened(weight)?, device.widened(dy)?);
    let dsum = dsum.map(|dsum| device.widened(dsum)).transpose()?;
    let dx = device.empty(x.shape().clone(), DType::F32)?;
    // Normalised rows, of which the gradient of the weight is made.
    let normed = device.empty(x.shape().clone(), DType::F32)?;
    let [x, weight, mean, inverse, slopes] = [&x, &weight, mean, inverse, &slopes].map(Binding::Read);
    let mut arrays = vec![x, weight, mean, inverse, slopes, Binding::Write(&dx), Binding::Write(&normed)];
    arrays.extend(dsum.as_ref().map(Binding::Read));
    device.launch(&backward(spread.which, dsum.is_some()), (spread.groups, 1, 1), &spread.args, &arrays)?;
    let dweight = cast(dtype, &device.sum_products(checked, width, &normed, dy)?)?;
    Ok(LayerNormInputs { x: device.rounded(dx, dtype)?, weight: dweight, bias: device.sum_rows(checked, width, dy)? })
}
