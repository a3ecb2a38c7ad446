//! What a token of a memory with weights leaves for its backward: vectors, laid out after each other.

use super::DeepCell;

/// What a token leaves for its backward.
pub(super) struct Record<T> {
    /// At the key, `[D]` each: pre-activation, activation, slope, `b = W₁ u_o`, `δ`.
    pub(super) pre: T,
    /// `σ(pre)`.
    pub(super) h: T,
    /// `σ′(pre)`.
    pub(super) slope: T,
    /// `b = W₁ u_o`: the output's gradient at the hidden layer.
    pub(super) back: T,
    /// `δ = b ∘ σ′(pre)`: what the first layer is written with.
    pub(super) delta: T,
    /// `[V]` each: error, `ψ`, `u_o`, normed output.
    pub(super) error: T,
    /// `ψ(e)`.
    pub(super) u: T,
    /// `u` through the norm: what the last layer is written with.
    pub(super) u_o: T,
    /// The normed output; empty without a norm.
    pub(super) normed: T,
    /// At the query: `[D]`, `[D]`, `[V]`.
    pub(super) read_h: T,
    pub(super) read_slope: T,
    pub(super) read_normed: T,
    /// Deviations of the two norms.
    pub(super) deviations: T,
    /// `[1]`: `s` of (94), by which `u` is shorter than `ψ`.
    pub(super) shrink: T,
}

impl DeepCell {
    /// Widths of a record's parts, in the order of [`Record`].
    #[inline(always)]
    pub(super) fn widths(&self) -> [usize; 14] {
        let (d, v) = (self.d(), self.value);
        let norm = if self.spec.structure.norm() { v } else { 0 };
        [d, d, d, d, d, v, v, v, norm, d, d, norm, 2, 1]
    }

    /// A record's parts, to be written by the forward.
    #[inline(always)]
    pub(super) fn parts_mut<'r>(&self, mut rest: &'r mut [f32]) -> Record<&'r mut [f32]> {
        let [pre, h, slope, back, delta, error, u, u_o, normed, read_h, read_slope, read_normed, deviations, shrink] =
            self.widths().map(|width| {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(width);
                rest = others;
                own
            });
        let (read, key) = ((read_h, read_slope, read_normed), (pre, h, slope, back, delta));
        Record {
            pre: key.0,
            h: key.1,
            slope: key.2,
            back: key.3,
            delta: key.4,
            error,
            u,
            u_o,
            normed,
            read_h: read.0,
            read_slope: read.1,
            read_normed: read.2,
            deviations,
            shrink,
        }
    }

    /// A record's parts.
    #[inline(always)]
    pub(super) fn parts<'r>(&self, mut rest: &'r [f32]) -> Record<&'r [f32]> {
        let [pre, h, slope, back, delta, error, u, u_o, normed, read_h, read_slope, read_normed, deviations, shrink] =
            self.widths().map(|width| {
                let (own, others) = rest.split_at(width);
                rest = others;
                own
            });
        Record {
            pre,
            h,
            slope,
            back,
            delta,
            error,
            u,
            u_o,
            normed,
            read_h,
            read_slope,
            read_normed,
            deviations,
            shrink,
        }
    }
}
