//! `hecate eval`.

use crate::{
    device::{Choice, Job, with_device},
    error::{Error, Result},
    progress, runs, sources,
};
use clap::Args;
use hecate_core::Backend;
use hecate_models::{
    evaluate::{SEGMENT, evaluate_afresh},
    text::{Stream, split},
};
use std::{
    io::{Write, stdout},
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Text to predict; Hecate's own sources unless given
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Folder of the run; the one trained last unless given
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Measure only the last part of the text: 0.1 is what `train` holds out by default
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    tail: f32,
    /// Start with fresh memories every so many tokens, as the sequences of training do; carried through unless given
    #[arg(long, value_name = "TOKENS")]
    fresh: Option<usize>,
    #[command(flatten)]
    device: Choice,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for Arguments {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        if !(self.tail > 0.0 && self.tail <= 1.0) {
            return Err(Error::flag("--tail", format!("{} is not above 0 and at most 1", self.tail)));
        }
        if self.fresh == Some(0) {
            return Err(Error::flag("--fresh", "0 tokens are no text; give at least 1"));
        }
        let source = sources::load(self.text.as_deref())?;
        let folder = runs::find(self.run, "--run")?;
        let (model, vocabulary) = runs::open(device, &folder)?;
        let (_, tail) = split(&source.text, self.tail);
        let stream = Stream::encode(&vocabulary, tail)?;
        if stream.tokens.len() < 2 {
            let why =
                format!("{} tokens are too few to measure; give more text or a longer --tail", stream.tokens.len());
            return Err(Error::file(source.path, why));
        }
        let bar = progress::measuring(stream.tokens.len());
        let length = self.fresh.unwrap_or(usize::MAX);
        let score = evaluate_afresh(&model, &stream, (SEGMENT, length), |done| {
            bar.set_position(done as u64);
            ControlFlow::Continue(())
        })?;
        bar.finish_and_clear();
        let mut out = stdout().lock();
        writeln!(out, "model       {}", folder.display())?;
        writeln!(out, "text        {}, {} bytes", source.path.display(), stream.bytes)?;
        writeln!(out, "loss        {:.4} nats a token", score.loss())?;
        writeln!(out, "bits/byte   {:.4}", score.bits_per_byte())?;
        writeln!(out, "perplexity  {:.4}", score.perplexity())?;
        Ok(ExitCode::SUCCESS)
    }
}
