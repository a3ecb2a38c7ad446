//! `hecate train`: begins a run or goes on with one.
//!
//! Flags become a configuration (`arguments`, `levels`), a text and a trainer; `session` is the loop over its steps. A new
//! run writes its first checkpoint before the first step, so that a folder never holds half a run.
//!
//! A run is a folder: `checkpoint-…` folders with weights and the optimiser's state, `config.json` and
//! `model.safetensors` of the newest, `best.safetensors`, a record and a picture.

mod arguments;
mod levels;
mod names;
mod session;
mod shape;
mod training;

pub(crate) use arguments::TrainArgs;
#[cfg(feature = "check")]
pub(crate) use arguments::{COMPOSED, ModelArgs, ModelFlags};
#[cfg(feature = "check")]
pub(crate) use levels::LevelArgs;
pub(crate) use session::{CURVE, METRICS, TABLE};
#[cfg(feature = "check")]
pub(crate) use {shape::ShapeArgs, training::TrainingArgs};

use crate::{
    curve, defaults,
    device::with_device,
    error::{Error, Result},
    progress, runs,
    settings::{self, SETTINGS},
    sources,
};
use hecate::{
    Backend, Job,
    models::{
        Config, LanguageModel, Vocabulary,
        files::TOKENIZER,
        text::Corpus,
        trained::{Trained, load_config},
    },
    train::{
        PUBLISHED, RunPlan, Trainer,
        checkpoint::{Companion, Contents, Run},
        metrics,
    },
};
use session::Session;
use std::{
    fs,
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

/// Files of a run beside its checkpoints and what they publish, which the command writes: the record, the picture, the flags.
const BESIDE: [Companion; 4] = [
    (METRICS, metrics::is_record),
    (TABLE, metrics::is_table),
    (CURVE, curve::is_picture),
    (SETTINGS, settings::is_settings),
];

/// Trains on the chosen device until the run is over or somebody asks to stop.
pub(crate) fn run(arguments: TrainArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for TrainArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let session = match &self.resume {
            Some(folder) => resume(device, &self, Run::new(runs::find(folder.clone(), "--resume")?))?,
            None => begin(device, &self, Run::new(self.folder()))?,
        };
        session.run()
    }
}

/// A new run, its first checkpoint written. Everything is checked and made before anything in the folder changes.
fn begin<B: Backend>(device: &B, arguments: &TrainArgs, run: Run) -> Result<Session<B>> {
    runs::check_folder(run.folder(), "--out")?;
    check_free(&run, arguments.overwrite)?;
    let Beginning { model, vocabulary, tokenizer } = Beginning::new(device, arguments)?;
    let steps = arguments.steps.unwrap_or(defaults::STEPS);
    let settings = arguments.training.settings(steps, arguments.seed)?;
    settings.check()?;
    let json_lines = arguments.documents.json_lines();
    let source = sources::load(&arguments.text, json_lines.as_ref(), arguments.memory)?;
    // A share of the text at its end, in [0, 1).
    let held_out = arguments.training.holdout;
    // Too little text is found here, before anything is written.
    let corpus = Corpus::of(&source, &vocabulary, held_out, settings.text())?;
    let (evaluate_every, save_every) = arguments.intervals(steps);
    let text = arguments.text.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
    // Kept with the checkpoints: a resumed run needs no flags.
    let (identity, keep) = (corpus.identity.clone(), arguments.keep.unwrap_or(RunPlan::KEEP));
    let plan = RunPlan { text, json_lines, identity, held_out, evaluate_every, save_every, keep };
    let trainer = match model {
        FirstModel::Fresh(config) => Trainer::new(device, &config, settings, plan, tokenizer)?,
        FirstModel::Trained(model) => Trainer::from_model(*model, settings, plan, tokenizer)?,
    };
    // A text that is in no file that could be read again is kept with the run.
    // The trainer shares the bytes of it with the corpus.
    let kept = arguments.text.iter().all(|path| sources::is_stdin(path));
    let trainer = if kept { trainer.with_text(source) } else { trainer };
    let lock = run.lock()?;
    // Another process may have come first. What is to be replaced is looked at once more below.
    if !arguments.overwrite {
        check_free(&run, false)?;
    }
    // Clears what an older run left, and writes checkpoint 0.
    trainer.begin(&run, &BESIDE)?;
    arguments.given.save(&run)?;
    Session::new(run, lock, trainer, corpus, vocabulary, arguments.measure)
}

/// What a new run begins with.
struct Beginning<B: Backend> {
    model: FirstModel<B>,
    /// What tokens mean, and the content of the tokenizer's file.
    vocabulary: Vocabulary,
    tokenizer: Option<Vec<u8>>,
}

/// The model before the first step.
enum FirstModel<B: Backend> {
    /// One that has learned nothing, of this configuration.
    Fresh(Config),
    /// That of a run.
    Trained(Box<LanguageModel<B>>),
}

impl<B: Backend> Beginning<B> {
    /// By flags, or with the weights of another run.
    fn new(device: &B, arguments: &TrainArgs) -> Result<Self> {
        let Some(folder) = &arguments.init_from else {
            if arguments.best {
                return Err(Error::flag("--best", "a run's best weights; name the run with `--init-from RUN`"));
            }
            // Its bytes are kept with the run, so that the file may go away.
            let tokenizer = arguments.model.tokenizer.as_deref().map(read_tokenizer).transpose()?;
            let vocabulary = vocabulary(arguments.model.tokenizer.as_deref(), tokenizer.as_deref())?;
            let config = arguments.model().config(&vocabulary)?;
            return Ok(Self { model: FirstModel::Fresh(config), vocabulary, tokenizer });
        };
        let Trained { model, vocabulary, tokenizer } = runs::open(device, folder, arguments.best, "--init-from")?;
        let weights = if arguments.best { "best" } else { "last" };
        progress::say(&format!("beginning with the {weights} weights of {}; its steps do not count", folder.display()));
        Ok(Self { model: FirstModel::Trained(model.into()), vocabulary, tokenizer })
    }
}

/// Refuses a folder that holds a run, unless that is to be replaced, and one with somebody else's files in any case.
///
/// # Errors
/// They name `--resume`, `--overwrite` or `--out`.
fn check_free(run: &Run, overwrite: bool) -> Result<()> {
    let folder = run.folder();
    let why = match run.contents(&PUBLISHED, &BESIDE)? {
        Contents::Nothing => return Ok(()),
        Contents::Foreign(path) => {
            let why = "was not written by Hecate, which begins no run among other files; name another folder (`--out DIR`), or \
                       move this elsewhere";
            return Err(Error::file(path, why));
        }
        Contents::Ours if overwrite => return Ok(()),
        // A quantized copy has no checkpoint that could be gone on from.
        Contents::Ours if run.latest()?.is_none() => "holds a model already;".to_owned(),
        Contents::Ours => format!("holds a run already; go on with it (`--resume {}`),", folder.display()),
    };
    Err(Error::file(folder, format!("{why} replace it (`--overwrite`) or name another folder (`--out DIR`)")))
}

/// A stopped run, where its newest checkpoint left it. The text must be the same; its path may be another.
fn resume<B: Backend>(device: &B, arguments: &TrainArgs, run: Run) -> Result<Session<B>> {
    runs::check_folder(run.folder(), "--resume")?;
    // Refused here where there is no checkpoint, before a lock is made in a folder that is no run.
    if arguments.documents.json_lines().is_some() {
        return Err(Error::flag("--jsonl", "a run that goes on reads its text as it began; leave it out"));
    }
    refuse_quantized(&run)?;
    run.newest()?;
    // The lock comes first: opening a checkpoint sweeps up after a stopped run.
    let lock = run.lock()?;
    let mut trainer = Trainer::resume(device, &run)?;
    change(&mut trainer, arguments)?;
    let vocabulary = vocabulary(Some(&run.file(TOKENIZER)), trainer.tokenizer())?;
    let plan = trainer.plan();
    // `--text` names the text where it lies now; else it is looked for where it was.
    let source = match trainer.text() {
        // A clone shares the bytes.
        Some(kept) if arguments.text.is_empty() => kept.clone(),
        _ => {
            let given = !arguments.text.is_empty();
            let paths = if given { arguments.text.as_slice() } else { known_places(&run, &plan.text)? };
            sources::load(paths, plan.json_lines.as_ref(), arguments.memory)?
        }
    };
    // Length and checksum: a text that grew by a line is another text.
    let found = source.identity();
    if *found != plan.identity {
        let why = format!(
            "is not the text that {} learns ({} bytes, found {}); name that with `--text FILE`, or begin a new run with \
             `--out DIR`",
            run.folder().display(),
            plan.identity.bytes,
            found.bytes
        );
        return Err(Error::file(source.name(), why));
    }
    // The corpus is cut as it was when the run began.
    let length = trainer.settings().text();
    let corpus = Corpus::of(&source, &vocabulary, plan.held_out, length)?;
    Session::new(run, lock, trainer, corpus, vocabulary, arguments.measure)
}

/// Refuses a folder that `hecate quantize` wrote: it would only be said that there is no checkpoint.
fn refuse_quantized(run: &Run) -> Result<()> {
    let path = run.file("config.json");
    match load_config(&path).ok().and_then(|config| config.quantization) {
        Some(format) => {
            let why = format!("a model in {format}, which learns no more; resume the run that it was made of");
            Err(Error::file(path, why))
        }
        None => Ok(()),
    }
}

/// What flags change of a stopped run: how many steps it has, and how many checkpoints are kept.
fn change<B: Backend>(trainer: &mut Trainer<B>, arguments: &TrainArgs) -> Result<()> {
    if let Some(checkpoints) = arguments.keep {
        trainer.keep(checkpoints)?;
    }
    let before = trainer.settings().schedule.steps;
    let Some(steps) = arguments.steps.filter(|&steps| steps != before) else { return Ok(()) };
    if steps < trainer.steps() {
        let why = format!("{steps} are fewer than the {} that are done; give as many or more", trainer.steps());
        return Err(Error::flag("--steps", why));
    }
    trainer.extend(steps)?;
    let rate = trainer.settings().schedule.rate(trainer.steps() + 1);
    progress::say(&format!(
        "{steps} steps instead of {before}: from here on the learning rate is that of a run of {steps} steps, {rate:.2e} \
         after step {}",
        trainer.steps()
    ));
    Ok(())
}

/// Content of a `tokenizer.json`.
fn read_tokenizer(path: &Path) -> Result<Vec<u8>> {
    // The system's words name neither the flag nor what such a file is.
    let read = fs::metadata(path).and_then(|found| match found.is_file() {
        // A pipe may never end.
        true => fs::read(path),
        false => Err(std::io::Error::other("it is no plain file")),
    });
    read.map_err(|error| {
        let why = format!("{} cannot be read ({error}); name a `tokenizer.json` of Hugging Face", path.display());
        Error::flag("--tokenizer", why)
    })
}

/// The vocabulary of a tokenizer's content, bytes without one; `path` is for messages.
fn vocabulary(path: Option<&Path>, tokenizer: Option<&[u8]>) -> Result<Vocabulary> {
    match tokenizer {
        Some(content) => Ok(Vocabulary::from_json(path.unwrap_or(Path::new(TOKENIZER)), content)?),
        // 256 tokens, one a byte.
        None => Ok(Vocabulary::Bytes),
    }
}

/// A path that a resumed run finds from any folder; standard input has none.
fn absolute(path: &Path) -> Result<PathBuf> {
    if sources::is_stdin(path) {
        return Ok(path.to_owned());
    }
    let found = std::path::absolute(path).and_then(|all| if leads_up(&all) { fs::canonicalize(all) } else { Ok(all) });
    found.map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Whether a path has `..` in it.
fn leads_up(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Paths of a run's text, as the run wrote them down.
///
/// # Errors
/// One that no run writes down: it may have come from anybody, and would mean something else in each folder.
fn known_places<'a>(run: &Run, text: &'a [PathBuf]) -> Result<&'a [PathBuf]> {
    match text.iter().find(|path| !sources::is_stdin(path) && (!path.is_absolute() || leads_up(path))) {
        None => Ok(text),
        Some(path) => {
            let why = format!(
                "its text is said to be in {}, expected a whole path without `..`; name the text with `--text FILE`",
                path.display()
            );
            Err(Error::file(run.folder(), why))
        }
    }
}
