//! Asking a long computation to stop.

use crate::{Error, Result};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Operations that are queued before the first wait: a few layers' worth of a small model.
const FIRST: u32 = 16;
/// The most operations between two waits: several steps of a deep model, whose waits then cost nothing.
const MOST: u32 = 1 << 14;
/// What a device may have queued: whoever asks to stop waits for no more than this and one operation.
const LONGEST: Duration = Duration::from_millis(300);

/// A request to stop, which models see between two operations of a pass, forward and backward. Clones are one request.
///
/// Devices compute behind the program that queues their work. So that a request is not waited out there, models wait for
/// the device now and then: seldom where a pass is quick, often where it takes seconds.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Of the device that its models compute on.
    pace: Arc<Mutex<Pace>>,
}

impl Interrupt {
    /// The same request for models of another device, whose waits are counted apart: one device is quick where another is slow.
    pub fn apart(&self) -> Self {
        Self { asked: Arc::clone(&self.asked), pace: Arc::default() }
    }

    /// Asks to stop, from any thread; whether that was asked before.
    pub fn ask(&self) -> bool {
        self.asked.swap(true, Ordering::SeqCst)
    }

    /// Takes the request back; whether there was one.
    pub fn withdraw(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        // Read at every operation: nothing else is ordered by it.
        self.asked.load(Ordering::Relaxed)
    }

    /// Refuses to go on once somebody asked.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn check(&self) -> Result<()> {
        if self.asked() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// As [`Interrupt::check`] before an operation is queued on a device that `wait` waits for.
    ///
    /// # Errors
    /// [`Error::Stopped`], and those of `wait`.
    pub(crate) fn check_queued(&self, wait: impl FnOnce() -> hecate_core::Result<()>) -> Result<()> {
        self.check()?;
        if self.pace().queued() {
            let began = Instant::now();
            wait()?;
            self.pace().waited(began.elapsed());
            self.check()?;
        }
        Ok(())
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many operations are queued between two waits.
#[derive(Debug)]
struct Pace {
    queued: u32,
    between: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { queued: 0, between: FIRST }
    }
}

impl Pace {
    /// Another operation; whether to wait before it.
    fn queued(&mut self) -> bool {
        self.queued += 1;
        self.queued >= self.between
    }

    /// A wait took so long: fewer operations the next time where that was too much, more where it was little.
    fn waited(&mut self, took: Duration) {
        self.queued = 0;
        if took > LONGEST {
            let share = LONGEST.as_secs_f64() / took.as_secs_f64();
            self.between = ((f64::from(self.between) * share) as u32).max(1);
        } else if took < LONGEST / 4 {
            self.between = (self.between * 2).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of `operations`, of which a device takes so long for each.
    fn waits(pace: &mut Pace, operations: u32, each: Duration) -> Vec<Duration> {
        let (mut waits, mut behind) = (Vec::new(), Duration::ZERO);
        for _ in 0..operations {
            if pace.queued() {
                pace.waited(behind);
                waits.push(behind);
                behind = Duration::ZERO;
            }
            behind += each;
        }
        waits
    }

    #[test]
    fn quick_devices_are_hardly_waited_for() {
        let mut pace = Pace::default();
        // A hundred steps of 3 ms: 1,000 operations each.
        let waits = waits(&mut pace, 100_000, Duration::from_micros(3));
        assert!(waits.len() < 20 && *waits.last().unwrap() < LONGEST, "{waits:?}");
    }

    #[test]
    fn slow_devices_are_waited_for_often() {
        let mut pace = Pace::default();
        let slow = Duration::from_millis(20);
        assert!(waits(&mut pace, 1000, slow).iter().all(|&wait| wait < Duration::from_millis(700)));
        // Quick passes, then slow ones: one long wait, and no other.
        waits(&mut pace, 100_000, Duration::from_micros(3));
        let after = waits(&mut pace, 50_000, slow);
        assert!(after[1..].iter().all(|&wait| wait < Duration::from_millis(700)), "{after:?}");
        assert!(after.len() > 10);
    }

    #[test]
    fn whoever_asked_is_answered_before_and_behind_a_wait() {
        let interrupt = Interrupt::default();
        let asks = |interrupt: &Interrupt| {
            let asked = interrupt.clone();
            move || {
                asked.ask();
                Ok(())
            }
        };
        for _ in 1..FIRST {
            interrupt.check_queued(|| panic!("waited too early")).unwrap();
        }
        assert!(matches!(interrupt.check_queued(asks(&interrupt)), Err(Error::Stopped)));
        assert!(matches!(interrupt.check_queued(|| panic!("waited in vain")), Err(Error::Stopped)));
    }

    #[test]
    fn devices_have_one_request_and_waits_of_their_own() {
        let (first, other) = (Interrupt::default(), Interrupt::default().apart());
        let second = first.apart();
        for _ in 1..FIRST {
            first.check_queued(|| panic!("waited too early")).unwrap();
            second.check_queued(|| panic!("waited for what another has queued")).unwrap();
        }
        second.ask();
        assert!(first.asked() && !other.asked());
    }
}
