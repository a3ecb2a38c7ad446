//! Inner gradients of a chunk's tokens at the group's start, as products, and their derivative.

use super::{
    DeepCell, Gates,
    activation::{activate, second_derivative},
    bias, norm,
};
use crate::{
    product::{Mat, MatMut, product},
    recurrent::{GroupAnchor, TokenGrads, TokenRows},
    rows::{axpy, scale, set_scaled},
    simd::wide,
};

/// Inner gradients of a chunk's tokens at the group's start: rows as in a token's [`Record`](super::Record).
#[derive(Default)]
pub(super) struct InnerGrads {
    /// `[n,D]`. All with `D` are empty for a matrix.
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
    /// `[n]`; empty without a norm.
    pub(super) deviation: Vec<f32>,
    /// What each layer is written with: `−θ δ [n,D]`, `−θ u_o [n,V]`.
    pub(super) values: [Vec<f32>; 2],
    /// Gates `[n]`; `ones` stands for `w`.
    pub(super) a: Vec<f32>,
    /// `1 − a` where there is an anchor, else of no consequence, `[n]`.
    pub(super) lost: Vec<f32>,
    /// `[n]`; empty without momentum.
    pub(super) eta: Vec<f32>,
    /// `[n]`.
    pub(super) theta: Vec<f32>,
    /// Of the bias, `[n]`; 0 where it has none.
    pub(super) threshold: Vec<f32>,
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

/// Takes a length; the elements then have any values. Nothing is allocated where it is no longer than before.
pub(super) fn fit(x: &mut Vec<f32>, count: usize) {
    x.resize(count, 0.0);
}

impl InnerGrads {
    /// Takes the sizes of `n` tokens, in the memory that is there.
    fn fit(&mut self, n: usize, [d, v]: [usize; 2], norm: bool) {
        let [low, high] = &mut self.values;
        for x in [&mut self.pre, &mut self.h, &mut self.slope, &mut self.back, &mut self.delta, low] {
            fit(x, n * d);
        }
        for x in [&mut self.error, &mut self.u, &mut self.u_o, high] {
            fit(x, n * v);
        }
        for x in [&mut self.shrink, &mut self.a, &mut self.lost, &mut self.theta, &mut self.threshold] {
            fit(x, n);
        }
        fit(&mut self.normed, if norm { n * v } else { 0 });
        fit(&mut self.deviation, if norm { n } else { 0 });
        self.ones.resize(n, 1.0);
    }

    /// `x ← −θ x`, row by row, of an `x [n, any]`.
    pub(super) fn scale(&self, x: &mut [f32]) {
        scale_rows(x, self.theta.iter().map(|theta| -theta));
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
        inner: &mut InnerGrads,
    ) {
        let (n, d, v) = (rows.tokens, self.d(), self.value);
        inner.fit(n, [d, v], self.spec.structure.norm());
        self.inner_gates(rows, anchor, inner);
        let (low, high) = point[..self.sizes().1].split_at(self.low());
        let (inputs, w1) = (self.inputs(), Mat::new(high, self.inputs(), v));
        // The memory at the point, for all keys at once: a product, or two with an activation between.
        if self.hidden.is_some() {
            let (k, w0) = (Mat::new(rows.k, n, self.key), Mat::new(low, self.key, d));
            product(MatMut::new(&mut inner.pre, n, d), 0.0, 1.0, k, w0);
            self.activate(&inner.pre, &mut inner.h, &mut inner.slope);
        }
        let h = if self.hidden.is_some() { &inner.h } else { rows.k };
        product(MatMut::new(&mut inner.error, n, v), 0.0, 1.0, Mat::new(h, n, inputs), w1);
        wide(
            &mut *inner,
            #[inline(always)]
            |inner| self.output_grads(rows, inner),
        );
        if self.hidden.is_none() {
            return;
        }
        // `b = u_o W₁ᵀ`, the error's gradient at the hidden layer.
        product(MatMut::new(&mut inner.back, n, d), 0.0, 1.0, Mat::new(&inner.u_o, n, v), w1.t());
        wide(
            inner,
            #[inline(always)]
            |InnerGrads { back, slope, delta, values: [low, _], theta, .. }| {
                delta.iter_mut().zip(back.iter().zip(&*slope)).for_each(|(delta, (back, slope))| *delta = back * slope);
                let rows = low.chunks_exact_mut(d).zip(delta.chunks_exact(d));
                rows.zip(&*theta).for_each(|((low, delta), theta)| set_scaled(low, -theta, delta));
            },
        );
    }

    /// What goes into the last layer: rows `[n, inputs]`, activations of keys or keys themselves.
    pub(super) fn keys_of<'a>(&self, rows: TokenRows<'a>, inner: &'a InnerGrads) -> &'a [f32] {
        if self.hidden.is_some() { &inner.h } else { rows.k }
    }

    /// Logarithms of gates become factors once for the whole chunk.
    fn inner_gates(&self, rows: TokenRows<'_>, anchor: Option<GroupAnchor<'_>>, inner: &mut InnerGrads) {
        // Only with momentum does it have elements.
        inner.eta.clear();
        for (t, gates) in rows.gates.chunks_exact(rows.gates.len() / rows.tokens).enumerate() {
            let Gates { decay, eta, theta, delta, .. } = self.gates(gates);
            let decay = anchor.map_or(decay, |anchor| anchor.decays[t]);
            (inner.a[t], inner.lost[t]) = (decay.a, decay.lost);
            (inner.theta[t], inner.threshold[t]) = (theta, delta);
            if self.form.momentum() {
                inner.eta.push(eta);
            }
        }
    }

    /// From what the last layer gave, in `error`, to what it is written with. Biases and norms look at a whole row.
    #[inline(always)]
    fn output_grads(&self, rows: TokenRows<'_>, inner: &mut InnerGrads) {
        let InnerGrads { error, u, shrink, u_o, normed, deviation, values: [_, values], theta, threshold, .. } = inner;
        let (structure, v) = (self.spec.structure, self.value);
        for t in 0..rows.tokens {
            let row = t * v..(t + 1) * v;
            let [error, u, u_o, values] = [&mut *error, u, u_o, values].map(|x| &mut x[row.clone()]);
            if structure.norm() {
                deviation[t] = norm::normalise(error);
                normed[row.clone()].copy_from_slice(error);
            }
            if structure.residual() {
                axpy(error, 1.0, &rows.k[row.clone()]);
            }
            // The error is prediction minus value.
            axpy(error, -1.0, &rows.v[row.clone()]);
            bias::inner_grad(self.spec.bias, error, threshold[t], u);
            shrink[t] = bias::clip(self.spec.clip, u);
            match structure.norm() {
                true => {
                    u_o.fill(0.0);
                    norm::add_jacobian(&normed[row], deviation[t], u, u_o);
                }
                false => u_o.copy_from_slice(u),
            }
            // Minus the step size times its factor of the gradient.
            set_scaled(values, -theta[t], u_o);
        }
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

    /// Norms rows `[V]` in place where there is a norm, and sets their deviations `[n]`.
    pub(super) fn normalise(&self, rows: &mut [f32], deviation: &mut Vec<f32>) {
        fit(deviation, if self.spec.structure.norm() { rows.len() / self.value } else { 0 });
        wide(
            (rows, deviation),
            #[inline(always)]
            |(rows, deviation): (&mut [f32], &mut Vec<f32>)| {
                let rows = rows.chunks_exact_mut(self.value);
                deviation.iter_mut().zip(rows).for_each(|(deviation, row)| *deviation = norm::normalise(row));
            },
        );
    }

    /// `J e` row by row for `e [n,V]`; only where there is a norm.
    pub(super) fn through_norm(&self, normed: &[f32], deviation: &[f32], e: &[f32]) -> Vec<f32> {
        let (mut out, v) = (vec![0.0; e.len()], self.value);
        wide(
            &mut out[..],
            #[inline(always)]
            |out: &mut [f32]| {
                let rows = out.chunks_exact_mut(v).zip(e.chunks_exact(v)).zip(normed.chunks_exact(v)).zip(deviation);
                rows.for_each(|(((out, e), normed), &deviation)| norm::add_jacobian(normed, deviation, e, out));
            },
        );
        out
    }

    /// `(ō, ē)` of (43) and (44) from the gradient of `u_o`, row by row, `[n,V]` each; that of thresholds into `dthreshold [n]`.
    #[inline(always)]
    fn output_grads_vjp(&self, inner: &InnerGrads, du_o: &[f32], [do_, de, spare, dthreshold]: [&mut [f32]; 4]) {
        let (v, norm) = (self.value, self.spec.structure.norm());
        let (du, spare) = spare.split_at_mut(v);
        for (t, dthreshold) in dthreshold.iter_mut().enumerate() {
            let row = t * v..(t + 1) * v;
            let ([do_, de], du_o) = ([&mut *do_, &mut *de].map(|x| &mut x[row.clone()]), &du_o[row.clone()]);
            let [u, error, u_o] = [&inner.u, &inner.error, &inner.u_o].map(|x| &x[row.clone()]);
            let (normed, deviation) = if norm { (&inner.normed[row], inner.deviation[t]) } else { (u, 1.0) };
            // The norm's Jacobian is symmetric: the way back is the same product.
            match norm {
                true => {
                    du.fill(0.0);
                    norm::add_jacobian(normed, deviation, du_o, du);
                }
                false => du.copy_from_slice(du_o),
            }
            bias::clip_vjp(self.spec.clip, u, inner.shrink[t], du);
            de.fill(0.0);
            *dthreshold = bias::inner_grad_vjp(self.spec.bias, error, inner.threshold[t], du, de);
            match norm {
                true => {
                    // The second way to the output is through the norm itself.
                    norm::second_derivative(normed, deviation, u, u_o, du_o, spare, do_);
                    norm::add_jacobian(normed, deviation, de, do_);
                }
                false => do_.copy_from_slice(de),
            }
        }
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
            let mut dback = vec![0.0; n * d];
            wide(
                &mut dback[..],
                #[inline(always)]
                |dback| {
                    let pairs = ddelta.iter().zip(&inner.slope);
                    dback.iter_mut().zip(pairs).for_each(|(dback, (ddelta, slope))| *dback = ddelta * slope);
                },
            );
            product(MatMut::new(&mut du_o, n, v), 1.0, 1.0, Mat::new(&dback, n, d), w1);
            product(MatMut::new(dw1, d, v), 1.0, 1.0, Mat::new(&dback, n, d).t(), u_o);
        }
        // Through the bias and the norm, row by row.
        let [mut do_, mut de, mut spare] = [n * v, n * v, 2 * v].map(|count| vec![0.0; count]);
        let mut threshold = vec![0.0; n];
        wide(
            [&mut do_[..], &mut de, &mut spare, &mut threshold],
            #[inline(always)]
            |to| self.output_grads_vjp(inner, &du_o, to),
        );
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
        product(MatMut::new(dw1, inputs, v), 1.0, 1.0, Mat::new(self.keys_of(rows, inner), n, inputs).t(), outputs);
        wide(
            (&mut *grads.v, &mut *grads.k),
            #[inline(always)]
            |(dv, dk): (&mut [f32], &mut [f32])| {
                axpy(dv, -1.0, &de);
                if self.spec.structure.residual() {
                    axpy(dk, 1.0, &de);
                }
            },
        );
        threshold
    }
}
