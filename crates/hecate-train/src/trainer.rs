//! Training: one step after another, and the same ones again after a stop.

mod batch_source;
mod files;
mod guard;
mod material;
mod measure;
mod scales;
mod settings;
mod standing;
mod step_graph;

pub use files::{PUBLISHED, TEXT};
pub use material::Material;
pub use settings::{FirstStates, RunPlan, Settings};
pub use standing::Standing;

use crate::{
    optimizer::{self, Moments},
    schedule::Schedule,
};
use batch_source::BatchSource;
use files::Best;
use hecate_core::Backend;
use hecate_models::{
    Architecture, Error, Interrupt, LanguageModel, Precision, Result,
    text::{Text, Windows},
};
use measure::{Measured, StepArrays};
use scales::Scales;
use std::f64::consts::LN_2;
use step_graph::StepGraph;

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
    /// Bytes of text that the tokens stand for whose losses these are; none where the text is a slice of tokens.
    pub bytes: Option<u64>,
    /// Tokens whose losses these are.
    pub tokens: usize,
}

impl Report {
    /// Bits a byte of text, where the bytes are known.
    pub fn bits_per_byte(&self) -> Option<f64> {
        Some(self.loss / LN_2 * self.tokens as f64 / self.bytes? as f64)
    }
}

/// A model being trained: [`Trainer::step`] until [`Trainer::finished`], and [`Trainer::save`] now and then. After an error other than [`Error::Stopped`] it must not be saved or stepped on; resume from the
/// run's last checkpoint.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_models::{Config, Result, Vocabulary, text::{Corpus, Text}};
/// use hecate_train::{RunPlan, Settings, Trainer, checkpoint::Run};
///
/// # fn main() -> Result<()> {
/// let device = Cpu::new();
/// let text = Text::new("ticks", "tick tock ".repeat(100));
/// let settings = Settings { batch: 2, tokens: 16, ..Settings::over(12) };
/// let corpus = Corpus::of(&text, &Vocabulary::Bytes, RunPlan::HELD_OUT, settings.text())?;
/// let plan = RunPlan::of(corpus.identity.clone(), 12);
/// let mut trainer = Trainer::new(&device, &Config::uniform("delta", 1, 16, 2)?, settings, plan, None)?;
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let folder = folder.path();
/// let run = Run::new(folder);
/// while trainer.steps() < 6 {
///     trainer.step(&corpus.train.tokens)?;
/// }
/// trainer.save(&run)?;
///
/// // Another process goes on where this one stopped.
/// let mut trainer = Trainer::<Cpu>::resume(&device, &run)?;
/// while !trainer.finished() {
///     println!("{:?}", trainer.step(&corpus.train.tokens)?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Trainer<B: Backend> {
    model: LanguageModel<B>,
    moments: Moments<B>,
    settings: Settings,
    plan: RunPlan,
    source: BatchSource<B>,
    /// Content of `config.json`, as the run began with it.
    config: Vec<u8>,
    /// Content of `tokenizer.json`.
    tokenizer: Option<Vec<u8>>,
    /// The text, where it is kept with the run.
    text: Option<Text>,
    /// Steps done.
    step: u64,
    best: Option<Best>,
    /// The last step's measurement on held-out text is still to be made.
    due: bool,
    /// A step broke off: weights, moments and source may disagree.
    failed: bool,
    /// A step as the device captured it.
    graph: StepGraph<B>,
    /// Of 8-bit factors, where the settings ask for such.
    scales: Option<Scales>,
    /// What happened and was not told yet.
    event: Option<String>,
}

impl<B: Backend> Trainer<B> {
    /// A new model at step 0. `tokenizer` is the content of its `tokenizer.json`, kept beside it.
    ///
    /// # Errors
    /// [`Error::Config`] for settings or a configuration that make no sense; [`Error::DoesNotFit`] where the device has less
    /// memory than a step takes by [`Footprint`](hecate_models::Footprint); a run that is resumed is not refused so, since it went
    /// through before. The device's own failures, and its refusal of a precision.
    pub fn new<A: Architecture<B>>(
        device: &B,
        config: &A,
        settings: Settings,
        plan: RunPlan,
        tokenizer: Option<Vec<u8>>,
    ) -> Result<Self> {
        settings.check_on(device)?;
        settings.check_fits(device, config, 0)?;
        Self::from_model(LanguageModel::new(device, config, settings.seed)?, settings, plan, tokenizer)
    }

    /// As [`Trainer::new`], from a model that learned before: its weights, and nothing else of its training.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn from_model(
        model: LanguageModel<B>,
        settings: Settings,
        plan: RunPlan,
        tokenizer: Option<Vec<u8>>,
    ) -> Result<Self> {
        settings.check_on(model.device())?;
        plan.check()?;
        model.parameters().check_learning()?;
        settings.check_group(model.group())?;
        let model = model.with_precision(settings.precision);
        let footprint = model.footprint(settings.batch, settings.tokens);
        settings.check_footprint(model.device(), footprint, footprint.weights)?;
        let moments = Moments::new(model.device(), model.parameters())?;
        let source = BatchSource::new(Windows::new(settings.seed));
        let config = model.config_json().to_vec();
        Ok(Self { tokenizer, ..Self::begun(model, moments, settings, plan, source, config) })
    }

    /// At step 0, without a text of its own.
    fn begun(
        model: LanguageModel<B>,
        moments: Moments<B>,
        settings: Settings,
        plan: RunPlan,
        source: BatchSource<B>,
        config: Vec<u8>,
    ) -> Self {
        let scales = (settings.precision == Precision::Fp8).then(|| Scales::new(model.parameters().len()));
        Self {
            model,
            moments,
            settings,
            plan,
            source,
            config,
            tokenizer: None,
            text: None,
            step: 0,
            best: None,
            due: false,
            failed: false,
            graph: StepGraph::new(),
            scales,
            event: None,
        }
    }

    /// The same trainer, whose checkpoints keep the text: for one that is part of a program, which may change.
    pub fn with_text(self, text: Text) -> Self {
        Self { text: Some(text), ..self }
    }

    /// The same trainer, whose steps and measurements end with [`Error::Stopped`] once `interrupt` was asked for.
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { model: self.model.with_interrupt(interrupt), ..self }
    }

    /// Another number of steps for the whole run. The learning rate of steps to come is that of a run of so many steps.
    ///
    /// # Errors
    /// [`Error::Config`] for fewer steps than are done, or than the warm-up has.
    pub fn extend(&mut self, steps: u64) -> Result<()> {
        if steps < self.step {
            return Err(Error::config("steps", steps, format!("at least {}, the steps that are done", self.step)));
        }
        let schedule = Schedule { steps, ..self.settings.schedule };
        schedule.check()?;
        self.settings.schedule = schedule;
        Ok(())
    }

    /// Another number of checkpoints that are kept.
    ///
    /// # Errors
    /// [`Error::Config`] for none.
    pub fn keep(&mut self, checkpoints: usize) -> Result<()> {
        let plan = RunPlan { keep: checkpoints, ..self.plan.clone() };
        plan.check()?;
        self.plan = plan;
        Ok(())
    }

    /// Makes at once what the first step would wait for bit by bit ([`Device::prepare`](hecate_core::Device::prepare)):
    /// `tell` is called with the number of kernels that are compiled. Nothing is learned.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn prepare<'a>(&mut self, text: impl Into<Material<'a>>, tell: &mut dyn FnMut(usize)) -> Result<()> {
        let (text, device) = (text.into(), self.model.device().clone());
        let source = self.source.clone();
        let mut work = || {
            // What it finds means nothing.
            let _ = self.measure_call_by_call(text).map(drop);
            let _ = optimizer::rehearse(&device);
        };
        device.prepare(&mut work, tell)?;
        self.source = source;
        Ok(())
    }

    /// Draws windows of `text`, or some of these examples ([`Settings::batch`]), and learns them.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if the loss or the gradients are not finite. It says where in the model the first one
    /// appeared; the weights are then unchanged. [`Error::Stopped`]: everything is then as before the step, which can be
    /// made again. A text that holds no window. The device's own failures.
    pub fn step<'a>(&mut self, text: impl Into<Material<'a>>) -> Result<Report> {
        self.step_of(text.into())
    }

    /// [`Trainer::step`], once for all that is learned from.
    fn step_of(&mut self, text: Material<'_>) -> Result<Report> {
        self.check_sound()?;
        self.failed = true;
        let step = self.step + 1;
        // A failed step is run again from here, to find out why.
        self.source.take_bytes();
        let source = self.source.clone();
        let learning_rate = self.settings.schedule.rate(step);
        let count = u32::try_from(step).map_err(|_| Error::config("steps", step, "under 2^32"))?;
        let at = (count, learning_rate);
        let Measured { loss, tokens, gradient_norm, maxima, unaligned, updated, arrays } = match self.measure(text, at)
        {
            Ok(measured) if measured.is_finite() => measured,
            // Weights and moments change at the end of a step alone.
            Err(Error::Stopped) => {
                (self.source, self.failed) = (source, false);
                return Err(Error::Stopped);
            }
            outcome => return Err(self.explain(text, source, outcome)),
        };
        if !updated {
            let (parameters, constants) = (self.model.parameters_mut(), &self.settings.optimizer);
            let StepArrays { gradients, norm_squared, .. } = &*arrays;
            self.moments.update(parameters, gradients, norm_squared, constants, at)?;
        }
        self.note_fp8(&maxima, &unaligned);
        self.step = step;
        self.failed = false;
        self.due = self.finished() || step.is_multiple_of(self.plan.evaluate_every);
        let bytes = self.source.take_bytes();
        Ok(Report { step, loss, gradient_norm, learning_rate, bytes, tokens })
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Whether all steps are done.
    pub fn finished(&self) -> bool {
        self.step >= self.settings.schedule.steps
    }

    /// Whether the last step is one after which held-out text is measured, and [`Trainer::note`] was not told of it yet.
    pub fn measurement_due(&self) -> bool {
        self.due
    }

    /// What happened in the last steps that is worth a line, once: that the device cannot capture them as a graph, and why; which
    /// products stay at 16 bits where others have factors of 8.
    pub fn take_event(&mut self) -> Option<String> {
        self.event.take()
    }

    /// Notes what happened, to be told.
    fn tell(&mut self, event: String) {
        self.event = Some(match self.event.take() {
            Some(before) => format!("{before}; {event}"),
            None => event,
        });
    }

    /// Whether the next step replays a graph.
    pub fn is_captured(&self) -> bool {
        matches!(self.graph, StepGraph::Captured { .. })
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
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// The text that the checkpoints keep, if they do.
    pub fn text(&self) -> Option<&Text> {
        self.text.as_ref()
    }

    /// Content of the tokenizer's file, if the model does not read bytes.
    pub fn tokenizer(&self) -> Option<&[u8]> {
        self.tokenizer.as_deref()
    }

    /// Refuses to go on after a failed step.
    fn check_sound(&self) -> Result<()> {
        if self.failed {
            return Err(Error::config("trainer", "broken by a failed step", "one resumed from a checkpoint"));
        }
        Ok(())
    }
}
