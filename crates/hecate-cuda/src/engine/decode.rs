//! One token of a layer's memory, in one launch.

use super::{Spec, fresh, named};
use crate::{
    Cuda,
    launch::{Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Decode, Decoded, Dims, Projected, Read, Result, Rule, Signal, Slots, Strengths, Tensor};

pub(crate) const SOURCE: Source = source!("decode", "decode.cu");

/// Threads of a block, and the most numbers of a key or a value: a thread has a column.
const THREADS: usize = 1024;

/// `struct Map` of `decode.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Map {
    x: Pointer,
    weight: Pointer,
    last: Pointer,
    next: Pointer,
    taps: u64,
}

/// `struct Signal` there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Number {
    x: Pointer,
    bias: Pointer,
}

kernels! { SOURCE {
    "decode" Arguments {
        q: Map,
        k: Map,
        v: Map,
        retention: Number,
        write: Number,
        other: Number,
        slope: Pointer,
        m: Pointer,
        s: Pointer,
        last_m: Pointer,
        last_s: Pointer,
        weight: Pointer,
        gate: Pointer,
        out: Pointer,
        heads: u32,
        key: u32,
        value: u32,
        strengths: u32,
        erase: u32,
        before: u32,
        factor: f32,
        norm_epsilon: f32,
        epsilon: f32,
    }
} }

impl Map {
    fn new(map: &Projected<Tensor<Cuda>>, next: Option<&Tensor<Cuda>>) -> Self {
        let (weight, last) = map.conv.as_ref().map_or((0, 0), |(weight, last)| (pointer(weight), pointer(last)));
        let taps = map.conv.as_ref().map_or(0, |(weight, _)| weight.shape().last() as u64);
        Self { x: pointer(&map.x), weight, last, next: next.map_or(0, pointer), taps }
    }
}

impl From<&Signal<Tensor<Cuda>>> for Number {
    fn from(signal: &Signal<Tensor<Cuda>>) -> Self {
        Self { x: pointer(&signal.x), bias: pointer(&signal.bias) }
    }
}

/// The number of a form in `decode.cu`, and its factor.
fn form<T>(strengths: &Strengths<T>) -> (u32, f32) {
    match strengths {
        Strengths::Write(factor) => (0, *factor),
        Strengths::Momentum(_) => (1, 1.0),
        Strengths::Erase(_) => (2, 1.0),
        Strengths::EraseRest(_) => (3, 1.0),
    }
}

/// Whether there is a kernel: groups need the memory at their start, and a thread has a column.
pub(super) fn exists(spec: Spec, dims: &Dims) -> bool {
    spec.frozen.is_none() && dims.key <= THREADS && dims.value <= THREADS
}

/// One token, a block for each head of each sequence.
pub(super) fn run<R: Rule>(
    device: &Cuda,
    (rule, spec): (R, Spec),
    dims: &Dims,
    inputs: &Decode<R, Tensor<Cuda>>,
) -> Result<Decoded<R, Tensor<Cuda>>> {
    let maps = [&inputs.q, &inputs.k, &inputs.v];
    let mut convs = [const { None }; 3];
    for (next, map) in convs.iter_mut().zip(maps) {
        let like = map.conv.as_ref().map(|(_, last)| last.shape().clone());
        *next = like.map(|shape| device.empty(shape, DType::F32)).transpose()?;
    }
    let out = device.empty(inputs.v.x.shape().clone(), DType::F32)?;
    let state = fresh::<R::State>(device, rule.state(dims))?;
    let (first, last) = (R::State::list(&inputs.state), R::State::list(&state));
    let [q, k, v] = [0, 1, 2].map(|i| Map::new(maps[i], convs[i].as_ref()));
    let (strengths, factor) = form(&inputs.gates.strengths);
    let retention = inputs.gates.retention.as_ref();
    let arguments = Arguments {
        q,
        k,
        v,
        retention: retention.map_or(Number::default(), |(signal, _)| signal.into()),
        write: (&inputs.gates.write).into(),
        other: inputs.gates.strengths.signal().map_or(Number::default(), Number::from),
        slope: retention.map_or(0, |(_, slope)| pointer(slope)),
        m: named(&first, "m"),
        s: named(&first, "s"),
        last_m: named(&last, "m"),
        last_s: named(&last, "s"),
        weight: pointer(&inputs.weight),
        gate: inputs.gate.as_ref().map_or(0, pointer),
        out: pointer(&out),
        heads: dims.heads as u32,
        key: dims.key as u32,
        value: dims.value as u32,
        strengths,
        erase: spec.erase as u32,
        before: u32::from(spec.read == Read::Before),
        factor,
        norm_epsilon: inputs.norm_epsilon,
        epsilon: inputs.epsilon,
    };
    let shared = 4 * (2 * dims.key + 2 * dims.value + THREADS + 32);
    let grid = Grid { blocks: (dims.batch * dims.heads, 1, 1), threads: THREADS as u32, shared };
    device.launch(grid, &arguments)?;
    Ok(Decoded { out, state, convs })
}
