//! What calls cost in memory.

use hecate_core::{Dims, Rule};

/// An upper bound of what a backward costs, documented beside the engine that runs the rule.
pub trait Bill<R: Rule> {
    /// Bytes that a forward with its backward takes at most beside its arguments, for 32-bit inputs. Nothing in it is a
    /// state per token.
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize;
}
