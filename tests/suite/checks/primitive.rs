//! The checks of primitives.

use crate::{Comparison, assert_close, error, problems::Problem};
use hecate_core::{Backend, DType};

/// Results and gradients are those of the equations.
pub fn primitive_agrees<B: Backend>(backends: &[B], problems: &[Problem<B>]) {
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

/// The same call gives the same bits.
pub fn primitive_repeats<B: Backend>(backends: &[B], problems: &[Problem<B>]) {
    for problem in problems {
        for backend in backends {
            let what = describe(problem, backend);
            let run = || problem.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (a, b) = (run(), run());
            let bits = |solution: &crate::problems::Solution| -> Vec<u64> {
                let arrays = solution.outputs.iter().chain(solution.grads.iter().flatten());
                arrays.flat_map(|array| array.values.iter().map(|x| x.to_bits())).collect()
            };
            assert_eq!(bits(&a), bits(&b), "{what}: differs when run again");
        }
    }
}

/// With 16-bit arguments, errors are at most twice what rounding arguments and results costs anyway.
pub fn primitive_rounding<B: Backend>(backends: &[B], problems: &[Problem<B>]) {
    let dtype = DType::Bf16;
    for problem in problems {
        let (exact, rounded) = (problem.solve(DType::F32), problem.solve(dtype));
        for backend in backends {
            let what = format!("{} in {dtype}", describe(problem, backend));
            let found = problem.run(backend, dtype).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (outputs, grads) = problem.compare(&exact, &found);
            let outputs =
                outputs.into_iter().zip(problem.outputs.iter().zip(exact.outputs.iter().zip(&rounded.outputs)));
            let mut compared: Vec<Comparison> =
                outputs.map(|(found, (output, (exact, rounded)))| allow(found, output.wide, exact, rounded)).collect();
            let slots = problem.slots.iter().zip(exact.grads.iter().flatten().zip(rounded.grads.iter().flatten()));
            // Where a primitive has no backward there are no gradients, and `zip` ends at once.
            compared.extend(
                grads
                    .into_iter()
                    .zip(slots)
                    .map(|(found, (slot, (exact, rounded)))| allow(found, slot.wide, exact, rounded)),
            );
            assert_close(&what, &compared);
        }
    }
}

fn allow(found: Comparison, wide: bool, exact: &crate::Array, rounded: &crate::Array) -> Comparison {
    let stored = if wide { rounded.clone() } else { rounded.rounded(DType::Bf16) };
    // Sums of 16-bit numbers are kept at 32 bits, which costs something even where rounding does not.
    Comparison { limit: (2.0 * error(&exact.values, &stored.values)).max(crate::FORWARD), ..found }
}

fn describe<B: Backend>(problem: &Problem<B>, backend: &B) -> String {
    format!("{} {} on {backend:?}", problem.name, problem.options)
}
