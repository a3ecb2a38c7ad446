//! The WebGPU column, on the adapter that `HECATE_WGPU_ADAPTER` names, else on the best one.

use hecate_conformance::Sizes;
use hecate_wgpu::{Selection, Wgpu};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

/// What this column's modules run on.
type Gpu = Wgpu;

hecate_conformance::conformance!(backends);

/// The adapter under test, or nothing where there is none.
/// Every module has a device of its own, since software compiles one kernel of a device at a time; but some have kernels in
/// common, so that each is compiled once.
fn backends() -> Vec<Wgpu> {
    type Opened = Arc<OnceLock<Vec<Wgpu>>>;
    static DEVICES: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());
    let open = || gpu::opened(Wgpu::new(&Selection::Default).map(|wgpu| wgpu.with_poisoned_memory()));
    // A test's thread has its path for a name.
    let thread = thread::current();
    let mut path = thread.name().unwrap_or_default().split("::").filter(|part| *part != "gpu");
    let module = path.next().unwrap_or_default();
    let device = match module {
        "dgd" | "hebbian" => "delta",
        "large_primitives" => "primitives",
        // A rule whose memory is a matrix has the kernels of its MLP.
        _ => module.trim_end_matches("_matrix"),
    };
    let opened = DEVICES.lock().unwrap_or_else(PoisonError::into_inner).entry(device.to_owned()).or_default().clone();
    opened.get_or_init(open).clone()
}

/// Another queue of the adapter under test.
fn another() -> Wgpu {
    Wgpu::new(&Selection::Default).expect("a queue of an adapter that was there a moment ago")
}

/// The linear rules have one algorithm here.
fn linear_backends() -> Vec<Wgpu> {
    backends()
}

/// Columns of one and several invocations, whole and not; keys and values of multiples of four elements and of others;
/// more columns than a workgroup has.
const LINEAR_SIZES: [Sizes; 5] = [
    Sizes::new(1, 20, 2, 17, 33),
    Sizes::new(1, 80, 1, 65, 21),
    Sizes::new(1, 12, 1, 128, 40),
    Sizes::new(1, 11, 2, 300, 9),
    Sizes::new(2, 130, 2, 70, 33),
];

mod gpu;

#[path = "wgpu/cooperative.rs"]
mod cooperative;

#[path = "wgpu/cooperative_groups.rs"]
mod cooperative_groups;

#[path = "wgpu/frozen.rs"]
mod frozen;

#[path = "wgpu/images.rs"]
mod images;

#[path = "wgpu/linear.rs"]
mod linear;

#[path = "wgpu/optional.rs"]
mod optional;

#[path = "wgpu/powers.rs"]
mod powers;

/// Sizes of several tiles and parts, against the CPU column.
#[test]
fn large_primitives() {
    use hecate_conformance::{checks::primitive::agrees_with, primitive_cases};
    let (cpu, backends) = (hecate_cpu::Cpu::new(), backends());
    agrees_with(&cpu, &primitive_cases::matmul_in_tiles(), &backends, &primitive_cases::matmul_in_tiles());
    agrees_with(&cpu, &primitive_cases::attention_in_tiles(), &backends, &primitive_cases::attention_in_tiles());
    agrees_with(&cpu, &primitive_cases::conv_in_parts(), &backends, &primitive_cases::conv_in_parts());
}
