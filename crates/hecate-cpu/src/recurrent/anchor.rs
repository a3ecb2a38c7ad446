//! Memories that go back to an anchor as they forget, whatever the rule: a cell is told that nothing is forgotten, and finds
//! `X′ = B + a (X − B)` where it would find `X`. Its gradient point stays `X`. Momentum that looks ahead forgets too, to zero.

use crate::{
    rows::{dot, scale},
    simd::wide,
};

/// What of a state goes back where.
#[derive(Clone, Copy)]
pub(super) struct Anchor<'a> {
    /// `B`, as long as the state's first slots that have one.
    pub(super) anchor: &'a [f32],
    /// `a` of every token.
    pub(super) retention: &'a [f32],
    /// Whether slots without an anchor forget as well.
    pub(super) all: bool,
}

impl Anchor<'_> {
    /// `found = X′` of token `t`; slots without an anchor, as momentum, are as they were.
    pub(super) fn find(self, t: usize, state: &[f32], found: &mut [f32]) {
        let (a, anchor) = (self.retention[t], self.anchor);
        let others = if self.all { a } else { 1.0 };
        wide(
            (state, found),
            #[inline(always)]
            |(state, found)| {
                let rest = found[anchor.len()..].iter_mut().zip(&state[anchor.len()..]);
                rest.for_each(|(found, s)| *found = others * s);
                for ((found, x), b) in found.iter_mut().zip(state).zip(anchor) {
                    *found = b + a * (x - b);
                }
            },
        );
    }

    /// From the gradient of `X′` to that of `X`, in place; adds to that of `B`, and returns that of `log a`.
    pub(super) fn back(self, t: usize, state: &[f32], dstate: &mut [f32], danchor: &mut [f32]) -> f32 {
        let (a, anchor) = (self.retention[t], self.anchor);
        let others = self.all.then_some(anchor.len());
        a * wide(
            (state, dstate, danchor),
            #[inline(always)]
            |(state, dstate, danchor)| {
                let mut momentum = 0.0;
                if let Some(first) = others {
                    momentum = dot(&dstate[first..], &state[first..]);
                    scale(&mut dstate[first..], a);
                }
                // Eight sums, so that they are vectors.
                let mut sums = [0.0; 8];
                let rows = dstate.chunks_mut(8).zip(danchor.chunks_mut(8)).zip(state.chunks(8).zip(anchor.chunks(8)));
                for ((d, db), (x, b)) in rows {
                    for (((sum, d), db), (x, b)) in sums.iter_mut().zip(d).zip(db).zip(x.iter().zip(b)) {
                        *sum += *d * (x - b);
                        *db += (1.0 - a) * *d;
                        *d *= a;
                    }
                }
                momentum + sums.iter().sum::<f32>()
            },
        )
    }
}
