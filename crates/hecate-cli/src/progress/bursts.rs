//! Progress of a spiking network.

use super::{Figure, PAUSE, Ticker, bar, beside_bar, fit, minutes, say};
use indicatif::ProgressBar;
use std::time::Instant;

/// A bar, or lines, of bursts.
pub(crate) struct Bursts {
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// Of the whole run.
    bursts: u64,
    /// When the first burst began.
    began: Instant,
    /// Lines where there is no bar.
    ticker: Ticker,
}

impl Bursts {
    /// Before the first of so many bursts.
    pub(crate) fn new(bursts: u64) -> Self {
        Self { bar: bar(bursts), bursts, began: Instant::now(), ticker: Ticker::new(PAUSE) }
    }

    /// After a burst, counted from 1; `spikes` so far.
    pub(crate) fn at(&self, burst: u64, spikes: u64) {
        let figures = || {
            // As long for each of the rest as for those before.
            let left = self.began.elapsed().as_secs_f64() / burst as f64 * self.bursts.saturating_sub(burst) as f64;
            vec![
                Figure(0, format!("burst {burst}/{}", self.bursts)),
                Figure(1, format!("{spikes} spikes")),
                Figure(0, format!("{} left", minutes(left.ceil() as u64))),
            ]
        };
        match &self.bar {
            // Bursts are short: most of them draw nothing.
            Some(bar) if self.bursts < 1000 || burst.is_multiple_of(self.bursts / 1000) => {
                bar.set_message(fit(figures(), beside_bar()));
                bar.set_position(burst);
            }
            None if self.ticker.due() => say(&fit(figures(), usize::MAX)),
            _ => {}
        }
    }
}

// After an error too, the message must not overwrite the bar.
impl Drop for Bursts {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
