//! How calls are computed: options of a device value.

use hecate_core::Algorithm;

/// How calls are computed (tests and measurements).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether fresh memory is filled with NaN.
    pub(crate) poisoned: bool,
    /// Whether matrix products keep to our own kernel.
    pub(crate) own_products: bool,
    /// Whether the kernels of a call go one after the other.
    pub(crate) in_turn: bool,
    /// How the linear rules go.
    pub(crate) algorithm: Algorithm,
}
