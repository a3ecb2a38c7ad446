//! The checks of primitives.
//!
//! They take several values of a backend and all cases of a primitive, and panic with the primitive, its options and
//! the slots that failed.

use crate::{
    Array, Comparison, FORWARD, assert_close, error,
    primitive_cases::{PrimitiveCase, Solution},
    require::say,
};
use hecate_core::{DType, Error, primitives::Primitives};

/// Results and gradients are those of the equations.
pub fn agrees<B: Primitives>(backends: &[B], cases: &[PrimitiveCase<B>]) {
    let backends = having(backends, cases);
    for case in cases {
        let truth = case.solve(DType::F32);
        for &backend in &backends {
            let what = describe(case, backend);
            let found = case.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (mut compared, grads) = case.compare(&truth, &found);
            compared.extend(grads);
            assert_close(&what, &compared);
        }
    }
}

/// Results and gradients are those of another backend, within the sum of what both may be off.
///
/// For sizes that the equations in 64 bits would take minutes for.
pub fn agrees_with<A: Primitives, B: Primitives>(
    reference: &A,
    known: &[PrimitiveCase<A>],
    backends: &[B],
    cases: &[PrimitiveCase<B>],
) {
    if backends.is_empty() {
        return;
    }
    for (known, case) in known.iter().zip(cases) {
        let truth = known.run(reference, DType::F32).unwrap_or_else(|error| panic!("{}: {error}", known.name));
        for backend in backends {
            let what = describe(case, backend);
            let found = case.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (mut compared, grads) = case.compare(&truth, &found);
            compared.extend(grads);
            // Both may be off by the limit, in opposite directions.
            compared.iter_mut().for_each(|comparison| comparison.limit *= 2.0);
            assert_close(&what, &compared);
        }
    }
}

/// The same call gives the same bits.
pub fn repeats<B: Primitives>(backends: &[B], cases: &[PrimitiveCase<B>]) {
    let backends = having(backends, cases);
    for case in cases {
        for &backend in &backends {
            let what = describe(case, backend);
            let run = || case.run(backend, DType::F32).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (a, b) = (run(), run());
            // Bits and not values: `0.0 == −0.0`, and NaN is not itself.
            let bits = |solution: &Solution| -> Vec<u64> {
                let arrays = solution.outputs.iter().chain(solution.grads.iter().flatten());
                arrays.flat_map(|array| array.values.iter().map(|x| x.to_bits())).collect()
            };
            assert_eq!(bits(&a), bits(&b), "{what}: differs when run again");
        }
    }
}

/// With 16-bit arguments, errors are at most twice what rounding arguments and results costs anyway.
pub fn rounding<B: Primitives>(backends: &[B], cases: &[PrimitiveCase<B>]) {
    let (dtype, backends) = (DType::Bf16, having(backends, cases));
    for case in cases {
        // The truth of the arguments as drawn, and of the same rounded: their distance is the cost.
        let (exact, rounded) = (case.solve(DType::F32), case.solve(dtype));
        for &backend in &backends {
            let what = format!("{} in {dtype}", describe(case, backend));
            let found = case.run(backend, dtype).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (outputs, grads) = case.compare(&exact, &found);
            // Results of 16 bits are rounded once more when they are stored.
            let stored = case.outputs.iter().map(|output| output.wide);
            let cost = costs(stored, exact.outputs.iter().zip(&rounded.outputs));
            let mut compared: Vec<Comparison> = outputs.into_iter().zip(cost).map(allow).collect();
            let stored = case.slots.iter().map(|slot| slot.wide);
            let cost = costs(stored, exact.grads.iter().flatten().zip(rounded.grads.iter().flatten()));
            // Where a primitive has no backward there are no gradients, and `zip` ends at once.
            compared.extend(grads.into_iter().zip(cost).map(allow));
            assert_close(&what, &compared);
        }
    }
}

/// The same of sizes that the equations in 64 bits would take minutes for: what rounding costs is what it costs `reference`,
/// which computes in 32 bits, to take and give elements of this type.
pub fn rounding_with<A: Primitives, B: Primitives>(
    reference: &A,
    known: &[PrimitiveCase<A>],
    backends: &[B],
    cases: &[PrimitiveCase<B>],
    dtype: DType,
) {
    if backends.is_empty() {
        return;
    }
    for (known, case) in known.iter().zip(cases) {
        let run = |dtype| known.run(reference, dtype).unwrap_or_else(|error| panic!("{}: {error}", known.name));
        let (exact, rounded) = (run(DType::F32), run(dtype));
        let (outputs, grads) = known.compare(&exact, &rounded);
        let costs: Vec<f64> = outputs.iter().chain(&grads).map(|comparison| comparison.error).collect();
        for backend in backends {
            let what = format!("{} in {dtype}", describe(case, backend));
            let found = case.run(backend, dtype).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (outputs, grads) = case.compare(&exact, &found);
            let compared: Vec<_> = outputs.into_iter().chain(grads).zip(costs.iter().copied()).map(allow).collect();
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

/// Twice the cost of rounding. Sums of 16-bit elements are kept at 32 bits, which costs something even where rounding does
/// not.
fn allow((comparison, cost): (Comparison, f64)) -> Comparison {
    Comparison { limit: FORWARD.max(2.0 * cost), ..comparison }
}

/// The values that have the primitive; the others say so, and refuse it by name.
fn having<'a, B: Primitives>(backends: &'a [B], cases: &[PrimitiveCase<B>]) -> Vec<&'a B> {
    let case = &cases[0];
    let (having, lacking): (Vec<_>, Vec<_>) = backends.iter().partition(|backend| case.lacking(backend).is_none());
    // Nothing else is tried in its place.
    for backend in &lacking {
        let refused = case.run(backend, DType::F32).map(drop);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{}: {refused:?}", describe(case, backend));
    }
    // Said once, whatever the number of values.
    if let Some(why) = lacking.first().and_then(|backend| case.lacking(backend)) {
        say(&format!("skipped: {}: {why}", case.name));
    }
    having
}

/// The call, for messages.
fn describe<B: Primitives>(case: &PrimitiveCase<B>, backend: &B) -> String {
    format!("{} {} on {backend:?}", case.name, case.options)
}

/// The equations' own gradients are those of central differences, so that the truth is one.
pub fn equations<B: Primitives>(_: &[B], cases: &[PrimitiveCase<B>]) {
    for case in cases {
        // No device takes part: this guards the oracle.
        let error = case.differences(3);
        assert!(error < 1e-6, "{} {}: {error:e}", case.name, case.options);
    }
}
