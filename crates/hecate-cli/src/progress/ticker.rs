//! When a line of progress is due where nobody sees a bar.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// The pause between lines grows with the time that has gone by: to this part of it.
const PART: u32 = 8;
/// The longest pause over the first.
const MOST: u32 = 12;

/// Says when a line is due: after a pause, which grows so that a long log stays readable.
#[derive(Debug)]
pub(crate) struct Ticker {
    began: Instant,
    /// The first pause.
    pause: Duration,
    /// Time of the next line, from the start.
    next: Cell<Duration>,
}

impl Ticker {
    /// The first line is due after this pause.
    pub(crate) fn new(pause: Duration) -> Self {
        Self { began: Instant::now(), pause, next: Cell::new(pause) }
    }

    /// Whether a line is due now, which counts as written then.
    pub(crate) fn due(&self) -> bool {
        self.due_at(self.began.elapsed())
    }

    /// Whether a line is due so long after the start.
    fn due_at(&self, now: Duration) -> bool {
        let due = now >= self.next.get();
        if due {
            self.next.set(now + (now / PART).clamp(self.pause, self.pause * MOST));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_every_few_seconds_and_then_less_often() {
        let ticker = Ticker::new(Duration::from_secs(5));
        // The clock is told: no test waits.
        let lines = |from: u64, to: u64| (from..to).filter(|&s| ticker.due_at(Duration::from_secs(s))).count();
        // None before the first pause is over, then one every five seconds.
        assert_eq!((lines(0, 5), lines(5, 40)), (0, 7));
        // An hour and more: one a minute.
        lines(40, 3600);
        assert_eq!(lines(3600, 7200), 60);
    }
}
