//! What is shown while work goes on: a bar on a terminal, plain lines elsewhere.

use hecate_models::trainer::Report;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::{
    fmt::Write,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

/// Number of plain lines a run.
const LINES: u64 = 20;

/// Progress of training.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// Steps before this program started.
    first: u64,
    steps: u64,
    tokens_per_step: usize,
    bits_per_nat: f64,
    began: Instant,
    /// Time spent in steps, without measurements and checkpoints.
    learning: Duration,
}

impl Progress {
    /// `bits_per_nat` turns nats a token into bits a byte.
    pub(crate) fn new(first: u64, steps: u64, tokens_per_step: usize, bits_per_nat: f64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps).with_position(first);
            bar.reset_eta();
            bar.with_style(style("{bar:24} step {pos}/{len}  {msg}  {left} left"))
        });
        Self { bar, first, steps, tokens_per_step, bits_per_nat, began: Instant::now(), learning: Duration::ZERO }
    }

    /// After a step that took this long; returns the tokens learned a second so far.
    pub(crate) fn step(&mut self, report: &Report, took: Duration) -> f64 {
        self.learning += took;
        let Report { step, loss, .. } = *report;
        let tokens = (step - self.first) as f64 * self.tokens_per_step as f64;
        let speed = tokens / self.learning.as_secs_f64();
        let figures = format!("loss {loss:.4}  {:.3} bits/byte  {speed:.0} tokens/s", loss * self.bits_per_nat);
        match &self.bar {
            Some(bar) => {
                bar.set_message(figures);
                bar.set_position(step);
            }
            None if step.is_multiple_of((self.steps / LINES).max(1)) || step == self.steps => {
                let seconds = self.began.elapsed().as_secs_f64() / (step - self.first) as f64;
                let left = (seconds * (self.steps - step) as f64).ceil();
                eprintln!("step {step}/{}  {figures}  {left:.0} s left", self.steps);
            }
            None => {}
        }
        speed
    }

    /// Leaves the bar as it is; from here on there are plain lines.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Progress of a benchmark: many runs, one after another.
pub(crate) struct Contest {
    bar: Option<ProgressBar>,
    /// Most steps of a run.
    steps: u64,
    runs: usize,
    ended: usize,
    name: String,
    began: Instant,
}

impl Contest {
    pub(crate) fn new(steps: u64) -> Self {
        Self { bar: None, steps, runs: 0, ended: 0, name: String::new(), began: Instant::now() }
    }

    /// So many runs begin.
    pub(crate) fn begin(&mut self, runs: usize) {
        self.runs = runs;
        self.bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(self.steps * runs as u64);
            bar.with_style(style("{bar:24} {msg}  {left} left"))
        });
    }

    /// A run begins.
    pub(crate) fn start(&mut self, name: &str, rate: f32, seed: u64) {
        self.name = format!("{name}, rate {rate}, seed {seed}");
        self.began = Instant::now();
    }

    /// A step of the run is done.
    pub(crate) fn step(&self, step: u64, loss: f64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("run {}/{}: {}  loss {loss:.4}", self.ended + 1, self.runs, self.name));
            bar.set_position(self.steps * self.ended as u64 + step);
        }
    }

    /// The run is over: a line that stays.
    pub(crate) fn end(&mut self, accuracies: &[f64], failure: Option<&str>) {
        self.ended += 1;
        let figures: Vec<String> = accuracies.iter().map(|x| format!("{x:.3}")).collect();
        let figures = failure.map_or_else(|| figures.join(" "), str::to_owned);
        let seconds = self.began.elapsed().as_secs_f64();
        let line = format!("{}/{}  {}: {figures}  ({seconds:.0} s)", self.ended, self.runs, self.name);
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Contest {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar over the tokens of a text that is measured.
pub(crate) fn measuring(tokens: usize) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(tokens as u64).with_style(style("{bar:24} measured {pos}/{len} tokens  {left} left"))
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("left", |state: &ProgressState, out: &mut dyn Write| {
        let seconds = state.eta().as_secs();
        // A bar that cannot be written is no reason to stop.
        let _ = write!(out, "{}:{:02}", seconds / 60, seconds % 60);
    })
}
