//! Runs of `hecate bench text`: learning and measuring, by as many threads as there are jobs.

use super::{
    TextRun,
    report::{Measured, Report, Row},
};
use crate::{
    bench::jobs::Runs,
    error::{Error, Result},
    measure::{self, Measurement},
    progress::{RunProgress, SweepProgress},
    stop::Stop,
};
use hecate::{
    Backend,
    models::text::{Corpus, Stream},
    train::{RunPlan, Settings, Trainer, evaluate::Budget},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Steps whose mean loss is what a run has learned; one step's windows may be easy.
const RECENT: usize = 20;

/// All runs, and what is known of them; threads share it.
pub(super) struct TextRuns<'a> {
    /// In the order in which they begin.
    runs: &'a [TextRun],
    /// All but the seed, which is each run's own.
    settings: Settings,
    /// How many steps there are, and of what the learning rate is made.
    plan: RunPlan,
    /// What is learned, and what is held out.
    corpus: &'a Corpus,
    /// The part of the held-out text that is measured.
    held_out: Stream,
    stop: &'a Stop,
    /// The next run that begins.
    next: AtomicUsize,
    progress: SweepProgress,
    /// Rows of runs that ended, in whatever order they did.
    report: Mutex<Report>,
}

impl<'a> TextRuns<'a> {
    /// Before the first; `measured` tokens of the held-out text count.
    pub(super) fn new(
        (runs, settings): (&'a [TextRun], Settings),
        plan: RunPlan,
        (corpus, measured): (&'a Corpus, usize),
        stop: &'a Stop,
        (progress, report): (SweepProgress, Report),
    ) -> Self {
        let (held_out, next, report) = (corpus.held_out.head(measured), AtomicUsize::new(0), Mutex::new(report));
        Self { runs, settings, plan, corpus, held_out, stop, next, progress, report }
    }

    /// Prints what is left to be printed, and says whether every run could be made.
    pub(super) fn end(self, settings: Value) -> Result<ExitCode> {
        let Self { progress, report, stop, .. } = self;
        // A bar would stand in the table.
        drop(progress);
        report.into_inner().unwrap_or_else(PoisonError::into_inner).end(settings, stop.asked())
    }

    /// A run from its first step to its last measurement. What is known when it fails stays in the row.
    fn learn<B: Backend>(
        &self,
        device: &B,
        TextRun { config, seed, .. }: &TextRun,
        (row, progress): (&mut Row, &RunProgress<'_>),
    ) -> Result<()> {
        // Weights and windows are drawn from the seed, as in a run.
        let settings = Settings { seed: *seed, ..self.settings };
        let trainer = Trainer::new(device, config, settings, self.plan.clone(), None)?;
        // Waits of one thread's device are none of another's.
        let mut trainer = trainer.with_interrupt(self.stop.interrupt().apart());
        row.parameters = Some(trainer.model().parameters().elements());
        // Runs beside each other find what the first of them compiled.
        trainer.prepare(&self.corpus.train.tokens, &mut |kernels| progress.compiling(kernels))?;
        let mut recent = VecDeque::new();
        while !trainer.finished() {
            let report = trainer.step(&self.corpus.train.tokens)?;
            recent.push_back(report.loss);
            recent.drain(..recent.len().saturating_sub(RECENT));
            let loss = recent.iter().sum::<f64>() / recent.len() as f64;
            row.learned = Some(Measured::of_loss(loss, self.corpus.train.bytes_per_token()));
            // Where a step fails, the row has the loss of those before it.
            progress.step(report.step, loss);
        }
        // The same text for both, so that they compare.
        let measurement = Measurement {
            model: trainer.model(),
            stream: &self.held_out,
            window: settings.tokens,
            segment: measure::segment(&settings),
            time: None,
            shown: false,
        };
        measurement.prepare(&mut |kernels| progress.compiling(kernels))?;
        // Whoever asks to stop ends both through the model.
        row.fresh = Some(measurement.fresh(&Budget::new(None), &|| false)?.score);
        row.positions = measurement.by_position()?.into_iter().map(|figure| figure.score).collect();
        Ok(())
    }
}

impl Runs for TextRuns<'_> {
    type Run = usize;

    fn next(&self) -> Option<usize> {
        if self.stop.asked() {
            return None;
        }
        // Counts on beyond the last, which is none.
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&next| next < self.runs.len())
    }

    fn perform<B: Backend>(&self, device: &B, number: usize) {
        // A row is there from the start: what is known when a run fails is kept.
        let run = &self.runs[number];
        let progress = self.progress.start(format!("{}, seed {}", run.model, run.seed));
        let mut row = Row::new(run);
        match self.learn(device, run, (&mut row, &progress)) {
            // A part of a run has no row.
            Err(Error::Model(hecate::models::Error::Stopped)) => return,
            Err(error) => row.fail(&error),
            Ok(()) => {}
        }
        progress.end(&row.told());
        self.report.lock().unwrap_or_else(PoisonError::into_inner).take(number, row);
    }
}
