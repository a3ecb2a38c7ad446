//! What a call takes: its sizes and tables, how many workgroups run it, and what kernels are told of it.

use super::{Cell, Recurrent, Room};
use crate::Wgpu;
use hecate_core::{Dims, Slots};

/// Tokens between kept states.
pub(super) const KEPT_EVERY: usize = 64;
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

/// Twin of `recurrent.wgsl`'s structure of this name, which says what each field is.
#[derive(Clone, Copy, Debug, Default, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Call {
    pub(super) gates: [u32; MOST_SLOTS],
    pub(super) initial: [u32; MOST_SLOTS],
    pub(super) dlast: [u32; MOST_SLOTS],
    pub(super) last: [u32; MOST_SLOTS],
    pub(super) dgates: [u32; MOST_SLOTS],
    pub(super) widths: [u32; MOST_SLOTS],
    pub(super) sizes: [u32; MOST_SLOTS],
    pub(super) gate_slots: u32,
    pub(super) state_slots: u32,
    pub(super) lanes: u32,
    pub(super) heads: u32,
    pub(super) key: u32,
    pub(super) value: u32,
    pub(super) all_gates: u32,
    pub(super) state: u32,
    pub(super) record: u32,
    pub(super) scratch: u32,
    pub(super) room: u32,
    pub(super) rows: u32,
    pub(super) frozen: u32,
    pub(super) unit: u32,
    pub(super) keep: u32,
    pub(super) again: u32,
    pub(super) kept_starts: u32,
    pub(super) dk: u32,
    pub(super) dv: u32,
    pub(super) lane: u32,
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) span: u32,
    pub(super) unused: u32,
}

/// Twin of `recurrent.wgsl`'s structure of this name.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Args {
    pub(super) call: Call,
    pub(super) cell: Cell,
}

/// A call's sizes and tables.
pub(super) struct Plan {
    /// Numbers of each gate a row, and of each slot of a state a sequence and head.
    pub(super) widths: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    pub(super) room: Room,
    pub(super) frozen: usize,
    pub(super) unit: usize,
    /// Kept states of all sequences.
    pub(super) kept: usize,
    /// Starts of sequences, then of their kept states.
    pub(super) starts: Vec<u32>,
    /// Rows of tokens and heads, and sequences and heads.
    pub(super) rows: usize,
    pub(super) lanes: usize,
}

/// How a kernel is started.
pub(super) struct Grid {
    pub(super) groups: usize,
    /// Tokens of a dispatch at most.
    pub(super) ticks: usize,
    pub(super) threads: u32,
    pub(super) lanes: u32,
    pub(super) near: u32,
    /// Numbers of a workgroup's room, and of its rows there.
    pub(super) each: usize,
    pub(super) rows: usize,
}

impl Plan {
    pub(super) fn new<R: Recurrent>(rule: R, dims: &Dims) -> Self {
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
    pub(super) fn state(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Rows of a token: q, k, v, gates.
    fn token(&self, dims: &Dims) -> usize {
        2 * dims.key + dims.value + self.widths.iter().sum::<usize>()
    }

    pub(super) fn forward_grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let states = if self.frozen > 0 { 2 } else { 1 };
        self.grid(rule, device, dims, states * self.state() + self.room.matrices, self.token(dims) + dims.value)
    }

    pub(super) fn backward_grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims) -> Grid {
        let (longest, states) = (self.unit.min(KEPT_EVERY), if self.frozen > 0 { 3 } else { 1 });
        let room = (states + longest + 1) * self.state() + longest * self.room.record + self.room.matrices;
        self.grid(rule, device, dims, room, 2 * self.token(dims) + dims.value)
    }

    /// Of workgroups that need `room` numbers, and these rows beside a token's own.
    fn grid<R: Recurrent>(&self, rule: R, device: &Wgpu, dims: &Dims, room: usize, rows: usize) -> Grid {
        let limits = device.limits();
        let rows = rows + self.room.scratch + self.room.record;
        let software = device.adapter().kind == "CPU";
        // Software takes a while to compile, once more for each number of invocations and each room for rows, and to switch
        // between invocations, however little they have to do; but products are made in tiles, which want many.
        let loops = |&threads: &usize| self.loops(dims, threads, rule.rounds(dims, threads));
        let enough = |threads: &usize| (*threads >= 64 || R::SHARED == 0) && loops(threads) <= LOOPS;
        let threads = match software {
            // About as many elements an invocation as make its share worth the waiting for others.
            false => (self.state() / 16).next_power_of_two().clamp(32, 256),
            true => [16, 64, 256].into_iter().find(enough).unwrap_or(256),
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
            lanes: if threads > 64 {
                16
            } else if threads > 16 {
                8
            } else {
                4
            },
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
    pub(super) fn call<R: Recurrent>(&self, dims: &Dims, grid: &Grid) -> Call {
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
    pub(super) fn given(&self) -> [[u32; MOST_SLOTS]; 3] {
        let mut at = self.starts.len();
        let gates = offsets(&mut at, &self.widths, self.rows);
        let initial = offsets(&mut at, &self.sizes, self.lanes);
        [gates, initial, offsets(&mut at, &self.sizes, self.lanes)]
    }
}

/// Where arrays of `times` × these numbers begin, one behind another from `at` on.
pub(super) fn offsets(at: &mut usize, numbers: &[usize], times: usize) -> [u32; MOST_SLOTS] {
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
pub(super) fn spans(tokens: usize, unit: usize) -> usize {
    tokens / unit * unit.div_ceil(KEPT_EVERY) + (tokens % unit).div_ceil(KEPT_EVERY)
}
