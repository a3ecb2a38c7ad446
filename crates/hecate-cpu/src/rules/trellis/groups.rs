//! Frozen groups as matrix products: two calls of the linear engine's chunk form, one for each memory.
//!
//! `u` of all tokens comes from the memories at the group's start, `R_K` and `R_V`. Both are then linear recurrences:
//!
//! - `S_Kᵀ [K,m]` has keys `k` and values `−θ u_K`, and is read with `q`;
//! - `S_V [m,V]` has keys `−θ u_V` and values `v`, and is read with `φ` of what the first read.
//!
//! The backward goes through both calls in reverse, then back through the inner gradients.
//!
//! What is left is `φ` of rows `[m]`, three a token: of the key's and the value's answers, and of the query's.
//! Both passes of the chunk have the same order of work:
//!
//! - answers `K R_Kᵀ` and `V R_Vᵀ [n,m]`, then `u` of them by rows;
//! - the keys' memory read with `q`, then `φ` by rows, then the values' memory read with that;
//! - states after the chunk: writes with what later tokens leave of them, a product for each memory.
//!
//! An anchor is a share of reads and of the state after the chunk, as that of networks ([`AnchorShare`]).

use super::{Scratch, TrellisCell};
use crate::{
    deep::anchored::{AnchorRead, AnchorReadGrads, AnchorShare},
    linear::{
        CHUNK, ChunkView, Memory, chunk,
        layer::{self, LayerGrads, rows_of},
    },
    product::{Mat, MatMut, product},
    recurrent::{GroupAnchor, GroupBackward, GroupForward, GroupedForm, TokenRows},
    rows::{dot, scale, set_scaled},
    simd::wide,
};
use hecate_core::{Read, families::LinearSpec};

/// What the memories at the group's start make of a chunk of `n` tokens. Pairs are of keys and of values.
struct Taught {
    /// `[n]`: retention, and ones.
    a: Vec<f32>,
    ones: Vec<f32>,
    /// `R xᵀ [n,m]`.
    answers: [Vec<f32>; 2],
    /// `u [n,m]`.
    u: [Vec<f32>; 2],
    /// `−θ u [n,m]`.
    written: [Vec<f32>; 2],
}

/// What the queries of a chunk read.
struct QueryReads {
    /// `S_K qᵀ [n,m]`.
    z: Vec<f32>,
    /// `φ` of it.
    f: Vec<f32>,
    /// What `q` and `f` read of the anchor, `[n,m]` and `[n,V]`; empty without one.
    anchored: [Vec<f32>; 2],
}

/// What both memories go back to, `S_K` by its columns.
struct SlotAnchor<'a> {
    share: AnchorShare<'a>,
    /// `B_Kᵀ [K,m]`.
    keys: Vec<f32>,
    /// `B_V [m,V]`.
    values: &'a [f32],
}

/// Rules that write what they are given, and read after that.
fn spec() -> LinearSpec {
    // Nothing is erased: what is written does not depend on the chunk's other writes.
    LinearSpec { read: Read::After, ..LinearSpec::default() }
}

/// `xᵀ [columns, rows]` of `x [rows, columns]`.
fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    let rows = x.len() / columns;
    let mut out = vec![0.0; x.len()];
    for (i, row) in x.chunks_exact(columns).enumerate() {
        row.iter().zip(out[i..].iter_mut().step_by(rows)).for_each(|(x, out)| *out = *x);
    }
    out
}

impl Taught {
    /// What the linear engine is given for one memory.
    fn view<'v>(&'v self, q: &'v [f32], k: &'v [f32], v: &'v [f32]) -> ChunkView<'v> {
        let n = self.a.len();
        let rows = |x: &'v [f32]| Mat::new(x, n, x.len() / n);
        ChunkView { tokens: n, q: rows(q), k: rows(k), v: rows(v), w: &self.ones, r: &[], a: &self.a, eta: &[] }
    }
}

impl TrellisCell {
    /// 32-bit elements that a chunk takes beside the states: workspaces of both calls, rows, and both memories.
    pub(super) fn group_elements(&self) -> usize {
        let Self { slots, key, value, .. } = *self;
        // Rows of workspaces are padded to an odd number of cache lines, up to 31 elements.
        let [m, k, v] = [slots, key, value].map(|width| width + 32);
        let rows = CHUNK * (24 * m + 12 * (k + v) + 8);
        rows + 16 * CHUNK * CHUNK + 6 * m * (k + v)
    }

    /// `S_Kᵀ` and `S_V` out of a state.
    fn memories(&self, state: &[f32]) -> [Memory; 2] {
        let (keys, values) = state.split_at(self.keys());
        [transposed(keys, self.key), values.to_vec()].map(|m| Memory { m, s: Vec::new(), group: Vec::new() })
    }

    /// Where both memories go as they forget, unless that is zero.
    fn anchor<'a>(&self, anchor: Option<GroupAnchor<'a>>) -> Option<SlotAnchor<'a>> {
        let share = AnchorShare::new(anchor?);
        let [keys, values] = share.layers(self.keys());
        Some(SlotAnchor { share, keys: transposed(keys, self.key), values })
    }

    /// Equation (72) of all tokens and both memories.
    fn teach(
        &self,
        rows: TokenRows<'_>,
        point: &[f32],
        anchor: Option<GroupAnchor<'_>>,
        scratch: &mut Scratch,
    ) -> Taught {
        let (n, m) = (rows.tokens, self.slots);
        let zeros = || [vec![0.0; n * m], vec![0.0; n * m]];
        let (mut answers, mut u, mut written) = (zeros(), zeros(), zeros());
        let (point_k, point_v) = point.split_at(self.keys());
        // One product for all tokens of a memory.
        let sides = [(rows.k, point_k, self.key), (rows.v, point_v, self.value)];
        for ((x, point, width), answers) in sides.into_iter().zip(&mut answers) {
            product(MatMut::new(answers, n, m), 0.0, 1.0, Mat::new(x, n, width), Mat::new(point, m, width).t());
        }
        wide(
            (&answers, &mut u, &mut written, scratch),
            #[inline(always)]
            |(answers, u, written, Scratch { at, workspace, .. })| {
                for (answers, (u, written)) in answers.iter().zip(u.iter_mut().zip(written)) {
                    let to = u.chunks_exact_mut(m).zip(written.chunks_exact_mut(m));
                    for ((z, (u, written)), gates) in
                        answers.chunks_exact(m).zip(to).zip(rows.gates.chunks_exact(2 + m))
                    {
                        // The row's point of `φ` is used at once, and the next row takes its place.
                        self.phi.evaluate(z, at);
                        self.phi.inner_grad(at, &gates[2..], u, workspace);
                        set_scaled(written, -gates[1], u);
                    }
                }
            },
        );
        // With an anchor the gate itself says that nothing is forgotten.
        let a = match anchor {
            Some(anchor) => anchor.decays.iter().map(|decay| decay.a).collect(),
            None => rows.gates.chunks_exact(2 + m).map(|gates| gates[0].exp()).collect(),
        };
        Taught { a, ones: vec![1.0; n], answers, u, written }
    }

    /// Equation (75) of all tokens: `out [n,V]`, with what the backward needs in the workspaces of both calls.
    fn read(
        &self,
        rows: TokenRows<'_>,
        taught: &Taught,
        state: &[f32],
        scratch: &mut Scratch,
        anchor: Option<&SlotAnchor<'_>>,
        out: &mut [f32],
    ) -> QueryReads {
        let (n, m) = (rows.tokens, self.slots);
        let ([low, high], [written_k, written_v]) = (self.memories(state), &taught.written);
        let (mut z, mut f, mut anchored) = (vec![0.0; n * m], vec![0.0; n * m], [Vec::new(), Vec::new()]);
        let Scratch { at, layers: [low_work, high_work], .. } = scratch;
        // Slots answer the query after each token's write.
        let view = taught.view(rows.q, rows.k, written_k);
        chunk::outputs(spec(), &view, low.start(), &mut low_work.forward, &mut rows_of(&mut z, m));
        if let Some(anchor) = anchor {
            anchored[0] = anchor.share.read(rows.q, &anchor.keys, &mut z);
        }
        wide(
            (&z, &mut f, at),
            #[inline(always)]
            |(z, f, at)| {
                for (z, f) in z.chunks_exact(m).zip(f.chunks_exact_mut(m)) {
                    self.phi.evaluate(z, at);
                    f.copy_from_slice(&at.f);
                }
            },
        );
        // What they answer weighs the slots of the values.
        let view = taught.view(&f, written_v, rows.v);
        chunk::outputs(spec(), &view, high.start(), &mut high_work.forward, &mut rows_of(out, self.value));
        if let Some(anchor) = anchor {
            anchored[1] = anchor.share.read(&f, anchor.values, out);
        }
        QueryReads { z, f, anchored }
    }

    /// Equation (76) of all tokens: `state` moves past the chunk.
    fn write(&self, rows: TokenRows<'_>, taught: &Taught, anchor: Option<&SlotAnchor<'_>>, state: &mut [f32]) {
        let (n, m) = (rows.tokens, self.slots);
        // What the tokens after it leave of each write, and all of them of the state.
        let (mut left, mut whole) = (vec![1.0; n], 1.0);
        for (left, a) in left.iter_mut().zip(&taught.a).rev() {
            *left = whole;
            whole *= a;
        }
        // Both lie by slots here, so that neither is transposed.
        let (keys, values) = state.split_at_mut(self.keys());
        let sides = [(keys, rows.k, self.key), (values, rows.v, self.value)];
        let mut scaled = vec![0.0; n * m];
        for ((state, x, width), written) in sides.into_iter().zip(&taught.written) {
            let to = scaled.chunks_exact_mut(m).zip(written.chunks_exact(m)).zip(&left);
            to.for_each(|((to, written), &left)| set_scaled(to, left, written));
            product(MatMut::new(state, m, width), whole, 1.0, Mat::new(&scaled, n, m).t(), Mat::new(x, n, width));
        }
        if let Some(anchor) = anchor {
            anchor.share.leave(state);
        }
    }

    /// From the gradient of `φ(z)`, `[n,m]`, to that of `z`, in place.
    fn pull_back(&self, z: &[f32], df: &mut [f32], scratch: &mut Scratch) {
        wide(
            (z, df, scratch),
            #[inline(always)]
            |(z, df, Scratch { at, workspace, .. })| {
                for (z, df) in z.chunks_exact(self.slots).zip(df.chunks_exact_mut(self.slots)) {
                    self.phi.evaluate(z, at);
                    self.phi.pullback(at, df, workspace);
                }
            },
        );
    }

    /// Equations (78) and (79) up to the answers: gradients of what both memories were written with, `[n,m]`, become those of
    /// their answers, in place. Those of `θ` and of the code are added to `dgates [n, all gates]`.
    fn codes_vjp(
        &self,
        rows: TokenRows<'_>,
        taught: &Taught,
        dwritten: [&mut [f32]; 2],
        dgates: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (m, gates) = (self.slots, 2 + self.slots);
        wide(
            (dwritten, dgates, scratch),
            #[inline(always)]
            |(dwritten, dgates, Scratch { at, workspace, .. })| {
                for ((dwritten, z), u) in dwritten.into_iter().zip(&taught.answers).zip(&taught.u) {
                    let parts = dwritten.chunks_exact_mut(m).zip(z.chunks_exact(m)).zip(u.chunks_exact(m));
                    let of = rows.gates.chunks_exact(gates).zip(dgates.chunks_exact_mut(gates));
                    for (((du, z), u), (gates, dgates)) in parts.zip(of) {
                        self.phi.evaluate(z, at);
                        // `−θ` scales what is written.
                        dgates[1] -= dot(u, du);
                        scale(du, -gates[1]);
                        self.phi.second_derivative(at, &gates[2..], du, &mut dgates[2..], workspace);
                    }
                }
            },
        );
    }

    /// Back through one memory's answers: `dx [n,width]` and `dpoint [m,width]` are added to.
    fn answers_vjp(&self, dz: &[f32], x: &[f32], point: &[f32], dx: &mut [f32], dpoint: &mut [f32]) {
        let n = dz.len() / self.slots;
        let (m, width) = (self.slots, x.len() / n);
        // `z = R xᵀ` of all tokens is one product, and so is each way back of it.
        let (dz, x) = (Mat::new(dz, n, m), Mat::new(x, n, width));
        product(MatMut::new(dx, n, width), 1.0, 1.0, dz, Mat::new(point, m, width));
        product(MatMut::new(dpoint, m, width), 1.0, 1.0, dz.t(), x);
    }
}

impl GroupedForm<Scratch> for TrellisCell {
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, scratch, old, new: state, point, anchor, out } = chunk;
        state.copy_from_slice(old);
        let (taught, own) = (self.teach(rows, point, anchor, scratch), self.anchor(anchor));
        self.read(rows, &taught, state, scratch, own.as_ref(), out);
        self.write(rows, &taught, own.as_ref(), state);
    }

    /// Without reads there is nothing for the linear engine to do.
    fn advance(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, scratch, old, new: state, point, anchor, .. } = chunk;
        state.copy_from_slice(old);
        let taught = self.teach(rows, point, anchor, scratch);
        self.write(rows, &taught, self.anchor(anchor).as_ref(), state);
    }

    fn backward(&self, chunk: GroupBackward<'_, Scratch>) {
        let GroupBackward { rows, scratch, start, point, anchor, dout, adjoint, danchor, grads, .. } = chunk;
        let (n, keys) = (rows.tokens, self.keys());
        let (taught, own) = (self.teach(rows, point, anchor, scratch), self.anchor(anchor));
        let reads = self.read(rows, &taught, start, scratch, own.as_ref(), &mut vec![0.0; dout.len()]);
        // Of what decay has left of the state, by token.
        let mut dleft = vec![0.0; if own.is_some() { n } else { 0 }];
        if let Some(own) = &own {
            own.share.leave_back(adjoint.state, danchor, &mut dleft);
        }
        let (danchor_k, danchor_v) = danchor.split_at_mut(keys.min(danchor.len()));
        let [mut dlow, mut dhigh] = self.memories(adjoint.state);
        let [written_k, written_v] = &taught.written;

        // The calls in reverse: the values' memory, then `φ` and the keys' memory.
        let view = taught.view(&reads.f, written_v, rows.v);
        let mut high = layer::back(spec(), &view, &mut scratch.layers[1], dout, dhigh.view());
        if let Some(own) = &own {
            let call = AnchorRead { x: &reads.f, layer: own.values, read: &reads.anchored[1] };
            own.share.read_back(call, dout, AnchorReadGrads { x: &mut high.dq, layer: danchor_v, left: &mut dleft });
        }
        self.pull_back(&reads.z, &mut high.dq, scratch);
        let view = taught.view(rows.q, rows.k, written_k);
        let mut low = layer::back(spec(), &view, &mut scratch.layers[0], &high.dq, dlow.view());
        if let Some(own) = &own {
            let (call, mut columns) =
                (AnchorRead { x: rows.q, layer: &own.keys, read: &reads.anchored[0] }, vec![0.0; keys]);
            let to = AnchorReadGrads { x: &mut low.dq, layer: &mut columns, left: &mut dleft };
            own.share.read_back(call, &high.dq, to);
            danchor_k.iter_mut().zip(transposed(&columns, self.slots)).for_each(|(to, x)| *to += x);
        }
        // Gradients of both memories before the chunk, by slots again.
        adjoint.state[..keys].copy_from_slice(&transposed(&dlow.m, self.slots));
        adjoint.state[keys..].copy_from_slice(&dhigh.m);

        // What was written, back to the memories at the group's start.
        self.codes_vjp(rows, &taught, [&mut low.dv, &mut high.dk], grads.gates, scratch);
        grads.q.copy_from_slice(&low.dq);
        grads.k.copy_from_slice(&low.dk);
        grads.v.copy_from_slice(&high.dv);
        let ((point_k, point_v), (dpoint_k, dpoint_v)) = (point.split_at(keys), adjoint.point.split_at_mut(keys));
        self.answers_vjp(&low.dv, rows.k, point_k, grads.k, dpoint_k);
        self.answers_vjp(&high.dk, rows.v, point_v, grads.v, dpoint_v);
        retention_grads(&taught.a, [&low, &high], grads.gates);
        if let Some(own) = &own {
            own.share.add_gates(&dleft, grads.gates);
        }
    }
}

/// Gradients of `log a`, which both memories share: (14).
fn retention_grads(a: &[f32], layers: [&LayerGrads; 2], dgates: &mut [f32]) {
    let rows = dgates.chunks_exact_mut(dgates.len() / a.len()).zip(a);
    for (t, (dgates, a)) in rows.enumerate() {
        dgates[0] = a * layers.iter().map(|layer| layer.scalars[0][t]).sum::<f32>();
    }
}
