//! Progress of a benchmark: many runs, one after another or several at once.

use super::{
    PAUSE, Ticker, bar, beside_bar, compiling,
    line::{Figure, fit},
    minutes, say,
};
use indicatif::ProgressBar;
use std::{
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Progress of all runs together; threads share it.
pub(crate) struct SweepProgress {
    bar: Option<ProgressBar>,
    /// Most steps of a run.
    steps: u64,
    /// Runs of the whole sweep.
    runs: usize,
    /// Runs that began.
    begun: AtomicUsize,
    /// Runs that are over.
    ended: AtomicUsize,
    /// Lines where there is no bar.
    ticker: Mutex<Ticker>,
}

/// A run that goes on; dropped without an end, it leaves no line.
pub(crate) struct RunProgress<'a> {
    sweep: &'a SweepProgress,
    /// What it is called.
    name: String,
    /// Which one it was to begin, from 1.
    number: usize,
    began: Instant,
    /// Steps that the bar has of it.
    done: Cell<u64>,
}

impl SweepProgress {
    /// Before the first of `runs` runs of at most `steps` steps.
    pub(crate) fn new(steps: u64, runs: usize) -> Self {
        let (begun, ended, ticker) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Ticker::new(PAUSE)));
        Self { bar: bar(steps.saturating_mul(runs as u64)), steps, runs, begun, ended, ticker }
    }

    /// A run begins.
    pub(crate) fn start(&self, name: String) -> RunProgress<'_> {
        // In the order in which runs begin, whichever ends first.
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        RunProgress { sweep: self, name, number, began: Instant::now(), done: Cell::new(0) }
    }

    /// Whether a line is due, whichever run it is of.
    fn is_due(&self) -> bool {
        self.ticker.lock().unwrap_or_else(PoisonError::into_inner).due()
    }
}

impl RunProgress<'_> {
    /// `step` steps of the run are done, the last of this loss.
    pub(crate) fn step(&self, step: u64, loss: f64) {
        let SweepProgress { bar, steps, runs, .. } = self.sweep;
        // Made only where somebody sees it.
        let figures = || {
            vec![
                Figure(0, format!("run {}/{runs}", self.number)),
                Figure(1, self.name.clone()),
                Figure(3, format!("step {step}/{steps}")),
                Figure(2, format!("loss {loss:.4}")),
            ]
        };
        match bar {
            Some(bar) => {
                let left = Figure(0, format!("{} left", minutes(bar.eta().as_secs())));
                bar.set_message(fit(figures().into_iter().chain([left]).collect(), beside_bar()));
                self.advance(step);
            }
            None if self.sweep.is_due() => say(&fit(figures(), usize::MAX)),
            None => {}
        }
    }

    /// Before a wait for kernels: on the bar, or as a line.
    pub(crate) fn compiling(&self, kernels: usize) {
        match &self.sweep.bar {
            Some(bar) => bar.set_message(fit(vec![Figure(0, compiling(kernels))], beside_bar())),
            None => say(&compiling(kernels)),
        }
    }

    /// The run is over: a line that stays, with its figures or why there are none.
    pub(crate) fn end(self, figures: &str) {
        let SweepProgress { bar, steps, runs, ended, .. } = self.sweep;
        let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
        let line = format!("{ended}/{runs}  {}: {figures}  ({:.0} s)", self.name, self.began.elapsed().as_secs_f64());
        // Steps that were not needed are not waited for either.
        self.advance(*steps);
        match bar {
            Some(bar) => bar.suspend(|| say(&line)),
            None => say(&line),
        }
    }

    /// Moves the bar on, which counts the steps of all runs.
    fn advance(&self, step: u64) {
        if let Some(bar) = &self.sweep.bar {
            bar.inc(step.saturating_sub(self.done.replace(step)));
        }
    }
}

// After an error too, the message must not overwrite the bar.
impl Drop for SweepProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
