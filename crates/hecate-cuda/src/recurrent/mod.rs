//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does, in `recurrent.cuh`'s terms: a structure `Cell` in CUDA C++ whose functions a whole
//! block runs together. This module starts a block for every sequence and head, as many at once as the GPU holds, keeps
//! states, and hands out room; the kernels compute states between kept ones again and walk back.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! numbers (frozen rules every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group). During a backward every
//! block at work has the states of one such stretch in room of its own.

use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, pointer},
};
use hecate_core::{DType, Dims, Inputs, Of, Outputs, Result, Rule, Slots, Tensor};

/// Tokens between kept states.
const KEPT_EVERY: usize = 64;
/// Gates, and matrices of a state, at most.
const MOST_SLOTS: usize = 4;
/// Bytes of shared memory that kernels declare themselves, and that the driver keeps for itself.
const OWN_SHARED: usize = 16 << 10;
/// Threads of a block at most.
const MOST_THREADS: usize = 512;

/// A rule that these kernels run.
pub(crate) trait Recurrent: Rule {
    /// The twin of its `Cell` in CUDA C++: sizes and options, `repr(C)`.
    type Cell: Copy + std::fmt::Debug;

    /// The rule at these sizes.
    fn cell(self, dims: &Dims) -> Self::Cell;

    /// Room that its cell asks for.
    fn room(self, dims: &Dims) -> Room;

    /// Groups of this many tokens share one gradient point.
    fn frozen(self) -> Option<u32>;

    /// Threads that its kernels are compiled for.
    const THREADS: usize = MOST_THREADS;
}

/// Numbers that a cell needs beside states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// That a token's forward leaves for its backward.
    pub(crate) record: usize,
    /// For one token's intermediate results.
    pub(crate) scratch: usize,
    /// Whether its `Cell::IN_PLACE` says so.
    pub(crate) in_place: bool,
}

/// A rule's two kernels. Written by [`cells!`].
pub(crate) trait Kernels: Recurrent {
    /// Queues the forward.
    fn start_forward(device: &Cuda, grid: Grid, call: Call, cell: Self::Cell) -> Result<()>;

    /// Queues the backward.
    fn start_backward(device: &Cuda, grid: Grid, call: Call, cell: Self::Cell) -> Result<()>;
}

/// Twin of `recurrent.cuh`'s structure of this name, which says what each field is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Call {
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    dout: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    gates: [Pointer; MOST_SLOTS],
    dgates: [Pointer; MOST_SLOTS],
    initial: [Pointer; MOST_SLOTS],
    last: [Pointer; MOST_SLOTS],
    dlast: [Pointer; MOST_SLOTS],
    dinitial: [Pointer; MOST_SLOTS],
    starts: Pointer,
    kept_starts: Pointer,
    kept: Pointer,
    room: Pointer,
    room_each: u64,
    widths: [u32; MOST_SLOTS],
    sizes: [u32; MOST_SLOTS],
    gate_slots: u32,
    state_slots: u32,
    sequences: u32,
    heads: u32,
    key: u32,
    value: u32,
    all_gates: u32,
    state: u32,
    record: u32,
    scratch: u32,
    frozen: u32,
    unit: u32,
    near: u32,
}

/// What a forward keeps for its backward.
#[derive(Debug)]
pub struct Kept(Tensor<Cuda>);

/// A call's sizes and tables.
struct Plan {
    /// Numbers of each gate a row, and of each slot of a state a sequence and head.
    widths: Vec<usize>,
    sizes: Vec<usize>,
    room: Room,
    frozen: usize,
    unit: usize,
    threads: usize,
    /// Kept states of all sequences.
    kept: usize,
    starts: Tensor<Cuda>,
    kept_starts: Tensor<Cuda>,
}

impl Plan {
    fn new<R: Recurrent>(device: &Cuda, rule: R, dims: &Dims) -> Result<Self> {
        let (rows, lanes) = (dims.sequences.rows() * dims.heads, dims.sequences.count() * dims.heads);
        let gates = rule.gates(dims);
        let widths = R::Gates::list(&gates).iter().map(|(_, x)| x.count() / rows).collect();
        let sizes = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count() / lanes).collect();
        let frozen = rule.frozen().map_or(0, |group| group as usize);
        let unit = unit(frozen);
        let mut kept = 0;
        let mut kept_starts = vec![0];
        for rows in dims.sequences.ranges() {
            kept += spans(rows.len(), unit);
            kept_starts.push(kept as u32);
        }
        let starts: Vec<u32> = dims.sequences.starts().iter().map(|&row| row as u32).collect();
        let (starts, kept_starts) = (device.table(&starts)?, device.table(&kept_starts)?);
        Ok(Self { widths, sizes, room: rule.room(dims), frozen, unit, threads: R::THREADS, kept, starts, kept_starts })
    }

    /// Numbers of a state.
    fn state(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// The arrays of a block, in the order in which the kernels take them.
    fn forward_arrays(&self, dims: &Dims) -> Vec<usize> {
        let (state, Room { record, scratch, .. }) = (self.state(), self.room);
        let mut arrays = self.rows(dims);
        arrays.extend([dims.value, scratch, record, state, state]);
        arrays.extend((self.frozen > 0).then_some(state));
        arrays
    }

    fn backward_arrays(&self, dims: &Dims) -> Vec<usize> {
        let (state, Room { record, scratch, in_place }) = (self.state(), self.room);
        let longest = self.unit.min(KEPT_EVERY);
        let mut arrays = [self.rows(dims), self.rows(dims)].concat();
        arrays.extend([dims.value, scratch, state]);
        arrays.extend((self.frozen > 0 || !in_place).then_some(state));
        arrays.extend([longest * record, (longest + 1) * state]);
        arrays
    }

    /// Rows of a token: q, k, v, gates.
    fn rows(&self, dims: &Dims) -> Vec<usize> {
        vec![dims.key, dims.key, dims.value, self.widths.iter().sum()]
    }

    /// How a kernel whose blocks have these arrays is started, room for them, and numbers in shared memory.
    fn grid(&self, device: &Cuda, dims: &Dims, arrays: &[usize]) -> Result<(Grid, Tensor<Cuda>, [usize; 2])> {
        let properties = device.properties();
        let shared = properties.shared_memory.saturating_sub(OWN_SHARED);
        let near = near(arrays, shared / 4);
        let each = arrays.iter().map(|count| count.next_multiple_of(4)).sum::<usize>();
        let together = (shared / (4 * near + OWN_SHARED)).clamp(1, 2);
        // No more than an eighth of the memory, whatever the sizes.
        let most = (properties.memory / 8 / (4 * each.max(1))).max(1);
        let lanes = dims.sequences.count() * dims.heads;
        let blocks = lanes.min(together * properties.multiprocessors as usize).min(most);
        // About as many elements a thread as make its share worth the waiting for others.
        let threads = (self.state() / 16).next_power_of_two().clamp(32, self.threads);
        let room = device.empty([blocks, each], DType::F32)?;
        Ok((Grid { blocks: (blocks, 1, 1), threads: threads as u32, shared: 4 * near }, room, [each, near]))
    }

    /// A call with everything but arrays of the backward.
    fn call<R: Recurrent>(&self, dims: &Dims, inputs: &Inputs<R, Tensor<Cuda>>) -> Call {
        let (none, nowhere) = (Array::NONE, [0; MOST_SLOTS]);
        let numbers = |of: &[usize]| std::array::from_fn(|slot| of.get(slot).copied().unwrap_or(0) as u32);
        Call {
            q: (&inputs.q).into(),
            k: (&inputs.k).into(),
            v: (&inputs.v).into(),
            out: none,
            dout: none,
            dq: none,
            dk: none,
            dv: none,
            gates: pointers::<R::Gates>(&inputs.gates),
            dgates: nowhere,
            initial: pointers::<R::State>(&inputs.state),
            last: nowhere,
            dlast: nowhere,
            dinitial: nowhere,
            starts: pointer(&self.starts),
            kept_starts: pointer(&self.kept_starts),
            kept: 0,
            room: 0,
            room_each: 0,
            widths: numbers(&self.widths),
            sizes: numbers(&self.sizes),
            gate_slots: self.widths.len() as u32,
            state_slots: self.sizes.len() as u32,
            sequences: dims.sequences.count() as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            all_gates: self.widths.iter().sum::<usize>() as u32,
            state: self.state() as u32,
            record: self.room.record as u32,
            scratch: self.room.scratch as u32,
            frozen: self.frozen as u32,
            unit: self.unit as u32,
            near: 0,
        }
    }
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

/// Numbers of shared memory that these arrays take, as the kernels count: each that still fits.
fn near(arrays: &[usize], limit: usize) -> usize {
    arrays
        .iter()
        .map(|count| count.next_multiple_of(4))
        .fold(0, |near, count| if near + count <= limit { near + count } else { near })
}

fn pointers<S: Slots>(slots: &Of<S, Tensor<Cuda>>) -> [Pointer; MOST_SLOTS] {
    let list = S::list(slots);
    debug_assert!(list.len() <= MOST_SLOTS);
    std::array::from_fn(|slot| list.get(slot).map_or(0, |(_, x)| pointer(x)))
}

/// Runs a rule; `keep` says whether a backward will come.
pub(crate) fn forward<R: Kernels>(
    device: &Cuda,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Cuda>>,
    keep: bool,
) -> Result<(Outputs<R, Tensor<Cuda>>, Kept)> {
    let plan = Plan::new(device, rule, dims)?;
    let (grid, room, [each, near]) = plan.grid(device, dims, &plan.forward_arrays(dims))?;
    let kept = device.empty([if keep { plan.kept } else { 0 }, dims.heads, plan.state()], DType::F32)?;
    let out = device.empty(dims.values(), inputs.q.dtype())?;
    let state = R::State::try_map(rule.state(dims), |_, shape| device.empty(shape, DType::F32))?;
    let call = Call {
        out: (&out).into(),
        last: pointers::<R::State>(&state),
        kept: if keep { pointer(&kept) } else { 0 },
        room: pointer(&room),
        room_each: each as u64,
        near: near as u32,
        ..plan.call(dims, inputs)
    };
    R::start_forward(device, grid, call, rule.cell(dims))?;
    Ok((Outputs { out, state }, Kept(kept)))
}

/// Gradients of all inputs.
pub(crate) fn backward<R: Kernels>(
    device: &Cuda,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Cuda>>,
    Kept(kept): Kept,
    grads: &Outputs<R, Tensor<Cuda>>,
) -> Result<Inputs<R, Tensor<Cuda>>> {
    let plan = Plan::new(device, rule, dims)?;
    let (grid, room, [each, near]) = plan.grid(device, dims, &plan.backward_arrays(dims))?;
    let dtype = inputs.q.dtype();
    let result: Inputs<R, Tensor<Cuda>> = Inputs {
        q: device.empty(dims.keys(), dtype)?,
        k: device.empty(dims.keys(), dtype)?,
        v: device.empty(dims.values(), dtype)?,
        gates: R::Gates::try_map(rule.gates(dims), |_, shape| device.empty(shape, DType::F32))?,
        state: R::State::try_map(rule.state(dims), |_, shape| device.empty(shape, DType::F32))?,
    };
    let call = Call {
        dout: (&grads.out).into(),
        dq: (&result.q).into(),
        dk: (&result.k).into(),
        dv: (&result.v).into(),
        dgates: pointers::<R::Gates>(&result.gates),
        dlast: pointers::<R::State>(&grads.state),
        dinitial: pointers::<R::State>(&result.state),
        kept: pointer(&kept),
        room: pointer(&room),
        room_each: each as u64,
        near: near as u32,
        ..plan.call(dims, inputs)
    };
    R::start_backward(device, grid, call, rule.cell(dims))?;
    Ok(result)
}

/// What [`hecate_core::Kernel`] asks for, from a rule's two kernels: `cells! { SOURCE { Lattice: lattice
/// "lattice_forward" "lattice_backward" } }`. The name in the middle is that of a module to put them into. Each takes
/// `struct Args { Call call; Cell cell; }`.
macro_rules! cells {
    ($source:path { $($rule:ty: $module:ident $forward:literal $backward:literal),* $(,)? }) => { $(
        mod $module {
            use super::*;
            use $crate::{Cuda, launch::Grid, recurrent::{self, Call, Kept, Recurrent}};
            use hecate_core::{Dims, Inputs, Kernel, Outputs, Result, Tensor};

            $crate::launch::kernels! { $source {
                $forward Forward { call: Call, cell: <$rule as Recurrent>::Cell }
                $backward Backward { call: Call, cell: <$rule as Recurrent>::Cell }
            } }

            impl recurrent::Kernels for $rule {
                fn start_forward(device: &Cuda, grid: Grid, call: Call, cell: Self::Cell) -> Result<()> {
                    device.launch(grid, &Forward { call, cell })
                }

                fn start_backward(device: &Cuda, grid: Grid, call: Call, cell: Self::Cell) -> Result<()> {
                    device.launch(grid, &Backward { call, cell })
                }
            }

            impl Kernel<$rule> for Cuda {
                type Saved = Kept;

                fn forward(
                    &self,
                    rule: $rule,
                    dims: &Dims,
                    inputs: &Inputs<$rule, Tensor<Self>>,
                ) -> Result<(Outputs<$rule, Tensor<Self>>, Kept)> {
                    recurrent::forward(self, rule, dims, inputs, true)
                }

                fn backward(
                    &self,
                    rule: $rule,
                    dims: &Dims,
                    inputs: &Inputs<$rule, Tensor<Self>>,
                    saved: Kept,
                    grads: &Outputs<$rule, Tensor<Self>>,
                ) -> Result<Inputs<$rule, Tensor<Self>>> {
                    recurrent::backward(self, rule, dims, inputs, saved, grads)
                }

                fn infer(
                    &self,
                    rule: $rule,
                    dims: &Dims,
                    inputs: &Inputs<$rule, Tensor<Self>>,
                ) -> Result<Outputs<$rule, Tensor<Self>>> {
                    Ok(recurrent::forward(self, rule, dims, inputs, false)?.0)
                }
            }
        }
    )* };
}
pub(crate) use cells;
