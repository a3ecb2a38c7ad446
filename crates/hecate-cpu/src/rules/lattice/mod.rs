//! Slots of unit norm: equations (60)–(69).

mod slots;

use crate::{
    recurrent::{Adjoint, Cell, Recurrent, States, Token, TokenGrads, cells},
    rows::{axpy, scale},
    sweep::{Outer, add_transposed, read},
};
use hecate_core::{
    Dims, Error, Read, Result, Rule,
    rules::{Lattice, RETENTION_FLOOR, UnitSlots, Variant},
};
use slots::{Across, Along, Spread, Tangent};

cells!(Lattice);

/// How far the norm of an initial slot may be from 1: more than rounding to 16 bits costs.
const NORM_TOLERANCE: f32 = 0.01;

/// The rule at a head's sizes.
pub(crate) struct LatticeCell {
    rule: Lattice,
    /// Number of slots.
    key: usize,
    /// Width of a slot.
    value: usize,
}

impl Recurrent for Lattice {
    type Cell = LatticeCell;

    fn cell(self, dims: &Dims) -> LatticeCell {
        LatticeCell { rule: self, key: dims.key, value: dims.value }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }

    fn check_state(self, dims: &Dims, state: &UnitSlots<&[f32]>) -> Result<()> {
        for (slot, row) in state.s.chunks_exact(dims.value).enumerate() {
            let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let fits = (norm - 1.0).abs() <= f64::from(NORM_TOLERANCE);
            if !fits {
                let expected = "norm 1, to 1 %, of the row that starts there; divide rows by their norms";
                let index = slot * dims.value;
                return Err(Error::Value { what: Self::NAME, slot: "s", index, found: norm, expected });
            }
        }
        Ok(())
    }
}

/// What a token leaves for its backward.
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

impl LatticeCell {
    #[inline(always)]
    fn record_mut<'r>(&self, record: &'r mut [f32]) -> Record<&'r mut [f32]> {
        let (h, rest) = record.split_at_mut(self.value);
        let (b, rest) = rest.split_at_mut(self.key);
        let (g, n) = rest.split_at_mut(self.key);
        Record { h, b, g, n }
    }

    #[inline(always)]
    fn record_ref<'r>(&self, record: &'r [f32]) -> Record<&'r [f32]> {
        let (h, rest) = record.split_at(self.value);
        let (b, rest) = rest.split_at(self.key);
        let (g, n) = rest.split_at(self.key);
        Record { h, b, g, n }
    }

    /// `a` above its floor, whether it is above, and `θ`.
    #[inline(always)]
    fn gates(gates: &[f32]) -> (f32, bool, f32) {
        let a = gates[0].exp();
        (a.max(RETENTION_FLOOR), a > RETENTION_FLOOR, gates[1])
    }

    /// (60), (61).
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

    /// (66)–(68): `ds` becomes the gradient of `S` but for what (69) adds, `dk` that of `g`, and `dh` is added to. Returns
    /// `dθ`.
    #[inline(always)]
    fn turn_slots(
        &self,
        (a, theta): (f32, f32),
        states: States<'_>,
        Record { h, b, g, n }: &Record<&[f32]>,
        adjoint: &mut Adjoint<'_>,
        slots: &mut [f32],
        (dk, dh): (&mut [f32], &mut [f32]),
    ) -> f32 {
        let States { point, new, .. } = states;
        slots.fill(0.0);
        let (along, rest) = slots.split_at_mut(self.key);
        let (gain, back) = rest.split_at_mut(self.key);
        Along { new, ds: adjoint.state, width: self.value, along }.run();
        Tangent { ds: adjoint.state, new, point, h, b, n, along, gain, back }.run();
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
        let dpoint = if self.merges() { &mut [][..] } else { &mut *adjoint.point };
        Spread { a, ds: adjoint.state, dpoint, point, h, b, u, beta: back, dh }.run();
        dtheta
    }
}

/// Room for one token.
pub(crate) struct Scratch {
    /// `[V]`.
    dh: Vec<f32>,
    /// `[3,K]`.
    slots: Vec<f32>,
}

impl Cell for LatticeCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch { dh: vec![0.0; self.value], slots: vec![0.0; 3 * self.key] }
    }

    fn record(&self) -> usize {
        self.value + 3 * self.key
    }

    #[inline(always)]
    fn forward(
        &self,
        token: Token<'_>,
        old: &[f32],
        point: &[f32],
        new: &mut [f32],
        record: &mut [f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let (a, _, theta) = Self::gates(token.gates);
        let mut record = self.record_mut(record);
        self.target(token, point, &mut record);
        let Record { h, b, g, n } = record;
        let weights = &mut scratch.slots[..self.key];
        weights.iter_mut().zip(&*g).for_each(|(weight, g)| *weight = theta * g);
        n.fill(0.0);
        Across { a, weights, b, h, old, point, new, squares: n }.run();
        n.iter_mut().for_each(|n| *n = n.sqrt());
        for (new, n) in new.chunks_exact_mut(self.value).zip(n) {
            scale(new, n.recip());
        }
        read(out, token.q, if self.rule.read == Read::After { new } else { old });
    }

    #[inline(always)]
    fn backward(
        &self,
        token: Token<'_>,
        states: States<'_>,
        record: &[f32],
        dout: &[f32],
        mut adjoint: Adjoint<'_>,
        scratch: &mut Scratch,
        grads: TokenGrads<'_>,
    ) {
        let (a, free, theta) = Self::gates(token.gates);
        let Scratch { dh, slots } = scratch;
        let after = self.rule.read == Read::After;
        if after {
            Outer { d: adjoint.state, factors: [(token.q, dout)], m: states.new, x: grads.q }.run();
        }
        dh.fill(0.0);
        let record = self.record_ref(record);
        let dtheta = self.turn_slots((a, theta), states, &record, &mut adjoint, slots, (grads.k, dh));
        grads.gates[0] = if free { -theta * dtheta } else { 0.0 };
        grads.gates[1] = dtheta;
        axpy(grads.v, 1.0, dh);
        if self.rule.variant == Variant::Decode {
            scale(dh, -1.0);
            let d = if self.merges() { &mut *adjoint.state } else { adjoint.point };
            Outer { d, factors: [(token.k, dh)], m: states.point, x: grads.k }.run();
        }
        if !after {
            Outer { d: adjoint.state, factors: [(token.q, dout)], m: states.old, x: grads.q }.run();
        }
    }

    fn merges(&self) -> bool {
        self.rule.frozen.is_none()
    }

    fn scratch_bytes(&self) -> usize {
        4 * (self.value + 3 * self.key)
    }
}
