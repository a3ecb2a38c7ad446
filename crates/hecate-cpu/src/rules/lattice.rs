//! Slots of unit norm: equations (60)–(69).

use crate::{
    recurrent::{Adjoint, Cell, Recurrent, States, Token, TokenGrads, cells},
    rows::{add_outer, add_read, add_transposed, axpy, dot, read, scale},
};
use hecate_core::{
    Dims, Error, Read, Result, Rule,
    rules::{Lattice, RETENTION_FLOOR, UnitSlots, Variant},
};

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
        h.fill(0.0);
        if self.rule.variant == Variant::Decode {
            add_read(h, token.k, point);
            scale(h, -1.0);
        }
        axpy(h, 1.0, token.v);
        b.fill(0.0);
        add_transposed(b, h, point);
        g.copy_from_slice(token.k);
        if self.rule.variant == Variant::Encode {
            axpy(g, -1.0, b);
        }
    }

    /// (66)–(68), slot after slot: `ds` becomes the gradient of `S` but for what (69) adds, `dk` that of `g`, and `dh`
    /// is added to. Returns `dθ`.
    #[inline(always)]
    fn turn_slots(
        &self,
        (a, theta): (f32, f32),
        states: States<'_>,
        Record { h, b, g, n }: &Record<&[f32]>,
        adjoint: &mut Adjoint<'_>,
        across: &mut [f32],
        (dk, dh): (&mut [f32], &mut [f32]),
    ) -> f32 {
        let width = self.value;
        let mut dtheta = 0.0;
        for i in 0..self.key {
            let row = i * width..(i + 1) * width;
            let (r, new) = (&states.point[row.clone()], &states.new[row.clone()]);
            let (dx, dr) = (&mut adjoint.state[row.clone()], &mut adjoint.point[row]);
            let along = dot(new, dx);
            axpy(dx, -along, new);
            scale(dx, n[i].recip());
            across.copy_from_slice(h);
            axpy(across, -b[i], r);
            let gain = dot(across, dx);
            let du = theta * g[i];
            dk[i] = theta * gain;
            dtheta += g[i] * gain;
            let mut db = -du * dot(dx, r);
            if self.rule.variant == Variant::Encode {
                db -= dk[i];
            }
            axpy(dh, du, dx);
            axpy(dh, db, r);
            axpy(dr, db, h);
            axpy(dr, -b[i] * du, dx);
            scale(dx, a);
        }
        dtheta
    }
}

impl Cell for LatticeCell {
    /// Room for `U_i` and `dh`, `[2,V]`.
    type Scratch = Vec<f32>;

    fn scratch(&self) -> Vec<f32> {
        vec![0.0; 2 * self.value]
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
        _: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (a, _, theta) = Self::gates(token.gates);
        let mut record = self.record_mut(record);
        self.target(token, point, &mut record);
        let Record { h, b, g, n } = record;
        let width = self.value;
        for (i, new) in new.chunks_exact_mut(width).enumerate() {
            let row = i * width..(i + 1) * width;
            let written = theta * g[i];
            for (((new, s), r), h) in new.iter_mut().zip(&old[row.clone()]).zip(&point[row]).zip(&*h) {
                *new = a * s + written * (h - b[i] * r);
            }
            n[i] = dot(new, new).sqrt();
            scale(new, n[i].recip());
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
        scratch: &mut Vec<f32>,
        grads: TokenGrads<'_>,
    ) {
        let (a, free, theta) = Self::gates(token.gates);
        let (across, dh) = scratch.split_at_mut(self.value);
        let after = self.rule.read == Read::After;
        if after {
            add_outer(adjoint.state, 1.0, token.q, dout);
            add_transposed(grads.q, dout, states.new);
        }
        dh.fill(0.0);
        let record = self.record_ref(record);
        let dtheta = self.turn_slots((a, theta), states, &record, &mut adjoint, across, (grads.k, dh));
        grads.gates[0] = if free { -theta * dtheta } else { 0.0 };
        grads.gates[1] = dtheta;
        axpy(grads.v, 1.0, dh);
        if self.rule.variant == Variant::Decode {
            scale(dh, -1.0);
            add_transposed(grads.k, dh, states.point);
            add_outer(adjoint.point, 1.0, token.k, dh);
        }
        if !after {
            add_outer(adjoint.state, 1.0, token.q, dout);
            add_transposed(grads.q, dout, states.old);
        }
    }

    fn scratch_bytes(&self) -> usize {
        2 * 4 * self.value
    }
}
