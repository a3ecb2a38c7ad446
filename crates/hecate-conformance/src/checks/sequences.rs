//! However tokens are brought to the memory, it is the same memory.

use super::{accepted, run};
use crate::{
    Array, Case, Comparison, Results, Sizes, assert_close,
    blockwise::{copy, in_segments},
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
};
use hecate_core::{DType, Kernel, Of, Outputs, Slots};

/// A sequence cut into calls that hand the state on (and back, its gradient) equals one call. Frozen groups are cut at
/// multiples of their length.
/// 96 tokens: without groups in calls of 1, 29, 65 and 1.
pub fn cut_is_whole<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        let case = Case::new(rule, Sizes::new(2, 96, 2, 12, 7), 5);
        let truth = solve(&case);
        // One token alone, parts that no chunk divides, and a last token alone.
        let mut cuts = rule.group().map_or(vec![0, 1, 30, 95, 96], |group| vec![0, group, 95 / group * group, 96]);
        // A group of more than 47 tokens makes two cuts the same.
        cuts.dedup();
        for backend in backends {
            // States come of the call that keeps nothing, as in generation; gradients of the one that does.
            let infer = |segment: &Case<R>| accepted(backend, segment, segment.infer(backend, DType::F32));
            let found = in_segments(&case, &cuts, infer, |segment| run(backend, segment));
            let mut compared = compare_outputs(case.rule, &truth.outputs, &found.outputs);
            compared.extend(compare_grads(case.rule, &truth.grads, &found.grads));
            assert_close(&format!("{case} cut at {cuts:?} on {backend:?}"), &compared);
        }
    }
}

/// Sequences of different length in one call equal one call each, and the equations.
pub fn packed_is_separate<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    // Shorter and longer than a chunk of 64, one token, and starts that nothing divides.
    let lengths = [5, 1, 70, 17];
    for rule in R::all() {
        let case = Case::packed(rule, &lengths, 2, 7, 10, 11);
        let truth = solve(&case);
        for backend in backends {
            let packed = run(backend, &case);
            let inferred = accepted(backend, &case, case.infer(backend, DType::F32));
            let mut compared = compare_outputs(case.rule, &truth.outputs, &packed.outputs);
            compared.extend(compare_outputs(case.rule, &truth.outputs, &inferred));
            compared.extend(compare_grads(case.rule, &truth.grads, &packed.grads));
            compared.extend(separate(backend, &case, &packed));
            assert_close(&format!("{case} on {backend:?}"), &compared);
        }
    }
}

/// Each sequence by itself against its part of the packed call: outputs and states at the limits of the truth.
fn separate<R: Oracle, B: Kernel<R>>(backend: &B, case: &Case<R>, packed: &Results<R>) -> Vec<Comparison> {
    let sequence = |n: usize, rows: std::ops::Range<usize>| {
        let states =
            |state: &Of<R::State, Array>| R::State::map(R::State::as_ref(state), |_, x: &Array| x.cut(0, n..n + 1));
        // Axis 0 of states is the sequence.
        let alone = case.cut(rows.clone(), &states(&case.inputs.state), &states(&case.grads.state));
        let found = run(backend, &alone);
        let outputs = Outputs { out: packed.outputs.out.cut(1, rows), state: states(&packed.outputs.state) };
        compare_outputs(case.rule, &found.outputs, &outputs)
    };
    case.dims.sequences.ranges().enumerate().flat_map(|(n, rows)| sequence(n, rows)).collect()
}

/// Decoding: one token a call, the state handed on, equals all at once.
/// 67 tokens are more than a chunk of 64, so that all at once goes another way than one by one.
pub fn token_by_token<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    // Groups count from a call's first token, so one token a call would be another function.
    for rule in R::all().into_iter().filter(|rule| rule.group().is_none()) {
        let case = Case::new(rule, Sizes::new(2, 67, 2, 9, 13), 13);
        let truth = solve(&case);
        for backend in backends {
            let mut state = copy::<R::State>(&case.inputs.state);
            let mut outs = Vec::new();
            for t in 0..case.dims.tokens {
                // The gradient of the state is part of a case but not asked for here.
                let token = case.cut(t..t + 1, &state, &case.grads.state);
                let outputs = accepted(backend, &token, token.infer(backend, DType::F32));
                state = outputs.state;
                outs.push(outputs.out);
            }
            let outputs = Outputs { out: Array::join(&outs, 1), state };
            assert_close(
                &format!("{case} by tokens on {backend:?}"),
                &compare_outputs(case.rule, &truth.outputs, &outputs),
            );
        }
    }
}

/// The same call gives the same bits, whatever ran in between, and no element is left unwritten or not finite.
pub fn repeats<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        let case = Case::new(rule, Sizes::new(2, 75, 3, 10, 21), 17);
        let other = case.clone().with(|_, array| Array::full(array.shape.clone(), f64::NAN));
        for backend in backends {
            let first = run(backend, &case);
            // Leaves NaN in whatever memory is used again; the call itself may be refused.
            let _ = other.run(backend, DType::F32);
            let second = run(backend, &case);
            for ((slot, a), (_, b)) in first.list().into_iter().zip(second.list()) {
                assert_eq!(bits(a), bits(b), "{case} on {backend:?}: `{slot}` differs when run again");
                assert!(a.values.iter().all(|x| x.is_finite()), "{case} on {backend:?}: `{slot}` is not finite");
            }
        }
    }
}

/// NaN and the sign of zero included.
fn bits(array: &Array) -> Vec<u64> {
    array.values.iter().map(|x| x.to_bits()).collect()
}
