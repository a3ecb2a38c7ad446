//! What is shown while work goes on: a bar on a terminal, plain lines elsewhere. Both go to standard error, so that
//! standard output holds results alone.

mod pace;

use hecate_models::trainer::Report;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use pace::Pace;
use std::{
    fmt::Write,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

/// Number of plain lines a run.
/// A log that nobody watches stays readable.
const LINES: u64 = 20;

/// Progress of training.
pub(crate) struct Progress {
    /// None where standard error is no terminal, and after the end.
    bar: Option<ProgressBar>,
    /// Steps of the whole run.
    steps: u64,
    /// Of all passes of a step.
    tokens_per_step: usize,
    /// Bits a byte for each nat a token.
    bits_per_nat: f64,
    /// When this program started to learn.
    began: Instant,
    /// Of the last steps, without the first, which compiles.
    pace: Pace,
}

impl Progress {
    /// Progress of a run of `steps` steps, `first` of which were done before; `bits_per_nat` turns nats a token into bits
    /// a byte.
    pub(crate) fn new(first: u64, steps: u64, tokens_per_step: usize, bits_per_nat: f64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps).with_position(first);
            bar.with_style(style("{bar:24} step {pos}/{len}  {msg}"))
        });
        Self { bar, steps, tokens_per_step, bits_per_nat, began: Instant::now(), pace: Pace::default() }
    }

    /// After a step that took this long until now; returns the tokens learned a second in the last steps.
    pub(crate) fn step(&mut self, report: &Report, took: Duration) -> f64 {
        let now = self.began.elapsed();
        // Times since this program started: a resumed run has a pace of its own.
        self.pace.step(now.saturating_sub(took), now);
        let Report { step, loss, .. } = *report;
        let speed = self.tokens_per_step as f64 / self.pace.seconds_per_step();
        // Rounded up: `0:00` only at the end.
        let left = self.pace.seconds_left(self.steps.saturating_sub(step)).ceil() as u64;
        let figures = format!("loss {loss:.4}  {:.3} bits/byte  {speed:.0} tokens/s", loss * self.bits_per_nat);
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{figures}  {} left", minutes(left)));
                bar.set_position(step);
            }
            // The last step always has its line.
            None if step.is_multiple_of((self.steps / LINES).max(1)) || step == self.steps => {
                eprintln!("step {step}/{}  {figures}  {} left", self.steps, minutes(left));
            }
            None => {}
        }
        speed
    }

    /// Leaves the bar as it is; from here on there are plain lines.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            // Its last state stays on the terminal.
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

// After an error too, the message must not overwrite the bar.
impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Progress of a benchmark: many runs, one after another.
#[cfg(feature = "check")]
pub(crate) struct SweepProgress {
    bar: Option<ProgressBar>,
    /// Most steps of a run.
    steps: u64,
    /// Runs of the whole sweep.
    runs: usize,
    /// Runs that are over.
    ended: usize,
    /// What the present run is called.
    name: String,
    /// When it began.
    began: Instant,
}

#[cfg(feature = "check")]
impl SweepProgress {
    /// Before the first run; a run has at most `steps` steps.
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

    /// `step` steps of the run are done, the last of this loss; only a bar shows it.
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
        // Accuracies in [0, 1], or why there are none.
        let figures = failure.map_or_else(|| figures.join(" "), str::to_owned);
        let seconds = self.began.elapsed().as_secs_f64();
        let line = format!("{}/{}  {}: {figures}  ({seconds:.0} s)", self.ended, self.runs, self.name);
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }
}

#[cfg(feature = "check")]
impl Drop for SweepProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar over the tokens of a text that is measured; hidden where standard error is no terminal.
pub(crate) fn measuring(tokens: usize) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(tokens as u64).with_style(style("{bar:24} measured {pos}/{len} tokens  {left} left"))
}

/// A bar's style; `{left}` in the template is the time left.
fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file; a broken one would show the plain bar.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("left", |state: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be written is no reason to stop.
        let _ = out.write_str(&minutes(state.eta().as_secs()));
    })
}

/// Seconds as minutes and seconds, `4:05`.
fn minutes(seconds: u64) -> String {
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
