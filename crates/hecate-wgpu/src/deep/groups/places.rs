//! Where a memory's panels lie, and what kernels are told of them.

use super::mapped::{LayerPlaces, Sweeps};
use crate::parameters::{array, parameters};
use crate::recurrent::RecurrentCall;
use hecate_core::{Checkpoints, Dims};

/// Kinds of numbers by token: `numbers.wgsl`, then `mapped.wgsl`, has a list.
const NUMBERS: usize = 39;

/// Numbers that products read, as `numbers.wgsl` counts them.
#[derive(Clone, Copy)]
pub(super) enum Number {
    /// How much of the first X a token reads.
    ReadA = 11,
    /// How much of the first S.
    ReadB = 12,
    /// How much of the anchor.
    ReadRest = 13,
    /// How much of a token's write X has after the group.
    LastC = 14,
    /// How much of it S has.
    LastE = 15,
}

/// A matrix in a memory's part of the workspace, or its transpose.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// Its first element, counted from the memory's part.
    pub(super) at: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    /// From a row to the next.
    pub(super) row: u32,
    /// From a column to the next.
    pub(super) column: u32,
}

impl Panel {
    /// Its transpose: no element moves.
    pub(super) fn t(self) -> Self {
        Self { at: self.at, rows: self.columns, columns: self.rows, row: self.column, column: self.row }
    }

    /// Rows and columns.
    pub(super) fn sizes(self) -> [u32; 2] {
        [self.rows, self.columns]
    }

    /// The number of its elements.
    pub(super) fn count(self) -> u32 {
        self.rows * self.columns
    }
}

/// Hands out places one after another.
pub(super) struct Cutter(u32);

impl Cutter {
    /// The next place, row by row; nothing where either number is 0.
    pub(super) fn panel(&mut self, rows: usize, columns: usize) -> Panel {
        let (at, rows, columns) = (self.0, rows as u32, columns as u32);
        self.0 += rows * columns;
        Panel { at, rows, columns, row: columns, column: 1 }
    }
}

/// Both layers' matrices.
pub(super) type Matrices = [Panel; 2];

parameters! {
    /// Where panels are in a memory's part of the workspace, row-major.
    pub(super) struct PanelPlaces {
        /// Numbers by token.
        numbers: u32,
        /// X of both layers, then momentum.
        state: u32,
        /// What both go back to.
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
        /// What the second layer is written with `[G,V]`.
        z1: u32,
        /// Masks `[G,G]`.
        c: u32,
        /// How much of each write momentum has `[G,G]`.
        e: u32,
        /// Gradients of masks `[G,G]`.
        dc: u32,
        /// Pre-activations at keys `[G,D]`.
        pre: u32,
        /// u W₁ᵀ `[G,D]`.
        back: u32,
        /// Its gradient.
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
        /// Inner gradients before its Jacobian `[G,V]`; without a norm `u`.
        inner_grad: u32,
    }
}

parameters! {
    /// What kernels between products read of a call.
    pub(super) struct Plan {
        /// Sizes of the call, and where arguments and results lie.
        pub(super) call: RecurrentCall,
        /// Where panels lie.
        pub(super) places: PanelPlaces,
        /// Where sweeps find those of a layer.
        pub(super) layers: array<LayerPlaces, 2>,
    }
}

/// A memory's panels; `groups.wgsl` says what is in those that it names.
#[derive(Clone)]
pub(super) struct Places {
    /// `G`.
    pub(super) group: u32,
    /// First of the numbers by token.
    pub(super) numbers: u32,
    /// X of both layers: weights `[K,D]` and `[D,V]`, or what they are an image of. Of a matrix the first has no elements and the
    /// second is `[K,V]`.
    pub(super) state: Matrices,
    /// W₀ and W₁ where inner gradients are taken: the state itself, or its image.
    pub(super) weights: Matrices,
    /// Of both, where the rule has it.
    pub(super) momentum: Matrices,
    /// What both go back to, a copy a memory: heads share them in the arguments.
    pub(super) anchor: Matrices,
    /// Keys of the group `[G,K]`, zeros beyond its last token.
    pub(super) k: Panel,
    /// Queries, in the same way.
    pub(super) q: Panel,
    /// Values, then prediction minus value `[G,V]`.
    pub(super) v: Panel,
    /// Inner gradients: ψ of the error, shortened by (94), and behind the Jacobian of a layer norm `[G,V]`.
    pub(super) u: Panel,
    /// Predictions at keys, then what queries read `[G,V]`.
    pub(super) prediction: Panel,
    /// What the second layer is written with, −θ u `[G,V]`.
    pub(super) z1: Panel,
    /// What each token reads of each write `[G,G]`.
    pub(super) c: Panel,
    /// How much of each write momentum has after each token `[G,G]`.
    pub(super) e: Panel,
    /// Products of queries and keys, as they are read `[G,G]`.
    pub(super) square: Panel,
    /// Pre-activations of the hidden layer at keys; these and the next are `[G,D]`.
    pub(super) pre: Panel,
    /// The hidden layer at keys; of a matrix the keys.
    pub(super) h: Panel,
    /// b = u W₁ᵀ, before slopes.
    pub(super) back: Panel,
    /// What the first layer is written with, −θ b times slopes.
    pub(super) z0: Panel,
    /// Pre-activations that queries find.
    pub(super) read_pre: Panel,
    /// The hidden layer that queries find; of a matrix the queries.
    pub(super) read_h: Panel,
    /// The gradient of outputs `[G,V]`. This and what follows is a backward's.
    pub(super) dout: Panel,
    /// That of what queries read: behind a layer norm another one `[G,V]`.
    pub(super) dread: Panel,
    /// Of queries and keys `[G,K]`.
    pub(super) dq: Panel,
    pub(super) dk: Panel,
    /// Of masks; then of log a by token and write `[G,G]`.
    pub(super) dc: Panel,
    /// Of products of queries and keys before the mask `[G,G]`.
    pub(super) dsquare: Panel,
    /// Of the hidden layer that queries find, then of its pre-activations `[G,D]`; of a matrix `dq`.
    pub(super) dread_h: Panel,
    /// Of the hidden layer at keys, then of its pre-activations `[G,D]`; of a matrix `dk`.
    pub(super) dh: Panel,
    /// Of z0, then of b `[G,D]`.
    pub(super) dback: Panel,
    /// Of z1 `[G,V]`.
    pub(super) dz1: Panel,
    /// Of u, then of errors `[G,V]`.
    pub(super) du: Panel,
    /// Of the state after the group, then of that before it.
    pub(super) dstate: Matrices,
    /// Of the weights; the same where these are the state.
    pub(super) dweights: Matrices,
    pub(super) dmomentum: Matrices,
    /// Of the anchor, added up over groups.
    pub(super) danchor: Matrices,
    /// Products with the state that shares of it are multiplied with, of X, the anchor and S.
    pub(super) shares: u32,
    /// Partial sums, and rows of the longer matrix.
    sums: u32,
    tall: u32,
    /// x̂ of predictions, where a layer norm follows them.
    normed: u32,
    /// Inner gradients before the norm's Jacobian.
    inner_grad: u32,
    /// States before the second and later groups of an interval, but the last.
    begun: Vec<u32>,
    /// What sweeps have, where weights are an image of the state.
    pub(super) layers: array<LayerPlaces, 2>,
    /// Elements of all.
    pub(super) each: usize,
}

impl Places {
    /// Of groups of `group` tokens. What a rule or a pass does not have takes no room.
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

/// What takes room.
#[derive(Clone, Copy)]
pub(super) struct Has {
    /// Two more matrices of state, and of their gradients.
    pub(super) momentum: bool,
    /// Something to go back to.
    pub(super) anchor: bool,
    /// Gradients of all panels, and states that wait for them.
    pub(super) backward: bool,
    /// A layer norm behind the last matrix.
    pub(super) norm: bool,
    /// Weights beside the state that they are an image of.
    pub(super) sweeps: Option<Sweeps>,
}
