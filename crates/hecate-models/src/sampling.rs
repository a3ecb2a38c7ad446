//! Choosing the next token.

use crate::{At, Error, Place, Result, Vocabulary};
use hecate_core::{
    Backend, Tensor,
    primitives::{self, Draw, NO_SCORE, TOO_LARGE, UNDEFINED},
};
use std::{borrow::Cow, ops::Range, sync::Arc};

/// How a token is drawn from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the likeliest token always.
    pub temperature: f32,
    /// Only this many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability are kept, in `(0, 1]`.
    pub top_p: f32,
    /// Same seed, same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 0 }
    }
}

/// Draws tokens, one after another, as [`hecate_core::primitives::sample`] does: from the same logits the same tokens, on the
/// host and on every device.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Options,
    seed: u64,
    /// Tokens asked for so far.
    drawn: u64,
}

/// What samplers of texts that are drawn together have in common.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) draw: Draw,
    /// Tokens from this number on are never drawn.
    tokens: usize,
    /// Nor are these.
    gaps: Arc<[Range<u32>]>,
}

impl Options {
    /// Whether numbers are left out between others: a device, which draws from all columns up to one, cannot do that.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// The logits of tokens that can be drawn; others are −∞.
    fn logits<'a>(&self, logits: &'a [f32]) -> Cow<'a, [f32]> {
        let mut logits = Cow::Borrowed(&logits[..logits.len().min(self.tokens)]);
        for gap in self.gaps.iter() {
            let end = logits.len().min(gap.end as usize);
            if let Some(gap) = logits.to_mut().get_mut(gap.start as usize..end) {
                gap.fill(f32::NEG_INFINITY);
            }
        }
        logits
    }

    /// The columns of `scores [B,V]` that can be drawn.
    pub(crate) fn known<B: Backend>(&self, scores: Tensor<B>) -> Result<Tensor<B>> {
        if scores.shape().last() <= self.tokens {
            return Ok(scores);
        }
        Ok(primitives::narrow(&scores, 1, 0, self.tokens)?)
    }
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// [`Error::Config`] for a temperature below 0 or not finite, or a `top_p` outside `(0, 1]`.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { temperature, top_k, top_p, seed } = sampling;
        let draw = Draw { temperature, top_k, top_p };
        match draw.check() {
            Ok(()) => Ok(Self { options: Options { draw, tokens: usize::MAX, gaps: Arc::default() }, seed, drawn: 0 }),
            // By the names of flags and of configurations.
            Err(hecate_core::Error::Config { option, found, expected, .. }) => {
                Err(Error::config(option, found, expected))
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The same sampler, which draws tokens under this number alone, as many as a vocabulary has. A model may have logits for
    /// more: widths of released models are often rounded up.
    pub fn among(mut self, tokens: usize) -> Self {
        self.options.tokens = tokens;
        self
    }

    /// The same sampler, which draws tokens of this vocabulary alone: as [`Sampler::among`], without the numbers that no token has.
    pub fn of(mut self, vocabulary: &Vocabulary) -> Self {
        self.options.gaps = vocabulary.gaps();
        self.among(vocabulary.size())
    }

    /// A token, given the logits of all. Among equals the lowest token comes first.
    ///
    /// # Errors
    /// [`Error::Config`] without logits, [`Error::NonFinite`] if one is NaN or +∞, or all are −∞.
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        let logits = self.options.logits(logits);
        if logits.is_empty() {
            return Err(Error::config("number of logits", 0, "one for every token of the vocabulary"));
        }
        let token = self.options.draw.token(&logits, self.stream())?;
        self.accept(token)
    }

    /// Tokens asked for so far.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// The same sampler once it was asked for so many tokens.
    pub(crate) fn after(self, drawn: u64) -> Self {
        Self { drawn, ..self }
    }

    /// How a device draws in its place.
    pub(crate) fn options(&self) -> Options {
        self.options.clone()
    }

    /// The stream of the next draw.
    pub(crate) fn stream(&self) -> [u32; 3] {
        [self.seed as u32, (self.seed >> 32) as u32, self.drawn as u32]
    }

    /// A token that was drawn from the stream in the sampler's place.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for what stands in the place of a token.
    pub(crate) fn accept(&mut self, token: u32) -> Result<u32> {
        self.drawn += 1;
        let found = match token {
            UNDEFINED => f64::NAN,
            TOO_LARGE => f64::INFINITY,
            NO_SCORE => f64::NEG_INFINITY,
            token => return Ok(token),
        };
        Err(Error::NonFinite {
            what: "a logit".to_owned(),
            place: Place::default(),
            found,
            at: At::Token(self.drawn),
            way_out: "the weights are damaged: train again, or go back to an earlier checkpoint",
        })
    }
}
