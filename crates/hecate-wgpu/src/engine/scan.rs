//! Token by token: forward, and backward as far as values, what is written, and the memory's gradient go.

use super::{layout::Layout, named, shape::Shape};
use crate::{
    Wgpu,
    launch::{
        Binding::{Read, Write},
        Kernel, PRELUDE, Source,
    },
    stored::{BF16, BITS, F16, F32, IEEE, MADE_F16, MADE_F32, Stored},
};
use hecate_core::{Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(super) const ARGS: &str = include_str!("args.wgsl");
pub(super) const LINEAR: &str = include_str!("linear.wgsl");
const KEYS: &str = include_str!("keys.wgsl");
const KEYS_WIDE: &str = include_str!("keys_wide.wgsl");
const ROWS: &str = include_str!("rows.wgsl");
const ROWS_WRITE: &str = include_str!("rows_write.wgsl");
const TILE: &str = include_str!("tile.wgsl");
/// Sums over a column, on any adapter and on one with subgroups.
pub(crate) const PARTS: [&str; 2] = [include_str!("parts.wgsl"), include_str!("parts_subgroups.wgsl")];
const ROWS_16: &str = include_str!("rows_16.wgsl");
const ROWS_32: &str = include_str!("rows_32.wgsl");

static BEGIN: Source = Source { name: "begin", parts: &[PRELUDE, ARGS, include_str!("begin.wgsl")] };

/// A kernel for every [shape](Shape) of a workgroup: what comes before the shape's texts, and behind them.
macro_rules! shapes {
    ($name:expr, [$($before:expr),*], [$($after:expr),*]) => {
        [
            Source { name: $name, parts: &[$($before,)* PARTS[0], ROWS_16, ROWS, $($after),*] },
            Source { name: $name, parts: &[$($before,)* PARTS[0], ROWS_32, ROWS, $($after),*] },
            Source { name: $name, parts: &[$($before,)* PARTS[1], ROWS_16, ROWS, $($after),*] },
            Source { name: $name, parts: &[$($before,)* PARTS[1], ROWS_32, ROWS, $($after),*] },
        ]
    };
}

/// Which of [`shapes!`].
fn of_shape(shape: &Shape) -> usize {
    match (shape.subgroups, shape.rows) {
        (false, 16) => 0,
        (false, _) => 1,
        (true, 16) => 2,
        (true, _) => 3,
    }
}

/// The scan forward over keys of any length.
static SCAN: [Source; 4] =
    shapes!("scan", [F32, MADE_F32, PRELUDE, ARGS, LINEAR, KEYS], [ROWS_WRITE, TILE, include_str!("scan.wgsl")]);
/// Over keys of a multiple of four numbers, by the type of what it reads.
static SCAN_WIDE: [[Source; 4]; 3] = [
    shapes!(
        "scan_wide",
        [F32, MADE_F32, PRELUDE, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, include_str!("scan.wgsl")]
    ),
    shapes!(
        "scan_wide_bf16",
        [BF16, MADE_F32, PRELUDE, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, include_str!("scan.wgsl")]
    ),
    shapes!(
        "scan_wide_f16",
        [F16, MADE_F16, IEEE, BITS, PRELUDE, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, include_str!("scan.wgsl")]
    ),
];

/// Backward, all is of 32-bit floats: over keys of any length, and of a multiple of four numbers.
static REPLAY: [[Source; 4]; 2] = [
    shapes!("replay", [PRELUDE, ARGS, LINEAR, KEYS], [TILE, include_str!("replay.wgsl")]),
    shapes!("replay_wide", [F32, PRELUDE, ARGS, LINEAR, KEYS_WIDE], [TILE, include_str!("replay.wgsl")]),
];
static REVERSE: [[Source; 4]; 2] = [
    shapes!("reverse", [PRELUDE, ARGS, LINEAR, KEYS], [ROWS_WRITE, TILE, include_str!("reverse.wgsl")]),
    shapes!("reverse_wide", [F32, PRELUDE, ARGS, LINEAR, KEYS_WIDE], [ROWS_WRITE, TILE, include_str!("reverse.wgsl")]),
];

/// Whether keys of this length are read four numbers at a time.
pub(super) fn wide(key: usize) -> bool {
    key.is_multiple_of(4)
}

/// The constants of a scan, for the test that compiles all.
type Constants = [(&'static str, u32); 8];

const fn constants([momentum, frozen]: [u32; 2], [whole, rows, parts, threads, tile]: [u32; 5], way: u32) -> Constants {
    [
        ("MOMENTUM", momentum),
        ("FROZEN", frozen),
        ("WHOLE", whole),
        ("ROWS", rows),
        ("PARTS", parts),
        ("THREADS", threads),
        ("TILE", tile),
        ("SUBGROUPS", way),
    ]
}

/// One of each shape.
const CONSTANTS: [Constants; 4] = [
    constants([1, 0], [0, 16, 1, 32, 8], 0),
    constants([1, 1], [1, 32, 256, 256, 0], 0),
    constants([0, 1], [1, 16, 4, 128, 16], 1),
    constants([1, 1], [0, 32, 4, 128, 8], 1),
];

const fn kernels(sources: &'static [Source; 4], entry: &'static str) -> [Kernel<'static>; 4] {
    [
        Kernel { source: &sources[0], entry, constants: &CONSTANTS[0] },
        Kernel { source: &sources[1], entry, constants: &CONSTANTS[1] },
        Kernel { source: &sources[2], entry, constants: &CONSTANTS[2] },
        Kernel { source: &sources[3], entry, constants: &CONSTANTS[3] },
    ]
}

const ALL: [[Kernel<'static>; 4]; 8] = [
    kernels(&SCAN, "scan"),
    kernels(&SCAN_WIDE[0], "scan"),
    kernels(&SCAN_WIDE[1], "scan"),
    kernels(&SCAN_WIDE[2], "scan"),
    kernels(&REPLAY[0], "replay"),
    kernels(&REPLAY[1], "replay"),
    kernels(&REVERSE[0], "reverse"),
    kernels(&REVERSE[1], "reverse"),
];

/// For the test that compiles them.
pub(crate) const KERNELS: &[Kernel<'static>] = ALL.as_flattened();
/// For the test that compiles them.
pub(crate) const BEGINS: &[Kernel<'static>] = &[Kernel { source: &BEGIN, entry: "begin", constants: &[] }];

/// What a backward knows once the scans are through.
pub(super) struct Known {
    /// The pass's own memory.
    pub(super) work: Tensor<Wgpu>,
    /// States before each chunk `[kept,H,M and S,K,V]`.
    pub(super) kept: Tensor<Wgpu>,
    /// Gradients of the states behind each chunk, the same shape.
    pub(super) kept_grads: Tensor<Wgpu>,
    /// What is written `[rows,H,V]`.
    pub(super) z: Tensor<Wgpu>,
    /// `p [rows,H,V]`, of rules that erase.
    pub(super) predicted: Option<Tensor<Wgpu>>,
    /// `v − k M_c [rows,H,V]`, of frozen rules.
    pub(super) targets: Option<Tensor<Wgpu>>,
    /// The gradient of `z`, `Λ`.
    pub(super) dz: Tensor<Wgpu>,
}

/// Gates as scalars, and the states that the scans of a pass start from.
fn begin<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    state: &[(&'static str, &Tensor<Wgpu>)],
) -> Result<Tensor<Wgpu>> {
    let work = layout.work()?;
    let gates = R::Gates::list(&inputs.gates);
    let (log_a, theta) = (named(&gates, &["log_a"]), named(&gates, &["theta"]));
    let (m, s) = (named(state, &["m"]), named(state, &["s", "m"]));
    // Rules of this engine have all of these; what one has not is not read.
    let (log_a, theta) = (log_a.unwrap_or(&inputs.q), theta.unwrap_or(&inputs.q));
    let third = named(&gates, &["log_eta", "beta"]).unwrap_or(theta);
    let (m, s) = (m.unwrap_or(&inputs.q), s.unwrap_or(&inputs.q));
    let nothing;
    let table = match &layout.starts {
        Some(table) => table,
        None => {
            nothing = layout.device.table(&[0])?;
            &nothing
        }
    };
    let count = layout.scalars().max(layout.matrices()).max(2 * (layout.dims.sequences.count() + 1));
    let bindings = [Write(&work), Read(log_a), Read(theta), Read(third), Read(table), Read(m), Read(s)];
    layout.launch(&BEGIN, "begin", &[], &layout.args(count), &bindings)?;
    Ok(work)
}

/// Equations (1)–(5); `kept` takes the states that the backward starts from. Results have the type that the
/// source of the queries makes.
pub(super) fn forward<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    [q, k, v]: &[Stored; 3],
    outputs: &Outputs<R, Tensor<Wgpu>>,
    kept: Option<&Tensor<Wgpu>>,
) -> Result<()> {
    let work = begin(layout, inputs, &R::State::list(&inputs.state))?;
    let last = R::State::list(&outputs.state);
    let nothing = [layout.room(0)?, layout.room(0)?];
    let bindings = [
        Read(&work),
        Read(&q.array),
        Read(&k.array),
        Read(&v.array),
        Write(&outputs.out),
        Write(named(&last, &["m"]).unwrap_or(&nothing[0])),
        Write(named(&last, &["s"]).unwrap_or(&nothing[0])),
        Write(kept.unwrap_or(&nothing[1])),
    ];
    let sources = if wide(layout.dims.key) { &SCAN_WIDE[q.source] } else { &SCAN };
    layout.scan(|shape| &sources[of_shape(shape)], "scan", layout.states(), kept.is_some(), &bindings)
}

/// What every token wrote, and what that is worth: all that goes from token to token. Writes the gradient of the
/// initial state.
pub(super) fn backward<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    kept: Tensor<Wgpu>,
    (dout, grads): (&Tensor<Wgpu>, &Outputs<R, Tensor<Wgpu>>),
    dinputs: &Inputs<R, Tensor<Wgpu>>,
) -> Result<Known> {
    let work = begin(layout, inputs, &R::State::list(&grads.state))?;
    let values = || layout.room(layout.scalars() * layout.dims.value);
    let optional = |wanted: bool| if wanted { values().map(Some) } else { Ok(None) };
    let known = Known {
        work,
        kept,
        kept_grads: layout.room(layout.kept_elements())?,
        z: values()?,
        predicted: optional(layout.spec.erases())?,
        targets: optional(layout.spec.frozen.is_some())?,
        dz: values()?,
    };
    let nothing = [layout.room(0)?, layout.room(0)?];
    let first = R::State::list(&dinputs.state);
    let bindings = [
        Read(&known.work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(dout),
        Write(named(&first, &["m"]).unwrap_or(&nothing[0])),
        Write(named(&first, &["s"]).unwrap_or(&nothing[0])),
        Write(&known.kept_grads),
        Write(&known.dz),
    ];
    let wide = usize::from(wide(layout.dims.key));
    layout.scan(|shape| &REVERSE[wide][of_shape(shape)], "reverse", layout.states(), true, &bindings)?;
    let bindings = [
        Read(&known.work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(&inputs.v),
        Read(&known.kept),
        Write(&known.z),
        Write(known.predicted.as_ref().unwrap_or(&nothing[0])),
        Write(known.targets.as_ref().unwrap_or(&nothing[1])),
    ];
    layout.scan(|shape| &REPLAY[wide][of_shape(shape)], "replay", layout.chunks(), false, &bindings)?;
    Ok(known)
}
