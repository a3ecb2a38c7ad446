//! One token of a layer's memory, in one launch.
//!
//! Convolutions, norms, gates, the step of the rule, the output's norm and its gate, which are a dozen launches
//! otherwise.
//! A token's arithmetic is so little that launches are what generation waits for.

use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Grid, kernels, optional, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    ConvInput, DType, Dims, GateForm, GateLogit, Read, Result, Tensor,
    families::{LinearDecode, LinearDecoded, LinearSpec, LinearState},
};

/// `F.silu(F.conv1d(..))` of `q`, `k`, `v`, gates, one step of the rule, `F.rms_norm(M q)` and its gate.
pub(crate) const SOURCE: KernelSource = kernel_source!("decode", "decode.cu");

/// Threads of a block, and the most elements of a key or a value: a thread has a column.
const THREADS: usize = 1024;

/// Threads of a block of a small memory, each with four columns.
const SMALL: usize = 128;

/// Elements of a small memory, which a block has in shared memory.
const HELD: usize = 4096;

arguments! {
    /// `struct Map` of `decode.cu`.
    struct Map {
        /// `[N, H width]`.
        x: In<f32>,
        weight: In<f32>,
        last: In<f32>,
        next: Out<f32>,
        /// `W`.
        /// 0 without a convolution.
        taps: u64,
    }
}

arguments! {
    /// `struct GateLogit` there.
    #[derive(Default)]
    struct LogitPointers {
        x: In<f32>,
        bias: In<f32>,
    }
}

kernels! { SOURCE {
    // All arrays in 32 bits; `decode.cu` has their shapes.
    "decode" DecodeArguments {
        q: Map,
        k: Map,
        v: Map,
        // Logits `[N, H]` with their biases `[H]`; null where the form has no such gate.
        retention: LogitPointers,
        write: LogitPointers,
        other: LogitPointers,
        a_log: In<f32>,
        m: In<f32>,
        s: In<f32>,
        last_m: Out<f32>,
        last_s: Out<f32>,
        weight: In<f32>,
        // `[N, H V]`, or null.
        gate: In<f32>,
        out: Out<f32>,
        // Sizes and options; forms are numbered by `form`.
        heads: u32,
        key: u32,
        value: u32,
        gate_form: u32,
        erase: u32,
        before: u32,
        factor: f32,
        norm_epsilon: f32,
        epsilon: f32,
    }
    // The same of a memory that a small block holds in shared memory.
    "decode_small" DecodeSmall { call: DecodeArguments }
} }

impl Map {
    /// `next [N, W-1, H width]` takes the last inputs, where there is a convolution.
    fn new(map: &ConvInput<Tensor<Cuda>>, next: Option<&Tensor<Cuda>>) -> Self {
        let (weight, last) = map.conv.as_ref().map_or((0, 0), |(weight, last)| (pointer(weight), pointer(last)));
        let taps = map.conv.as_ref().map_or(0, |(weight, _)| weight.shape().last() as u64);
        Self { x: pointer(&map.x), weight, last, next: next.map_or(0, pointer), taps }
    }
}

impl From<&GateLogit<Tensor<Cuda>>> for LogitPointers {
    /// Addresses of a gate's logits and bias.
    fn from(logit: &GateLogit<Tensor<Cuda>>) -> Self {
        Self { x: pointer(&logit.x), bias: pointer(&logit.bias) }
    }
}

/// The number of a form in `decode.cu`, and its factor.
/// The factor is what a write strength is multiplied by, and 1 where a form has none.
fn form<T>(form: &GateForm<T>) -> (u32, f32) {
    match form {
        GateForm::Write(factor) => (0, *factor),
        GateForm::Momentum(_) => (1, 1.0),
        GateForm::Erase(_) => (2, 1.0),
        GateForm::EraseRest(_) => (3, 1.0),
    }
}

/// Whether there is a kernel: groups need the memory at their start, and a thread has a column.
/// Elsewhere a token takes the dozen launches of a longer call.
pub(super) fn exists(spec: LinearSpec, dims: &Dims) -> bool {
    !spec.look_ahead && spec.frozen.is_none() && dims.key <= THREADS && dims.value <= THREADS
}

/// One token, a block for each head of each sequence.
/// The state after is written to memory of its own: a caller may go on from the one before more than once.
pub(super) fn run(inputs: LinearDecode<'_, Cuda>) -> Result<LinearDecoded<Tensor<Cuda>>> {
    let LinearDecode { device, spec, dims, .. } = inputs;
    // The three projections, with or without a convolution each.
    let maps = [inputs.q, inputs.k, inputs.v];
    let mut convs = [const { None }; 3];
    for (next, map) in convs.iter_mut().zip(maps) {
        // The last inputs after the token have a place of their own.
        let like = map.conv.as_ref().map(|(_, last)| last.shape().clone());
        *next = like.map(|shape| device.empty(shape, DType::F32)).transpose()?;
    }
    // All outputs are written by one launch.
    let out = device.empty(inputs.v.x.shape().clone(), DType::F32)?;
    let state = LinearState::try_build(spec, dims, |shape, dtype| device.empty(shape, dtype))?;
    let (first, last) = (&inputs.state, &state);
    let [q, k, v] = [0, 1, 2].map(|i| Map::new(maps[i], convs[i].as_ref()));
    let (gate_form, factor) = form(&inputs.gates.strengths);
    // Rules without a forgetting gate have none.
    let retention = inputs.gates.retention.as_ref();
    let arguments = DecodeArguments {
        q,
        k,
        v,
        retention: retention.map_or(LogitPointers::default(), |(signal, _)| signal.into()),
        write: (&inputs.gates.write).into(),
        other: inputs.gates.strengths.signal().map_or(LogitPointers::default(), LogitPointers::from),
        a_log: retention.map_or(0, |(_, a_log)| pointer(a_log)),
        m: pointer(&first.m),
        // Null for rules without momentum.
        s: optional(first.s.as_ref()),
        last_m: pointer(&last.m),
        last_s: optional(last.s.as_ref()),
        weight: pointer(inputs.weight),
        gate: inputs.gate.map_or(0, pointer),
        out: pointer(&out),
        heads: dims.heads as u32,
        key: dims.key as u32,
        value: dims.value as u32,
        gate_form,
        erase: spec.erase.number(),
        before: u32::from(spec.read == Read::Before),
        factor,
        norm_epsilon: inputs.norm_epsilon,
        epsilon: inputs.epsilon,
    };
    // A block for each head of each sequence: a small one, beside which others fit, where it can hold its memory.
    let blocks = dims.batch * dims.heads;
    let size = dims.key * dims.value;
    let small = dims.value <= SMALL && dims.value.is_multiple_of(4) && size <= HELD;
    let (threads, columns) = if small { (SMALL, 4) } else { (THREADS, 1) };
    let held = if small { size * (1 + usize::from(first.s.is_some())) } else { 0 };
    // A small memory; q, k, v, u, a sum a thread and column, and 32 for the block.
    // In bytes: under 48 KiB at 1024 columns, which every GPU gives unasked.
    let shared = 4 * (held + 2 * dims.key + 2 * dims.value + threads * columns + 32);
    let grid = Grid { blocks: (blocks, 1, 1), threads: threads as u32, shared };
    // The state may be on its way while the kernel before this still runs.
    match small {
        true => device.launch_early(grid, 1, &DecodeSmall { call: arguments })?,
        false => device.launch_early(grid, 1, &arguments)?,
    }
    Ok(LinearDecoded { out, state, convs })
}
