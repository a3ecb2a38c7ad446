//! Token by token: forward, and backward as far as values, what is written, and the memory's gradient go.

use super::{layout::Layout, named};
use crate::{
    Wgpu,
    launch::{
        Binding::{Read, Write},
        Kernel, PRELUDE, Source,
    },
    stored::{self, F32, MADE_F32, Stored},
};
use hecate_core::{Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(super) const ARGS: &str = include_str!("args.wgsl");
pub(super) const LINEAR: &str = include_str!("linear.wgsl");
const KEYS: &str = include_str!("keys.wgsl");
const KEYS_WIDE: &str = include_str!("keys_wide.wgsl");
const ROWS: &str = include_str!("rows.wgsl");
const ROWS_WRITE: &str = include_str!("rows_write.wgsl");
const TILE: &str = include_str!("tile.wgsl");

static BEGIN: Source = Source { name: "begin", parts: &[PRELUDE, ARGS, include_str!("begin.wgsl")] };

const SCAN_TEXT: &str = include_str!("scan.wgsl");

/// The scan forward over keys of any length.
static SCAN: Source =
    Source { name: "scan", parts: &[F32, MADE_F32, PRELUDE, ARGS, LINEAR, KEYS, ROWS, ROWS_WRITE, TILE, SCAN_TEXT] };
/// Over keys of a multiple of four numbers, by the type of what it reads.
static SCAN_WIDE: [Source; 3] =
    stored::sources!("scan_wide", [PRELUDE, ARGS, LINEAR, KEYS_WIDE, ROWS, ROWS_WRITE, TILE, SCAN_TEXT]);

/// A scan of 32-bit floats, over keys of either kind.
macro_rules! scans {
    ($id:ident, $name:literal $(, $more:ident)*) => {
        static $id: [Source; 2] = [
            Source {
                name: $name,
                parts: &[PRELUDE, ARGS, LINEAR, KEYS, ROWS, $($more,)* include_str!(concat!($name, ".wgsl"))],
            },
            Source {
                name: concat!($name, "_wide"),
                parts: &[F32, PRELUDE, ARGS, LINEAR, KEYS_WIDE, ROWS, $($more,)* include_str!(concat!($name, ".wgsl"))],
            },
        ];
    };
}

scans!(REPLAY, "replay");
scans!(REVERSE, "reverse", ROWS_WRITE, TILE);

/// Whether keys of this length are read four numbers at a time.
pub(super) fn wide(key: usize) -> bool {
    key.is_multiple_of(4)
}

/// A scan for the test that compiles all: constants of a key and how many share it.
macro_rules! with_constants {
    ($narrow:expr, $wide:expr, $entry:literal) => {
        [
            Kernel {
                source: &$narrow,
                entry: $entry,
                constants: &[("MOMENTUM", 0), ("FROZEN", 1), ("KEY", 5), ("PARTS", 1), ("THREADS", 32), ("TILE", 8)],
            },
            Kernel {
                source: &$wide,
                entry: $entry,
                constants: &[
                    ("MOMENTUM", 1),
                    ("FROZEN", 1),
                    ("KEY", 8192),
                    ("PARTS", 256),
                    ("THREADS", 256),
                    ("TILE", 0),
                ],
            },
            Kernel {
                source: &$wide,
                entry: $entry,
                constants: &[("MOMENTUM", 1), ("FROZEN", 0), ("KEY", 72), ("PARTS", 3), ("THREADS", 64), ("TILE", 10)],
            },
        ]
    };
}

const ALL: [[Kernel<'static>; 3]; 5] = [
    with_constants!(SCAN, SCAN_WIDE[0], "scan"),
    with_constants!(SCAN, SCAN_WIDE[1], "scan"),
    with_constants!(SCAN, SCAN_WIDE[2], "scan"),
    with_constants!(REPLAY[0], REPLAY[1], "replay"),
    with_constants!(REVERSE[0], REVERSE[1], "reverse"),
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
    layout.scan([&SCAN, &SCAN_WIDE[q.source]], "scan", layout.states(), kept.is_some(), &bindings)
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
    layout.scan(REVERSE.each_ref(), "reverse", layout.states(), true, &bindings)?;
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
    layout.scan(REPLAY.each_ref(), "replay", layout.chunks(), false, &bindings)?;
    Ok(known)
}
