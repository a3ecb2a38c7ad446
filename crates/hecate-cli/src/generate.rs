//! `hecate generate`: a trained model, or a released one, continues a prompt, or one prompt after another.

mod draft;
mod sampling;
mod session;
mod writer;

pub(crate) use sampling::{SamplingArgs, said};
pub(crate) use writer::Writer;

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    progress,
    released::{self, Released},
    runs::RunArgs,
    sources::is_stdin,
};
use clap::{Args, builder::PossibleValuesParser};
use draft::{Draft, DraftArgs};
use hecate::{
    Backend, Job,
    models::{
        LanguageModel, Precision, Vocabulary,
        generate::{Generation, Session, generate},
        sampling::{Sampler, Sampling},
        text::read_text,
    },
};
use std::{
    io::{BufRead, IsTerminal, Read, Write, stderr, stdin},
    iter::from_fn,
    path::{Path, PathBuf},
    process::ExitCode,
};

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
    /// Model that others released, instead of a run: a folder as Hugging Face has it, or a GGUF file
    ///
    /// Its text ends where the model writes one of its end tokens.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "best"])]
    model: Option<PathBuf>,
    /// File of the text so far: the prompt goes on from there, and what was read and written is saved there
    ///
    /// Where there is no such file yet, a text begins. A file knows its model, and another one refuses it.
    #[arg(long, value_name = "FILE", conflicts_with = "interactive")]
    session: Option<PathBuf>,
    #[command(flatten)]
    draft: DraftArgs,
    /// Number of tokens to write (bytes, unless the model has a tokenizer)
    #[arg(long, default_value_t = 400, value_name = "N")]
    tokens: usize,
    /// End before this text where the model writes it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
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
        self.sampling.check()?;
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::flag("--stop", "an empty text is everywhere; give at least one character"));
        }
        // A file that is missing is found before a model is loaded.
        let prompt = self.prompt.read()?;
        let (released, draft) = self.open(device)?;
        // Ctrl-C ends the program at once: there is nothing to save.
        match (prompt, &self.session) {
            (Some(prompt), Some(file)) => self.go_on((&released, draft.as_ref()), file, &prompt)?,
            // One text, or one for each line that comes.
            (Some(prompt), None) => {
                let Released { model, vocabulary, ends, sampling } = &released;
                let tokens = self.encode(vocabulary, &prompt)?;
                prepare((model, draft.as_ref()), &tokens)?;
                // A padded model has scores of tokens that nobody can read.
                let sampler = self.sampling.sampler(*sampling, 0)?.of(vocabulary);
                let mut continuation = begin((model, draft.as_ref()), &tokens, sampler)?;
                let mut writer = Writer::new(vocabulary, self.raw, &self.stop);
                writer.after(&tokens)?;
                writer.prompt(&prompt)?;
                write(drawn(&mut *continuation), &mut writer, (self.tokens, ends), || false)?;
            }
            (None, _) => self.answer(&released, draft.as_ref())?,
        }
        draft.iter().for_each(Draft::tell);
        Ok(ExitCode::SUCCESS)
    }
}

/// A text that goes on: more of it is read, and its next token is drawn. Whether a draft is ahead of it does not matter to who
/// writes it.
trait Continued {
    /// Reads more after what was read and drawn so far.
    fn read_on(&mut self, tokens: &[u32]) -> Result<()>;

    /// The next token. A text has no end of its own.
    fn draw(&mut self) -> hecate::models::Result<u32>;
}

impl<B: Backend> Continued for Generation<'_, B> {
    fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        Ok(Generation::read_on(self, tokens)?)
    }

    fn draw(&mut self) -> hecate::models::Result<u32> {
        // It ends with its first error alone, which ends the program.
        self.next().unwrap_or(Err(hecate::models::Error::Stopped))
    }
}

/// The tokens of a text, one after another.
fn drawn(text: &mut dyn Continued) -> impl Iterator<Item = hecate::models::Result<u32>> {
    from_fn(|| Some(text.draw()))
}

/// The text after these tokens, which were read: by the model alone, or by both.
fn begin<'a, B: Backend>(
    (model, draft): (&'a LanguageModel<B>, Option<&'a Draft<B>>),
    tokens: &[u32],
    sampler: Sampler,
) -> Result<Box<dyn Continued + 'a>> {
    Ok(match draft {
        // A GPU draws several tokens before the host looks at them.
        None => Box::new(generate(model, tokens, sampler)?),
        Some(draft) => {
            let mut text = draft.ahead_of(model, Session::new(model, sampler)?)?;
            text.read_on(tokens)?;
            Box::new(text)
        }
    })
}

/// Compiles what a GPU lacks. It is told where there is something to wait for: a new GPU, or a new version.
fn prepare<B: Backend>((model, draft): (&LanguageModel<B>, Option<&Draft<B>>), tokens: &[u32]) -> Result<()> {
    model.prepare(tokens, &mut |kernels| progress::say(&progress::compiling(kernels)))?;
    draft.map_or(Ok(()), |draft| draft.prepare(tokens))
}

impl GenerateArgs {
    /// The model, and its draft where one is asked for; matrices of both are stored as the flag says.
    fn open<B: Backend>(&self, device: &B) -> Result<(Released<B>, Option<Draft<B>>)> {
        let at = self.model.clone().map_or_else(|| self.run.folder(), Ok)?;
        // Of a run nothing says which tokens end a text.
        let released = match &self.model {
            Some(path) => released::open(device, path)?,
            None => {
                let (model, vocabulary) = self.run.open(device, &at)?;
                Released { model, vocabulary, ends: Vec::new(), sampling: Sampling::default() }
            }
        };
        // Tokens that there are not cannot be preferred.
        self.sampling.check_bias(&released.vocabulary)?;
        let draft = self.draft.open(device, (&at, self.model.is_some()), &released.vocabulary)?;
        let store = |model| stored(model, &self.precision);
        let draft = draft.map(|draft| draft.map(store)).transpose()?;
        Ok((Released { model: store(released.model)?, ..released }, draft))
    }

    /// The tokens of a text's beginning. Models that others released have learned texts with tokens around them.
    fn encode(&self, vocabulary: &Vocabulary, prompt: &str) -> Result<Vec<u32>> {
        Ok(if self.model.is_some() { vocabulary.encode_prompt(prompt)? } else { vocabulary.encode(prompt)? })
    }

    /// Continues line after line of standard input. A line is read with its newline, as lines of the learned text are.
    fn answer<B: Backend>(&self, released: &Released<B>, draft: Option<&Draft<B>>) -> Result<()> {
        let Released { model, vocabulary, ends, sampling } = released;
        let mut before: Option<(Box<dyn Continued + '_>, Writer<'_>)> = None;
        for line in 0.. {
            let Some(prompt) = ask(line)? else { break };
            // A line without a token, as of blanks alone, asks for nothing.
            if vocabulary.encode(&prompt)?.is_empty() {
                continue;
            }
            // Without `--continue` nothing is left of the line before.
            let (mut continuation, mut writer, tokens) = match before.take().filter(|_| self.carry_on) {
                Some((mut before, writer)) => {
                    let tokens = vocabulary.encode(&prompt)?;
                    before.read_on(&tokens)?;
                    (before, writer, tokens)
                }
                None => {
                    let tokens = self.encode(vocabulary, &prompt)?;
                    let sampler = self.sampling.sampler(*sampling, line)?.of(vocabulary);
                    let writer = Writer::new(vocabulary, self.raw, &self.stop);
                    (begin((model, draft), &tokens, sampler)?, writer, tokens)
                }
            };
            writer.after(&tokens)?;
            write(drawn(&mut *continuation), &mut writer, (self.tokens, ends), || false)?;
            before = Some((continuation, writer));
        }
        Ok(())
    }
}

/// The model, with its matrices stored in this precision.
pub(crate) fn stored<B: Backend>(model: LanguageModel<B>, precision: &str) -> Result<LanguageModel<B>> {
    Ok(match Precision::named(precision)? {
        Precision::F32 => model,
        Precision::Bf16 | Precision::Fp8 => model.stored_in_16_bits()?,
    })
}

/// The next line of standard input with its newline, none at the end.
pub(crate) fn ask(number: u64) -> Result<Option<String>> {
    // Whoever types sees that it is their turn; a pipe gets nothing but answers.
    if stdin().is_terminal() {
        let _ = write!(stderr(), "> ");
    }
    next_line(&mut stdin().lock(), number)
}

/// The next line with its newline, none at the end. One that is not UTF-8 is told of and passed over: a slip of a terminal ends no
/// conversation.
fn next_line(input: &mut impl BufRead, number: u64) -> Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        // Lines are bytes here: one that is no text is passed over.
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
fn write(
    continuation: impl Iterator<Item = hecate::models::Result<u32>>,
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

    #[test]
    fn a_line_that_is_no_text_is_passed_over() {
        let mut input = &b"one\ncaf\xe9\ntwo"[..];
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut input, 0).unwrap()).collect();
        assert_eq!(lines, ["one\n", "two"]);
    }
}
