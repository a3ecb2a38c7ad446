//! Random damage of files and random sizes of calls: the answer is a value or an error, never a panic or an abort.
//!
//! `HECATE_FUZZ` is the number of cases of each property; the draws are the same on every machine.

mod complete;
mod conversations;
mod damage;
mod direct;
mod files;
mod kept;
mod layers;
mod models;
mod primitives;
mod released;
mod sizes;
mod texts;
mod tokenizers;
mod weights;
mod words;

use hecate_cpu::Cpu;
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::LazyLock,
};

/// Cases of a property unless `HECATE_FUZZ` says how many.
const CASES: u32 = 256;

/// The one device of these tests.
fn device() -> Cpu {
    static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::new);
    CPU.clone()
}

/// Holds `property` against `share` per cent of the cases.
#[track_caller]
fn hold<S: Strategy>(share: u32, draws: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    let asked = std::env::var("HECATE_FUZZ").map(|cases| cases.parse().expect("HECATE_FUZZ is a number of cases"));
    let cases = (asked.unwrap_or(CASES).saturating_mul(share) / 100).max(1);
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[24; 32]);
    TestRunner::new_with_rng(config, random).run(draws, property).unwrap_or_else(|failure| panic!("{failure}"));
}

/// What `work` gives; a panic in it fails the case.
fn sound<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, TestCaseError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|cause| {
        let told = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
        TestCaseError::fail(format!("{what} panicked: {}", told.unwrap_or("without a word")))
    })
}

/// The panic of a broken property is what these tests stand on.
#[test]
fn a_panic_fails_the_case() {
    let told = sound("a call", || -> u8 { panic!("on purpose") }).expect_err("a failure").to_string();
    assert!(told.contains("a call panicked: on purpose"), "{told}");
}
