//! `hecate generate`.

use crate::{
    device::{Choice, Job, with_device},
    error::Result,
    runs,
};
use clap::Args;
use hecate_core::Backend;
use hecate_models::{
    LanguageModel, Vocabulary,
    generate::generate,
    sampling::{Sampler, Sampling},
};
use std::{
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// Folder of the run; the one trained last unless given
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Number of tokens to write (bytes, unless the model has a tokenizer)
    #[arg(long, default_value_t = 400, value_name = "N")]
    tokens: usize,
    /// Logits are divided by it; 0 always takes the likeliest token
    #[arg(long, default_value_t = Sampling::default().temperature, value_name = "T")]
    temperature: f32,
    /// Choose among this many of the likeliest tokens; 0 for no limit
    #[arg(long, default_value_t = Sampling::default().top_k, value_name = "K")]
    top_k: usize,
    /// Choose among the likeliest tokens that together have this probability; 1 for no limit
    #[arg(long, default_value_t = Sampling::default().top_p, value_name = "P")]
    top_p: f32,
    /// Same seed, same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
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
        let Self { temperature, top_k, top_p, seed, .. } = self;
        let sampler = Sampler::new(Sampling { temperature, top_k, top_p, seed })?;
        let (model, vocabulary) = runs::open(device, &runs::find(self.run, "--run")?)?;
        stream(&model, &vocabulary, &self.prompt, self.tokens, sampler, || false)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the prompt and its continuation, each character as soon as it is there, until `stopped`.
pub(crate) fn stream<B: Backend>(
    model: &LanguageModel<B>,
    vocabulary: &Vocabulary,
    prompt: &str,
    tokens: usize,
    sampler: Sampler,
    stopped: impl Fn() -> bool,
) -> Result<()> {
    let continuation = generate(model, &vocabulary.encode(prompt)?, sampler)?;
    let mut decoder = vocabulary.decoder();
    let mut out = stdout().lock();
    write!(out, "{prompt}")?;
    for token in continuation.take(tokens).take_while(|_| !stopped()) {
        write!(out, "{}", decoder.push(token?)?)?;
        out.flush()?;
    }
    Ok(writeln!(out, "{}", decoder.finish())?)
}
