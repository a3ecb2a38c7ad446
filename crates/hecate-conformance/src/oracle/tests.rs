//! The oracle's own gradients against central differences, and its segments against the whole.

use super::*;
use hecate_core::rules::*;

#[test]
fn gradients_are_those_of_central_differences() {
    macro_rules! rules {
        ($($rule:ident),*) => { $(for rule in <$rule>::all() {
            let batch = Case::new(rule, Sizes::new(1, 18, 2, 3, 4), 1);
            let packed = Case::packed(rule, &[3, 1, 8], 1, 4, 5, 2);
            for case in [batch, packed] {
                let error = solve_differences(&case, 2);
                // Far under what it is the truth for; differences lose most where gradients are ill-conditioned.
                let limit = 1e-6 * rule.limits().0 / FORWARD;
                assert!(error < limit, "{case}: {error:e}");
            }
        })* };
    }
    hecate_core::for_each_rule!(rules);
}

#[test]
fn segments_are_the_whole() {
    let case = Case::new(Titans::default(), Sizes::new(1, 21, 2, 4, 3), 5);
    let (whole, segments) = (solve(&case), solve_in_segments(&case, 8));
    for ((slot, whole), (_, segments)) in whole.list().into_iter().zip(segments.list()) {
        let error = crate::error(&whole.values, &segments.values);
        assert!(error < 1e-13, "{slot}: {error:e}");
    }
}

#[test]
fn an_operand_used_twice_counts_twice() {
    let leaf = Leaf { array: Array::new([2, 2], vec![1.0, 2.0, -3.0, 0.5]), tile: (2, 2) };
    let upstream = Array::new([2, 2], vec![1.0, -1.0, 2.0, 3.0]);
    let forward: &Forward = &|x| {
        let x = &x[0][0];
        vec![vec![x * x + x.t().dot(x) + x * x.t() + x.clone() - x.dot(x)]]
    };
    let error = differences(&[leaf], &[upstream], forward, 8);
    assert!(error < 1e-8, "{error:e}");
}
