//! Frozen groups: targets of a chunk's tokens by products, slots token by token.
//!
//! All of (60) and (61) comes from the slots at the group's start: `H = V − K R` and `B = H Rᵀ` for `n` tokens at once.
//! A token's slots have a norm of their own, so they go one token after another: a pass that moves them, and one that norms and
//! reads them. Anchors are a part of the move.
//!
//! On the way back a token has two passes as well. What comes by `b` and by the prediction in `h` is left for the end:
//!
//! ```text
//! dH += dB R,  dR += dBᵀ H                      (68)
//! dK −= dH Rᵀ,  dR −= Kᵀ dH       Decode       (69)
//! ```

use super::{LatticeCell, Scratch, SlotMove, slots::SlotMoveBack};
use crate::{
    deep::found::Found,
    fused_gemv::Rank1Update,
    linear::CHUNK,
    product::{Mat, MatMut, product},
    recurrent::{Decay, GroupAnchor, GroupBackward, GroupForward, GroupedForm, TokenRows},
    rows::axpy,
};
use hecate_core::{Read, rules::Variant};

/// What the slots at the group's start make of a chunk of `n` tokens.
struct Taught<'a> {
    rows: TokenRows<'a>,
    /// Slots at the group's start, `[K,V]`.
    point: &'a [f32],
    /// Empty where slots forget to zero.
    anchor: &'a [f32],
    /// Targets `[n,V]`.
    h: Vec<f32>,
    /// `[n,K]` each.
    b: Vec<f32>,
    g: Vec<f32>,
    /// `θ g [n,K]`.
    weights: Vec<f32>,
    /// Retention, step size, and whether the first has a gradient of its own, `[n]`.
    gates: Vec<(Decay, f32, bool)>,
}

impl<'a> Taught<'a> {
    /// What is token `t`'s of an array of all tokens.
    fn row<'s>(&self, all: &'s [f32], t: usize) -> &'s [f32] {
        let width = all.len() / self.rows.tokens;
        &all[t * width..][..width]
    }

    /// The move of token `t` from these slots.
    fn of<'s>(&'s self, t: usize, state: &'s [f32]) -> SlotMove<'s> {
        let found = Found { decay: self.gates[t].0, state, anchor: self.anchor };
        let [b, h, weights] = [&self.b, &self.h, &self.weights].map(|all| self.row(all, t));
        SlotMove { found, point: self.point, b, h, weights }
    }

    /// The query of token `t`.
    fn query(&self, t: usize) -> &'a [f32] {
        self.row(self.rows.q, t)
    }
}

impl LatticeCell {
    /// 32-bit elements that a chunk takes beside a token's: states around tokens, and rows.
    pub(super) fn group_elements(&self) -> usize {
        (CHUNK + 2) * self.key * self.value + CHUNK * (3 * self.value + 7 * self.key + 4)
    }

    /// Equations (60) and (61) of a chunk's tokens.
    fn teach<'a>(&self, rows: TokenRows<'a>, point: &'a [f32], anchor: Option<GroupAnchor<'a>>) -> Taught<'a> {
        let (n, (key, value)) = (rows.tokens, (self.key, self.value));
        let (keys, slots) = (Mat::new(rows.k, n, key), Mat::new(point, key, value));
        // Targets are values, less what the slots say already.
        let (mut h, mut b) = (rows.v.to_vec(), vec![0.0; n * key]);
        if self.rule.variant == Variant::Decode {
            product(MatMut::new(&mut h, n, value), 1.0, -1.0, keys, slots);
        }
        // The part of each target along each slot.
        product(MatMut::new(&mut b, n, key), 0.0, 1.0, Mat::new(&h, n, value), slots.t());
        let mut g = rows.k.to_vec();
        if self.rule.variant == Variant::Encode {
            axpy(&mut g, -1.0, &b);
        }
        let gates = rows.gates.chunks_exact(2).enumerate().map(|(t, gates)| {
            let gates = Self::gates(gates);
            // What goes back to an anchor may be forgotten to the last, and has a gradient then too.
            match anchor {
                None => (Decay { a: gates.a, lost: 0.0 }, gates.theta, gates.free),
                Some(anchor) => (anchor.decays[t], gates.theta, true),
            }
        });
        let gates: Vec<_> = gates.collect();
        let weights = g.chunks_exact(key).zip(&gates).flat_map(|(g, (_, theta, _))| g.iter().map(move |g| theta * g));
        let (weights, anchor) = (weights.collect(), anchor.map_or(&[][..], |anchor| anchor.anchor));
        Taught { rows, point, anchor, h, b, g, weights, gates }
    }

    /// Forward once more from `start`: slots around tokens `[n + 1,K,V]`, and their norms `[n,K]`.
    fn replay(&self, taught: &Taught<'_>, start: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (n, size) = (taught.rows.tokens, start.len());
        let (mut states, mut norms) = (vec![0.0; (n + 1) * size], vec![0.0; n * self.key]);
        states[..size].copy_from_slice(start);
        // What tokens read is known, and written over.
        let mut out = vec![0.0; self.value];
        for (t, n) in norms.chunks_exact_mut(self.key).enumerate() {
            let (old, new) = states[t * size..].split_at_mut(size);
            self.advance(taught.of(t, old), taught.query(t), [&mut new[..size], n, &mut out]);
        }
        (states, norms)
    }

    /// A token's gradients of gates from `gain [K]`, `U_i·dX_i`, which becomes that of `g`, and `da`.
    fn gates_vjp(&self, taught: &Taught<'_>, t: usize, gain: &mut [f32], da: f32, dgates: &mut [f32]) {
        let (Decay { a, .. }, theta, free) = taught.gates[t];
        let mut dtheta = 0.0;
        for (gain, g) in gain.iter_mut().zip(&taught.g[t * self.key..]) {
            dtheta += g * *gain;
            *gain *= theta;
        }
        // Without an anchor only the ratio of `θ` to `a` matters.
        dgates[0] = match (free, taught.anchor.is_empty()) {
            (false, _) => 0.0,
            (true, true) => -theta * dtheta,
            (true, false) => a * da,
        };
        dgates[1] = dtheta;
    }

    /// What is left for the end, from `dh [n,V]` without its part by `b`, and `db [n,K]`.
    fn targets_vjp(&self, taught: &Taught<'_>, dh: &mut [f32], db: &[f32], dk: &mut [f32], dpoint: &mut [f32]) {
        let (n, (key, value)) = (taught.rows.tokens, (self.key, self.value));
        let (slots, db) = (Mat::new(taught.point, key, value), Mat::new(db, n, key));
        // `b` is a product of targets and slots, so its gradient goes to both.
        product(MatMut::new(dh, n, value), 1.0, 1.0, db, slots);
        product(MatMut::new(dpoint, key, value), 1.0, 1.0, db.t(), Mat::new(&taught.h, n, value));
        if self.rule.variant == Variant::Decode {
            // The prediction has a minus, and is made of keys and slots.
            let (keys, dh) = (Mat::new(taught.rows.k, n, key), Mat::new(dh, n, value));
            product(MatMut::new(dk, n, key), 1.0, -1.0, dh, slots.t());
            product(MatMut::new(dpoint, key, value), 1.0, -1.0, keys.t(), dh);
        }
    }
}

impl GroupedForm<Scratch> for LatticeCell {
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, old: state, new: end, point, anchor, out, .. } = chunk;
        let taught = self.teach(rows, point, anchor);
        let (mut old, mut new, mut n) = (state.to_vec(), vec![0.0; state.len()], vec![0.0; self.key]);
        // Two states change places from token to token.
        for (t, out) in out.chunks_exact_mut(self.value).enumerate() {
            self.advance(taught.of(t, &old), taught.query(t), [&mut new, &mut n, out]);
            std::mem::swap(&mut old, &mut new);
        }
        end.copy_from_slice(&old);
    }

    fn backward(&self, chunk: GroupBackward<'_, Scratch>) {
        let GroupBackward { rows, scratch, start, point, anchor, dout, adjoint, danchor, grads, .. } = chunk;
        let (taught, (key, value), ds) = (self.teach(rows, point, anchor), (self.key, self.value), adjoint.state);
        let (states, norms) = self.replay(&taught, start);
        // Back through reads and moves; targets go back for all tokens at once.
        let (mut dh, mut db) = (vec![0.0; rows.tokens * value], vec![0.0; rows.tokens * key]);
        for t in (0..rows.tokens).rev() {
            let [old, new] = [t, t + 1].map(|t| &states[t * start.len()..][..start.len()]);
            let (row, width) = (t * key..(t + 1) * key, t * value..(t + 1) * value);
            let (q, dout, dq) = (taught.query(t), &dout[width.clone()], &mut grads.q[row.clone()]);
            scratch.slots.fill(0.0);
            let (along, rest) = scratch.slots.split_at_mut(key);
            let (gain, back) = rest.split_at_mut(key);
            self.read_vjp(new, ds, q, dout, [&mut *dq, &mut *along]);
            let (SlotMove { found, point, b, h, weights: u }, n) = (taught.of(t, old), &norms[row.clone()]);
            let (dpoint, danchor, dh) = (&mut *adjoint.point, &mut *danchor, &mut dh[width]);
            let da = SlotMoveBack { found, new, point, h, b, u, n, along, ds, dpoint, danchor, dh, gain, back }.run();
            self.gates_vjp(&taught, t, gain, da, &mut grads.gates[2 * t..][..2]);
            let db = &mut db[row.clone()];
            // (67) and (68): `db = −dU·r`, with `dU = u dX`.
            db.iter_mut().zip(u.iter().zip(&*back)).for_each(|(db, (u, back))| *db = -u * back);
            if self.rule.variant == Variant::Encode {
                axpy(db, -1.0, gain);
            }
            axpy(&mut grads.k[row], 1.0, gain);
            // A read before the write saw the slots as they were.
            if self.rule.read == Read::Before {
                Rank1Update { d: ds, factors: [(q, dout)], m: old, x: dq }.run();
            }
        }
        self.targets_vjp(&taught, &mut dh, &db, grads.k, adjoint.point);
        axpy(grads.v, 1.0, &dh);
    }
}
