//! How calls are computed: options of a device value.

use hecate_core::Algorithm;
use std::env;

/// How calls are computed (tests and measurements).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether fresh memory is filled with NaN.
    pub(crate) poisoned: bool,
    /// Whether matrix products keep to our own kernel.
    pub(crate) own_products: bool,
    /// Whether products of two matrices are computed as the equation has them.
    pub(crate) naive_products: bool,
    /// Whether the kernels of a call go one after the other.
    pub(crate) in_turn: bool,
    /// Whether work is not captured as a graph.
    pub(crate) call_by_call: bool,
    /// How the linear rules go.
    pub(crate) algorithm: Algorithm,
}

impl Options {
    /// As the environment has them.
    pub(super) fn of_environment() -> Self {
        let call_by_call = env::var_os("HECATE_GRAPHS").is_some_and(|value| value == "off");
        Self { call_by_call, ..Self::default() }
    }
}
