//! Choosing the next token.

mod likelihood;

pub use likelihood::Likelihood;

use crate::{At, Error, Place, Result, Vocabulary};
use hecate_core::{
    Backend, Tensor,
    primitives::{self, Draw, NO_SCORE, TOO_LARGE, UNDEFINED},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

/// How a token is drawn from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the likeliest token always.
    pub temperature: f32,
    /// Only this many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability are kept, in `(0, 1]`.
    pub top_p: f32,
    /// Of these only tokens that are at least this part as likely as the likeliest are kept, in `[0, 1]`; 0 keeps all (Nguyen et
    /// al., "Turning Up the Heat").
    pub min_p: f32,
    /// Logits of tokens that are in the text already are divided by it, negative ones multiplied; above 0, and 1 changes
    /// nothing (Keskar et al., "CTRL", as transformers has it).
    pub repetition_penalty: f32,
    /// Same seed, same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

/// What is subtracted from logits of tokens that were drawn before, as OpenAI's API has it; negative values make them likelier.
/// Tokens that others wrote, such as a prompt, do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalties {
    /// Subtracted once, however often a token was drawn; finite, and 0 changes nothing.
    pub presence: f32,
    /// Subtracted for each time that a token was drawn; finite, and 0 changes nothing.
    pub frequency: f32,
}

/// Draws tokens, one after another, as [`hecate_core::primitives::sample`] does: from the same logits the same tokens, on the
/// host and on every device.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Options,
    seed: u64,
    /// Tokens asked for so far.
    drawn: u64,
    /// Different tokens of the text so far, where a penalty is on them.
    read: BTreeSet<u32>,
    /// How often tokens were drawn, where penalties are on them.
    counts: BTreeMap<u32, u32>,
}

/// What samplers of texts that are drawn together have in common.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) draw: Draw,
    min_p: f32,
    repetition_penalty: f32,
    penalties: Penalties,
    /// What is added to logits of tokens.
    bias: Arc<[(u32, f32)]>,
    /// Tokens from this number on are never drawn.
    tokens: usize,
    /// Nor are these.
    gaps: Arc<[Range<u32>]>,
}

impl Options {
    /// What of it a device, which draws from all columns up to one, does not do; none if it does all.
    pub(crate) fn why_on_host(&self) -> Option<&'static str> {
        let reasons = [
            (!self.gaps.is_empty(), "the tokenizer's numbers have gaps, which are left out"),
            (self.min_p > 0.0, "min-p is computed on the host"),
            (self.repetition_penalty != 1.0, "the repetition penalty is computed on the host"),
            (self.penalties != Penalties::default(), "penalties on tokens drawn before are computed on the host"),
            (!self.bias.is_empty(), "the bias of logits is added on the host"),
        ];
        reasons.into_iter().find_map(|(holds, why)| holds.then_some(why))
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

    /// Adds the bias to logits, puts the repetition penalty on those of tokens that were read, and then subtracts the other
    /// penalties from those of tokens that were drawn, as often as `counts` says.
    fn weigh(&self, logits: &mut Cow<'_, [f32]>, read: &BTreeSet<u32>, counts: &BTreeMap<u32, u32>) {
        if self.bias.is_empty() && read.is_empty() && counts.is_empty() {
            return;
        }
        let logits = logits.to_mut();
        for &(token, bias) in self.bias.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for &token in read {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit < 0.0 { *logit * self.repetition_penalty } else { *logit / self.repetition_penalty };
            }
        }
        let Penalties { presence, frequency } = self.penalties;
        for (&token, &count) in counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= presence + frequency * count as f32;
            }
        }
    }

    /// Leaves out tokens that are too unlikely beside the likeliest, and says how the others are drawn. Top-p is of all that
    /// top-k keeps, these among them, so of the others it is a larger part.
    fn without_unlikely(&self, logits: &mut Cow<'_, [f32]>) -> Draw {
        let Draw { temperature, top_k, top_p } = self.draw;
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // What is not finite is told of where tokens are drawn.
        if self.min_p == 0.0 || temperature == 0.0 || !top.is_finite() || logits.iter().any(|x| x.is_nan()) {
            return self.draw;
        }
        let part = |x: f32| ((f64::from(x) - f64::from(top)) / f64::from(temperature)).exp();
        let mut parts: Vec<f64> = logits.iter().map(|&x| part(x)).collect();
        if (1..parts.len()).contains(&top_k) {
            parts.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            parts.truncate(top_k);
        }
        let least = f64::from(self.min_p);
        let all: f64 = parts.iter().sum();
        let kept: f64 = parts.iter().filter(|part| **part >= least).sum();
        logits.to_mut().iter_mut().filter(|x| part(**x) < least).for_each(|x| *x = f32::NEG_INFINITY);
        Draw { temperature, top_k, top_p: (f64::from(top_p) * all / kept).min(1.0) as f32 }
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
    /// [`Error::Config`] for what is outside of its range in [`Sampling`], or not finite.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed } = sampling;
        let draw = Draw { temperature, top_k, top_p };
        draw.check().map_err(|error| match error {
            // By the names of flags and of configurations.
            hecate_core::Error::Config { option, found, expected, .. } => Error::config(option, found, expected),
            other => other.into(),
        })?;
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Error::config("min-p", min_p, "at least 0 and at most 1 (0: no limit)"));
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            return Err(Error::config("repetition penalty", repetition_penalty, "a finite number above 0 (1: none)"));
        }
        let (penalties, bias, tokens, gaps) = (Penalties::default(), Arc::default(), usize::MAX, Arc::default());
        let options = Options { draw, min_p, repetition_penalty, penalties, bias, tokens, gaps };
        Ok(Self { options, seed, drawn: 0, read: BTreeSet::new(), counts: BTreeMap::new() })
    }

    /// The same sampler, which adds to the logits of these tokens, one after another; −∞ never draws one.
    ///
    /// # Errors
    /// [`Error::Config`] for what is NaN or +∞.
    pub fn biased(mut self, bias: &[(u32, f32)]) -> Result<Self> {
        if let Some((token, bias)) = bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            return Err(Error::config(
                format!("logit bias of token {token}"),
                bias,
                "a finite number, or -inf for never",
            ));
        }
        self.options.bias = bias.into();
        Ok(self)
    }

    /// The same sampler, which subtracts these penalties from logits of tokens that it drew before.
    ///
    /// # Errors
    /// [`Error::Config`] for what is not finite.
    pub fn penalized(mut self, penalties: Penalties) -> Result<Self> {
        let Penalties { presence, frequency } = penalties;
        for (name, penalty) in [("presence penalty", presence), ("frequency penalty", frequency)] {
            if !penalty.is_finite() {
                return Err(Error::config(name, penalty, "a finite number (0: none)"));
            }
        }
        self.options.penalties = penalties;
        Ok(self)
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
        let mut logits = self.options.logits(logits);
        if logits.is_empty() {
            return Err(Error::config("number of logits", 0, "one for every token of the vocabulary"));
        }
        self.options.weigh(&mut logits, &self.read, &self.counts);
        let draw = self.options.without_unlikely(&mut logits);
        let token = draw.token(&logits, self.stream())?;
        self.accept(token)
    }

    /// Tokens are drawn under this number alone.
    pub(crate) fn tokens(&self) -> usize {
        self.options.tokens
    }

    /// A token as [`Sampler::draw`] draws it, of those alone that are allowed: one entry for each, none where there is no entry.
    /// Top-k, top-p and min-p are of these.
    ///
    /// # Errors
    /// As [`Sampler::draw`], which finds all logits to be −∞ where no token is allowed.
    pub fn draw_among(&mut self, logits: &[f32], allowed: &[bool]) -> Result<u32> {
        let is_allowed = |token: usize| allowed.get(token).is_some_and(|allowed| *allowed);
        // What is not finite stays: it is told of wherever it stands.
        let hidden =
            |(token, x): (usize, &f32)| if !is_allowed(token) && x.is_finite() { f32::NEG_INFINITY } else { *x };
        self.draw(&logits.iter().enumerate().map(hidden).collect::<Vec<_>>())
    }

    /// Tokens asked for so far.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// The same sampler once it was asked for so many tokens.
    pub(crate) fn after(self, drawn: u64) -> Self {
        Self { drawn, ..self }
    }

    /// Tokens of the text that others wrote, such as a prompt: what comes after them may have a penalty on them.
    pub fn read(&mut self, tokens: &[u32]) {
        if self.options.repetition_penalty != 1.0 {
            self.read.extend(tokens);
        }
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
            token => {
                self.read(&[token]);
                if self.options.penalties != Penalties::default() {
                    *self.counts.entry(token).or_default() += 1;
                }
                return Ok(token);
            }
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
