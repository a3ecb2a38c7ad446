//! Normalising rows.

use super::{
    reduce::{Terms, sum_columns},
    whole_rows::{BESIDE, ROWS},
};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{AddedNorm, GateFunction, Norm, Normed, RmsNormBackward, RmsNormInputs, RmsNormOptions},
};

/// What both directions share.
const TEXT: &str = include_str!("norm.wgsl");
/// `y` and `r`, whatever the rows are made of.
const FORWARD: &str = include_str!("norm_forward.wgsl");
/// `dx`, and what a gate lets through.
const BACKWARD: &str = include_str!("norm_backward.wgsl");
/// Of rows as they are, and of sums with a residual.
static FORWARDS: [WgslSource; 2] = [
    WgslSource { name: "norm_forward", parts: &[PRELUDE, NormArgs::WGSL, TEXT, ROWS[0], FORWARD] },
    WgslSource {
        name: "add_norm_forward",
        parts: &[PRELUDE, NormArgs::WGSL, TEXT, "const ADDED = 6u;", ROWS[1], FORWARD],
    },
];
/// Without and with the gradient of a sum, which is added to `dx`.
static BACKWARDS: [WgslSource; 2] = [
    WgslSource { name: "norm_backward", parts: &[PRELUDE, NormArgs::WGSL, TEXT, BESIDE[0], BACKWARD] },
    WgslSource {
        name: "add_norm_backward",
        parts: &[PRELUDE, NormArgs::WGSL, TEXT, "const ADDED = 6u;", BESIDE[1], BACKWARD],
    },
];

/// Invocations of a row and of a workgroup, where rows are short and where they are long.
const LANES: [[u32; 2]; 2] = [[16, 64], [256, 256]];

/// Elements of a short row at most.
const SHORT: usize = 512;

/// What rows are divided by, and what they are times; values are those in the kernels.
#[derive(Clone, Copy)]
enum Kind {
    /// By the root of their mean square, times a weight.
    Rms,
    /// By their length.
    L2,
    /// As [`Kind::Rms`], times a function of a gate.
    Gated,
}

/// In the order of their values.
const KINDS: [Kind; 3] = [Kind::Rms, Kind::L2, Kind::Gated];

/// Invocations of a row, of a workgroup, and the kind.
type Constants = [(&'static str, u32); 3];

/// Long rows take a whole workgroup.
const fn constants(long: bool, kind: Kind) -> Constants {
    let [lanes, invocations] = LANES[long as usize];
    [("LANES", lanes), ("INVOCATIONS", invocations), ("KIND", kind as u32)]
}

/// Of short rows and long ones, each of every kind.
static CONSTANTS: [Constants; 6] = [
    constants(false, KINDS[0]),
    constants(false, KINDS[1]),
    constants(false, KINDS[2]),
    constants(true, KINDS[0]),
    constants(true, KINDS[1]),
    constants(true, KINDS[2]),
];

/// `y` and `r`; a gate is a factor of `y`.
const fn forward(which: usize, added: bool) -> Kernel<'static> {
    Kernel { source: &FORWARDS[added as usize], entry: "normalise", constants: &CONSTANTS[which] }
}

/// `dx`; a gate was passed before.
const fn backward(which: usize, added: bool) -> Kernel<'static> {
    Kernel { source: &BACKWARDS[added as usize], entry: "normalise_backward", constants: &CONSTANTS[which] }
}

/// The gradient in front of the gate, and the gate's own.
const OPEN_GATE: Kernel<'static> = Kernel { source: &BACKWARDS[0], entry: "open_gate", constants: &CONSTANTS[0] };

/// Every kernel; a gated backward is OPEN_GATE and then that of RMS.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    forward(0, false),
    forward(1, false),
    forward(2, false),
    forward(3, false),
    forward(4, false),
    forward(5, false),
    backward(0, false),
    backward(1, false),
    backward(3, false),
    backward(4, false),
    // Sums have a norm without a gate.
    forward(0, true),
    forward(3, true),
    backward(0, true),
    backward(3, true),
    OPEN_GATE,
];

parameters! {
    /// What norms and their gradients are told.
    struct NormArgs {
        /// Rows in all; a group of a row is a row here.
        rows: u32,
        /// Elements of such a row.
        width: u32,
        /// Added under the root: ε, for L2 its square.
        epsilon: f32,
        /// Factor of the sum of squares.
        share: f32,
        /// Such rows that one weight serves.
        groups: u32,
        /// Added to weights: 0 or 1.
        offset: f32,
        /// 1 where a gate's function is the sigmoid.
        sigmoid: u32,
    }
}

/// How rows of a call are normalised.
struct NormCall {
    /// The kernel's parameters.
    args: NormArgs,
    /// Which of [`CONSTANTS`].
    which: usize,
    /// Workgroups: several short rows, or one long row each.
    groups: usize,
}

impl NormCall {
    /// Rows over the last axis of `x`, or groups of them; options without a weight are those of the length.
    fn new(x: &Tensor<Wgpu>, kind: Kind, options: RmsNormOptions) -> Result<Self> {
        let RmsNormOptions { epsilon, groups, one_plus, function, .. } = options;
        let (rows, width) = (x.shape().rows() * groups, x.shape().last() / groups);
        let long = usize::from(width > SHORT);
        // Three passes over a row, and the sums of its invocations.
        x.device().check_rounds("rows of this length", 3 * (width / LANES[long][0] as usize + 16))?;
        let args = NormArgs {
            rows: rows as u32,
            width: width as u32,
            epsilon,
            share: if matches!(kind, Kind::L2) { 1.0 } else { 1.0 / width as f32 },
            groups: groups as u32,
            offset: f32::from(u8::from(one_plus)),
            sigmoid: u32::from(function == GateFunction::Sigmoid),
        };
        let workgroups = rows.div_ceil((LANES[long][1] / LANES[long][0]) as usize);
        Ok(Self { args, which: KINDS.len() * long + kind as usize, groups: workgroups })
    }
}

/// `y` and `r`; without a weight by the length. With `added`, a residual and the place of its sum with `x`, of that sum, of
/// arrays of 32 bits without a gate.
fn normalise(
    device: &Wgpu,
    options: RmsNormOptions,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
    gate: Option<&Tensor<Wgpu>>,
    added: Option<[&Tensor<Wgpu>; 2]>,
) -> Result<Normed<Tensor<Wgpu>>> {
    let kind = if gate.is_some() { Kind::Gated } else { plain(weight) };
    let (call, dtype, x) = (NormCall::new(x, kind, options)?, x.dtype(), device.widened(x)?);
    // What a kind does not read is bound to x.
    let weight = device.widened(weight.unwrap_or(&x))?;
    let gate = device.widened(gate.unwrap_or(&x))?;
    let (y, inverse) =
        (device.empty(x.shape().clone(), DType::F32)?, device.empty([call.args.rows as usize], DType::F32)?);
    let [x, weight, gate] = [&x, &weight, &gate].map(Binding::Read);
    // In the order of the kernel's bindings, from 1 on.
    let mut arrays = vec![x, weight, Binding::Write(&y), Binding::Write(&inverse)];
    match added {
        // No gate is read, but its place stays.
        Some([residual, sum]) => arrays.extend([gate, Binding::Read(residual), Binding::Write(sum)]),
        None => arrays.push(gate),
    }
    device.launch(&forward(call.which, added.is_some()), (call.groups, 1, 1), &call.args, &arrays)?;
    Ok(Normed { y: device.rounded(y, dtype)?, inverse })
}

/// The kind without a gate.
fn plain(weight: Option<&Tensor<Wgpu>>) -> Kind {
    if weight.is_some() { Kind::Rms } else { Kind::L2 }
}

/// `dx`, given `r` as `inverse [rows]`; `dsum`, where there is one, is added to it.
fn normalise_backward(
    device: &Wgpu,
    options: RmsNormOptions,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
    inverse: &Tensor<Wgpu>,
    dy: &Tensor<Wgpu>,
    dsum: Option<&Tensor<Wgpu>>,
) -> Result<Tensor<Wgpu>> {
    let (call, dtype) = (NormCall::new(x, plain(weight), options)?, x.dtype());
    let (x, dy) = (device.widened(x)?, device.widened(dy)?);
    let weight = device.widened(weight.unwrap_or(&x))?;
    let dsum = dsum.map(|dsum| device.widened(dsum)).transpose()?;
    let dx = device.empty(x.shape().clone(), DType::F32)?;
    let [x, weight, dy] = [&x, &weight, &dy].map(Binding::Read);
    let mut arrays = vec![x, weight, Binding::Read(inverse), dy, Binding::Write(&dx)];
    arrays.extend(dsum.as_ref().map(Binding::Read));
    device.launch(&backward(call.which, dsum.is_some()), (call.groups, 1, 1), &call.args, &arrays)?;
    device.rounded(dx, dtype)
}

impl Norm for Wgpu {
    /// `y = w x r` with `r = 1/√(mean x² + ε)`, times `act(g)` where there is a gate, and `r` of each group in 32 bits.
    /// `x [.., D]`, `w [D]`, `g` like `x`, and groups that divide `D`: core has checked them.
    fn rms_norm(
        &self,
        _: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<Normed<Tensor<Self>>> {
        normalise(self, options, inputs.x, Some(inputs.weight), inputs.g, None)
    }

    /// `dx` by rows, `dweight [D]` as a sum over rows; what a gate lets through is the plain norm's gradient.
    /// `inverse` is the forward's `r`, one a group of a row; `dy` is like `x`.
    fn rms_norm_backward(
        &self,
        _: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
        let width = x.shape().last();
        let Some(g) = g else {
            let dx = normalise_backward(self, options, x, Some(weight), inverse, dy, None)?;
            let dweight = sum_columns(self, width, Terms::Scaled(x, inverse, dy))?;
            return Ok(RmsNormInputs { x: dx, weight: dweight, g: None });
        };
        let (call, dtype) = (NormCall::new(x, Kind::Rms, options)?, x.dtype());
        let (x, weight) = (self.widened(x)?, self.widened(weight)?);
        let (g, dy) = (self.widened(g)?, self.widened(dy)?);
        let (dg, through) = (self.empty(g.shape().clone(), DType::F32)?, self.empty(dy.shape().clone(), DType::F32)?);
        let [x_at, weight_at, inverse_at, dy, g] = [&x, &weight, inverse, &dy, &g].map(Binding::Read);
        let arrays = [x_at, weight_at, inverse_at, dy, Binding::Write(&through), g, Binding::Write(&dg)];
        self.launch(&OPEN_GATE, groups(x.shape().count()), &call.args, &arrays)?;
        let dx = normalise_backward(self, options, &x, Some(&weight), inverse, &through, None)?;
        // dw sums x r dy over rows, of what the gate let through.
        let dweight = sum_columns(self, width, Terms::Scaled(&x, inverse, &through))?;
        let (x, weight) = (self.rounded(dx, dtype)?, self.rounded(dweight, dtype)?);
        Ok(RmsNormInputs { x, weight, g: Some(self.rounded(dg, dtype)?) })
    }

    /// In one pass where numbers have 32 bits and there is no gate: a sum of 16 bits is rounded before its norm.
    /// `residual`, `x` and their sum have one shape; later layers go on from the sum.
    fn add_rms_norm(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        residual: &Tensor<Self>,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<AddedNorm<Tensor<Self>>> {
        let RmsNormInputs { x, weight, g: None } = *inputs else {
            return self.add_rms_norm_by_parts(checked, options, residual, inputs);
        };
        if x.dtype() != DType::F32 {
            return self.add_rms_norm_by_parts(checked, options, residual, inputs);
        }
        let sum = self.empty(x.shape().clone(), DType::F32)?;
        let normed = normalise(self, options, x, Some(weight), None, Some([residual, &sum]))?;
        Ok(AddedNorm { sum, normed })
    }

    /// In one pass without a gate; gradients of 16 bits are widened before and rounded after it.
    /// `dsum`, like `x`, is what comes back along the residual stream.
    fn add_rms_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g: None }, inverse, dy } = *call else {
            return self.add_rms_norm_backward_by_parts(checked, call, dsum);
        };
        let dx = normalise_backward(self, options, x, Some(weight), inverse, dy, Some(dsum))?;
        let dweight = sum_columns(self, x.shape().last(), Terms::Scaled(x, inverse, dy))?;
        Ok(RmsNormInputs { x: dx, weight: dweight, g: None })
    }

    /// `y = x r` with `r = 1/√(|x|² + ε²)` row by row, and `r [rows]`.
    /// `x [.., D]`; `y` is like it, and `r` has 32 bits.
    fn l2_norm(&self, _: Checked<Self>, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>> {
        normalise(self, RmsNormOptions::new(epsilon), x, None, None, None)
    }

    /// `dx = r (dy − x r² (x·dy))`, row by row.
    /// The forward's `ε` is in `r` already, so none is needed here.
    fn l2_norm_backward(
        &self,
        _: Checked<Self>,
        x: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        normalise_backward(self, RmsNormOptions::new(0.0), x, None, inverse, dy, None)
    }
}
