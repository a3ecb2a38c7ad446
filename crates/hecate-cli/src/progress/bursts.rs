//! Progress of a spiking network.

use super::{Figure, Ticker, Watched, left};
use std::time::Duration;

/// Bursts are short: between looks at figures many go by.
const FRAME: Duration = Duration::from_millis(50);

/// A bar, or lines, of bursts.
pub(crate) struct Bursts {
    watched: Watched,
    /// When figures are looked at.
    frames: Ticker,
}

impl Bursts {
    /// Before the first of so many bursts.
    pub(crate) fn new(bursts: u64) -> Self {
        Self { watched: Watched::new(bursts), frames: Ticker::new(FRAME) }
    }

    /// After a burst, counted from 1; `spikes` so far.
    pub(crate) fn at(&self, burst: u64, spikes: u64) {
        let watched = &self.watched;
        if self.frames.due() {
            watched.at(burst, || {
                let place = format!("burst {burst}/{}", watched.total);
                vec![Figure(0, place), Figure(1, format!("{spikes} spikes")), left(watched.seconds_left(burst))]
            });
        }
    }
}
