//! Slots of unit norm: equations (60)–(69).
//!
//! The state is `K` slots `[V]`, each a row of norm 1.
//! A token moves every slot across the direction it has, by an amount of its own, and norms it again.
//! All work on slots is a few passes over `[K,V]` ([`slots`]); what belongs to a slot is an element of a row `[K]`.
//! Tokens of frozen groups take targets by products, and their slots in fewer passes ([`groups`]).

mod groups;
mod slots;

use crate::{
    deep::found::Found,
    fused_gemv::{Rank1Update, add_transposed, read},
    recurrent::{
        Cell, Decay, GroupedForm, Recurrent, StateGrads, StepBackward, StepForward, Token, TokenStates, heads,
    },
    rows::{axpy, scale},
    simd::ColumnKernel as _,
};
use hecate_core::{
    Dims, Error, Read, Result, Rule,
    families::Own,
    rules::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE, UnitSlots, Variant},
};
use slots::{SlotDots, SlotGrads, SlotNorm, SlotPullback, SlotReadBack, SlotUpdate};

/// The rule at a head's sizes.
pub(crate) struct LatticeCell {
    /// Variant, read and groups.
    rule: Lattice,
    /// Number of slots.
    key: usize,
    /// Width of a slot.
    value: usize,
    /// Whether what a token finds is another state than its gradient point.
    anchored: bool,
}

impl Recurrent<Own> for Lattice {
    type Cell = LatticeCell;

    fn cell(self, dims: &Dims) -> LatticeCell {
        LatticeCell { rule: self, key: dims.key, value: dims.value, anchored: dims.anchored }
    }

    /// Slots of another norm would be another function: the step assumes that rows start on the sphere.
    fn check_state(self, dims: &Dims, state: &UnitSlots<&[f32]>) -> Result<()> {
        // In 64 bits: the check itself must not round to 1.
        for (slot, row) in state.s.chunks_exact(dims.value).enumerate() {
            let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let fits = (norm - 1.0).abs() <= f64::from(SLOT_NORM_TOLERANCE);
            if !fits {
                let expected = "norm 1, to 1 %, of the row that starts there; divide rows by their norms";
                let index = slot * dims.value;
                return Err(Error::Value { what: Self::NAME, slot: "s", index, found: norm, expected });
            }
        }
        Ok(())
    }
}

/// What a token leaves for its backward: rows, no matrix.
struct Record<T> {
    /// `h [V]`.
    h: T,
    /// `b [K]`.
    b: T,
    /// `g [K]`.
    g: T,
    /// `n [K]`.
    n: T,
}

/// A token's gates.
struct Gates {
    /// Retention, not below its floor.
    a: f32,
    /// Whether it is above the floor: at the floor it has no gradient.
    free: bool,
    /// Step size.
    theta: f32,
}

/// What moves slots.
struct SlotMove<'a> {
    /// Slots before the token, `[K,V]`.
    found: Found<'a>,
    /// At the gradient point, `[K,V]`.
    point: &'a [f32],
    /// `[K]`.
    b: &'a [f32],
    /// `[V]`.
    h: &'a [f32],
    /// `θ g [K]`.
    weights: &'a [f32],
}

/// Gradients that a token's move leaves.
struct MoveGrads<'a> {
    /// `[K]`: that of `g`, written.
    dk: &'a mut [f32],
    /// `[V]`: that of `h`, added to.
    dh: &'a mut [f32],
}

impl LatticeCell {
    /// A record's parts, to be written by the forward.
    #[inline(always)]
    fn record_mut<'r>(&self, record: &'r mut [f32]) -> Record<&'r mut [f32]> {
        let (h, rest) = record.split_at_mut(self.value);
        let (b, rest) = rest.split_at_mut(self.key);
        let (g, n) = rest.split_at_mut(self.key);
        Record { h, b, g, n }
    }

    /// A record's parts.
    #[inline(always)]
    fn record_ref<'r>(&self, record: &'r [f32]) -> Record<&'r [f32]> {
        let (h, rest) = record.split_at(self.value);
        let (b, rest) = rest.split_at(self.key);
        let (g, n) = rest.split_at(self.key);
        Record { h, b, g, n }
    }

    /// The gates in the order `log_a`, `theta`.
    #[inline(always)]
    fn gates(gates: &[f32]) -> Gates {
        let a = gates[0].exp();
        Gates { a: a.max(RETENTION_FLOOR), free: a > RETENTION_FLOOR, theta: gates[1] }
    }

    /// Equations (60) and (61): the target `h [V]`, the slots' part of it `b [K]`, and their moves `g [K]`.
    #[inline(always)]
    fn target(&self, token: Token<'_>, point: &[f32], record: &mut Record<&mut [f32]>) {
        let Record { h, b, g, .. } = record;
        if self.rule.variant == Variant::Decode {
            read(h, token.k, point);
            h.iter_mut().zip(token.v).for_each(|(h, v)| *h = v - *h);
        } else {
            h.copy_from_slice(token.v);
        }
        b.fill(0.0);
        add_transposed(b, h, point);
        g.copy_from_slice(token.k);
        if self.rule.variant == Variant::Encode {
            axpy(g, -1.0, b);
        }
    }

    /// Equations (62)–(64) from targets on: sets the slots after the token `[K,V]`, their norms `[K]` and what it reads `[V]`.
    #[inline(always)]
    fn advance(&self, moved: SlotMove<'_>, q: &[f32], [new, n, out]: [&mut [f32]; 3]) {
        let SlotMove { found, point, b, h, weights } = moved;
        n.fill(0.0);
        SlotUpdate { found, weights, b, h, point, new, squares: n }.run();
        // The norms are complete only now: a second pass divides by them.
        n.iter_mut().for_each(|n| *n = n.sqrt());
        SlotNorm { new, n, q, out }.run();
        if self.rule.read == Read::Before {
            read(out, q, found.state);
        }
    }

    /// Equation (65) of a read after the write, and `s′_i·ds_i` of slots `new` and of their gradients: both added to `[K]`.
    #[inline(always)]
    fn read_vjp(&self, new: &[f32], ds: &mut [f32], q: &[f32], dout: &[f32], [dq, along]: [&mut [f32]; 2]) {
        match self.rule.read {
            Read::After => SlotReadBack { new, ds, q, dout, dq, along }.run(),
            Read::Before => SlotDots { new, ds, width: self.value, along }.run(),
        }
    }

    /// Equations (66)–(68): back through the slots' move and norm. Returns `dθ`.
    ///
    /// `ds` becomes the gradient of `S` but for what (69) adds. `slots` is workspace `[3,K]`, whose first row is that of
    /// [`Self::read_vjp`], the others 0.
    #[inline(always)]
    fn slots_vjp(
        &self,
        &Gates { a, theta, .. }: &Gates,
        states: TokenStates<'_>,
        Record { h, b, g, n }: &Record<&[f32]>,
        adjoint: &mut StateGrads<'_>,
        slots: &mut [f32],
        MoveGrads { dk, dh }: MoveGrads<'_>,
    ) -> f32 {
        let TokenStates { point, new, .. } = states;
        // Three rows of sums; the first has the part of each gradient along its slot, which the norm takes away.
        let (along, rest) = slots.split_at_mut(self.key);
        let (gain, back) = rest.split_at_mut(self.key);
        SlotGrads { ds: adjoint.state, new, point, h, b, n, along, gain, back }.run();
        // Then all that belongs to a slot, as scalars: no pass over `[K,V]`.
        let mut dtheta = 0.0;
        let u = along;
        for (((u, g), gain), (dk, back)) in u.iter_mut().zip(*g).zip(gain).zip(dk.iter_mut().zip(back.iter_mut())) {
            *u = theta * g;
            *dk = theta * *gain;
            dtheta += g * *gain;
            *back *= -*u;
            if self.rule.variant == Variant::Encode {
                *back -= *dk;
            }
        }
        // Without groups the point is the state before the token: one gradient for both.
        let dpoint = if self.merges_point() { &mut [][..] } else { &mut *adjoint.point };
        SlotPullback { a, ds: adjoint.state, dpoint, point, h, b, u, beta: back, dh }.run();
        dtheta
    }
}

/// Workspace for one token.
pub(crate) struct Scratch {
    /// Gradient of the target, `[V]`.
    dh: Vec<f32>,
    /// Three rows `[K]`: sums along the slots, and factors of them.
    slots: Vec<f32>,
}

heads!(LatticeCell);

impl Cell for LatticeCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch { dh: vec![0.0; self.value], slots: vec![0.0; 3 * self.key] }
    }

    /// `h [V]`, then `b`, `g` and `n` `[K]` each.
    fn record(&self) -> usize {
        self.value + 3 * self.key
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, point, new, record, scratch, out } = step;
        let Gates { a, theta, .. } = Self::gates(token.gates);
        let mut record = self.record_mut(record);
        self.target(token, point, &mut record);
        let Record { h, b, g, n } = record;
        // Each slot's step size: `θ` times how much the key calls for it.
        let weights = &mut scratch.slots[..self.key];
        weights.iter_mut().zip(&*g).for_each(|(weight, g)| *weight = theta * g);
        let moved =
            SlotMove { found: Found { decay: Decay { a, lost: 0.0 }, state: old, anchor: &[] }, point, b, h, weights };
        self.advance(moved, token.q, [new, n, out]);
    }

    #[inline(always)]
    fn backward(&self, step: StepBackward<'_, Scratch>) {
        let StepBackward { token, states, record, dout, mut adjoint, scratch, grads } = step;
        let gates = Self::gates(token.gates);
        let Scratch { dh, slots } = scratch;
        let after = self.rule.read == Read::After;
        // The read's gradients, of the slots that it saw.
        slots.fill(0.0);
        self.read_vjp(states.new, adjoint.state, token.q, dout, [grads.q, &mut slots[..self.key]]);
        dh.fill(0.0);
        let record = self.record_ref(record);
        let to = MoveGrads { dk: grads.k, dh };
        let dtheta = self.slots_vjp(&gates, states, &record, &mut adjoint, slots, to);
        // Only the ratio of `θ` to `a` matters, because the norm follows. Hence `dlog a = −θ dθ`.
        grads.gates[0] = if gates.free { -gates.theta * dtheta } else { 0.0 };
        grads.gates[1] = dtheta;
        axpy(grads.v, 1.0, dh);
        // The target was a prediction error: keys and slots were part of it, by (69).
        if self.rule.variant == Variant::Decode {
            scale(dh, -1.0);
            let d = if self.merges_point() { &mut *adjoint.state } else { adjoint.point };
            Rank1Update { d, factors: [(token.k, dh)], m: states.point, x: grads.k }.run();
        }
        if !after {
            Rank1Update { d: adjoint.state, factors: [(token.q, dout)], m: states.old, x: grads.q }.run();
        }
    }

    fn groups(&self) -> Option<&dyn GroupedForm<Scratch>> {
        self.rule.frozen.is_some().then_some(self)
    }

    fn merges_point(&self) -> bool {
        self.rule.frozen.is_none() && !self.anchored
    }

    fn scratch_bytes(&self) -> usize {
        let group = if self.rule.frozen.is_some() { self.group_elements() } else { 0 };
        4 * (self.value + 3 * self.key + group)
    }
}
