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

/// Blocks of columns of several vectors, of one, and of a part of one, alone and beside others, chunks that are full and
/// that are not, one token and many: as the scan does them.
#[test]
fn wide_values() {
    fn agrees<R: Oracle>()
    where
        Cpu: Kernel<R>,
    {
        let scan = Cpu::new().with_algorithm(Algorithm::Scan);
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
    agrees::<Hebbian>();
    agrees::<Delta>();
    agrees::<Titans>();
    agrees::<Dgd>();
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
