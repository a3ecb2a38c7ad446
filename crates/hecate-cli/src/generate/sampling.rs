//! How tokens are drawn: what flags say, over what the model says, over what Hecate does.

use crate::error::Result;
use clap::Args;
use hecate::models::{
    Random, Vocabulary,
    sampling::{Penalties, Sampler, Sampling},
};

/// Flags that say how tokens are drawn. A released model may say it in its `generation_config.json`.
#[derive(Args, Debug)]
pub(crate) struct SamplingArgs {
    /// How adventurous the choice of tokens is; 0 always takes the likeliest [default: the model's own, or 0.8]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 for no limit [default: the model's own, or 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens that together have this probability; 1 for no limit [default: the model's own, or 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Choose among tokens that are at least this part as likely as the likeliest [default: the model's own, or 0]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Divide logits of tokens that are in the text already, multiply negative ones [default: the model's own, or 1]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Subtract this from logits of tokens that were drawn before, from -2 to 2; negative values make them likelier
    ///
    /// Tokens of the prompt do not count.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    presence_penalty: f32,
    /// As --presence-penalty, for each time that a token was drawn
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    frequency_penalty: f32,
    /// Add this to the logit of a token, given by its number; may be given several times, -inf for never
    #[arg(long, value_name = "TOKEN=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    /// Refuses flags out of their ranges, before a model is loaded.
    pub(crate) fn check(&self) -> Result<()> {
        self.sampler(Sampling::default(), 0).map(drop)
    }

    /// The sampler of a line of a model whose tokens are drawn like `own` unless flags say otherwise; the first line's is that of
    /// a prompt.
    pub(crate) fn sampler(&self, own: Sampling, line: u64) -> Result<Sampler> {
        // A flag that is not there leaves what the model says as it is.
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            seed: seed_of_line(self.seed, line),
        };
        // No model says anything of these.
        let penalties = Penalties { presence: self.presence_penalty, frequency: self.frequency_penalty };
        Ok(Sampler::new(sampling)?.biased(&self.logit_bias)?.penalized(penalties)?)
    }

    /// Refuses a bias of a token that there is not.
    pub(crate) fn check_bias(&self, vocabulary: &Vocabulary) -> Result<()> {
        let unknown = |token: u32| token as usize >= vocabulary.size() || is_in_gap(vocabulary, token);
        match self.logit_bias.iter().find(|(token, _)| unknown(*token)) {
            Some((token, _)) => {
                let expected = format!("the number of one of its tokens, under {}", vocabulary.size());
                Err(hecate::models::Error::config("--logit-bias", token, expected).into())
            }
            None => Ok(()),
        }
    }
}

/// Whether no token has this number.
fn is_in_gap(vocabulary: &Vocabulary, token: u32) -> bool {
    vocabulary.gaps().iter().any(|gap| gap.contains(&token))
}

/// A token and what is added to its logit, as `--logit-bias` has them.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| "expected the number of a token, `=` and a number, such as `42=-1.5` or `42=-inf`".to_owned())
}

/// A penalty on tokens that were drawn before, in the range that OpenAI's API has.
///
/// # Errors
/// In words what was expected: clap says of which flag, and what was found.
fn penalty(text: &str) -> Result<f32, String> {
    // What is no number is in no range either, NaN among it.
    let number = text.parse().ok().filter(|number| (-2.0..=2.0).contains(number));
    number.ok_or_else(|| "expected a number from -2 to 2".to_owned())
}

/// How tokens are drawn, in words.
pub(crate) fn said(sampling: Sampling) -> String {
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = sampling;
    // What changes nothing is not told.
    let all = [
        Some(format!("temperature {temperature}")),
        (top_k > 0).then(|| format!("top-k {top_k}")),
        (top_p < 1.0).then(|| format!("top-p {top_p}")),
        (min_p > 0.0).then(|| format!("min-p {min_p}")),
        (repetition_penalty != 1.0).then(|| format!("repetition penalty {repetition_penalty}")),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The seed of a line of standard input. Lines that are the same are not answered the same, neither with one seed nor with another:
/// each has a number of its own of its seed's random ones.
fn seed_of_line(seed: u64, line: u64) -> u64 {
    if line == 0 { seed } else { Random::stream(seed, line).bits() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_lines_of_all_seeds_differ() {
        let seeds = (0..200).chain([u64::MAX - 1, u64::MAX]);
        let all: HashSet<u64> = seeds.flat_map(|seed| (0..50).map(move |line| seed_of_line(seed, line))).collect();
        assert_eq!(all.len(), 202 * 50);
        assert_eq!(seed_of_line(7, 0), 7);
    }

    #[test]
    fn penalties_are_numbers_in_their_range() {
        for (text, number) in [("-2", -2.0), ("0", 0.0), ("0.25", 0.25), ("2", 2.0)] {
            assert_eq!(penalty(text), Ok(number));
        }
        for wrong in ["-2.001", "2.001", "nan", "inf", "-inf", "much", ""] {
            assert!(penalty(wrong).is_err_and(|why| why.contains("from -2 to 2")), "{wrong}");
        }
    }

    /// One is subtracted once, the other for each time.
    #[test]
    fn penalties_are_on_what_was_drawn() {
        let drawn = |presence_penalty, frequency_penalty| {
            let (temperature, logit_bias) = (Some(0.0), Vec::new());
            let (top_k, top_p, min_p, repetition_penalty, seed) = (None, None, None, None, 0);
            #[rustfmt::skip]
            let arguments = SamplingArgs {
                temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed,
            };
            let mut sampler = arguments.sampler(Sampling::default(), 0).unwrap();
            [(); 5].map(|()| sampler.draw(&[3.0, 2.0, 0.0]).unwrap())
        };
        assert_eq!(drawn(0.0, 0.0), [0; 5]);
        // 3 and 2 become 1.5 and 0.5, and stay so.
        assert_eq!(drawn(1.5, 0.0), [0, 1, 0, 0, 0]);
        // 3 becomes 1.5 and then 0, 2 becomes 0.5 and then -1.
        assert_eq!(drawn(0.0, 1.5), [0, 1, 0, 1, 0]);
        assert_eq!(drawn(-2.0, -2.0), [0; 5]);
    }

    #[test]
    fn a_bias_is_a_token_and_a_number() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        for wrong in ["42", "=1", "a=1", "-1=1", "42=", "42=much", "1=2=3"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }
}
