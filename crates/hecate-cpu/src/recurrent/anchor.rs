//! Memories that go back to an anchor as they forget, whatever the rule: a cell is told that nothing is forgotten, and finds
//! `X′ = B + a (X − B)` where it would find `X`. Its gradient point stays `X`. Momentum that looks ahead forgets too, to zero.

use crate::{
    rows::{dot, scale},
    simd::wide,
};

/// What a token keeps of a state's distance from its anchor, and what it loses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Decay {
    /// `a`.
    pub(crate) a: f32,
    /// `1 − a`. It comes of the logarithm: next to 1 a difference of 32-bit numbers has lost most of its digits.
    pub(crate) lost: f32,
}

impl Decay {
    /// That of a gate.
    pub(crate) fn of(log_a: f32) -> Self {
        Self { a: log_a.exp(), lost: -log_a.exp_m1() }
    }

    /// Nothing is lost.
    pub(crate) const NONE: Self = Self { a: 1.0, lost: 0.0 };

    /// Both, one after the other. A sum of positive numbers keeps its digits.
    pub(crate) fn then(self, next: Self) -> Self {
        Self { a: self.a * next.a, lost: self.lost + self.a * next.lost }
    }
}

/// What of a state goes back where.
#[derive(Clone, Copy)]
pub(super) struct Anchor<'a> {
    /// `B`, as long as the state's first slots that have one.
    pub(super) anchor: &'a [f32],
    /// Of every token.
    pub(super) decays: &'a [Decay],
    /// Whether slots without an anchor forget as well.
    pub(super) all: bool,
}

impl Anchor<'_> {
    /// `found = X′` of token `t`; slots without an anchor, as momentum, are as they were.
    pub(super) fn find(self, t: usize, state: &[f32], found: &mut [f32]) {
        let (Decay { a, .. }, anchor) = (self.decays[t], self.anchor);
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
        let (Decay { a, lost }, anchor) = (self.decays[t], self.anchor);
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
                        *db += lost * *d;
                        *d *= a;
                    }
                }
                momentum + sums.iter().sum::<f32>()
            },
        )
    }
}
