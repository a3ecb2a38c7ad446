//! Every primitive, in parallel over blocks whose bounds depend on sizes alone.

mod attention;
mod conv;
mod elementwise;
mod embedding;
pub(crate) mod exp;
mod features;
mod layout;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod reduce;
mod retention;
mod rotary;

use crate::{Cpu, simd::wide};
use hecate_core::Sequences;
use rayon::prelude::*;
use std::ops::Range;

/// Numbers that a thread takes at a time: enough that handing them over costs little.
const BLOCK: usize = 1 << 14;

/// `$body` on the elements `$values` of a host array of any type, in an array of the same type.
macro_rules! of_same_type {
    ($what:literal, $host:expr, $values:ident => $body:expr) => {
        match $host {
            hecate_core::Host::F32($values) => Ok(hecate_core::Host::F32($body)),
            hecate_core::Host::Bf16($values) => Ok(hecate_core::Host::Bf16($body)),
            hecate_core::Host::F16($values) => Ok(hecate_core::Host::F16($body)),
            hecate_core::Host::U32($values) => Ok(hecate_core::Host::U32($body)),
            other => Err(super::unsupported($what, format!("there is no kernel for {}", other.dtype()))),
        }
    };
}
use of_same_type;

fn unsupported(what: &'static str, why: String) -> hecate_core::Error {
    hecate_core::Error::Unsupported { backend: <Cpu as hecate_core::Device>::NAME, what, why }
}

/// Fills rows of `width` numbers: `work(first, rows)` writes some rows, from row `first` on.
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

/// As [`fill`], for two arrays with as many rows of their own widths. A row costs as much as `cost` numbers.
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

/// Sequence and token of each of these rows.
#[inline(always)]
fn places(sequences: &Sequences, rows: Range<usize>) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut n = sequences.starts().partition_point(|&start| start <= rows.start) - 1;
    rows.map(move |row| {
        while sequences.range(n).end <= row {
            n += 1;
        }
        (n, row - sequences.range(n).start)
    })
}

/// The last `kept` rows of each sequence, `[N, kept, width]`, oldest first: of `x [rows, width]` and, in front of it,
/// of `before [N, kept, width]`, or zeros without it.
fn last_rows(sequences: &Sequences, [kept, width]: [usize; 2], before: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let mut last = Vec::with_capacity(sequences.count() * kept * width);
    for (n, rows) in sequences.ranges().enumerate() {
        let new = rows.len().min(kept);
        let (skipped, end) = ((n * kept + new) * width, (n + 1) * kept * width);
        match before {
            Some(before) => last.extend_from_slice(&before[skipped..end]),
            None => last.resize(last.len() + end - skipped, 0.0),
        }
        last.extend_from_slice(&x[(rows.end - new) * width..rows.end * width]);
    }
    last
}
