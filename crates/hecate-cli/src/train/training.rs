//! Flags of how a model learns, and what they mean.

use crate::{
    defaults,
    error::{Error, Result},
};
use clap::{Args, builder::PossibleValuesParser};
use hecate::{
    models::Precision,
    train::{FirstStates, Settings, optimizer::Constants, schedule::Schedule},
};

/// How the model learns; a resumed run has it in its checkpoint.
#[derive(Args, Clone, Debug)]
// `--resume` conflicts with the group by its name: benchmarks have the group, and no runs.
#[group(multiple = true)]
#[command(next_help_heading = "Training")]
pub(crate) struct TrainingArgs {
    /// Sequences in a pass
    #[arg(long, default_value_t = defaults::BATCH, value_name = "N")]
    batch: usize,
    /// Tokens in a sequence
    #[arg(long, default_value_t = defaults::TOKENS, value_name = "N")]
    tokens: usize,
    /// Passes in a step, whose gradients are averaged
    #[arg(long, hide_short_help = true, default_value_t = 1, value_name = "N")]
    accumulate: usize,
    /// Sequences that are learned one after another with the memories carried on
    ///
    /// 1 starts each with fresh memories. What is carried was dropped from as --dropout says.
    #[arg(long, hide_short_help = true, default_value_t = 1, value_name = "N")]
    carry: usize,
    /// What memories hold where a text starts: `fresh` ones, or in every second text what they held at the end of an `other`
    #[arg(long, hide_short_help = true, default_value = "fresh", value_parser = PossibleValuesParser::new(FirstStates::NAMES), value_name = "WHICH")]
    // With --carry a text is as many sequences as are carried through.
    first_states: String,
    /// Highest learning rate
    #[arg(long, default_value_t = defaults::LEARNING_RATE, value_name = "RATE")]
    lr: f32,
    /// Learning rate at the end [default: a tenth of the highest]
    #[arg(long, hide_short_help = true, value_name = "RATE")]
    min_lr: Option<f32>,
    /// Steps until the learning rate is highest [default: a twentieth of all]
    #[arg(long, hide_short_help = true, value_name = "STEPS")]
    warmup: Option<u64>,
    /// Weight decay of matrices
    #[arg(long, default_value_t = defaults::WEIGHT_DECAY, value_name = "X")]
    weight_decay: f32,
    /// Norm above which gradients are scaled down to it; 0 for no limit
    #[arg(long, hide_short_help = true, default_value_t = defaults::CLIP, value_name = "NORM")]
    clip: f32,
    /// Number type of activations
    ///
    /// Weights, gradients and states are 32-bit floats in any case. fp8 is bf16 with 8-bit factors in the products of linear
    /// maps, on GPUs that have them (compute capability 8.9 or more).
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(Precision::NAMES))]
    // As names, since the library knows which there are.
    precision: String,
    /// Share of the text, at its end, that is not learned but measured on
    #[arg(long, default_value_t = defaults::HELD_OUT, value_name = "FRACTION")]
    pub(crate) holdout: f32,
}

impl TrainingArgs {
    /// How the model is trained; rates and warm-up that were not given follow from those that were.
    pub(crate) fn settings(&self, steps: u64, seed: u64) -> Result<Settings> {
        // The library would say that it is to be over 0, since there no limit is no number.
        if !(self.clip.is_finite() && self.clip >= 0.0) {
            return Err(Error::flag("--clip", format!("{}; give a norm over 0, or 0 for no limit", self.clip)));
        }
        // Rounded up, so that short runs warm up too.
        let warmup = self.warmup.unwrap_or((steps as f64 * defaults::WARMUP).ceil() as u64);
        let floor = self.min_lr.unwrap_or(self.lr * defaults::LEARNING_RATE_FLOOR);
        Ok(Settings {
            batch: self.batch,
            tokens: self.tokens,
            accumulate: self.accumulate,
            carry: self.carry,
            first_states: FirstStates::named(&self.first_states)?,
            schedule: Schedule { peak: self.lr, floor, warmup, steps },
            optimizer: Constants {
                weight_decay: self.weight_decay,
                // 0 stands for no limit on the command line; the library has `None` for it.
                clip: (self.clip != 0.0).then_some(self.clip),
                ..Constants::default()
            },
            seed,
            precision: Precision::named(&self.precision)?,
        })
    }
}
