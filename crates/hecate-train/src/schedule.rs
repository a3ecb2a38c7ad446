//! The learning rate over a run.

use hecate_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Linear warm-up to a peak, then half a cosine down to a floor (Loshchilov and Hutter, "SGDR").
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Highest learning rate.
    pub peak: f32,
    /// Learning rate of the last step.
    pub floor: f32,
    /// Steps of the warm-up; step `warmup` is the first at the peak.
    pub warmup: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl Schedule {
    /// Highest learning rate of a run that is told no other.
    pub const PEAK: f32 = 4e-3;
    /// Lowest learning rate over the highest, of such a run.
    pub const FLOOR: f32 = 0.1;
    /// Share of the steps in which the learning rate of such a run warms up.
    pub const WARMUP: f64 = 0.05;

    /// A run of so many steps, which is told nothing else.
    pub fn over(steps: u64) -> Self {
        // Rounded up, so that short runs warm up too.
        let warmup = (steps as f64 * Self::WARMUP).ceil() as u64;
        Self { peak: Self::PEAK, floor: Self::FLOOR * Self::PEAK, warmup, steps }
    }

    /// Learning rate of `step`, counted from 1. Beyond the last step it stays at the floor.
    pub fn rate(&self, step: u64) -> f32 {
        if step < self.warmup {
            return (f64::from(self.peak) * step as f64 / self.warmup as f64) as f32;
        }
        let falling = self.steps.saturating_sub(self.warmup).max(1);
        let progress = ((step - self.warmup) as f64 / falling as f64).min(1.0);
        let (peak, floor) = (f64::from(self.peak), f64::from(self.floor));
        (floor + (peak - floor) * 0.5 * (1.0 + (PI * progress).cos())) as f32
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn check(&self) -> Result<()> {
        if !(self.peak.is_finite() && self.peak > 0.0) {
            return Err(Error::config("learning rate", self.peak, "a finite number above 0"));
        }
        if !(0.0..=self.peak).contains(&self.floor) {
            let expected = format!("between 0 and the peak, {}", self.peak);
            return Err(Error::config("lowest learning rate", self.floor, expected));
        }
        if self.steps == 0 {
            return Err(Error::config("steps", 0, "at least 1"));
        }
        if self.warmup > self.steps {
            return Err(Error::config("warm-up", self.warmup, format!("at most the number of steps, {}", self.steps)));
        }
        Ok(())
    }
}
