//! The checks of primitives.

use crate::{
    Array, Comparison, FORWARD, assert_close, error,
    problems::{Problem, Solution},
};
use hecate_core::DType;
use hecate_core::primitives::Primitives;

/// Results and gradients are those of the equations.
pub fn agrees<B: Primitives>(backends: &[B], problems: &[Problem<B>]) {
    for problem in problems {
        let truth = problem.solve(DType::F32);
        for backend in backends {
            let what = describe(problem, backend);
            let found = problem.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (mut compared, grads) = problem.compare(&truth, &found);
            compared.extend(grads);
            assert_close(&what, &compared);
        }
    }
}

/// Results and gradients are those of another backend, within the sum of what both may be off.
pub fn agrees_with<A: Primitives, B: Primitives>(
    reference: &A,
    known: &[Problem<A>],
    backends: &[B],
    problems: &[Problem<B>],
) {
    if backends.is_empty() {
        return;
    }
    for (known, problem) in known.iter().zip(problems) {
        let truth = known.run(reference, DType::F32).unwrap_or_else(|error| panic!("{}: {error}", known.name));
        for backend in backends {
            let what = describe(problem, backend);
            let found = problem.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (mut compared, grads) = problem.compare(&truth, &found);
            compared.extend(grads);
            compared.iter_mut().for_each(|comparison| comparison.limit *= 2.0);
            assert_close(&what, &compared);
        }
    }
}

/// The same call gives the same bits.
pub fn repeats<B: Primitives>(backends: &[B], problems: &[Problem<B>]) {
    for problem in problems {
        for backend in backends {
            let what = describe(problem, backend);
            let run = || problem.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (a, b) = (run(), run());
            let bits = |solution: &Solution| -> Vec<u64> {
                let arrays = solution.outputs.iter().chain(solution.grads.iter().flatten());
                arrays.flat_map(|array| array.values.iter().map(|x| x.to_bits())).collect()
            };
            assert_eq!(bits(&a), bits(&b), "{what}: differs when run again");
        }
    }
}

/// With 16-bit arguments, errors are at most twice what rounding arguments and results costs anyway.
pub fn rounding<B: Primitives>(backends: &[B], problems: &[Problem<B>]) {
    let dtype = DType::Bf16;
    for problem in problems {
        let (exact, rounded) = (problem.solve(DType::F32), problem.solve(dtype));
        for backend in backends {
            let what = format!("{} in {dtype}", describe(problem, backend));
            let found = problem.run(backend, dtype).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (outputs, grads) = problem.compare(&exact, &found);
            let stored = problem.outputs.iter().map(|output| output.wide);
            let cost = costs(stored, exact.outputs.iter().zip(&rounded.outputs));
            let mut compared: Vec<Comparison> = outputs.into_iter().zip(cost).map(allow).collect();
            let stored = problem.slots.iter().map(|slot| slot.wide);
            let cost = costs(stored, exact.grads.iter().flatten().zip(rounded.grads.iter().flatten()));
            // Where a primitive has no backward there are no gradients, and `zip` ends at once.
            compared.extend(grads.into_iter().zip(cost).map(allow));
            assert_close(&what, &compared);
        }
    }
}

/// What it costs each slot that arguments are rounded, and the slot itself unless it is wide.
fn costs<'a>(wide: impl Iterator<Item = bool>, pairs: impl Iterator<Item = (&'a Array, &'a Array)>) -> Vec<f64> {
    let cost = |(wide, (exact, rounded)): (bool, (&Array, &Array))| match wide {
        true => error(&exact.values, &rounded.values),
        false => error(&exact.values, &rounded.rounded(DType::Bf16).values),
    };
    wide.zip(pairs).map(cost).collect()
}

/// Twice the cost of rounding. Sums of 16-bit numbers are kept at 32 bits, which costs something even where rounding does
/// not.
fn allow((comparison, cost): (Comparison, f64)) -> Comparison {
    Comparison { limit: FORWARD.max(2.0 * cost), ..comparison }
}

fn describe<B: Primitives>(problem: &Problem<B>, backend: &B) -> String {
    format!("{} {} on {backend:?}", problem.name, problem.options)
}

/// The equations' own gradients are those of central differences, so that the truth is one.
pub fn equations<B: Primitives>(_: &[B], problems: &[Problem<B>]) {
    for problem in problems {
        let error = problem.differences(3);
        assert!(error < 1e-6, "{} {}: {error:e}", problem.name, problem.options);
    }
}
