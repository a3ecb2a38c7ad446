//! What a run is told: how it learns, and where its text comes from.

use crate::{optimizer::Constants, schedule::Schedule};
use hecate_core::{Backend, primitives::FP8_ALIGNED};
use hecate_models::{
    Architecture, Error, Footprint, Precision, Result,
    bounds::{SIZE, at_most, product, within},
    text::{Identity, JsonLines},
};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;

/// How a model is trained. Every checkpoint keeps it, and resuming takes it from there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Sequences a pass, at least 1.
    pub batch: usize,
    /// Tokens a sequence, at least 1.
    pub tokens: usize,
    /// Passes whose gradients are averaged into one step, at least 1.
    pub accumulate: usize,
    /// Sequences of a text that are learned one after another with the memories carried on. At 1 every sequence starts
    /// with fresh memories. Gradients end at the start of each sequence.
    #[serde(default = "fresh")]
    pub carry: usize,
    /// What memories hold where a text starts that is learned.
    #[serde(default, skip_serializing_if = "FirstStates::is_fresh")]
    pub first_states: FirstStates,
    /// Learning rates, and the number of steps.
    pub schedule: Schedule,
    /// The optimiser's constants.
    pub optimizer: Constants,
    /// Seed of the weights and of the choice of text.
    pub seed: u64,
    /// Bits of activations.
    #[serde(default)]
    pub precision: Precision,
}

/// What memories hold where a text starts that is learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstStates {
    /// What fresh memories start from.
    #[default]
    Fresh,
    /// In every second text what they held at the end of another: each goes on as if it followed that one, though no gradient
    /// flows there. Memories that are full at the start are then nothing new to a model, and fresh ones neither. Source: Buitrago
    /// Ruiz and Gu, "Understanding and Improving Length Generalization in Recurrent Models" (state passing).
    Other,
}

impl FirstStates {
    /// Both, by the names that flags and checkpoints have for them.
    pub const NAMES: [&'static str; 2] = ["fresh", "other"];

    /// By its name.
    ///
    /// # Errors
    /// [`Error::Config`] listing the known names.
    pub fn named(name: &str) -> Result<Self> {
        match Self::NAMES.iter().position(|known| *known == name) {
            Some(0) => Ok(Self::Fresh),
            Some(_) => Ok(Self::Other),
            None => {
                Err(Error::config("first states", format!("`{name}`"), format!("one of {}", Self::NAMES.join(", "))))
            }
        }
    }

    /// Whether every text starts with fresh memories, as it did before there was a choice.
    fn is_fresh(&self) -> bool {
        *self == Self::Fresh
    }
}

/// Checkpoints from before there was a choice carried nothing.
fn fresh() -> usize {
    1
}

impl Settings {
    /// Sequences a pass of a run that is told no other number.
    pub const BATCH: usize = 8;
    /// Tokens a sequence of such a run.
    pub const TOKENS: usize = 256;

    /// How `hecate train` learns in so many steps unless told otherwise.
    pub fn over(steps: u64) -> Self {
        Self {
            batch: Self::BATCH,
            tokens: Self::TOKENS,
            accumulate: 1,
            carry: 1,
            first_states: FirstStates::Fresh,
            schedule: Schedule::over(steps),
            optimizer: Constants::default(),
            seed: 0,
            precision: Precision::F32,
        }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn check(&self) -> Result<()> {
        let Self { batch, tokens, accumulate, carry, .. } = *self;
        let counts = [("batch", batch), ("sequence length", tokens), ("accumulate", accumulate), ("carry", carry)];
        counts.into_iter().try_for_each(|(field, count)| within(field, count, 1..=SIZE))?;
        at_most("batch × sequence length", product(&[batch, tokens]), SIZE as u128)?;
        if self.precision == Precision::Fp8 && !product(&[batch, tokens]).is_multiple_of(FP8_ALIGNED as u128) {
            let expected = "a multiple of 16, which factors of 8 bits come in; or the precision bf16";
            return Err(Error::config("batch × sequence length", product(&[batch, tokens]), expected));
        }
        self.schedule.check()?;
        self.optimizer.check()
    }

    /// [`Settings::check`], and refuses a precision that this device does not have.
    pub(super) fn check_on<B: Backend>(&self, device: &B) -> Result<()> {
        self.check()?;
        if self.precision == Precision::Fp8 {
            device.check_fp8()?;
        }
        Ok(())
    }

    /// Tokens learned a step: `batch × tokens × accumulate`.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.saturating_mul(self.tokens).saturating_mul(self.accumulate)
    }

    /// Tokens of a text that are learned with the same memories: `tokens × carry`.
    pub fn text(&self) -> usize {
        self.tokens.saturating_mul(self.carry)
    }

    /// Whether memories are carried from one sequence to another, of the same text or not.
    pub(super) fn carries(&self) -> bool {
        self.carry > 1 || self.first_states == FirstStates::Other
    }

    /// Refuses to learn with these settings where the device has less memory free than a step of a model of `config` takes,
    /// beside the `present` bytes of it that are there already. Nothing is made on the device for it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`]; as [`Architecture::elements`]; the device's own failures.
    pub fn check_fits<B: Backend, A: Architecture<B>>(&self, device: &B, config: &A, present: usize) -> Result<()> {
        let footprint = Footprint::of(device, config, self.precision, self.batch, self.tokens)?;
        self.check_footprint(device, footprint, present)
    }

    /// As [`Settings::check_fits`], of a pass of this size.
    pub(super) fn check_footprint<B: Backend>(
        &self,
        device: &B,
        mut footprint: Footprint,
        present: usize,
    ) -> Result<()> {
        // Gradients of earlier passes wait while the next pass runs.
        if self.accumulate > 1 {
            footprint.moments = footprint.moments.saturating_add(footprint.gradients);
        }
        footprint.check(device, present)
    }

    /// Refuses sequences that end inside a group of `group` tokens, since no later call could start there.
    pub(super) fn check_group(&self, group: usize) -> Result<()> {
        if self.carries() && !self.tokens.is_multiple_of(group) {
            let expected = format!(
                "a multiple of {group}, the tokens that share a gradient point, where memories are carried from one \
                 sequence to the next; or a rule without groups (`frozen: null`, `--frozen 1`)"
            );
            return Err(Error::config("sequence length", self.tokens, expected));
        }
        Ok(())
    }
}

/// Where a run's text comes from, and how often it is measured and saved. None of it changes a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// The text's files and folders; none for a text that is part of the program.
    #[serde(deserialize_with = "some_paths")]
    pub text: Vec<PathBuf>,
    /// How documents are taken out of these files, where they are lines of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_lines: Option<JsonLines>,
    /// Which text it is.
    pub identity: Identity,
    /// Share of the text that is held out, in `(0, 1)`.
    pub held_out: f32,
    /// Steps between two measurements on held-out text, at least 1.
    pub evaluate_every: u64,
    /// Steps between two checkpoints, at least 1.
    pub save_every: u64,
    /// Newest checkpoints that are kept, at least 1.
    #[serde(default = "kept")]
    pub keep: usize,
}

/// Checkpoints from before there was a choice are kept as new ones are.
fn kept() -> usize {
    RunPlan::KEEP
}

/// A list of paths. Checkpoints from before there could be several have one, or `null`.
fn some_paths<'de, D: Deserializer<'de>>(found: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Paths {
        Many(Vec<PathBuf>),
        One(Option<PathBuf>),
    }
    Ok(match Paths::deserialize(found)? {
        Paths::Many(paths) => paths,
        Paths::One(path) => path.into_iter().collect(),
    })
}

impl RunPlan {
    /// Checkpoints that are kept unless another number is asked for: one that may be damaged, and one before it.
    pub const KEEP: usize = 2;
    /// Share of a text that is held out unless another is asked for.
    pub const HELD_OUT: f32 = 0.1;
    /// Measurements on held-out text, and checkpoints, of a run that is told no other number.
    pub const MEASUREMENTS: u64 = 10;

    /// Of a run of so many steps over this text, which holds out [`RunPlan::HELD_OUT`] of it.
    pub fn of(text: Identity, steps: u64) -> Self {
        let every = (steps / Self::MEASUREMENTS).max(1);
        let (held_out, keep) = (Self::HELD_OUT, Self::KEEP);
        let (files, json_lines) = (Vec::new(), None);
        Self { text: files, json_lines, identity: text, held_out, evaluate_every: every, save_every: every, keep }
    }

    pub(super) fn check(&self) -> Result<()> {
        within("keep", self.keep, 1..=SIZE)?;
        let counts = [("evaluate every", self.evaluate_every), ("save every", self.save_every)];
        match counts.into_iter().find(|&(_, count)| count == 0) {
            Some((field, _)) => Err(Error::config(field, 0, "at least 1 step")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One path, none, and several.
    #[test]
    fn plans_of_before_and_of_now_are_read() {
        let plan = |text: &str| {
            let rest =
                r#""identity": {"bytes": 1, "checksum": "a"}, "held_out": 0.1, "evaluate_every": 1, "save_every": 1"#;
            serde_json::from_str::<RunPlan>(&format!("{{\"text\": {text}, {rest}}}")).unwrap()
        };
        let paths = |text: &str| plan(text).text.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths("null"), Vec::<String>::new());
        assert_eq!(paths("\"a.txt\""), ["a.txt"]);
        assert_eq!(paths("[\"a.txt\", \"b\"]"), ["a.txt", "b"]);
        let several = plan("[\"a.txt\", \"b\"]");
        assert_eq!(serde_json::from_str::<RunPlan>(&serde_json::to_string(&several).unwrap()).unwrap(), several);
    }
}
