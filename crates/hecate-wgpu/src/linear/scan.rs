//! Token by token: forward, and backward as far as values, what is written, and the memory's gradient go.

use super::{
    layout::{Layout, LinearArgs},
    shape::Shape,
};
use crate::{
    Wgpu,
    launch::{
        Binding::{Read, Write},
        Kernel, PRELUDE, WgslSource,
    },
    parameters::Parameters,
    stored::{BF16, BITS, F16, F32, IEEE, STORE_F16, STORE_F32, Stored},
};
use hecate_core::{
    Result, Tensor,
    families::{LinearInputs, LinearOutputs, LinearState},
};

/// Sizes and offsets of a call; all kernels of the engine take them.
pub(super) const ARGS: &str = include_str!("args.wgsl");
/// Scalars of tokens, sequences, and segments between kept states.
pub(super) const LINEAR: &str = include_str!("linear.wgsl");
/// Queries and keys element by element.
const KEYS: &str = include_str!("keys.wgsl");
/// Queries and keys four elements at a time.
const KEYS_WIDE: &str = include_str!("keys_wide.wgsl");
/// How invocations share a column.
const ROWS: &str = include_str!("rows.wgsl");
/// Writing a column's rows.
const ROWS_WRITE: &str = include_str!("rows_write.wgsl");
/// Tokens on their way to a workgroup.
const TILE: &str = include_str!("tile.wgsl");
/// Where a scan's workgroup walks.
const WALK: &str = include_str!("walk.wgsl");
/// Sums over a column, on any adapter and on one with subgroups.
pub(crate) const COLUMN_SUM: [&str; 2] = [include_str!("column_sum.wgsl"), include_str!("column_sum_subgroups.wgsl")];
/// Sixteen rows an invocation.
const ROWS_16: &str = include_str!("rows_16.wgsl");
/// Thirty-two rows an invocation.
const ROWS_32: &str = include_str!("rows_32.wgsl");

/// Scalars, table and states of a pass: an invocation makes one of each.
static BEGIN: WgslSource =
    WgslSource { name: "begin", parts: &[PRELUDE, LinearArgs::WGSL, ARGS, include_str!("begin.wgsl")] };

/// A kernel for every [shape](Shape) of a workgroup: what comes before the shape's texts, and after them.
macro_rules! shapes {
    ($name:expr, [$($before:expr),*], [$($after:expr),*]) => {
        [
            WgslSource { name: $name, parts: &[$($before,)* COLUMN_SUM[0], ROWS_16, ROWS, $($after),*] },
            WgslSource { name: $name, parts: &[$($before,)* COLUMN_SUM[0], ROWS_32, ROWS, $($after),*] },
            WgslSource { name: $name, parts: &[$($before,)* COLUMN_SUM[1], ROWS_16, ROWS, $($after),*] },
            WgslSource { name: $name, parts: &[$($before,)* COLUMN_SUM[1], ROWS_32, ROWS, $($after),*] },
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
static SCAN: [WgslSource; 4] = shapes!(
    "scan",
    [F32, STORE_F32, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS],
    [ROWS_WRITE, TILE, WALK, include_str!("scan.wgsl")]
);
/// Over keys of a multiple of four elements, by the type of what it reads.
static SCAN_WIDE: [[WgslSource; 4]; 3] = [
    shapes!(
        "scan_wide",
        [F32, STORE_F32, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, WALK, include_str!("scan.wgsl")]
    ),
    shapes!(
        "scan_wide_bf16",
        [BF16, STORE_F32, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, WALK, include_str!("scan.wgsl")]
    ),
    shapes!(
        "scan_wide_f16",
        [F16, STORE_F16, IEEE, BITS, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, WALK, include_str!("scan.wgsl")]
    ),
];

/// Backward, all is of 32-bit floats: over keys of any length, and of a multiple of four elements.
static RECOMPUTE: [[WgslSource; 4]; 2] = [
    shapes!("recompute", [PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS], [TILE, include_str!("recompute.wgsl")]),
    shapes!(
        "recompute_wide",
        [F32, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS_WIDE],
        [TILE, include_str!("recompute.wgsl")]
    ),
];
/// The gradient of the memory, from the last token to the first.
static REVERSE: [[WgslSource; 4]; 2] = [
    shapes!(
        "reverse",
        [PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS],
        [ROWS_WRITE, TILE, WALK, include_str!("reverse.wgsl")]
    ),
    shapes!(
        "reverse_wide",
        [F32, PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, KEYS_WIDE],
        [ROWS_WRITE, TILE, WALK, include_str!("reverse.wgsl")]
    ),
];

/// Whether keys of this length are read four elements at a time.
pub(super) fn wide(key: usize) -> bool {
    key.is_multiple_of(4)
}

/// The constants of a scan, for the test that compiles all.
type Constants = [(&'static str, u32); 8];

/// Constants of `rows.wgsl` and `tile.wgsl`, in the order of [`Constants`].
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

/// One kernel a shape.
const fn kernels(sources: &'static [WgslSource; 4], entry: &'static str) -> [Kernel<'static>; 4] {
    [
        Kernel { source: &sources[0], entry, constants: &CONSTANTS[0] },
        Kernel { source: &sources[1], entry, constants: &CONSTANTS[1] },
        Kernel { source: &sources[2], entry, constants: &CONSTANTS[2] },
        Kernel { source: &sources[3], entry, constants: &CONSTANTS[3] },
    ]
}

/// Every scan, for the test alone.
const ALL: [[Kernel<'static>; 4]; 8] = [
    kernels(&SCAN, "scan"),
    kernels(&SCAN_WIDE[0], "scan"),
    kernels(&SCAN_WIDE[1], "scan"),
    kernels(&SCAN_WIDE[2], "scan"),
    kernels(&RECOMPUTE[0], "recompute"),
    kernels(&RECOMPUTE[1], "recompute"),
    kernels(&REVERSE[0], "reverse"),
    kernels(&REVERSE[1], "reverse"),
];

/// For the test that compiles them.
pub(crate) const KERNELS: &[Kernel<'static>] = ALL.as_flattened();
/// For the test that compiles them.
pub(crate) const BEGINS: &[Kernel<'static>] = &[Kernel { source: &BEGIN, entry: "begin", constants: &[] }];

/// What a backward knows once the scans are through.
pub(super) struct ScanResults {
    /// The pass's own memory.
    pub(super) work: Tensor<Wgpu>,
    /// States before each chunk `[kept,H,M and S,K,V]`.
    pub(super) kept: Tensor<Wgpu>,
    /// Gradients of the states after each chunk, the same shape.
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

/// The gate beside `log_a` and `theta`, of which a rule has one at most: `log_eta` or `beta`.
pub(super) fn gate2(inputs: &LinearInputs<Tensor<Wgpu>>) -> Option<&Tensor<Wgpu>> {
    inputs.log_eta.as_ref().or(inputs.beta.as_ref())
}

/// Gates as scalars, and the states that the scans of a pass start from.
fn begin(
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Wgpu>>,
    state: &LinearState<Tensor<Wgpu>>,
) -> Result<Tensor<Wgpu>> {
    // Scalars `[rows,H,4]`, the table of sequences, and the states, all as words.
    let work = layout.work()?;
    // What a rule has not is not read.
    let gate2 = gate2(inputs).unwrap_or(&inputs.theta);
    let (m, s) = (&state.m, state.s.as_ref().unwrap_or(&state.m));
    // Where all sequences are alike the kernel does not look at the table.
    let nothing;
    let table = match &layout.starts {
        Some(table) => table,
        None => {
            nothing = layout.device.table(&[0])?;
            &nothing
        }
    };
    // The longest of the three things that invocations copy.
    let count = layout.scalars().max(layout.matrices()).max(2 * (layout.dims.sequences.count() + 1));
    let bindings = [Write(&work), Read(&inputs.log_a), Read(&inputs.theta), Read(gate2), Read(table), Read(m), Read(s)];
    layout.launch(&BEGIN, "begin", &[], &layout.args(count), &bindings)?;
    Ok(work)
}

/// Equations (1)–(5); `kept` takes the states that the backward starts from. Results have the type that the
/// source of the queries makes.
pub(super) fn forward(
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Wgpu>>,
    [q, k, v]: &[Stored; 3],
    outputs: &LinearOutputs<Tensor<Wgpu>>,
    kept: Option<&Tensor<Wgpu>>,
) -> Result<()> {
    let work = begin(layout, inputs, &inputs.state)?;
    let nothing = [layout.scratch(0)?, layout.scratch(0)?];
    // Bindings of `scan.wgsl`, from 1; a state that the rule does not have is not written.
    let bindings = [
        Read(&work),
        Read(&q.array),
        Read(&k.array),
        Read(&v.array),
        Write(&outputs.out),
        Write(&outputs.state.m),
        Write(outputs.state.s.as_ref().unwrap_or(&nothing[0])),
        Write(kept.unwrap_or(&nothing[1])),
    ];
    let sources = if wide(layout.dims.key) { &SCAN_WIDE[q.source] } else { &SCAN };
    layout.scan(|shape| &sources[of_shape(shape)], "scan", layout.states(), kept.is_some(), &bindings)
}

/// What every token wrote, and what that is worth: all that goes from token to token. Writes the gradient of the
/// initial state.
pub(super) fn backward(
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Wgpu>>,
    kept: Tensor<Wgpu>,
    dout: &Tensor<Wgpu>,
    grads: &LinearOutputs<Tensor<Wgpu>>,
    dinputs: &LinearInputs<Tensor<Wgpu>>,
) -> Result<ScanResults> {
    // The gradients of the final states are where the reverse scan begins.
    let work = begin(layout, inputs, &grads.state)?;
    // Arrays `[rows,H,V]`.
    let values = || layout.scratch(layout.scalars() * layout.dims.value);
    let optional = |wanted: bool| if wanted { values().map(Some) } else { Ok(None) };
    let scans = ScanResults {
        work,
        kept,
        kept_grads: layout.scratch(layout.kept_elements())?,
        z: values()?,
        predicted: optional(layout.spec.erases())?,
        targets: optional(layout.spec.frozen.is_some())?,
        dz: values()?,
    };
    let nothing = [layout.scratch(0)?, layout.scratch(0)?];
    // Bindings of `reverse.wgsl`, from 1.
    let bindings = [
        Read(&scans.work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(dout),
        Write(&dinputs.state.m),
        Write(dinputs.state.s.as_ref().unwrap_or(&nothing[0])),
        Write(&scans.kept_grads),
        Write(&scans.dz),
    ];
    // The reverse scan needs no states, the recompute no gradients.
    let wide = usize::from(wide(layout.dims.key));
    layout.scan(|shape| &REVERSE[wide][of_shape(shape)], "reverse", layout.states(), true, &bindings)?;
    // Without predictions z is w v, which the gradients' kernels make on their way.
    if !layout.spec.erases() && layout.spec.frozen.is_none() {
        return Ok(scans);
    }
    let bindings = [
        Read(&scans.work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(&inputs.v),
        Read(&scans.kept),
        Write(&scans.z),
        Write(scans.predicted.as_ref().unwrap_or(&nothing[0])),
        Write(scans.targets.as_ref().unwrap_or(&nothing[1])),
    ];
    layout.scan(|shape| &RECOMPUTE[wide][of_shape(shape)], "recompute", layout.chunks(), false, &bindings)?;
    Ok(scans)
}
