//! Where a memory's panels lie, and what kernels are told of them.

use crate::recurrent::RecurrentCall;
use hecate_core::{Checkpoints, Dims};

/// Kinds of numbers by token, `D_ETA + 1` of `numbers.wgsl`.
const NUMBERS: usize = 25;

/// Numbers that products read, as `numbers.wgsl` counts them.
#[derive(Clone, Copy)]
pub(super) enum Number {
    ReadA = 11,
    ReadB = 12,
    ReadRest = 13,
    LastC = 14,
    LastE = 15,
}

/// A matrix in a memory's part of the workspace, or its transpose.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) at: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) row: u32,
    pub(super) column: u32,
}

impl Panel {
    /// Its transpose: no element moves.
    pub(super) fn t(self) -> Self {
        Self { at: self.at, rows: self.columns, columns: self.rows, row: self.column, column: self.row }
    }

    /// The number of its elements.
    pub(super) fn count(self) -> u32 {
        self.rows * self.columns
    }
}

/// Hands out places one after another.
struct Cutter(u32);

impl Cutter {
    fn panel(&mut self, rows: usize, columns: usize) -> Panel {
        let (at, rows, columns) = (self.0, rows as u32, columns as u32);
        self.0 += rows * columns;
        Panel { at, rows, columns, row: columns, column: 1 }
    }
}

/// Both layers' matrices.
pub(super) type Matrices = [Panel; 2];

/// Twin of `groups.wgsl`'s structure of this name.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Named {
    numbers: u32,
    state: u32,
    anchor: u32,
    k: u32,
    q: u32,
    v: u32,
    u: u32,
    prediction: u32,
    z1: u32,
    c: u32,
    e: u32,
    dc: u32,
    pre: u32,
    back: u32,
    dback: u32,
    dh: u32,
    dz1: u32,
    du: u32,
    dstate: u32,
    danchor: u32,
    sums: u32,
    tall: u32,
    unused: [u32; 2],
}

/// Twin of `groups.wgsl`'s structure `Plan`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Plan {
    pub(super) call: RecurrentCall,
    pub(super) places: Named,
}

/// A memory's panels; `groups.wgsl` says what is in those that it names.
#[derive(Clone)]
pub(super) struct Places {
    /// `G`.
    pub(super) group: u32,
    /// First of the numbers by token.
    pub(super) numbers: u32,
    /// Weights, momentum, anchors.
    pub(super) weights: Matrices,
    pub(super) momentum: Matrices,
    pub(super) anchor: Matrices,
    pub(super) k: Panel,
    pub(super) q: Panel,
    pub(super) v: Panel,
    pub(super) u: Panel,
    pub(super) prediction: Panel,
    pub(super) z1: Panel,
    pub(super) c: Panel,
    pub(super) e: Panel,
    /// Products of queries and keys, as they are read `[G,G]`.
    pub(super) square: Panel,
    /// At keys: pre-activations, the hidden layer, b, with what the first layer is written with `[G,D]`.
    pub(super) pre: Panel,
    pub(super) h: Panel,
    pub(super) back: Panel,
    pub(super) z0: Panel,
    /// At queries.
    pub(super) read_pre: Panel,
    pub(super) read_h: Panel,
    /// Of a backward: gradients of what has these names.
    pub(super) dout: Panel,
    pub(super) dq: Panel,
    pub(super) dk: Panel,
    pub(super) dc: Panel,
    pub(super) dsquare: Panel,
    pub(super) dread_h: Panel,
    pub(super) dh: Panel,
    pub(super) dback: Panel,
    pub(super) dz1: Panel,
    pub(super) du: Panel,
    pub(super) dweights: Matrices,
    pub(super) dmomentum: Matrices,
    pub(super) danchor: Matrices,
    /// Products with the state that shares of it are multiplied with, of X, the anchor and S.
    pub(super) shares: u32,
    /// Partial sums, and rows of the longer matrix.
    sums: u32,
    tall: u32,
    /// States before the second and later groups of an interval, but the last.
    begun: Vec<u32>,
    /// Elements of all.
    pub(super) each: usize,
}

impl Places {
    /// Of groups of `group` tokens. What a rule or a pass does not have takes no room.
    pub(super) fn new(dims: &Dims, hidden: usize, group: usize, has: Has) -> Self {
        let (key, value) = (dims.key, dims.value);
        let mut all = Cutter(0);
        let matrices = |all: &mut Cutter, there: bool| {
            let wide = if there { hidden } else { 0 };
            [all.panel(key, wide), all.panel(wide, value)]
        };
        // A state is at 0: that is where nothing else may be, and nothing joins from.
        let (weights, momentum) = (matrices(&mut all, true), matrices(&mut all, has.momentum));
        let anchor = matrices(&mut all, has.anchor);
        let numbers = all.panel(NUMBERS, group).at;
        let mut rows = |width: usize| all.panel(group, width);
        let [k, q, v, u, prediction, z1] = [key, key, value, value, value, value].map(&mut rows);
        let [pre, h, back, z0, read_pre, read_h] = [hidden; 6].map(&mut rows);
        let [c, e, square] = [group; 3].map(&mut rows);
        let back_only = |width: usize| if has.backward { width } else { 0 };
        let [dout, dz1, du] = [value; 3].map(back_only).map(&mut rows);
        let [dq, dk] = [key; 2].map(back_only).map(&mut rows);
        let [dread_h, dh, dback] = [hidden; 3].map(back_only).map(&mut rows);
        let [dc, dsquare] = [group; 2].map(back_only).map(&mut rows);
        let dweights = matrices(&mut all, has.backward);
        let dmomentum = matrices(&mut all, has.backward && has.momentum);
        let danchor = matrices(&mut all, has.backward && has.anchor);
        let tall = key.max(hidden);
        let shares = all.panel(3 * group, back_only(tall.max(value))).at;
        let sums = all.panel(2 * tall, back_only(4)).at;
        let groups = if has.backward { (Checkpoints::INTERVAL / group).saturating_sub(2) } else { 0 };
        let state = weights.iter().chain(&momentum).map(|x| x.count()).sum::<u32>();
        let begun = (0..groups).map(|_| all.panel(1, state as usize).at).collect();
        Self {
            group: group as u32,
            numbers,
            weights,
            momentum,
            anchor,
            k,
            q,
            v,
            u,
            prediction,
            z1,
            c,
            e,
            square,
            pre,
            h,
            back,
            z0,
            read_pre,
            read_h,
            dout,
            dq,
            dk,
            dc,
            dsquare,
            dread_h,
            dh,
            dback,
            dz1,
            du,
            dweights,
            dmomentum,
            danchor,
            shares,
            sums,
            tall: tall as u32,
            begun,
            each: all.0 as usize,
        }
    }

    /// Where a kind of number begins.
    pub(super) fn number(&self, which: Number) -> u32 {
        self.numbers + which as u32 * self.group
    }

    /// Where the state before group `number` of an interval waits, from the second on.
    pub(super) fn begun(&self, number: usize) -> u32 {
        self.begun[number - 1]
    }

    /// First of the partial sums of a layer.
    pub(super) fn sums_of(&self, layer: usize) -> u32 {
        layer as u32 * self.tall
    }

    /// As kernels have them.
    pub(super) fn named(&self) -> Named {
        Named {
            numbers: self.numbers,
            state: self.weights[0].at,
            anchor: self.anchor[0].at,
            k: self.k.at,
            q: self.q.at,
            v: self.v.at,
            u: self.u.at,
            prediction: self.prediction.at,
            z1: self.z1.at,
            c: self.c.at,
            e: self.e.at,
            dc: self.dc.at,
            pre: self.pre.at,
            back: self.back.at,
            dback: self.dback.at,
            dh: self.dh.at,
            dz1: self.dz1.at,
            du: self.du.at,
            dstate: self.dweights[0].at,
            danchor: self.danchor[0].at,
            sums: self.sums,
            tall: self.tall,
            unused: [0; 2],
        }
    }
}

/// What takes room.
#[derive(Clone, Copy)]
pub(super) struct Has {
    pub(super) momentum: bool,
    pub(super) anchor: bool,
    pub(super) backward: bool,
}
