//! `hecate generate`: a trained model, or a released one, continues a prompt, or one prompt after another.

mod writer;

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    progress, released,
    runs::RunArgs,
    sources::is_stdin,
};
use clap::{Args, builder::PossibleValuesParser};
use hecate::{
    Backend, Job,
    models::{
        LanguageModel, Precision, Random, Vocabulary,
        generate::{Generation, generate},
        sampling::{Sampler, Sampling},
        text::read_text,
    },
};
use std::{
    io::{BufRead, IsTerminal, Read, Write, stderr, stdin},
    path::{Path, PathBuf},
    process::ExitCode,
};
use writer::Writer;

/// Flags of `hecate generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Keep what was read and written in memory from line to line
    #[arg(long = "continue", conflicts_with_all = ["prompt", "prompt_file"])]
    carry_on: bool,
    #[command(flatten)]
    run: RunArgs,
    /// Folder of a model that others released, as Hugging Face has it, instead of a run
    ///
    /// Its text ends where the model writes one of its end tokens.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run", "best"])]
    model: Option<PathBuf>,
    /// Number of tokens to write (bytes, unless the model has a tokenizer)
    #[arg(long, default_value_t = 400, value_name = "N")]
    tokens: usize,
    /// End before this text where the model writes it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
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
    /// How the model's matrices are stored; bf16 takes half the memory and half the time of reading them
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(Precision::STORED))]
    precision: String,
    /// Write control characters as they are; unless given they are made visible, so that they do nothing to a terminal
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    device: Choice,
}

/// Where prompts come from: one of these.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct PromptArgs {
    /// Text to continue
    // A prompt may begin with a dash.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue, UTF-8; `-` for standard input
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Continue each line of standard input, until it ends; every line starts with fresh memories
    #[arg(long)]
    interactive: bool,
}

/// Prints the prompt and its continuation.
pub(crate) fn run(arguments: GenerateArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for GenerateArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // Sampling is checked before a model is loaded.
        self.sampler(0)?;
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::flag("--stop", "an empty text is everywhere; give at least one character"));
        }
        // A file that is missing is found before a model is loaded.
        let prompt = self.prompt.read()?;
        let (model, vocabulary, ends) = match &self.model {
            Some(folder) => released::open(device, folder)?,
            None => {
                let (model, vocabulary) = self.run.open(device, &self.run.folder()?)?;
                (model, vocabulary, Vec::new())
            }
        };
        let model = match Precision::named(&self.precision)? {
            Precision::F32 => model,
            Precision::Bf16 | Precision::Fp8 => model.stored_in_16_bits()?,
        };
        // Ctrl-C ends the program at once: there is nothing to save.
        match prompt {
            // One text, or one for each line that comes.
            Some(prompt) => {
                let tokens = vocabulary.encode(&prompt)?;
                // Told where there is something to wait for: a new GPU, or a new version.
                model.prepare(&tokens, &mut |kernels| progress::say(&progress::compiling(kernels)))?;
                // A padded model has scores of tokens that nobody can read.
                let mut continuation = generate(&model, &tokens, self.sampler(0)?.of(&vocabulary))?;
                let mut writer = Writer::new(&vocabulary, self.raw, &self.stop);
                writer.after(&tokens)?;
                writer.prompt(&prompt)?;
                write(&mut continuation, &mut writer, (self.tokens, &ends), || false)?;
            }
            None => self.answer(&model, &vocabulary, &ends)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl GenerateArgs {
    /// The sampler of a line; the first one's is that of a prompt.
    fn sampler(&self, line: u64) -> Result<Sampler> {
        let Self { temperature, top_k, top_p, seed, .. } = *self;
        Ok(Sampler::new(Sampling { temperature, top_k, top_p, seed: seed_of_line(seed, line) })?)
    }

    /// Continues line after line of standard input. A line is read with its newline, as lines of the learned text are.
    fn answer<B: Backend>(&self, model: &LanguageModel<B>, vocabulary: &Vocabulary, ends: &[u32]) -> Result<()> {
        let mut before: Option<(Generation<'_, B>, Writer<'_>)> = None;
        for line in 0.. {
            // Whoever types sees that it is their turn; a pipe gets nothing but answers.
            if stdin().is_terminal() {
                let _ = write!(stderr(), "> ");
            }
            let Some(prompt) = next_line(&mut stdin().lock(), line)? else { break };
            let tokens = vocabulary.encode(&prompt)?;
            // A line without a token, as of blanks alone, asks for nothing.
            if tokens.is_empty() {
                continue;
            }
            // Without `--continue` nothing is left of the line before.
            let (mut continuation, mut writer) = match before.take().filter(|_| self.carry_on) {
                Some((mut before, writer)) => {
                    before.read_on(&tokens)?;
                    (before, writer)
                }
                None => {
                    let writer = Writer::new(vocabulary, self.raw, &self.stop);
                    (generate(model, &tokens, self.sampler(line)?.of(vocabulary))?, writer)
                }
            };
            writer.after(&tokens)?;
            write(&mut continuation, &mut writer, (self.tokens, ends), || false)?;
            before = Some((continuation, writer));
        }
        Ok(())
    }
}

/// The seed of a line of standard input. Lines that are the same are not answered the same, neither with one seed nor with another:
/// each has a number of its own of its seed's random ones.
fn seed_of_line(seed: u64, line: u64) -> u64 {
    if line == 0 { seed } else { Random::stream(seed, line).bits() }
}

/// The next line with its newline, none at the end. One that is not UTF-8 is told of and passed over: a slip of a terminal ends no
/// conversation.
fn next_line(input: &mut impl BufRead, number: u64) -> Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        let read = input.read_until(b'\n', &mut line).map_err(|error| Error::flag("standard input", error))?;
        if read == 0 {
            return Ok(None);
        }
        match String::from_utf8(line) {
            Ok(line) => return Ok(Some(line)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                progress::say(&format!("line {} is not UTF-8 at byte {at}; it is passed over", number + 1));
            }
        }
    }
}

impl PromptArgs {
    /// The prompt; none where there is one after another.
    fn read(&self) -> Result<Option<String>> {
        match &self.prompt_file {
            // None of them: there is a line of its own for each prompt.
            None => Ok(self.prompt.clone()),
            Some(file) if is_stdin(file) => {
                let mut prompt = String::new();
                stdin().read_to_string(&mut prompt).map_err(|source| Error::Io { path: file.clone(), source })?;
                Ok(Some(prompt))
            }
            Some(file) => Ok(Some(read_text(Path::new(file))?)),
        }
    }
}

/// Writes the prompt and a continuation of `tokens` tokens to standard output, until `stopped`. Control characters are made
/// visible.
pub(crate) fn stream<B: Backend>(
    model: &LanguageModel<B>,
    vocabulary: &Vocabulary,
    (prompt, text): (&[u32], &str),
    tokens: usize,
    sampler: Sampler,
    stopped: impl Fn() -> bool,
) -> Result<()> {
    // The prompt is read in one pass; from then on each token is one call.
    let mut continuation = generate(model, prompt, sampler.of(vocabulary))?;
    // A sample is for the reader of a terminal, and ends by its length alone.
    let mut writer = Writer::new(vocabulary, false, &[]);
    writer.after(prompt)?;
    writer.prompt(text)?;
    write(&mut continuation, &mut writer, (tokens, &[]), stopped)
}

/// Writes so many tokens, until one of `ends`, a stop text or `stopped`, and a newline.
fn write<B: Backend>(
    continuation: &mut Generation<'_, B>,
    writer: &mut Writer<'_>,
    (tokens, ends): (usize, &[u32]),
    stopped: impl Fn() -> bool,
) -> Result<()> {
    // A token that is drawn after a stop text would be for nothing.
    for token in continuation.take(tokens).take_while(|_| !stopped()) {
        let token = token?;
        if ends.contains(&token) || !writer.token(token)? {
            break;
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_lines_of_all_seeds_differ() {
        let seeds = (0..200).chain([u64::MAX - 1, u64::MAX]);
        let all: HashSet<u64> = seeds.flat_map(|seed| (0..50).map(move |line| seed_of_line(seed, line))).collect();
        assert_eq!(all.len(), 202 * 50);
        assert_eq!(seed_of_line(7, 0), 7);
    }

    #[test]
    fn a_line_that_is_no_text_is_passed_over() {
        let mut input = &b"one\ncaf\xe9\ntwo"[..];
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut input, 0).unwrap()).collect();
        assert_eq!(lines, ["one\n", "two"]);
    }
}
