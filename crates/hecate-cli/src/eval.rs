//! `hecate eval`: how well a trained model predicts a text.

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    progress,
    runs::RunArgs,
    sources,
};
use clap::Args;
use hecate::Job;
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

/// Flags of `hecate eval`.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    /// Text to predict; Hecate's own sources unless given
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    /// Measure only the last part of the text: 0.1 is what `train` holds out by default
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    tail: f32,
    /// Start with fresh memories every so many tokens, as the sequences of training do; memories last the whole text unless
    /// given
    #[arg(long, value_name = "TOKENS")]
    fresh: Option<usize>,
    #[command(flatten)]
    device: Choice,
}

/// Prints loss, bits a byte and perplexity of a text; the model reads it once, from start to end.
pub(crate) fn run(arguments: EvalArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for EvalArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // Written so that NaN is refused too.
        if !(self.tail > 0.0 && self.tail <= 1.0) {
            return Err(Error::flag("--tail", format!("{} is not above 0 and at most 1", self.tail)));
        }
        if self.fresh == Some(0) {
            return Err(Error::flag("--fresh", "0 tokens are no text; give at least 1"));
        }
        let source = sources::load(self.text.as_deref())?;
        let folder = self.run.folder()?;
        let (model, vocabulary) = self.run.open(device, &folder)?;
        // The same cut as training makes, so that `--tail 0.1` is its held-out part.
        let (_, tail) = split(&source.text, self.tail);
        let stream = Stream::encode(&vocabulary, tail)?;
        // One token to read, one to predict.
        if stream.tokens.len() < 2 {
            let why =
                format!("{} tokens are too few to measure; give more text or a longer --tail", stream.tokens.len());
            return Err(Error::file(source.path, why));
        }
        // The state is carried through the whole text unless `--fresh` cuts it.
        // Losses are per token; bits a byte count the text's own bytes, so tokenizers compare.
        let bar = progress::measuring(stream.tokens.len());
        // Segments are how much is read at once; they change no result.
        let length = self.fresh.unwrap_or(usize::MAX);
        let score = evaluate_afresh(&model, &stream, (SEGMENT, length), |done| {
            bar.set_position(done as u64);
            // Ctrl-C ends the program: a part of a text has no score.
            ControlFlow::Continue(())
        })?;
        bar.finish_and_clear();
        let mut out = stdout().lock();
        writeln!(out, "model       {}", folder.display())?;
        writeln!(out, "text        {}, {} bytes", source.path.display(), stream.bytes)?;
        // Mean over all tokens but the first, which nothing precedes.
        writeln!(out, "loss        {:.4} nats a token", score.loss())?;
        writeln!(out, "bits/byte   {:.4}", score.bits_per_byte())?;
        writeln!(out, "perplexity  {:.4}", score.perplexity())?;
        Ok(ExitCode::SUCCESS)
    }
}
