//! Rows of activations as whole numbers of 8 bits.

use super::wide;
use crate::Cpu;
use hecate_core::{Result, memory};
use rayon::prelude::*;

/// Values that share a scale: the smallest block of all formats.
pub(super) const GROUP: usize = 32;

/// Groups that have sums of their own: group `t` goes to sum `t mod 16`, so that a register has all of them.
pub(super) const SUMS: usize = 16;

/// Largest whole number.
const LEVELS: f32 = 127.0;

/// Rows `x ≈ d q`, `q` of 8 bits, a `d` of 32 bits for 32 values.
///
/// A value is at most `d/2` from where it was, which is 1/254 of the largest of its group. A group with a NaN or an infinity has
/// a `d` of NaN, so that products show it.
pub(super) struct Rounded {
    /// Groups of a row, with those of zeros that make them a multiple of [`SUMS`].
    groups: usize,
    /// `[n, groups, 32]`
    q: Vec<i8>,
    /// `[n, groups]`, and sums of groups.
    d: Vec<f32>,
    totals: Vec<i32>,
}

/// One of these rows.
#[derive(Clone, Copy)]
pub(super) struct RoundedRow<'a> {
    /// All groups.
    pub(super) q: &'a [[i8; GROUP]],
    /// A scale each.
    pub(super) d: &'a [f32],
    /// `Σ q` of each group; `d Σ q` is what a minimum is multiplied by.
    pub(super) totals: &'a [i32],
}

impl Rounded {
    /// Of `x [n,K]`, whose rows are whole groups.
    pub(super) fn new(device: &Cpu, x: &[f32], n: usize) -> Result<Self> {
        let (what, inner) = ("quantized_matmul", x.len() / n);
        let groups = (inner / GROUP).next_multiple_of(SUMS);
        let count = n * groups;
        let mut rounded = Self {
            groups,
            q: memory::zeros(what, count * GROUP)?,
            d: memory::zeros(what, count)?,
            totals: memory::zeros(what, count)?,
        };
        let places = rounded.q.par_chunks_mut(groups * GROUP);
        let places = places.zip(rounded.d.par_chunks_mut(groups).zip(rounded.totals.par_chunks_mut(groups)));
        let work = |(x, (q, (d, totals))): (&[f32], (&mut [i8], (&mut [f32], &mut [i32])))| {
            wide(
                (x, q, d, totals),
                #[inline(always)]
                |(x, q, d, totals)| round(x, q, d, totals),
            )
        };
        if n == 1 {
            work((x, (&mut rounded.q, (&mut rounded.d, &mut rounded.totals))));
        } else {
            device.run(|| x.par_chunks(inner).zip(places).for_each(work));
        }
        Ok(rounded)
    }

    /// Rows.
    pub(super) fn rows(&self) -> usize {
        self.d.len() / self.groups
    }

    /// Groups of a row, a multiple of [`SUMS`].
    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> RoundedRow<'_> {
        let groups = i * self.groups..(i + 1) * self.groups;
        RoundedRow {
            q: &self.q.as_chunks().0[groups.clone()],
            d: &self.d[groups.clone()],
            totals: &self.totals[groups],
        }
    }
}

#[inline(always)]
fn round(x: &[f32], q: &mut [i8], d: &mut [f32], totals: &mut [i32]) {
    let groups = x.as_chunks::<GROUP>().0.iter().zip(q.as_chunks_mut::<GROUP>().0);
    for ((x, q), (d, total)) in groups.zip(d.iter_mut().zip(totals)) {
        // As bits, magnitudes are ordered like whole numbers, NaN and infinity above all others.
        let most = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
        *d = if most.is_finite() { most / LEVELS } else { f32::NAN };
        // Of numbers that are too small for a reciprocal nothing is left but 0.
        let inverse = if *d >= f32::MIN_POSITIVE { 1.0 / *d } else { 0.0 };
        *total = 0;
        for (q, x) in q.iter_mut().zip(x) {
            // Ties to even: one instruction, where the other way takes several.
            *q = (x * inverse).round_ties_even() as i8;
            *total += i32::from(*q);
        }
    }
}
