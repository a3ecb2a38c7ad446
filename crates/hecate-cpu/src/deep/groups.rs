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
    inner_grads::{InnerGrads, WrittenGrads},
};
use crate::{
    linear::{
        CHUNK, ChunkView, Memory, chunk, chunk_backward,
        layer::{self, LayerGrads, rows_of},
    },
    product::Mat,
    recurrent::{GroupBackward, GroupForward, GroupedForm, TokenRows},
    rows::{axpy, dot},
};
use hecate_core::{families::LinearSpec, rules::AttentionalBias};

/// What the queries of a chunk read.
struct QueryReads {
    /// `[n,D]`: activations and slopes.
    h: Vec<f32>,
    slope: Vec<f32>,
    /// `[n,V]`, normed where there is a norm, without the residual.
    out: Vec<f32>,
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

    /// `M` and `S` of both layers out of a state.
    fn memories(&self, state: &[f32]) -> [Memory; 2] {
        let (first, (_, all)) = (self.low(), self.sizes());
        // Without momentum the state ends after the weights.
        let s = |from: usize, to: usize| {
            if self.form.momentum() { state[all + from..all + to].to_vec() } else { Vec::new() }
        };
        [
            Memory { m: state[..first].to_vec(), s: s(0, first), group: Vec::new() },
            Memory { m: state[first..all].to_vec(), s: s(first, all), group: Vec::new() },
        ]
    }

    /// The way back of [`Self::memories`].
    fn store(&self, memories: [Memory; 2], state: &mut [f32]) {
        let [low, high] = memories;
        // The order of a state: weights of both layers, then momentum of both.
        let parts = [low.m, high.m, low.s, high.s];
        let mut rest = state;
        for part in parts {
            let (own, others) = rest.split_at_mut(part.len());
            own.copy_from_slice(&part);
            rest = others;
        }
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

    /// Both calls forward, from the `memories` before the chunk. Workspaces keep what the backward needs.
    fn read(
        &self,
        rows: TokenRows<'_>,
        inner: &InnerGrads,
        memories: &[Memory; 2],
        layers: &mut Layers,
        share: Option<&AnchorShare<'_>>,
    ) -> QueryReads {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let ([low, high], mut anchored) = (memories, [Vec::new(), Vec::new()]);
        // Each layer has its own workspace: the backward needs what the forward left in both.
        let (mut pre, [low_work, high_work]) = (vec![0.0; n * d], layers);
        let (mut h, mut slope) = (vec![0.0; n * d], vec![0.0; n * d]);
        match self.hidden {
            // The first layer is read with the queries, ...
            Some(_) => {
                let view = self.view(inner, 0, rows.q, rows.k);
                chunk::outputs(self.spec(), &view, low, &mut low_work.forward, &mut rows_of(&mut pre, d));
                if let Some(share) = share {
                    anchored[0] = share.read(rows.q, share.layers(self.low())[0], &mut pre);
                }
                self.activate(&pre, &mut h, &mut slope);
            }
            None => h = rows.q.to_vec(),
        }
        let mut out = vec![0.0; n * v];
        // ... the last with what they gave.
        let view = self.view(inner, 1, &h, &inner.h);
        chunk::outputs(self.spec(), &view, high, &mut high_work.forward, &mut rows_of(&mut out, v));
        if let Some(share) = share {
            anchored[1] = share.read(&h, share.layers(self.low())[1], &mut out);
        }
        let deviation = self.normalise(&mut out);
        QueryReads { h, slope, out, deviation, anchored }
    }

    /// Gradients of the gates from those of both calls: `dθ = −Σ dz∘δ − Σ dz∘u_o`, and (14).
    fn gate_grads(&self, inner: &InnerGrads, layers: [Option<&LayerGrads>; 2], ddelta: &[f32], dgates: &mut [f32]) {
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
            if let AttentionalBias::Huber(_) = self.spec.bias {
                gates[2 + after] = ddelta[t];
            }
        }
    }
}

impl GroupedForm<Scratch> for DeepCell {
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        if self.is_mapped() {
            return self.mapped_forward(chunk);
        }
        let GroupForward { rows, scratch, state, point, anchor, out } = chunk;
        let (inner, share) = (self.inner_grads(rows, point, anchor), anchor.map(AnchorShare::new));
        let mut memories = self.memories(state);
        let read = self.read(rows, &inner, &memories, &mut scratch.layers, share.as_ref());
        // A matrix is the last layer alone: the first one's workspace has nothing.
        let layers = memories.iter_mut().zip(&mut scratch.layers).skip(usize::from(self.hidden.is_none()));
        layers.for_each(|(memory, work)| chunk::carry(self.spec(), &mut work.forward, memory));
        self.store(memories, state);
        if let Some(share) = share {
            share.leave(&mut state[..self.sizes().1]);
        }
        out.copy_from_slice(&read.out);
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
        let GroupBackward { rows, scratch, start, point, anchor, dout, adjoint, danchor, mut grads } = chunk;
        let (n, (_, all), first) = (rows.tokens, self.sizes(), self.low());
        let (inner, share) = (self.inner_grads(rows, point, anchor), anchor.map(AnchorShare::new));
        let read = self.read(rows, &inner, &self.memories(start), &mut scratch.layers, share.as_ref());
        // Of what decay has left of the state, by token.
        let mut dleft = vec![0.0; if share.is_some() { n } else { 0 }];
        if let Some(share) = &share {
            share.leave_back(&adjoint.state[..all], danchor, &mut dleft);
        }
        let (danchor0, danchor1) = danchor.split_at_mut(first.min(danchor.len()));
        let [low_work, high_work] = &mut scratch.layers;
        let [mut dlow, mut dhigh] = self.memories(adjoint.state);

        // The calls in reverse: the last layer, then the activation before it and the first layer.
        let doutput = self.through_norm(&read.out, &read.deviation, dout);
        let view = self.view(&inner, 1, &read.h, &inner.h);
        let mut high = layer::back(self.spec(), &view, high_work, &doutput, &mut dhigh);
        if let Some(share) = &share {
            let call = AnchorRead { x: &read.h, layer: share.layers(first)[1], read: &read.anchored[1] };
            share.read_back(call, &doutput, AnchorReadGrads { x: &mut high.dq, layer: danchor1, left: &mut dleft });
        }
        let low = self.hidden.map(|_| {
            let dpre: Vec<f32> = high.dq.iter().zip(&read.slope).map(|(dh, slope)| dh * slope).collect();
            let view = self.view(&inner, 0, rows.q, rows.k);
            let mut low = layer::back(self.spec(), &view, low_work, &dpre, &mut dlow);
            if let Some(share) = &share {
                let call = AnchorRead { x: rows.q, layer: share.layers(first)[0], read: &read.anchored[0] };
                share.read_back(call, &dpre, AnchorReadGrads { x: &mut low.dq, layer: danchor0, left: &mut dleft });
            }
            low
        });
        self.store([dlow, dhigh], adjoint.state);
        // Queries and keys are those of the first layer.
        let entered = low.as_ref().unwrap_or(&high);
        axpy(grads.q, 1.0, &entered.dq);
        axpy(grads.k, 1.0, &entered.dk);
        if self.spec.structure.residual() {
            axpy(grads.q, 1.0, dout);
        }

        // What was written, back to the weights at the group's start.
        let written = WrittenGrads {
            du_o: inner.scaled(&high.dv),
            ddelta: low.as_ref().map(|low| inner.scaled(&low.dv)).unwrap_or_default(),
            dh: if self.hidden.is_some() { std::mem::take(&mut high.dk) } else { Vec::new() },
        };
        let threshold = self.inner_vjp(rows, &inner, point, written, &mut adjoint.point[..all], &mut grads);
        self.gate_grads(&inner, [low.as_ref(), Some(&high)], &threshold, grads.gates);
        if let Some(share) = &share {
            share.add_gates(&dleft, grads.gates);
        }
    }
}
