//! Normalising rows.

use super::reduce::{Terms, sum_columns};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{DType, Result, Tensor, primitives::Norm};

const TEXT: &str = include_str!("norm.wgsl");
const FORWARD: Source = Source { name: "norm_forward", parts: &[PRELUDE, TEXT, include_str!("norm_forward.wgsl")] };
const BACKWARD: Source = Source { name: "norm_backward", parts: &[PRELUDE, TEXT, include_str!("norm_backward.wgsl")] };

/// Invocations of a row and of a workgroup, where rows are short and where they are long.
const LANES: [[u32; 2]; 2] = [[16, 64], [256, 256]];

/// Numbers of a short row at most.
const SHORT: usize = 512;

/// What the kernels leave open: short rows and long ones, each by the root of their mean square and by their length.
static CONSTANTS: [[(&str, u32); 3]; 4] = [
    [("LANES", LANES[0][0]), ("INVOCATIONS", LANES[0][1]), ("L2", 0)],
    [("LANES", LANES[0][0]), ("INVOCATIONS", LANES[0][1]), ("L2", 1)],
    [("LANES", LANES[1][0]), ("INVOCATIONS", LANES[1][1]), ("L2", 0)],
    [("LANES", LANES[1][0]), ("INVOCATIONS", LANES[1][1]), ("L2", 1)],
];

const fn forward(which: usize) -> Kernel<'static> {
    Kernel { source: &FORWARD, entry: "normalise", constants: &CONSTANTS[which] }
}

const fn backward(which: usize) -> Kernel<'static> {
    Kernel { source: &BACKWARD, entry: "normalise_backward", constants: &CONSTANTS[which] }
}

pub(crate) const KERNELS: &[Kernel<'static>] =
    &[forward(0), forward(1), forward(2), forward(3), backward(0), backward(1), backward(2), backward(3)];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    rows: u32,
    width: u32,
    epsilon: f32,
    share: f32,
}

/// How rows of a call are normalised: with a weight by the root of their mean square, without by their length.
struct Call {
    args: Args,
    which: usize,
    groups: usize,
}

impl Call {
    fn new(x: &Tensor<Wgpu>, l2: bool, epsilon: f32) -> Self {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let long = usize::from(width > SHORT);
        let share = if l2 { 1.0 } else { 1.0 / width as f32 };
        Self {
            args: Args { rows: rows as u32, width: width as u32, epsilon, share },
            which: 2 * long + usize::from(l2),
            groups: rows.div_ceil((LANES[long][1] / LANES[long][0]) as usize),
        }
    }
}

/// `(y, r)`.
fn normalise(
    device: &Wgpu,
    epsilon: f32,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
    let (call, dtype, x) = (Call::new(x, weight.is_none(), epsilon), x.dtype(), device.widened(x)?);
    let weight = device.widened(weight.unwrap_or(&x))?;
    let (y, inverse) = (device.empty(x.shape().clone(), DType::F32)?, device.empty([x.shape().rows()], DType::F32)?);
    let arrays = [Binding::Read(&x), Binding::Read(&weight), Binding::Write(&y), Binding::Write(&inverse)];
    device.launch(&forward(call.which), (call.groups, 1, 1), &call.args, &arrays)?;
    Ok((device.rounded(y, dtype)?, inverse))
}

fn normalise_backward(
    device: &Wgpu,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
    inverse: &Tensor<Wgpu>,
    dy: &Tensor<Wgpu>,
) -> Result<Tensor<Wgpu>> {
    let (call, dtype) = (Call::new(x, weight.is_none(), 0.0), x.dtype());
    let (x, dy) = (device.widened(x)?, device.widened(dy)?);
    let weight = device.widened(weight.unwrap_or(&x))?;
    let dx = device.empty(x.shape().clone(), DType::F32)?;
    let [x, weight, dy] = [&x, &weight, &dy].map(Binding::Read);
    let arrays = [x, weight, Binding::Read(inverse), dy, Binding::Write(&dx)];
    device.launch(&backward(call.which), (call.groups, 1, 1), &call.args, &arrays)?;
    device.rounded(dx, dtype)
}

impl Norm for Wgpu {
    fn rms_norm(&self, epsilon: f32, x: &Tensor<Self>, weight: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight))
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let dx = normalise_backward(self, x, Some(weight), inverse, dy)?;
        Ok((dx, sum_columns(self, x.shape().last(), Terms::Scaled(x, inverse, dy))?))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, None)
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}
