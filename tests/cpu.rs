//! The CPU column: every way in which it computes the linear rules, and the primitives.

use hecate_conformance::{
    Case, Sizes, assert_close, case,
    checks::{self, agrees},
    every_cell_is_tested,
    oracle::Oracle,
    record::assert_recorded,
    require,
};
use hecate_core::{
    DType, Kernel, Read,
    rules::{Map, Memora, MlpMemory, Moneta},
};
use hecate_cpu::{Algorithm, Cpu};

mod channels;
#[path = "cpu/frozen.rs"]
mod frozen;
#[path = "cpu/neurons.rs"]
mod neurons;

hecate_conformance::conformance!(backends);

/// Every way in which the linear rules are computed.
fn backends() -> Vec<Cpu> {
    [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(1), Algorithm::Chunk(16), Algorithm::Chunk(64)]
        .map(|algorithm| Cpu::new().with_algorithm(algorithm).expect("chunks of at least a token"))
        .into()
}

#[test]
fn every_rule_and_primitive_is_tested() {
    every_cell_is_tested();
}

/// This column is never skipped; a misspelt name of another would require nothing.
#[test]
fn required_names_are_known() {
    let _ = require::required();
}

/// What docs/conformance.tsv says of this column is what comes out here.
#[test]
fn the_record_is_true() {
    assert_recorded(include_str!("../docs/conformance.tsv"), &Cpu::new());
}

/// Blocks of columns of several vectors, of one, and of a part of one, alone and beside others, chunks that are full and
/// that are not, one token and many: as the scan does them.
#[test]
fn wide_values() {
    fn as_the_scan<R: Oracle>()
    where
        Cpu: Kernel<R>,
    {
        let scan = Cpu::new().with_algorithm(Algorithm::Scan).expect("a form");
        for rule in R::all() {
            for (batch, tokens, value) in [(4, 1, 150), (4, 9, 150), (1, 70, 64), (1, 3, 16), (2, 66, 83), (1, 130, 33)]
            {
                let case = Case::new(rule, Sizes::new(batch, tokens, 4, 21, value), 5);
                let infer = |device: &Cpu| case.infer(device, DType::F32).expect("a valid call");
                let run = |device: &Cpu| case.run(device, DType::F32).expect("a valid call");
                let (truth, found) = (run(&scan), run(&Cpu::new()));
                let mut compared = case::compare_outputs(case.rule, &truth.outputs, &found.outputs);
                compared.extend(case::compare_grads(case.rule, &truth.grads, &found.grads));
                compared.extend(case::compare_outputs(case.rule, &truth.outputs, &infer(&Cpu::new())));
                assert_close(&case, &compared);
            }
        }
    }
    macro_rules! rules {
        ($($name:ident $rule:ident),*) => { $(as_the_scan::<hecate_core::rules::$rule>();)* };
    }
    hecate_core::for_each_linear_rule!(rules);
}

/// Powers of errors and of states that have no shortcut, with both maps; groups of other retentions than decay that read before
/// they write.
#[test]
fn any_powers_and_mapped_groups() {
    let sizes = [Sizes::new(2, 7, 3, 5, 3), Sizes::new(1, 40, 2, 16, 24)];
    for (read, frozen) in [(Read::After, None), (Read::Before, None), (Read::After, Some(5)), (Read::Before, Some(5))] {
        for map in [Map::Mirror, Map::Literal] {
            let rule = Moneta::<MlpMemory> { p: 2.5, q: 2.5, map, read, frozen, ..Moneta::default() };
            sizes.iter().for_each(|&sizes| agrees(&[Cpu::new()], &Case::new(rule, sizes, 3), "any powers"));
        }
        let rule = Memora::<MlpMemory> { read, frozen, ..Memora::default() };
        sizes.iter().for_each(|&sizes| agrees(&[Cpu::new()], &Case::new(rule, sizes, 3), "distributions"));
    }
}

#[test]
fn distributions_that_are_uneven_or_alike() {
    checks::uneven_distributions(&[Cpu::new()]);
    checks::normed_distributions(&[Cpu::new()]);
}

/// The same where vector instructions are forbidden.
#[test]
fn wide_values_without_vector_instructions() {
    let program = std::env::current_exe().expect("this program");
    let mut again = std::process::Command::new(program);
    let done = again.args(["--exact", "wide_values"]).env("HECATE_CPU_SIMD", "scalar").output().expect("a run of it");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
}
