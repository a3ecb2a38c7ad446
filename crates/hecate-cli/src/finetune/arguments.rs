//! Flags of `hecate finetune`, and what they mean.

use crate::{
    defaults,
    device::Choice,
    error::{Error, Result},
    sources::MemoryArgs,
};
use clap::{Args, builder::PossibleValuesParser};
use hecate::{
    models::{Lora, Precision},
    train::{Settings, optimizer::Constants, schedule::Schedule},
};
use std::path::PathBuf;

/// Flags of `hecate finetune`.
#[derive(Args, Debug)]
pub(crate) struct FinetuneArgs {
    /// Folder of the model, as Hugging Face has it
    #[arg(long, value_name = "DIR")]
    pub(super) model: PathBuf,
    /// What is learned: texts, or lines of JSON with `text`, with `prompt` and `completion`, or with `messages`
    ///
    /// Files whose names end in .jsonl or .ndjson are such lines, each an example with fresh memories; of a prompt and its
    /// completion, the completion is learned. Messages, each with `role` and `content`, are written by the model's chat template,
    /// and what the assistant says is learned. Of a text every token is, in windows that are drawn at random.
    #[arg(long, required = true, value_name = "FILE", num_args = 1..)]
    pub(super) data: Vec<PathBuf>,
    /// Folder of the result, with checkpoints in its folder `training`
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Go on from the newest checkpoint in --out; the other flags are those that the run began with
    ///
    /// Another number of --steps makes the run longer or shorter.
    #[arg(long)]
    pub(super) resume: bool,
    /// Learn an adapter of this rank beside the model, instead of the model
    #[arg(long, value_name = "RANK", help_heading = "Adapter")]
    lora: Option<usize>,
    /// What the adapter's product is scaled by, times its rank [default: twice the rank]
    #[arg(long, value_name = "A", requires = "lora", help_heading = "Adapter")]
    lora_alpha: Option<f32>,
    /// Which linear maps have an adapter, by the last words of their names [default: those of memories, attention and MLPs]
    #[arg(long, value_name = "NAMES", requires = "lora", value_delimiter = ',', help_heading = "Adapter")]
    lora_targets: Vec<String>,
    /// Scale by alpha over the root of the rank, for adapters of high rank
    #[arg(long, requires = "lora", hide_short_help = true, help_heading = "Adapter")]
    lora_rs: bool,
    /// Write the model with the adapter added to it, instead of the adapter
    #[arg(long, requires = "lora", help_heading = "Adapter")]
    pub(super) merge: bool,
    /// Steps in all
    #[arg(long, default_value_t = 200, value_name = "N", help_heading = "Training")]
    pub(super) steps: u64,
    /// Examples, or windows of a text, in a pass
    #[arg(long, default_value_t = defaults::BATCH, value_name = "N", help_heading = "Training")]
    batch: usize,
    /// Tokens of a window of a text, and most tokens of an example
    #[arg(long, default_value_t = defaults::TOKENS, value_name = "N", help_heading = "Training")]
    pub(super) tokens: usize,
    /// Passes in a step, whose gradients are averaged
    #[arg(long, hide_short_help = true, default_value_t = 1, value_name = "N", help_heading = "Training")]
    accumulate: usize,
    /// Highest learning rate [default: 2e-4 of an adapter, 1e-5 of a model]
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    lr: Option<f32>,
    /// Weight decay of matrices
    #[arg(long, default_value_t = 0.0, value_name = "X", help_heading = "Training")]
    weight_decay: f32,
    /// Number type of activations, and of the maps beside an adapter
    #[arg(long, default_value = "f32", help_heading = "Training", value_parser = PossibleValuesParser::new(Precision::STORED))]
    precision: String,
    /// Steps between two checkpoints [default: a tenth of all]
    #[arg(long, hide_short_help = true, value_name = "STEPS", help_heading = "Training")]
    save_every: Option<u64>,
    /// Of the adapter's first values, and of what is drawn
    #[arg(long, default_value_t = 0, help_heading = "Training")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) device: Choice,
}

impl FinetuneArgs {
    /// Refuses flags that nothing can be learned with.
    pub(super) fn check(&self) -> Result<()> {
        if self.save_every == Some(0) {
            return Err(Error::flag("--save-every", "0 steps never pass; give at least 1"));
        }
        if let Some(lora) = self.lora() {
            lora.check()?;
        }
        Ok(self.settings()?.check()?)
    }

    /// The adapter, where one is asked for.
    pub(super) fn lora(&self) -> Option<Lora> {
        let lora = Lora::of_rank(self.lora?);
        let alpha = self.lora_alpha.unwrap_or(lora.alpha);
        Some(Lora { alpha, rank_stabilised: self.lora_rs, targets: self.lora_targets.clone(), ..lora })
    }

    /// Of activations.
    pub(super) fn precision(&self) -> Result<Precision> {
        Ok(Precision::named(&self.precision)?)
    }

    /// Steps between two checkpoints.
    pub(super) fn save_every(&self) -> u64 {
        self.save_every.unwrap_or((self.steps / defaults::MEASUREMENTS).max(1))
    }

    /// How it learns.
    pub(super) fn settings(&self) -> Result<Settings> {
        // Adapters start from zero and bear much more than weights that learned before.
        let peak = self.lr.unwrap_or(if self.lora.is_some() { 2e-4 } else { 1e-5 });
        Ok(Settings {
            batch: self.batch,
            tokens: self.tokens,
            accumulate: self.accumulate,
            // A tenth of the highest rate is left at the end, as in `train`.
            schedule: Schedule { peak, floor: Schedule::FLOOR * peak, ..Schedule::over(self.steps) },
            optimizer: Constants { weight_decay: self.weight_decay, ..Constants::default() },
            seed: self.seed,
            precision: self.precision()?,
            ..Settings::over(self.steps)
        })
    }
}
