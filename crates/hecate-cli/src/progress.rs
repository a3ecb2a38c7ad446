//! What is shown while work goes on: a bar on a terminal, plain lines elsewhere. Both go to standard error, so that
//! standard output holds results alone.

#[cfg(feature = "spikes")]
mod bursts;
mod line;
mod pace;
#[cfg(feature = "check")]
mod sweep;
mod ticker;

#[cfg(feature = "spikes")]
pub(crate) use bursts::Bursts;
#[cfg(feature = "check")]
pub(crate) use sweep::{RunProgress, SweepProgress};
pub(crate) use ticker::Ticker;

use crate::{terminal, visible::visible};
use console::Term;
use hecate::train::{Report, evaluate::Budget};
use indicatif::{ProgressBar, ProgressStyle};
use line::{COLUMNS, Figure, fit};
use pace::Pace;
use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

/// Number of plain lines a run.
/// A log that nobody watches stays readable.
const LINES: u64 = 20;
/// Between these, a line of a run whose steps are slow.
const SLOW: Duration = Duration::from_secs(30);
/// Between plain lines of a measurement or a benchmark.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);
/// Columns of a bar, so that figures fit beside it.
const BAR: usize = 8;

/// Progress of training.
pub(crate) struct Progress {
    /// None where standard error is no terminal, and after the end.
    bar: Option<ProgressBar>,
    /// Steps of the whole run.
    steps: u64,
    /// Of all passes of a step.
    tokens_per_step: usize,
    /// When this program started to learn.
    began: Instant,
    /// Of the last steps, without the first, which compiles.
    pace: Pace,
    /// Lines where there is no bar.
    ticker: Ticker,
}

impl Progress {
    /// Progress of a run of `steps` steps, `first` of which were done before.
    pub(crate) fn new(first: u64, steps: u64, tokens_per_step: usize) -> Self {
        let bar = bar(steps).map(|bar| bar.with_position(first));
        let (began, pace, ticker) = (Instant::now(), Pace::default(), Ticker::new(SLOW));
        Self { bar, steps, tokens_per_step, began, pace, ticker }
    }

    /// After a step that took this long until now; returns the tokens learned a second in the last steps.
    pub(crate) fn step(&mut self, report: &Report, took: Duration) -> f64 {
        let now = self.began.elapsed();
        // Times since this program started: a resumed run has a pace of its own.
        self.pace.step(now.saturating_sub(took), now);
        let speed = self.tokens_per_step as f64 / self.pace.seconds_per_step();
        let figures = self.figures(report, speed);
        match &self.bar {
            Some(bar) => {
                bar.set_message(fit(figures, beside_bar()));
                bar.set_position(report.step);
            }
            // The last step always has its line.
            None if report.step.is_multiple_of((self.steps / LINES).max(1))
                || report.step == self.steps
                || self.ticker.due() =>
            {
                say(&fit(figures, usize::MAX));
            }
            None => {}
        }
        speed
    }

    /// What a line says of a step.
    fn figures(&self, report: &Report, speed: f64) -> Vec<Figure> {
        let &Report { step, loss, .. } = report;
        // Rounded up: `0:00` only at the end.
        let left = self.pace.seconds_left(self.steps.saturating_sub(step)).ceil() as u64;
        // Of the text that was learned in this step.
        let bits = report.bits_per_byte().map(|bits| Figure(1, format!("{bits:.3} bits/byte")));
        let first = [Figure(0, format!("step {step}/{}", self.steps)), Figure(2, format!("loss {loss:.4}"))];
        let last = [Figure(3, format!("{speed:.0} tokens/s")), Figure(0, format!("{} left", minutes(left)))];
        first.into_iter().chain(bits).chain(last).collect()
    }

    /// Leaves the bar as it is; from here on there are plain lines.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            // Its last state stays on the terminal.
            bar.abandon();
        }
    }

    /// Before a wait for kernels: on the bar, or as a line.
    pub(crate) fn compiling(&self, kernels: usize) {
        match &self.bar {
            Some(bar) => bar.set_message(fit(vec![Figure(0, compiling(kernels))], beside_bar())),
            None => say(&compiling(kernels)),
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            // Lines through the bar's own writer would be lost without a word.
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }
}

/// What is said before a wait for kernels.
pub(crate) fn compiling(kernels: usize) -> String {
    format!("compiling {kernels} kernels, once for this GPU")
}

/// A line on standard error, its control characters made visible. That nobody can read it is no reason to stop.
pub(crate) fn say(line: &str) {
    terminal::say(&visible(line));
}

// After an error too, the message must not overwrite the bar.
impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Work that is watched: a bar with figures, or a line with them now and then.
struct Watched {
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// Of the whole work.
    total: u64,
    began: Instant,
    /// Lines where there is no bar.
    ticker: Ticker,
}

impl Watched {
    /// Before the first of so many parts.
    fn new(total: u64) -> Self {
        Self { bar: bar(total), total, began: Instant::now(), ticker: Ticker::new(PAUSE) }
    }

    /// Seconds that the rest takes, if it goes on as it did until `done`.
    fn seconds_left(&self, done: u64) -> f64 {
        self.began.elapsed().as_secs_f64() / done.max(1) as f64 * self.total.saturating_sub(done) as f64
    }

    /// So many parts are done. Figures are made where somebody sees them.
    fn at(&self, done: u64, figures: impl FnOnce() -> Vec<Figure>) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(fit(figures(), beside_bar()));
                bar.set_position(done);
            }
            None if self.ticker.due() => say(&fit(figures(), usize::MAX)),
            None => {}
        }
    }
}

// After an error too, the message must not overwrite the bar.
impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What a line says of the time that is left, rounded up.
fn left(seconds: f64) -> Figure {
    Figure(0, format!("{} left", minutes(seconds.ceil() as u64)))
}

/// Progress of a measurement of a text.
pub(crate) struct Measuring {
    /// What is measured, as in the table that follows.
    name: String,
    /// By tokens.
    watched: Watched,
}

impl Measuring {
    /// Before the first of so many tokens.
    pub(crate) fn new(name: &str, tokens: usize) -> Self {
        Self { name: name.to_owned(), watched: Watched::new(tokens as u64) }
    }

    /// So many tokens are done; the budget may end it before the last.
    pub(crate) fn at(&self, done: usize, budget: &Budget) {
        self.watched.at(done as u64, || {
            let seconds = self.watched.seconds_left(done as u64);
            let seconds = budget.left().map_or(seconds, |most| most.as_secs_f64().min(seconds));
            let measured = format!("{done} of {} tokens measured", self.watched.total);
            vec![Figure(1, self.name.clone()), Figure(0, measured), left(seconds)]
        });
    }
}

/// A bar with its message beside it; none where standard error is no terminal.
fn bar(length: u64) -> Option<ProgressBar> {
    let template = format!("{{bar:{BAR}}} {{wide_msg}}");
    // The template is a constant of this file; a broken one would show the plain bar.
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    stderr().is_terminal().then(|| ProgressBar::new(length).with_style(style))
}

/// Columns of the terminal that a bar leaves; one stays free, since terminals break a line that fills them all.
fn beside_bar() -> usize {
    let columns = Term::stderr().size_checked().map_or(COLUMNS, |(_, columns)| columns.into());
    columns.saturating_sub(BAR + 2)
}

/// Seconds as minutes and seconds, `4:05`, or with hours, `1:04:05`.
fn minutes(seconds: u64) -> String {
    match seconds / 60 {
        minutes @ 0..60 => format!("{minutes}:{:02}", seconds % 60),
        minutes => format!("{}:{:02}:{:02}", minutes / 60, minutes % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal of 80 columns shows beside the bar and the space after it.
    const ROOM: usize = 80 - BAR - 2;

    #[test]
    fn figures_of_a_step_fit_80_columns() {
        let (bytes, tokens) = (Some(2048), 2048);
        let report = |step, loss| Report { step, loss, gradient_norm: 1.0, learning_rate: 1.0, bytes, tokens };
        let progress = |steps| Progress::new(0, steps, tokens);
        let line = fit(progress(400).figures(&report(400, 1.6866), 12_345.0), ROOM);
        assert_eq!(line, "step 400/400  loss 1.6866  2.433 bits/byte  12345 tokens/s  0:00 left");
        // The largest that flags allow, and figures that nobody hopes for.
        let most = u64::from(u32::MAX);
        let line = fit(progress(most).figures(&report(most, 123_456.7), 1e9), ROOM);
        assert!(line.chars().count() <= ROOM && line.contains("4294967295/4294967295"), "{line}");
    }

    #[test]
    fn times_have_hours_where_they_need_them() {
        assert_eq!([0, 65, 3599, 3600, 45_296].map(minutes), ["0:00", "1:05", "59:59", "1:00:00", "12:34:56"]);
    }
}
