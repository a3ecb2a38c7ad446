//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does, in `recurrent.wgsl`'s terms: functions that a whole workgroup runs together. This module
//! starts a workgroup for every sequence and head, as many at once as there is room for, keeps states, and cuts arrays to
//! eight; the kernels compute states between kept ones again and walk back.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! numbers (frozen rules every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group). During a backward every
//! workgroup has the states of one such stretch in room of its own.

use crate::{
    Wgpu,
    error::failed,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{DType, Dims, Inputs, Of, Outputs, Result, Rule, Shape, Slots, Tensor};
use std::vec;

/// Tokens between kept states.
const KEPT_EVERY: usize = 64;
/// Gates, and matrices of a state, at most.
const MOST_SLOTS: usize = 4;
/// Bytes of room for all workgroups at most.
const MOST_ROOM: usize = 1 << 31;
/// Bytes of workgroup memory at most, whatever the adapter has.
const MOST_SHARED: usize = 32 << 10;
/// Tokens of a dispatch at most: a driver may take one that runs for seconds for one that hangs.
const TICKS: usize = 256;
/// Times that loops may be gone through in one dispatch of software: llvmpipe ends every loop of an invocation when together
/// they have been gone through 65,535 times.
const LOOPS: usize = 40_000;
/// `block.wgsl`'s constant of this name.
const SECOND: usize = 16;

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
/// The kernel `forward`.
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

/// Twin of `recurrent.wgsl`'s structure of this name, which says what each field is.
#[derive(Clone, Copy, Debug, Default, bytemuck::NoUninit)]
#[repr(C)]
struct Call {
    gates: [u32; MOST_SLOTS],
    initial: [u32; MOST_SLOTS],
    dlast: [u32; MOST_SLOTS],
    last: [u32; MOST_SLOTS],
    dgates: [u32; MOST_SLOTS],
    widths: [u32; MOST_SLOTS],
    sizes: [u32; MOST_SLOTS],
    gate_slots: u32,
    state_slots: u32,
    lanes: u32,
    heads: u32,
    key: u32,
    value: u32,
    all_gates: u32,
    state: u32,
    record: u32,
    scratch: u32,
    room: u32,
    rows: u32,
    frozen: u32,
    unit: u32,
    keep: u32,
    kept_starts: u32,
    dk: u32,
    dv: u32,
    lane: u32,
    begin: u32,
    end: u32,
    span: u32,
    unused: [u32; 2],
}

/// Twin of `recurrent.wgsl`'s structure of this name.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    call: Call,
    cell: Cell,
}

/// What a forward keeps for its backward.
#[derive(Debug)]
pub struct Kept(Tensor<Wgpu>);

/// A call's sizes and tables.
struct Plan {
    /// Numbers of each gate a row, and of each slot of a state a sequence and head.
    widths: Vec<usize>,
    sizes: Vec<usize>,
    room: Room,
    frozen: usize,
    unit: usize,
    /// Kept states of all sequences.
    kept: usize,
    /// Starts of sequences, then of their kept states.
    starts: Vec<u32>,
    /// Rows of tokens and heads, and sequences and heads.
    rows: usize,
    lanes: usize,
}

/// How a kernel is started.
struct Grid {
    groups: usize,
    /// Tokens of a dispatch at most.
    ticks: usize,
    threads: u32,
    lanes: u32,
    near: u32,
    /// Numbers of a workgroup's room, and of its rows there.
    each: usize,
    rows: usize,
}

impl Plan {
    fn new<R: Recurrent>(rule: R, dims: &Dims) -> Self {
        let (rows, lanes) = (dims.sequences.rows() * dims.heads, dims.sequences.count() * dims.heads);
        let widths = R::Gates::list(&rule.gates(dims)).iter().map(|(_, x)| x.count() / rows).collect();
        let sizes = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count() / lanes).collect();
        let frozen = rule.frozen().map_or(0, |group| group as usize);
        let unit = unit(frozen);
        let mut starts: Vec<u32> = dims.sequences.starts().iter().map(|&row| row as u32).collect();
        let mut kept = 0;
        starts.push(0);
        for rows in dims.sequences.ranges() {
            kept += spans(rows.len(), unit);
            starts.push(kept as u32);
        }
        Self { widths, sizes, room: rule.room(dims), frozen, unit, kept, starts, rows, lanes }
    }

    /// Numbers of a state.
    fn state(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Rows of a token: q, k, v, gates.
    fn token(&self, dims: &Dims) -> usize {
        2 * dims.key + dims.value + self.widths.iter().sum::<usize>()
    }

    fn forward_grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let states = if self.frozen > 0 { 2 } else { 1 };
        self.grid(rule, device, dims, states * self.state() + self.room.matrices, self.token(dims) + dims.value)
    }

    fn backward_grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let (longest, states) = (self.unit.min(KEPT_EVERY), if self.frozen > 0 { 3 } else { 1 });
        let room = (states + longest + 1) * self.state() + longest * self.room.record + self.room.matrices;
        self.grid(rule, device, dims, room, 2 * self.token(dims) + dims.value)
    }

    /// Of workgroups that need `room` numbers, and these rows beside a token's own.
    fn grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims, room: usize, rows: usize) -> Grid {
        let limits = device.limits();
        let rows = rows + self.room.scratch + self.room.record;
        let software = device.adapter().kind == "CPU";
        // Software takes a while to compile, once more for each number of invocations and each room for rows.
        let loops = |&threads: &usize| self.loops(dims, threads, rule.rounds(dims, threads));
        let threads = match software {
            // About as many elements an invocation as make its share worth the waiting for others.
            false => (self.state() / 16).next_power_of_two().clamp(32, 256),
            true => [64, 256].into_iter().find(|threads| loops(threads) <= LOOPS).unwrap_or(256),
        };
        let shared = (limits.max_compute_workgroup_storage_size as usize).min(MOST_SHARED);
        let capacity = shared.saturating_sub(16 * (threads + SECOND) + R::SHARED) / 4;
        let near = rows.next_multiple_of(if software { 4096 } else { 512 }).min(capacity);
        let near = if rows > near { 0 } else { near };
        let rows = if near == 0 { rows } else { 0 };
        let most = (limits.max_storage_buffer_binding_size as usize).min(MOST_ROOM) / (4 * (room + rows));
        Grid {
            groups: self.lanes.min(most.clamp(1, 65_535)),
            ticks: if software { (LOOPS / loops(&threads)).max(1) } else { TICKS },
            threads: threads as u32,
            lanes: if threads > 64 { 16 } else { 8 },
            near: near as u32,
            each: room,
            rows,
        }
    }

    /// How often an invocation goes through loops for a token, at most about: those of branches not taken too, once a round.
    fn loops(&self, dims: &Dims, threads: usize, rounds: usize) -> usize {
        let elements = 24 * (self.state() + self.room.matrices) + 8 * dims.key * self.room.record;
        let rows = dims.key * (4 + self.widths.iter().sum::<usize>());
        5_000 + 60 * rounds + (elements + 512 * rows) / threads
    }

    /// A call with everything but what its direction adds.
    fn call<R: Recurrent>(&self, dims: &Dims, grid: &Grid) -> Call {
        let numbers = |of: &[usize]| std::array::from_fn(|slot| of.get(slot).copied().unwrap_or(0) as u32);
        let [gates, initial, _] = self.given();
        Call {
            gates,
            initial,
            widths: numbers(&self.widths),
            sizes: numbers(&self.sizes),
            gate_slots: self.widths.len() as u32,
            state_slots: self.sizes.len() as u32,
            lanes: self.lanes as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            all_gates: self.widths.iter().sum::<usize>() as u32,
            state: self.state() as u32,
            record: self.room.record as u32,
            scratch: self.room.scratch as u32,
            room: grid.each as u32,
            rows: grid.rows as u32,
            frozen: self.frozen as u32,
            unit: self.unit as u32,
            kept_starts: (self.starts.len() / 2) as u32,
            ..Call::default()
        }
    }

    /// Where gates, initial states and gradients of final states begin in what is given.
    fn given(&self) -> [[u32; MOST_SLOTS]; 3] {
        let mut at = self.starts.len();
        let gates = offsets(&mut at, &self.widths, self.rows);
        let initial = offsets(&mut at, &self.sizes, self.lanes);
        [gates, initial, offsets(&mut at, &self.sizes, self.lanes)]
    }
}

/// Where arrays of `times` × these numbers begin, one behind another from `at` on.
fn offsets(at: &mut usize, numbers: &[usize], times: usize) -> [u32; MOST_SLOTS] {
    debug_assert!(numbers.len() <= MOST_SLOTS);
    std::array::from_fn(|slot| {
        let own = *at;
        *at += numbers.get(slot).map_or(0, |number| number * times);
        own as u32
    })
}

/// Tokens from which kept states are counted: a group, as many groups as fit between two, or without groups all.
fn unit(frozen: usize) -> usize {
    match frozen {
        0 => KEPT_EVERY,
        group if group > KEPT_EVERY => group,
        group => KEPT_EVERY / group * group,
    }
}

/// Kept states of a sequence.
fn spans(tokens: usize, unit: usize) -> usize {
    tokens / unit * unit.div_ceil(KEPT_EVERY) + (tokens % unit).div_ceil(KEPT_EVERY)
}

/// The arrays of a call in the order of the kernels' bindings, without room.
struct Arrays<'a> {
    read: [&'a Tensor<Wgpu>; 4],
    kept: &'a Tensor<Wgpu>,
    made: &'a Tensor<Wgpu>,
    dout: Option<&'a Tensor<Wgpu>>,
}

/// What a dispatch does of a call: ticks `first … first + ticks` of a span.
type Slice = (usize, usize);

/// Starts a rule's kernel `entry`, slice by slice, on as many lanes at once as there is room for.
fn start<R: Recurrent>(
    device: &Wgpu,
    (entry, source): (&'static str, &'static Source),
    grid: &Grid,
    args: &Args,
    arrays: &Arrays<'_>,
    slices: &[Slice],
) -> Result<()> {
    let room = device.empty([grid.groups, grid.each + grid.rows], DType::F32)?;
    let mut constants = vec![("THREADS", grid.threads), ("LANES", grid.lanes), ("NEAR", grid.near)];
    constants.extend(R::CONSTANTS);
    let mut bindings = arrays.read.map(Binding::Read).to_vec();
    bindings.extend([arrays.kept, arrays.made, &room].map(Binding::Write));
    bindings.extend(arrays.dout.map(Binding::Read));
    let kernel = Kernel { source, entry, constants: &constants };
    let lanes = args.call.lanes as usize;
    for lane in (0..lanes).step_by(grid.groups) {
        for &(span, first) in slices {
            let (begin, end) = (first as u32, (first + grid.ticks) as u32);
            let call = Call { lane: lane as u32, span: span as u32, begin, end, ..args.call };
            let groups = (grid.groups.min(lanes - lane), 1, 1);
            device.launch(&kernel, groups, &Args { call, ..*args }, &bindings)?;
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
    let slices: Vec<_> = (0..=dims.sequences.longest()).step_by(grid.ticks).map(|first| (0, first)).collect();
    start::<R>(device, ("forward", R::SOURCES[0]), &grid, &args, &arrays, &slices)?;
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
    let call = Call { last, dgates, dlast, dk: dk as u32, dv: dv as u32, ..plan.call::<R>(dims, &grid) };
    let args = Args { call, cell: rule.cell(dims) };
    let arrays = Arrays { read: [&q, &k, &v, &given], kept: &kept, made: &made, dout: Some(&dout) };
    // A span is gone through forward, then back.
    let (longest, ticks) = (dims.sequences.longest(), 2 * plan.unit.min(KEPT_EVERY));
    let firsts = || (0..ticks.min(2 * longest)).step_by(grid.ticks);
    let slices: Vec<_> =
        (0..spans(longest, plan.unit)).flat_map(|span| firsts().map(move |first| (span, first))).collect();
    start::<R>(device, ("backward", R::SOURCES[1]), &grid, &args, &arrays, &slices)?;
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

/// A rule's kernels in WGSL, `RULE` being its own texts: `sources! { "trellis", [PASSES, include_str!("trellis.wgsl")] }` is
/// what [`Recurrent::SOURCES`] asks for.
macro_rules! sources {
    ($name:literal, [$($part:expr),* $(,)?]) => {{
        use $crate::{launch::Source, recurrent::{BACKWARD, FORWARD, PARTS}};
        static FORWARDS: Source = Source {
            name: concat!($name, "_forward"),
            parts: &[PARTS[0], PARTS[1], PARTS[2], PARTS[3], PARTS[4], FORWARD, $($part),*],
        };
        static BACKWARDS: Source = Source {
            name: concat!($name, "_backward"),
            parts: &[PARTS[0], PARTS[1], PARTS[2], PARTS[3], PARTS[4], BACKWARD, $($part),*],
        };
        [&FORWARDS, &BACKWARDS]
    }};
}
pub(crate) use sources;

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
