//! What a model is made of, as it stands in `config.json`.

mod composed;
mod levels;
mod retention;
mod rule;
mod validate;

pub use composed::{ComposedConfig, MacConfig};
pub use levels::{CmsConfig, ConductorConfig, HopeConfig, TntConfig, Wiring};
pub use retention::Retain;
pub(crate) use rule::{Elements, check_same};
pub use rule::{GROUP, MOMENTUM, RuleConfig, in_groups};

use crate::{
    Dropout, Error, Result,
    bounds::{LAYERS, SIZE, within},
    files::{from_slice, parse_json},
};
use hecate_core::{Rule, quantized::BlockFormat};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// A language model: an embedding, blocks, a norm and an output head.
///
/// # Example
///
/// ```
/// use hecate_models::{AttentionConfig, Config, LayerConfig, MemoryConfig, MixerConfig, Result, RuleConfig};
///
/// # fn main() -> Result<()> {
/// // Four blocks alike, and the same in JSON with another width.
/// let config = Config::uniform("titans", 4, 128, 4)?;
/// let wider = Config::from_json(&config.to_json()?.replace("\"hidden_size\": 128", "\"hidden_size\": 256"))?;
/// assert_eq!(wider, Config { hidden_size: 256, ..config });
///
/// // A memory whose horizon is known, and attention over the last 64 tokens.
/// let rule = RuleConfig::named("delta")?;
/// let memory = MemoryConfig { rule, horizon: Some([16.0, 1024.0]), ..MemoryConfig::default() };
/// let attention = AttentionConfig { window: 64, ..AttentionConfig::default() };
/// let mixers = [MixerConfig::Memory(memory), MixerConfig::Attention(attention)];
/// let layers = mixers.map(|mixer| LayerConfig { mixer }).to_vec();
/// Config { layers, ..Config::default() }.validate()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of different tokens; 256 for bytes.
    pub vocabulary_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the SwiGLU MLPs; absent: 8/3 of the hidden size, rounded up to a multiple of 16.
    pub intermediate_size: Option<usize>,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Added to mean squares in RMS norms.
    pub norm_eps: f32,
    /// Standard deviation of fresh weights. That of projections back into the residual stream is smaller by
    /// `√(2 × layers)`, so that the stream's size does not grow with depth.
    pub initializer_range: f32,
    /// Share of what attention saw and memories read that is dropped while the model learns, in `[0, 1)`.
    pub attention_dropout: f32,
    /// Share of the elements inside the MLPs that is dropped while the model learns, in `[0, 1)`.
    pub activation_dropout: f32,
    /// Share of what mixers and MLPs add to the residual stream that is dropped while the model learns, in `[0, 1)`.
    pub hidden_dropout: f32,
    /// The blocks, first to last.
    pub layers: Vec<LayerConfig>,
    /// How the matrices of projections, MLPs and a head of its own are stored: for inference alone. Those that it does not fit are
    /// in `q8_0`, or bfloat16 where that does not fit either. Absent, all weights are 32-bit floats, as they always are in tables,
    /// norms, convolutions and the maps of gates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<BlockFormat>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocabulary_size: 256,
            hidden_size: 128,
            intermediate_size: None,
            tie_word_embeddings: true,
            norm_eps: 1e-6,
            initializer_range: 0.02,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            hidden_dropout: 0.0,
            layers: vec![LayerConfig::default(); 4],
            quantization: None,
        }
    }
}

/// A block: `x + mixer(norm x)`, then `x + mlp(norm x)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerConfig {
    /// What carries information from token to token.
    pub mixer: MixerConfig,
}

impl LayerConfig {
    /// This many blocks like it.
    ///
    /// # Errors
    /// [`Error::Config`] for none, and for more than any model has.
    pub fn repeated(self, layers: usize) -> Result<Vec<Self>> {
        within("layers", layers, 1..=LAYERS)?;
        Ok(vec![self; layers])
    }
}

/// What carries information from token to token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MixerConfig {
    /// A neural memory (LMM).
    #[serde(alias = "lmm")]
    Memory(MemoryConfig),
    /// Sliding-window softmax attention.
    Attention(AttentionConfig),
    /// Memory as a gate: attention and a memory side by side.
    Mag(ComposedConfig),
    /// Memory as a layer: attention reads what a memory made.
    Mal(ComposedConfig),
    /// Memory as a context: attention over a segment and what a memory says of it.
    Mac(MacConfig),
    /// Memories that are constant for chunks of tokens, each for longer ones.
    Cms(CmsConfig),
    /// Memories that are written by every so many tokens, each more seldom.
    Conductor(ConductorConfig),
    /// A memory for the whole text and local ones that start again.
    Tnt(TntConfig),
    /// A memory that makes its own keys, values and gates.
    Hope(HopeConfig),
}

impl MixerConfig {
    /// Where its rule's options are.
    pub(crate) fn rule_path(&self) -> &'static str {
        match self {
            Self::Memory(_) | Self::Attention(_) => "rule.",
            _ => "memory.rule.",
        }
    }
}

impl Default for MixerConfig {
    fn default() -> Self {
        Self::Memory(MemoryConfig::default())
    }
}

/// A neural memory with its projections and gates. Its rule is any, or one of a type that the program knows: then it is
/// what [`Memory::new`](crate::layers::Memory::new) takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryConfig<R = RuleConfig> {
    /// How the memory is written and read.
    pub rule: R,
    /// Number of memories side by side.
    pub heads: usize,
    /// Width of a head's queries and keys; absent: hidden size / heads.
    pub key_dim: Option<usize>,
    /// Width of a head's values; absent: hidden size / heads.
    pub value_dim: Option<usize>,
    /// Taps of the short convolutions on queries, keys and values; 0 for none.
    pub conv: usize,
    /// Whether the output passes a gate `silu(g_proj x)`.
    pub gate: bool,
    /// Whether memories forget; without, `log a = 0` and the layer has no parameters for it.
    pub decay: bool,
    /// Where what memories forget goes; none, in JSON null: to the learned start of networks, lattice and trellis that read after
    /// the write, else to zero. Linear rules go back where that is chosen, dgd without frozen groups. JSON without it is from
    /// before there was a choice, and means zero.
    pub retain: Option<Retain>,
    /// Share of `log a` that is taken, in `(0, 1]`. JSON without it means 1, and without `retain` as well, 1/1024 for networks
    /// and `trellis`, as they once were: memories that go to zero must not get there.
    pub forgetting: f32,
    /// Shortest and longest horizon `−1 / log a` in tokens that fresh heads have, log-uniform between them, each at least 1. JSON
    /// null: as in Mamba-2, between one token and a thousand.
    pub horizon: Option<[f32; 2]>,
    /// Largest step size of the delta rule, in `(0, 2]`: `θ = step σ(b)`. A unit key's share of the memory is multiplied
    /// by `1 − θ` (without decay). Over 1 it changes its sign, which is what keeping track of a state takes. Source:
    /// Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues". Other rules have 1.
    pub step: f32,
    /// Largest momentum of [`Titans`](hecate_core::rules::Titans), [`TitansMlp`](hecate_core::rules::TitansMlp) and
    /// [`YaadMomentum`](hecate_core::rules::YaadMomentum), in `(0, 1]`. Below 1, `η = momentum σ(e)` and
    /// `θ = (1 − momentum) σ(b)`: what a token writes adds up to at most `σ(b)` times its error, whatever `η` later tokens
    /// have. At 1, `η = σ(e)` and `θ = (1 − η) σ(b)`, which bounds it only where `η` is the same for all of them.
    /// Otherwise a memory can leave the range of 32-bit floats, so [`MemoryConfig::of`] has [`MOMENTUM`] for these rules, and 1 where
    /// it looks ahead. Other rules have 1. JSON without it means 1.
    pub momentum: f32,
    /// Writes that a token makes, one after another, each with a key, a value and strengths of its own. The first one forgets,
    /// and the token reads after the last. With two and a largest step of 2 the delta rule turns as well as mirrors. Source:
    /// Siems et al., "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products". Over 1 only for rules
    /// without frozen groups, in layers that are a memory alone.
    pub writes_per_token: usize,
    /// Whether step sizes are divided by the tokens `G` of a frozen group, which act as one step of the sum of theirs: it is then
    /// as long as that of one token. Only of rules with frozen groups of 2 or more. JSON without it means no.
    pub mean: bool,
    /// What becomes of queries and keys before the rule.
    pub features: Features,
}

/// What becomes of a head's unit queries and keys before the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Features {
    /// Nothing.
    #[default]
    Identity,
    /// All monomials of degree up to two ([`primitives::poly2`](hecate_core::primitives::poly2())), so weighted that they
    /// are of length 1 again: the rule has keys of width `1 + K + K (K + 1)/2`.
    Poly2,
}

impl Features {
    /// Width of the rule's keys for queries and keys of this width.
    pub fn width(self, width: usize) -> usize {
        match self {
            Self::Identity => width,
            Self::Poly2 => hecate_core::primitives::poly2_width(width),
        }
    }
}

/// That of the rule's default: [`MemoryConfig::of`].
impl<R: Default + 'static> Default for MemoryConfig<R> {
    fn default() -> Self {
        Self::of(R::default())
    }
}

impl<R: 'static> MemoryConfig<R> {
    /// What a layer with this rule is like unless somebody chooses.
    pub fn of(rule: R) -> Self {
        Self {
            momentum: rule::momentum(&rule),
            rule,
            heads: 4,
            key_dim: None,
            value_dim: None,
            conv: 4,
            gate: true,
            decay: true,
            retain: None,
            forgetting: 1.0,
            horizon: None,
            step: 1.0,
            writes_per_token: 1,
            mean: false,
            features: Features::Identity,
        }
    }
}

impl<R> MemoryConfig<R> {
    /// Widths of a head's keys and of its values.
    pub fn widths(&self, hidden_size: usize) -> (usize, usize) {
        let even = hidden_size / self.heads.max(1);
        (self.key_dim.unwrap_or(even), self.value_dim.unwrap_or(even))
    }

    /// The same options with another rule.
    pub fn with_rule<T>(&self, rule: T) -> MemoryConfig<T> {
        let Self { heads, key_dim, value_dim, conv, gate, decay, retain, forgetting, step, momentum, .. } = *self;
        let (horizon, mean, writes_per_token, features) =
            (self.horizon, self.mean, self.writes_per_token, self.features);
        MemoryConfig {
            rule,
            heads,
            key_dim,
            value_dim,
            conv,
            gate,
            decay,
            retain,
            forgetting,
            horizon,
            step,
            momentum,
            writes_per_token,
            mean,
            features,
        }
    }
}

impl<R: Rule> MemoryConfig<R> {
    /// Refuses, for a layer beside a stream of this width, what [`Config::validate`] does. Of rules that are not in the
    /// list it knows neither the largest step nor the largest momentum. Whether they have groups it does not ask.
    pub(crate) fn check(&self, hidden_size: usize) -> Result<()> {
        let config = match rule::known(&self.rule) {
            Some(rule) => self.with_rule(rule),
            None => {
                // Nor whether it goes back to its start, which the core is asked.
                MemoryConfig {
                    step: 1.0,
                    momentum: 1.0,
                    mean: false,
                    retain: None,
                    ..self.with_rule(RuleConfig::default())
                }
            }
        };
        within("hidden", hidden_size, 1..=SIZE)?;
        config.validate(hidden_size, str::to_owned)
    }
}

/// Softmax attention over the last tokens, with grouped key-value heads and rotary positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads, a divisor of `heads`; absent: as many as `heads`.
    pub kv_heads: Option<usize>,
    /// Width of a head, even; absent: hidden size / heads.
    pub head_dim: Option<usize>,
    /// Tokens seen, the current one included.
    pub window: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Taps of the short convolutions on queries, keys and values; 0 for none.
    pub conv: usize,
}

impl Default for AttentionConfig {
    fn default() -> Self {
        Self { heads: 4, kv_heads: None, head_dim: None, window: 128, rope_base: 10_000.0, conv: 0 }
    }
}

impl AttentionConfig {
    /// Key-value heads and width of a head.
    pub fn sizes(&self, hidden_size: usize) -> (usize, usize) {
        (self.kv_heads.unwrap_or(self.heads), self.head_dim.unwrap_or(hidden_size / self.heads.max(1)))
    }
}

impl Config {
    /// A byte-level model of `layers` equal blocks with the memory of this name, or `"attention"`, `"mag"`, `"mal"`,
    /// `"mac"`, `"cms"`, `"conductor"`, `"tnt"`, `"hope"`, its other options at their defaults. A network alone in its layers
    /// goes by groups of [`GROUP`] tokens ([`in_groups`]). These are the defaults of `hecate train` too.
    ///
    /// ```
    /// use hecate_models::{Config, MixerConfig};
    /// # fn main() -> hecate_models::Result<()> {
    /// let mut config = Config::uniform("titans", 2, 64, 4)?;
    /// // What is chosen afterwards is checked again where a model is made, or by hand.
    /// if let MixerConfig::Memory(memory) = &mut config.layers[1].mixer {
    ///     memory.conv = 0;
    /// }
    /// config.validate()?;
    /// // As it stands in `config.json`.
    /// assert_eq!(Config::from_json(&config.to_json()?)?, config);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a name that no rule has, and as [`Config::validate`].
    pub fn uniform(mixer: &str, layers: usize, hidden_size: usize, heads: usize) -> Result<Self> {
        let mixer = match mixer {
            "attention" => MixerConfig::Attention(AttentionConfig { heads, ..Default::default() }),
            "mag" => MixerConfig::Mag(ComposedConfig::with_heads(heads)),
            "mal" => MixerConfig::Mal(ComposedConfig::with_heads(heads)),
            "mac" => MixerConfig::Mac(MacConfig::with_heads(heads)),
            "cms" => MixerConfig::Cms(CmsConfig::with_heads(heads)),
            "conductor" => MixerConfig::Conductor(ConductorConfig::with_heads(heads)),
            "tnt" => MixerConfig::Tnt(TntConfig::with_heads(heads)),
            "hope" => MixerConfig::Hope(HopeConfig { heads, ..Default::default() }),
            rule => {
                let memory = MemoryConfig::of(in_groups(rule::named(rule)?)).settled();
                MixerConfig::Memory(MemoryConfig { heads, ..memory })
            }
        };
        let config = Self { hidden_size, layers: LayerConfig { mixer }.repeated(layers)?, ..Default::default() };
        config.validate()?;
        Ok(config)
    }

    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`Error::Config`] for text that is no JSON, for names that nothing has (the known ones are listed), and as
    /// [`Config::validate`].
    pub fn from_json(text: &str) -> Result<Self> {
        let config: Self = from_slice(text.as_bytes()).map_err(|error| {
            Error::config("config.json", format!("not readable: {error}"), "a model configuration in JSON")
        })?;
        config.validate()?;
        Ok(config)
    }

    /// What the content of a `config.json` says; `path` is for messages.
    pub(crate) fn parse(path: &Path, content: &[u8]) -> Result<Self> {
        let config: Self = parse_json(path, content)?;
        // All else has defaults: a file without layers says nothing of a model.
        if !serde_json::from_slice::<Value>(content).is_ok_and(|file| file.get("layers").is_some()) {
            let why = "names no `layers`, so it is no model's configuration; take the config.json of a run";
            return Err(Error::checkpoint(path, why));
        }
        config.validate().map_err(|error| Error::checkpoint(path, error.to_string()))?;
        Ok(config)
    }

    /// Writes `config.json`.
    ///
    /// # Errors
    /// [`Error::Config`] for a number that JSON cannot hold.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| Error::config("config.json", error, "numbers that JSON can hold"))
    }

    /// What layers drop while the model learns.
    pub fn dropout(&self) -> Dropout {
        Dropout { attention: self.attention_dropout, activation: self.activation_dropout, hidden: self.hidden_dropout }
    }

    /// Width inside the MLPs.
    pub fn mlp_size(&self) -> usize {
        self.intermediate_size.unwrap_or_else(|| self.hidden_size.saturating_mul(8).div_ceil(3).next_multiple_of(16))
    }
}
