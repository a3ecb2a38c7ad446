//! Training: one step after another, and the same ones again after a stop.

mod guard;
mod source;

use crate::{
    Config, Error, LanguageModel, Parameters, Precision, Result,
    bounds::{SIZE, few, product, within},
    checkpoint::{Files, Run, parse_json, read_file, to_json},
    language_model::Pass,
    optimizer::{self, Constants, Moments},
    schedule::Schedule,
    text::{Identity, Windows},
    weights::{pack, unpack},
};
use guard::Measured;
use hecate_core::{Backend, Shape, Tensor, primitives};
use serde::{Deserialize, Serialize};
use source::{Bookmark, Source};
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const TRAINING: &str = "training.json";
const MOMENTS: &str = "training.safetensors";
const READING: &str = "reading.safetensors";
/// The tokenizer's file in a run folder, if the model does not read bytes.
pub const TOKENIZER: &str = "tokenizer.json";
/// Files of a checkpoint that are copied to the run folder.
pub const PUBLISHED: [&str; 3] = [CONFIG, MODEL, TOKENIZER];

/// How a model is trained. Kept with every checkpoint: resuming takes them from there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Sequences a pass.
    pub batch: usize,
    /// Tokens a sequence.
    pub tokens: usize,
    /// Passes whose gradients are averaged into one step.
    pub accumulate: usize,
    /// Sequences of a text that are learned one after another with the memories carried on; at 1 every sequence starts
    /// with fresh ones. Gradients end at the start of each.
    #[serde(default = "fresh")]
    pub carry: usize,
    /// Learning rates, and the number of steps.
    pub schedule: Schedule,
    /// The optimiser's constants.
    pub optimizer: Constants,
    /// Seed of the weights and of the choice of text.
    pub seed: u64,
    /// Bits of activations.
    #[serde(default)]
    pub precision: Precision,
}

/// Every sequence starts with fresh memories, as all did before there was a choice.
fn fresh() -> usize {
    1
}

impl Settings {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn check(&self) -> Result<()> {
        let Self { batch, tokens, accumulate, carry, .. } = *self;
        let counts = [("batch", batch), ("sequence length", tokens), ("accumulate", accumulate), ("carry", carry)];
        counts.into_iter().try_for_each(|(field, count)| within(field, count, 1..=SIZE))?;
        few("batch × sequence length", product(&[batch, tokens]), SIZE as u128)?;
        self.schedule.check()?;
        self.optimizer.check()
    }

    /// Tokens learned a step.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.saturating_mul(self.tokens).saturating_mul(self.accumulate)
    }
}

/// Where a run's text comes from, and how often it is measured and saved. None of it changes a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The text's file; none for a text that is part of the program.
    pub text: Option<PathBuf>,
    /// Which text it is.
    pub identity: Identity,
    /// Share of the text that is held out.
    pub held_out: f32,
    /// Steps between two measurements on held-out text.
    pub evaluate_every: u64,
    /// Steps between two checkpoints.
    pub save_every: u64,
}

/// `training.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Training {
    step: u64,
    best: Option<f64>,
    settings: Settings,
    plan: Plan,
    windows: Windows,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reading: Option<Bookmark>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Number of the step, from 1.
    pub step: u64,
    /// Loss before the step, nats a token.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f32,
}

/// A model being trained. After an error it must not be saved or stepped on; resume from the run's last checkpoint.
#[derive(Debug)]
pub struct Trainer<B: Backend> {
    model: LanguageModel<B>,
    moments: Moments<B>,
    settings: Settings,
    plan: Plan,
    source: Source<B>,
    tokenizer: Option<Vec<u8>>,
    step: u64,
    best: Option<f64>,
    failed: bool,
}

impl<B: Backend> Trainer<B> {
    /// A new model at step 0. `tokenizer` is the content of its `tokenizer.json`, kept beside it.
    ///
    /// # Errors
    /// [`Error::Config`] for settings or a configuration that make no sense; the device's own failures.
    pub fn new(
        device: &B,
        config: &Config,
        settings: Settings,
        plan: Plan,
        tokenizer: Option<Vec<u8>>,
    ) -> Result<Self> {
        settings.check()?;
        plan.check()?;
        let model = LanguageModel::new(device, config, settings.seed)?.with_precision(settings.precision);
        settings.check_group(model.group())?;
        let moments = Moments::new(device, model.parameters())?;
        let source = Source::new(Windows::new(settings.seed));
        Ok(Self { model, moments, settings, plan, source, tokenizer, step: 0, best: None, failed: false })
    }

    /// The run's newest checkpoint. Going on from it gives the weights, bit for bit, of a run that never stopped.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none, or a file is missing, damaged or of another model; [`Error::Io`].
    pub fn resume(device: &B, run: &Run) -> Result<Self> {
        let (step, mut files) = run.open(&PUBLISHED)?;
        let folder = run.checkpoint(step);
        let tokenizer = files.remove(TOKENIZER);
        let content = |name: &str| {
            let found = files.get(name).ok_or_else(|| Error::checkpoint(folder.join(name), "missing; use a copy"));
            Ok::<_, Error>((folder.join(name), found?.as_slice()))
        };
        let (path, bytes) = content(CONFIG)?;
        let config = parse_config(&path, bytes)?;
        let (path, bytes) = content(TRAINING)?;
        let Training { step, best, settings, plan, windows, reading } = parse_json(&path, bytes)?;
        settings.check()?;
        plan.check()?;
        let (path, bytes) = content(MODEL)?;
        let model = restore(device, &config, &path, bytes)?.with_precision(settings.precision);
        let (path, bytes) = content(MOMENTS)?;
        let mut means = unpack(device, &path, bytes, &moment_shapes(model.parameters()))?;
        let squares = means.split_off(model.parameters().len());
        let moments = Moments { means, squares };
        let source = match reading {
            Some(bookmark) => {
                let (path, bytes) = content(READING)?;
                Source::resume(windows, bookmark, &model, (&path, bytes))?
            }
            None => Source::new(windows),
        };
        Ok(Self { model, moments, settings, plan, source, tokenizer, step, best, failed: false })
    }

    /// Draws windows of `text`, and learns them.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if the loss or the gradients are no numbers, saying where in the model the first one
    /// appeared (the weights are then unchanged); a text that holds no window; the device's own failures.
    pub fn step(&mut self, text: &[u32]) -> Result<Report> {
        self.check_sound()?;
        self.failed = true;
        let step = self.step + 1;
        let source = self.source.clone();
        let Measured { loss, gradients, norm_squared, gradient_norm } = match self.measure(text) {
            Ok(measured) if measured.loss.is_finite() && measured.gradient_norm.is_finite() => measured,
            outcome => return Err(self.explain(text, source, outcome)),
        };
        let learning_rate = self.settings.schedule.rate(step);
        let count = u32::try_from(step).map_err(|_| Error::config("steps", step, "under 2^32"))?;
        let constants = &self.settings.optimizer;
        let at = (count, learning_rate);
        self.moments.update(self.model.parameters_mut(), &gradients, &norm_squared, constants, at)?;
        self.step = step;
        self.failed = false;
        Ok(Report { step, loss, gradient_norm, learning_rate })
    }

    /// The passes of one step as one: their losses together, and the mean of their gradients.
    fn passes(&mut self, text: &[u32]) -> Result<Pass<B>> {
        let accumulate = self.settings.accumulate;
        let mut pass = || self.source.learn(&self.model, text, &self.settings);
        let mut all = pass()?;
        for _ in 1..accumulate {
            let more = pass()?;
            all.loss = primitives::add(&all.loss, &more.loss)?;
            all.count += more.count;
            all.gradients.accumulate(more.gradients)?;
        }
        if accumulate > 1 {
            optimizer::scale(&mut all.gradients, 1.0 / accumulate as f32)?;
        }
        Ok(all)
    }

    /// Commits a checkpoint of this step to the run.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] after a failed step.
    pub fn save(&self, run: &Run) -> Result<()> {
        run.commit(self.step, &self.files(run)?, &PUBLISHED)
    }

    /// As [`Trainer::save`] where a new run begins: what was in the folder of an older one goes, and so do the files
    /// `beside`, once the checkpoint is on the disk.
    ///
    /// # Errors
    /// As [`Trainer::save`]; if the checkpoint could not be written, the folder is as it was.
    pub fn begin(&self, run: &Run, beside: &[&str]) -> Result<()> {
        run.replace(self.step, &self.files(run)?, &PUBLISHED, &[&PUBLISHED, beside].concat())
    }

    /// Files of a checkpoint of this step.
    fn files(&self, run: &Run) -> Result<Files> {
        self.check_sound()?;
        let folder = run.checkpoint(self.step);
        let moments = self.moments.means.iter().chain(&self.moments.squares);
        let shapes = moment_shapes(self.model.parameters());
        let moments: Vec<_> = shapes.into_iter().zip(moments).map(|((name, _), array)| (name, array)).collect();
        let training = Training {
            step: self.step,
            best: self.best,
            settings: self.settings,
            plan: self.plan.clone(),
            windows: self.source.windows.clone(),
            reading: self.source.bookmark(),
        };
        let mut files = Files::from([
            (CONFIG.to_owned(), to_json(&folder.join(CONFIG), self.model.config())?),
            (MODEL.to_owned(), pack(&folder.join(MODEL), &named(self.model.parameters()))?),
            (TRAINING.to_owned(), to_json(&folder.join(TRAINING), &training)?),
            (MOMENTS.to_owned(), pack(&folder.join(MOMENTS), &moments)?),
        ]);
        if let Some(remembered) = self.source.pack(&folder.join(READING))? {
            files.insert(READING.to_owned(), remembered);
        }
        if let Some(tokenizer) = &self.tokenizer {
            files.insert(TOKENIZER.to_owned(), tokenizer.clone());
        }
        Ok(files)
    }

    /// Notes a loss on held-out text, nats a token, and keeps the lowest.
    pub fn note(&mut self, held_out_loss: f64) {
        self.best = Some(self.best.map_or(held_out_loss, |best| best.min(held_out_loss)));
    }

    /// Lowest loss on held-out text noted, nats a token.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Whether all steps are done.
    pub fn finished(&self) -> bool {
        self.step >= self.settings.schedule.steps
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel<B> {
        &self.model
    }

    /// How it is trained.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where the text comes from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Content of the tokenizer's file, if the model does not read bytes.
    pub fn tokenizer(&self) -> Option<&[u8]> {
        self.tokenizer.as_deref()
    }

    fn check_sound(&self) -> Result<()> {
        if self.failed {
            return Err(Error::config("trainer", "broken by a failed step", "one resumed from a checkpoint"));
        }
        Ok(())
    }
}

impl Plan {
    fn check(&self) -> Result<()> {
        let counts = [("evaluate every", self.evaluate_every), ("save every", self.save_every)];
        match counts.into_iter().find(|&(_, count)| count == 0) {
            Some((field, _)) => Err(Error::config(field, 0, "at least 1 step")),
            None => Ok(()),
        }
    }
}

/// The model in a folder with `config.json` and `model.safetensors`.
///
/// # Errors
/// [`Error::Checkpoint`] if a file is missing or damaged or does not fit the other; the device's own failures.
pub fn load_model<B: Backend>(device: &B, folder: &Path) -> Result<LanguageModel<B>> {
    let path = folder.join(CONFIG);
    let config = parse_config(&path, &read_file(&path)?)?;
    let path = folder.join(MODEL);
    restore(device, &config, &path, &read_file(&path)?)
}

/// A configuration file.
///
/// # Errors
/// [`Error::Checkpoint`] if it is missing or cannot be understood.
pub fn load_config(path: &Path) -> Result<Config> {
    parse_config(path, &read_file(path)?)
}

fn parse_config(path: &Path, bytes: &[u8]) -> Result<Config> {
    let config: Config = parse_json(path, bytes)?;
    config.validate().map_err(|error| Error::checkpoint(path, error.to_string()))?;
    Ok(config)
}

fn restore<B: Backend>(device: &B, config: &Config, path: &Path, bytes: &[u8]) -> Result<LanguageModel<B>> {
    let mut model = LanguageModel::blank(device, config)?;
    let shapes: Vec<(String, Shape)> =
        model.parameters().iter().map(|p| (p.name.clone(), p.value.shape().clone())).collect();
    let values = unpack(device, path, bytes, &shapes)?;
    for (parameter, value) in model.parameters_mut().iter_mut().zip(values) {
        parameter.value = value;
    }
    Ok(model)
}

fn named<B: Backend>(parameters: &Parameters<B>) -> Vec<(String, &Tensor<B>)> {
    parameters.iter().map(|p| (p.name.clone(), &p.value)).collect()
}

/// Names and shapes of all first moments, then of all second moments.
fn moment_shapes<B: Backend>(parameters: &Parameters<B>) -> Vec<(String, Shape)> {
    let named = |prefix: &str| -> Vec<(String, Shape)> {
        parameters.iter().map(|p| (format!("{prefix}.{}", p.name), p.value.shape().clone())).collect()
    };
    [named("mean"), named("square")].concat()
}
