//! The CPU column: every way in which it computes the linear rules, and the primitives.

use hecate_cpu::{Algorithm, Cpu};

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
