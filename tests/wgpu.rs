//! The WebGPU column, on the adapter that `HECATE_WGPU_ADAPTER` names, else on the best one.

use hecate_core::{DType, Kernel};
use hecate_tests::{
    Case, assert_close,
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
    rule_module,
};
use hecate_wgpu::{Selection, Wgpu};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

/// What this column's modules run on.
type Gpu = Wgpu;

/// The adapter under test, or nothing where there is none, which is said, and fails where `HECATE_REQUIRE` asks for it.
/// Every module has a device of its own, since software compiles one kernel of a device at a time; but some have kernels in
/// common, so that each is compiled once.
fn backends() -> Vec<Wgpu> {
    type Opened = Arc<OnceLock<Vec<Wgpu>>>;
    static DEVICES: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());
    let open = || match Wgpu::new(&Selection::Default) {
        Ok(wgpu) => vec![wgpu.with_poisoned_memory()],
        Err(error) => {
            hecate_tests::require::skip("wgpu", &error.to_string());
            Vec::new()
        }
    };
    // A test's thread has its path for a name.
    let thread = thread::current();
    let module = thread.name().and_then(|name| name.split("::").next()).unwrap_or_default();
    let device = match module {
        "dgd" | "hebbian" => "delta",
        "large_primitives" => "primitives",
        // A rule whose memory is a matrix has the kernels of its MLP.
        _ => module.trim_end_matches("_matrix"),
    };
    let opened = DEVICES.lock().unwrap_or_else(PoisonError::into_inner).entry(device.to_owned()).or_default().clone();
    opened.get_or_init(open).clone()
}

/// Results and gradients of a case are those of the equations.
fn agree<R: Oracle>(case: &Case<R>)
where
    Wgpu: Kernel<R>,
{
    agree_on(&backends(), case);
}

fn agree_on<R: Oracle>(backends: &[Wgpu], case: &Case<R>)
where
    Wgpu: Kernel<R>,
{
    // Whoever has no device has said so.
    if backends.is_empty() {
        return;
    }
    let truth = solve(case);
    for wgpu in backends {
        let found = case.run(wgpu, DType::F32).unwrap_or_else(|error| panic!("{case} on {wgpu:?}: {error}"));
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
rule_module!(TitansMlp);
rule_module!(Moneta);
rule_module!(MonetaMatrix);
rule_module!(Yaad);
rule_module!(YaadMatrix);
rule_module!(YaadMomentum);
rule_module!(Memora);
rule_module!(MemoraMatrix);
rule_module!(Lattice);
rule_module!(Trellis);
rule_module!(Atlas);

#[path = "wgpu/linear.rs"]
mod linear;

#[path = "wgpu/optional.rs"]
mod optional;

#[path = "columns/deep.rs"]
mod deep;

#[path = "columns/slots.rs"]
mod slots;
