//! The WebGPU column, on the adapter that `HECATE_WGPU_ADAPTER` names, else on the best one.

use hecate_core::{DType, Kernel};
use hecate_tests::{
    Case, assert_close,
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
    rule_module,
};
use hecate_wgpu::{Selection, Wgpu};
use std::sync::OnceLock;

/// The adapter under test, or nothing where there is none, which is said, and fails where `HECATE_REQUIRE` asks for it.
fn backends() -> Vec<Wgpu> {
    static DEVICES: OnceLock<Vec<Wgpu>> = OnceLock::new();
    let open = || match Wgpu::new(&Selection::Default) {
        Ok(wgpu) => vec![wgpu.with_poisoned_memory()],
        Err(error) => {
            hecate_tests::require::skip("wgpu", &error.to_string());
            Vec::new()
        }
    };
    DEVICES.get_or_init(open).clone()
}

/// Results and gradients of a case are those of the equations.
fn agree<R: Oracle>(case: &Case<R>)
where
    Wgpu: Kernel<R>,
{
    let backends = backends();
    // Whoever has no device has said so.
    if backends.is_empty() {
        return;
    }
    let truth = solve(case);
    for wgpu in backends {
        let found = case.run(&wgpu, DType::F32).unwrap_or_else(|error| panic!("{case} on {wgpu:?}: {error}"));
        let mut compared = compare_outputs(case.rule, &truth.outputs, &found.outputs);
        compared.extend(compare_grads(case.rule, &truth.grads, &found.grads));
        assert_close(&format!("{case} on {wgpu:?}"), &compared);
    }
}

mod primitives {
    use hecate_tests::{for_each_primitive, primitive_modules};
    for_each_primitive!(primitive_modules);
}

#[path = "columns/sizes.rs"]
mod sizes;

/// Sizes of several tiles and parts, against the CPU column.
#[test]
fn large_primitives() {
    use hecate_tests::{checks::primitive::agrees_with, problems};
    let (cpu, backends) = (hecate_cpu::Cpu::new(), backends());
    agrees_with(&cpu, &problems::matmul_in_tiles(), &backends, &problems::matmul_in_tiles());
    agrees_with(&cpu, &problems::attention_in_tiles(), &backends, &problems::attention_in_tiles());
    agrees_with(&cpu, &problems::conv_in_parts(), &backends, &problems::conv_in_parts());
}

rule_module!(Hebbian);
rule_module!(Delta);
rule_module!(Titans);
rule_module!(Dgd);

#[path = "wgpu/linear.rs"]
mod linear;
