//! Products of f16 by cooperative matrices, which an adapter may have: against sums in 64 bits, and the general form.

use super::Gpu;
use hecate_conformance::{Array, Random, require::skip};
use hecate_core::{
    DType, f16,
    primitives::{Transpose, cast, matmul},
};
use hecate_wgpu::{CooperativeMatrices, Selection};

/// A device that uses them, where the adapter under test has some.
pub(super) fn opened() -> Option<(Gpu, CooperativeMatrices)> {
    match Gpu::cooperative(&Selection::Default) {
        Ok(gpu) => {
            let matrices = gpu.adapter().cooperative_matrices.expect("it was opened with them");
            Some((gpu.with_poisoned_memory(), matrices))
        }
        Err(error) => {
            skip("matrices", &error.to_string());
            None
        }
    }
}

/// Batch, rows, terms and columns in matrices: both sizes of tiles, several of them, long sums in parts; and rests.
const SIZES: [[usize; 4]; 5] = [[1, 8, 3, 16], [2, 4, 1, 12], [3, 12, 5, 4], [1, 8, 64, 8], [1, 5, 2, 7]];

/// Every product and its absolute terms' sum in 64 bits: `[batch,m,n]`.
fn sums([batch, m, k, n]: [usize; 4], [a, b]: [&Array; 2], transposed: Transpose) -> Vec<[f64; 2]> {
    let element = |i: usize| {
        let (product, row, column) = (i / (m * n), i / n % m, i % n);
        let term = |t: usize| {
            let x = a.values[product * m * k + if transposed.a { t * m + row } else { row * k + t }];
            let y = b.values[product * k * n + if transposed.b { column * k + t } else { t * n + column }];
            x * y
        };
        let terms = (0..k).map(term);
        terms.fold([0.0, 0.0], |[sum, size], x| [sum + x, size + x.abs()])
    };
    (0..batch * m * n).map(element).collect()
}

#[test]
fn products_of_f16() {
    let Some((gpu, CooperativeMatrices { side, .. })) = opened() else { return };
    let mut random = Random::new(109);
    let layouts = [(false, false), (false, true), (true, false), (true, true)].map(|(a, b)| Transpose { a, b });
    for (size, transposed) in SIZES.into_iter().flat_map(|size| layouts.map(|transposed| (size, transposed))) {
        let [batch, m, k, n] = [size[0], size[1] * side as usize, size[2] * side as usize, size[3] * side as usize];
        let a = random.normals(if transposed.a { [batch, k, m] } else { [batch, m, k] }).rounded(DType::F16);
        let b = random.normals(if transposed.b { [batch, n, k] } else { [batch, k, n] }).rounded(DType::F16);
        let product = |gpu: &Gpu| {
            let [a, b] = [&a, &b].map(|x| x.upload(gpu, DType::F16).unwrap());
            matmul(&a, &b, transposed).and_then(|x| cast(DType::F32, &x)?.to_f32()).unwrap()
        };
        let ways = [product(&gpu), product(&gpu.with_portable_kernels())];
        for (i, [sum, size]) in sums([batch, m, k, n], [&a, &b], transposed).into_iter().enumerate() {
            // Half a step of the result; a step of 32 bits a term, since units may cut what they add and not round it.
            let limit = sum.abs() / 2048.0 + (k + 1) as f64 * f64::from(f32::EPSILON) * size;
            for way in &ways {
                let found = f64::from(way[i]);
                assert!(
                    (found - sum).abs() <= limit,
                    "{found}, not {sum}: {i} of {batch}, {m}, {k}, {n}, {transposed:?}"
                );
            }
        }
    }
}

/// The largest halves, infinities and NaN come through.
#[test]
fn extremes() {
    let Some((gpu, CooperativeMatrices { side, .. })) = opened() else { return };
    let n = 8 * side as usize;
    let values = [f16::MAX, f16::MIN, f16::INFINITY, f16::NEG_INFINITY, f16::NAN, f16::MIN_POSITIVE];
    for x in values {
        let a = Array::new([n, n], (0..n * n).map(|i| if i % (n + 1) == 0 { x.to_f64() } else { 0.0 }).collect());
        let b = Array::new([n, n], vec![1.0; n * n]);
        let [a, b] = [a, b].map(|x| x.upload(&gpu, DType::F16).unwrap());
        let found = matmul(&a, &b, Transpose::default()).and_then(|x| cast(DType::F32, &x)?.to_f32()).unwrap();
        let same = |y: &f32| *y == x.to_f32() || (y.is_nan() && x.is_nan());
        assert!(found.iter().all(same), "{x}: {:?}", found.iter().find(|y| !same(y)));
    }
}
