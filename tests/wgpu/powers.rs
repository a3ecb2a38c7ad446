//! Powers of numbers far from one, where an exponent times a logarithm would lose digits.

use super::{Sizes, backends};
use hecate_conformance::{
    Case,
    case::{Results, compare_grads, compare_outputs},
    oracle::solve,
};
use hecate_core::{
    DType,
    rules::{Map, Moneta},
};
use hecate_cpu::Cpu;

/// The largest error of a slot; NaN is the largest of all.
fn worst(case: &Case<Moneta>, truth: &Results<Moneta>, found: &Results<Moneta>) -> f64 {
    let mut compared = compare_outputs(case.rule, &truth.outputs, &found.outputs);
    compared.extend(compare_grads(case.rule, &truth.grads, &found.grads));
    compared.iter().map(|one| one.error.abs()).max_by(f64::total_cmp).expect("a slot")
}

/// Small states under the literal map with q = 5 have ν⁻³ as a factor of every weight, which a step passes on to the next.
#[test]
fn of_small_states() {
    let rule = Moneta { q: 5.0, map: Map::Literal, p: 2.0, ..Moneta::default() };
    let gpus = backends();
    if gpus.is_empty() {
        return;
    }
    for seed in 100..106 {
        let case = Case::new(rule, Sizes::new(1, 24, 2, 16, 16), seed).with(|slot, mut array| {
            if !["q", "k", "v", "log_a", "theta"].contains(&slot) {
                array.values.iter_mut().for_each(|x| *x *= 0.05);
            }
            array
        });
        let truth = solve(&case);
        let cpu = worst(&case, &truth, &case.run(&Cpu::new(), DType::F32).unwrap());
        for gpu in &gpus {
            let found = worst(&case, &truth, &case.run(gpu, DType::F32).unwrap());
            // Rounding alone is up to 2.4e-6 here, as the library's own powers show.
            assert!(found <= 2.0 * cpu.max(1e-6), "seed {seed}: {found:e}, on the CPU {cpu:e}");
        }
    }
}
