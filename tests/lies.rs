//! Calls whose arguments, and rules whose answers, are lies, on every backend: errors or results, never a panic or somebody else's
//! memory. A checker of memory sees the latter on a GPU: `compute-sanitizer --tool memcheck` before this program.

use hecate_conformance::{
    checks::{bears_lying_rules, devices_apart::bears_lies},
    require::skip,
};
use hecate_core::{
    Backend, Result, Tensor,
    primitives::{LayerNormInputs, RmsNormInputs, RmsNormOptions, l2_norm, layer_norm, rms_norm},
};
use hecate_cpu::{Algorithm, Cpu};
use hecate_cuda::Cuda;
use hecate_wgpu::{Selection, Wgpu};

/// Rows up to where their squares end are normalised, and what is longer gives zeros, as the primitives say.
fn long_rows<B: Backend>(device: &B) {
    for (element, expected) in [(1e18, [0.5, 1.0, 1.0]), (1e20, [0.0; 3])] {
        let x = Tensor::from_f32(device, [1, 4], [1.0, -1.0, 1.0, -1.0].map(|sign: f32| sign * element).to_vec())
            .expect("a row");
        let row = |x| Tensor::from_f32(device, [4], vec![x; 4]).expect("a row");
        let (weight, bias) = (row(1.0), row(0.0));
        let rms = rms_norm(&RmsNormInputs { x: &x, weight: &weight, g: None }, RmsNormOptions::new(1e-6));
        let layer = layer_norm(&LayerNormInputs { x: &x, weight: &weight, bias: &bias }, 1e-6);
        let normed = [l2_norm(&x, 1e-6).expect("a norm").y, rms.expect("a norm").y, layer.expect("a norm").y];
        let found = normed.map(|y| y.to_f32().expect("a download")[0]);
        assert!(found.iter().zip(expected).all(|(x, y): (&f32, f32)| (x - y).abs() < 1e-5), "{element}: {found:?}");
    }
}

/// All lies on this device; where it did not open, that is said, and fails where `HECATE_REQUIRE` asks for it.
fn lie<B: Backend>(device: Result<B>) {
    match device {
        Ok(device) => {
            long_rows(&device);
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
