//! How the tokens of a request are drawn.
//!
//! Fields that OpenAI has keep its ranges and its defaults. Others, such as `top_k` and `min_p`, are named as other servers name
//! them. What a request does not say is drawn from all tokens at a temperature of 1.

use super::App;
use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
};
use hecate_models::{
    Random,
    sampling::{Penalties, Sampler, Sampling},
};
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
};

/// What may be subtracted from logits of tokens that were drawn, as OpenAI has it.
const PENALTY: RangeInclusive<f64> = -2.0..=2.0;
/// What may be added to logits of tokens, as OpenAI has it.
const BIAS: RangeInclusive<f64> = -100.0..=100.0;
/// What logits of tokens in the text may be divided by: more than anybody wants, and too little to make them infinite.
const REPETITION: RangeInclusive<f64> = 0.001..=1000.0;

/// 64 bits that nobody knows before.
pub(super) fn random() -> u64 {
    // The keys of a hash map are drawn from the system's randomness.
    RandomState::new().hash_one(0)
}

/// A sampler for each continuation. The first has the request's own seed, others one of their own that follows from it.
///
/// # Errors
/// 400 by the name of a field that is out of its range.
pub(super) fn samplers(app: &App, fields: &mut Fields) -> Result<Vec<Sampler>, Refusal> {
    let count = fields.whole("n", 1..=app.limits.texts)?.unwrap_or(1);
    // `best_of` texts of which the best `n` are told: the same where none is left out.
    if fields.whole("best_of", 1..=app.limits.texts)?.is_some_and(|best_of| best_of != count) {
        return Err(Refusal::unsupported("best_of", "leave it out, or give it the value of `n`"));
    }
    let seed = fields.seed("seed")?.unwrap_or_else(random);
    let (sampling, penalties, bias) = (sampling(fields)?, penalties(fields)?, bias(app, fields)?);
    let of = |i: u64| if i == 0 { seed } else { Random::stream(seed, i).bits() };
    let sampler = |i| Sampler::new(Sampling { seed: of(i), ..sampling })?.penalized(penalties)?.biased(&bias);
    // A padded model has scores of tokens that nobody can read.
    (0..count as u64).map(|i| Ok(sampler(i)?.of(&app.vocabulary))).collect()
}

/// What changes all logits, and which tokens are kept.
///
/// `temperature`, `top_p`, `top_k` and `min_p` are in that order what logits are divided by, which probability the likeliest tokens
/// that are kept have together, how many of them there are, and how likely each is beside the likeliest.
fn sampling(fields: &mut Fields) -> Result<Sampling, Refusal> {
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0) as f32,
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32,
        top_k: fields.whole("top_k", 0..=usize::MAX)?.unwrap_or(0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
        repetition_penalty: fields.number("repetition_penalty", REPETITION)?.unwrap_or(1.0) as f32,
        ..Sampling::default()
    })
}

/// What is subtracted from logits of tokens that were drawn.
///
/// Tokens of the prompt do not count: a negative penalty would otherwise have the model repeat the question.
fn penalties(fields: &mut Fields) -> Result<Penalties, Refusal> {
    let mut penalty = |name| fields.number(name, PENALTY).map(|penalty| penalty.unwrap_or(0.0) as f32);
    Ok(Penalties { presence: penalty("presence_penalty")?, frequency: penalty("frequency_penalty")? })
}

/// What is added to logits of tokens: an object of numbers, by the numbers of tokens as text.
///
/// A token that the model does not have is a slip: with another model's numbers the bias would fall on other words.
fn bias(app: &App, fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let (name, size, gaps) = ("logit_bias", app.vocabulary.size(), app.vocabulary.gaps());
    let is_known = |token: u32| (token as usize) < size && !gaps.iter().any(|gap| gap.contains(&token));
    let entry = |(key, value): (String, Value)| {
        // Written in one way alone, so that no token has two values.
        let token = key.parse().ok().filter(|&token: &u32| is_known(token) && token.to_string() == key);
        let token = token.ok_or_else(|| {
            let found = format!("of token {}", shown(&Value::from(key)));
            Refusal::field(name, found, format!("numbers of the model's tokens, under {size}"))
        })?;
        let bias = value.as_f64().filter(|bias| BIAS.contains(bias)).ok_or_else(|| {
            let found = format!("{} for token {token}", shown(&value));
            Refusal::field(name, found, format!("a number from {} to {}", BIAS.start(), BIAS.end()))
        })?;
        Ok((token, bias as f32))
    };
    fields.object(name)?.into_iter().flat_map(Fields::into_entries).map(entry).collect()
}
