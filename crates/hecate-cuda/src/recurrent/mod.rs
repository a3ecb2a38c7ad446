//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does, in `recurrent.cuh`'s terms: a structure `Cell` in CUDA C++ whose functions a whole
//! block runs together. This module starts a block for every sequence and head, as many at once as the GPU holds. It
//! keeps states and hands out workspaces. The kernels compute states between kept ones again and walk back.
//!
//! Where a rule has kernels for whole groups ([`Grouped`]), a cluster of blocks has a sequence and head instead, or a block
//! does what [`pieces`] says.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! elements. Frozen rules keep one every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group. During a backward
//! every block at work has the states of one such interval in a workspace of its own.

pub(crate) mod pieces;

use crate::{
    Buffer, Cuda,
    arguments::{In, Out, arguments},
    launch::{Array, Grid, Pointer, pointer},
};
use hecate_core::{
    Checkpoints, DType, Device, Dims, Inputs, InputsOn, Kernel, KernelCall, Of, Outputs, OutputsOn, Result, Rule,
    Shape, Slots, Tensor,
    families::{Channel, ChannelEngine, ChannelRule, Deep, DeepEngine, DeepRule, Own},
    primitives::sum_rows,
};

/// Gates, and matrices of a state, at most.
const MOST_SLOTS: usize = 4;
/// Bytes of shared memory that kernels declare themselves, and that the driver keeps for itself.
const OWN_SHARED: usize = 16 << 10;
/// The same of kernels that go by groups.
const GROUPED_SHARED: usize = 5 << 10;
/// Threads of a block at most.
const MOST_THREADS: usize = 512;

/// A rule that these kernels run.
pub(crate) trait Recurrent<F = <Self as Rule>::Family>: Rule {
    /// The twin of its `Cell` in CUDA C++: sizes and options, `repr(C)`.
    type Cell: Copy + std::fmt::Debug;

    /// The rule at these sizes.
    fn cell(self, dims: &Dims) -> Self::Cell;

    /// The workspace that its cell asks for.
    fn workspace(self, dims: &Dims) -> WorkspaceSize;

    /// Its two kernels.
    const KERNELS: StepKernels<Self::Cell>;

    /// Threads that its kernels are compiled for.
    const THREADS: usize = MOST_THREADS;

    /// Another kernel for calls of these sizes and elements, that goes by groups of tokens, of a pass, 0 forward and 1
    /// backward. None: token by token.
    fn grouped(self, _device: &Cuda, _dims: &Dims, _dtype: DType, _pass: usize) -> Option<Grouped<Self::Cell>> {
        None
    }
}

/// A kernel that takes a group of frozen tokens at once. It keeps states where those by tokens do.
pub(crate) struct Grouped<C> {
    pub(crate) start: Start<C>,
    /// Blocks that share a memory.
    pub(crate) cluster: usize,
    /// Whether these are no cluster, and meet by a counter in a grid that runs as a whole.
    pub(crate) together: bool,
    /// Threads of each.
    pub(crate) threads: u32,
    /// Elements by which these exchange sums, or that the kernel divides itself: the first of each one's workspace.
    pub(crate) exchanged: usize,
    /// Arrays of a block in the order in which the kernel takes them.
    pub(crate) arrays: Vec<usize>,
    /// Elements that a group leaves for its backward in the place of a state, which only the kernel of that pass reads; 0: the
    /// state.
    pub(crate) record: usize,
}

/// How a kernel is queued; it takes `struct Args { RecurrentCall call; Cell cell; }`.
pub(crate) type Start<C> = fn(&Cuda, Grid, RecurrentCall, C) -> Result<()>;

/// A forward and its backward. Written by [`step_kernels!`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepKernels<C> {
    pub(crate) forward: Start<C>,
    pub(crate) backward: Start<C>,
}

/// Elements that a cell needs beside states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceSize {
    /// That a token's forward leaves for its backward.
    pub(crate) record: usize,
    /// For one token's intermediate results.
    pub(crate) scratch: usize,
    /// Whether its `Cell::IN_PLACE` says so.
    pub(crate) in_place: bool,
    /// Of the weights, where gradients are taken at their sum with the momentum after them; 0: none.
    pub(crate) ahead: usize,
}

arguments! {
    /// Twin of `recurrent.cuh`'s structure of this name, which says what each field is.
    pub(crate) struct RecurrentCall {
        /// `q`, `k`, `dq` and `dk` are `[rows,H,K]`; `v`, `out`, `dout` and `dv` are `[rows,H,V]`.
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        dout: Array,
        dq: Array,
        dk: Array,
        dv: Array,
        /// By slot: gates and their gradients `[rows,H,width]`, states and their gradients `[N,H,size]`.
        gates: [In<f32>; MOST_SLOTS],
        dgates: [Out<f32>; MOST_SLOTS],
        initial: [In<f32>; MOST_SLOTS],
        last: [Out<f32>; MOST_SLOTS],
        dlast: [In<f32>; MOST_SLOTS],
        dinitial: [Out<f32>; MOST_SLOTS],
        /// By slot: anchors `[H,size]`, their gradients by sequence `[N,H,size]`; null: none.
        anchor: [In<f32>; MOST_SLOTS],
        danchor: [Out<f32>; MOST_SLOTS],
        /// First row of each sequence and the end; first checkpoint of each and the end.
        starts: In<u32>,
        kept_starts: In<u32>,
        /// Checkpoints `[kept,H,state]`; null: none.
        kept: Out<f32>,
        /// `[blocks, workspace_each]`: what does not fit into shared memory.
        workspace: Out<f32>,
        workspace_each: u64,
        /// Elements of each gate a row, and of each slot of a state.
        widths: [u32; MOST_SLOTS],
        sizes: [u32; MOST_SLOTS],
        /// Columns of each slot that has an anchor, where they go back to its lengths as groups start; else 0.
        columns: [u32; MOST_SLOTS],
        gate_slots: u32,
        state_slots: u32,
        /// Slots that have an anchor.
        anchor_slots: u32,
        /// [`WorkspaceSize::ahead`].
        ahead: u32,
        /// `N`, `H`, `K`, `V`.
        sequences: u32,
        heads: u32,
        key: u32,
        value: u32,
        /// Elements of a token's gates, of a state, of a record ([`Grouped::record`]), of scratch.
        all_gates: u32,
        state: u32,
        record: u32,
        scratch: u32,
        /// Tokens of a group, 0: none; tokens from which checkpoints are counted.
        frozen: u32,
        period: u32,
        /// Elements of shared memory.
        near: u32,
        /// Blocks of a memory that are no cluster, and the counters by which they meet; else 0 and null.
        together: u32,
        meetings: Out<u32>,
    }
}

/// What a forward keeps for its backward.
#[derive(Debug)]
pub struct SavedStates(Tensor<Cuda>);

/// A kernel and what it is started with.
struct Plan<C> {
    start: Start<C>,
    grid: Grid,
    workspace: Tensor<Cuda>,
    /// Of blocks that are no clusters.
    meetings: Option<Meetings>,
    /// Elements of a block's workspace, of shared memory, [`RecurrentCall::scratch`] and [`RecurrentCall::record`].
    each: usize,
    near: usize,
    scratch: usize,
    record: usize,
}

impl<C> Plan<C> {
    /// The call with the plan's sizes.
    fn call(&self, call: RecurrentCall) -> RecurrentCall {
        let Self { workspace, each, .. } = self;
        let [near, scratch, record] = [self.near, self.scratch, self.record].map(|count| count as u32);
        let (together, meetings) =
            self.meetings.as_ref().map_or((0, 0), |meetings| (meetings.blocks, meetings.counters.pointer()));
        let (workspace, workspace_each) = (pointer(workspace), *each as u64);
        RecurrentCall { workspace, workspace_each, near, scratch, record, together, meetings, ..call }
    }
}

/// Counters by which the blocks of each memory meet, where they are no cluster.
struct Meetings {
    /// Blocks of a memory.
    blocks: u32,
    /// 128 bytes for each memory at work, zero at first.
    counters: Buffer,
}

impl Meetings {
    /// For a grid of so many blocks, of which so many share a memory.
    fn new(device: &Cuda, grid: usize, blocks: usize) -> Result<Self> {
        Ok(Self { blocks: blocks as u32, counters: device.zeros(DType::F32, 32 * grid / blocks)? })
    }
}

/// A call's sizes and tables.
struct RecurrentLayout {
    /// Elements of each gate a row, and of each slot of a state a sequence and head.
    widths: Vec<usize>,
    /// The same of each slot of a state.
    sizes: Vec<usize>,
    /// What the cell asks for.
    workspace: WorkspaceSize,
    /// Tokens of a group, 0: none.
    frozen: usize,
    /// Slots of a state that go back to an anchor.
    anchors: usize,
    /// Columns of slots that go back to the anchor's lengths; none where they do not.
    columns: Vec<usize>,
    /// Which states are kept.
    checkpoints: Checkpoints,
    /// Threads that the kernels are compiled for.
    threads: usize,
    /// Checkpoints of all sequences.
    kept: usize,
    /// First row of each sequence and the end, `[N + 1]`.
    starts: Tensor<Cuda>,
    /// First checkpoint of each sequence and the end, `[N + 1]`.
    kept_starts: Tensor<Cuda>,
}

impl RecurrentLayout {
    /// Sizes of a rule's gates and states, and where checkpoints lie.
    fn new<R: Recurrent<F>, F>(device: &Cuda, rule: R, dims: &Dims) -> Result<Self> {
        let (rows, heads) = (dims.sequences.rows() * dims.heads, dims.sequences.count() * dims.heads);
        let gates = rule.gates(dims);
        let widths = R::Gates::list(&gates).iter().map(|(_, x)| x.count() / rows).collect();
        let sizes = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count() / heads).collect();
        let frozen = rule.frozen().map_or(0, |group| group as usize);
        let checkpoints = Checkpoints::new(rule.frozen());
        let table = checkpoints.table(&dims.sequences);
        let kept = checkpoints.total(&dims.sequences);
        // First rows, then first checkpoints.
        let (starts, kept_starts) = table.split_at(dims.sequences.count() + 1);
        let (starts, kept_starts) = (device.table(starts)?, device.table(kept_starts)?);
        Ok(Self {
            widths,
            sizes,
            workspace: rule.workspace(dims),
            frozen,
            anchors: if dims.anchored { R::Anchor::NAMES.len() } else { 0 },
            columns: if rule.needs_anchor() { columns(rule, dims) } else { Vec::new() },
            checkpoints,
            threads: R::THREADS,
            kept,
            starts,
            kept_starts,
        })
    }

    /// Elements of a state.
    fn state(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// The arrays of a block, in the order in which the kernels take them.
    fn forward_arrays(&self, dims: &Dims) -> Vec<usize> {
        let (state, WorkspaceSize { record, scratch, ahead, .. }) = (self.state(), self.workspace);
        // q, k, v, gates; out, scratch, record, the state and the next one; the point of frozen rules; where momentum leads.
        let mut arrays = self.rows(dims);
        arrays.extend([dims.value, scratch, record, state, state]);
        arrays.extend((self.frozen > 0).then_some(state));
        arrays.extend((ahead > 0).then_some(ahead));
        arrays
    }

    /// The same of the backward.
    fn backward_arrays(&self, dims: &Dims) -> Vec<usize> {
        let (state, WorkspaceSize { record, scratch, in_place, ahead }) = (self.state(), self.workspace);
        // Tokens of the longest interval.
        let longest = self.checkpoints.period().min(Checkpoints::INTERVAL);
        // Rows and their gradients; dout, scratch, dstate; dpoint; records and states of an interval.
        let mut arrays = [self.rows(dims), self.rows(dims)].concat();
        arrays.extend([dims.value, scratch, state]);
        arrays.extend((self.frozen > 0 || !in_place || self.anchors > 0 || ahead > 0).then_some(state));
        // What a token finds, and the anchor's gradient.
        arrays.extend([state, state].into_iter().filter(|_| self.anchors > 0));
        arrays.extend([longest * record, (longest + 1) * state]);
        arrays.extend((ahead > 0).then_some(ahead));
        // The state with which a group starts, where that is not what the group before left.
        arrays.extend((!self.columns.is_empty()).then_some(state));
        arrays
    }

    /// Rows of a token: q, k, v, gates.
    fn rows(&self, dims: &Dims) -> Vec<usize> {
        vec![dims.key, dims.key, dims.value, self.widths.iter().sum()]
    }

    /// How a kernel whose blocks have these arrays is started, the workspace for them, and elements in shared memory.
    fn grid(&self, device: &Cuda, dims: &Dims, arrays: &[usize]) -> Result<(Grid, Tensor<Cuda>, [usize; 2])> {
        let properties = device.properties();
        // As many arrays as fit go to shared memory, in order.
        let shared = properties.shared_memory.saturating_sub(OWN_SHARED);
        let near = near(arrays, shared / 4);
        let each = arrays.iter().map(|count| count.next_multiple_of(4)).sum::<usize>();
        // Two blocks a multiprocessor where both fit.
        let together = (shared / (4 * near + OWN_SHARED)).clamp(1, 2);
        // No more than an eighth of the memory, whatever the sizes.
        let most = (properties.memory / 8 / (4 * each.max(1))).max(1);
        // Sequences times heads.
        let heads = dims.sequences.count() * dims.heads;
        let blocks = heads.min(together * properties.multiprocessors as usize).min(most);
        // About as many elements a thread as make its share worth the waiting for others.
        let threads = (self.state() / 16).next_power_of_two().clamp(32, self.threads);
        let workspace = device.empty([blocks, each], DType::F32)?;
        Ok((Grid { blocks: (blocks, 1, 1), threads: threads as u32, shared: 4 * near }, workspace, [each, near]))
    }

    /// The kernel of a pass, 0 forward and 1 backward, and what it is started with.
    fn plan<R: Recurrent<F>, F>(
        &self,
        device: &Cuda,
        rule: R,
        dims: &Dims,
        dtype: DType,
        pass: usize,
    ) -> Result<Plan<R::Cell>> {
        let of = |kernels: StepKernels<R::Cell>| if pass == 0 { kernels.forward } else { kernels.backward };
        // The general kernels, where a rule has no others for this call.
        let Some(grouped) = rule.grouped(device, dims, dtype, pass) else {
            let arrays = if pass == 0 { self.forward_arrays(dims) } else { self.backward_arrays(dims) };
            let (grid, workspace, [each, near]) = self.grid(device, dims, &arrays)?;
            let WorkspaceSize { scratch, record, .. } = self.workspace;
            return Ok(Plan { start: of(R::KERNELS), grid, workspace, meetings: None, each, near, scratch, record });
        };
        // Else a kernel that goes by groups.
        let Grouped { start, cluster, together, threads, exchanged, arrays, record } = grouped;
        let properties = device.properties();
        // A block has a multiprocessor for itself.
        let near = near(&arrays, near_limit(device));
        let each = exchanged + arrays.iter().map(|count| count.next_multiple_of(4)).sum::<usize>() - near;
        // A cluster a memory, no more than keep the GPU busy, or than run at once, and an eighth of its memory has room for.
        let running = if together { 1 } else { 4 } * properties.multiprocessors as usize;
        let most = running.min(properties.memory / 8 / (4 * each.max(1))) / cluster;
        let blocks = (dims.sequences.count() * dims.heads).min(most.max(1)) * cluster;
        // What did not fit into shared memory, and what blocks exchange.
        let workspace = device.empty([blocks, each], DType::F32)?;
        let grid = Grid { blocks: (blocks, 1, 1), threads, shared: 4 * near };
        let meetings = together.then(|| Meetings::new(device, blocks, cluster)).transpose()?;
        Ok(Plan { start, grid, workspace, meetings, each, near, scratch: exchanged, record })
    }

    /// A call with everything but arrays of the backward.
    fn call<R: Rule>(&self, dims: &Dims, inputs: &InputsOn<R, Cuda>) -> RecurrentCall {
        // What a forward does not have stays null.
        let (none, nowhere) = (Array::NONE, [0; MOST_SLOTS]);
        let lengths = |of: &[usize]| std::array::from_fn(|slot| of.get(slot).copied().unwrap_or(0) as u32);
        RecurrentCall {
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
            anchor: inputs.anchor.as_ref().map_or(nowhere, pointers::<R::Anchor>),
            danchor: nowhere,
            starts: pointer(&self.starts),
            kept_starts: pointer(&self.kept_starts),
            kept: 0,
            workspace: 0,
            workspace_each: 0,
            widths: lengths(&self.widths),
            sizes: lengths(&self.sizes),
            columns: lengths(&self.columns),
            gate_slots: self.widths.len() as u32,
            state_slots: self.sizes.len() as u32,
            anchor_slots: self.anchors as u32,
            ahead: self.workspace.ahead as u32,
            sequences: dims.sequences.count() as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            all_gates: self.widths.iter().sum::<usize>() as u32,
            state: self.state() as u32,
            record: 0,
            scratch: 0,
            frozen: self.frozen as u32,
            period: self.checkpoints.period() as u32,
            near: 0,
            together: 0,
            meetings: 0,
        }
    }
}

/// Columns of the anchor's matrices.
fn columns<R: Rule>(rule: R, dims: &Dims) -> Vec<usize> {
    R::Anchor::into_vec(rule.anchor(dims)).iter().map(Shape::last).collect()
}

/// Elements of shared memory that a block of kernels by groups has.
pub(crate) fn near_limit(device: &Cuda) -> usize {
    (device.properties().shared_memory - GROUPED_SHARED) / 4
}

/// Elements of shared memory that these arrays take, as the kernels count: each that still fits.
fn near(arrays: &[usize], limit: usize) -> usize {
    arrays
        .iter()
        .map(|count| count.next_multiple_of(4))
        .fold(0, |near, count| if near + count <= limit { near + count } else { near })
}

/// Addresses of all slots in their order; 0 for those that a rule has not.
fn pointers<S: Slots>(slots: &Of<S, Tensor<Cuda>>) -> [Pointer; MOST_SLOTS] {
    let list = S::list(slots);
    debug_assert!(list.len() <= MOST_SLOTS);
    std::array::from_fn(|slot| list.get(slot).map_or(0, |(_, x)| pointer(x)))
}

/// A forward, of rules with kernels of their own and of those of the deep family.
fn forward<R: Recurrent<F>, F>(
    KernelCall { device, rule, dims, inputs, .. }: KernelCall<'_, R, Cuda>,
    keep: bool,
) -> Result<(OutputsOn<R, Cuda>, Option<SavedStates>)> {
    // Sizes and tables are made again for the backward: they are cheap beside a launch.
    let layout = RecurrentLayout::new(device, rule, dims)?;
    let plan = layout.plan(device, rule, dims, inputs.q.dtype(), 0)?;
    let kept = device.empty([if keep { layout.kept } else { 0 }, dims.heads, layout.state()], DType::F32)?;
    let outputs = Outputs::<R, _>::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
    let call = RecurrentCall {
        out: (&outputs.out).into(),
        last: pointers::<R::State>(&outputs.state),
        kept: if keep { pointer(&kept) } else { 0 },
        ..layout.call(dims, inputs)
    };
    // One launch for all tokens.
    (plan.start)(device, plan.grid, plan.call(call), rule.cell(dims))?;
    Ok((outputs, keep.then_some(SavedStates(kept))))
}

/// Gradients of all inputs.
fn backward<R: Recurrent<F>, F>(
    KernelCall { device, rule, dims, inputs, .. }: KernelCall<'_, R, Cuda>,
    SavedStates(kept): SavedStates,
    grads: &OutputsOn<R, Cuda>,
) -> Result<InputsOn<R, Cuda>> {
    let layout = RecurrentLayout::new(device, rule, dims)?;
    let plan = layout.plan(device, rule, dims, inputs.q.dtype(), 1)?;
    let mut result =
        Inputs::<R, _>::try_build(rule, dims, inputs.q.dtype(), |shape, dtype| device.empty(shape, dtype))?;
    // Blocks have a sequence each, so gradients of an anchor are added up afterwards.
    let anchors = result.anchor.take().map(|anchor| by_sequence::<R>(device, dims, anchor)).transpose()?;
    let call = RecurrentCall {
        dout: (&grads.out).into(),
        dq: (&result.q).into(),
        dk: (&result.k).into(),
        dv: (&result.v).into(),
        dgates: pointers::<R::Gates>(&result.gates),
        dlast: pointers::<R::State>(&grads.state),
        dinitial: pointers::<R::State>(&result.state),
        danchor: anchors.as_ref().map_or([0; MOST_SLOTS], pointers::<R::Anchor>),
        kept: pointer(&kept),
        ..layout.call(dims, inputs)
    };
    // One launch: intervals of a sequence and head go one after another.
    (plan.start)(device, plan.grid, plan.call(call), rule.cell(dims))?;
    result.anchor = anchors.map(over_sequences::<R>).transpose()?;
    Ok(result)
}

/// Rules with kernels of their own, each by itself: the core knows no more of them.
impl<R: Recurrent<Own>> Kernel<R, Own> for Cuda {
    type Saved = SavedStates;

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

/// Deep rules, those of other crates too: the core makes a kernel of each out of this.
/// What one token does is written once for all of them, in `deep`.
impl DeepEngine for Cuda {
    type Saved = SavedStates;

    fn deep_forward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<SavedStates>)> {
        // Their family says which of a rule's steps is meant.
        forward::<R, Deep>(call, keep)
    }

    fn deep_backward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        saved: SavedStates,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>> {
        // As the forward, from the states that it kept.
        backward::<R, Deep>(call, saved, grads)
    }
}

/// Rules that forget by channel, those of other crates too: as deep ones, what one token does is in `rules::channel`.
impl ChannelEngine for Cuda {
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

/// Room for the gradients of an anchor by sequence, `[N,H,..]` for slots `[H,..]`.
fn by_sequence<R: Rule>(
    device: &Cuda,
    dims: &Dims,
    anchor: Of<R::Anchor, Tensor<Cuda>>,
) -> Result<Of<R::Anchor, Tensor<Cuda>>> {
    R::Anchor::try_map(anchor, |_, slot| {
        let shape = [&[dims.sequences.count()], slot.shape().axes()].concat();
        device.empty(shape, DType::F32)
    })
}

/// Their sums over the sequences.
fn over_sequences<R: Rule>(anchors: Of<R::Anchor, Tensor<Cuda>>) -> Result<Of<R::Anchor, Tensor<Cuda>>> {
    R::Anchor::try_map(anchors, |_, slot| {
        let shape = Shape::from(&slot.shape().axes()[1..]);
        sum_rows(&slot, shape.count())?.reshape(shape)
    })
}

/// Two kernels as [`StepKernels`]: `step_kernels! { KERNELS: SOURCE, Cell { "lattice_forward" Forward, "lattice_backward"
/// Backward } }`, or of two files, `KERNELS: FORWARD, BACKWARD, Cell { .. }`.
macro_rules! step_kernels {
    ($kernels:ident: $source:path, $cell:ty { $($names:tt)* }) => {
        $crate::recurrent::step_kernels! { $kernels: $source, $source, $cell { $($names)* } }
    };
    ($kernels:ident: $first:path, $second:path, $cell:ty { $forward:literal $Forward:ident, $backward:literal $Backward:ident }) => {
        $crate::launch::kernels! { $first {
            $forward $Forward { call: $crate::recurrent::RecurrentCall, cell: $cell }
        } }
        $crate::launch::kernels! { $second {
            $backward $Backward { call: $crate::recurrent::RecurrentCall, cell: $cell }
        } }

        const $kernels: $crate::recurrent::StepKernels<$cell> = $crate::recurrent::StepKernels {
            forward: |device, grid, call, cell| device.launch(grid, &$Forward { call, cell }),
            backward: |device, grid, call, cell| device.launch(grid, &$Backward { call, cell }),
        };
    };
    // And the same in a grid that runs as a whole, whose blocks meet by counters.
    ($kernels:ident, $together:ident: $first:path, $second:path, $cell:ty { $forward:literal $Forward:ident, $backward:literal $Backward:ident }) => {
        $crate::recurrent::step_kernels! { $kernels: $first, $second, $cell { $forward $Forward, $backward $Backward } }

        const $together: $crate::recurrent::StepKernels<$cell> = $crate::recurrent::StepKernels {
            forward: |device, grid, call, cell| device.launch_together(grid, &$Forward { call, cell }),
            backward: |device, grid, call, cell| device.launch_together(grid, &$Backward { call, cell }),
        };
    };
}
pub(crate) use step_kernels;
