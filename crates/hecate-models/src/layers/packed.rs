//! Packed texts for mixers that know only plain batches.

use super::Context;
use crate::{LayerCache, Result, Tape, Var};
use hecate_core::{Backend, Sequences};

/// Runs `mix` on `x [B,T,hidden]`, to the same shape. A plain batch goes to `mix` as it is. Texts packed into one row
/// `[1,T,hidden]` go one after another, each as a batch of one with its own part of the cache.
pub(super) fn text_by_text<B: Backend>(
    tape: &Tape<'_, B>,
    x: &Var<B>,
    context: &mut Context<'_, B>,
    mix: &mut dyn FnMut(&Var<B>, &mut Context<'_, B>) -> Result<Var<B>>,
) -> Result<Var<B>> {
    let (batch, tokens) = (x.axes()[0], x.axes()[1]);
    if context.sequences == Sequences::batch(batch, tokens) {
        return mix(x, context);
    }
    let lengths: Vec<usize> = context.sequences.ranges().map(|rows| rows.len()).collect();
    let (mut out, mut caches) = (Vec::new(), Vec::new());
    for (text, x) in tape.split(x, 1, &lengths)?.iter().enumerate() {
        let mut cache = context.cache.as_deref().map(|cache| cache.text(tape, text)).transpose()?;
        let sequences = Sequences::batch(1, x.axes()[1]);
        out.push(mix(x, &mut Context::at(sequences, context.position, cache.as_mut()))?);
        caches.extend(cache);
    }
    // All texts have arrays of the same shapes, whatever their lengths.
    if let Some(cache) = context.cache.as_deref_mut() {
        *cache = LayerCache::join(tape, &caches.iter().collect::<Vec<_>>())?;
    }
    tape.concat(&out.iter().collect::<Vec<_>>(), 1)
}
