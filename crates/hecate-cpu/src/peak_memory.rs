//! What calls cost in memory.

use hecate_core::{Dims, Rule};

/// The product of sizes; `usize::MAX` where it is larger.
pub(crate) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product: usize, &size| product.saturating_mul(size))
}

/// The sum of sizes; `usize::MAX` where it is larger.
pub(crate) fn sum(sizes: &[usize]) -> usize {
    sizes.iter().fold(0, |sum: usize, &size| sum.saturating_add(size))
}

/// An upper bound of the peak memory of a backward.
///
/// The formula stands beside the engine that runs the rule, term by term.
/// `F` is the rule's family, as of [`hecate_core::Kernel`].
pub trait PeakMemory<R: Rule, F = <R as Rule>::Family> {
    /// Bytes that a forward with its backward takes at most beside its arguments, for 32-bit inputs; `usize::MAX` where
    /// there are more.
    ///
    /// The bound holds for this device's number of threads: each has a workspace of its own.
    /// Nothing in it is a state per token.
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize;
}
