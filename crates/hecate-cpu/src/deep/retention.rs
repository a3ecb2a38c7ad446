//! From the state to the weights, and back: equations (53)–(55).

use crate::{primitives::exp::exp, rows::dot};
use hecate_core::rules::{LQ_EPSILON, Map, Retention};

/// `$body` with `|x|^(q − 2)` of a square `x²` as a function that loops are compiled for.
macro_rules! by_power {
    ($q:expr, |$root:ident| $body:expr) => {
        match $q {
            2.0 => {
                let $root = |_: f32| 1.0;
                $body
            }
            3.0 => {
                let $root = f32::sqrt;
                $body
            }
            4.0 => {
                let $root = |square: f32| square;
                $body
            }
            q => {
                let $root = move |square: f32| square.powf((q - 2.0) / 2.0);
                $body
            }
        }
    };
}

/// `Σ term(x)` in 64 bits, in 16 partial sums as `rows::dot` has them.
#[inline(always)]
fn sum(x: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; 16];
    let parts = x.chunks_exact(16);
    let tail: f64 = parts.remainder().iter().map(|&x| term(f64::from(x))).sum();
    for part in parts {
        for i in 0..16 {
            sums[i] += term(f64::from(part[i]));
        }
    }
    sums.iter().sum::<f64>() + tail
}

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
                Map::Mirror => by_power!(q, |root| pairs.for_each(|(w, x)| *w = factor * x * root(x * x))),
            }
        }
    }
}

/// `dx += ` the gradient of a matrix's state `x`, given that of its weights `w`.
#[inline(always)]
pub(super) fn pull(retention: Retention, x: &[f32], w: &[f32], dw: &[f32], dx: &mut [f32]) {
    let (q, map) = match retention {
        Retention::Decay => return dx.iter_mut().zip(dw).for_each(|(dx, dw)| *dx += dw),
        Retention::Kl { .. } => return dx.iter_mut().zip(w).zip(dw).for_each(|((dx, w), dw)| *dx += w * dw),
        Retention::Lq { q, map } => (q, map),
    };
    let (norm, wide) = (norm(x, q), f64::from(q));
    let factor = norm.powf(2.0 - wide) as f32;
    // `⟨x, dw⟩` or `⟨x |x|^(q−2), dw⟩`, times the factor, is `⟨w, dw⟩`.
    let shared = ((2.0 - wide) * norm.powf(-wide) * f64::from(dot(w, dw))) as f32;
    let triples = dx.iter_mut().zip(x).zip(dw);
    by_power!(q, |root| match map {
        Map::Literal => triples.for_each(|((dx, x), dw)| *dx += factor * dw + shared * (x * root(x * x))),
        Map::Mirror => triples.for_each(|((dx, x), dw)| {
            let power = root(x * x);
            *dx += (q - 1.0) * power * factor * dw + shared * (x * power);
        }),
    });
}

/// `ν`, in 64 bits: fourth powers of large numbers are larger than a 32-bit float.
#[inline(always)]
fn norm(x: &[f32], q: f32) -> f64 {
    let wide = f64::from(q);
    let sum = match q {
        2.0 => sum(x, |x| x * x),
        4.0 => sum(x, |x| (x * x) * (x * x)),
        _ => sum(x, |x| x.abs().powf(wide)),
    };
    (sum + f64::from(LQ_EPSILON)).powf(wide.recip())
}

/// Log-softmax down each of `columns` columns, in place, and `w = scale eˣ` of the result; `scratch` holds twice as many
/// numbers as a row.
#[inline(always)]
pub(super) fn normalise_columns(scale: f32, x: &mut [f32], w: &mut [f32], columns: usize, scratch: &mut [f32]) {
    let (top, sum) = scratch[..2 * columns].split_at_mut(columns);
    top.copy_from_slice(&x[..columns]);
    for row in x.chunks_exact(columns) {
        // Unlike `max` this keeps a NaN that is there.
        top.iter_mut().zip(row).for_each(|(top, x)| *top = if *x <= *top { *top } else { *x });
    }
    sum.fill(0.0);
    for (row, w) in x.chunks_exact(columns).zip(w.chunks_exact_mut(columns)) {
        for ((sum, w), (x, top)) in sum.iter_mut().zip(w).zip(row.iter().zip(top.iter())) {
            *w = exp(x - top);
            *sum += *w;
        }
    }
    for (top, sum) in top.iter_mut().zip(sum.iter_mut()) {
        *top += sum.ln();
        *sum = scale / *sum;
    }
    for (row, w) in x.chunks_exact_mut(columns).zip(w.chunks_exact_mut(columns)) {
        row.iter_mut().zip(top.iter()).for_each(|(x, top)| *x -= top);
        w.iter_mut().zip(sum.iter()).for_each(|(w, factor)| *w *= factor);
    }
}

/// Adjoint of [`normalise_columns`] in place: `dx −= eˣ ∘ (column sums of dx)`, `w = scale eˣ` of its result.
#[inline(always)]
pub(super) fn normalise_columns_back(scale: f32, w: &[f32], dx: &mut [f32], columns: usize, scratch: &mut [f32]) {
    let (sum, share) = (&mut scratch[..columns], scale.recip());
    sum.fill(0.0);
    for row in dx.chunks_exact(columns) {
        sum.iter_mut().zip(row).for_each(|(sum, dx)| *sum += dx);
    }
    sum.iter_mut().for_each(|sum| *sum *= share);
    for (dx, w) in dx.chunks_exact_mut(columns).zip(w.chunks_exact(columns)) {
        dx.iter_mut().zip(w).zip(sum.iter()).for_each(|((dx, w), sum)| *dx -= w * sum);
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
