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
