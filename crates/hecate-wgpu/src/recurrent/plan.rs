//! What a call takes: its sizes and tables, how many workgroups run it, and what kernels are told of it.

use super::{CellWords as Cell, Recurrent, WorkspaceSize};
use crate::parameters::{parameters, vec4};
use crate::{Wgpu, launch::DIMENSION};
use hecate_core::{Checkpoints, Dims, Slots};

/// Gates, and matrices of a state, at most.
const MOST_SLOTS: usize = 4;
/// Bytes of workspace for all workgroups at most.
const MOST_WORKSPACE: usize = 1 << 31;
/// Bytes of workgroup memory at most, whatever the adapter has.
const MOST_SHARED: usize = 32 << 10;
/// Tokens of a dispatch at most: a driver may take one that runs for seconds for one that hangs.
const TICKS: usize = 256;
/// Times that loops may be gone through in one dispatch of software: llvmpipe ends every loop of an invocation when together
/// they have been gone through 65,535 times.
const LOOPS: usize = 40_000;
/// `block.wgsl`'s constant of this name.
const SECOND: usize = 16;

parameters! {
    /// A call. By slot: where each begins, and how many elements it has in a row, or in a sequence and head; 0 for slots that a
    /// rule does not have.
    #[derive(Default)]
    pub(crate) struct RecurrentCall {
        /// Where each gate begins in `given`.
        pub(crate) gates: vec4<u32>,
        /// Where each slot of the initial states begins there.
        pub(crate) initial: vec4<u32>,
        /// Where each gradient of the final states begins there.
        pub(crate) dlast: vec4<u32>,
        /// Where each slot of the final states begins in `made`.
        pub(crate) last: vec4<u32>,
        /// Where each gradient of a gate begins there.
        pub(crate) dgates: vec4<u32>,
        /// Elements of each gate a row.
        pub(crate) widths: vec4<u32>,
        /// Elements of each slot a sequence and head.
        pub(crate) sizes: vec4<u32>,
        /// Gates that the rule has.
        pub(crate) gate_slots: u32,
        /// Slots of its state.
        pub(crate) state_slots: u32,
        /// Sequences times heads.
        pub(crate) sequence_heads: u32,
        /// `H`.
        pub(crate) heads: u32,
        /// `K`.
        pub(crate) key: u32,
        /// `V`.
        pub(crate) value: u32,
        /// Elements of a token's gates.
        pub(crate) all_gates: u32,
        /// Elements of a state.
        pub(crate) state: u32,
        /// Row elements that a token leaves for its backward.
        pub(crate) record: u32,
        /// Row elements for intermediate results.
        pub(crate) scratch: u32,
        /// Elements of a workgroup's part of the workspace, rows apart.
        pub(crate) workspace: u32,
        /// Rows of a workgroup that lie in the workspace.
        pub(crate) rows: u32,
        /// Tokens that share a gradient point; 0 for none.
        pub(crate) frozen: u32,
        /// Tokens from which kept states are counted.
        pub(crate) unit: u32,
        /// 1 where a backward will come.
        pub(crate) keep: u32,
        /// 1 where a forward restores a segment.
        pub(crate) again: u32,
        /// Where the table of kept states begins in `given`.
        pub(crate) kept_starts: u32,
        /// Where dk begins in `made`; dv begins at twice that.
        pub(crate) dk: u32,
        /// First sequence and head of this dispatch.
        pub(crate) sequence_head: u32,
        /// First tick.
        pub(crate) begin: u32,
        /// The tick after the last.
        pub(crate) end: u32,
        /// Segment, counted from the last.
        pub(crate) segment: u32,
        /// Slots of a state that go back to an anchor.
        pub(crate) anchor_slots: u32,
        /// [`WorkspaceSize::ahead`].
        pub(crate) ahead: u32,
    }
}

parameters! {
    /// What a kernel of a rule is told: the call, which is the engine's, then the cell, which is the rule's.
    pub(super) struct RecurrentArgs {
        /// The engine's part.
        pub(super) call: RecurrentCall,
        /// The rule's part.
        pub(super) cell: Cell,
    }
}

/// A call's sizes and tables.
pub(super) struct RecurrentPlan {
    /// Elements of each gate a row, and of each slot of a state a sequence and head.
    pub(super) widths: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    /// What a token needs beside states.
    pub(super) workspace: WorkspaceSize,
    /// Tokens of a frozen group; 0 for none.
    pub(super) frozen: usize,
    /// Which states are kept.
    pub(super) checkpoints: Checkpoints,
    /// Kept states of all sequences.
    pub(super) kept: usize,
    /// Starts of sequences, then of their kept states.
    pub(super) starts: Vec<u32>,
    /// Rows of tokens and heads, and sequences and heads.
    pub(super) rows: usize,
    pub(super) sequence_heads: usize,
    /// `H`, and how many slots of a state go back to an anchor.
    pub(super) heads: usize,
    pub(super) anchors: usize,
    /// Whether columns of weights go back to their anchor's lengths as groups start.
    renorm: bool,
}

/// How a kernel is started.
pub(super) struct Grid {
    /// Workgroups of a dispatch.
    pub(super) groups: usize,
    /// Tokens of a dispatch at most.
    pub(super) ticks: usize,
    /// Invocations of a workgroup.
    pub(super) threads: u32,
    /// Invocations that share a row of a matrix.
    pub(super) lanes: u32,
    /// Row elements in workgroup memory; 0 where rows lie in the workspace.
    pub(super) near: u32,
    /// 1 where columns of weights go back to their anchor's lengths as groups start.
    pub(super) renorm: u32,
    /// Elements of a workgroup's workspace, and of its rows there.
    pub(super) each: usize,
    pub(super) rows: usize,
}

impl RecurrentPlan {
    /// Counts rows and kept states of all sequences.
    pub(super) fn new<R: Recurrent<F>, F>(rule: R, dims: &Dims) -> Self {
        let (rows, sequence_heads) = (dims.sequences.rows() * dims.heads, dims.sequences.count() * dims.heads);
        let widths = R::Gates::list(&rule.gates(dims)).iter().map(|(_, x)| x.count() / rows).collect();
        let sizes = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count() / sequence_heads).collect();
        let frozen = rule.frozen().map_or(0, |group| group as usize);
        let checkpoints = Checkpoints::new(rule.frozen());
        let (kept, starts) = (checkpoints.total(&dims.sequences), checkpoints.table(&dims.sequences));
        let (heads, anchors) = (dims.heads, if dims.anchored { R::Anchor::NAMES.len() } else { 0 });
        let (workspace, renorm) = (rule.workspace(dims), rule.needs_anchor());
        Self {
            widths,
            sizes,
            workspace,
            frozen,
            checkpoints,
            kept,
            starts,
            rows,
            sequence_heads,
            heads,
            anchors,
            renorm,
        }
    }

    /// Elements of a state.
    pub(super) fn state(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Tokens of a segment, which a backward computes again, at most.
    pub(super) fn segment(&self) -> usize {
        self.checkpoints.period().min(Checkpoints::INTERVAL)
    }

    /// Rows of a token: q, k, v, gates.
    fn token(&self, dims: &Dims) -> usize {
        2 * dims.key + dims.value + self.widths.iter().sum::<usize>()
    }

    /// A forward has one state, a gradient point where that is another state, what a token finds of one with an anchor, and
    /// where momentum leads.
    pub(super) fn forward_grid<R: Recurrent<F>, F>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let states = 1 + usize::from(self.is_apart()) + usize::from(self.anchors > 0);
        let workspace = states * self.state() + self.workspace.matrices + self.workspace.ahead;
        self.grid(rule, device, dims, workspace, self.token(dims) + dims.value)
    }

    /// Whether the gradient point is another state than what a token finds.
    fn is_apart(&self) -> bool {
        self.frozen > 0 || self.anchors > 0 || self.workspace.ahead > 0
    }

    /// A backward has the states of a whole segment, and gradients of the state, of the point and of the anchor.
    pub(super) fn backward_grid<R: Recurrent<F>, F>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let states = 1 + 2 * usize::from(self.is_apart()) + 2 * usize::from(self.anchors > 0);
        let longest = self.segment();
        let own = longest * self.workspace.record + self.workspace.matrices + self.workspace.ahead;
        let workspace = (states + longest + 1) * self.state() + own;
        self.grid(rule, device, dims, workspace, 2 * self.token(dims) + dims.value)
    }

    /// Of workgroups that need `workspace` elements, and these rows beside a token's own.
    fn grid<R: Recurrent<F>, F>(&self, rule: R, device: &Wgpu, dims: &Dims, workspace: usize, rows: usize) -> Grid {
        let limits = device.limits();
        let rows = rows + self.workspace.scratch + self.workspace.record;
        let software = device.adapter().kind == "CPU";
        // Software takes a while to compile, once more for each number of invocations and each length of rows. It also takes
        // a while to switch between invocations, however little they have to do. But products are made in tiles, which want
        // many.
        let loops = |&threads: &usize| self.loops(dims, threads, rule.rounds(dims, threads));
        let enough = |threads: &usize| (*threads >= 64 || R::SHARED == 0) && loops(threads) <= LOOPS;
        let threads = match software {
            // About as many elements an invocation as make its share worth the waiting for others.
            false => (self.state() / 16).next_power_of_two().clamp(32, 256),
            true => [16, 64, 256].into_iter().find(enough).unwrap_or(256),
        };
        let shared = (limits.max_compute_workgroup_storage_size as usize).min(MOST_SHARED);
        // Four sums an invocation, and the rule's own tiles, come off the workgroup memory.
        let capacity = shared.saturating_sub(16 * (threads + SECOND) + R::SHARED) / 4;
        // Rounded up, so that rules of similar sizes share a kernel.
        let near = rows.next_multiple_of(if software { 4096 } else { 512 }).min(capacity);
        let near = if rows > near { 0 } else { near };
        let rows = if near == 0 { rows } else { 0 };
        Grid {
            groups: self.sequence_heads.min(device.workgroups_of(workspace + rows)),
            ticks: if software { (LOOPS / loops(&threads)).max(1) } else { TICKS },
            threads: threads as u32,
            lanes: if threads > 64 {
                16
            } else if threads > 16 {
                8
            } else {
                4
            },
            near: near as u32,
            renorm: self.renorm.into(),
            each: workspace,
            rows,
        }
    }

    /// How often an invocation goes through loops for a token, at most about: those of branches not taken too, once a round.
    fn loops(&self, dims: &Dims, threads: usize, rounds: usize) -> usize {
        // Visits of each element and each row over all phases, as an upper estimate.
        let anchors = if self.anchors > 0 { 6 * self.state() } else { 0 };
        let columns = if self.renorm { 8 * self.state() } else { 0 };
        let elements = anchors
            + columns
            + 6 * self.workspace.ahead
            + 24 * (self.state() + self.workspace.matrices)
            + 8 * dims.key * self.workspace.record;
        let rows = dims.key * (4 + self.widths.iter().sum::<usize>());
        5_000 + 60 * rounds + (elements + 512 * rows) / threads
    }

    /// A call with everything but what its direction adds.
    pub(super) fn call(&self, dims: &Dims) -> RecurrentCall {
        let lengths = |of: &[usize]| std::array::from_fn(|slot| of.get(slot).copied().unwrap_or(0) as u32);
        let [gates, initial, _] = self.given();
        RecurrentCall {
            gates,
            initial,
            anchor_slots: self.anchors as u32,
            ahead: self.workspace.ahead as u32,
            widths: lengths(&self.widths),
            sizes: lengths(&self.sizes),
            gate_slots: self.widths.len() as u32,
            state_slots: self.sizes.len() as u32,
            sequence_heads: self.sequence_heads as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            all_gates: self.widths.iter().sum::<usize>() as u32,
            state: self.state() as u32,
            record: self.workspace.record as u32,
            scratch: self.workspace.scratch as u32,
            frozen: self.frozen as u32,
            unit: self.checkpoints.period() as u32,
            kept_starts: (self.starts.len() / 2) as u32,
            ..RecurrentCall::default()
        }
    }

    /// Where gates, initial states and, after anchors, gradients of final states begin in what is given.
    pub(super) fn given(&self) -> [[u32; MOST_SLOTS]; 3] {
        let mut at = self.starts.len();
        let gates = offsets(&mut at, &self.widths, self.rows);
        let initial = offsets(&mut at, &self.sizes, self.sequence_heads);
        offsets(&mut at, &self.sizes[..self.anchors], self.heads);
        [gates, initial, offsets(&mut at, &self.sizes, self.sequence_heads)]
    }
}

impl Wgpu {
    /// Workgroups of a dispatch that have their part of one buffer, of so many elements each; at least one.
    pub(crate) fn workgroups_of(&self, elements: usize) -> usize {
        (self.most_workspace() / (4 * elements)).clamp(1, DIMENSION)
    }

    /// Whether one buffer holds so many.
    pub(crate) fn holds(&self, elements: usize) -> bool {
        elements.saturating_mul(4) <= self.most_workspace()
    }

    /// Bytes of a workspace at most.
    fn most_workspace(&self) -> usize {
        (self.limits().max_storage_buffer_binding_size as usize).min(MOST_WORKSPACE)
    }
}

/// Where arrays of `times` × these elements begin, one after another from `at` on.
pub(super) fn offsets(at: &mut usize, lengths: &[usize], times: usize) -> [u32; MOST_SLOTS] {
    debug_assert!(lengths.len() <= MOST_SLOTS);
    std::array::from_fn(|slot| {
        let own = *at;
        *at += lengths.get(slot).map_or(0, |length| length * times);
        own as u32
    })
}
