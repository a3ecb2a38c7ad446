//! Frozen groups of MLP memories as matrix products: two calls of the linear engine.
//!
//! `u` and `δ` of all tokens come from the weights at the group's start, so both weight matrices are linear recurrences
//! with `w = 1`, `r = 0`: keys `k` and values `−θ δ`, read with `q`; keys `h` and values `−θ u_o`, read with `σ` of what
//! the first call read.

use super::{
    DeepCell, Scratch,
    activation::{activate, curve},
    bias, norm,
};
use crate::{
    engine::{CHUNK, Memory, Part, Spec, Start, View, chunk, chunk_backward},
    product::{Mat, MatMut, product},
    recurrent::{Adjoint, Groups, Rows, TokenGrads},
    rows::{axpy, dot},
    simd::wide,
};
use hecate_core::rules::Bias;

/// What the tokens of a stretch are taught at the group's start: rows as in a token's record.
#[derive(Default)]
struct Lesson {
    /// `[n,D]`.
    pre: Vec<f32>,
    h: Vec<f32>,
    slope: Vec<f32>,
    back: Vec<f32>,
    delta: Vec<f32>,
    /// `[n,V]`.
    error: Vec<f32>,
    u: Vec<f32>,
    u_o: Vec<f32>,
    normed: Vec<f32>,
    /// `[n]`.
    deviation: Vec<f32>,
    /// `−θ δ [n,D]`, `−θ u_o [n,V]`.
    values: [Vec<f32>; 2],
    /// Gates `[n]`; `ones` stands for `w`.
    a: Vec<f32>,
    eta: Vec<f32>,
    theta: Vec<f32>,
    ones: Vec<f32>,
}

/// What the queries read.
struct Read {
    /// `[n,D]`: activations and slopes.
    h: Vec<f32>,
    slope: Vec<f32>,
    /// `[n,V]`, normed where there is a norm, without the residual.
    out: Vec<f32>,
    deviation: Vec<f32>,
}

/// Gradients that one call of the linear engine gives back.
struct Layer {
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    scalars: [Vec<f32>; 2],
}

/// Scratch of the linear engine for both layers.
type Layers = [chunk_backward::Workspace; 2];

/// Rows of a matrix without gaps.
fn rows_of(x: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    x.chunks_exact_mut(width).collect()
}

impl DeepCell {
    /// 32-bit numbers that a stretch takes beside the states: for the bill.
    pub(super) fn group_numbers(&self) -> usize {
        let (d, v, k) = (self.d(), self.value, self.key);
        let (_, all) = self.sizes();
        CHUNK * (14 * d + 14 * v + 4 * k + 16) + 16 * CHUNK * CHUNK + 30 * CHUNK * d.max(v).max(k) + 6 * all
    }

    fn spec(&self) -> Spec {
        Spec { read: self.deep.read, frozen: None, momentum: self.deep.momentum, erase: false }
    }

    /// Weights and momentum of both layers out of a state.
    fn memories(&self, state: &[f32]) -> [Memory; 2] {
        let (first, all) = self.sizes();
        let s =
            |from: usize, to: usize| if self.deep.momentum { state[all + from..all + to].to_vec() } else { Vec::new() };
        [
            Memory { m: state[..first].to_vec(), s: s(0, first), group: Vec::new() },
            Memory { m: state[first..all].to_vec(), s: s(first, all), group: Vec::new() },
        ]
    }

    fn store(&self, memories: [Memory; 2], state: &mut [f32]) {
        let [low, high] = memories;
        let parts = [low.m, high.m, low.s, high.s];
        let mut rest = state;
        for part in parts {
            let (own, behind) = rest.split_at_mut(part.len());
            own.copy_from_slice(&part);
            rest = behind;
        }
    }

    fn view<'v>(&self, lesson: &'v Lesson, layer: usize, q: &'v [f32], k: &'v [f32]) -> View<'v> {
        let n = lesson.ones.len();
        let values = &lesson.values[layer];
        View {
            tokens: n,
            q: Mat::new(q, n, q.len() / n),
            k: Mat::new(k, n, k.len() / n),
            v: Mat::new(values, n, values.len() / n),
            w: &lesson.ones,
            r: &[],
            a: &lesson.a,
            eta: &lesson.eta,
        }
    }

    /// Equations (34), (35), (40) for all tokens at once.
    fn lesson(&self, rows: Rows<'_>, point: &[f32]) -> Lesson {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let ((first, all), width) = (self.sizes(), rows.gates.len() / rows.tokens);
        let gates: Vec<_> = rows.gates.chunks_exact(width).map(|gates| self.gates(gates)).collect();
        let zeros = |width: usize| vec![0.0; n * width];
        let mut lesson = Lesson {
            pre: zeros(d),
            h: zeros(d),
            slope: zeros(d),
            back: zeros(d),
            error: zeros(v),
            u: zeros(v),
            a: gates.iter().map(|gates| gates.a).collect(),
            eta: if self.deep.momentum { gates.iter().map(|gates| gates.eta).collect() } else { Vec::new() },
            theta: gates.iter().map(|gates| gates.theta).collect(),
            ones: vec![1.0; n],
            ..Lesson::default()
        };
        let (w0, w1) = (Mat::new(&point[..first], self.key, d), Mat::new(&point[first..all], d, v));
        product(MatMut::new(&mut lesson.pre, n, d), 0.0, 1.0, Mat::new(rows.k, n, self.key), w0);
        self.activate(&lesson.pre, &mut lesson.h, &mut lesson.slope);
        product(MatMut::new(&mut lesson.error, n, v), 0.0, 1.0, Mat::new(&lesson.h, n, d), w1);
        lesson.deviation = self.normalise(&mut lesson.error);
        if self.deep.structure.norm() {
            lesson.normed = lesson.error.clone();
        }
        if self.deep.structure.residual() {
            axpy(&mut lesson.error, 1.0, rows.k);
        }
        axpy(&mut lesson.error, -1.0, rows.v);
        for ((u, error), gates) in lesson.u.chunks_exact_mut(v).zip(lesson.error.chunks_exact(v)).zip(&gates) {
            bias::teach(self.deep.bias, error, gates.delta, u);
        }
        lesson.u_o = self.through_norm(&lesson.normed, &lesson.deviation, &lesson.u);
        product(MatMut::new(&mut lesson.back, n, d), 0.0, 1.0, Mat::new(&lesson.u_o, n, v), w1.t());
        lesson.delta = lesson.back.iter().zip(&lesson.slope).map(|(back, slope)| back * slope).collect();
        let scaled = |x: &[f32], width: usize| -> Vec<f32> {
            let rows = x.chunks_exact(width).zip(&lesson.theta);
            rows.flat_map(|(row, theta)| row.iter().map(move |x| -theta * x)).collect()
        };
        lesson.values = [scaled(&lesson.delta, d), scaled(&lesson.u_o, v)];
        lesson
    }

    fn activate(&self, pre: &[f32], h: &mut [f32], slope: &mut [f32]) {
        let activation = self.activation();
        wide(
            (h, slope),
            #[inline(always)]
            |(h, slope)| activate(activation, pre, h, slope),
        );
    }

    /// Norms rows in place where there is a norm; their deviations.
    fn normalise(&self, rows: &mut [f32]) -> Vec<f32> {
        match self.deep.structure.norm() {
            true => rows.chunks_exact_mut(self.value).map(norm::normalise).collect(),
            false => Vec::new(),
        }
    }

    /// `J e` row by row, or `e` where there is no norm.
    fn through_norm(&self, normed: &[f32], deviation: &[f32], e: &[f32]) -> Vec<f32> {
        if !self.deep.structure.norm() {
            return e.to_vec();
        }
        let (mut out, v) = (vec![0.0; e.len()], self.value);
        let rows = out.chunks_exact_mut(v).zip(e.chunks_exact(v)).zip(normed.chunks_exact(v)).zip(deviation);
        rows.for_each(|(((out, e), normed), &deviation)| norm::add_jacobian(normed, deviation, e, out));
        out
    }

    /// Both calls; `memories` go from before the stretch to behind it.
    fn read(&self, rows: Rows<'_>, lesson: &Lesson, memories: &mut [Memory; 2], layers: &mut Layers) -> Read {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let [low, high] = memories;
        let (mut pre, [low_work, high_work]) = (vec![0.0; n * d], layers);
        let view = self.view(lesson, 0, rows.q, rows.k);
        chunk::forward(self.spec(), &view, low, &mut low_work.forward, &mut rows_of(&mut pre, d));
        let (mut h, mut slope) = (vec![0.0; n * d], vec![0.0; n * d]);
        self.activate(&pre, &mut h, &mut slope);
        let mut out = vec![0.0; n * v];
        let view = self.view(lesson, 1, &h, &lesson.h);
        chunk::forward(self.spec(), &view, high, &mut high_work.forward, &mut rows_of(&mut out, v));
        let deviation = self.normalise(&mut out);
        Read { h, slope, out, deviation }
    }

    /// One call backward; `dmemory` goes from behind the stretch to before it.
    fn layer_back(
        &self,
        view: &View<'_>,
        work: &mut chunk_backward::Workspace,
        start: &Memory,
        dout: &[f32],
        dmemory: &mut Memory,
    ) -> Layer {
        let (n, k, v) = (view.tokens, view.k.columns, view.v.columns);
        let zeros = |width: usize| vec![0.0; n * width];
        let (mut dq, mut dk, mut dv) = (zeros(k), zeros(k), zeros(v));
        let (mut dw, mut da, mut deta) = (zeros(1), zeros(1), zeros(usize::from(self.deep.momentum)));
        let part = Part {
            dq: &mut rows_of(&mut dq, k),
            dk: &mut rows_of(&mut dk, k),
            dv: &mut rows_of(&mut dv, v),
            dw: &mut dw,
            dr: &mut [],
            da: &mut da,
            deta: &mut deta,
        };
        let start = Start { m: &start.m, s: &start.s, group: &[] };
        chunk_backward::run(self.spec(), view, &start, work, &Mat::new(dout, n, v), dmemory, part);
        Layer { dq, dk, dv, scalars: [da, deta] }
    }

    /// Gradients of the gates from those of both calls: `dθ = −Σ dz∘δ − Σ dz∘u_o`.
    fn gate_grads(&self, lesson: &Lesson, layers: &[Layer; 2], ddelta: &[f32], dgates: &mut [f32]) {
        let (d, v, after) = (self.d(), self.value, usize::from(self.deep.momentum));
        let width = dgates.len() / lesson.ones.len();
        for (t, gates) in dgates.chunks_exact_mut(width).enumerate() {
            let [low, high] = layers;
            gates[0] = lesson.a[t] * (low.scalars[0][t] + high.scalars[0][t]);
            if self.deep.momentum {
                gates[1] = lesson.eta[t] * (low.scalars[1][t] + high.scalars[1][t]);
            }
            let row = |x: &[f32], y: &[f32], width: usize| dot(&x[t * width..][..width], &y[t * width..][..width]);
            gates[1 + after] = -row(&low.dv, &lesson.delta, d) - row(&high.dv, &lesson.u_o, v);
            if let Bias::Huber(_) = self.deep.bias {
                gates[2 + after] = ddelta[t];
            }
        }
    }

    /// `(ō, ē, dδ)` of (43) and (44) from the gradient of `u_o`, row by row.
    fn unteach(&self, rows: Rows<'_>, lesson: &Lesson, du_o: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (n, v, norm) = (rows.tokens, self.value, self.deep.structure.norm());
        let du = self.through_norm(&lesson.normed, &lesson.deviation, du_o);
        let (mut de, mut spare) = (vec![0.0; n * v], vec![0.0; v]);
        let width = rows.gates.len() / n;
        let mut ddelta = Vec::with_capacity(n);
        for (t, de) in de.chunks_exact_mut(v).enumerate() {
            let (row, delta) = (t * v..(t + 1) * v, self.gates(&rows.gates[t * width..][..width]).delta);
            ddelta.push(bias::teach_back(self.deep.bias, &lesson.error[row.clone()], delta, &du[row], de));
        }
        let mut do_ = self.through_norm(&lesson.normed, &lesson.deviation, &de);
        if norm {
            let mut bent = vec![0.0; v];
            for (t, do_) in do_.chunks_exact_mut(v).enumerate() {
                let row = t * v..(t + 1) * v;
                let [normed, u, u_o] = [&lesson.normed, &lesson.u, &lesson.u_o].map(|x| &x[row.clone()]);
                norm::bend(normed, lesson.deviation[t], u, u_o, &du_o[row.clone()], &mut spare, &mut bent);
                axpy(do_, 1.0, &bent);
            }
        }
        (do_, de, ddelta)
    }
}

impl Groups<Scratch> for DeepCell {
    fn forward(&self, rows: Rows<'_>, scratch: &mut Scratch, state: &mut [f32], point: &[f32], out: &mut [f32]) {
        let lesson = self.lesson(rows, point);
        let mut memories = self.memories(state);
        let read = self.read(rows, &lesson, &mut memories, &mut scratch.layers);
        self.store(memories, state);
        out.copy_from_slice(&read.out);
        if self.deep.structure.residual() {
            axpy(out, 1.0, rows.q);
        }
    }

    fn backward(
        &self,
        rows: Rows<'_>,
        scratch: &mut Scratch,
        start: &[f32],
        point: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        grads: TokenGrads<'_>,
    ) {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let ((first, all), key) = (self.sizes(), self.key);
        let lesson = self.lesson(rows, point);
        let read = self.read(rows, &lesson, &mut self.memories(start), &mut scratch.layers);
        let [low_work, high_work] = &mut scratch.layers;
        let [low, high] = self.memories(start);
        let [mut dlow, mut dhigh] = self.memories(adjoint.state);

        let doutput = self.through_norm(&read.out, &read.deviation, dout);
        let view = self.view(&lesson, 1, &read.h, &lesson.h);
        let high = self.layer_back(&view, high_work, &high, &doutput, &mut dhigh);
        let dpre: Vec<f32> = high.dq.iter().zip(&read.slope).map(|(dh, slope)| dh * slope).collect();
        let low = self.layer_back(&self.view(&lesson, 0, rows.q, rows.k), low_work, &low, &dpre, &mut dlow);
        self.store([dlow, dhigh], adjoint.state);
        axpy(grads.q, 1.0, &low.dq);
        axpy(grads.k, 1.0, &low.dk);
        if self.deep.structure.residual() {
            axpy(grads.q, 1.0, dout);
        }

        // What was written, back to the group's start: (42)–(45).
        let scaled = |x: &[f32], width: usize| -> Vec<f32> {
            let rows = x.chunks_exact(width).zip(&lesson.theta);
            rows.flat_map(|(row, theta)| row.iter().map(move |x| -theta * x)).collect()
        };
        let (ddelta, mut du_o) = (scaled(&low.dv, d), scaled(&high.dv, v));
        let dback: Vec<f32> = ddelta.iter().zip(&lesson.slope).map(|(ddelta, slope)| ddelta * slope).collect();
        let (w0, w1) = (Mat::new(&point[..first], key, d), Mat::new(&point[first..all], d, v));
        product(MatMut::new(&mut du_o, n, v), 1.0, 1.0, Mat::new(&dback, n, d), w1);
        let (do_, de, threshold) = self.unteach(rows, &lesson, &du_o);
        let mut dh = high.dk.clone();
        product(MatMut::new(&mut dh, n, d), 1.0, 1.0, Mat::new(&do_, n, v), w1.t());
        let mut dpre = vec![0.0; n * d];
        curve(self.activation(), &lesson.pre, &lesson.back, &mut dpre);
        for ((dpre, ddelta), (dh, slope)) in dpre.iter_mut().zip(&ddelta).zip(dh.iter().zip(&lesson.slope)) {
            *dpre = *dpre * ddelta + dh * slope;
        }
        product(MatMut::new(grads.k, n, key), 1.0, 1.0, Mat::new(&dpre, n, d), w0.t());
        axpy(grads.v, -1.0, &de);
        if self.deep.structure.residual() {
            axpy(grads.k, 1.0, &de);
        }
        let (dw0, dw1) = adjoint.point[..all].split_at_mut(first);
        product(MatMut::new(dw0, key, d), 1.0, 1.0, Mat::new(rows.k, n, key).t(), Mat::new(&dpre, n, d));
        product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&dback, n, d).t(), Mat::new(&lesson.u_o, n, v));
        product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&lesson.h, n, d).t(), Mat::new(&do_, n, v));
        self.gate_grads(&lesson, &[low, high], &threshold, grads.gates);
    }
}
