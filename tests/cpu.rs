//! The CPU column.

use hecate_cpu::{Algorithm, Cpu};

fn backends() -> Vec<Cpu> {
    vec![
        Cpu::new(),
        Cpu::new().with_algorithm(Algorithm::Scan),
        Cpu::new().with_algorithm(Algorithm::Chunk(1)),
        Cpu::new().with_algorithm(Algorithm::Chunk(16)),
        Cpu::new().with_algorithm(Algorithm::Chunk(64)),
    ]
}
use hecate_tests::rule_modules;
hecate_core::for_each_rule!(rule_modules);
