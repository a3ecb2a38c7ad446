//! Newton-Schulz: equations (88)–(92).
//!
//! A few steps of `X ← α X + (β A + κ A²) X`, `A = X Xᵀ`, bring the singular values of `S/ν` near 1.
//! The smaller side comes first, so that `A` and `B` are `[p,p]` with `p = min(K,V)`.
//! The backward keeps `X`, `A` and `B` of every step: they are the size of a state, and only one token's at a time.

use crate::{
    product::{Mat, MatMut, product},
    rows::{axpy, dot},
};
use hecate_core::rules::{NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON};

/// Workspace for `NS(S)` and its gradient; `S` is kept as `[p,n]`, `p ≤ n`.
pub(super) struct NewtonSchulz {
    /// Steps; with 0 every array is empty.
    steps: usize,
    /// `p`, `n`.
    size: (usize, usize),
    /// Whether `S` has more rows than columns, and is transposed here.
    transposed: bool,
    /// `1/ν`, with `ν` the Frobenius norm of `S`.
    inverse: f32,
    /// `X [p,n]` before each step and after the last.
    x: Vec<f32>,
    /// `A [p,p]` of each step.
    a: Vec<f32>,
    /// `B [p,p]` of each step.
    b: Vec<f32>,
    /// `D [p,n]`.
    d: Vec<f32>,
    /// `D` after a step.
    next: Vec<f32>,
    /// `dB [p,p]`.
    db: Vec<f32>,
    /// `dA [p,p]`.
    da: Vec<f32>,
    /// `NS(S)` as `S` lies.
    result: Vec<f32>,
}

impl NewtonSchulz {
    /// For `S` of these sizes.
    pub(super) fn new(steps: usize, rows: usize, columns: usize) -> Self {
        let (p, n) = (rows.min(columns), rows.max(columns));
        let zeros = |count: usize| vec![0.0; if steps > 0 { count } else { 0 }];
        Self {
            steps,
            size: (p, n),
            transposed: rows > columns,
            inverse: 0.0,
            x: zeros((steps + 1) * p * n),
            a: zeros(steps * p * p),
            b: zeros(steps * p * p),
            d: zeros(p * n),
            next: zeros(p * n),
            db: zeros(p * p),
            da: zeros(p * p),
            result: zeros(p * n),
        }
    }

    /// Elements of all arrays, for the peak memory.
    pub(super) fn elements(steps: usize, rows: usize, columns: usize) -> usize {
        let p = rows.min(columns);
        if steps > 0 { (steps + 4) * rows * columns + 2 * (steps + 1) * p * p } else { 0 }
    }

    /// `NS(S)`, equations (88)–(90).
    #[inline(always)]
    pub(super) fn forward(&mut self, s: &[f32]) -> &[f32] {
        let (p, n) = self.size;
        let [alpha, beta, kappa] = NEWTON_SCHULZ;
        let epsilon = NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON;
        // The Frobenius norm bounds the largest singular value, so the steps start inside their range.
        self.inverse = 1.0 / (dot(s, s) + epsilon).sqrt();
        orient(&mut self.x[..p * n], s, (p, n), self.transposed);
        self.x[..p * n].iter_mut().for_each(|x| *x *= self.inverse);
        for step in 0..self.steps {
            let (x, next) = self.x[step * p * n..].split_at_mut(p * n);
            let next = &mut next[..p * n];
            // `A = X Xᵀ`, `B = β A + κ A²`, `X ← α X + B X`: three products a step.
            let (a, b) = (&mut self.a[step * p * p..][..p * p], &mut self.b[step * p * p..][..p * p]);
            product(MatMut::new(a, p, p), 0.0, 1.0, Mat::new(x, p, n), Mat::new(x, p, n).t());
            b.copy_from_slice(a);
            product(MatMut::new(b, p, p), beta, kappa, Mat::new(a, p, p), Mat::new(a, p, p));
            next.copy_from_slice(x);
            product(MatMut::new(next, p, n), alpha, 1.0, Mat::new(b, p, p), Mat::new(x, p, n));
        }
        let last = &self.x[self.steps * p * n..];
        // The result lies as `S` does.
        if !self.transposed {
            return last;
        }
        orient(&mut self.result, last, (n, p), true);
        &self.result
    }

    /// `dS += NS′(S)ᵀ (factor dU)` at the `S` of the last [`NewtonSchulz::forward`], equations (91), (92).
    #[inline(always)]
    pub(super) fn backward(&mut self, factor: f32, du: &[f32], ds: &mut [f32]) {
        let (p, n) = self.size;
        let [alpha, beta, kappa] = NEWTON_SCHULZ;
        orient(&mut self.d, du, (p, n), self.transposed);
        self.d.iter_mut().for_each(|d| *d *= factor);
        for step in (0..self.steps).rev() {
            let x = Mat::new(&self.x[step * p * n..][..p * n], p, n);
            let a = Mat::new(&self.a[step * p * p..][..p * p], p, p);
            let b = Mat::new(&self.b[step * p * p..][..p * p], p, p);
            // `dB = D Xᵀ`, then `dA` through both of its terms, then `D` through all three of its uses.
            product(MatMut::new(&mut self.db, p, p), 0.0, 1.0, Mat::new(&self.d, p, n), x.t());
            let db = Mat::new(&self.db, p, p);
            self.da.copy_from_slice(&self.db);
            product(MatMut::new(&mut self.da, p, p), beta, kappa, db, a);
            product(MatMut::new(&mut self.da, p, p), 1.0, kappa, a, db);
            let da = Mat::new(&self.da, p, p);
            self.next.copy_from_slice(&self.d);
            product(MatMut::new(&mut self.next, p, n), alpha, 1.0, b, Mat::new(&self.d, p, n));
            product(MatMut::new(&mut self.next, p, n), 1.0, 1.0, da, x);
            product(MatMut::new(&mut self.next, p, n), 1.0, 1.0, da.t(), x);
            std::mem::swap(&mut self.d, &mut self.next);
        }
        // (92) with X₀ = S/ν: dS = (D − X₀ ⟨D, X₀⟩)/ν.
        let along = dot(&self.d, &self.x[..p * n]);
        axpy(&mut self.d, -along, &self.x[..p * n]);
        match self.transposed {
            false => axpy(ds, self.inverse, &self.d),
            true => {
                orient(&mut self.result, &self.d, (n, p), true);
                axpy(ds, self.inverse, &self.result);
            }
        }
    }
}

/// `x`, or its transpose, as `out [rows, columns]`.
#[inline(always)]
fn orient(out: &mut [f32], x: &[f32], (rows, columns): (usize, usize), transposed: bool) {
    if !transposed {
        return out.copy_from_slice(x);
    }
    for (i, row) in out.chunks_exact_mut(columns).enumerate() {
        for (out, x) in row.iter_mut().zip(x[i..].iter().step_by(rows)) {
            *out = *x;
        }
    }
}
