//! Results and gradients are those of the equations.

use super::{SIZES, accepted, agrees, run};
use crate::{
    Array, Case, Comparison, Results, Sizes, assert_close,
    case::{compare_grads, compare_outputs},
    error,
    oracle::{Oracle, solve, solve_once},
};
use hecate_core::{DType, Error, Kernel, Slots};

/// Output and final state, with and without what a backward needs, over all options and [awkward sizes](super).
pub fn forward<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    each(backends, |backend, case, truth| {
        let kept = case.run(backend, DType::F32).map(|results| results.outputs);
        // A call that keeps nothing for a backward may take another way through the kernels.
        let outputs = [kept, case.infer(backend, DType::F32)];
        let compare = |found| compare_outputs(case.rule, &truth.outputs, &accepted(backend, case, found));
        outputs.into_iter().flat_map(compare).collect()
    });
}

/// Gradients of all inputs, gates and the initial state, given those of the output and the final state.
pub fn backward<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    each(backends, |backend, case, truth| compare_grads(case.rule, &truth.grads, &run(backend, case).grads));
}

/// Results and gradients with an anchor, over all options, of a batch, of packed sequences and of a call that is cut into
/// three. Where a memory forgets to zero whatever a caller says, an anchor is refused by name.
pub fn anchored<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        let batches = [Sizes::new(2, 7, 3, 5, 3), Sizes::new(1, 130, 2, 16, 9)].map(|sizes| Case::new(rule, sizes, 5));
        for case in batches.into_iter().chain([Case::packed(rule, &[9, 1, 70], 2, 5, 7, 6)]) {
            let Some(case) = case.clone().anchored(7) else {
                refuses_anchor(backends, case);
                continue;
            };
            agrees(backends, &case, "anchored");
            if rule.needs_anchor() {
                agrees(backends, &emptied(case), "columns of zeros");
            }
        }
    }
}

/// The case with a column of zeros in every matrix of its state and, another one, of its anchor: they have no direction to be
/// made longer in, and no length to give.
fn emptied<R: Oracle>(case: Case<R>) -> Case<R> {
    case.with(|slot, mut array| {
        let column = match slot {
            _ if R::Anchor::NAMES.contains(&slot) => 2,
            _ if R::State::NAMES.contains(&slot) => 1,
            _ => return array,
        };
        let columns = array.shape.last();
        array.values.iter_mut().skip(column).step_by(columns).for_each(|x| *x = 0.0);
        array
    })
}

/// An anchor that fits neither the rule nor its options.
/// The error names the option that is in the way: the anchor itself, or what is read.
fn refuses_anchor<R: Oracle, B: Kernel<R>>(backends: &[B], mut case: Case<R>) {
    case.dims.anchored = true;
    let anchor = R::Anchor::map(case.rule.anchor(&case.dims), |_, shape| Array::full(shape, 0.0));
    case.inputs.anchor = Some(anchor);
    for backend in backends {
        match case.run(backend, DType::F32) {
            Err(Error::Config { option: "anchor" | "read", .. }) => {}
            other => panic!("{case} with an anchor on {backend:?}: {other:?}"),
        }
    }
}

/// With 16-bit q, k, v and out, errors are at most twice what rounding these arguments and the results costs anyway.
/// One sequence of 37 tokens, with two heads, keys of 16 and values of 24.
pub fn rounding<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        rounding_of(backends, &Case::new(rule, Sizes::new(1, 37, 2, 16, 24), 3));
    }
}

/// The same of one case.
pub fn rounding_of<R: Oracle, B: Kernel<R>>(backends: &[B], case: &Case<R>) {
    let (exact, rounded) = (solve(case), solve(&stored_case(case)));
    for backend in backends {
        let found = case.run(backend, DType::Bf16).unwrap_or_else(|error| panic!("{case}: {error}"));
        let slots = exact.list().into_iter().zip(rounded.list()).zip(found.list());
        let compare = |(((slot, exact), (_, rounded)), (_, found)): (((_, &Array), (_, &Array)), (_, &Array))| {
            // The factor leaves room for rounding inside the backend, which may be as large as that of the arguments.
            let limit = 2.0 * error(&exact.values, &stored(slot, rounded).values);
            Comparison { slot, error: error(&exact.values, &found.values), limit }
        };
        let compared: Vec<Comparison> = slots.map(compare).collect();
        assert_close(&format!("{case} in bf16 on {backend:?}"), &compared);
    }
}

/// The case as it is where token arrays are 16 bits wide.
pub(crate) fn stored_case<R: Oracle>(case: &Case<R>) -> Case<R> {
    let mut rounded = case.clone().with(|slot, array| stored(slot, &array));
    rounded.grads.out = stored("out", &rounded.grads.out);
    rounded
}

/// What a slot holds where token arrays are 16 bits wide.
/// Gates and states stay in 32 bits: what is wrong in them grows from token to token.
pub(crate) fn stored(slot: &str, array: &Array) -> Array {
    if ["q", "k", "v", "out"].contains(&slot) { array.rounded(DType::Bf16) } else { array.clone() }
}

/// Solves every option at every size and compares every backend.
// The same seed for the same size in every check, so that `solve_once` solves each case once.
fn each<R: Oracle, B: Kernel<R>>(backends: &[B], compare: impl Fn(&B, &Case<R>, &Results<R>) -> Vec<Comparison>) {
    for rule in R::all() {
        for (seed, sizes) in SIZES.into_iter().enumerate() {
            let case = Case::new(rule, sizes, seed as u64);
            let truth = solve_once(&case, seed as u64);
            for backend in backends {
                assert_close(&format!("{case} on {backend:?}"), &compare(backend, &case, &truth));
            }
        }
    }
}
