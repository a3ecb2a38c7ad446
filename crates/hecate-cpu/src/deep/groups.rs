//! Frozen groups of memories that decay as matrix products: two calls of the linear engine's chunk form, one for a matrix.
//!
//! `u` and `δ` of all tokens come from the weights at the group's start.
//! Weight matrices are then linear recurrences with `w = 1`, `r = 0`:
//!
//! - the first has keys `k` and values `−θ δ`, and is read with `q`;
//! - the second has keys `h` and values `−θ u_o`, and is read with `σ` of what the first read; a matrix is such a layer alone, with
//!   `h = k`, and is read with `q`.
//!
//! Everything else is products with the weights at the group's start, for all tokens at once.
//! The backward goes through the same two calls in reverse, then back through the inner gradients.

use super::{
    DeepCell, Scratch,
    anchored::{AnchorRead, AnchorReadGrads, AnchorShare},
    inner_grads::{InnerGrads, WrittenGrads, fit},
};
use crate::{
    linear::{
        CHUNK, ChunkStart, ChunkView, MemoryMut, chunk, chunk_backward,
        layer::{self, LayerGrads, rows_of},
    },
    product::Mat,
    recurrent::{GroupBackward, GroupForward, GroupedForm, TokenRows},
    rows::{axpy, dot},
    simd::wide,
};
use hecate_core::{families::LinearSpec, rules::AttentionalBias};

/// What the queries of a chunk read.
#[derive(Default)]
pub(super) struct QueryReads {
    /// `[n,D]`: what the first layer gave, activations and slopes; empty for a matrix.
    pre: Vec<f32>,
    h: Vec<f32>,
    slope: Vec<f32>,
    /// Of the norm, `[n]`; empty without.
    deviation: Vec<f32>,
    /// What both layers' inputs read of the anchor, `[n,D]`, `[n,V]`; empty without one.
    anchored: [Vec<f32>; 2],
}

/// Workspaces of the linear engine for both layers.
type Layers = [chunk_backward::Workspace; 2];

impl DeepCell {
    /// 32-bit elements that a chunk takes beside the states: for the peak memory.
    pub(super) fn group_elements(&self) -> usize {
        let (d, v, k) = (self.d(), self.value, self.key);
        let (_, all) = self.sizes();
        CHUNK * (16 * d + 16 * v + 4 * k + 18) + 16 * CHUNK * CHUNK + 30 * CHUNK * d.max(v).max(k) + 6 * all
    }

    /// A linear rule that writes what it is given, with decay and momentum.
    fn spec(&self) -> LinearSpec {
        LinearSpec { read: self.spec.read, momentum: self.form.momentum(), ..LinearSpec::default() }
    }

    /// `M` and `S` of both layers in a state: weights of both come first, then momentum of both.
    fn starts<'s>(&self, state: &'s [f32]) -> [ChunkStart<'s>; 2] {
        let (weights, momentum) = state.split_at(self.sizes().1);
        // Without momentum the state ends after the weights.
        let ((m, m_high), (s, s_high)) =
            (weights.split_at(self.low()), momentum.split_at(self.low().min(momentum.len())));
        [ChunkStart { m, s, group: &[] }, ChunkStart { m: m_high, s: s_high, group: &[] }]
    }

    /// As [`Self::starts`], to be changed.
    fn memories<'s>(&self, state: &'s mut [f32]) -> [MemoryMut<'s>; 2] {
        let (weights, momentum) = state.split_at_mut(self.sizes().1);
        let cut = self.low().min(momentum.len());
        let ((m, m_high), (s, s_high)) = (weights.split_at_mut(self.low()), momentum.split_at_mut(cut));
        [MemoryMut { m, s, group: &mut [] }, MemoryMut { m: m_high, s: s_high, group: &mut [] }]
    }

    /// What the linear engine is given for a layer: queries, keys `[n, rows]`, and values.
    fn view<'v>(&self, inner: &'v InnerGrads, layer: usize, q: &'v [f32], k: &'v [f32]) -> ChunkView<'v> {
        let n = inner.ones.len();
        let values = &inner.values[layer];
        ChunkView {
            tokens: n,
            q: Mat::new(q, n, q.len() / n),
            k: Mat::new(k, n, k.len() / n),
            v: Mat::new(values, n, values.len() / n),
            w: &inner.ones,
            r: &[],
            a: &inner.a,
            eta: &inner.eta,
        }
    }

    /// Both calls forward, from the `state` before the chunk, into `out [n,V]` without the residual.
    /// Workspaces keep what the backward needs. It does not need `out` itself unless that is normed, and asks for none then.
    fn read(
        &self,
        rows: TokenRows<'_>,
        inner: &InnerGrads,
        state: &[f32],
        (layers, reads): (&mut Layers, &mut QueryReads),
        share: Option<&AnchorShare<'_>>,
        out: &mut [f32],
    ) {
        let (n, d) = (rows.tokens, self.d());
        let QueryReads { pre, h, slope, deviation, anchored } = reads;
        // Each layer has its own workspace: the backward needs what the forward left in both.
        let ([low, high], [low_work, high_work]) = (self.starts(state), layers);
        [&mut *pre, &mut *h, &mut *slope].into_iter().for_each(|x| fit(x, n * d));
        if self.hidden.is_some() {
            // The first layer is read with the queries, ...
            let view = self.view(inner, 0, rows.q, rows.k);
            chunk::outputs(self.spec(), &view, low, &mut low_work.forward, &mut rows_of(pre, d));
            if let Some(share) = share {
                anchored[0] = share.read(rows.q, share.layers(self.low())[0], pre);
            }
            self.activate(pre, h, slope);
        }
        // ... the last with what they gave.
        let h = self.queries_of(rows, h);
        let view = self.view(inner, 1, h, self.keys_of(rows, inner));
        if out.is_empty() {
            chunk::prepare(self.spec(), &view, high, &mut high_work.forward);
        } else {
            chunk::outputs(self.spec(), &view, high, &mut high_work.forward, &mut rows_of(out, self.value));
        }
        if let Some(share) = share {
            anchored[1] = share.read(h, share.layers(self.low())[1], out);
        }
        self.normalise(out, deviation);
    }

    /// What the last layer is read with: rows `[n, inputs]`, activations `h` of the first one or queries themselves.
    fn queries_of<'a>(&self, rows: TokenRows<'a>, h: &'a [f32]) -> &'a [f32] {
        if self.hidden.is_some() { h } else { rows.q }
    }

    /// Gradients of the gates but the threshold from those of both calls: `dθ = −Σ dz∘δ − Σ dz∘u_o`, and (14).
    #[inline(always)]
    fn gate_grads(&self, inner: &InnerGrads, layers: [Option<&LayerGrads>; 2], dgates: &mut [f32]) {
        let after = usize::from(self.form.momentum());
        let width = dgates.len() / inner.ones.len();
        let factors = [(&inner.delta, self.d()), (&inner.u_o, self.value)];
        for (t, gates) in dgates.chunks_exact_mut(width).enumerate() {
            for (layer, (factor, width)) in layers.iter().zip(factors) {
                let Some(layer) = layer else { continue };
                gates[0] += inner.a[t] * layer.scalars[0][t];
                if self.form.momentum() {
                    gates[1] += inner.eta[t] * layer.scalars[1][t];
                }
                // `−θ` scales what is written, so its gradient is an inner product with the unscaled factor.
                gates[1 + after] -= dot(&layer.dv[t * width..][..width], &factor[t * width..][..width]);
            }
        }
    }
}

impl GroupedForm<Scratch> for DeepCell {
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        if self.is_mapped() {
            return self.mapped_forward(chunk);
        }
        let GroupForward { rows, scratch, old, new, point, anchor, out } = chunk;
        let Scratch { inner, layers, reads, .. } = scratch;
        self.inner_grads(rows, point, anchor, inner);
        let share = anchor.map(AnchorShare::new);
        self.read(rows, inner, old, (layers, reads), share.as_ref(), out);
        // A matrix is the last layer alone: the first one's workspace has nothing.
        let both = self.memories(new).into_iter().zip(layers).skip(usize::from(self.hidden.is_none()));
        both.for_each(|(memory, work)| chunk::carry(self.spec(), &mut work.forward, memory));
        if let Some(share) = share {
            share.leave(&mut new[..self.sizes().1]);
        }
        if self.spec.structure.residual() {
            axpy(out, 1.0, rows.q);
        }
    }

    fn advance(&self, chunk: GroupForward<'_, Scratch>) {
        match self.is_mapped() {
            true => self.mapped_advance(chunk),
            false => self.forward(chunk),
        }
    }

    fn backward(&self, chunk: GroupBackward<'_, Scratch>) {
        if self.is_mapped() {
            return self.mapped_backward(chunk);
        }
        let GroupBackward { rows, scratch, start, point, opens, anchor, dout, adjoint, danchor, mut grads, .. } = chunk;
        let (n, (_, all), first) = (rows.tokens, self.sizes(), self.low());
        let Scratch { inner, layers, reads, .. } = scratch;
        self.inner_grads(rows, point, anchor, inner);
        let (inner, share) = (&*inner, anchor.map(AnchorShare::new));
        // What the last layer was read to give is needed for the way back of a norm alone, or of an anchor.
        let needed = self.spec.structure.norm() || share.is_some();
        let mut out = vec![0.0; if needed { dout.len() } else { 0 }];
        self.read(rows, inner, start, (layers, reads), share.as_ref(), &mut out);
        // Of what decay has left of the state, by token.
        let mut dleft = vec![0.0; if share.is_some() { n } else { 0 }];
        if let Some(share) = &share {
            share.leave_back(&adjoint.state[..all], danchor, &mut dleft);
        }
        let (danchor0, danchor1) = danchor.split_at_mut(first.min(danchor.len()));
        let [low_work, high_work] = layers;
        let [dlow, dhigh] = self.memories(adjoint.state);

        // The calls in reverse: the last layer, then the activation before it and the first layer.
        let through = self.spec.structure.norm().then(|| self.through_norm(&out, &reads.deviation, dout));
        let (doutput, h) = (through.as_deref().unwrap_or(dout), self.queries_of(rows, &reads.h));
        let view = self.view(inner, 1, h, self.keys_of(rows, inner));
        let mut high = layer::back(self.spec(), &view, high_work, doutput, dhigh);
        if let Some(share) = &share {
            let call = AnchorRead { x: h, layer: share.layers(first)[1], read: &reads.anchored[1] };
            share.read_back(call, doutput, AnchorReadGrads { x: &mut high.dq, layer: danchor1, left: &mut dleft });
        }
        let mut low = self.hidden.map(|_| {
            // Through the activation, in place.
            wide(
                &mut high.dq[..],
                #[inline(always)]
                |dh: &mut [f32]| dh.iter_mut().zip(&reads.slope).for_each(|(dh, slope)| *dh *= slope),
            );
            let view = self.view(inner, 0, rows.q, rows.k);
            let mut low = layer::back(self.spec(), &view, low_work, &high.dq, dlow);
            if let Some(share) = &share {
                let call = AnchorRead { x: rows.q, layer: share.layers(first)[0], read: &reads.anchored[0] };
                share.read_back(call, &high.dq, AnchorReadGrads { x: &mut low.dq, layer: danchor0, left: &mut dleft });
            }
            low
        });
        // Queries and keys are those of the first layer.
        let entered = low.as_ref().unwrap_or(&high);
        wide(
            (&mut *grads.q, &mut *grads.k, &mut *grads.gates),
            #[inline(always)]
            |(dq, dk, dgates): (&mut [f32], &mut [f32], &mut [f32])| {
                axpy(dq, 1.0, &entered.dq);
                axpy(dk, 1.0, &entered.dk);
                if self.spec.structure.residual() {
                    axpy(dq, 1.0, dout);
                }
                self.gate_grads(inner, [low.as_ref(), Some(&high)], dgates);
            },
        );

        // What was written, back to the weights at the group's start.
        [Some(&mut high), low.as_mut()].into_iter().flatten().for_each(|layer| inner.scale(&mut layer.dv));
        let written = WrittenGrads {
            du_o: high.dv,
            ddelta: low.map(|low| low.dv).unwrap_or_default(),
            dh: if self.hidden.is_some() { high.dk } else { Vec::new() },
        };
        // In a group's first chunk the weights at its start are those of the state before the chunk.
        let dpoint = if opens { adjoint.state } else { adjoint.point };
        let threshold = self.inner_vjp(rows, inner, point, written, &mut dpoint[..all], &mut grads);
        if let AttentionalBias::Huber(_) = self.spec.bias {
            let width = grads.gates.len() / n;
            let gates = grads.gates.chunks_exact_mut(width).zip(threshold);
            gates.for_each(|(gates, ddelta)| gates[2 + usize::from(self.form.momentum())] = ddelta);
        }
        if let Some(share) = &share {
            share.add_gates(&dleft, grads.gates);
        }
    }

    fn merges_start(&self) -> bool {
        !self.is_mapped()
    }
}
