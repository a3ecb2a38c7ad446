//! `hecate train`.

mod arguments;
mod levels;
mod session;

pub(crate) use arguments::Arguments;

use crate::{
    device::{Job, with_device},
    error::{Error, Result},
    runs, sources,
};
use hecate_core::Backend;
use hecate_models::{
    Vocabulary,
    checkpoint::Run,
    text::{Corpus, Identity},
    trainer::{PUBLISHED, Plan, TOKENIZER, Trainer},
};
use session::Session;
use std::{fs, path::Path, process::ExitCode};

/// Files of a run beside its checkpoints and what they publish.
const BESIDE: [&str; 2] = [session::METRICS, session::CURVE];

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for Arguments {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let session = match &self.resume {
            Some(folder) => resume(device, &self, Run::new(runs::find(folder.clone(), "--resume")?))?,
            None => begin(device, &self, Run::new(self.folder()))?,
        };
        session.run()
    }
}

/// A new run, its first checkpoint written. Everything is checked and made before anything in the folder changes.
fn begin<B: Backend>(device: &B, arguments: &Arguments, run: Run) -> Result<Session<B>> {
    check_free(&run, arguments.overwrite)?;
    let tokenizer = arguments.model.tokenizer.as_deref().map(read_tokenizer).transpose()?;
    let vocabulary = vocabulary(arguments.model.tokenizer.as_deref(), tokenizer.as_deref())?;
    let config = arguments.model.config(&arguments.levels, &vocabulary)?;
    let settings = arguments.training.settings()?;
    settings.check()?;
    let source = sources::load(arguments.text.as_deref())?;
    let held_out = arguments.training.holdout;
    let corpus = Corpus::new(&source.path, &source.text, &vocabulary, held_out, settings.text())?;
    let (evaluate_every, save_every) = arguments.training.intervals();
    let text = arguments.text.as_deref().map(absolute).transpose()?;
    let plan = Plan { text, identity: corpus.identity.clone(), held_out, evaluate_every, save_every };
    let trainer = Trainer::new(device, &config, settings, plan, tokenizer)?;
    let lock = run.lock()?;
    // Another process may have come first.
    check_free(&run, arguments.overwrite)?;
    trainer.begin(&run, &BESIDE)?;
    Session::new(run, lock, trainer, corpus, vocabulary)
}

/// Refuses a folder that holds what a new run would replace, unless that is wanted.
fn check_free(run: &Run, overwrite: bool) -> Result<()> {
    if overwrite {
        return Ok(());
    }
    let folder = run.folder().display();
    let begin = "replace it (`--overwrite`) or name another folder (`--out DIR`)";
    if run.latest()?.is_some() {
        let why = format!("holds a run already; go on with it (`--resume {folder}`), {begin}");
        return Err(Error::file(run.folder(), why));
    }
    match PUBLISHED.iter().chain(&BESIDE).map(|name| run.file(name)).find(|path| path.exists()) {
        Some(path) => Err(Error::file(path, format!("is there already; {begin}"))),
        None => Ok(()),
    }
}

/// A stopped run, where its newest checkpoint left it.
fn resume<B: Backend>(device: &B, arguments: &Arguments, run: Run) -> Result<Session<B>> {
    run.newest()?;
    let lock = run.lock()?;
    let trainer = Trainer::resume(device, &run)?;
    let vocabulary = vocabulary(Some(&run.file(TOKENIZER)), trainer.tokenizer())?;
    let plan = trainer.plan();
    let source = sources::load(arguments.text.as_deref().or(plan.text.as_deref()))?;
    let found = Identity::of(&source.text);
    if found != plan.identity {
        let why = format!(
            "is not the text that {} learns ({} bytes, found {}); name that with `--text FILE`, or begin a new run with \
             `--out DIR`",
            run.folder().display(),
            plan.identity.bytes,
            found.bytes
        );
        return Err(Error::file(source.path, why));
    }
    let length = trainer.settings().text();
    let corpus = Corpus::new(&source.path, &source.text, &vocabulary, plan.held_out, length)?;
    Session::new(run, lock, trainer, corpus, vocabulary)
}

fn read_tokenizer(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

fn vocabulary(path: Option<&Path>, tokenizer: Option<&[u8]>) -> Result<Vocabulary> {
    match tokenizer {
        Some(content) => Ok(Vocabulary::from_json(path.unwrap_or(Path::new(TOKENIZER)), content)?),
        None => Ok(Vocabulary::Bytes),
    }
}

fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    std::path::absolute(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}
