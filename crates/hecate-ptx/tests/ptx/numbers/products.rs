//! Products of matrices.

use super::{F32, close, random, run, upload, wide};
use crate::interpreter::{
    Device,
    scalar::{f32_to_bf16, f32_to_half, half_to_f32},
};
use hecate_ptx::{GemmNaive, GemmTensorCore, GemmTiled, HalfType, Specification};

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

#[test]
fn tiled() {
    for tile in [32, 64, 128] {
        products(|[m, n, k]| GemmTiled::new(m, n, k, tile).expect("sizes").into());
    }
}

/// A type of 16 bits: from f32 and back, and half a unit of the last place, relative to a number.
struct HalfNumbers {
    half: HalfType,
    narrow: fn(f32) -> u16,
    wide: fn(u16) -> f32,
    rounding: f64,
}

const HALVES: [HalfNumbers; 2] = [
    HalfNumbers { half: HalfType::F16, narrow: f32_to_half, wide: half_to_f32, rounding: 1.0 / 2048.0 },
    HalfNumbers {
        half: HalfType::Bf16,
        narrow: f32_to_bf16,
        wide: |bits| f32::from_bits(u32::from(bits) << 16),
        rounding: 1.0 / 256.0,
    },
];

impl HalfNumbers {
    /// Runs a product, and compares it with float64: an element may be off by its rounding, and by an f32 sum's.
    fn check(&self, sizes: [u32; 3], a: &[f32], b: &[f32]) {
        let [m, n, k] = sizes.map(|size| size as usize);
        let specification: Specification =
            GemmTensorCore::new(self.half, sizes[0], sizes[1], sizes[2]).expect("sizes").into();
        let mut device = Device::default();
        let [first, second] = [a, b].map(|array| device.input(array.iter().map(|x| (self.narrow)(*x).to_le_bytes())));
        let c = device.output(m * n * 2);
        run(specification, &mut device, &[first, second, c, sizes[0].into(), sizes[1].into(), sizes[2].into()]);
        let rounded = |array: &[f32]| array.iter().map(|x| (self.wide)((self.narrow)(*x)).into()).collect::<Vec<f64>>();
        let truth = product(&rounded(a), &rounded(b), [m, n, k]);
        let found: Vec<f32> = device.read(c, u16::from_le_bytes).into_iter().map(self.wide).collect();
        // What is left after an element's own rounding is compared as sums of f32 are.
        let rest = found.iter().zip(&truth).map(|(&found, &truth)| {
            let (off, allowed) = (f64::from(found) - truth, truth.abs() * self.rounding);
            if truth.is_finite() { (truth + off.signum() * (off.abs() - allowed).max(0.0)) as f32 } else { found }
        });
        close(&format!("{specification:?}"), &rest.collect::<Vec<_>>(), &truth, F32);
    }
}

/// With whole chunks of 8 elements, and without; several tiles and slabs, and fewer slabs than are copied ahead.
#[test]
fn tensor_cores() {
    let sizes = [[1, 8, 8], [128, 128, 64], [130, 136, 104], [33, 264, 32], [1, 1, 1], [129, 130, 33], [5, 7, 70]];
    for (half, sizes) in HALVES.iter().flat_map(|half| sizes.map(|sizes| (half, sizes))) {
        let [m, n, k] = sizes.map(|size| size as usize);
        let (mut a, mut b) = (random(5, m * k), random(6, k * n));
        half.check(sizes, &a, &b);
        a[m * k - 1] = f32::INFINITY;
        half.check(sizes, &a, &b);
        b[k * n - 1] = f32::NAN;
        half.check(sizes, &a, &b);
    }
}
