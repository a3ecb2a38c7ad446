//! Frozen groups that go back to an anchor, as products: what a chunk's tokens have of it.
//!
//! The linear engine forgets to zero. With `A` for what decay has left of the chunk's first state, each token's state lacks
//! `(1 − A) B` then. So reads `x X` get `(1 − A) ∘ (x B)` beside, and the state after the chunk `(1 − A) B`.

use crate::{
    product::{Mat, MatMut, product},
    recurrent::{Decay, GroupAnchor},
    rows::{axpy, dot},
};

/// What the tokens of a chunk have of an anchor.
pub(crate) struct AnchorShare<'a> {
    /// `B` of both layers.
    anchor: &'a [f32],
    /// `A` and `1 − A` of each token, `[n]`: products of the retentions.
    left: Vec<Decay>,
}

/// Inputs `x [n,K]` of a layer with the layer's anchor `B [K,V]`, and the product of both.
pub(crate) struct AnchorRead<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) layer: &'a [f32],
    /// `x B [n,V]`.
    pub(crate) read: &'a [f32],
}

/// Gradients that a read of the anchor adds to.
pub(crate) struct AnchorReadGrads<'a> {
    /// `[n,K]`.
    pub(crate) x: &'a mut [f32],
    /// `[K,V]`.
    pub(crate) layer: &'a mut [f32],
    /// Of `A [n]`.
    pub(crate) left: &'a mut [f32],
}

impl<'a> AnchorShare<'a> {
    /// The shares of a chunk's tokens.
    pub(crate) fn new(GroupAnchor { anchor, decays }: GroupAnchor<'a>) -> Self {
        let left = decays.iter().scan(Decay::NONE, |left, decay| {
            *left = left.then(*decay);
            Some(*left)
        });
        Self { anchor, left: left.collect() }
    }

    /// `B` of both layers, of which the first has so many elements.
    pub(crate) fn layers(&self, first: usize) -> [&'a [f32]; 2] {
        let (low, high) = self.anchor.split_at(first);
        [low, high]
    }

    /// `out += (1 − A) ∘ (x B)`, `[n,V]`; returns `x B`.
    pub(crate) fn read(&self, x: &[f32], layer: &[f32], out: &mut [f32]) -> Vec<f32> {
        let n = self.left.len();
        let (key, value) = (x.len() / n, out.len() / n);
        let mut read = vec![0.0; n * value];
        product(MatMut::new(&mut read, n, value), 0.0, 1.0, Mat::new(x, n, key), Mat::new(layer, key, value));
        let rows = out.chunks_exact_mut(value).zip(read.chunks_exact(value)).zip(&self.left);
        rows.for_each(|((out, read), left)| axpy(out, left.lost, read));
        read
    }

    /// Back through [`Self::read`] from `dout [n,V]`.
    pub(crate) fn read_back(&self, call: AnchorRead<'_>, dout: &[f32], grads: AnchorReadGrads<'_>) {
        let (n, AnchorRead { x, layer, read }) = (self.left.len(), call);
        let (key, value) = (x.len() / n, dout.len() / n);
        let rows = dout.chunks_exact(value).zip(&self.left);
        let shares: Vec<f32> = rows.flat_map(|(dout, left)| dout.iter().map(|x| left.lost * x)).collect();
        let (shares, layer) = (Mat::new(&shares, n, value), Mat::new(layer, key, value));
        product(MatMut::new(grads.x, n, key), 1.0, 1.0, shares, layer.t());
        product(MatMut::new(grads.layer, key, value), 1.0, 1.0, Mat::new(x, n, key).t(), shares);
        let rows = read.chunks_exact(value).zip(dout.chunks_exact(value));
        grads.left.iter_mut().zip(rows).for_each(|(left, (read, dout))| *left -= dot(read, dout));
    }

    /// Adds to the weights after the chunk what they have of the anchor.
    pub(crate) fn leave(&self, weights: &mut [f32]) {
        axpy(weights, self.last().lost, self.anchor);
    }

    /// Back through [`Self::leave`] from the gradient of the weights after the chunk: to that of `B`, and that of `A`.
    pub(crate) fn leave_back(&self, dweights: &[f32], danchor: &mut [f32], dleft: &mut [f32]) {
        axpy(danchor, self.last().lost, dweights);
        if let Some(left) = dleft.last_mut() {
            *left -= dot(dweights, self.anchor);
        }
    }

    /// Adds to gradients of `log a` those that come by `A`: every token's retention is in the `A` of those after it.
    pub(crate) fn add_gates(&self, dleft: &[f32], dgates: &mut [f32]) {
        let (width, mut sum) = (dgates.len() / self.left.len(), 0.0);
        for (gates, (left, dleft)) in dgates.chunks_exact_mut(width).zip(self.left.iter().zip(dleft)).rev() {
            sum += left.a * dleft;
            gates[0] += sum;
        }
    }

    fn last(&self) -> Decay {
        self.left.last().copied().unwrap_or(Decay::NONE)
    }
}
