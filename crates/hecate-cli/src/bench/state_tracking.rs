//! `hecate bench state-tracking`.

use super::{
    contest::{Contest, Contestant, Exam, graded, share},
    settings::Settings,
    summary::Summary,
};
use crate::{
    device::{Job, with_device},
    error::{Error, Result},
    stop::Stop,
};
use clap::Args;
use hecate_core::Backend;
use hecate_models::{
    MemoryConfig, MixerConfig, RuleConfig,
    tasks::{Parity, Questions, Random, Student},
};
use serde_json::json;
use std::{ops::Range, process::ExitCode};

#[derive(Args, Debug)]
#[command(mut_arg("rates", |arg| arg.required(false).default_value("3e-3,1e-2,3e-2")))]
#[command(mut_arg("steps", |arg| arg.required(false).default_value("1000")))]
#[command(mut_arg("batch", |arg| arg.required(false).default_value("64")))]
#[command(mut_arg("enough", |arg| arg.required(false).default_value("0")))]
#[command(mut_arg("width", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("key_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("value_dim", |arg| arg.required(false).default_value("32")))]
#[command(mut_arg("conv", |arg| arg.required(false).default_value("0")))]
pub(super) struct Arguments {
    /// Bits of a sequence that is learned
    #[arg(long, default_value_t = 40, value_name = "N")]
    length: usize,
    /// Bits of a sequence that is measured
    #[arg(long, default_value_t = 240, value_name = "N")]
    test_length: usize,
    /// Largest step sizes of the delta rule, each a contestant; over 1 a write can turn a memory's sign
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "SIZES")]
    step_sizes: Vec<f32>,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    let choice = arguments.settings.device.clone();
    with_device(&choice, arguments)
}

/// Parity of sequences longer than those that are learned.
struct Longer {
    length: usize,
    test_length: usize,
}

impl Exam for Longer {
    fn vocabulary(&self) -> usize {
        Parity::VOCABULARY
    }

    fn measures(&self) -> Vec<String> {
        let Self { length, test_length } = self;
        let beyond = format!("bits {} to {test_length}", length + 1);
        vec![format!("bits 1 to {length}"), beyond, format!("bit {test_length}")]
    }

    fn lesson(&self, random: &mut Random, batch: usize) -> Result<Questions> {
        Ok(Parity.draw(random, batch, self.length)?)
    }

    fn grade<B: Backend>(&self, student: &Student<B>, random: &mut Random, examples: usize) -> Result<Vec<f64>> {
        let Self { length, test_length } = *self;
        let right = graded(student, examples, |batch| Ok(Parity.draw(random, batch, test_length)?))?;
        let part = |bits: Range<usize>| {
            let rows = right.chunks(test_length);
            share(rows.flat_map(|row| row[bits.clone()].iter().copied()))
        };
        Ok(vec![part(0..length), part(length..test_length), part(test_length - 1..test_length)])
    }
}

impl Arguments {
    /// The delta rule once for each step size, all others once.
    fn contestants(&self) -> Result<Vec<Contestant>> {
        let sized = |Contestant { name, mixer }: Contestant| match mixer {
            MixerConfig::Memory(memory @ MemoryConfig { rule: RuleConfig::Delta(_), .. }) => {
                let of = |&step: &f32| Contestant {
                    name: format!("{name}, steps to {step}"),
                    mixer: MixerConfig::Memory(MemoryConfig { step, ..memory.clone() }),
                };
                self.step_sizes.iter().map(of).collect()
            }
            mixer => vec![Contestant { name, mixer }],
        };
        Ok(self.settings.contestants(self.test_length)?.into_iter().flat_map(sized).collect())
    }
}

impl Job for Arguments {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let Self { length, test_length, ref step_sizes, ref settings } = self;
        settings.check()?;
        if length == 0 || test_length <= length {
            let why = format!("{test_length} is too short; give more than `--length`, {length}, itself at least 1");
            return Err(Error::flag("--test-length", why));
        }
        let contestants = self.contestants()?;
        let (exam, stop) = (Longer { length, test_length }, Stop::listen()?);
        eprintln!("parity of {length} bits learned, of {test_length} measured; right at random: 0.5");
        let outcomes = Contest::new(device, &exam, settings, &stop).run(&contestants)?;
        let (measures, stopped) = (exam.measures(), stop.asked());
        let mut summary = Summary { outcomes, measures, stopped, ..Summary::new("state-tracking", settings) };
        summary.set("length", json!(length));
        summary.set("test_length", json!(test_length));
        summary.set("step_sizes", json!(step_sizes));
        summary.print(settings.json)
    }
}
