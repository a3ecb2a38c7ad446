//! Choosing the next token.

use crate::{Error, Place, Random, Result};

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

/// Draws tokens, one after another: top-k, then top-p (Holtzman et al., "The Curious Case of Neural Text Degeneration").
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    /// Tokens asked for so far, for messages.
    drawn: u64,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// [`Error::Config`] for a temperature below 0 or not finite, or a `top_p` outside `(0, 1]`.
    pub fn new(sampling: Sampling) -> Result<Self> {
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            return Err(Error::config(
                "temperature",
                sampling.temperature,
                "a finite number of at least 0 (0: greedy)",
            ));
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(Error::config("top-p", sampling.top_p, "above 0 and at most 1 (1: no limit)"));
        }
        Ok(Self { sampling, random: Random::new(sampling.seed), drawn: 0 })
    }

    /// A token, given the logits of all. Among equals the lowest token comes first.
    ///
    /// # Errors
    /// [`Error::Config`] without logits, [`Error::NonFinite`] if one is NaN or +∞, or all are −∞.
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        self.drawn += 1;
        let order = self.ranked(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(order[0].0);
        }
        // Softmax without its sum; the largest exponent is 0.
        let highest = f64::from(order[0].1);
        let temperature = f64::from(self.sampling.temperature);
        let mut weights: Vec<f64> =
            order.iter().map(|&(_, x)| ((f64::from(x) - highest) / temperature).exp()).collect();
        let kept = nucleus(&weights, f64::from(self.sampling.top_p));
        weights.truncate(kept);
        let chosen = choose(&weights, self.random.unit());
        Ok(order[chosen].0)
    }

    /// Tokens that can be chosen and their logits, likeliest first; never empty.
    fn ranked(&self, logits: &[f32]) -> Result<Vec<(u32, f32)>> {
        let fail = |found: f32| Error::NonFinite {
            what: "a logit".to_owned(),
            place: Place::default(),
            found: f64::from(found),
            step: self.drawn,
            way_out: "the weights are damaged: train again, or go back to an earlier checkpoint",
        };
        if let Some(&bad) = logits.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
            return Err(fail(bad));
        }
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let wanted = match self.sampling {
            Sampling { temperature: 0.0, .. } => 1,
            Sampling { top_k, .. } => top_k,
        };
        // Only those that can be chosen have to be in order.
        if (1..order.len()).contains(&wanted) {
            order.select_nth_unstable_by(wanted - 1, likelier);
            order.truncate(wanted);
        }
        order.sort_unstable_by(likelier);
        match order.first() {
            None => Err(Error::config("number of logits", 0, "one for every token of the vocabulary")),
            Some(&(_, best)) if best == f32::NEG_INFINITY => Err(fail(best)),
            Some(_) => Ok(order),
        }
    }
}

/// Number of leading weights whose share first reaches `top_p`.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p >= 1.0 {
        return weights.len();
    }
    let wanted = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let reached = weights.iter().position(|w| {
        sum += w;
        sum >= wanted
    });
    reached.map_or(weights.len(), |last| last + 1)
}

/// The index whose interval of the cumulative weights holds `at`, in `[0, 1)` of the whole.
fn choose(weights: &[f64], at: f64) -> usize {
    let mut left = at * weights.iter().sum::<f64>();
    let hit = weights.iter().position(|w| {
        left -= w;
        left < 0.0
    });
    hit.unwrap_or(weights.len() - 1)
}
