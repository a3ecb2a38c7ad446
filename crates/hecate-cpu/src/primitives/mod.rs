//! Every primitive of [`hecate_core::primitives`], in parallel over blocks whose bounds depend on sizes alone.
//!
//! A primitive reads its inputs as 32-bit floats, works in those, and rounds its outputs to the inputs' type.
//! Shapes are checked in core: what arrives here fits.
//!
//! Most primitives fill rows: [`fill`] and [`fill_pair`] cut the output into blocks of whole rows, one task each.
//! Sums over rows go through [`reduce::over_rows`], in an order that the sizes fix.
//! A small output is filled by the caller: a task costs more than it would save.

mod attention;
mod conv;
mod elementwise;
mod embedding;
pub(crate) mod exp;
mod features;
mod head_products;
mod layer_norm;
mod layout;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod reduce;
mod retention;
mod rotary;
mod sample;
mod softmax;

use crate::{Cpu, simd::wide};
use hecate_core::{Result, Sequences, memory, primitives::Fp8Matmul};
use rayon::prelude::*;
use std::ops::Range;

/// No processor has units for them.
impl Fp8Matmul for Cpu {}

/// Elements that a task takes at a time: 64 KiB, enough that handing them over costs little.
const BLOCK: usize = 1 << 14;

/// `$body` on the elements `$values` of a host array of any type, in an array of the same type.
/// For primitives that move elements and compute nothing; where `$body` fails, so does the caller.
macro_rules! of_same_type {
    ($what:literal, $host:expr, $values:ident => $body:expr) => {
        match $host {
            hecate_core::Host::F32($values) => Ok(hecate_core::Host::F32($body?)),
            hecate_core::Host::Bf16($values) => Ok(hecate_core::Host::Bf16($body?)),
            hecate_core::Host::F16($values) => Ok(hecate_core::Host::F16($body?)),
            hecate_core::Host::U32($values) => Ok(hecate_core::Host::U32($body?)),
            other => Err(super::unsupported($what, format!("there is no kernel for {}", other.dtype()))),
        }
    };
}
use of_same_type;

/// The error for what this backend has no kernel for; `why` names what was found.
fn unsupported(what: &'static str, why: String) -> hecate_core::Error {
    hecate_core::Error::Unsupported { backend: <Cpu as hecate_core::Device>::NAME, what, why }
}

/// Fills rows of `width` elements: `work(first, rows)` writes some rows, from row `first` on.
/// `work` is inlined into a copy for each level of vector instructions.
fn fill<F>(device: &Cpu, width: usize, out: &mut [f32], work: F)
where
    F: Fn(usize, &mut [f32]) + Sync,
{
    let rows = (BLOCK / width).max(1);
    let block = |(i, out): (usize, &mut [f32])| {
        wide(
            out,
            #[inline(always)]
            |out| work(i * rows, out),
        )
    };
    if out.len() <= rows * width {
        return block((0, out));
    }
    device.run(|| out.par_chunks_mut(rows * width).enumerate().for_each(block));
}

/// As [`fill`], for two arrays with as many rows, each given with its width.
/// A row costs as much as `cost` elements.
fn fill_pair<F>(device: &Cpu, cost: usize, a: (usize, &mut [f32]), b: (usize, &mut [f32]), work: F)
where
    F: Fn(usize, &mut [f32], &mut [f32]) + Sync,
{
    let rows = (BLOCK / cost).max(1);
    let block = |(i, (a, b)): (usize, (&mut [f32], &mut [f32]))| {
        wide(
            (a, b),
            #[inline(always)]
            |(a, b)| work(i * rows, a, b),
        )
    };
    if a.1.len() <= rows * a.0 {
        return block((0, (a.1, b.1)));
    }
    let blocks = a.1.par_chunks_mut(rows * a.0).zip(b.1.par_chunks_mut(rows * b.0));
    device.run(|| blocks.enumerate().for_each(block));
}

/// Sequence, and token in it, of each of these rows.
#[inline(always)]
fn places(sequences: &Sequences, rows: Range<usize>) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut n = sequences.owner(rows.start);
    rows.map(move |row| {
        while sequences.range(n).end <= row {
            n += 1;
        }
        (n, row - sequences.range(n).start)
    })
}

/// The last `kept` rows of each sequence, `[N, kept, width]`, oldest first: a cache or a convolution's state.
///
/// Rows come from `x [rows, width]` and, where a sequence is shorter, from `before [N, kept, width]` in front of it.
/// Without `before` they are zeros.
///
/// # Errors
/// [`hecate_core::Error::OutOfMemory`]: without `before` nothing of the size was there yet.
fn last_rows(sequences: &Sequences, [kept, width]: [usize; 2], before: Option<&[f32]>, x: &[f32]) -> Result<Vec<f32>> {
    let count = sequences.count().saturating_mul(kept).saturating_mul(width);
    let mut last = memory::with_capacity("last_rows", count)?;
    for (n, rows) in sequences.ranges().enumerate() {
        let new = rows.len().min(kept);
        let (skipped, end) = ((n * kept + new) * width, (n + 1) * kept * width);
        match before {
            Some(before) => last.extend_from_slice(&before[skipped..end]),
            None => last.resize(last.len() + end - skipped, 0.0),
        }
        last.extend_from_slice(&x[(rows.end - new) * width..rows.end * width]);
    }
    Ok(last)
}
