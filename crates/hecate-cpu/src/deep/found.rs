//! What a token finds of the state before it, as passes over a matrix load it.
//!
//! Passes multiply `X − B` by `a` and add `B`, so that a state at its anchor stays there whatever `a` is. On the way back
//! `X − B` is what the gradient of `a` meets, and `1 − a` of the state's gradient goes to the anchor.

use crate::{
    recurrent::Decay,
    simd::{load_part, store_part},
};
use pulp::Simd;
use std::slice::ChunksExact;

/// `B + a (X − B)` of a matrix `[K,V]`, or of both after each other.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    /// Retention `a`, and what the anchor gets.
    pub(crate) decay: Decay,
    /// `X`.
    pub(crate) state: &'a [f32],
    /// `B`; empty where that is zero.
    pub(crate) anchor: &'a [f32],
}

impl<'a> Found<'a> {
    /// Those of both matrices, of which the first has so many elements.
    #[inline(always)]
    pub(crate) fn layers(self, first: usize) -> [Self; 2] {
        let (state, state_high) = self.state.split_at(first);
        // An empty anchor stays empty in both.
        let (anchor, anchor_high) = self.anchor.split_at(first.min(self.anchor.len()));
        [Self { state, anchor, ..self }, Self { state: state_high, anchor: anchor_high, ..self }]
    }

    /// Rows of `X`, then of `B`; an anchor of zeros has none.
    #[inline(always)]
    pub(crate) fn rows(self, width: usize) -> [ChunksExact<'a, f32>; 2] {
        [self.state, self.anchor].map(|x| x.chunks_exact(width))
    }
}

/// Vectors of `X − B` and of `B` from `column` on, of a row of both.
#[inline(always)]
pub(crate) fn load_found<S: Simd, const N: usize>(
    simd: S,
    state: &[f32],
    anchor: Option<&[f32]>,
    column: usize,
) -> [[S::f32s; N]; 2] {
    let mut lag = load_part::<S, N>(simd, &state[column..]);
    // Without an anchor nothing is taken off, and zero is added.
    let Some(anchor) = anchor else { return [lag, [simd.splat_f32s(0.0); N]] };
    let anchor = load_part::<S, N>(simd, &anchor[column..]);
    (0..N).for_each(|n| lag[n] = simd.sub_f32s(lag[n], anchor[n]));
    [lag, anchor]
}

/// Adds a row's part to the gradient of `B`, where there is one.
#[inline(always)]
pub(crate) fn add_given<S: Simd, const N: usize>(simd: S, row: Option<&mut [f32]>, column: usize, given: [S::f32s; N]) {
    // A memory that goes back to zero has no such row.
    let Some(row) = row else { return };
    let mut all = load_part::<S, N>(simd, &row[column..]);
    (0..N).for_each(|n| all[n] = simd.add_f32s(all[n], given[n]));
    store_part(simd, &mut row[column..], all);
}
