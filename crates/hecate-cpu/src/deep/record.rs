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
    /// What layers gave before anything was done to it, for the pullback of the L_q map; empty for other retentions.
    /// At the key, the last layer `[V]`; at the query, the first `[D]` and the last `[V]`.
    pub(super) output: T,
    /// Empty for a matrix as well.
    pub(super) read_pre: T,
    pub(super) read_output: T,
    /// `ν` of both layers at the point, then of both where the token read; empty for other retentions.
    pub(super) norms: T,
}

impl DeepCell {
    /// Widths of a record's parts, in the order of [`Record`].
    #[inline(always)]
    pub(super) fn widths(&self) -> [usize; 18] {
        let (d, v) = (self.d(), self.value);
        let norm = if self.spec.structure.norm() { v } else { 0 };
        let [output, pre, norms] = if self.has_shared_norm() { [v, d, 4] } else { [0; 3] };
        [d, d, d, d, d, v, v, v, norm, d, d, norm, 2, 1, output, pre, output, norms]
    }

    /// A record's parts, to be written by the forward.
    #[inline(always)]
    pub(super) fn parts_mut<'r>(&self, mut rest: &'r mut [f32]) -> Record<&'r mut [f32]> {
        Record::of(self.widths().map(|width| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(width);
            rest = others;
            own
        }))
    }

    /// A record's parts.
    #[inline(always)]
    pub(super) fn parts<'r>(&self, mut rest: &'r [f32]) -> Record<&'r [f32]> {
        Record::of(self.widths().map(|width| {
            let (own, others) = rest.split_at(width);
            rest = others;
            own
        }))
    }
}

impl<T> Record<T> {
    /// The parts in the order of [`DeepCell::widths`].
    #[inline(always)]
    fn of(parts: [T; 18]) -> Self {
        let [pre, h, slope, back, delta, error, u, u_o, normed, rest @ ..] = parts;
        let [read_h, read_slope, read_normed, deviations, shrink, output, read_pre, read_output, norms] = rest;
        Self {
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
            output,
            read_pre,
            read_output,
            norms,
        }
    }
}
