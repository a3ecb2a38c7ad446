//! Continuing a text.

use crate::{Cache, Error, LanguageModel, Result, evaluate::SEGMENT, sampling::Sampler};
use hecate_core::{Backend, CapturedStep, Host, Tensor};
use std::{fmt, iter::FusedIterator};

/// An endless stream of tokens that continue a prompt, ended by the first error. Time and memory a token do not grow
/// with the text. Where rules are frozen in groups of `G` ([`LanguageModel::group`]), each token also reads again the
/// up to `G − 1` tokens of its group.
pub struct Generation<'a, B: Backend> {
    model: &'a LanguageModel<B>,
    cache: Cache<B>,
    sampler: Sampler,
    /// Logits of the next token, `[V]`.
    logits: Vec<f32>,
    /// Read since the cache's position, which is a multiple of the frozen rules' groups; empty without such rules.
    group: Vec<u32>,
    /// Reads one more token as the device captured it; the cache is not moved on then.
    captured: Option<Box<dyn CapturedStep>>,
    /// Whether the device was asked to capture.
    asked: bool,
    /// Drawn, but not yet read by the model.
    unread: Option<u32>,
    /// After an error there is no further token.
    failed: bool,
}

/// Reads the prompt; the iterator returned draws the tokens that follow it.
///
/// # Errors
/// [`Error::Config`] for a prompt of no token, and the model's own.
pub fn generate<'a, B: Backend>(
    model: &'a LanguageModel<B>,
    prompt: &[u32],
    sampler: Sampler,
) -> Result<Generation<'a, B>> {
    if prompt.is_empty() {
        return Err(Error::config("prompt", "empty", "at least one token"));
    }
    let (cache, logits, group) = (model.cache(1)?, Vec::new(), Vec::new());
    let (captured, asked, unread, failed) = (None, false, None, false);
    let mut generation = Generation { model, cache, sampler, logits, group, captured, asked, unread, failed };
    for segment in prompt.chunks(SEGMENT) {
        generation.read(segment)?;
    }
    Ok(generation)
}

impl<B: Backend> fmt::Debug for Generation<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("position", &self.cache.position())
            .field("sampler", &self.sampler)
            .field("captured", &self.captured.is_some())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Generation<'_, B> {
    /// Reads tokens and keeps the last one's logits. The cache moves on by whole groups; the tokens of an unfinished group
    /// are read from a copy of it.
    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        self.group.extend(tokens);
        let unfinished = self.group.split_off(self.group.len() / self.model.group() * self.model.group());
        let whole = std::mem::replace(&mut self.group, unfinished);
        if !whole.is_empty() {
            self.logits = last_row(&self.model.infer(&whole, 1, &mut self.cache)?)?;
        }
        if !self.group.is_empty() {
            self.logits = last_row(&self.model.infer(&self.group, 1, &mut self.cache.clone())?)?;
        }
        Ok(())
    }

    /// Reads more text after what was read and drawn so far; the tokens that follow are drawn from there.
    ///
    /// # Errors
    /// [`Error::Config`] after an error of the generation itself, and the model's own.
    pub fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        if self.failed {
            return Err(Error::config("generation", "ended by an error", "one that can go on"));
        }
        let unread = self.unread.take();
        let text: Vec<u32> = unread.into_iter().chain(tokens.iter().copied()).collect();
        let read = match self.captured {
            // The cache stands where the device captured the step.
            Some(_) => text.iter().try_for_each(|&token| self.step(token)),
            None => text.chunks(SEGMENT).try_for_each(|segment| self.read(segment)),
        };
        self.failed = read.is_err();
        read
    }

    /// Reads one token.
    fn step(&mut self, token: u32) -> Result<()> {
        match &mut self.captured {
            Some(captured) => self.logits = captured.step(Host::U32(vec![token]))?.into_f32(),
            None => self.read(&[token])?,
        }
        Ok(())
    }

    /// Reads the token drawn before, if any, and draws the next.
    fn draw(&mut self) -> Result<u32> {
        if let Some(token) = self.unread.take() {
            if !self.asked {
                self.captured = self.model.capture(&self.cache)?;
                self.asked = true;
            }
            self.step(token)?;
        }
        let token = self.sampler.draw(&self.logits)?;
        self.unread = Some(token);
        Ok(token)
    }
}

/// The last token's logits of `[1, T, V]`.
fn last_row<B: Backend>(logits: &Tensor<B>) -> Result<Vec<f32>> {
    let vocabulary = logits.shape().last();
    let mut logits = logits.to_f32()?;
    Ok(logits.split_off(logits.len().saturating_sub(vocabulary)))
}

impl<B: Backend> Iterator for Generation<'_, B> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        if self.failed {
            return None;
        }
        let token = self.draw();
        self.failed = token.is_err();
        Some(token)
    }
}

impl<B: Backend> FusedIterator for Generation<'_, B> {}
