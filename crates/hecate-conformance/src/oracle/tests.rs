//! The oracle's own gradients against central differences, and its segments against the whole.

use super::*;
use hecate_core::rules::*;

/// The oracle is the truth for every backend, and so its backward is held to its own forward alone.
/// Two elements of each argument are drawn by chance, and each takes four forward passes.
#[test]
fn gradients_are_those_of_central_differences() {
    macro_rules! rules {
        ($($rule:ident),*) => { $(for rule in <$rule>::all().into_iter().filter(|rule| rule.differentiable()) {
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

/// 21 tokens in segments of 8, the last of 5: gradients travel back over the borders.
#[test]
fn segments_are_the_whole() {
    let case = Case::new(Titans::default(), Sizes::new(1, 21, 2, 4, 3), 5);
    let (whole, segments) = (solve(&case), solve_in_segments(&case, 8));
    for ((slot, whole), (_, segments)) in whole.list().into_iter().zip(segments.list()) {
        let error = crate::error(&whole.values, &segments.values);
        // Both are in 64 bits, and only the order of sums differs.
        assert!(error < 1e-13, "{slot}: {error:e}");
    }
}

/// `x` is a factor, a transposed factor and a term at once: its gradient is the sum over all its places.
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

/// Largest state or output, over that of the start, of texts whose gates somebody chose to make it grow: cycles of four gates
/// drawn from the ends of their ranges, over keys of length 1 on a line, with nothing to write.
/// A search by chance with a fixed seed: 150 cycles, each over 240 tokens of one head of width 1.
fn worst_growth(momentum: MomentumForm) -> f64 {
    let rule = Titans { momentum, ..Titans::default() };
    let random = &mut crate::Random::new(3);
    let growth = (0..150).map(|seed| {
        let cycle: Vec<[f64; 3]> = (0..4)
            .map(|_| {
                let eta = [0.0, 0.5, 0.9, 0.999][random.below(4)];
                // The ball's steps are small where it is carried on, as layers make them; the other's need not be.
                let (a, share) = ([1.0, 0.9][random.below(2)], [0.0, 0.5, 1.0][random.below(3)]);
                let theta = if momentum == MomentumForm::HeavyBall { (1.0 - eta) * share } else { (1.0 + a) * share };
                [a, eta, theta]
            })
            .collect();
        let case = Case::new(rule, Sizes::new(1, 240, 1, 1, 1), seed).with(|slot, mut array| {
            let gate = ["log_a", "log_eta", "theta"].iter().position(|name| *name == slot);
            for (t, x) in array.values.iter_mut().enumerate() {
                *x = match gate {
                    Some(2) => cycle[t % 4][2],
                    Some(gate) => cycle[t % 4][gate].ln(),
                    None if slot == "v" => 0.0,
                    None => x.signum(),
                };
            }
            array
        });
        // `M = S = ±1` before: `N` is at most 2, and so is all that is a mean of it.
        let results = solve(&case);
        let outputs = results.outputs.list();
        outputs.iter().flat_map(|(_, x)| x.values.iter()).fold(0.0f64, |most, x| most.max(x.abs())) / 2.0
    });
    growth.fold(0.0, f64::max)
}

/// Layers learn their gates, and a text can drive them anywhere in their ranges.
#[test]
fn momentum_that_looks_ahead_is_bounded_whatever_the_gates() {
    let (ball, ahead) = (worst_growth(MomentumForm::HeavyBall), worst_growth(MomentumForm::LookAhead));
    // `S = N − M`: a difference of two that are bounded by 2 each.
    assert!(ahead <= 2.0 + 1e-12, "{ahead}");
    // The same search finds gates by which the other grows.
    assert!(ball > 1e6, "{ball}");
}
