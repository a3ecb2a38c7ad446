//! What a model has read of a conversation.

use crate::{
    Cache, LanguageModel, Result,
    generate::{Generation, generate_from},
    sampling::Sampler,
};
use hecate_core::Backend;

/// A conversation that a model reads once. Each turn is all of its tokens; the model goes on from where they begin to differ
/// from those of the turn before, or from the last place before that which it remembers: what was said before an answer, or the
/// end of it.
#[derive(Debug)]
pub struct Reading<'a, B: Backend> {
    model: &'a LanguageModel<B>,
    /// Read and written in the turn before.
    tokens: Vec<u32>,
    /// What is remembered after some of them, the shorter first.
    kept: Vec<Cache<B>>,
}

impl<'a, B: Backend> Reading<'a, B> {
    /// Before the first turn.
    pub fn new(model: &'a LanguageModel<B>) -> Self {
        Self { model, tokens: Vec::new(), kept: Vec::new() }
    }

    /// Tokens from which on all of this turn are to be read: those before are remembered.
    pub fn known(&self, turn: &[u32]) -> usize {
        self.remembered(turn).map_or(0, Cache::position)
    }

    /// The longest memory of what this turn begins with. The last token is always read: what follows depends on it.
    fn remembered(&self, turn: &[u32]) -> Option<&Cache<B>> {
        let same = self.tokens.iter().zip(turn).take_while(|(before, now)| before == now).count();
        self.kept.iter().rfind(|cache| cache.position() <= same && cache.position() < turn.len())
    }

    /// Reads a turn. Its first `lasting` tokens, of what is said before the answer, are likely to come again, whatever becomes of
    /// what follows them.
    ///
    /// # Errors
    /// As [`generate_from`]; what was read before is then forgotten.
    pub fn read(&mut self, turn: &[u32], lasting: usize, mut sampler: Sampler) -> Result<Generation<'a, B>> {
        let cache = self.remembered(turn).cloned();
        let cache = cache.map_or_else(|| self.model.cache(1), Ok)?;
        (self.tokens, self.kept) = (turn.to_vec(), Vec::new());
        let known = cache.position();
        sampler.read(&turn[..known]);
        if known >= lasting || lasting >= turn.len() {
            self.kept.extend((known > 0).then(|| cache.clone()));
            return generate_from(self.model, cache, &turn[known..], sampler);
        }
        let mut generation = generate_from(self.model, cache, &turn[known..lasting], sampler)?;
        self.kept.push(generation.cache()?);
        generation.read_on(&turn[lasting..])?;
        Ok(generation)
    }

    /// Remembers the answer, whose tokens `generation` drew.
    ///
    /// # Errors
    /// As [`Generation::cache`].
    pub fn keep(&mut self, mut generation: Generation<'a, B>, answer: &[u32]) -> Result<()> {
        self.kept.push(generation.cache()?);
        self.tokens.extend_from_slice(answer);
        Ok(())
    }
}
