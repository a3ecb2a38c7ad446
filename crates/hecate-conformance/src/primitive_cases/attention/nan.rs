//! A NaN in one element of `q`, `k`, `v` or of the gradient of the outputs, and the gradients that it reaches.
//!
//! With `ds = p (dy·v − Σ p dy·v)` a query's one NaN is in all of its `ds`: `dq` is theirs, and `dk` of every key it sees.
//! Weights `p`, and with them `dv`, are NaN only where a score is.

use super::AttentionCase;
use crate::Array;
use hecate_core::{
    Result, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions, Primitives},
};
use std::ops::Range;

/// The array that has the NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// `q`: one query sees it.
    Query,
    /// `k`: so do all queries that see the key.
    Key,
    /// `v`: the same queries, but no weight of theirs.
    Value,
    /// `dy`.
    Upstream,
}

/// What of a gradient has to be NaN.
struct Reached {
    /// Tokens, or places of the prefix.
    rows: Range<usize>,
    /// Heads of the gradient's own, and the first that shares keys with them.
    heads: Range<usize>,
    first: usize,
    /// Columns at the end of a row; none where nothing is asked.
    columns: usize,
}

/// The last element of the last head of a token in the middle, in each of the four arrays by itself.
pub(super) fn reaches_gradients<B: Primitives>(
    call: &AttentionCase,
    options: AttentionOptions,
    inputs: &AttentionInputs<Tensor<B>>,
    dy: &Tensor<B>,
) -> Result<()> {
    for place in [Place::Query, Place::Key, Place::Value, Place::Upstream] {
        let (mut inputs, mut dy) = (inputs.clone(), dy.clone());
        let array = match place {
            Place::Query => &mut inputs.q,
            Place::Key => &mut inputs.k,
            Place::Value => &mut inputs.v,
            Place::Upstream => &mut dy,
        };
        // The others stay as they are.
        *array = with_nan(array, call.sequences.rows() / 2)?;
        let pass = primitives::attention(options, &call.sequences, inputs)?.pass;
        check(call, place, &pass.backward(&dy, None)?)?;
    }
    Ok(())
}

/// `[B,T,heads,width]` with a NaN at the end of token `at`.
fn with_nan<B: Primitives>(x: &Tensor<B>, at: usize) -> Result<Tensor<B>> {
    let (mut host, axes) = (Array::download(x)?, x.shape().axes());
    host.values[(at + 1) * axes[2] * axes[3] - 1] = f64::NAN;
    host.upload(x.device(), x.dtype())
}

/// Gradients of the queries that are asked, and of the keys that they see.
fn check<B: Primitives>(call: &AttentionCase, place: Place, grads: &AttentionInputs<Tensor<B>>) -> Result<()> {
    let ((heads, group), (key, value)) = (call.heads, call.widths);
    let at = call.sequences.rows() / 2;
    let sequence = call.sequences.range(call.sequences.owner(at));
    // A key is seen by tokens from its own on, as far as the window goes, under all query heads of its own.
    let (asked, first_head) = match place {
        Place::Query | Place::Upstream => (at..at + 1, heads * group - 1),
        Place::Key | Place::Value => (at..sequence.end.min(at + call.window), (heads - 1) * group),
    };
    // Together these queries see one run of tokens.
    let keys = asked.start.saturating_sub(call.window - 1).max(sequence.start)..asked.end;
    let queries = first_head..heads * group;
    let reached = |rows: &Range<usize>, columns| Reached {
        rows: rows.clone(),
        heads: heads - 1..heads,
        first: heads - 1,
        columns,
    };
    // `dv` is a sum of `p dy`.
    let of_values = match place {
        Place::Query | Place::Key => value,
        Place::Value => 0,
        Place::Upstream => 1,
    };
    let of_queries = Reached { rows: asked, heads: queries, first: (heads - 1) * group, columns: key };
    // Keys that are no token's are those of the prefix, and of the cache, which is not looked at.
    expect(place, "q", &grads.q, &of_queries)?;
    expect(place, "k", &grads.k, &reached(&keys, key))?;
    expect(place, "v", &grads.v, &reached(&keys, of_values))?;
    if let Some(prefix) = &grads.prefix {
        // Every query sees all of it.
        expect(place, "prefix k", &prefix.k, &reached(&(0..call.prefix), key))?;
        expect(place, "prefix v", &prefix.v, &reached(&(0..call.prefix), of_values))?;
    }
    Ok(())
}

/// NaN where the gradient is reached; none under heads that share no key with the NaN.
fn expect<B: Primitives>(place: Place, slot: &str, grad: &Tensor<B>, reached: &Reached) -> Result<()> {
    let grad = Array::download(grad)?;
    let axes = grad.shape.axes();
    let (heads, width) = (axes[axes.len() - 2], axes[axes.len() - 1]);
    // `[rows,heads,width]`, whatever axes the rows are made of.
    for (i, found) in grad.values.chunks(width).enumerate() {
        let (row, head) = (i / heads, i % heads);
        if reached.rows.contains(&row) && reached.heads.contains(&head) {
            let last = &found[width - reached.columns..];
            assert!(last.iter().all(|x| x.is_nan()), "d{slot} of row {row}, head {head}, {place:?} NaN: {found:?}");
        } else if head < reached.first {
            assert!(found.iter().all(|x| x.is_finite()), "d{slot} of row {row}, head {head}, apart from {place:?} NaN");
        }
    }
    Ok(())
}
