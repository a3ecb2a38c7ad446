//! Rows of activations as whole numbers of 8 bits.

use super::wide;
use crate::Cpu;
use hecate_core::{Result, memory};
use rayon::prelude::*;

/// Values that share a scale: the smallest block of all formats.
pub(super) const GROUP: usize = 32;

/// Largest whole number.
const LEVELS: f32 = 127.0;

/// Rows `x ≈ d q`, `q` of 8 bits, a `d` of 32 bits for 32 values.
///
/// A value is at most `d/2` from where it was, which is 1/254 of the largest of its group. A group with a NaN or an infinity has
/// a `d` of NaN, so that products show it.
pub(super) struct Rounded {
    /// Groups of a row.
    groups: usize,
    /// `[n,K]`
    q: Vec<i8>,
    /// `[n,K/32]`, and times the sum of the group.
    d: Vec<f32>,
    sums: Vec<f32>,
}

/// One of these rows.
#[derive(Clone, Copy)]
pub(super) struct RoundedRow<'a> {
    /// `[K/32]` groups.
    pub(super) q: &'a [[i8; GROUP]],
    /// `[K/32]`
    pub(super) d: &'a [f32],
    /// `d Σ q` of each group: what a minimum is multiplied by.
    pub(super) sums: &'a [f32],
}

impl Rounded {
    /// Of `x [n,K]`, whose rows are whole groups.
    pub(super) fn new(device: &Cpu, x: &[f32], n: usize) -> Result<Self> {
        let (what, count) = ("quantized_matmul", x.len() / GROUP);
        let mut rounded = Self {
            groups: count / n,
            q: memory::zeros(what, x.len())?,
            d: memory::zeros(what, count)?,
            sums: memory::zeros(what, count)?,
        };
        let row = rounded.groups;
        let parts = rounded
            .q
            .par_chunks_mut(row * GROUP)
            .zip(rounded.d.par_chunks_mut(row))
            .zip(rounded.sums.par_chunks_mut(row));
        let work = |(x, ((q, d), sums)): (&[f32], ((&mut [i8], &mut [f32]), &mut [f32]))| {
            wide(
                (x, q, d, sums),
                #[inline(always)]
                |(x, q, d, sums)| round(x, q, d, sums),
            )
        };
        if n == 1 {
            work((x, ((&mut rounded.q, &mut rounded.d), &mut rounded.sums)));
        } else {
            device.run(|| x.par_chunks(row * GROUP).zip(parts).for_each(work));
        }
        Ok(rounded)
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> RoundedRow<'_> {
        let groups = i * self.groups..(i + 1) * self.groups;
        RoundedRow { q: &self.q.as_chunks().0[groups.clone()], d: &self.d[groups.clone()], sums: &self.sums[groups] }
    }
}

#[inline(always)]
fn round(x: &[f32], q: &mut [i8], d: &mut [f32], sums: &mut [f32]) {
    let groups = x.as_chunks::<GROUP>().0.iter().zip(q.as_chunks_mut::<GROUP>().0);
    for ((x, q), (d, sums)) in groups.zip(d.iter_mut().zip(sums)) {
        // As bits, magnitudes are ordered like whole numbers, NaN and infinity above all others.
        let most = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
        *d = if most.is_finite() { most / LEVELS } else { f32::NAN };
        // Of numbers that are too small for a reciprocal nothing is left but 0.
        let inverse = if *d >= f32::MIN_POSITIVE { 1.0 / *d } else { 0.0 };
        let mut sum = 0;
        for (q, x) in q.iter_mut().zip(x) {
            // Ties to even: one instruction, where the other way takes several.
            *q = (x * inverse).round_ties_even() as i8;
            sum += i32::from(*q);
        }
        *sums = *d * sum as f32;
    }
}
