//! How fast a run is now, from the times of its last steps.
//!
//! A mean over the whole run would carry the first step's compiling along: minutes after it, the speed would still read a
//! fraction of what it is.

use std::{collections::VecDeque, time::Duration};

/// Time over which the durations of steps are averaged.
const WINDOW: Duration = Duration::from_secs(10);

/// Durations of the steps that ended in the last ten seconds of learning. All times are since the run began.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Durations in the window, oldest first; never empty after a step.
    recent: VecDeque<Duration>,
    /// Sum of `recent`.
    sum: Duration,
    /// Steps since the run began.
    steps: u32,
    /// End of the last step.
    ended: Duration,
    /// Time between steps: measurements and checkpoints.
    between: Duration,
}

impl Pace {
    /// A step that went on from `began` to `ended`.
    pub(super) fn step(&mut self, began: Duration, ended: Duration) {
        if self.steps == 1 {
            // The first step compiles kernels: it tells nothing about those that follow.
            (self.recent, self.sum) = (VecDeque::new(), Duration::ZERO);
        }
        if self.steps > 0 {
            self.between += began.saturating_sub(self.ended);
        }
        let took = ended.saturating_sub(began);
        self.recent.push_back(took);
        self.sum += took;
        self.steps += 1;
        self.ended = ended;
        while self.sum > WINDOW && self.recent.len() > 1 {
            self.sum -= self.recent.pop_front().unwrap_or_default();
        }
    }

    /// Seconds a step, without what happens between steps; 0 before the first.
    pub(super) fn seconds_per_step(&self) -> f64 {
        self.sum.as_secs_f64() / self.recent.len().max(1) as f64
    }

    /// Seconds until `steps` more are done: at the pace of the window, and with as much time between steps as so far.
    pub(super) fn seconds_left(&self, steps: u64) -> f64 {
        let between = self.between.as_secs_f64() / f64::from(self.steps.max(1));
        (self.seconds_per_step() + between) * steps as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that moves when it is told to.
    #[derive(Default)]
    struct FakeClock(Duration);

    impl FakeClock {
        /// A step that takes so many milliseconds.
        fn step(&mut self, pace: &mut Pace, milliseconds: u64) {
            let began = self.0;
            self.pass(milliseconds);
            pace.step(began, self.0);
        }

        fn pass(&mut self, milliseconds: u64) {
            self.0 += Duration::from_millis(milliseconds);
        }
    }

    /// A step that compiles for twenty seconds is forgotten with the next one.
    #[test]
    fn the_first_step_counts_while_it_is_alone() {
        let (mut clock, mut pace) = (FakeClock::default(), Pace::default());
        clock.pass(3_000);
        clock.step(&mut pace, 20_000);
        assert_eq!(pace.seconds_per_step(), 20.0);
        assert_eq!(pace.seconds_left(2), 40.0);
        clock.step(&mut pace, 250);
        assert_eq!(pace.seconds_per_step(), 0.25);
        assert_eq!(pace.seconds_left(8), 2.0);
    }

    /// What is older than ten seconds of learning counts no more.
    #[test]
    fn steps_leave_the_window() {
        let (mut clock, mut pace) = (FakeClock::default(), Pace::default());
        (0..100).for_each(|_| clock.step(&mut pace, 500));
        assert_eq!(pace.seconds_per_step(), 0.5);
        // Ten seconds of faster steps leave nothing of the slower ones.
        (0..20).for_each(|_| clock.step(&mut pace, 250));
        assert!(pace.seconds_per_step() > 0.25 && pace.seconds_per_step() < 0.5);
        (0..20).for_each(|_| clock.step(&mut pace, 250));
        assert_eq!(pace.seconds_per_step(), 0.25);
        // A step longer than the window is all there is of it.
        clock.step(&mut pace, 30_000);
        assert_eq!(pace.seconds_per_step(), 30.0);
    }

    /// Measurements and checkpoints do not slow the steps, but they delay the end.
    #[test]
    fn time_between_steps_is_left_too() {
        let (mut clock, mut pace) = (FakeClock::default(), Pace::default());
        for _ in 0..4 {
            clock.step(&mut pace, 500);
            clock.pass(1_000);
        }
        // Three pauses of a second in four steps.
        assert_eq!(pace.seconds_per_step(), 0.5);
        assert_eq!(pace.seconds_left(4), 4.0 * (0.5 + 0.75));
    }
}
