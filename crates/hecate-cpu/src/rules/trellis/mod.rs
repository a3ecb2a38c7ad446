//! Slots for keys and for values that learn to give the same code: equations (70)–(79).
//!
//! The state is two memories, `S_K [m,K]` and `S_V [m,V]`, with `m` slots each.
//! Both learn to give the token's code: `φ(S_K kᵀ)` and `φ(S_V vᵀ)` are moved towards it.
//! A query reads `f = φ(S_K qᵀ)` from the first memory, and `f S_V` from the second.
//! The read always sees the memories after the write.
//! Frozen groups go through matrix products ([`groups`]).

mod groups;
mod phi;

use crate::{
    fused_gemv::{FactorGrads, FusedUpdate, Momentum, Rank1Update, Rank1VecMat, UpdateBackward, add_transposed},
    linear::chunk_backward,
    recurrent::{Cell, GroupedForm, Recurrent, StepBackward, StepForward, heads},
    rows::{axpy, dot, scale},
    simd::ColumnKernel as _,
};
use hecate_core::{Dims, families::Own, rules::Trellis};
use phi::{PhiPoint, PhiWorkspace, ROWS, SlotPhi};

/// The rule at a head's sizes.
pub(crate) struct TrellisCell {
    /// The function of the slots.
    phi: SlotPhi,
    /// `m`.
    slots: usize,
    /// `K`.
    key: usize,
    /// `V`.
    value: usize,
    /// Whether the gradient point is another state than what a token finds: groups share one, or there is an anchor.
    apart: bool,
    /// Whether groups share a gradient point.
    frozen: bool,
}

impl Recurrent<Own> for Trellis {
    type Cell = TrellisCell;

    fn cell(self, dims: &Dims) -> TrellisCell {
        let slots = self.slots as usize;
        TrellisCell {
            phi: SlotPhi::new(self.phi, slots),
            slots,
            key: dims.key,
            value: dims.value,
            apart: self.frozen.is_some() || dims.anchored,
            frozen: self.frozen.is_some(),
        }
    }
}

/// Workspace for one token: rows `[m]`, unless it says otherwise.
pub(crate) struct Scratch {
    /// `φ` where it was last evaluated.
    at: PhiPoint,
    /// Of `φ`'s derivatives.
    workspace: PhiWorkspace,
    /// Inner gradient at the slots.
    u: Vec<f32>,
    /// `dS xᵀ`, then `dz`.
    dz: Vec<f32>,
    /// `[K]` or `[V]`: `u dS`.
    du: Vec<f32>,
    /// As long as the longest row or column: the query of a pass that reads nothing.
    zeros: Vec<f32>,
    /// What such a pass writes as its read; never used.
    unread: Vec<f32>,
    /// Of both memories in groups; empty otherwise.
    layers: [chunk_backward::Workspace; 2],
}

/// A token's gates.
struct Gates<'a> {
    /// Retention.
    a: f32,
    /// Step size.
    theta: f32,
    /// The code that the slots shall give, `[m]`.
    code: &'a [f32],
}

impl<'a> Gates<'a> {
    /// The gates in the order `log_a`, `theta`, `code`.
    #[inline(always)]
    fn new(gates: &'a [f32]) -> Self {
        Self { a: gates[0].exp(), theta: gates[1], code: &gates[2..] }
    }
}

/// One memory before a token, at its gradient point, and the key or value that goes through it.
struct SlotMemory<'a> {
    /// `[m, width]`.
    old: &'a [f32],
    /// `[m, width]`.
    point: &'a [f32],
    /// `[width]`.
    x: &'a [f32],
}

/// Gradients of one memory's write.
struct WriteGrads<'a> {
    /// `[m, width]`: of the memory after the token when given, before it when handed back.
    dstate: &'a mut [f32],
    /// `[m, width]`: of the memory at the gradient point, added to where that is another one.
    dpoint: &'a mut [f32],
    /// `[width]`: of the key or value, added to.
    dx: &'a mut [f32],
    /// `[m]`: of the code, added to.
    dcode: &'a mut [f32],
}

impl TrellisCell {
    /// Elements of `S_K`.
    fn keys(&self) -> usize {
        self.slots * self.key
    }

    /// The longest row or column of a memory.
    fn longest(&self) -> usize {
        self.slots.max(self.key).max(self.value)
    }

    /// `z = R xᵀ [m]` at the gradient point, and the inner gradient `u [m]` of it.
    #[inline(always)]
    fn inner_grad(&self, gates: &Gates<'_>, memory: &SlotMemory<'_>, z: &mut [f32], scratch: &mut Scratch) {
        let Scratch { at, workspace, u, .. } = scratch;
        z.fill(0.0);
        add_transposed(z, memory.x, memory.point);
        self.phi.evaluate(z, at);
        self.phi.inner_grad(at, gates.code, u, workspace);
    }

    /// Equations (78), (79) of one memory. Returns its parts of `da` and `dθ`; `z [m]` is what the forward left.
    #[inline(always)]
    fn write_vjp(
        &self,
        gates: &Gates<'_>,
        memory: &SlotMemory<'_>,
        z: &[f32],
        grads: WriteGrads<'_>,
        scratch: &mut Scratch,
    ) -> (f32, f32) {
        let WriteGrads { dstate, dpoint, dx, dcode } = grads;
        let Scratch { at, workspace, u, dz, du, zeros, unread, .. } = scratch;
        self.phi.evaluate(z, at);
        self.phi.inner_grad(at, gates.code, u, workspace);
        let du = &mut du[..memory.x.len()];
        let call = UpdateBackward {
            a: gates.a,
            momentum: Momentum::heavy_ball(0.0),
            dm: &mut *dstate,
            ds: &mut [],
            old: [memory.old, &[]],
            seen: memory.old,
            q: [zeros, zeros],
            dout: zeros,
            dq: unread,
            x: u,
            y: memory.x,
            dx: dz,
            dy: du,
        };
        let FactorGrads { a: da, .. } = call.run::<false>(0.0);
        // The write is `−θ uᵀ x`: its gradient goes to the step size, to `u`, and to the row side.
        axpy(dx, -gates.theta, du);
        let dtheta = -dot(u, dz);
        scale(dz, -gates.theta);
        self.phi.second_derivative(at, gates.code, dz, dcode, workspace);
        let d = if self.apart { dpoint } else { dstate };
        Rank1VecMat { d, x: dz, y: memory.x, m: memory.point, z: dx }.run();
        (da, dtheta)
    }
}

heads!(TrellisCell);

impl Cell for TrellisCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let (row, long) = (|| vec![0.0; self.slots], || vec![0.0; self.longest()]);
        let (at, workspace) = (PhiPoint::new(self.slots), PhiWorkspace::new(self.slots));
        let layers = Default::default();
        Scratch { at, workspace, u: row(), dz: row(), du: long(), zeros: long(), unread: long(), layers }
    }

    /// `R_K kᵀ`, `S_K qᵀ`, `R_V vᵀ`.
    fn record(&self) -> usize {
        3 * self.slots
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, point, new, record, scratch, out } = step;
        let gates = Gates::new(token.gates);
        let ((old_k, old_v), (point_k, point_v)) = (old.split_at(self.keys()), point.split_at(self.keys()));
        let (new_k, new_v) = new.split_at_mut(self.keys());
        let (z_k, rest) = record.split_at_mut(self.slots);
        let (z_q, z_v) = rest.split_at_mut(self.slots);
        // Descent on the slots' error.
        let (a, step, momentum) = (gates.a, -gates.theta, Momentum::heavy_ball(0.0));
        // The key's memory first: what it reads from is the query of the value's memory.
        self.inner_grad(&gates, &SlotMemory { old: old_k, point: point_k, x: token.k }, z_k, scratch);
        let Scratch { u, zeros, unread, .. } = scratch;
        let (old, q, unread) = ([old_k, &[]], &*zeros, &mut unread[..self.key]);
        FusedUpdate { a, momentum, step, x: u, y: token.k, old, m: new_k, s: &mut [], q, before: false, out: unread }
            .run();
        self.inner_grad(&gates, &SlotMemory { old: old_v, point: point_v, x: token.v }, z_v, scratch);
        // The query goes through the new key memory and `φ`.
        z_q.fill(0.0);
        add_transposed(z_q, token.q, new_k);
        let Scratch { u, at, .. } = scratch;
        self.phi.evaluate(z_q, at);
        let (old, q) = ([old_v, &[]], &*at.f);
        FusedUpdate { a, momentum, step, x: u, y: token.v, old, m: new_v, s: &mut [], q, before: false, out }.run();
    }

    #[inline(always)]
    fn backward(&self, step: StepBackward<'_, Scratch>) {
        let StepBackward { token, states, record, dout, adjoint, scratch, grads } = step;
        let (gates, keys) = (Gates::new(token.gates), self.keys());
        let ((old_k, old_v), (point_k, point_v)) = (states.old.split_at(keys), states.point.split_at(keys));
        let (new_k, new_v) = states.new.split_at(keys);
        let ((dk, dv), (dpoint_k, dpoint_v)) = (adjoint.state.split_at_mut(keys), adjoint.point.split_at_mut(keys));
        let (z_k, rest) = record.split_at(self.slots);
        let (z_q, z_v) = rest.split_at(self.slots);
        let Scratch { at, workspace, dz, .. } = scratch;
        self.phi.evaluate(z_q, at);
        dz.fill(0.0);
        Rank1Update { d: dv, factors: [(&at.f, dout)], m: new_v, x: dz }.run();
        self.phi.pullback(at, dz, workspace);
        Rank1VecMat { d: &mut *dk, x: dz, y: token.q, m: new_k, z: grads.q }.run();
        let (head, dcode) = grads.gates.split_at_mut(2);
        // Both memories go back alike, each with its own inner gradient.
        let value = SlotMemory { old: old_v, point: point_v, x: token.v };
        let to = WriteGrads { dstate: dv, dpoint: dpoint_v, dx: grads.v, dcode: &mut *dcode };
        let of_value = self.write_vjp(&gates, &value, z_v, to, scratch);
        let key = SlotMemory { old: old_k, point: point_k, x: token.k };
        let to = WriteGrads { dstate: dk, dpoint: dpoint_k, dx: grads.k, dcode };
        let of_key = self.write_vjp(&gates, &key, z_k, to, scratch);
        // Both memories share the gates.
        head[0] = gates.a * (of_value.0 + of_key.0);
        head[1] = of_value.1 + of_key.1;
    }

    fn merges_point(&self) -> bool {
        !self.apart
    }

    /// Groups that share a point, whatever `φ` is, to zero or to an anchor.
    fn groups(&self) -> Option<&dyn GroupedForm<Scratch>> {
        self.frozen.then_some(self as &dyn GroupedForm<Scratch>)
    }

    fn scratch_bytes(&self) -> usize {
        let group = if self.frozen { self.group_elements() } else { 0 };
        4 * ((ROWS + 2) * self.slots + 3 * self.longest() + group)
    }
}
