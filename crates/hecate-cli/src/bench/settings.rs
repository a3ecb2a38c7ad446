//! Flags that all tasks share, and what they mean. Each task gives those without a default its own.

use super::jobs::JobsArgs;
use crate::{
    device::Choice,
    error::{Error, Result},
    flags::by_flags,
};
use clap::Args;
use hecate::{
    models::{AttentionConfig, Config, LayerConfig, MemoryConfig, MixerConfig, RuleConfig},
    train::{optimizer::Constants, schedule::Schedule},
};
use serde_json::{Value, json};

/// The name of what is no rule, for comparison.
const ATTENTION: &str = "attention";
/// Share of the steps in which the learning rate warms up.
const WARMUP: f64 = 0.1;

/// A model that takes part in a sweep.
pub(super) struct Candidate {
    /// Name of the rule, or what else tells candidates apart.
    pub(super) name: String,
    /// Mixer of every block.
    pub(super) mixer: MixerConfig,
}

/// Flags of a sweep.
#[derive(Args, Debug)]
pub(super) struct SweepSettings {
    /// Rules to compare, with commas between; `attention` for softmax attention over everything
    #[arg(long, value_delimiter = ',', default_value = "delta,hebbian,dgd,titans,attention", value_name = "NAMES")]
    pub(super) rules: Vec<String>,
    /// Learning rates to choose from, by the first seed and questions of their own
    #[arg(long, value_delimiter = ',', value_name = "RATES")]
    pub(super) rates: Vec<f32>,
    /// Seeds
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(super) seeds: u64,
    /// Most steps of a run
    #[arg(long, value_name = "N")]
    pub(super) steps: u64,
    /// Stop a run at this loss, the mean of twenty steps; 0 for all steps
    #[arg(long, value_name = "LOSS")]
    pub(super) enough: f64,
    /// Stop a run once this share is right of the hardest sequences that it learns from, on questions of their own
    #[arg(long, value_name = "SHARE")]
    pub(super) stop_at: Option<f64>,
    /// Steps from one such measurement to the next
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub(super) stop_every: u64,
    /// Share of each weight, times the learning rate, that a step takes off
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    weight_decay: f32,
    /// Sequences a step
    #[arg(long, value_name = "N")]
    pub(super) batch: usize,
    /// Sequences to measure on, of each kind
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(super) examples: usize,
    /// Blocks
    #[arg(long, default_value_t = 1, value_name = "N")]
    layers: usize,
    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    width: usize,
    /// Memories, or attention heads, a layer
    #[arg(long, default_value_t = 1, value_name = "N")]
    heads: usize,
    /// Width of a head's keys
    #[arg(long, value_name = "N")]
    key_dim: usize,
    /// Width of a head's values; those of attention are as wide as its keys
    #[arg(long, value_name = "N")]
    value_dim: usize,
    /// Taps of the short convolutions; 0 for none
    #[arg(long, value_name = "N")]
    conv: usize,
    /// Writes that a token of a memory makes
    #[arg(long, default_value_t = 1, value_name = "N")]
    writes_per_token: usize,
    /// Let memories forget
    #[arg(long)]
    decay: bool,
    /// Let the output head be the table of embeddings
    #[arg(long)]
    tie: bool,
    /// Print everything, every run included, as JSON
    #[arg(long)]
    pub(super) json: bool,
    // No part of the settings that a summary tells: it changes no result.
    #[command(flatten)]
    pub(super) jobs: JobsArgs,
    #[command(flatten)]
    pub(super) device: Choice,
}

impl SweepSettings {
    /// Refuses what no sweep can be made of.
    pub(super) fn check(&self) -> Result<()> {
        let [batch, examples] = [self.batch, self.examples].map(|count| count as u64);
        let counts =
            [("--seeds", self.seeds), ("--batch", batch), ("--examples", examples), ("--stop-every", self.stop_every)];
        if let Some((flag, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return Err(Error::flag(flag, "0 is too few; give at least 1"));
        }
        if !(self.enough >= 0.0 && self.enough.is_finite()) {
            return Err(Error::flag("--enough", format!("{} is no loss; give 0 or more", self.enough)));
        }
        // At 0 every run would end before it has learned anything.
        if let Some(share) = self.stop_at.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(Error::flag(
                "--stop-at",
                format!("{share} is no share of right answers; give over 0, at most 1"),
            ));
        }
        self.constants().check()?;
        self.rates.iter().try_for_each(|&rate| Ok(self.schedule(rate).check()?))
    }

    /// One for each name; attention sees `window` tokens.
    pub(super) fn candidates(&self, window: usize) -> Result<Vec<Candidate>> {
        let candidate = |name: &String| {
            let mixer = if name == ATTENTION { self.attention(window) } else { self.memory(RuleConfig::named(name)?) };
            Ok(Candidate { name: name.clone(), mixer })
        };
        self.rules.iter().map(candidate).collect()
    }

    /// Softmax attention over the last `window` tokens.
    fn attention(&self, window: usize) -> MixerConfig {
        let Self { heads, key_dim, conv, .. } = *self;
        let head_dim = Some(key_dim);
        MixerConfig::Attention(AttentionConfig { heads, head_dim, conv, window, ..AttentionConfig::default() })
    }

    /// A memory of this rule, its other options at their defaults.
    fn memory(&self, rule: RuleConfig) -> MixerConfig {
        let Self { heads, conv, decay, writes_per_token, .. } = *self;
        let (key_dim, value_dim) = (Some(self.key_dim), Some(self.value_dim));
        // Where it forgets, it does so to where its rule goes unless told otherwise.
        let base = MemoryConfig::default();
        MixerConfig::Memory(MemoryConfig { rule, heads, key_dim, value_dim, conv, decay, writes_per_token, ..base })
    }

    /// A model of blocks with this mixer.
    pub(super) fn config(&self, mixer: &MixerConfig, vocabulary_size: usize) -> Result<Config> {
        let layers = LayerConfig { mixer: mixer.clone() }.repeated(self.layers).map_err(by_flags)?;
        let (hidden_size, tie_word_embeddings) = (self.width, self.tie);
        let config = Config { vocabulary_size, hidden_size, tie_word_embeddings, layers, ..Config::default() };
        config.validate().map_err(by_flags)?;
        Ok(config)
    }

    /// Learning rates of a run.
    pub(super) fn schedule(&self, peak: f32) -> Schedule {
        let warmup = (self.steps as f64 * WARMUP).ceil() as u64;
        Schedule { peak, floor: peak / 10.0, warmup, steps: self.steps }
    }

    /// Constants of the optimiser, the same for all candidates: only the rate is searched for.
    pub(super) fn constants(&self) -> Constants {
        Constants { weight_decay: self.weight_decay, ..Constants::default() }
    }

    /// Names and values, for the summary.
    pub(super) fn to_json(&self) -> Vec<(String, Value)> {
        let Self { layers, width, heads, key_dim, value_dim, conv, decay, tie, writes_per_token, .. } = *self;
        let Self { seeds, steps, enough, stop_at, stop_every, batch, examples, .. } = *self;
        let named = [
            ("rules", json!(self.rules)),
            ("rates", json!(self.rates.iter().map(|&rate| shortest(rate)).collect::<Vec<_>>())),
            ("seeds", json!(seeds)),
            ("steps", json!(steps)),
            ("enough", json!(enough)),
            ("stop_at", json!(stop_at)),
            ("stop_every", json!(stop_every)),
            ("weight_decay", json!(shortest(self.weight_decay))),
            ("batch", json!(batch)),
            ("examples", json!(examples)),
            ("layers", json!(layers)),
            ("width", json!(width)),
            ("heads", json!(heads)),
            ("key_dim", json!(key_dim)),
            ("value_dim", json!(value_dim)),
            ("conv", json!(conv)),
            ("writes_per_token", json!(writes_per_token)),
            ("decay", json!(decay)),
            ("tie", json!(tie)),
        ];
        named.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// A number as it was typed: `0.01`, not the 64-bit neighbour of its 32-bit value.
pub(super) fn shortest(rate: f32) -> f64 {
    rate.to_string().parse().unwrap_or(f64::from(rate))
}
