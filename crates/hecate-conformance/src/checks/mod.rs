//! What every cell must pass, as functions generic over rule and backend.
//!
//! Each takes several values of a backend, for example one an algorithm, and holds all of them to the same truth. They
//! panic with the rule, its options, the sizes and the slots that failed.

pub mod buffers;
mod channels;
pub mod devices_apart;
mod distributions;
mod equations;
mod limits;
mod lying_rules;
pub mod primitive;
mod refusals;
mod sequences;

pub use channels::{
    equal_channels_are_the_delta_rule, forgotten_channels, later_gates_leave_earlier_tokens, lengths_around_chunks,
};
pub use distributions::{normed_distributions, uneven_distributions};
pub use equations::{anchored, backward, forward, rounding, rounding_of};
pub(crate) use equations::{stored, stored_case};
pub(crate) use limits::lean;
pub use limits::{anchors_next_to_one, correlated_keys, fresh_memory, gates_at_limits, nan_is_seen};
pub use lying_rules::bears_lying_rules;
pub use refusals::{refuses_grads, refuses_inputs};
pub use sequences::{cut_is_whole, packed_is_separate, repeats, token_by_token};

use crate::{
    Case, Comparison, Results, Sizes, assert_close,
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
};
use hecate_core::{DType, Kernel, Result, Rule};

/// Awkward sizes: one token, one head; `K < V` and odd; longer than two chunks of 64; exactly a chunk; wide values.
pub(crate) const SIZES: [Sizes; 5] = [
    Sizes::new(3, 1, 1, 3, 5),
    Sizes::new(2, 7, 3, 5, 3),
    Sizes::new(1, 130, 2, 16, 9),
    Sizes::new(1, 64, 1, 64, 64),
    Sizes::new(1, 19, 1, 8, 150),
];

/// Results and gradients of one case are those of the equations; `what` describes the case beside its sizes.
///
/// # Panics
/// Naming the slots over their limits; where the backend refuses the case.
pub fn agrees<R: Oracle, B: Kernel<R>>(backends: &[B], case: &Case<R>, what: &str) {
    // The equations take longer than most kernels.
    if backends.is_empty() {
        return;
    }
    let truth = solve(case);
    for backend in backends {
        assert_close(&format!("{case}, {what}, on {backend:?}"), &compared(backend, case, &truth));
    }
}

/// Errors of all results and gradients.
fn compared<R: Oracle, B: Kernel<R>>(backend: &B, case: &Case<R>, truth: &Results<R>) -> Vec<Comparison> {
    let found = run(backend, case);
    let mut compared = compare_outputs(case.rule, &truth.outputs, &found.outputs);
    compared.extend(compare_grads(case.rule, &truth.grads, &found.grads));
    compared
}

/// Forward and backward of a call that is right.
fn run<R: Rule, B: Kernel<R>>(backend: &B, case: &Case<R>) -> Results<R> {
    accepted(backend, case, case.run(backend, DType::F32))
}

/// The result of a call that nothing is wrong with.
fn accepted<R: Rule, B: Kernel<R>, T>(backend: &B, case: &Case<R>, result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{case} on {backend:?}: {error}"))
}
