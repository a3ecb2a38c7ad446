//! Inner gradients of a chunk's tokens at the group's start, as products, and their derivative.

use super::{
    DeepCell,
    activation::{activate, second_derivative},
    bias, norm,
};
use crate::{
    product::{Mat, MatMut, product},
    recurrent::{GroupAnchor, TokenGrads, TokenRows},
    rows::{axpy, scale},
    simd::wide,
};

/// Inner gradients of a chunk's tokens at the group's start: rows as in a token's [`Record`](super::Record).
#[derive(Default)]
pub(super) struct InnerGrads {
    /// `[n,D]`.
    pub(super) pre: Vec<f32>,
    /// `σ(pre) [n,D]`.
    pub(super) h: Vec<f32>,
    /// `σ′(pre) [n,D]`.
    pub(super) slope: Vec<f32>,
    /// `W₁ u_o [n,D]`.
    pub(super) back: Vec<f32>,
    /// `[n,D]`.
    pub(super) delta: Vec<f32>,
    /// `[n,V]`.
    pub(super) error: Vec<f32>,
    /// `ψ(e) [n,V]`, clipped.
    pub(super) u: Vec<f32>,
    /// `s` of (94), `[n]`.
    pub(super) shrink: Vec<f32>,
    /// `u` through the norm, `[n,V]`.
    pub(super) u_o: Vec<f32>,
    /// Normed outputs `[n,V]`; empty without a norm.
    pub(super) normed: Vec<f32>,
    /// `[n]`.
    pub(super) deviation: Vec<f32>,
    /// What each layer is written with: `−θ δ [n,D]`, `−θ u_o [n,V]`.
    pub(super) values: [Vec<f32>; 2],
    /// Gates `[n]`; `ones` stands for `w`.
    pub(super) a: Vec<f32>,
    /// `[n]`; empty without momentum.
    pub(super) eta: Vec<f32>,
    /// `[n]`.
    pub(super) theta: Vec<f32>,
    /// `[n]`, all 1: the recurrence's write strength.
    pub(super) ones: Vec<f32>,
}

/// Gradients of what a chunk's tokens wrote, with the step sizes in them.
pub(super) struct WrittenGrads {
    /// Of `u_o`, `[n,V]`.
    pub(super) du_o: Vec<f32>,
    /// Of `δ` and of `h`, `[n,D]`.
    pub(super) ddelta: Vec<f32>,
    /// Both are empty for a matrix.
    pub(super) dh: Vec<f32>,
}

impl WrittenGrads {
    /// Of `n` tokens, all 0.
    pub(super) fn new(n: usize, d: usize, v: usize) -> Self {
        Self { du_o: vec![0.0; n * v], ddelta: vec![0.0; n * d], dh: vec![0.0; n * d] }
    }

    /// Takes those of token `t` from where its write's way back leaves them: `h̄`, `δ̄` and `ū_o` come first.
    pub(super) fn set(&mut self, t: usize, n: usize, hidden: &[f32], value: &[f32]) {
        let (d, v) = (self.dh.len() / n, self.du_o.len() / n);
        self.dh[t * d..][..d].copy_from_slice(&hidden[..d]);
        self.ddelta[t * d..][..d].copy_from_slice(&hidden[d..2 * d]);
        self.du_o[t * v..][..v].copy_from_slice(&value[..v]);
    }
}

impl InnerGrads {
    /// `−θ x`, row by row, of an `x [n, any]`.
    pub(super) fn scaled(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        scale_rows(&mut out, self.theta.iter().map(|theta| -theta));
        out
    }
}

/// Row after row times its factor, all rows of one width.
pub(super) fn scale_rows(x: &mut [f32], factors: impl ExactSizeIterator<Item = f32>) {
    let width = x.len() / factors.len();
    x.chunks_exact_mut(width.max(1)).zip(factors).for_each(|(row, factor)| {
        wide(
            row,
            #[inline(always)]
            |row| scale(row, factor),
        );
    });
}

impl DeepCell {
    /// Equations (34), (35), (40) for all tokens of a chunk at once, at the weights `point`.
    pub(super) fn inner_grads(
        &self,
        rows: TokenRows<'_>,
        point: &[f32],
        anchor: Option<GroupAnchor<'_>>,
    ) -> InnerGrads {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        let width = rows.gates.len() / rows.tokens;
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
            a: anchor.map_or_else(|| gates.iter().map(|gates| gates.a).collect(), |anchor| anchor.retention.to_vec()),
            eta: if self.form.momentum() { gates.iter().map(|gates| gates.eta).collect() } else { Vec::new() },
            theta: gates.iter().map(|gates| gates.theta).collect(),
            ones: vec![1.0; n],
            ..InnerGrads::default()
        };
        let (low, high) = point[..self.sizes().1].split_at(self.low());
        let (inputs, w1) = (self.inputs(), Mat::new(high, self.inputs(), v));
        // The memory at the point, for all keys at once: a product, or two with an activation between.
        match self.hidden {
            Some(_) => {
                let (k, w0) = (Mat::new(rows.k, n, self.key), Mat::new(low, self.key, d));
                product(MatMut::new(&mut inner.pre, n, d), 0.0, 1.0, k, w0);
                self.activate(&inner.pre, &mut inner.h, &mut inner.slope);
            }
            None => inner.h = rows.k.to_vec(),
        }
        product(MatMut::new(&mut inner.error, n, v), 0.0, 1.0, Mat::new(&inner.h, n, inputs), w1);
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
        // What each layer is written with: minus the step size times its factor of the gradient.
        inner.values[1] = inner.scaled(&inner.u_o);
        if self.hidden.is_some() {
            // `b = u_o W₁ᵀ`, the error's gradient at the hidden layer.
            product(MatMut::new(&mut inner.back, n, d), 0.0, 1.0, Mat::new(&inner.u_o, n, v), w1.t());
            inner.delta = inner.back.iter().zip(&inner.slope).map(|(back, slope)| back * slope).collect();
            inner.values[0] = inner.scaled(&inner.delta);
        }
        inner
    }

    /// `σ` and `σ′` of `[n,D]`, compiled for the widest vectors.
    pub(super) fn activate(&self, pre: &[f32], h: &mut [f32], slope: &mut [f32]) {
        let activation = self.activation();
        wide(
            (h, slope),
            #[inline(always)]
            |(h, slope)| activate(activation, pre, h, slope),
        );
    }

    /// Norms rows `[V]` in place where there is a norm; returns their deviations.
    pub(super) fn normalise(&self, rows: &mut [f32]) -> Vec<f32> {
        match self.spec.structure.norm() {
            true => rows.chunks_exact_mut(self.value).map(norm::normalise).collect(),
            false => Vec::new(),
        }
    }

    /// `J e` row by row for `e [n,V]`, or `e` where there is no norm.
    pub(super) fn through_norm(&self, normed: &[f32], deviation: &[f32], e: &[f32]) -> Vec<f32> {
        if !self.spec.structure.norm() {
            return e.to_vec();
        }
        let (mut out, v) = (vec![0.0; e.len()], self.value);
        let rows = out.chunks_exact_mut(v).zip(e.chunks_exact(v)).zip(normed.chunks_exact(v)).zip(deviation);
        rows.for_each(|(((out, e), normed), &deviation)| norm::add_jacobian(normed, deviation, e, out));
        out
    }

    /// `(ō, ē, dδ)` of (43) and (44) from the gradient of `u_o`, row by row: `[n,V]`, `[n,V]`, `[n]`.
    pub(super) fn inner_grads_vjp(
        &self,
        rows: TokenRows<'_>,
        inner: &InnerGrads,
        du_o: &[f32],
    ) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
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

    /// From gradients of what a chunk's tokens wrote to those of the weights at the group's start, of keys and of values, all
    /// added to: (42)–(45). Returns gradients of thresholds.
    pub(super) fn inner_vjp(
        &self,
        rows: TokenRows<'_>,
        inner: &InnerGrads,
        weights: &[f32],
        WrittenGrads { mut du_o, ddelta, mut dh }: WrittenGrads,
        dweights: &mut [f32],
        grads: &mut TokenGrads<'_>,
    ) -> Vec<f32> {
        let (n, d, v, key) = (rows.tokens, self.d(), self.value, self.key);
        let ((_, all), first, inputs) = (self.sizes(), self.low(), self.inputs());
        let (w0, w1) = weights[..all].split_at(first);
        let (dw0, dw1) = dweights.split_at_mut(first);
        let (w1, u_o) = (Mat::new(w1, inputs, v), Mat::new(&inner.u_o, n, v));
        if self.hidden.is_some() {
            // `b = u_o W₁ᵀ` sends the gradient of `b` back to `u_o`, and to the point.
            let dback: Vec<f32> = ddelta.iter().zip(&inner.slope).map(|(ddelta, slope)| ddelta * slope).collect();
            product(MatMut::new(&mut du_o, n, v), 1.0, 1.0, Mat::new(&dback, n, d), w1);
            product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&dback, n, d).t(), u_o);
        }
        // Through the bias and the norm, row by row.
        let (do_, de, threshold) = self.inner_grads_vjp(rows, inner, &du_o);
        let (outputs, keys) = (Mat::new(&do_, n, v), Mat::new(rows.k, n, key));
        if self.hidden.is_some() {
            product(MatMut::new(&mut dh, n, d), 1.0, 1.0, outputs, w1.t());
            let mut dpre = vec![0.0; n * d];
            // Through `σ′` in `δ`, and through `h = σ(pre)`.
            let activation = self.activation();
            wide(
                &mut dpre[..],
                #[inline(always)]
                |dpre| {
                    second_derivative(activation, &inner.pre, &inner.back, dpre);
                    for ((dpre, ddelta), (dh, slope)) in dpre.iter_mut().zip(&ddelta).zip(dh.iter().zip(&inner.slope)) {
                        *dpre = *dpre * ddelta + dh * slope;
                    }
                },
            );
            // The first layer's product at the point, back to the keys and to its weights.
            product(MatMut::new(grads.k, n, key), 1.0, 1.0, Mat::new(&dpre, n, d), Mat::new(w0, key, d).t());
            product(MatMut::new(dw0, key, d), 1.0, 1.0, keys.t(), Mat::new(&dpre, n, d));
        } else {
            product(MatMut::new(grads.k, n, key), 1.0, 1.0, outputs, w1.t());
        }
        product(MatMut::new(dw1, inputs, v), 1.0, 1.0, Mat::new(&inner.h, n, inputs).t(), outputs);
        axpy(grads.v, -1.0, &de);
        if self.spec.structure.residual() {
            axpy(grads.k, 1.0, &de);
        }
        threshold
    }
}
