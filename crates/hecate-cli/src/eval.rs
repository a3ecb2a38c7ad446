//! `hecate eval`: how well a trained model, or a released one, predicts a text or examples.

use crate::{
    defaults,
    device::{Choice, with_device},
    error::{Error, Result},
    finetune,
    measure::{Figure, Measurement, print, segment},
    progress,
    released::{self, Released},
    runs::RunArgs,
    sources::{self, DocumentArgs, MemoryArgs},
    visible::visible_path,
};
use clap::Args;
use hecate::{
    Backend, Job,
    models::{ChatTemplate, LanguageModel, Vocabulary},
    train::{
        Settings, Standing,
        checkpoint::Run,
        evaluate::{SEGMENT, evaluate_examples},
    },
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
    /// Text to predict: files, folders, or `-` for standard input; Hecate's own sources unless given
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
    /// Examples to predict, as `finetune` learns them: lines of JSON with `text`, `prompt` and `completion`, or `messages`
    ///
    /// Each is read by itself. Completions are predicted, not prompts, and of messages what the assistant says.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["text", "jsonl", "tail", "by_position"])]
    data: Vec<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    /// Folder of a model that others released, as Hugging Face has it, instead of a run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run", "best"])]
    model: Option<PathBuf>,
    /// Folder of an adapter beside --model, as PEFT and `finetune` write it
    #[arg(long, value_name = "DIR", requires = "model")]
    adapter: Option<PathBuf>,
    /// Measure only the last part of the text: 0.1 is what `train` holds out by default
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    tail: f32,
    /// Tokens of a window that starts with fresh memories; those of a sequence of training unless given
    #[arg(long, value_name = "TOKENS")]
    fresh: Option<usize>,
    /// Also measure by how much of the text was read before, in one pass
    #[arg(long)]
    by_position: bool,
    #[command(flatten)]
    documents: DocumentArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    device: Choice,
}

/// Prints loss, bits a byte and perplexity of a text, with fresh windows and in one pass.
pub(crate) fn run(arguments: EvalArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for EvalArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // Flags first, then the text, then the weights: what is cheap to refuse comes before what is slow to load.
        self.check()?;
        if !self.data.is_empty() {
            return self.measure_examples(device);
        }
        let text = sources::load(&self.text, self.documents.json_lines().as_ref(), self.memory)?;
        let Measured { folder, model, vocabulary, .. } = self.open(device)?;
        // The same cut as training makes, so that `--tail 0.1` is its held-out part.
        let stream = text.tail(&vocabulary, self.tail)?;
        // One token to read, one to predict.
        if stream.tokens.len() < 2 {
            let why =
                format!("{} tokens are too few to measure; give more text or a longer --tail", stream.tokens.len());
            return Err(Error::file(text.name(), why));
        }
        // A model without a run, as somebody else may have given it, has no length of its own.
        let learned = Standing::read(&Run::new(&folder)).ok().flatten().map(|standing| standing.settings);
        let window = self.fresh.or(learned.map(|settings: Settings| settings.tokens)).unwrap_or(defaults::TOKENS);
        // As many tokens at once as a step of training had room for.
        let segment = learned.as_ref().map_or(SEGMENT, segment);
        // Losses are per token; bits a byte count the text's own bytes, so tokenizers compare.
        let measurement = Measurement { model: &model, stream: &stream, window, segment, time: None, shown: true };
        // Told where there is something to wait for: a new GPU, or a new version.
        measurement.prepare(&mut |kernels| progress::say(&progress::compiling(kernels)))?;
        // Ctrl-C ends the program: a part of a text has no score.
        let figures = measurement.take(&|| false)?;
        // A table, so that both figures stand below each other.
        let mut out = stdout().lock();
        writeln!(out, "model  {}", visible_path(&folder))?;
        writeln!(out, "text   {}, {} bytes\n", visible_path(text.name()), stream.bytes)?;
        // The table locks it again.
        drop(out);
        print("of this text", &figures, measurement.predicted())?;
        // Another pass over the text: who does not ask for it does not wait for it.
        if self.by_position {
            writeln!(stdout())?;
            print("after tokens", &measurement.by_position()?, 0)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A model that is measured.
struct Measured<B: Backend> {
    folder: PathBuf,
    model: LanguageModel<B>,
    /// What its tokens mean, and which of them end a text.
    vocabulary: Vocabulary,
    ends: Vec<u32>,
    /// How conversations are written, or why that is not known.
    template: Result<ChatTemplate, String>,
}

impl EvalArgs {
    /// The model that the flags name.
    fn open<B: Backend>(&self, device: &B) -> Result<Measured<B>> {
        match &self.model {
            Some(folder) => {
                let (Released { model, vocabulary, ends, .. }, template) =
                    released::open_adapted(device, folder, self.adapter.as_deref())?;
                Ok(Measured { folder: folder.clone(), model, vocabulary, ends, template })
            }
            None => {
                let folder = self.run.folder()?;
                let (model, vocabulary) = self.run.open(device, &folder)?;
                // Runs have no tokens that end texts.
                let template = Err("a run has none".to_owned());
                Ok(Measured { folder, model, vocabulary, ends: Vec::new(), template })
            }
        }
    }

    /// Prints loss, bits a byte and perplexity of what examples say is learned.
    fn measure_examples<B: Backend>(&self, device: &B) -> Result<ExitCode> {
        let Measured { folder, model, vocabulary, ends, template } = self.open(device)?;
        // Nothing is cut: examples are as long as they are.
        let examples = finetune::examples(&self.data, (&vocabulary, &ends), &template, usize::MAX)?;
        // Ctrl-C ends the program: a part of the examples has no score.
        let score = evaluate_examples(&model, &examples, SEGMENT, |_| ControlFlow::Continue(()))?;
        let mut out = stdout().lock();
        writeln!(out, "model  {}", visible_path(&folder))?;
        writeln!(out, "data   {}, {} examples\n", visible_path(examples.name()), examples.len())?;
        // The table locks it again.
        drop(out);
        print("of these examples", &[Figure { name: "what is learned".to_owned(), score }], score.tokens)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses flags that no measurement can be made of, before a model is loaded.
    fn check(&self) -> Result<()> {
        // Written so that NaN is refused too.
        if !(self.tail > 0.0 && self.tail <= 1.0) {
            return Err(Error::flag("--tail", format!("{} is not above 0 and at most 1", self.tail)));
        }
        if self.fresh == Some(0) {
            return Err(Error::flag("--fresh", "0 tokens are no text; give at least 1"));
        }
        Ok(())
    }
}
