//! From the state to the weights, and back: equations (53)–(55).

use super::bias::power;
use crate::primitives::exp::exp;
use hecate_core::rules::{LQ_EPSILON, Map, Retention};

/// Weights of one matrix from its state; not called for [`Retention::Decay`], where they are the same.
#[inline(always)]
pub(super) fn expose(retention: Retention, x: &[f32], w: &mut [f32]) {
    let pairs = w.iter_mut().zip(x);
    match retention {
        Retention::Decay => w.copy_from_slice(x),
        Retention::Kl { scale } => pairs.for_each(|(w, x)| *w = scale * exp(*x)),
        Retention::Lq { q, map } => {
            let factor = norm(x, q).powf(2.0 - f64::from(q)) as f32;
            match map {
                Map::Literal => pairs.for_each(|(w, x)| *w = factor * x),
                Map::Mirror => pairs.for_each(|(w, x)| *w = factor * x * power(x * x, (q - 2.0) / 2.0)),
            }
        }
    }
}

/// `dx += ` the gradient of a matrix's state, given that of its weights.
#[inline(always)]
pub(super) fn pull(retention: Retention, x: &[f32], dw: &[f32], dx: &mut [f32]) {
    let (q, map) = match retention {
        Retention::Decay => return dx.iter_mut().zip(dw).for_each(|(dx, dw)| *dx += dw),
        Retention::Kl { scale } => {
            let triples = dx.iter_mut().zip(x).zip(dw);
            return triples.for_each(|((dx, x), dw)| *dx += scale * exp(*x) * dw);
        }
        Retention::Lq { q, map } => (q, map),
    };
    let (norm, wide) = (norm(x, q), f64::from(q));
    let image = |x: f32| x * power(x * x, (q - 2.0) / 2.0);
    let along: f64 = match map {
        Map::Literal => x.iter().zip(dw).map(|(x, dw)| f64::from(x * dw)).sum(),
        Map::Mirror => x.iter().zip(dw).map(|(x, dw)| f64::from(image(*x) * dw)).sum(),
    };
    let factor = norm.powf(2.0 - wide) as f32;
    let shared = ((2.0 - wide) * norm.powf(2.0 - 2.0 * wide) * along) as f32;
    for ((dx, &x), dw) in dx.iter_mut().zip(x).zip(dw) {
        let own = match map {
            Map::Literal => factor,
            Map::Mirror => (q - 1.0) * power(x * x, (q - 2.0) / 2.0) * factor,
        };
        *dx += own * dw + shared * image(x);
    }
}

/// `ν`, in 64 bits: fourth powers of large numbers are larger than a 32-bit float.
#[inline(always)]
fn norm(x: &[f32], q: f32) -> f64 {
    let wide = f64::from(q);
    let sum: f64 = match q {
        2.0 => x.iter().map(|x| f64::from(*x).powi(2)).sum(),
        4.0 => x.iter().map(|x| f64::from(*x).powi(2).powi(2)).sum(),
        _ => x.iter().map(|x| f64::from(x.abs()).powf(wide)).sum(),
    };
    (sum + f64::from(LQ_EPSILON)).powf(wide.recip())
}

/// Log-softmax down each of `columns` columns, in place; `scratch` holds twice as many numbers.
#[inline(always)]
pub(super) fn normalise_columns(x: &mut [f32], columns: usize, scratch: &mut [f32]) {
    let (top, sum) = scratch[..2 * columns].split_at_mut(columns);
    top.copy_from_slice(&x[..columns]);
    for row in x.chunks_exact(columns) {
        // Unlike `max` this keeps a NaN that is there.
        top.iter_mut().zip(row).for_each(|(top, x)| *top = if *x <= *top { *top } else { *x });
    }
    sum.fill(0.0);
    for row in x.chunks_exact(columns) {
        sum.iter_mut().zip(row).zip(top.iter()).for_each(|((sum, x), top)| *sum += exp(x - top));
    }
    top.iter_mut().zip(sum.iter()).for_each(|(top, sum)| *top += sum.ln());
    for row in x.chunks_exact_mut(columns) {
        row.iter_mut().zip(top.iter()).for_each(|(x, top)| *x -= top);
    }
}

/// Adjoint of [`normalise_columns`] in place, `x` being its result: `dx −= eˣ ∘ (column sums of dx)`.
#[inline(always)]
pub(super) fn normalise_columns_back(x: &[f32], dx: &mut [f32], columns: usize, scratch: &mut [f32]) {
    let sum = &mut scratch[..columns];
    sum.fill(0.0);
    for row in dx.chunks_exact(columns) {
        sum.iter_mut().zip(row).for_each(|(sum, dx)| *sum += dx);
    }
    for (dx, x) in dx.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
        dx.iter_mut().zip(x).zip(sum.iter()).for_each(|((dx, x), sum)| *dx -= exp(*x) * sum);
    }
}

/// `⟨dx, x − column means of x⟩`.
#[inline(always)]
pub(super) fn centred_dot(dx: &[f32], x: &[f32], columns: usize, scratch: &mut [f32]) -> f32 {
    let (mean, sum) = scratch[..2 * columns].split_at_mut(columns);
    mean.fill(0.0);
    sum.fill(0.0);
    for row in x.chunks_exact(columns) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    let inverse = columns as f32 / x.len() as f32;
    mean.iter_mut().for_each(|mean| *mean *= inverse);
    for (dx, x) in dx.chunks_exact(columns).zip(x.chunks_exact(columns)) {
        for (((sum, dx), x), mean) in sum.iter_mut().zip(dx).zip(x).zip(mean.iter()) {
            *sum += dx * (x - mean);
        }
    }
    sum.iter().sum()
}
