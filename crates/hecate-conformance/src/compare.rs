//! The one measure of error.

use std::fmt;

/// Limit of forward errors in 32 bits.
///
/// About 170 roundings of `2⁻²⁴`.
pub const FORWARD: f64 = 1e-5;
/// Limit of gradient errors in 32 bits.
///
/// Ten times [`FORWARD`]: gradients sum over all tokens what the forward's rounded results give.
pub const BACKWARD: f64 = 1e-4;

/// Root mean square of the difference over that of the truth; of the difference alone where the truth is zero. NaN
/// where either holds one.
///
/// # Panics
/// If the lengths differ.
pub fn error(truth: &[f64], found: &[f64]) -> f64 {
    assert_eq!(truth.len(), found.len(), "lengths of truth and result");
    // A NaN in the truth would vanish in `==`; a sum keeps it.
    let difference: f64 = truth.iter().zip(found).map(|(t, f)| (t - f) * (t - f)).sum();
    let scale: f64 = truth.iter().map(|t| t * t).sum();
    // The root mean square of the difference alone: divided by the count.
    let scale = if scale == 0.0 { truth.len().max(1) as f64 } else { scale };
    (difference / scale).sqrt()
}

/// Error of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Slot, gradients under the name of what they are gradients of.
    pub slot: &'static str,
    /// [`error`].
    pub error: f64,
    /// Largest error that passes.
    pub limit: f64,
}

impl Comparison {
    /// Whether the error is within its limit; NaN is not.
    pub fn passed(&self) -> bool {
        self.error <= self.limit
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.1e} (limit {:.1e})", self.slot, self.error, self.limit)
    }
}

/// Refuses errors over their limits.
///
/// # Panics
/// Naming the slots that failed, after `what` was compared.
pub fn assert_close(what: &dyn fmt::Display, comparisons: &[Comparison]) {
    assert!(!comparisons.is_empty(), "{what}: nothing was compared");
    let failed: Vec<String> = comparisons.iter().filter(|c| !c.passed()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{what}: {}", failed.join(", "));
}
