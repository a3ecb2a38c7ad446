//! The CUDA column, on the first GPU.

use hecate_core::{DType, Kernel};
use hecate_cuda::Cuda;
use hecate_tests::{
    Case, assert_close,
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
    rule_module,
};
use std::sync::OnceLock;

/// What this column's modules run on.
type Gpu = Cuda;

/// The GPU under test, or nothing where there is none, which is said, and fails where `HECATE_REQUIRE` asks for it.
fn backends() -> Vec<Cuda> {
    static DEVICES: OnceLock<Vec<Cuda>> = OnceLock::new();
    let open = || match Cuda::new(0).and_then(|cuda| cuda.with_poisoned_memory()) {
        Ok(cuda) => vec![cuda],
        Err(error) => {
            hecate_tests::require::skip("cuda", &error.to_string());
            Vec::new()
        }
    };
    DEVICES.get_or_init(open).clone()
}

/// Results and gradients of a case are those of the equations.
fn agree<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    agree_on(backends(), case);
}

/// As [`agree`], on these devices.
fn agree_on<R: Oracle>(devices: Vec<Cuda>, case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    // Whoever has no device has said so.
    if devices.is_empty() {
        return;
    }
    let truth = solve(case);
    for device in devices {
        let found = case.run(&device, DType::F32).unwrap_or_else(|error| panic!("{case} on {device:?}: {error}"));
        let mut compared = compare_outputs(case.rule, &truth.outputs, &found.outputs);
        compared.extend(compare_grads(case.rule, &truth.grads, &found.grads));
        assert_close(&format!("{case} on {device:?}"), &compared);
    }
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

/// The linear rules, 64 tokens at once whatever the sizes.
mod chunk {
    use hecate_cuda::{Algorithm, Cuda};
    use hecate_tests::rule_module;

    fn backends() -> Vec<Cuda> {
        let chunked = |cuda: Cuda| cuda.with_algorithm(Algorithm::Chunk).expect("another stream");
        super::backends().into_iter().map(chunked).collect()
    }

    rule_module!(Hebbian);
    rule_module!(Delta);
    rule_module!(Titans);
    rule_module!(Dgd);
}

#[path = "columns/deep.rs"]
mod deep;

#[path = "cuda/decoding.rs"]
mod decoding;

#[path = "cuda/linear.rs"]
mod linear;

#[path = "cuda/recording.rs"]
mod recording;

#[path = "columns/slots.rs"]
mod slots;

#[path = "columns/sizes.rs"]
mod sizes;

/// Products by the column's own kernels, where there is a library for them.
#[test]
fn own_products() {
    for cuda in backends() {
        let own = cuda.with_own_products().unwrap();
        for dtype in [DType::F32, DType::Bf16] {
            sizes::compare(
                sizes::products_of(&own, dtype).unwrap(),
                sizes::products_of(&hecate_cpu::Cpu::new(), dtype).unwrap(),
            );
        }
    }
}

mod primitives {
    use hecate_tests::{for_each_primitive, primitive_modules};
    for_each_primitive!(primitive_modules);
}

/// Sizes of several tiles and parts, against the CPU column.
#[test]
fn large_primitives() {
    use hecate_tests::{checks::primitive::agrees_with, problems};
    let (cpu, backends) = (hecate_cpu::Cpu::new(), backends());
    agrees_with(&cpu, &problems::attention_in_tiles(), &backends, &problems::attention_in_tiles());
    agrees_with(&cpu, &problems::conv_in_parts(), &backends, &problems::conv_in_parts());
}
