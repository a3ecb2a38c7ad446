//! Flags of `hecate train`, and what they mean for a new run.
//!
//! A flag that was not given is `None` wherever its default depends on the mixer or on other flags. `--resume` conflicts
//! with everything that a checkpoint decides.

use super::{
    levels::{HopeArgs, LevelArgs},
    names::RuleNames,
    shape::ShapeArgs,
    training::TrainingArgs,
};
use crate::{
    defaults,
    device::Choice,
    error::{Error, Result},
    flags::by_flags,
    measure::MeasureArgs,
    runs::check_vocabulary,
    settings::Given,
    sources::{DocumentArgs, MemoryArgs, is_stdin},
};
use clap::{Args, builder::RangedU64ValueParser};
use hecate::models::{
    AttentionConfig, ComposedConfig, Config, LayerConfig, MacConfig, MemoryConfig, MixerConfig, RuleConfig, Vocabulary,
    config::{GROUP, in_groups},
    trained::load_config,
};
use serde_json::{Map, Number, Value};
use std::{fs, path::PathBuf};

/// Mixers that are named where a rule could be: all but memories with a rule.
#[cfg(any(feature = "check", test))]
pub(crate) const COMPOSED: [&str; 8] = ["attention", "mag", "mal", "mac", "cms", "conductor", "tnt", "hope"];

/// Examples, under the flags of `hecate train -h` and `--help`.
const EXAMPLES: &str = "\
Examples:
  hecate train                                       learn Hecate's own sources
  hecate train --text book.txt --rule titans         learn a book
  hecate train --resume                              go on with the run trained last
  hecate train --resume --steps 800                  go on with it for longer
  hecate train --init-from runs/book --text more.txt learn more from where it is
  hecate train --text book.txt --mixer mag --steps 2000 --out runs/mag
  hecate train --text book.txt --tokens 4096 --carry 4 --first-states other
                                                     memories that are to last through long texts

`-h` shows the flags that most runs need; `--help` shows all, and explains them.";

/// The mixers, under the flags of `hecate train --help`.
/// Kept here and not with the flag, since a list of values would print each name twice.
const MIXERS: &str = "\
Mixers:
  memory, lmm  a neural memory, written and read by --rule
  attention    softmax attention over the last --window tokens
  mag          attention whose output a memory gates (memory as a gate)
  mal          attention over what a memory made of the tokens (memory as a layer)
  mac          attention over a segment and what a memory says of it (memory as a context)
  cms          memories that change at the ends of chunks, each of longer ones
  conductor    memories that are written by every so many tokens, each more seldom
  tnt          one memory for the whole text, and local ones that start again
  hope         a memory that makes its own keys, values and gates";

/// Flags of `hecate train`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Text and run", after_help = EXAMPLES, after_long_help = format!("{MIXERS}\n\n{EXAMPLES}"))]
pub(crate) struct TrainArgs {
    /// Text to learn: files, folders, or `-` [default: Hecate's own sources]
    ///
    /// UTF-8. Of a folder all that is below it is learned; `-` is standard input.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) text: Vec<PathBuf>,
    /// Folder of the run [default: runs/ and the text's name]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(super) out: Option<PathBuf>,
    /// Go on with a stopped run [default: the one trained last]
    ///
    /// The run then ends exactly as if it had not been stopped.
    // `None` without the flag, `Some(None)` with the flag alone.
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["ShapeArgs", "TrainingArgs"])]
    pub(super) resume: Option<Option<PathBuf>>,
    /// Replace the run that is in the folder
    #[arg(long, conflicts_with = "resume")]
    pub(super) overwrite: bool,
    /// Begin with the weights of another run
    ///
    /// The model and its tokens are that run's; everything else begins anew.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "ModelArgs", "ShapeArgs", "LevelArgs"])]
    pub(super) init_from: Option<PathBuf>,
    /// With --init-from: its best weights, instead of its last
    ///
    /// The best are those with the lowest loss on its held-out text.
    #[arg(long, conflicts_with = "resume", hide_short_help = true)]
    // That it needs the other flag is checked later: clap asks for no flag that conflicts with those that were given.
    pub(super) best: bool,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    // Beside the model and not in it: a group with another inside would conflict with nothing.
    #[command(flatten)]
    pub(super) shape: ShapeArgs,
    #[command(flatten)]
    pub(super) levels: LevelArgs,
    /// Number of steps [default: 400]
    ///
    /// With --resume, another number for the whole run: the learning rate of the steps to come is that of a run of so many.
    #[arg(long, value_name = "N", help_heading = "Training", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::from(u32::MAX)))]
    // 32 bits: the optimiser's correction of the means counts them so.
    pub(super) steps: Option<u64>,
    /// Newest checkpoints that are kept [default: 2]
    ///
    /// Each has all that resuming needs.
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = "Measuring and saving", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24))]
    pub(super) keep: Option<usize>,
    #[command(flatten)]
    pub(super) training: TrainingArgs,
    /// Seed of the weights and of the choice of text
    #[arg(long, default_value_t = 0, help_heading = "Training", conflicts_with = "resume")]
    pub(super) seed: u64,
    /// Steps between measurements on held-out text [default: a tenth of all]
    #[arg(long, value_name = "STEPS", help_heading = "Measuring and saving", conflicts_with = "resume")]
    eval_every: Option<u64>,
    /// Steps between checkpoints [default: a tenth of all]
    #[arg(
        long,
        hide_short_help = true,
        value_name = "STEPS",
        help_heading = "Measuring and saving",
        conflicts_with = "resume"
    )]
    save_every: Option<u64>,
    #[command(flatten)]
    pub(super) measure: MeasureArgs,
    #[command(flatten)]
    pub(super) documents: DocumentArgs,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) device: Choice,
    /// Take flags from a JSON file, such as the settings.json of a run
    ///
    /// An object of their names, such as {"rule": "titans", "tokens": 512}. Flags that are given count before those of the file.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// All flags that were given, here or in a file.
    #[arg(skip)]
    pub(crate) given: Given,
}

/// What the model is made of; a resumed run has it in its checkpoint.
#[derive(Args, Debug, Default)]
#[group(multiple = true, conflicts_with = "resume")]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Take the whole model from a config.json
    ///
    /// Such as that of another run.
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with_all = ["rule", "mixer", "read", "erase", "objective", "frozen",
        "layers", "width", "heads", "key_dim", "value_dim", "conv", "window", "persistent", "segment", "periods",
        "wiring", "chunk", "locals", "shard", "momentum", "momentum_form", "retain", "clip_errors", "mean", "renorm",
        "horizon", "writes_per_token", "dropout", "mlp"])]
    config: Option<PathBuf>,
    /// Rule by which memories are written and read [default: delta]
    #[arg(long, value_parser = RuleNames::new())]
    // None where it is not given: attention and hope refuse it. Unknown names come with the list of known ones.
    rule: Option<String>,
    /// What carries information from token to token
    ///
    /// The list below says what each of them is.
    #[arg(long, default_value = "memory", value_parser = ["memory", "lmm", "attention", "mag", "mal", "mac", "cms",
        "conductor", "tnt", "hope"])]
    mixer: String,
    /// Whether a token reads the memory after or before its own write [default: after]
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_parser = ["after", "before"])]
    read: Option<String>,
    /// Whether the delta rule erases from the memory before or after it decays [default: undecayed]
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_parser = ["undecayed", "decayed"])]
    erase: Option<String>,
    /// Inner loss of the dgd rule [default: l2]
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_parser = ["l2", "dot"])]
    objective: Option<String>,
    /// Divide step sizes by the tokens of a group of --frozen
    ///
    /// A group then takes a step as long as one token's.
    #[arg(long, hide_short_help = true, help_heading = "Memories")]
    // Refused with the configuration where the rule has no groups.
    mean: bool,
    /// Set columns of weights back to their lengths at each group of --frozen
    ///
    /// To those of the learned start, at the start of each group; of titans_mlp and yaad in all their forms.
    #[arg(long, hide_short_help = true, help_heading = "Memories")]
    // Refused with the rule, or with the configuration, whose message names the option.
    renorm: bool,
    /// Shortest and longest time in tokens over which heads of a fresh memory forget
    ///
    /// Such as 16,1024 for sequences of 256; between one token and a thousand unless given.
    #[arg(
        long,
        hide_short_help = true,
        help_heading = "Memories",
        value_name = "SHORTEST,LONGEST",
        value_delimiter = ',',
        num_args = 1
    )]
    // What the numbers may be is checked with the configuration.
    horizon: Option<Vec<f32>>,
    /// Writes that a token of a memory makes, one after another [default: 1]
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "N")]
    writes_per_token: Option<usize>,
    /// Width of a head's keys [default: width / heads]
    #[arg(long, hide_short_help = true, value_name = "N")]
    key_dim: Option<usize>,
    /// Width of a head's values [default: width / heads]
    #[arg(long, hide_short_help = true, value_name = "N")]
    value_dim: Option<usize>,
    /// Tokens that the short convolutions see; 0 for none [default: 4, 0 for attention alone]
    ///
    /// They are on queries, keys and values.
    #[arg(long, hide_short_help = true, value_name = "N")]
    conv: Option<usize>,
    /// Tokens that attention sees, the present one included; of attention, mag, mal and mac [default: 128]
    #[arg(long, hide_short_help = true, help_heading = "Attention and compositions", value_name = "N")]
    window: Option<usize>,
    /// Learned tokens before every text, of mag, mal and mac [default: 4]
    #[arg(long, hide_short_help = true, help_heading = "Attention and compositions", value_name = "N")]
    persistent: Option<usize>,
    /// Tokens in a segment of mac [default: 64]
    #[arg(long, hide_short_help = true, help_heading = "Attention and compositions", value_name = "TOKENS")]
    segment: Option<usize>,
    /// A Hugging Face tokenizer.json [default: bytes are the tokens]
    #[arg(long, value_name = "FILE", help_heading = "Text and run")]
    pub(super) tokenizer: Option<PathBuf>,
}

impl TrainArgs {
    /// All flags of the model.
    pub(super) fn model(&self) -> ModelFlags<'_> {
        ModelFlags { model: &self.model, shape: &self.shape, levels: &self.levels }
    }

    /// Folder of a new run: `--out`, or one under `runs/` named after the text.
    pub(super) fn folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let name = match self.text.first() {
                // Hecate's own sources.
                None => Some(defaults::RUN.into()),
                Some(text) if is_stdin(text) => Some("stdin".into()),
                Some(text) => text.file_stem().map(ToOwned::to_owned).or_else(|| {
                    // `.` and `..` have names too.
                    Some(fs::canonicalize(text).ok()?.file_name()?.to_owned())
                }),
            };
            PathBuf::from(defaults::RUNS).join(name.unwrap_or(defaults::RUN.into()))
        })
    }

    /// Steps between measurements, and between checkpoints; a tenth of all steps each by default.
    pub(super) fn intervals(&self, steps: u64) -> (u64, u64) {
        // Short runs measure at every step.
        let default = (steps / defaults::MEASUREMENTS).max(1);
        (self.eval_every.unwrap_or(default), self.save_every.unwrap_or(default))
    }
}

impl ModelArgs {
    /// The flags of a model by one name: a rule in memories, or another mixer with the rule that it has by default.
    #[cfg(feature = "check")]
    pub(crate) fn named(model: &str) -> Self {
        // Options that are not given are as the mixer and its rule have them.
        let (mixer, rule) = if COMPOSED.contains(&model) { (model, None) } else { ("memory", Some(model.to_owned())) };
        Self { mixer: mixer.to_owned(), rule, ..Self::default() }
    }
}

/// All flags of a model together.
#[derive(Clone, Copy)]
pub(crate) struct ModelFlags<'a> {
    /// Those of a mixer.
    pub(crate) model: &'a ModelArgs,
    /// Those of any model.
    pub(crate) shape: &'a ShapeArgs,
    /// Those of memories that are written at different times.
    pub(crate) levels: &'a LevelArgs,
}

impl ModelFlags<'_> {
    /// The configuration that the flags ask for, or that of `--config`; the vocabulary must fit it.
    pub(crate) fn config(&self, vocabulary: &Vocabulary) -> Result<Config> {
        if let Some(path) = &self.model.config {
            // The file decides everything but the vocabulary, which belongs to the tokens of this run.
            // Where a link of the user's leads is the user's to say.
            let config = load_config(&fs::canonicalize(path).unwrap_or_else(|_| path.clone()))?;
            check_vocabulary(config.vocabulary_size, vocabulary)?;
            return Ok(config);
        }
        // All blocks are alike; a file can give each its own.
        let layers = LayerConfig { mixer: self.mixer()? }.repeated(self.shape.layers).map_err(by_flags)?;
        let (vocabulary_size, share) = (vocabulary.size(), self.shape.dropout);
        let base =
            Config { attention_dropout: share, activation_dropout: share, hidden_dropout: share, ..Config::default() };
        let (hidden_size, intermediate_size) = (self.shape.width, self.shape.mlp);
        let config = Config { vocabulary_size, hidden_size, intermediate_size, layers, ..base };
        // Before a long text is read.
        config.validate().map_err(by_flags)?;
        Ok(config)
    }

    /// The mixer of every block. A flag that the mixer does not have is refused, not ignored.
    fn mixer(&self) -> Result<MixerConfig> {
        // Flags of other mixers first: an ignored flag would look as if it had worked.
        let composed = matches!(self.model.mixer.as_str(), "mag" | "mal" | "mac");
        if self.model.persistent.is_some() && !composed {
            return Err(Error::flag("--persistent", "only mag, mal and mac have such tokens; leave it out"));
        }
        if self.model.segment.is_some() && self.model.mixer != "mac" {
            return Err(Error::flag("--segment", "only mac reads in segments; leave it out, or add `--mixer mac`"));
        }
        self.levels.check(&self.model.mixer)?;
        // The parser knows these names and no other.
        match self.model.mixer.as_str() {
            "attention" => self.attention_alone(),
            "mag" => Ok(MixerConfig::Mag(self.composed()?)),
            "mal" => Ok(MixerConfig::Mal(self.composed()?)),
            "mac" => {
                let ComposedConfig { memory, attention, persistent } = self.composed()?;
                Ok(MixerConfig::Mac(MacConfig { memory, attention, persistent, segment: self.segment() }))
            }
            // From here on, mixers without attention.
            _ if self.model.window.is_some() => {
                Err(Error::flag("--window", "memories have no window; leave it out, or add `--mixer attention`"))
            }
            "hope" => {
                self.without_rule()?;
                let (heads, retain) = (self.shape.heads, self.shape.retain());
                let (head_dim, conv) = (self.model.key_dim, self.model.conv);
                Ok(self.levels.hope(HopeArgs { heads, head_dim, conv, retain }))
            }
            // Tokens of a chunk share a gradient point; levels of a conductor are exact.
            "cms" => Ok(self.levels.cms(self.beside(2)?)),
            "conductor" => Ok(self.levels.conductor(self.beside(1)?)),
            "tnt" => Ok(self.levels.tnt(self.beside(2)?)),
            _ => Ok(MixerConfig::Memory(self.memory()?.settled())),
        }
    }

    /// A memory with those options that were given.
    fn memory(&self) -> Result<MemoryConfig> {
        let rule = self.rule()?;
        // Only what was given; the rest is the library's default, which may change with it.
        let base = MemoryConfig::of(rule);
        let conv = self.model.conv.unwrap_or(base.conv);
        // Who names a form takes it as the paper has it.
        let usual = if self.shape.momentum_form.is_some() { 1.0 } else { base.momentum };
        let momentum = self.shape.momentum.unwrap_or(usual);
        let (heads, &ModelArgs { key_dim, value_dim, mean, .. }) = (self.shape.heads, self.model);
        // None where the flag is not given: then the rule decides.
        let retain = self.shape.retain();
        let horizon = self.horizon()?;
        let writes_per_token = self.model.writes_per_token.unwrap_or(base.writes_per_token);
        let options = MemoryConfig { heads, key_dim, value_dim, conv, momentum, mean, writes_per_token, ..base };
        // A rule that cannot go back is refused with the whole configuration, whose message names the field.
        Ok(MemoryConfig { retain, horizon, ..options })
    }

    /// A memory beside others, or beside attention, in groups of so many tokens.
    fn beside(&self, group: usize) -> Result<MemoryConfig> {
        Ok(self.memory()?.in_composition(group))
    }

    /// The two numbers of the flag.
    fn horizon(&self) -> Result<Option<[f32; 2]>> {
        let Some(numbers) = &self.model.horizon else { return Ok(None) };
        let two = <[f32; 2]>::try_from(numbers.as_slice());
        let why = |_| Error::flag("--horizon", format!("{} numbers; give two, as in 16,1024", numbers.len()));
        two.map(Some).map_err(why)
    }

    /// A memory and attention; widths of keys and values are the memory's.
    fn composed(&self) -> Result<ComposedConfig> {
        let group = self.rule()?.frozen().map_or(1, |tokens| tokens as usize);
        let (base, memory) = (ComposedConfig::default(), self.beside(group)?);
        // Both have as many heads and taps, since one flag sets both: "Titans" convolves every query, key and value.
        let (heads, conv) = (memory.heads, memory.conv);
        let window = self.model.window.unwrap_or(base.attention.window);
        let attention = AttentionConfig { heads, conv, window, ..base.attention };
        let persistent = self.model.persistent.unwrap_or(base.persistent);
        Ok(ComposedConfig { memory, attention, persistent })
    }

    /// The rule by its name, with those options that were given; a rule refuses what it does not have.
    fn rule(&self) -> Result<RuleConfig> {
        let name = self.model.rule.as_deref().unwrap_or(defaults::RULE);
        // Options go through the JSON of configurations, which knows what each rule has.
        let mut fields = Map::from_iter([("name".to_owned(), Value::from(name))]);
        for (name, option) in [
            ("read", &self.model.read),
            ("erase", &self.model.erase),
            ("objective", &self.model.objective),
            ("momentum", &self.shape.momentum_form),
        ] {
            fields.extend(option.iter().map(|value| (name.to_owned(), Value::from(value.as_str()))));
        }
        // One token for itself is the exact rule, and every rule is.
        let group = self.shape.frozen.filter(|&tokens| tokens != 1);
        fields.extend(group.map(|tokens| ("frozen".to_owned(), Value::from(tokens))));
        if self.model.renorm {
            fields.insert("renorm".to_owned(), Value::from(true));
        }
        if let Some(length) = self.shape.clip_errors {
            // JSON has neither infinities nor NaN, and would read null: no clip.
            let length = Number::from_f64(length.into())
                .ok_or_else(|| Error::flag("--clip-errors", format!("{length}; give a length over 0")))?;
            fields.insert("clip".to_owned(), Value::Number(length));
        }
        serde_json::from_value(Value::Object(fields))
            // The message of serde names the option and those that the rule has.
            .map(|rule| self.in_groups(rule))
            .map_err(|error| Error::flag(format!("--rule {name}"), error))
    }

    /// A network in groups unless flags say otherwise: they cost it no quality and make training faster.
    fn in_groups(&self, rule: RuleConfig) -> RuleConfig {
        // Segments of mac end with a group, and these others have several writes or levels of their own.
        let whole = self.model.mixer != "mac" || self.segment().is_multiple_of(GROUP as usize);
        let several = self.model.writes_per_token.is_some_and(|writes| writes > 1);
        let levels = matches!(self.model.mixer.as_str(), "cms" | "conductor" | "tnt");
        if self.shape.frozen.is_none() && whole && !several && !levels { in_groups(rule) } else { rule }
    }

    /// Tokens of a segment of mac.
    fn segment(&self) -> usize {
        self.model.segment.unwrap_or_else(|| MacConfig::default().segment)
    }

    /// Refuses options of rules for a mixer that has none to choose: attention and hope.
    fn without_rule(&self) -> Result<()> {
        let options = [
            ("--rule", self.model.rule.is_some()),
            ("--read", self.model.read.is_some()),
            ("--erase", self.model.erase.is_some()),
            ("--objective", self.model.objective.is_some()),
            ("--frozen", self.shape.frozen.is_some()),
            ("--mean", self.model.mean),
            ("--renorm", self.model.renorm),
            ("--clip-errors", self.shape.clip_errors.is_some()),
            ("--horizon", self.model.horizon.is_some()),
            ("--writes-per-token", self.model.writes_per_token.is_some()),
            ("--momentum", self.shape.momentum.is_some()),
            ("--momentum-form", self.shape.momentum_form.is_some()),
            // Attention forgets nothing.
            ("--retain", self.shape.retain.is_some() && self.model.mixer == "attention"),
            // Their heads have one width.
            ("--value-dim", self.model.value_dim.is_some()),
        ];
        match options.into_iter().find(|&(_, given)| given) {
            Some((flag, _)) => {
                let why = format!("{} has no such option; leave it out, or use `--mixer memory`", self.model.mixer);
                Err(Error::flag(flag, why))
            }
            None => Ok(()),
        }
    }

    /// Attention without a memory; `--key-dim` is the width of its heads.
    fn attention_alone(&self) -> Result<MixerConfig> {
        self.without_rule()?;
        let base = AttentionConfig::default();
        Ok(MixerConfig::Attention(AttentionConfig {
            heads: self.shape.heads,
            head_dim: self.model.key_dim,
            window: self.model.window.unwrap_or(base.window),
            conv: self.model.conv.unwrap_or(base.conv),
            ..base
        }))
    }
}
