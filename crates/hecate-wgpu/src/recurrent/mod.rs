//! Rules whose step is not linear in the memory: token by token, forward and backward. Where a rule has that form, frozen groups
//! of tokens are taken at once (`Recurrent::groups`).
//!
//! A rule says what one token does, in `recurrent.wgsl`'s terms: functions that a whole workgroup runs together. This module
//! starts a workgroup for every sequence and head, as many at once as there is workspace for. It keeps states, and cuts arrays
//! to eight. For a segment of tokens one kernel computes the states between kept ones again, and one walks back.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! elements. Frozen rules keep one every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group. During a backward
//! every workgroup has the states of one such segment in a workspace of its own.

mod plan;

use crate::{
    Wgpu,
    deep::Groups,
    error::failed,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::Parameters,
};
use hecate_core::{
    DType, Dims, Inputs, InputsOn, KernelCall, Of, Outputs, OutputsOn, Result, Rule, Shape, Slots, Tensor,
    families::{Channel, ChannelEngine, ChannelRule, Deep, DeepEngine, DeepRule, Own},
    primitives::sum_rows,
};
pub(crate) use plan::RecurrentCall;
use plan::{Grid, RecurrentArgs, RecurrentPlan, offsets};
use std::vec;

/// What the kernels of all rules share.
pub(crate) const PARTS: [&str; 8] = [
    PRELUDE,
    FUNCTIONS,
    include_str!("block.wgsl"),
    include_str!("phases.wgsl"),
    RecurrentCall::WGSL,
    RecurrentArgs::WGSL,
    include_str!("recurrent.wgsl"),
    include_str!("renorm.wgsl"),
];
/// Powers, and others that drivers compute with few digits.
pub(crate) const FUNCTIONS: &str = include_str!("functions.wgsl");
/// For rules that multiply no matrices.
pub(crate) const NO_PRODUCTS: &str = include_str!("no_products.wgsl");
/// `silu`.
pub(crate) const SILU: &str = include_str!("silu.wgsl");
/// The kernel `forward`, which also goes through segments again for a backward.
pub(crate) const FORWARD: &str = include_str!("forward.wgsl");
/// The kernel `backward`.
pub(crate) const BACKWARD: &str = include_str!("backward.wgsl");

/// A rule that these kernels run.
pub(crate) trait Recurrent<F = <Self as Rule>::Family>: Rule {
    /// Its kernel `forward`, and its kernel `backward`.
    const SOURCES: [&'static WgslSource; 2];

    /// Constants of both, beside those of `block.wgsl`.
    const CONSTANTS: &'static [(&'static str, u32)] = &[];

    /// Bytes of workgroup memory of its own, at most.
    const SHARED: usize = 0;

    /// The rule's `Cell` at these sizes, as words.
    fn cell(self, dims: &Dims) -> CellWords;

    /// Workspace that a token asks for.
    fn workspace(self, dims: &Dims) -> WorkspaceSize;

    /// How its groups of frozen tokens go by products, where they do.
    fn groups(self, _: &Wgpu, _: &Dims) -> Option<Groups> {
        None
    }

    /// Rounds that a token's products take, of so many invocations.
    fn rounds(self, _: &Dims, _threads: usize) -> usize {
        0
    }
}

/// The words of a rule's `Cell`, and zeros after them: rules have as many as they need.
pub(crate) type CellWords = [u32; 12];

/// The words of a `Cell`.
pub(crate) fn cell_words<C: Parameters>(cell: &C) -> CellWords {
    const { assert!(size_of::<C>() <= size_of::<CellWords>(), "a cell has no more words") };
    let mut words = CellWords::default();
    bytemuck::cast_slice_mut(&mut words)[..size_of::<C>()].copy_from_slice(bytemuck::bytes_of(cell));
    words
}

/// Elements that a token needs beside states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceSize {
    /// In rows: that its forward leaves for its backward.
    pub(crate) record: usize,
    /// In rows: for intermediate results.
    pub(crate) scratch: usize,
    /// In matrices.
    pub(crate) matrices: usize,
    /// Of the weights, where gradients are taken at their sum with the momentum after them; 0: none.
    pub(crate) ahead: usize,
}

/// What a forward keeps for its backward.
#[derive(Debug)]
pub struct SavedStates(Tensor<Wgpu>);

/// The arrays of a call in the order of the kernels' bindings, without workspace.
pub(crate) struct Arrays<'a> {
    /// q, k, v and `given`.
    pub(crate) read: [&'a Tensor<Wgpu>; 4],
    /// `[kept,H,state]`.
    pub(crate) kept: &'a Tensor<Wgpu>,
    /// Results one after another.
    pub(crate) made: &'a Tensor<Wgpu>,
    /// The gradient of the output, in a backward.
    pub(crate) dout: Option<&'a Tensor<Wgpu>>,
}

/// What a dispatch does of a call: ticks `first … first + ticks` of a segment, forward or back.
struct Slice {
    /// Segment, counted from the last.
    segment: usize,
    /// First tick.
    first: usize,
    /// Whether it is the backward's.
    back: bool,
}

/// Starts a rule's kernels, slice by slice, on as many sequences and heads at once as there is workspace for.
fn start<R: Recurrent<F>, F>(
    device: &Wgpu,
    grid: &Grid,
    RecurrentArgs { call, cell }: RecurrentArgs,
    arrays: &Arrays<'_>,
    slices: &[Slice],
) -> Result<()> {
    let workspace = device.empty([grid.groups, grid.each + grid.rows], DType::F32)?;
    // Constants of `block.wgsl`, then the rule's own.
    let mut constants =
        vec![("THREADS", grid.threads), ("LANES", grid.lanes), ("NEAR", grid.near), ("RENORM", grid.renorm)];
    constants.extend(R::CONSTANTS);
    let mut bindings = arrays.read.map(Binding::Read).to_vec();
    bindings.extend([arrays.kept, arrays.made, &workspace].map(Binding::Write));
    // A forward has no dout.
    let there = bindings.len();
    bindings.extend(arrays.dout.map(Binding::Read));
    let kernel = |source, entry| Kernel { source, entry, constants: &constants };
    let (forward, backward) = (kernel(R::SOURCES[0], "forward"), kernel(R::SOURCES[1], "backward"));
    let call = RecurrentCall { workspace: grid.each as u32, rows: grid.rows as u32, ..call };
    let sequence_heads = call.sequence_heads as usize;
    // Where not all fit at once, sequences and heads go in turns.
    for sequence_head in (0..sequence_heads).step_by(grid.groups) {
        for &Slice { segment, first, back } in slices {
            let (begin, end) = (first as u32, (first + grid.ticks) as u32);
            let call =
                RecurrentCall { sequence_head: sequence_head as u32, segment: segment as u32, begin, end, ..call };
            let groups = (grid.groups.min(sequence_heads - sequence_head), 1, 1);
            let (kernel, bindings) = if back { (&backward, &bindings[..]) } else { (&forward, &bindings[..there]) };
            device.launch(kernel, groups, &RecurrentArgs { call, cell }, bindings)?;
        }
    }
    Ok(())
}

/// The next of some results.
fn next(results: &mut vec::IntoIter<Tensor<Wgpu>>) -> Result<Tensor<Wgpu>> {
    results.next().ok_or_else(|| failed("splitting results", "there are fewer than shapes"))
}

/// Tables, gates, states and anchors in one array, and after them the gradients of final states where there are any.
fn given<R: Rule>(
    device: &Wgpu,
    plan: &RecurrentPlan,
    inputs: &InputsOn<R, Wgpu>,
    dlast: Option<&Of<R::State, Tensor<Wgpu>>>,
) -> Result<Tensor<Wgpu>> {
    // Bits of all of them: the kernels take eight arrays at most.
    let starts = device.table(&plan.starts)?;
    let mut parts = vec![&starts];
    parts.extend(R::Gates::list(&inputs.gates).into_iter().map(|(_, x)| x));
    parts.extend(R::State::list(&inputs.state).into_iter().map(|(_, x)| x));
    parts.extend(inputs.anchor.iter().flat_map(R::Anchor::list).map(|(_, x)| x));
    if let Some(dlast) = dlast {
        parts.extend(R::State::list(dlast).into_iter().map(|(_, x)| x));
    }
    device.packed(&parts)
}

/// A forward, of rules with kernels of their own and of those of the deep family.
fn forward<R: Recurrent<F>, F>(
    KernelCall { device, rule, dims, inputs, .. }: KernelCall<'_, R, Wgpu>,
    keep: bool,
) -> Result<(OutputsOn<R, Wgpu>, Option<SavedStates>)> {
    let plan = RecurrentPlan::new(rule, dims);
    let [q, k, v] = [device.widened(&inputs.q)?, device.widened(&inputs.k)?, device.widened(&inputs.v)?];
    let given = given(device, &plan, inputs, None)?;
    let kept = device.empty([if keep { plan.kept } else { 0 }, dims.heads, plan.state()], DType::F32)?;
    // Results are made in one array and split afterwards.
    let mut shapes = vec![dims.values()];
    shapes.extend(R::State::into_vec(rule.state(dims)));
    let mut at = shapes[0].count();
    let last = offsets(&mut at, &plan.sizes, plan.sequence_heads);
    let made = device.empty([at], DType::F32)?;
    // `keep` makes the kernel write the states that a backward starts from.
    let call = RecurrentCall { last, keep: keep.into(), ..plan.call(dims) };
    let arrays = Arrays { read: [&q, &k, &v, &given], kept: &kept, made: &made, dout: None };
    match rule.groups(device, dims) {
        Some(groups) => groups.forward(device, dims, &call, &arrays)?,
        None => {
            let grid = plan.forward_grid(rule, device, dims);
            // A tick opens the state.
            let firsts = (0..=dims.sequences.longest()).step_by(grid.ticks);
            let slices: Vec<_> = firsts.map(|first| Slice { segment: 0, first, back: false }).collect();
            start::<R, F>(device, &grid, RecurrentArgs { call, cell: rule.cell(dims) }, &arrays, &slices)?;
        }
    }
    let mut results = device.split(&made, &shapes)?.into_iter();
    let outputs =
        Outputs::try_build(rule, dims, inputs.q.dtype(), |_, dtype| device.rounded(next(&mut results)?, dtype))?;
    Ok((outputs, keep.then_some(SavedStates(kept))))
}

/// Gradients of all inputs.
fn backward<R: Recurrent<F>, F>(
    KernelCall { device, rule, dims, inputs, .. }: KernelCall<'_, R, Wgpu>,
    SavedStates(kept): SavedStates,
    grads: &OutputsOn<R, Wgpu>,
) -> Result<InputsOn<R, Wgpu>> {
    let plan = RecurrentPlan::new(rule, dims);
    let [q, k, v] = [device.widened(&inputs.q)?, device.widened(&inputs.k)?, device.widened(&inputs.v)?];
    let dout = device.widened(&grads.out)?;
    let given = given(device, &plan, inputs, Some(&grads.state))?;
    // dq, dk, dv, gradients of gates, gradients of initial states.
    let shapes: Vec<Shape> = [dims.keys(), dims.keys(), dims.values()]
        .into_iter()
        .chain(R::Gates::into_vec(rule.gates(dims)))
        .chain(R::State::into_vec(rule.state(dims)))
        .chain(anchors::<R>(rule, dims))
        .collect();
    let dk = dims.keys().count();
    let mut at = 2 * dk + dims.values().count();
    let dgates = offsets(&mut at, &plan.widths, plan.rows);
    let last = offsets(&mut at, &plan.sizes, plan.sequence_heads);
    offsets(&mut at, &plan.sizes[..plan.anchors], plan.sequence_heads);
    let made = device.empty([at], DType::F32)?;
    // Gradients of final states follow the initial states in `given`.
    let [_, _, dlast] = plan.given();
    let call = RecurrentCall { again: 1, last, dgates, dlast, dk: dk as u32, ..plan.call(dims) };
    let arrays = Arrays { read: [&q, &k, &v, &given], kept: &kept, made: &made, dout: Some(&dout) };
    match rule.groups(device, dims) {
        Some(groups) => groups.backward(device, dims, &call, &arrays)?,
        None => {
            let grid = plan.backward_grid(rule, device, dims);
            let slices = backward_slices(&plan, &grid, dims.sequences.longest());
            start::<R, F>(device, &grid, RecurrentArgs { call, cell: rule.cell(dims) }, &arrays, &slices)?;
        }
    }
    let mut results = device.split(&made, &shapes)?.into_iter();
    // Workgroups have a sequence each, so gradients of an anchor `[H,..]` are added up here.
    Inputs::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| {
        let result = next(&mut results)?;
        let sums = result.shape() != &shape;
        device.rounded(if sums { sum_rows(&result, shape.count())?.reshape(shape)? } else { result }, dtype)
    })
}

/// Rules with kernels of their own, each by itself: the core knows no more of them.
impl<R: Recurrent<Own>> hecate_core::Kernel<R, Own> for Wgpu {
    type Saved = SavedStates;

    /// Core has checked shapes, types and devices.
    fn forward(call: KernelCall<'_, R, Self>, keep: bool) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        forward(call, keep)
    }

    fn backward(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        backward(call, saved, grads)
    }
}

/// Rules that forget by channel, those of other crates too: as deep ones, what one token does is in `rules::channel`.
impl ChannelEngine for Wgpu {
    type Saved = SavedStates;

    fn channel_forward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        forward::<R, Channel>(call, keep)
    }

    fn channel_backward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        backward::<R, Channel>(call, saved, grads)
    }
}

/// Deep rules, those of other crates too: the core makes a kernel of each out of this.
/// What one token does is written once for all of them, in `deep`.
impl DeepEngine for Wgpu {
    type Saved = SavedStates;

    /// `keep` says whether a backward will come, which needs states along the way.
    fn deep_forward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        // Their family says which of a rule's steps is meant.
        forward::<R, Deep>(call, keep)
    }

    /// A segment's states are computed again from its kept one, then its tokens go back.
    fn deep_backward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        // As the forward, from the states that it kept.
        backward::<R, Deep>(call, saved, grads)
    }
}

/// Shapes of the gradients of anchors, by sequence `[N,H,..]`.
fn anchors<R: Rule>(rule: R, dims: &Dims) -> Vec<Shape> {
    if !dims.anchored {
        return Vec::new();
    }
    let shapes = R::Anchor::into_vec(rule.anchor(dims)).into_iter();
    shapes.map(|shape| [&[dims.sequences.count()], shape.axes()].concat().into()).collect()
}

/// A segment is gone through forward, then back.
fn backward_slices(plan: &RecurrentPlan, grid: &Grid, longest: usize) -> Vec<Slice> {
    let firsts = |segment, back| {
        let ticks = (0..plan.segment().min(longest)).step_by(grid.ticks);
        ticks.map(move |first| Slice { segment, first, back })
    };
    let segments = 0..plan.checkpoints.count(longest);
    segments.flat_map(|segment| firsts(segment, false).chain(firsts(segment, true))).collect()
}

/// A rule's kernels in WGSL, as [`Recurrent::SOURCES`] asks for them, of texts for both, and for each alone:
/// `sources! { "trellis", [SILU], [include_str!("trellis_forward.wgsl")], [include_str!("trellis_backward.wgsl")] }`
macro_rules! sources {
    ($name:literal, $both:tt, [$($forward:expr),* $(,)?], [$($backward:expr),* $(,)?] $(,)?) => {{
        use $crate::{launch::WgslSource, recurrent::{BACKWARD, FORWARD}};
        static FORWARDS: WgslSource =
            $crate::recurrent::source!(concat!($name, "_forward"), $both, [FORWARD, $($forward),*]);
        static BACKWARDS: WgslSource =
            $crate::recurrent::source!(concat!($name, "_backward"), $both, [BACKWARD, $($backward),*]);
        [&FORWARDS, &BACKWARDS]
    }};
}
pub(crate) use sources;

/// One of them.
macro_rules! source {
    ($name:expr, [$($both:expr),* $(,)?], [$($own:expr),*]) => {{
        use $crate::recurrent::PARTS;
        WgslSource { name: $name, parts: &[PARTS[0], PARTS[1], PARTS[2], PARTS[3], PARTS[4], PARTS[5], PARTS[6], PARTS[7], $($both,)* $($own),*] }
    }};
}
pub(crate) use source;

/// Kernels of sources from [`sources!`], as tests compile them: rows in workgroup memory, and in workspace, there with columns
/// that go back to their anchor's lengths.
macro_rules! kernels {
    ($sources:expr $(, $name:literal = $value:expr)*) => {{
        use $crate::launch::Kernel;
        const NEAR: &[(&str, u32)] = &[("THREADS", 32), ("LANES", 8), ("NEAR", 512), ("RENORM", 0) $(, ($name, $value))*];
        const FAR: &[(&str, u32)] = &[("THREADS", 256), ("LANES", 16), ("NEAR", 0), ("RENORM", 1) $(, ($name, $value))*];
        const OF_BOTH: [&$crate::launch::WgslSource; 2] = $sources;
        &[
            Kernel { source: OF_BOTH[0], entry: "forward", constants: NEAR },
            Kernel { source: OF_BOTH[0], entry: "forward", constants: FAR },
            Kernel { source: OF_BOTH[1], entry: "backward", constants: NEAR },
            Kernel { source: OF_BOTH[1], entry: "backward", constants: FAR },
        ]
    }};
}
pub(crate) use kernels;
