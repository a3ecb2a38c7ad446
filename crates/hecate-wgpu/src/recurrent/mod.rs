//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does, in `recurrent.wgsl`'s terms: functions that a whole workgroup runs together. This module
//! starts a workgroup for every sequence and head, as many at once as there is room for, keeps states, and cuts arrays to
//! eight; of a span of tokens one kernel computes the states between kept ones again, and one walks back.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! numbers (frozen rules every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group). During a backward every
//! workgroup has the states of one such stretch in room of its own.

mod plan;

use crate::{
    Wgpu,
    error::failed,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{DType, Dims, Inputs, Of, Outputs, Result, Rule, Shape, Slots, Tensor};
use plan::{Args, Call, Grid, KEPT_EVERY, Plan, offsets, spans};
use std::vec;

/// What the kernels of all rules share.
pub(crate) const PARTS: [&str; 5] = [
    PRELUDE,
    include_str!("functions.wgsl"),
    include_str!("block.wgsl"),
    include_str!("phases.wgsl"),
    include_str!("recurrent.wgsl"),
];
/// For rules that multiply no matrices.
pub(crate) const NO_PRODUCTS: &str = include_str!("no_products.wgsl");
/// `silu`.
pub(crate) const SILU: &str = include_str!("silu.wgsl");
/// The kernel `forward`, which also goes through spans again for a backward.
pub(crate) const FORWARD: &str = include_str!("forward.wgsl");
/// The kernel `backward`.
pub(crate) const BACKWARD: &str = include_str!("backward.wgsl");

/// A rule that these kernels run.
pub(crate) trait Recurrent: Rule {
    /// Its kernel `forward`, and its kernel `backward`.
    const SOURCES: [&'static Source; 2];

    /// Constants of both, beside those of `block.wgsl`.
    const CONSTANTS: &'static [(&'static str, u32)] = &[];

    /// Bytes of workgroup memory of its own, at most.
    const SHARED: usize = 0;

    /// The rule's `Cell` at these sizes, as words.
    fn cell(self, dims: &Dims) -> Cell;

    /// Room that a token asks for.
    fn room(self, dims: &Dims) -> Room;

    /// Groups of this many tokens share one gradient point.
    fn frozen(self) -> Option<u32>;

    /// Rounds that a token's products take, of so many invocations.
    fn rounds(self, _: &Dims, _threads: usize) -> usize {
        0
    }
}

/// The words of a rule's `Cell` in WGSL, as many of them as it has.
pub(crate) type Cell = [u32; 12];

/// The words of a `Cell`.
pub(crate) fn cell(words: &[u32]) -> Cell {
    std::array::from_fn(|i| words.get(i).copied().unwrap_or(0))
}

/// Numbers that a token needs beside states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// In rows: that its forward leaves for its backward.
    pub(crate) record: usize,
    /// In rows: for intermediate results.
    pub(crate) scratch: usize,
    /// In matrices.
    pub(crate) matrices: usize,
}

/// What a forward keeps for its backward.
#[derive(Debug)]
pub struct Kept(Tensor<Wgpu>);

/// The arrays of a call in the order of the kernels' bindings, without room.
struct Arrays<'a> {
    read: [&'a Tensor<Wgpu>; 4],
    kept: &'a Tensor<Wgpu>,
    made: &'a Tensor<Wgpu>,
    dout: Option<&'a Tensor<Wgpu>>,
}

/// What a dispatch does of a call: ticks `first … first + ticks` of a span, forward or back.
struct Slice {
    span: usize,
    first: usize,
    back: bool,
}

/// Starts a rule's kernels, slice by slice, on as many lanes at once as there is room for.
fn start<R: Recurrent>(device: &Wgpu, grid: &Grid, args: &Args, arrays: &Arrays<'_>, slices: &[Slice]) -> Result<()> {
    let room = device.empty([grid.groups, grid.each + grid.rows], DType::F32)?;
    let mut constants = vec![("THREADS", grid.threads), ("LANES", grid.lanes), ("NEAR", grid.near)];
    constants.extend(R::CONSTANTS);
    let mut bindings = arrays.read.map(Binding::Read).to_vec();
    bindings.extend([arrays.kept, arrays.made, &room].map(Binding::Write));
    let there = bindings.len();
    bindings.extend(arrays.dout.map(Binding::Read));
    let kernel = |source, entry| Kernel { source, entry, constants: &constants };
    let (forward, backward) = (kernel(R::SOURCES[0], "forward"), kernel(R::SOURCES[1], "backward"));
    let lanes = args.call.lanes as usize;
    for lane in (0..lanes).step_by(grid.groups) {
        for &Slice { span, first, back } in slices {
            let (begin, end) = (first as u32, (first + grid.ticks) as u32);
            let call = Call { lane: lane as u32, span: span as u32, begin, end, ..args.call };
            let groups = (grid.groups.min(lanes - lane), 1, 1);
            let (kernel, bindings) = if back { (&backward, &bindings[..]) } else { (&forward, &bindings[..there]) };
            device.launch(kernel, groups, &Args { call, ..*args }, bindings)?;
        }
    }
    Ok(())
}

/// The next of some results.
fn next(results: &mut vec::IntoIter<Tensor<Wgpu>>) -> Result<Tensor<Wgpu>> {
    results.next().ok_or_else(|| failed("splitting results", "there are fewer than shapes"))
}

/// Tables, gates and states in one array, and behind them the gradients of final states where there are any.
fn given<R: Rule>(
    device: &Wgpu,
    plan: &Plan,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    dlast: Option<&Of<R::State, Tensor<Wgpu>>>,
) -> Result<Tensor<Wgpu>> {
    let starts = device.table(&plan.starts)?;
    let mut parts = vec![&starts];
    parts.extend(R::Gates::list(&inputs.gates).into_iter().map(|(_, x)| x));
    parts.extend(R::State::list(&inputs.state).into_iter().map(|(_, x)| x));
    if let Some(dlast) = dlast {
        parts.extend(R::State::list(dlast).into_iter().map(|(_, x)| x));
    }
    device.packed(&parts)
}

/// Runs a rule; `keep` says whether a backward will come.
pub(crate) fn forward<R: Recurrent>(
    device: &Wgpu,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    keep: bool,
) -> Result<(Outputs<R, Tensor<Wgpu>>, Kept)> {
    let plan = Plan::new(rule, dims);
    let grid = plan.forward_grid(rule, device, dims);
    let [q, k, v] = [device.widened(&inputs.q)?, device.widened(&inputs.k)?, device.widened(&inputs.v)?];
    let given = given(device, &plan, inputs, None)?;
    let kept = device.empty([if keep { plan.kept } else { 0 }, dims.heads, plan.state()], DType::F32)?;
    let mut shapes = vec![dims.values()];
    shapes.extend(R::State::into_vec(rule.state(dims)));
    let mut at = shapes[0].count();
    let last = offsets(&mut at, &plan.sizes, plan.lanes);
    let made = device.empty([at], DType::F32)?;
    let call = Call { last, keep: keep.into(), ..plan.call::<R>(dims, &grid) };
    let args = Args { call, cell: rule.cell(dims) };
    let arrays = Arrays { read: [&q, &k, &v, &given], kept: &kept, made: &made, dout: None };
    // A tick opens the state.
    let firsts = (0..=dims.sequences.longest()).step_by(grid.ticks);
    let slices: Vec<_> = firsts.map(|first| Slice { span: 0, first, back: false }).collect();
    start::<R>(device, &grid, &args, &arrays, &slices)?;
    let mut results = device.split(&made, &shapes)?.into_iter();
    let out = device.rounded(next(&mut results)?, inputs.q.dtype())?;
    let state = R::State::try_build(|_| next(&mut results))?;
    Ok((Outputs { out, state }, Kept(kept)))
}

/// Gradients of all inputs.
pub(crate) fn backward<R: Recurrent>(
    device: &Wgpu,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    Kept(kept): Kept,
    grads: &Outputs<R, Tensor<Wgpu>>,
) -> Result<Inputs<R, Tensor<Wgpu>>> {
    let plan = Plan::new(rule, dims);
    let grid = plan.backward_grid(rule, device, dims);
    let [q, k, v] = [device.widened(&inputs.q)?, device.widened(&inputs.k)?, device.widened(&inputs.v)?];
    let dout = device.widened(&grads.out)?;
    let given = given(device, &plan, inputs, Some(&grads.state))?;
    let shapes: Vec<Shape> = [dims.keys(), dims.keys(), dims.values()]
        .into_iter()
        .chain(R::Gates::into_vec(rule.gates(dims)))
        .chain(R::State::into_vec(rule.state(dims)))
        .collect();
    let (dk, dv) = (dims.keys().count(), 2 * dims.keys().count());
    let mut at = dv + dims.values().count();
    let dgates = offsets(&mut at, &plan.widths, plan.rows);
    let last = offsets(&mut at, &plan.sizes, plan.lanes);
    let made = device.empty([at], DType::F32)?;
    let [_, _, dlast] = plan.given();
    let call = Call { again: 1, last, dgates, dlast, dk: dk as u32, dv: dv as u32, ..plan.call::<R>(dims, &grid) };
    let args = Args { call, cell: rule.cell(dims) };
    let arrays = Arrays { read: [&q, &k, &v, &given], kept: &kept, made: &made, dout: Some(&dout) };
    // A span is gone through forward, then back.
    let longest = dims.sequences.longest();
    let firsts = |span, back| {
        let ticks = (0..plan.unit.min(KEPT_EVERY).min(longest)).step_by(grid.ticks);
        ticks.map(move |first| Slice { span, first, back })
    };
    let slices: Vec<_> =
        (0..spans(longest, plan.unit)).flat_map(|span| firsts(span, false).chain(firsts(span, true))).collect();
    start::<R>(device, &grid, &args, &arrays, &slices)?;
    let mut results = device.split(&made, &shapes)?.into_iter();
    let dtype = inputs.q.dtype();
    Ok(Inputs {
        q: device.rounded(next(&mut results)?, dtype)?,
        k: device.rounded(next(&mut results)?, dtype)?,
        v: device.rounded(next(&mut results)?, dtype)?,
        gates: R::Gates::try_build(|_| next(&mut results))?,
        state: R::State::try_build(|_| next(&mut results))?,
    })
}

/// A rule's kernels in WGSL, as [`Recurrent::SOURCES`] asks for them, of texts for both, and for each alone:
/// `sources! { "trellis", [SILU], [include_str!("trellis_forward.wgsl")], [include_str!("trellis_backward.wgsl")] }`
macro_rules! sources {
    ($name:literal, $both:tt, [$($forward:expr),* $(,)?], [$($backward:expr),* $(,)?] $(,)?) => {{
        use $crate::{launch::Source, recurrent::{BACKWARD, FORWARD}};
        static FORWARDS: Source =
            $crate::recurrent::source!(concat!($name, "_forward"), $both, [FORWARD, $($forward),*]);
        static BACKWARDS: Source =
            $crate::recurrent::source!(concat!($name, "_backward"), $both, [BACKWARD, $($backward),*]);
        [&FORWARDS, &BACKWARDS]
    }};
}
pub(crate) use sources;

/// One of them.
macro_rules! source {
    ($name:expr, [$($both:expr),* $(,)?], [$($own:expr),*]) => {{
        use $crate::recurrent::PARTS;
        Source { name: $name, parts: &[PARTS[0], PARTS[1], PARTS[2], PARTS[3], PARTS[4], $($both,)* $($own),*] }
    }};
}
pub(crate) use source;

/// What [`hecate_core::Kernel`] asks for, of rules that are [`Recurrent`].
macro_rules! cells {
    ($($rule:ty),* $(,)?) => { $(
        impl hecate_core::Kernel<$rule> for $crate::Wgpu {
            type Saved = $crate::recurrent::Kept;

            fn forward(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<(hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>, Self::Saved)> {
                $crate::recurrent::forward(self, rule, dims, inputs, true)
            }

            fn backward(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
                saved: Self::Saved,
                grads: &hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>> {
                $crate::recurrent::backward(self, rule, dims, inputs, saved, grads)
            }

            fn infer(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>> {
                Ok($crate::recurrent::forward(self, rule, dims, inputs, false)?.0)
            }
        }
    )* };
}
pub(crate) use cells;

/// Kernels of sources from [`sources!`], as tests compile them: rows in workgroup memory, and in room.
macro_rules! kernels {
    ($rule:ty $(, $name:literal = $value:expr)*) => {{
        use $crate::{launch::Kernel, recurrent::Recurrent};
        const NEAR: &[(&str, u32)] = &[("THREADS", 32), ("LANES", 8), ("NEAR", 512) $(, ($name, $value))*];
        const FAR: &[(&str, u32)] = &[("THREADS", 256), ("LANES", 16), ("NEAR", 0) $(, ($name, $value))*];
        const SOURCES: [&$crate::launch::Source; 2] = <$rule as Recurrent>::SOURCES;
        &[
            Kernel { source: SOURCES[0], entry: "forward", constants: NEAR },
            Kernel { source: SOURCES[0], entry: "forward", constants: FAR },
            Kernel { source: SOURCES[1], entry: "backward", constants: NEAR },
            Kernel { source: SOURCES[1], entry: "backward", constants: FAR },
        ]
    }};
}
pub(crate) use kernels;
