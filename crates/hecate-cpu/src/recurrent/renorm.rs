//! Columns of weights that go back to the lengths of their anchor's where a group starts, whatever the rule: equation (95).
//!
//! A matrix is gone through row by row, with numbers a column beside it: once for sums, once to write.

use crate::simd::wide;
use hecate_core::rules::COLUMN_EPSILON;
use std::iter;

/// What goes back: the state's first slots, matrices one after another.
#[derive(Clone, Copy)]
pub(super) struct Renorm<'a> {
    /// `B`.
    pub(super) anchor: &'a [f32],
    /// Rows and columns of each matrix.
    pub(super) shapes: &'a [[usize; 2]],
}

impl Renorm<'_> {
    /// The state with which a group starts, in place of what the group before left.
    pub(super) fn open(self, state: &mut [f32]) {
        let mut state = state;
        for (b, columns) in self.matrices() {
            let (x, others) = state.split_at_mut(b.len());
            state = others;
            let factors = factors(&sums(b, b, columns), &sums(x, x, columns));
            wide(
                (x, &factors),
                #[inline(always)]
                |(x, factors)| {
                    for row in x.chunks_exact_mut(factors.len()) {
                        row.iter_mut().zip(factors).for_each(|(x, f)| *x *= f);
                    }
                },
            );
        }
    }

    /// From the gradient of what [`Self::open`] makes of `state` to that of `state`, in place; adds to that of `B`.
    pub(super) fn back(self, state: &[f32], dstate: &mut [f32], danchor: &mut [f32]) {
        let (mut state, mut dstate, mut danchor) = (state, dstate, danchor);
        for (b, columns) in self.matrices() {
            let (x, xs) = state.split_at(b.len());
            let (dx, dxs) = dstate.split_at_mut(b.len());
            let (db, dbs) = danchor.split_at_mut(b.len());
            (state, dstate, danchor) = (xs, dxs, dbs);
            let ([bb, xx, along], mut shares) =
                ([(b, b), (x, x), (x, &*dx)].map(|(x, y)| sums(x, y, columns)), Vec::new());
            // Of each column: `f`, and what of `x` is taken off the gradient and of `b` joins that of `B`.
            for ((along, factor), (bb, xx)) in along.iter().zip(factors(&bb, &xx)).zip(bb.iter().zip(&xx)) {
                let both = factor * along;
                shares.push([factor, both / (xx + COLUMN_EPSILON), both / (bb + COLUMN_EPSILON)]);
            }
            wide(
                (x, b, dx, db, &shares),
                #[inline(always)]
                |(x, b, dx, db, shares)| {
                    let rows = x.chunks_exact(columns).zip(b.chunks_exact(columns));
                    let grads = dx.chunks_exact_mut(columns).zip(db.chunks_exact_mut(columns));
                    for ((x, b), (dx, db)) in rows.zip(grads) {
                        for (((x, b), (dx, db)), [factor, off, more]) in
                            x.iter().zip(b).zip(dx.iter_mut().zip(db)).zip(shares)
                        {
                            *dx = factor * *dx - off * x;
                            *db += more * b;
                        }
                    }
                },
            );
        }
    }

    /// Matrices of the anchor, and how many columns each has.
    fn matrices<'s>(self) -> impl Iterator<Item = (&'s [f32], usize)>
    where
        Self: 's,
    {
        let (mut rest, mut shapes) = (self.anchor, self.shapes.iter());
        iter::from_fn(move || {
            let [rows, columns] = *shapes.next()?;
            let (own, others) = rest.split_at(rows * columns);
            rest = others;
            Some((own, columns))
        })
    }
}

/// `x·y` of each of these columns.
fn sums(x: &[f32], y: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    wide(
        (&mut sums, x, y),
        #[inline(always)]
        |(sums, x, y)| {
            for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact(columns)) {
                sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += x * y);
            }
        },
    );
    sums
}

/// `f` of each column, from squared lengths of `B` and of the memory.
fn factors(bb: &[f32], xx: &[f32]) -> Vec<f32> {
    bb.iter().zip(xx).map(|(bb, xx)| ((bb + COLUMN_EPSILON) / (xx + COLUMN_EPSILON)).sqrt()).collect()
}
