//! The files of a checkpoint, and a trainer out of them.

use super::{
    RunPlan, Settings, Trainer,
    batch_source::{BatchSource, Bookmark},
    scales::{SavedScales, Scales},
};
use crate::{
    checkpoint::{Companion, Files, Run},
    optimizer::Moments,
};
use hecate_core::{Backend, Shape};
use hecate_models::{
    Architecture, Config, Error, Parameters, Result,
    files::{BEST, CONFIG, MODEL, TOKENIZER, parse_json, to_json},
    text::{Text, Windows},
    trained::{Blank, blank, restore},
    weights::{pack, unpack},
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

pub(super) const TRAINING: &str = "training.json";
const MOMENTS: &str = "training.safetensors";
const READING: &str = "reading.safetensors";
/// The text's file in a run folder, if the run keeps its text.
pub const TEXT: &str = "sources.txt";
/// Files of a checkpoint that are in the run folder too.
pub const PUBLISHED: [&str; 5] = [CONFIG, MODEL, BEST, TOKENIZER, TEXT];

/// `training.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Training {
    pub(super) step: u64,
    /// Lowest loss on held-out text; its weights are in `best.safetensors`.
    pub(super) best: Option<f64>,
    /// The step's measurement on held-out text is still to be made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    due: bool,
    pub(super) settings: Settings,
    pub(super) plan: RunPlan,
    windows: Windows,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reading: Option<Bookmark>,
    /// Of 8-bit factors.
    #[serde(default, skip_serializing_if = "SavedScales::is_empty")]
    scales: SavedScales,
}

impl Training {
    /// From the content of the file at `path`, in the checkpoint of this step.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for text that says something else; settings that nobody can learn with.
    pub(super) fn parse(path: &Path, content: &[u8], step: u64) -> Result<Self> {
        let training: Self = parse_json(path, content)?;
        if training.step != step {
            let why =
                format!("it is of step {}, and lies in the checkpoint of step {step}; use a copy of it", training.step);
            return Err(Error::checkpoint(path, why));
        }
        // Moments count steps in 32 bits, and the next one is counted too.
        if step >= u64::from(u32::MAX) {
            return Err(Error::config("steps", step, "under 2^32"));
        }
        training.settings.check()?;
        training.plan.check()?;
        Ok(training)
    }
}

/// The weights with the lowest loss on held-out text so far.
#[derive(Debug)]
pub(super) struct Best {
    /// Nats a token.
    pub(super) loss: f64,
    /// A safetensors file of all parameters, as [`MODEL`] is.
    weights: Vec<u8>,
}

impl<B: Backend> Trainer<B> {
    /// The run's newest checkpoint. Going on from it gives the weights, bit for bit, of a run that never stopped.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none, or a file is missing, damaged or of another model; [`Error::Io`].
    pub fn resume(device: &B, run: &Run) -> Result<Self> {
        Self::resume_as::<Config>(device, run)
    }

    /// As [`Trainer::resume`], of a run whose model is of one's own.
    ///
    /// # Errors
    /// As [`Trainer::resume`], and as [`Architecture::build`].
    pub fn resume_as<A: Architecture<B>>(device: &B, run: &Run) -> Result<Self> {
        Self::resume_with(device, run, &blank::<B, A>)
    }

    /// As [`Trainer::resume`], of a run whose model is what `blank` makes of its `config.json`, with other weights: one beside an
    /// adapter, or one that others released.
    ///
    /// # Errors
    /// As [`Trainer::resume`]; those of `blank`.
    pub fn resume_with(device: &B, run: &Run, blank: Blank<B>) -> Result<Self> {
        let (step, files) = run.open(&PUBLISHED)?;
        let mut files = Opened { folder: run.checkpoint(step), files };
        let Training { step, best, due, settings, plan, windows, reading, scales } = files.training(step)?;
        settings.check_on(device)?;
        let model = restore(device, blank, files.content(CONFIG)?, files.content(MODEL)?)?;
        let model = model.with_precision(settings.precision);
        let moments = files.moments(device, model.parameters())?;
        let source = match reading {
            Some(bookmark) => {
                let (path, content) = files.content(READING)?;
                BatchSource::resume(windows, bookmark, (&model, &settings), (path, content))?
            }
            None => BatchSource::new(windows),
        };
        // A run from before there were best weights starts to look for them here.
        let best = best.zip(files.take(BEST)).map(|(loss, weights)| Best { loss, weights });
        let text = files.text(run)?;
        let tokenizer = files.take(TOKENIZER);
        let config = files.take(CONFIG).unwrap_or_default();
        let names = model.parameters().iter().map(|parameter| parameter.name.as_str());
        let scales = Scales::resume(scales, names)?;
        let begun = Self::begun(model, moments, settings, plan, source, config);
        let scales = begun.scales.is_some().then_some(scales);
        Ok(Self { tokenizer, text, step, best, due, scales, ..begun })
    }

    /// Commits a checkpoint of this step to the run.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] after a failed step.
    pub fn save(&self, run: &Run) -> Result<()> {
        run.commit(self.step, &self.files(run)?, &PUBLISHED, self.plan.keep)
    }

    /// As [`Trainer::save`] where a new run begins: what was in the folder of an older one goes, and so do the files
    /// `beside`, once the checkpoint is on the disk.
    ///
    /// # Errors
    /// As [`Trainer::save`]; [`Error::Checkpoint`] where Hecate did not write what is there. The folder is then as it was.
    pub fn begin(&self, run: &Run, beside: &[Companion]) -> Result<()> {
        run.replace(self.step, &self.files(run)?, &PUBLISHED, beside)
    }

    /// Notes a loss on held-out text, nats a token. The weights as they are become the best if no loss before was as low;
    /// checkpoints keep them from then on.
    ///
    /// # Errors
    /// [`Error::Config`] after a failed step; the device's own failures.
    pub fn note(&mut self, held_out_loss: f64) -> Result<()> {
        self.check_sound()?;
        self.due = false;
        // NaN is lower than nothing.
        if held_out_loss < self.best().unwrap_or(f64::INFINITY) {
            let weights = pack(Path::new(BEST), &self.model.parameters().by_name(), &[], &self.beside())?;
            self.best = Some(Best { loss: held_out_loss, weights });
        }
        Ok(())
    }

    /// Lowest loss on held-out text noted, nats a token.
    pub fn best(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.loss)
    }

    /// Files that the weights are written beside, and know the checksums of.
    fn beside(&self) -> Vec<(&'static str, &[u8])> {
        let tokenizer = self.tokenizer.as_deref().map(|content| (TOKENIZER, content));
        [(CONFIG, self.config.as_slice())].into_iter().chain(tokenizer).collect()
    }

    /// Files of a checkpoint of this step.
    fn files(&self, run: &Run) -> Result<Files<'_>> {
        self.check_sound()?;
        let folder = run.checkpoint(self.step);
        let moments = self.moments.means.iter().chain(&self.moments.squares);
        let shapes = moment_shapes(self.model.parameters());
        let moments: Vec<_> = shapes.into_iter().zip(moments).map(|((name, _), array)| (name, array)).collect();
        let training = Training {
            step: self.step,
            best: self.best(),
            due: self.due,
            settings: self.settings,
            plan: self.plan.clone(),
            windows: self.source.windows.clone(),
            reading: self.source.bookmark(),
            scales: self.scales.as_ref().map_or_else(SavedScales::default, |scales| {
                scales.save(self.model.parameters().iter().map(|parameter| parameter.name.as_str()))
            }),
        };
        let model = pack(&folder.join(MODEL), &self.model.parameters().by_name(), &[], &self.beside())?;
        let mut files = Files::from([
            (CONFIG.to_owned(), self.config.as_slice().into()),
            (MODEL.to_owned(), model.into()),
            (TRAINING.to_owned(), to_json(&folder.join(TRAINING), &training)?.into()),
            (MOMENTS.to_owned(), pack(&folder.join(MOMENTS), &moments, &[], &[])?.into()),
        ]);
        // What is in memory anyway is not copied.
        let best = self.best.as_ref().map(|best| best.weights.as_slice().into());
        let reading = self.source.pack(&folder.join(READING))?.map(Cow::from);
        let text = self.text.as_ref().map(Text::content).transpose()?;
        let tokenizer = self.tokenizer.as_deref().map(Cow::from);
        let optional = [(BEST, best), (READING, reading), (TOKENIZER, tokenizer), (TEXT, text)];
        files.extend(optional.into_iter().filter_map(|(name, content)| Some((name.to_owned(), content?))));
        Ok(files)
    }
}

/// A checkpoint's files, and the folder that messages name.
struct Opened {
    folder: PathBuf,
    files: Files<'static>,
}

impl Opened {
    fn content(&self, name: &str) -> Result<(PathBuf, &[u8])> {
        let path = self.folder.join(name);
        match self.files.get(name) {
            Some(content) => Ok((path, content)),
            None => Err(Error::checkpoint(path, "missing; use a copy")),
        }
    }

    /// A file that not every checkpoint has.
    fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        Some(self.files.remove(name)?.into_owned())
    }

    fn training(&self, step: u64) -> Result<Training> {
        let (path, bytes) = self.content(TRAINING)?;
        Training::parse(&path, bytes, step)
    }

    /// The text that was kept with the run, whose name is that in the run's folder.
    fn text(&mut self, run: &Run) -> Result<Option<Text>> {
        let path = self.folder.join(TEXT);
        let text = self.take(TEXT).map(String::from_utf8).transpose();
        let text = text.map_err(|error| Error::checkpoint(path, format!("{error}; use a copy of it")))?;
        Ok(text.map(|text| Text::new(run.file(TEXT), text)))
    }

    fn moments<B: Backend>(&self, device: &B, parameters: &Parameters<B>) -> Result<Moments<B>> {
        let (path, bytes) = self.content(MOMENTS)?;
        let mut means = unpack(device, &path, bytes, &moment_shapes(parameters))?;
        let squares = means.split_off(parameters.len());
        Ok(Moments { means, squares })
    }
}

/// Names and shapes of all first moments, then of all second moments.
fn moment_shapes<B: Backend>(parameters: &Parameters<B>) -> Vec<(String, Shape)> {
    let named = |prefix: &str| -> Vec<(String, Shape)> {
        parameters.iter().map(|p| (format!("{prefix}.{}", p.name), p.value.shape().clone())).collect()
    };
    [named("mean"), named("square")].concat()
}
