//! `hecate bench state-tracking`: parity of sequences several times as long as those that were learned.
//!
//! A memory that only shrinks cannot follow a bit that flips; the delta rule can, with steps over 1.
//!
//! Parity needs a state that changes its sign with a token: `M ← (1 − θ) M` along a key, negative for `θ` over 1. See
//! Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues".

use super::{
    settings::{Candidate, SweepSettings},
    summary::Summary,
    sweep::{Sweep, Task, answered, share},
};
use crate::{
    device::with_device,
    error::{Error, Result},
    stop::Stop,
    terminal,
};
use clap::Args;
use hecate::Job;
use hecate_core::Backend;
use hecate_models::{
    MemoryConfig, MixerConfig, Random, RuleConfig,
    tasks::{Parity, Questions, TaskModel},
};
use serde_json::json;
use std::{ops::Range, process::ExitCode};

/// Flags of `hecate bench state-tracking`.
#[derive(Args, Debug)]
// Defaults of this task; the flags themselves are those of every task.
#[command(mut_arg("rates", |arg| arg.required(false).default_value("3e-3,1e-2,3e-2")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1000")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("0")))]
pub(super) struct StateTrackingArgs {
    /// Bits of a sequence that is learned
    #[arg(long, default_value_t = 40, value_name = "N")]
    length: usize,
    /// Bits of a sequence that is measured
    #[arg(long, default_value_t = 240, value_name = "N")]
    test_length: usize,
    /// Largest step sizes of the delta rule, each a candidate; over 1 a write can turn a memory's sign
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "SIZES")]
    step_sizes: Vec<f32>,
    #[command(flatten)]
    settings: SweepSettings,
}

/// Runs the benchmark on the chosen device.
pub(super) fn run(arguments: StateTrackingArgs) -> Result<ExitCode> {
    let choice = arguments.settings.device.clone();
    with_device(&choice, arguments)
}

/// Parity of sequences longer than those that are learned.
struct ParityTask {
    /// Bits of a sequence that is learned.
    length: usize,
    /// Bits of a sequence that is measured, more than `length`.
    test_length: usize,
}

impl Task for ParityTask {
    fn vocabulary(&self) -> usize {
        Parity::VOCABULARY
    }

    /// Within the learned length, beyond it, and the very last bit.
    fn measures(&self) -> Vec<String> {
        let Self { length, test_length } = self;
        // Counted from 1, as readers do.
        let beyond = format!("bits {} to {test_length}", length + 1);
        vec![format!("bits 1 to {length}"), beyond, format!("bit {test_length}")]
    }

    fn questions(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        Ok(Parity.draw(random, batch, self.length)?)
    }

    fn accuracies<B: Backend>(&self, model: &TaskModel<B>, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        let Self { length, test_length } = *self;
        // Sequences are longer than any that was learned from.
        let right = answered(model, examples, |batch| Ok(Parity.draw(random, batch, test_length)?))?;
        // Every bit of a sequence has a question: rows of `test_length` answers.
        let part = |bits: Range<usize>| {
            let rows = right.chunks(test_length);
            share(rows.flat_map(|row| row[bits.clone()].iter().copied()))
        };
        Ok(vec![part(0..length), part(length..test_length), part(test_length - 1..test_length)])
    }
}

impl StateTrackingArgs {
    /// The delta rule once for each step size, all others once: the step size is what the benchmark is about.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        // Other rules have steps of at most 1.
        // The step size goes into the name, by which rows are told apart.
        let sized = |Candidate { name, mixer }: Candidate| match mixer {
            MixerConfig::Memory(memory @ MemoryConfig { rule: RuleConfig::Delta(_), .. }) => {
                let of = |&step: &f32| Candidate {
                    name: format!("{name}, steps to {step}"),
                    mixer: MixerConfig::Memory(MemoryConfig { step, ..memory.clone() }),
                };
                self.step_sizes.iter().map(of).collect()
            }
            mixer => vec![Candidate { name, mixer }],
        };
        Ok(self.settings.candidates(self.test_length)?.into_iter().flat_map(sized).collect())
    }
}

impl Job for StateTrackingArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let Self { length, test_length, ref step_sizes, ref settings } = self;
        settings.check()?;
        if length == 0 || test_length <= length {
            let why = format!("{test_length} is too short; give more than `--length`, {length}, itself at least 1");
            return Err(Error::flag("--test-length", why));
        }
        let candidates = self.candidates()?;
        let (task, stop) = (ParityTask { length, test_length }, Stop::listen()?);
        // To standard error: with `--json` standard output holds nothing but JSON.
        terminal::say(&format!("parity of {length} bits learned, of {test_length} measured; right at random: 0.5"));
        let outcomes = Sweep::new(device, &task, settings, &stop).run(&candidates)?;
        let (measures, stopped) = (task.measures(), stop.asked());
        let mut summary = Summary { outcomes, measures, stopped, ..Summary::new("state-tracking", settings) };
        summary.set("length", json!(length));
        summary.set("test_length", json!(test_length));
        summary.set("step_sizes", json!(step_sizes));
        summary.print(settings.json)
    }
}
