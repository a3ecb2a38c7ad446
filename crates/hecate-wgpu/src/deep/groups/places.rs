//! The layout of a memory's part of the workspace: where each matrix (a panel) begins, and the structures that tell kernels.

use super::mapped::{LayerPlaces, Sweeps};
use crate::parameters::{array, parameters};
use crate::recurrent::RecurrentCall;
use hecate_core::{Checkpoints, Dims};

/// Per-token scalars of a group, `[NUMBERS,G]`: `numbers.wgsl` lists them, then `mapped.wgsl`.
const NUMBERS: usize = 39;

/// The per-token scalars by which products multiply rows, with their index in `numbers.wgsl`.
#[derive(Clone, Copy)]
pub(super) enum Number {
    /// A: how much token t reads of the weights X before the group.
    ReadA = 11,
    /// B: how much it reads of the momentum S before the group.
    ReadB = 12,
    /// 1 - A: how much it reads of the anchor.
    ReadRest = 13,
    /// c of the last token: how much of token t's write X has after the group.
    LastC = 14,
    /// E of the last token: how much of token t's write S has after the group.
    LastE = 15,
}

/// A matrix in a memory's part of the workspace, or its transpose.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// Its first element, counted from the beginning of the memory's part.
    pub(super) at: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    /// Elements from a row to the next one.
    pub(super) row: u32,
    /// Elements from a column to the next one.
    pub(super) column: u32,
}

impl Panel {
    /// The transpose, which moves no element.
    pub(super) fn t(self) -> Self {
        Self { at: self.at, rows: self.columns, columns: self.rows, row: self.column, column: self.row }
    }

    /// Rows and columns.
    pub(super) fn sizes(self) -> [u32; 2] {
        [self.rows, self.columns]
    }

    /// The number of elements.
    pub(super) fn count(self) -> u32 {
        self.rows * self.columns
    }
}

/// Allocates panels one after another; it holds the first free element.
pub(super) struct Cutter(u32);

impl Cutter {
    /// The next panel `[rows, columns]`, row-major; it takes no room if either is 0.
    pub(super) fn panel(&mut self, rows: usize, columns: usize) -> Panel {
        let (at, rows, columns) = (self.0, rows as u32, columns as u32);
        self.0 += rows * columns;
        Panel { at, rows, columns, row: columns, column: 1 }
    }
}

/// One matrix of each layer, the first layer's first.
pub(super) type Matrices = [Panel; 2];

parameters! {
    /// The first element of each panel in a memory's part of the workspace; panels are row-major, `G` is the group's tokens.
    pub(super) struct PanelPlaces {
        /// Per-token scalars `[NUMBERS,G]`.
        numbers: u32,
        /// The state X of both layers, then momentum S.
        state: u32,
        /// The anchors of both layers, to which states decay.
        anchor: u32,
        /// Keys `[G,K]`.
        k: u32,
        /// Queries `[G,K]`.
        q: u32,
        /// Values, then errors `[G,V]`.
        v: u32,
        /// Inner gradients `[G,V]`.
        u: u32,
        /// Predictions, then outputs `[G,V]`.
        prediction: u32,
        /// z1, the right factor of the second layer's write `[G,V]`.
        z1: u32,
        /// c: how much each token reads of each write `[G,G]`.
        c: u32,
        /// e: how much of each write momentum has after each token `[G,G]`.
        e: u32,
        /// Gradients of masks `[G,G]`.
        dc: u32,
        /// Pre-activations at keys `[G,D]`.
        pre: u32,
        /// u W₁ᵀ `[G,D]`.
        back: u32,
        /// The gradient of `back`.
        dback: u32,
        /// The gradient of the hidden layer at keys.
        dh: u32,
        /// The gradient of `z1`.
        dz1: u32,
        /// The gradient of `u`.
        du: u32,
        /// The gradient of the state.
        dstate: u32,
        /// The gradient of the anchor.
        danchor: u32,
        /// Partial sums by rows of matrices.
        sums: u32,
        /// Rows of the longer matrix.
        tall: u32,
        /// Predictions after a layer norm `[G,V]`.
        normed: u32,
        /// Inner gradients before the Jacobian of that norm `[G,V]`; without a norm the same panel as `u`.
        inner_grad: u32,
    }
}

parameters! {
    /// The uniform of the kernels that run between products.
    pub(super) struct Plan {
        /// Sizes of the call, and offsets of its arguments and results.
        pub(super) call: RecurrentCall,
        /// Offsets of the panels.
        pub(super) places: PanelPlaces,
        /// Offsets that state scans use, by layer.
        pub(super) layers: array<LayerPlaces, 2>,
    }
}

/// The panels of one memory. A matrix memory, without a hidden layer, has only the second layer's.
#[derive(Clone)]
pub(super) struct Places {
    /// `G`, the tokens of a group.
    pub(super) group: u32,
    /// The first of the per-token scalars `[NUMBERS,G]`.
    pub(super) numbers: u32,
    /// The state X of both layers, `[K,D]` and `[D,V]`: the weights, or what they are mapped from. A matrix memory has no first
    /// layer, and a second one `[K,V]`.
    pub(super) state: Matrices,
    /// W₀ and W₁ at which inner gradients are taken: the state itself, or the weights that are mapped from it.
    pub(super) weights: Matrices,
    /// The momentum S of both layers, if the rule has it.
    pub(super) momentum: Matrices,
    /// The anchors of both layers. Each memory has its own copy, though sequences share a head's anchor in the arguments.
    pub(super) anchor: Matrices,
    /// Keys of the group `[G,K]`, with zeros beyond its last token.
    pub(super) k: Panel,
    /// Queries of the group `[G,K]`, likewise.
    pub(super) q: Panel,
    /// Values, later the errors: prediction minus value `[G,V]`.
    pub(super) v: Panel,
    /// Inner gradients u: ψ of the error, clipped by (94), then through the Jacobian of a layer norm `[G,V]`.
    pub(super) u: Panel,
    /// Predictions at keys, later what queries read `[G,V]`.
    pub(super) prediction: Panel,
    /// z1 = −θ u, the right factor of the second layer's write hᵀ z1 `[G,V]`.
    pub(super) z1: Panel,
    /// c: how much each token reads of each write `[G,G]`.
    pub(super) c: Panel,
    /// e: how much of each write momentum has after each token `[G,G]`.
    pub(super) e: Panel,
    /// c ∘ (q kᵀ), the masked products of queries and keys `[G,G]`.
    pub(super) square: Panel,
    /// Pre-activations at keys, k W₀; this and the next five are `[G,D]`.
    pub(super) pre: Panel,
    /// h, the hidden layer at keys; of a matrix memory the keys themselves.
    pub(super) h: Panel,
    /// b = u W₁ᵀ, before it is multiplied by the activation's slope.
    pub(super) back: Panel,
    /// z0 = −θ b ∘ act′(pre), the right factor of the first layer's write kᵀ z0.
    pub(super) z0: Panel,
    /// Pre-activations at queries.
    pub(super) read_pre: Panel,
    /// The hidden layer at queries; of a matrix memory the queries themselves.
    pub(super) read_h: Panel,
    /// The gradient of outputs `[G,V]`. This and all that follows exists in a backward only.
    pub(super) dout: Panel,
    /// The gradient of what queries read `[G,V]`; without a layer norm the same panel as `dout`.
    pub(super) dread: Panel,
    /// The gradients of queries and keys `[G,K]`.
    pub(super) dq: Panel,
    pub(super) dk: Panel,
    /// The gradient of c, later that of log a by token and write `[G,G]`.
    pub(super) dc: Panel,
    /// The gradient of q kᵀ before the mask `[G,G]`.
    pub(super) dsquare: Panel,
    /// The gradient of the hidden layer at queries, later of its pre-activations `[G,D]`; of a matrix memory `dq`.
    pub(super) dread_h: Panel,
    /// The gradient of the hidden layer at keys, later of its pre-activations `[G,D]`; of a matrix memory `dk`.
    pub(super) dh: Panel,
    /// The gradient of z0, later of b `[G,D]`.
    pub(super) dback: Panel,
    /// The gradient of z1 `[G,V]`.
    pub(super) dz1: Panel,
    /// The gradient of u, later of the errors `[G,V]`.
    pub(super) du: Panel,
    /// The gradient of the state after the group, later of the state before it.
    pub(super) dstate: Matrices,
    /// The gradient of the weights; the same panels as `dstate` if the weights are the state.
    pub(super) dweights: Matrices,
    pub(super) dmomentum: Matrices,
    /// The gradient of the anchors, summed over groups.
    pub(super) danchor: Matrices,
    /// Products of what reads get with X, the anchor and S, later of keys with dX and dS. Gradients of queries and values are
    /// made of them, and those of A, 1 - A, B, c and E are their row sums.
    pub(super) shares: u32,
    /// Partial sums `[2 tall,4]`, and `tall`, the rows of the taller matrix.
    sums: u32,
    tall: u32,
    /// Predictions after the layer norm, if there is one.
    normed: u32,
    /// Inner gradients before the Jacobian of that norm.
    inner_grad: u32,
    /// Places for the states before the second to the last but one group of a checkpoint interval.
    begun: Vec<u32>,
    /// Offsets that state scans use, if weights are mapped from the state.
    pub(super) layers: array<LayerPlaces, 2>,
    /// Elements of all panels together.
    pub(super) each: usize,
}

impl Places {
    /// Lays out the panels for groups of `group` tokens. What the rule or the pass does not have takes no room.
    pub(super) fn new(dims: &Dims, hidden: usize, group: usize, has: Has) -> Self {
        let (key, value, matrix) = (dims.key, dims.value, hidden == 0);
        let mut all = Cutter(0);
        let matrices = |all: &mut Cutter, there: bool| {
            let inner = if matrix { key } else { hidden };
            [all.panel(key, if there { hidden } else { 0 }), all.panel(if there { inner } else { 0 }, value)]
        };
        // A state is at 0: that is where nothing else may be, and nothing joins from.
        let (state, momentum) = (matrices(&mut all, true), matrices(&mut all, has.momentum));
        let weights = if has.sweeps.is_some() { matrices(&mut all, true) } else { state };
        let anchor = matrices(&mut all, has.anchor);
        let numbers = all.panel(NUMBERS, group).at;
        let mut rows = |width: usize| all.panel(group, width);
        let [k, q, v, u, prediction, z1] = [key, key, value, value, value, value].map(&mut rows);
        let [pre, mut h, back, z0, read_pre, mut read_h] = [hidden; 6].map(&mut rows);
        // Masks are of memories that decay.
        let masked = if has.sweeps.is_some() { 0 } else { group };
        let [c, e, square] = [masked; 3].map(&mut rows);
        let back_only = |width: usize| if has.backward { width } else { 0 };
        let [dout, dz1, du] = [value; 3].map(back_only).map(&mut rows);
        let [normed, inner_grad] = [if has.norm { value } else { 0 }; 2].map(&mut rows);
        let dread = if has.norm { rows(back_only(value)) } else { dout };
        let [dq, dk] = [key; 2].map(back_only).map(&mut rows);
        let [mut dread_h, mut dh, dback] = [hidden; 3].map(back_only).map(&mut rows);
        if matrix {
            (h, read_h, dh, dread_h) = (k, q, dk, dq);
        }
        let [dc, dsquare] = [masked; 2].map(back_only).map(&mut rows);
        let dstate = matrices(&mut all, has.backward);
        let dweights = if has.sweeps.is_some() { matrices(&mut all, has.backward) } else { dstate };
        let dmomentum = matrices(&mut all, has.backward && has.momentum);
        let danchor = matrices(&mut all, has.backward && has.anchor);
        let tall = key.max(hidden);
        let shares = all.panel(3 * masked, back_only(tall.max(value))).at;
        let sums = all.panel(if masked == 0 { 0 } else { 2 * tall }, back_only(4)).at;
        let groups = if has.backward { (Checkpoints::INTERVAL / group).saturating_sub(2) } else { 0 };
        let size = state.iter().chain(&momentum).map(|x| x.count()).sum::<u32>();
        let begun = (0..groups).map(|_| all.panel(1, size as usize).at).collect();
        let mut places = Self {
            group: group as u32,
            numbers,
            state,
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
            dread,
            dq,
            dk,
            dc,
            dsquare,
            dread_h,
            dh,
            dback,
            dz1,
            du,
            dstate,
            dweights,
            dmomentum,
            danchor,
            shares,
            sums,
            tall: tall as u32,
            normed: normed.at,
            inner_grad: if has.norm { inner_grad.at } else { u.at },
            begun,
            layers: Default::default(),
            each: 0,
        };
        if let Some(sweeps) = has.sweeps {
            places.layers = sweeps.layers(&places, &mut all, has.backward);
        }
        places.each = all.0 as usize;
        places
    }

    /// The first element of a per-token scalar `[G]`.
    pub(super) fn number(&self, which: Number) -> u32 {
        self.numbers + which as u32 * self.group
    }

    /// The place of the state before group `number` of an interval, for `number` from 1 on.
    pub(super) fn begun(&self, number: usize) -> u32 {
        self.begun[number - 1]
    }

    /// The first row of a layer's partial sums.
    pub(super) fn sums_of(&self, layer: usize) -> u32 {
        layer as u32 * self.tall
    }

    /// The offsets as kernels get them.
    pub(super) fn named(&self) -> PanelPlaces {
        PanelPlaces {
            numbers: self.numbers,
            state: self.state[0].at,
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
            dstate: self.dstate[0].at,
            danchor: self.danchor[0].at,
            sums: self.sums,
            tall: self.tall,
            normed: self.normed,
            inner_grad: self.inner_grad,
        }
    }
}

/// What a rule and a pass have, and so what takes room.
#[derive(Clone, Copy)]
pub(super) struct Has {
    /// Two more matrices of state, and of their gradients.
    pub(super) momentum: bool,
    /// Anchors to which states decay.
    pub(super) anchor: bool,
    /// Gradients of all panels, and states before the groups of an interval.
    pub(super) backward: bool,
    /// A layer norm after the last matrix.
    pub(super) norm: bool,
    /// Weights that are mapped from the state, beside the state.
    pub(super) sweeps: Option<Sweeps>,
}
