//! Token by token: forward, and backward as far as values, what is written, and the memory's gradient go.

use super::{
    layout::Layout,
    named,
};
use crate::{
    Wgpu,
    launch::{Binding::{self, Read, Write}, Kernel, PRELUDE, Source},
};
use hecate_core::{Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(super) const LINEAR: &str = include_str!("linear.wgsl");

/// A scan, with a thread's columns its own, and far.
macro_rules! scans {
    ($own:ident, $far:ident, $name:literal) => {
        static $own: Source = Source {
            name: $name,
            parts: &[PRELUDE, LINEAR, include_str!("own.wgsl"), include_str!(concat!($name, ".wgsl"))],
        };
        static $far: Source = Source {
            name: concat!($name, "_far"),
            parts: &[PRELUDE, LINEAR, include_str!("far.wgsl"), include_str!(concat!($name, ".wgsl"))],
        };
    };
}

static BEGIN: Source = Source { name: "begin", parts: &[PRELUDE, LINEAR, include_str!("begin.wgsl")] };
scans!(SCAN, SCAN_FAR, "scan");
scans!(REPLAY, REPLAY_FAR, "replay");
scans!(REVERSE, REVERSE_FAR, "reverse");

macro_rules! with_constants {
    ($source:ident, $entry:literal) => {
        [
            Kernel {
                source: &$source,
                entry: $entry,
                constants: &[("MOMENTUM", 0), ("FROZEN", 1), ("KEY", 5), ("KEEP", 1)],
            },
            Kernel {
                source: &$source,
                entry: $entry,
                constants: &[("MOMENTUM", 1), ("FROZEN", 0), ("KEY", 64), ("KEEP", 0)],
            },
        ]
    };
}

const ALL: [[Kernel<'static>; 2]; 7] = [
    with_constants!(BEGIN, "begin"),
    with_constants!(SCAN, "scan"),
    with_constants!(SCAN_FAR, "scan"),
    with_constants!(REPLAY, "replay"),
    with_constants!(REPLAY_FAR, "replay"),
    with_constants!(REVERSE, "reverse"),
    with_constants!(REVERSE_FAR, "reverse"),
];

/// For the test that compiles them.
pub(crate) const KERNELS: &[Kernel<'static>] = ALL.as_flattened();

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
    columns: usize,
) -> Result<Tensor<Wgpu>> {
    let work = layout.work(columns)?;
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

/// Equations (1)–(5); `kept` takes the states that the backward starts from.
pub(super) fn forward<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    outputs: &Outputs<R, Tensor<Wgpu>>,
    kept: Option<&Tensor<Wgpu>>,
) -> Result<()> {
    let work = begin(layout, inputs, &R::State::list(&inputs.state), layout.columns())?;
    let last = R::State::list(&outputs.state);
    let nothing = [layout.room(0)?, layout.room(0)?];
    let bindings = [
        Write(&work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(&inputs.v),
        Write(&outputs.out),
        Write(named(&last, &["m"]).unwrap_or(&nothing[0])),
        Write(named(&last, &["s"]).unwrap_or(&nothing[0])),
        Write(kept.unwrap_or(&nothing[1])),
    ];
    let keep = [("KEEP", u32::from(kept.is_some()))];
    layout.scan([&SCAN, &SCAN_FAR], "scan", &keep, &layout.args(layout.columns()), &bindings)
}

/// What every token wrote, and what that is worth: all that goes from token to token. Writes the gradient of the initial
/// state.
pub(super) fn backward<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    kept: Tensor<Wgpu>,
    (dout, grads): (&Tensor<Wgpu>, &Outputs<R, Tensor<Wgpu>>),
    dinputs: &Inputs<R, Tensor<Wgpu>>,
) -> Result<Known> {
    let columns = layout.chunks() * layout.dims.value;
    let work = begin(layout, inputs, &R::State::list(&grads.state), columns)?;
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
        Write(&known.work),
        Read(&inputs.q),
        Read(&inputs.k),
        Read(dout),
        Write(named(&first, &["m"]).unwrap_or(&nothing[0])),
        Write(named(&first, &["s"]).unwrap_or(&nothing[0])),
        Write(&known.kept_grads),
        Write(&known.dz),
    ];
    layout.scan([&REVERSE, &REVERSE_FAR], "reverse", &[], &layout.args(layout.columns()), &bindings)?;
    let bindings: [Binding<'_>; 7] = [
        Write(&known.work),
        Read(&inputs.k),
        Read(&inputs.v),
        Read(&known.kept),
        Write(&known.z),
        Write(known.predicted.as_ref().unwrap_or(&nothing[0])),
        Write(known.targets.as_ref().unwrap_or(&nothing[1])),
    ];
    layout.scan([&REPLAY, &REPLAY_FAR], "replay", &[], &layout.args(columns), &bindings)?;
    Ok(known)
}
