//! Frozen groups of MLP memories as matrix products: two calls of the linear engine's chunk form.
//!
//! `u` and `δ` of all tokens come from the weights at the group's start.
//! Both weight matrices are then linear recurrences with `w = 1`, `r = 0`:
//!
//! - the first has keys `k` and values `−θ δ`, and is read with `q`;
//! - the second has keys `h` and values `−θ u_o`, and is read with `σ` of what the first read.
//!
//! Everything else is products with the weights at the group's start, for all tokens at once.
//! The backward goes through the same two calls in reverse, then back through the inner gradients.

use super::{
    DeepCell, Scratch,
    activation::{activate, second_derivative},
    bias, norm,
};
use crate::{
    linear::{CHUNK, ChunkGrads, ChunkStart, ChunkView, Memory, chunk, chunk_backward},
    product::{Mat, MatMut, product},
    recurrent::{GroupBackward, GroupForward, GroupedForm, TokenRows},
    rows::{axpy, dot},
    simd::wide,
};
use hecate_core::{families::LinearSpec, rules::AttentionalBias};

/// Inner gradients of a chunk's tokens at the group's start: rows as in a token's [`Record`](super::Record).
#[derive(Default)]
struct InnerGrads {
    /// `[n,D]`.
    pre: Vec<f32>,
    /// `σ(pre) [n,D]`.
    h: Vec<f32>,
    /// `σ′(pre) [n,D]`.
    slope: Vec<f32>,
    /// `W₁ u_o [n,D]`.
    back: Vec<f32>,
    /// `[n,D]`.
    delta: Vec<f32>,
    /// `[n,V]`.
    error: Vec<f32>,
    /// `ψ(e) [n,V]`, clipped.
    u: Vec<f32>,
    /// `s` of (94), `[n]`.
    shrink: Vec<f32>,
    /// `u` through the norm, `[n,V]`.
    u_o: Vec<f32>,
    /// Normed outputs `[n,V]`; empty without a norm.
    normed: Vec<f32>,
    /// `[n]`.
    deviation: Vec<f32>,
    /// What each layer is written with: `−θ δ [n,D]`, `−θ u_o [n,V]`.
    values: [Vec<f32>; 2],
    /// Gates `[n]`; `ones` stands for `w`.
    a: Vec<f32>,
    /// `[n]`; empty without momentum.
    eta: Vec<f32>,
    /// `[n]`.
    theta: Vec<f32>,
    /// `[n]`, all 1: the recurrence's write strength.
    ones: Vec<f32>,
}

/// What the queries of a chunk read.
struct QueryReads {
    /// `[n,D]`: activations and slopes.
    h: Vec<f32>,
    slope: Vec<f32>,
    /// `[n,V]`, normed where there is a norm, without the residual.
    out: Vec<f32>,
    /// Of the norm, `[n]`; empty without.
    deviation: Vec<f32>,
}

/// Gradients that the linear engine gives back for one layer.
struct LayerGrads {
    /// `[n, rows of the layer]`.
    dq: Vec<f32>,
    /// As `dq`.
    dk: Vec<f32>,
    /// `[n, columns of the layer]`.
    dv: Vec<f32>,
    /// Of `a` and `η`, `[n]` each; the second is empty without momentum.
    scalars: [Vec<f32>; 2],
}

/// Workspaces of the linear engine for both layers.
type Layers = [chunk_backward::Workspace; 2];

/// Rows `[width]` of a matrix without gaps.
fn rows_of(x: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    x.chunks_exact_mut(width).collect()
}

impl DeepCell {
    /// 32-bit elements that a chunk takes beside the states: for the peak memory.
    pub(super) fn group_elements(&self) -> usize {
        let (d, v, k) = (self.d(), self.value, self.key);
        let (_, all) = self.sizes();
        CHUNK * (14 * d + 14 * v + 4 * k + 16) + 16 * CHUNK * CHUNK + 30 * CHUNK * d.max(v).max(k) + 6 * all
    }

    /// A linear rule that writes what it is given, with decay and momentum.
    fn spec(&self) -> LinearSpec {
        LinearSpec { read: self.spec.read, momentum: self.form.momentum(), ..LinearSpec::default() }
    }

    /// `M` and `S` of both layers out of a state.
    fn memories(&self, state: &[f32]) -> [Memory; 2] {
        let (first, all) = self.sizes();
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

    /// Equations (34), (35), (40) for all tokens of a chunk at once, at the weights `point`.
    fn inner_grads(&self, rows: TokenRows<'_>, point: &[f32]) -> InnerGrads {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let ((first, all), width) = (self.sizes(), rows.gates.len() / rows.tokens);
        // Logarithms become factors once for the whole chunk.
        let gates: Vec<_> = rows.gates.chunks_exact(width).map(|gates| self.gates(gates)).collect();
        let zeros = |width: usize| vec![0.0; n * width];
        let mut inner = InnerGrads {
            pre: zeros(d),
            h: zeros(d),
            slope: zeros(d),
            back: zeros(d),
            error: zeros(v),
            u: zeros(v),
            a: gates.iter().map(|gates| gates.a).collect(),
            eta: if self.form.momentum() { gates.iter().map(|gates| gates.eta).collect() } else { Vec::new() },
            theta: gates.iter().map(|gates| gates.theta).collect(),
            ones: vec![1.0; n],
            ..InnerGrads::default()
        };
        let (w0, w1) = (Mat::new(&point[..first], self.key, d), Mat::new(&point[first..all], d, v));
        // The memory at the point, for all keys at once: two products with an activation between.
        product(MatMut::new(&mut inner.pre, n, d), 0.0, 1.0, Mat::new(rows.k, n, self.key), w0);
        self.activate(&inner.pre, &mut inner.h, &mut inner.slope);
        product(MatMut::new(&mut inner.error, n, v), 0.0, 1.0, Mat::new(&inner.h, n, d), w1);
        inner.deviation = self.normalise(&mut inner.error);
        if self.spec.structure.norm() {
            inner.normed = inner.error.clone();
        }
        if self.spec.structure.residual() {
            axpy(&mut inner.error, 1.0, rows.k);
        }
        // The error is prediction minus value.
        axpy(&mut inner.error, -1.0, rows.v);
        // Biases may look at a whole row, so rows go one by one.
        for ((u, error), gates) in inner.u.chunks_exact_mut(v).zip(inner.error.chunks_exact(v)).zip(&gates) {
            bias::inner_grad(self.spec.bias, error, gates.delta, u);
            inner.shrink.push(bias::clip(self.spec.clip, u));
        }
        inner.u_o = self.through_norm(&inner.normed, &inner.deviation, &inner.u);
        // `b = u_o W₁ᵀ`, the error's gradient at the hidden layer.
        product(MatMut::new(&mut inner.back, n, d), 0.0, 1.0, Mat::new(&inner.u_o, n, v), w1.t());
        inner.delta = inner.back.iter().zip(&inner.slope).map(|(back, slope)| back * slope).collect();
        let scaled = |x: &[f32], width: usize| -> Vec<f32> {
            let rows = x.chunks_exact(width).zip(&inner.theta);
            rows.flat_map(|(row, theta)| row.iter().map(move |x| -theta * x)).collect()
        };
        // What each layer is written with: minus the step size times its factor of the gradient.
        inner.values = [scaled(&inner.delta, d), scaled(&inner.u_o, v)];
        inner
    }

    /// `σ` and `σ′` of `[n,D]`, compiled for the widest vectors.
    fn activate(&self, pre: &[f32], h: &mut [f32], slope: &mut [f32]) {
        let activation = self.activation();
        wide(
            (h, slope),
            #[inline(always)]
            |(h, slope)| activate(activation, pre, h, slope),
        );
    }

    /// Norms rows `[V]` in place where there is a norm; returns their deviations.
    fn normalise(&self, rows: &mut [f32]) -> Vec<f32> {
        match self.spec.structure.norm() {
            true => rows.chunks_exact_mut(self.value).map(norm::normalise).collect(),
            false => Vec::new(),
        }
    }

    /// `J e` row by row for `e [n,V]`, or `e` where there is no norm.
    fn through_norm(&self, normed: &[f32], deviation: &[f32], e: &[f32]) -> Vec<f32> {
        if !self.spec.structure.norm() {
            return e.to_vec();
        }
        let (mut out, v) = (vec![0.0; e.len()], self.value);
        let rows = out.chunks_exact_mut(v).zip(e.chunks_exact(v)).zip(normed.chunks_exact(v)).zip(deviation);
        rows.for_each(|(((out, e), normed), &deviation)| norm::add_jacobian(normed, deviation, e, out));
        out
    }

    /// Both calls forward; `memories` go from before the chunk to after it.
    fn read(
        &self,
        rows: TokenRows<'_>,
        inner: &InnerGrads,
        memories: &mut [Memory; 2],
        layers: &mut Layers,
    ) -> QueryReads {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let [low, high] = memories;
        // Each layer has its own workspace: the backward needs what the forward left in both.
        let (mut pre, [low_work, high_work]) = (vec![0.0; n * d], layers);
        // The first layer is read with the queries, ...
        let view = self.view(inner, 0, rows.q, rows.k);
        chunk::forward(self.spec(), &view, low, &mut low_work.forward, &mut rows_of(&mut pre, d));
        let (mut h, mut slope) = (vec![0.0; n * d], vec![0.0; n * d]);
        self.activate(&pre, &mut h, &mut slope);
        let mut out = vec![0.0; n * v];
        // ... the second with what they gave.
        let view = self.view(inner, 1, &h, &inner.h);
        chunk::forward(self.spec(), &view, high, &mut high_work.forward, &mut rows_of(&mut out, v));
        let deviation = self.normalise(&mut out);
        QueryReads { h, slope, out, deviation }
    }

    /// One call backward; `dout [n, columns]`, and `dmemory` goes from after the chunk to before it.
    fn layer_back(
        &self,
        view: &ChunkView<'_>,
        work: &mut chunk_backward::Workspace,
        start: &Memory,
        dout: &[f32],
        dmemory: &mut Memory,
    ) -> LayerGrads {
        let (n, k, v) = (view.tokens, view.k.columns, view.v.columns);
        let zeros = |width: usize| vec![0.0; n * width];
        let (mut dq, mut dk, mut dv) = (zeros(k), zeros(k), zeros(v));
        let (mut dw, mut da, mut deta) = (zeros(1), zeros(1), zeros(usize::from(self.form.momentum())));
        // The engine writes rows; here they are those of arrays without gaps.
        let part = ChunkGrads {
            dq: &mut rows_of(&mut dq, k),
            dk: &mut rows_of(&mut dk, k),
            dv: &mut rows_of(&mut dv, v),
            dw: &mut dw,
            dr: &mut [],
            da: &mut da,
            deta: &mut deta,
        };
        let start = ChunkStart { m: &start.m, s: &start.s, group: &[] };
        chunk_backward::run(self.spec(), view, &start, work, &Mat::new(dout, n, v), dmemory, part);
        LayerGrads { dq, dk, dv, scalars: [da, deta] }
    }

    /// Gradients of the gates from those of both calls: `dθ = −Σ dz∘δ − Σ dz∘u_o`, and (14).
    fn gate_grads(&self, inner: &InnerGrads, layers: &[LayerGrads; 2], ddelta: &[f32], dgates: &mut [f32]) {
        let (d, v, after) = (self.d(), self.value, usize::from(self.form.momentum()));
        let width = dgates.len() / inner.ones.len();
        for (t, gates) in dgates.chunks_exact_mut(width).enumerate() {
            let [low, high] = layers;
            gates[0] = inner.a[t] * (low.scalars[0][t] + high.scalars[0][t]);
            if self.form.momentum() {
                gates[1] = inner.eta[t] * (low.scalars[1][t] + high.scalars[1][t]);
            }
            // `−θ` scales what is written, so its gradient is an inner product with the unscaled factor.
            let row = |x: &[f32], y: &[f32], width: usize| dot(&x[t * width..][..width], &y[t * width..][..width]);
            gates[1 + after] = -row(&low.dv, &inner.delta, d) - row(&high.dv, &inner.u_o, v);
            if let AttentionalBias::Huber(_) = self.spec.bias {
                gates[2 + after] = ddelta[t];
            }
        }
    }

    /// `(ō, ē, dδ)` of (43) and (44) from the gradient of `u_o`, row by row: `[n,V]`, `[n,V]`, `[n]`.
    fn inner_grads_vjp(&self, rows: TokenRows<'_>, inner: &InnerGrads, du_o: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (n, v, norm) = (rows.tokens, self.value, self.spec.structure.norm());
        // The norm's Jacobian is symmetric: the way back is the same product.
        let mut du = self.through_norm(&inner.normed, &inner.deviation, du_o);
        let (mut de, mut spare) = (vec![0.0; n * v], vec![0.0; v]);
        let width = rows.gates.len() / n;
        let mut ddelta = Vec::with_capacity(n);
        for (t, de) in de.chunks_exact_mut(v).enumerate() {
            let (row, delta) = (t * v..(t + 1) * v, self.gates(&rows.gates[t * width..][..width]).delta);
            bias::clip_vjp(self.spec.clip, &inner.u[row.clone()], inner.shrink[t], &mut du[row.clone()]);
            ddelta.push(bias::inner_grad_vjp(self.spec.bias, &inner.error[row.clone()], delta, &du[row], de));
        }
        let mut do_ = self.through_norm(&inner.normed, &inner.deviation, &de);
        if norm {
            // The second way to the output: through the norm itself.
            let mut bent = vec![0.0; v];
            for (t, do_) in do_.chunks_exact_mut(v).enumerate() {
                let row = t * v..(t + 1) * v;
                let [normed, u, u_o] = [&inner.normed, &inner.u, &inner.u_o].map(|x| &x[row.clone()]);
                norm::second_derivative(normed, inner.deviation[t], u, u_o, &du_o[row.clone()], &mut spare, &mut bent);
                axpy(do_, 1.0, &bent);
            }
        }
        (do_, de, ddelta)
    }
}

impl GroupedForm<Scratch> for DeepCell {
    fn forward(&self, chunk: GroupForward<'_, Scratch>) {
        let GroupForward { rows, scratch, state, point, out } = chunk;
        let inner = self.inner_grads(rows, point);
        let mut memories = self.memories(state);
        let read = self.read(rows, &inner, &mut memories, &mut scratch.layers);
        self.store(memories, state);
        out.copy_from_slice(&read.out);
        if self.spec.structure.residual() {
            axpy(out, 1.0, rows.q);
        }
    }

    fn backward(&self, chunk: GroupBackward<'_, Scratch>) {
        let GroupBackward { rows, scratch, start, point, dout, adjoint, grads } = chunk;
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let ((first, all), key) = (self.sizes(), self.key);
        let inner = self.inner_grads(rows, point);
        let read = self.read(rows, &inner, &mut self.memories(start), &mut scratch.layers);
        let [low_work, high_work] = &mut scratch.layers;
        let [low, high] = self.memories(start);
        let [mut dlow, mut dhigh] = self.memories(adjoint.state);

        // The calls in reverse: the second layer, the activation between them, the first layer.
        let doutput = self.through_norm(&read.out, &read.deviation, dout);
        let view = self.view(&inner, 1, &read.h, &inner.h);
        let high = self.layer_back(&view, high_work, &high, &doutput, &mut dhigh);
        let dpre: Vec<f32> = high.dq.iter().zip(&read.slope).map(|(dh, slope)| dh * slope).collect();
        let low = self.layer_back(&self.view(&inner, 0, rows.q, rows.k), low_work, &low, &dpre, &mut dlow);
        self.store([dlow, dhigh], adjoint.state);
        axpy(grads.q, 1.0, &low.dq);
        axpy(grads.k, 1.0, &low.dk);
        if self.spec.structure.residual() {
            axpy(grads.q, 1.0, dout);
        }

        // What was written, back to the weights at the group's start: (42)–(45).
        let scaled = |x: &[f32], width: usize| -> Vec<f32> {
            let rows = x.chunks_exact(width).zip(&inner.theta);
            rows.flat_map(|(row, theta)| row.iter().map(move |x| -theta * x)).collect()
        };
        let (ddelta, mut du_o) = (scaled(&low.dv, d), scaled(&high.dv, v));
        let dback: Vec<f32> = ddelta.iter().zip(&inner.slope).map(|(ddelta, slope)| ddelta * slope).collect();
        let (w0, w1) = (Mat::new(&point[..first], key, d), Mat::new(&point[first..all], d, v));
        // `b = u_o W₁ᵀ` sends the gradient of `b` back to `u_o`.
        product(MatMut::new(&mut du_o, n, v), 1.0, 1.0, Mat::new(&dback, n, d), w1);
        let (do_, de, threshold) = self.inner_grads_vjp(rows, &inner, &du_o);
        let mut dh = high.dk.clone();
        product(MatMut::new(&mut dh, n, d), 1.0, 1.0, Mat::new(&do_, n, v), w1.t());
        let mut dpre = vec![0.0; n * d];
        // Through `σ′` in `δ`, and through `h = σ(pre)`.
        second_derivative(self.activation(), &inner.pre, &inner.back, &mut dpre);
        for ((dpre, ddelta), (dh, slope)) in dpre.iter_mut().zip(&ddelta).zip(dh.iter().zip(&inner.slope)) {
            *dpre = *dpre * ddelta + dh * slope;
        }
        // The first layer's product at the point, back to the keys.
        product(MatMut::new(grads.k, n, key), 1.0, 1.0, Mat::new(&dpre, n, d), w0.t());
        axpy(grads.v, -1.0, &de);
        if self.spec.structure.residual() {
            axpy(grads.k, 1.0, &de);
        }
        // Three products reach the point: each layer's inputs, and the second layer through b = W₁ u_o.
        let (dw0, dw1) = adjoint.point[..all].split_at_mut(first);
        product(MatMut::new(dw0, key, d), 1.0, 1.0, Mat::new(rows.k, n, key).t(), Mat::new(&dpre, n, d));
        product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&dback, n, d).t(), Mat::new(&inner.u_o, n, v));
        product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&inner.h, n, d).t(), Mat::new(&do_, n, v));
        self.gate_grads(&inner, &[low, high], &threshold, grads.gates);
    }
}
