//! How likely a model finds tokens.

use super::Sampler;
use std::cmp::Ordering;

/// A token, and how likely a model finds it and others in its place.
///
/// All are natural logarithms of the probabilities that the model gives, so at most 0: neither temperature nor limits, bias or
/// penalties change them. They are of the tokens that can be drawn ([`Sampler::of`]), whose probabilities sum to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// The token.
    pub token: u32,
    /// Of the token; −∞ for one that cannot be drawn.
    pub log_probability: f64,
    /// The likeliest tokens with theirs, likeliest first. Among equals the lowest token comes first.
    pub likeliest: Vec<(u32, f64)>,
}

impl Sampler {
    /// How likely a token is by the logits of all, beside the `count` likeliest; fewer where no others can be drawn.
    ///
    /// Logits are those of a model `[V]`: finite or −∞, and not all −∞.
    pub fn likelihood(&self, logits: &[f32], token: u32, count: usize) -> Likelihood {
        let logits = self.options.logits(logits);
        let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        // Beside the largest, so that no exponential is too large: log Σ exp(x) = top + log Σ exp(x − top).
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - top).exp()).sum();
        let all = top + sum.ln();
        let log_probability = logits.get(token as usize).map_or(f64::NEG_INFINITY, |&x| f64::from(x) - all);
        let mut likeliest: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&x| f64::from(x) - all)).collect();
        likeliest.retain(|(_, log_probability)| log_probability.is_finite());
        if (1..likeliest.len()).contains(&count) {
            likeliest.select_nth_unstable_by(count - 1, likelier_first);
        }
        likeliest.truncate(count);
        likeliest.sort_unstable_by(likelier_first);
        Likelihood { token, log_probability, likeliest }
    }
}

/// The order of tokens with their likelihoods.
fn likelier_first(one: &(u32, f64), other: &(u32, f64)) -> Ordering {
    other.1.total_cmp(&one.1).then(one.0.cmp(&other.0))
}
