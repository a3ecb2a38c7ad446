//! Slots for keys and for values, taught to give the same code: equations (70)–(79).

mod phi;

use crate::{
    recurrent::{Adjoint, Cell, Recurrent, States, Token, TokenGrads, cells},
    rows::{axpy, dot, scale},
    sweep::{Inner, Outer, Unwrite, Write, add_transposed},
};
use hecate_core::{Dims, rules::Trellis};
use phi::{Function, Place, ROWS, Room};

cells!(Trellis);

/// The rule at a head's sizes.
pub(crate) struct TrellisCell {
    phi: Function,
    slots: usize,
    key: usize,
    value: usize,
    frozen: bool,
}

impl Recurrent for Trellis {
    type Cell = TrellisCell;

    fn cell(self, dims: &Dims) -> TrellisCell {
        let slots = self.slots as usize;
        TrellisCell {
            phi: Function::new(self.phi, slots),
            slots,
            key: dims.key,
            value: dims.value,
            frozen: self.frozen.is_some(),
        }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}

/// One token's intermediate results: rows `[m]`.
pub(crate) struct Scratch {
    place: Place,
    room: Room,
    u: Vec<f32>,
    /// `dS xᵀ`, then `dz`.
    dz: Vec<f32>,
    /// `[K]` or `[V]`: `u dS`.
    du: Vec<f32>,
    /// As long as the longest row or column: for what is not read, and what it would have given.
    zeros: Vec<f32>,
    unread: Vec<f32>,
}

/// A token's gates.
struct Gates<'a> {
    a: f32,
    theta: f32,
    code: &'a [f32],
}

impl<'a> Gates<'a> {
    #[inline(always)]
    fn new(gates: &'a [f32]) -> Self {
        Self { a: gates[0].exp(), theta: gates[1], code: &gates[2..] }
    }
}

/// One memory before a token, at its gradient point, and what goes through it.
struct Pass<'a> {
    /// `[m, width]`.
    old: &'a [f32],
    /// `[m, width]`.
    point: &'a [f32],
    /// `[width]`.
    x: &'a [f32],
}

impl TrellisCell {
    /// Numbers of `S_K`.
    fn keys(&self) -> usize {
        self.slots * self.key
    }

    /// The longest row or column of a memory.
    fn longest(&self) -> usize {
        self.slots.max(self.key).max(self.value)
    }

    /// `z = R xᵀ`, and `u` of it.
    #[inline(always)]
    fn learn(&self, gates: &Gates<'_>, pass: &Pass<'_>, z: &mut [f32], scratch: &mut Scratch) {
        let Scratch { place, room, u, .. } = scratch;
        z.fill(0.0);
        add_transposed(z, pass.x, pass.point);
        self.phi.at(z, place);
        self.phi.gradient(place, gates.code, u, room);
    }

    /// (78), (79) of one memory: `dstate` becomes the gradient of the memory before the token. Returns its parts of `da`
    /// and `dθ`.
    #[inline(always)]
    fn unwrite(
        &self,
        gates: &Gates<'_>,
        pass: &Pass<'_>,
        z: &[f32],
        (dstate, dpoint): (&mut [f32], &mut [f32]),
        (dx, dcode): (&mut [f32], &mut [f32]),
        scratch: &mut Scratch,
    ) -> (f32, f32) {
        let Scratch { place, room, u, dz, du, zeros, unread } = scratch;
        self.phi.at(z, place);
        self.phi.gradient(place, gates.code, u, room);
        let du = &mut du[..pass.x.len()];
        let call = Unwrite {
            a: gates.a,
            eta: 0.0,
            dm: &mut *dstate,
            ds: &mut [],
            old: [pass.old, &[]],
            seen: pass.old,
            q: [zeros, zeros],
            dout: zeros,
            dq: unread,
            x: u,
            y: pass.x,
            dx: dz,
            dy: du,
        };
        let [da, _] = call.run();
        axpy(dx, -gates.theta, du);
        let dtheta = -dot(u, dz);
        scale(dz, -gates.theta);
        self.phi.bend(place, gates.code, dz, dcode, room);
        let d = if self.frozen { dpoint } else { dstate };
        Inner { d, x: dz, y: pass.x, m: pass.point, z: dx }.run();
        (da, dtheta)
    }
}

impl Cell for TrellisCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let (row, long) = (|| vec![0.0; self.slots], || vec![0.0; self.longest()]);
        let (place, room) = (Place::new(self.slots), Room::new(self.slots));
        Scratch { place, room, u: row(), dz: row(), du: long(), zeros: long(), unread: long() }
    }

    /// `R_K kᵀ`, `S_K qᵀ`, `R_V vᵀ`.
    fn record(&self) -> usize {
        3 * self.slots
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
        let gates = Gates::new(token.gates);
        let ((old_k, old_v), (point_k, point_v)) = (old.split_at(self.keys()), point.split_at(self.keys()));
        let (new_k, new_v) = new.split_at_mut(self.keys());
        let (z_k, rest) = record.split_at_mut(self.slots);
        let (z_q, z_v) = rest.split_at_mut(self.slots);
        let (a, step) = (gates.a, -gates.theta);
        self.learn(&gates, &Pass { old: old_k, point: point_k, x: token.k }, z_k, scratch);
        let Scratch { u, zeros, unread, .. } = scratch;
        let (old, q, unread) = ([old_k, &[]], &*zeros, &mut unread[..self.key]);
        Write { a, eta: 0.0, step, x: u, y: token.k, old, m: new_k, s: &mut [], q, before: false, out: unread }.run();
        self.learn(&gates, &Pass { old: old_v, point: point_v, x: token.v }, z_v, scratch);
        z_q.fill(0.0);
        add_transposed(z_q, token.q, new_k);
        let Scratch { u, place, .. } = scratch;
        self.phi.at(z_q, place);
        let (old, q) = ([old_v, &[]], &*place.f);
        Write { a, eta: 0.0, step, x: u, y: token.v, old, m: new_v, s: &mut [], q, before: false, out }.run();
    }

    #[inline(always)]
    fn backward(
        &self,
        token: Token<'_>,
        states: States<'_>,
        record: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        scratch: &mut Scratch,
        grads: TokenGrads<'_>,
    ) {
        let (gates, keys) = (Gates::new(token.gates), self.keys());
        let ((old_k, old_v), (point_k, point_v)) = (states.old.split_at(keys), states.point.split_at(keys));
        let (new_k, new_v) = states.new.split_at(keys);
        let ((dk, dv), (dpoint_k, dpoint_v)) = (adjoint.state.split_at_mut(keys), adjoint.point.split_at_mut(keys));
        let (z_k, rest) = record.split_at(self.slots);
        let (z_q, z_v) = rest.split_at(self.slots);
        let Scratch { place, room, dz, .. } = scratch;
        self.phi.at(z_q, place);
        dz.fill(0.0);
        Outer { d: dv, factors: [(&place.f, dout)], m: new_v, x: dz }.run();
        self.phi.pull(place, dz, room);
        Inner { d: &mut *dk, x: dz, y: token.q, m: new_k, z: grads.q }.run();
        let (head, dcode) = grads.gates.split_at_mut(2);
        let value = Pass { old: old_v, point: point_v, x: token.v };
        let of_value = self.unwrite(&gates, &value, z_v, (dv, dpoint_v), (grads.v, dcode), scratch);
        let key = Pass { old: old_k, point: point_k, x: token.k };
        let of_key = self.unwrite(&gates, &key, z_k, (dk, dpoint_k), (grads.k, dcode), scratch);
        head[0] = gates.a * (of_value.0 + of_key.0);
        head[1] = of_value.1 + of_key.1;
    }

    fn merges(&self) -> bool {
        !self.frozen
    }

    fn scratch_bytes(&self) -> usize {
        4 * ((ROWS + 2) * self.slots + 3 * self.longest())
    }
}
