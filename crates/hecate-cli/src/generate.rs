//! `hecate generate`: a trained model continues a prompt.

use crate::{
    device::{Choice, with_device},
    error::Result,
    runs::RunArgs,
};
use clap::Args;
use hecate::Job;
use hecate_core::Backend;
use hecate_models::{
    LanguageModel, Vocabulary,
    generate::generate,
    sampling::{Sampler, Sampling},
};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

/// Flags of `hecate generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Text to continue
    // A prompt may begin with a dash.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    #[command(flatten)]
    run: RunArgs,
    /// Number of tokens to write (bytes, unless the model has a tokenizer)
    #[arg(long, default_value_t = 400, value_name = "N")]
    tokens: usize,
    /// How adventurous the choice of tokens is; 0 always takes the likeliest
    #[arg(long, default_value_t = Sampling::default().temperature, value_name = "T")]
    // 0 or more; `top_k` and `top_p` cut the distribution before it is drawn from.
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

/// Prints the prompt and its continuation.
pub(crate) fn run(arguments: GenerateArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for GenerateArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let Self { temperature, top_k, top_p, seed, .. } = self;
        // Sampling is checked before a model is loaded.
        let sampler = Sampler::new(Sampling { temperature, top_k, top_p, seed })?;
        let (model, vocabulary) = self.run.open(device, &self.run.folder()?)?;
        // Ctrl-C ends the program at once: there is nothing to save.
        stream(&model, &vocabulary, &self.prompt, self.tokens, sampler, || false)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the prompt and a continuation of `tokens` tokens to standard output, each character as soon as it is whole,
/// until `stopped`. A token may hold a part of a character, or several.
pub(crate) fn stream<B: Backend>(
    model: &LanguageModel<B>,
    vocabulary: &Vocabulary,
    prompt: &str,
    tokens: usize,
    sampler: Sampler,
    stopped: impl Fn() -> bool,
) -> Result<()> {
    // The prompt is read in one pass; from then on each token is one call.
    let continuation = generate(model, &vocabulary.encode(prompt)?, sampler)?;
    let mut decoder = vocabulary.decoder();
    let mut out = stdout().lock();
    write!(out, "{prompt}")?;
    for token in continuation.take(tokens).take_while(|_| !stopped()) {
        write!(out, "{}", decoder.push(token?)?)?;
        // Each token is seen when it is made; a line may take minutes.
        out.flush()?;
    }
    // What is left of a character that was cut off by the limit.
    Ok(writeln!(out, "{}", decoder.finish())?)
}
