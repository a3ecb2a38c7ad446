//! Normalising rows.

use super::reduce::{Terms, sum_columns};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
    memory::groups,
};
use hecate_core::{DType, Result, Tensor, primitives::Norm};

const TEXT: &str = include_str!("norm.wgsl");
const FORWARD: Source = Source { name: "norm_forward", parts: &[PRELUDE, TEXT, include_str!("norm_forward.wgsl")] };
const BACKWARD: Source = Source { name: "norm_backward", parts: &[PRELUDE, TEXT, include_str!("norm_backward.wgsl")] };

/// Invocations of a row and of a workgroup, where rows are short and where they are long.
const LANES: [[u32; 2]; 2] = [[16, 64], [256, 256]];

/// Numbers of a short row at most.
const SHORT: usize = 512;

/// What rows are divided by, and what they are times; numbers are those in the kernels.
#[derive(Clone, Copy)]
enum Kind {
    /// By the root of their mean square, times a weight.
    Rms,
    /// By their length.
    L2,
    /// As [`Kind::Rms`], times SiLU of a gate.
    Gated,
}

const KINDS: [Kind; 3] = [Kind::Rms, Kind::L2, Kind::Gated];

type Constants = [(&'static str, u32); 3];

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

const fn forward(which: usize) -> Kernel<'static> {
    Kernel { source: &FORWARD, entry: "normalise", constants: &CONSTANTS[which] }
}

const fn backward(which: usize) -> Kernel<'static> {
    Kernel { source: &BACKWARD, entry: "normalise_backward", constants: &CONSTANTS[which] }
}

const OPEN_GATE: Kernel<'static> = Kernel { source: &BACKWARD, entry: "open_gate", constants: &CONSTANTS[0] };

pub(crate) const KERNELS: &[Kernel<'static>] = &[
    forward(0),
    forward(1),
    forward(2),
    forward(3),
    forward(4),
    forward(5),
    backward(0),
    backward(1),
    backward(3),
    backward(4),
    OPEN_GATE,
];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    rows: u32,
    width: u32,
    epsilon: f32,
    share: f32,
}

/// How rows of a call are normalised.
struct Call {
    args: Args,
    which: usize,
    groups: usize,
}

impl Call {
    fn new(x: &Tensor<Wgpu>, kind: Kind, epsilon: f32) -> Self {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let long = usize::from(width > SHORT);
        let share = if matches!(kind, Kind::L2) { 1.0 } else { 1.0 / width as f32 };
        Self {
            args: Args { rows: rows as u32, width: width as u32, epsilon, share },
            which: KINDS.len() * long + kind as usize,
            groups: rows.div_ceil((LANES[long][1] / LANES[long][0]) as usize),
        }
    }
}

/// `(y, r)`; without a weight by the length.
fn normalise(
    device: &Wgpu,
    epsilon: f32,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
    gate: Option<&Tensor<Wgpu>>,
) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
    let kind = if gate.is_some() { Kind::Gated } else { plain(weight) };
    let (call, dtype, x) = (Call::new(x, kind, epsilon), x.dtype(), device.widened(x)?);
    let weight = device.widened(weight.unwrap_or(&x))?;
    let gate = device.widened(gate.unwrap_or(&x))?;
    let (y, inverse) = (device.empty(x.shape().clone(), DType::F32)?, device.empty([x.shape().rows()], DType::F32)?);
    let [x, weight, gate] = [&x, &weight, &gate].map(Binding::Read);
    let arrays = [x, weight, Binding::Write(&y), Binding::Write(&inverse), gate];
    device.launch(&forward(call.which), (call.groups, 1, 1), &call.args, &arrays)?;
    Ok((device.rounded(y, dtype)?, inverse))
}

fn plain(weight: Option<&Tensor<Wgpu>>) -> Kind {
    if weight.is_some() { Kind::Rms } else { Kind::L2 }
}

fn normalise_backward(
    device: &Wgpu,
    x: &Tensor<Wgpu>,
    weight: Option<&Tensor<Wgpu>>,
    inverse: &Tensor<Wgpu>,
    dy: &Tensor<Wgpu>,
) -> Result<Tensor<Wgpu>> {
    let (call, dtype) = (Call::new(x, plain(weight), 0.0), x.dtype());
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
        normalise(self, epsilon, x, Some(weight), None)
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

    fn rms_norm_gated(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, Some(weight), Some(g))
    }

    fn rms_norm_gated_backward(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        g: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (call, dtype) = (Call::new(x, Kind::Rms, 0.0), x.dtype());
        let (x, weight) = (self.widened(x)?, self.widened(weight)?);
        let (g, dy) = (self.widened(g)?, self.widened(dy)?);
        let (dg, through) = (self.empty(g.shape().clone(), DType::F32)?, self.empty(dy.shape().clone(), DType::F32)?);
        let [x_at, weight_at, inverse_at, dy, g] = [&x, &weight, inverse, &dy, &g].map(Binding::Read);
        let arrays = [x_at, weight_at, inverse_at, dy, Binding::Write(&through), g, Binding::Write(&dg)];
        self.launch(&OPEN_GATE, groups(x.shape().count()), &call.args, &arrays)?;
        let dx = normalise_backward(self, &x, Some(&weight), inverse, &through)?;
        let dweight = sum_columns(self, x.shape().last(), Terms::Scaled(&x, inverse, &through))?;
        Ok((self.rounded(dx, dtype)?, self.rounded(dweight, dtype)?, self.rounded(dg, dtype)?))
    }

    fn l2_norm(&self, epsilon: f32, x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        normalise(self, epsilon, x, None, None)
    }

    fn l2_norm_backward(&self, x: &Tensor<Self>, inverse: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}
