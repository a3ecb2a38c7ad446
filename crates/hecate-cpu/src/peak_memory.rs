//! What calls cost in memory.

use hecate_core::{Dims, Rule};

/// An upper bound of the peak memory of a backward.
///
/// The formula stands beside the engine that runs the rule, term by term.
/// `F` is the rule's family, as of [`hecate_core::Kernel`].
pub trait PeakMemory<R: Rule, F = <R as Rule>::Family> {
    /// Bytes that a forward with its backward takes at most beside its arguments, for 32-bit inputs.
    ///
    /// The bound holds for this device's number of threads: each has a workspace of its own.
    /// Nothing in it is a state per token.
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize;
}
