//! The CPU column: every way in which it computes the linear rules, and the primitives.

use hecate_cpu::{Algorithm, Cpu};

hecate_tests::conformance! {
    [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(1), Algorithm::Chunk(16), Algorithm::Chunk(64)]
        .map(|algorithm| Cpu::new().with_algorithm(algorithm))
        .into()
}
