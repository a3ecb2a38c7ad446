//! What kernels compute, on small and odd sizes, against equations in float64.

mod attention;
mod products;
mod quantized;
mod rows;

use crate::interpreter::{Argument, Device};
use hecate_ptx::Specification;

/// What f32 sums of some hundred elements may be off, relative to the root mean square of an array.
const F32: f64 = 1e-5;

/// Numbers between −1 and 1, the same for the same seed.
fn random(seed: u64, length: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// Puts an array of f32 on a device.
fn upload(device: &mut Device, values: &[f32]) -> Argument {
    device.input(values.iter().map(|value| value.to_le_bytes()))
}

/// Runs a specification's own launch; its output has `length` elements of f32.
fn run(specification: Specification, device: &mut Device, arguments: &[Argument]) {
    let (module, launch) = (specification.write().expect("a kernel"), specification.launch());
    assert_eq!(module.block(), launch.block);
    device.launch(&module, launch.grid, arguments).unwrap_or_else(|fault| panic!("{specification:?}: {fault}"));
}

/// Compares with float64: NaN and infinities are where they should be, and the largest difference of the others is at most
/// `tolerance` times the root mean square of the truth.
fn close(what: &str, found: &[f32], truth: &[f64], tolerance: f64) {
    assert_eq!(found.len(), truth.len(), "{what}");
    let finite: Vec<f64> = truth.iter().copied().filter(|value| value.is_finite()).collect();
    let scale = (finite.iter().map(|value| value * value).sum::<f64>() / finite.len().max(1) as f64).sqrt();
    for (at, (&found, &truth)) in found.iter().zip(truth).enumerate() {
        let same = if truth.is_finite() {
            (f64::from(found) - truth).abs() <= tolerance * scale
        } else {
            found.is_nan() == truth.is_nan() && (truth.is_nan() || f64::from(found) == truth)
        };
        assert!(same, "{what}: element {at} is {found}, and should be {truth}; the scale is {scale}");
    }
}
