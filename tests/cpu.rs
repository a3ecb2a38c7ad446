//! The CPU column: every way in which it computes the linear rules, and the primitives.

use hecate_core::{
    DType, Kernel,
    rules::{Delta, Dgd, Hebbian, Titans},
};
use hecate_cpu::{Algorithm, Cpu};
use hecate_tests::{Case, Sizes, assert_close, case, oracle::Oracle};

hecate_tests::conformance! {
    [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(1), Algorithm::Chunk(16), Algorithm::Chunk(64)]
        .map(|algorithm| Cpu::new().with_algorithm(algorithm))
        .into()
}

/// This column is never skipped; a misspelt name of another would require nothing.
#[test]
fn required_names_are_known() {
    let _ = hecate_tests::require::required();
}

/// The table of `hecate check` has a line for everything, and passes.
#[test]
fn report() {
    let mut lines = 0;
    let cells = hecate_tests::report::check_all(&Cpu::new(), |_| lines += 1);
    assert_eq!(lines, cells.len());
    let failed: Vec<_> = cells.iter().filter(|cell| !cell.passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Blocks of columns of several vectors, of one, and of a part of one, alone and beside others: as the scan does them.
#[test]
fn wide_values() {
    fn agrees<R: Oracle>()
    where
        Cpu: Kernel<R>,
    {
        let scan = Cpu::new().with_algorithm(Algorithm::Scan);
        for rule in R::all() {
            for (tokens, value) in [(1, 150), (9, 150), (70, 64), (3, 16), (11, 83)] {
                let case = Case::new(rule, Sizes::new(4, tokens, 4, 7, value), 5);
                let run = |device: &Cpu| case.infer(device, DType::F32).expect("a valid call");
                let compared = case::compare_outputs(case.rule, &run(&scan), &run(&Cpu::new()));
                assert_close(&case, &compared);
            }
        }
    }
    agrees::<Hebbian>();
    agrees::<Delta>();
    agrees::<Titans>();
    agrees::<Dgd>();
}
