//! Products of matrices.

use super::{F32, close, random, run, upload, wide};
use crate::interpreter::Device;
use hecate_ptx::{GemmNaive, Specification};

/// `C = A B` in float64.
fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let element = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
    (0..m * n).map(element).collect()
}

/// Runs a product of f32 arrays, and compares it with float64.
fn check(specification: Specification, [m, n, k]: [u32; 3], a: &[f32], b: &[f32]) {
    let mut device = Device::default();
    let c = device.output((m * n) as usize * 4);
    let (first, second) = (upload(&mut device, a), upload(&mut device, b));
    run(specification, &mut device, &[first, second, c, m.into(), n.into(), k.into()]);
    let truth = product(&wide(a), &wide(b), [m, n, k].map(|size| size as usize));
    close(&format!("{specification:?}"), &device.read(c, f32::from_le_bytes), &truth, F32);
}

/// Sizes around those of tiles, and some that share no factor with any.
const SIZES: [[u32; 3]; 7] =
    [[1, 1, 1], [16, 16, 16], [5, 40, 7], [17, 15, 33], [33, 65, 31], [64, 1, 100], [1, 70, 129]];

/// Products that a kernel for f32 does at all sizes, and with NaN and infinities.
fn products(specification: impl Fn([u32; 3]) -> Specification) {
    for sizes in SIZES {
        let [m, n, k] = sizes.map(|size| size as usize);
        let (mut a, mut b) = (random(1, m * k), random(2, k * n));
        check(specification(sizes), sizes, &a, &b);
        // The last element of a row or a column stands beside what is padded.
        a[m * k - 1] = f32::INFINITY;
        check(specification(sizes), sizes, &a, &b);
        b[k * n - 1] = f32::NAN;
        check(specification(sizes), sizes, &a, &b);
    }
}

#[test]
fn naive() {
    products(|[m, n, k]| GemmNaive::new(m, n, k).expect("sizes").into());
}
