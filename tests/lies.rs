//! Calls whose arguments, and rules whose answers, are lies, on every backend: errors or results, never a panic or somebody else's
//! memory. A checker of memory sees the latter on a GPU: `compute-sanitizer --tool memcheck` before this program.

use hecate_conformance::{
    checks::{bears_lying_rules, devices_apart::bears_lies},
    require::skip,
};
use hecate_core::{Backend, Result};
use hecate_cpu::{Algorithm, Cpu};
use hecate_cuda::Cuda;
use hecate_wgpu::{Selection, Wgpu};

/// All lies on this device; where it did not open, that is said, and fails where `HECATE_REQUIRE` asks for it.
fn lie<B: Backend>(device: Result<B>) {
    match device {
        Ok(device) => {
            bears_lies(&device);
            bears_lying_rules(&device);
        }
        Err(error) => skip(B::NAME, &error.to_string()),
    }
}

#[test]
fn cpu() {
    lie(Ok(Cpu::new()));
    for algorithm in [Algorithm::Scan, Algorithm::Chunk(16)] {
        bears_lying_rules(&Cpu::new().with_algorithm(algorithm).expect("a form"));
    }
}

#[test]
fn cuda() {
    lie(Cuda::new(0));
    // And in chunks whatever the sizes.
    if let Ok(device) = Cuda::new(0) {
        bears_lying_rules(&device.with_algorithm(Algorithm::Chunk(64)).expect("a stream"));
    }
}

#[test]
fn wgpu() {
    lie(Wgpu::new(&Selection::Default));
}
